"""Reports as data for JSON, and the JSON schema of that data: both follow from the fields of the reports' classes.

A field is written under its own name, and its docstring is its description in the schema. ``ALSO`` names properties of
a class that are written as well; a field with the metadata :data:`BY_NAME` is written as the name of what it holds.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import itertools
import re
import textwrap
import types
import typing
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from normfuse._version import __version__

# What follows the type is the schema of the values, in place of that of all values of the type.
Share = Annotated[float, (("type", "number"), ("minimum", 0), ("maximum", 1))]
Seconds = Annotated[float, (("type", "number"), ("minimum", 0))]
SignedInt = Annotated[int, (("type", "integer"),)]

BY_NAME: Mapping[str, bool] = {"by_name": True}

_NUMBER: Mapping[str, Any] = {"anyOf": [{"type": "number"}, {"enum": ["inf", "-inf", "nan"]}]}
_SIMPLE: Mapping[Any, Mapping[str, Any]] = {
    str: {"type": "string"},
    bool: {"type": "boolean"},
    int: {"type": "integer", "minimum": 0},
    float: {"$ref": "#/$defs/number"},
    type(None): {"type": "null"},
    Any: {},
}


class Document:
    """A dataclass that is written as JSON."""

    ALSO: ClassVar[tuple[str, ...]] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return it as data for JSON."""
        return {name: as_data(value) for name, value in self._values()}

    def _values(self) -> list[tuple[str, Any]]:
        fields = dataclasses.fields(typing.cast("Any", self))
        values = [(field.name, getattr(self, field.name), "by_name" in field.metadata) for field in fields]
        written = [(name, value.name if by_name and value is not None else value) for name, value, by_name in values]
        return written + [(name, getattr(self, name)) for name in self.ALSO]


class Report(Document):
    """A document that a command prints or writes by itself."""

    def to_dict(self) -> dict[str, Any]:
        """Return the report as data for JSON; ``normfuse schema`` prints the schema of that data."""
        return {"schema_version": 1, "normfuse_version": __version__} | super().to_dict()


def as_data(value: Any) -> Any:
    """Return a value of a document as dictionaries, lists and what JSON has itself."""
    if isinstance(value, Document):
        return value.to_dict()
    if dataclasses.is_dataclass(value):
        return {field.name: as_data(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): as_data(each) for key, each in value.items()}
    return [as_data(each) for each in value] if isinstance(value, (list, tuple)) else value


class Schemas:
    """Makes the schema of a document from its class, with the schemas that it refers to in ``definitions``."""

    def __init__(self, types: Mapping[str, Any]) -> None:
        """Take what names in annotations stand for that a module imports for type checkers only."""
        self._types = dict(types)
        self.definitions: dict[str, Any] = {"number": _NUMBER}

    def properties(self, described: type) -> dict[str, Any]:
        """Return the schema of each value that is written of a dataclass or a TypedDict."""
        texts = _docstrings(described)
        hints = typing.get_type_hints(described, localns=self._types, include_extras=True)
        if dataclasses.is_dataclass(described):
            fields = dataclasses.fields(described)
            hints = {field.name: str | None if "by_name" in field.metadata else hints[field.name] for field in fields}
        for name in getattr(described, "ALSO", ()):
            value = getattr(described, name)
            texts[name] = _plain(inspect.getdoc(value) or "")
            hints[name] = typing.get_type_hints(value.fget, localns=self._types)["return"]
        if issubclass(described, Report):
            hints = {"schema_version": Literal[1], "normfuse_version": str} | hints
        return {name: self.of(hint) | _description(texts.get(name, "")) for name, hint in hints.items()}

    def of(self, annotation: Any) -> dict[str, Any]:
        """Return the schema of the values of a type."""
        origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
        if origin is Annotated:
            return {key: list(each) if isinstance(each, tuple) else each for key, each in annotation.__metadata__[0]}
        if annotation in _SIMPLE:
            return dict(_SIMPLE[annotation])
        if origin is Literal:
            return {"enum": list(arguments)}
        if origin in (typing.Union, types.UnionType):
            return {"anyOf": [self.of(each) for each in arguments]}
        if origin in (tuple, list):
            fixed = (
                {} if origin is list or ... in arguments else {"minItems": len(arguments), "maxItems": len(arguments)}
            )
            return {"type": "array", "items": self.of(arguments[0]), **fixed}
        if isinstance(origin, type) and issubclass(origin, Mapping):
            return {"type": "object", "additionalProperties": self.of(arguments[1])}
        return self._reference(annotation)

    def _reference(self, described: type) -> dict[str, Any]:
        name = f"{described.__module__.rpartition('.')[2]}.{described.__name__}"
        if name not in self.definitions:
            self.definitions[name] = {}  # it may hold itself
            self.definitions[name] = strict_object(self.properties(described)) | _description(_plain(described.__doc__))
        return {"$ref": f"#/$defs/{name}"}


def strict_object(properties: Mapping[str, Any], optional: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the schema of an object with these properties and no other."""
    head = {"type": "object", "required": list(properties), "additionalProperties": False}
    return head | {"properties": {**properties, **(optional or {})}}


def _docstrings(described: type) -> dict[str, str]:
    """Return the text below each field of a class."""
    found: dict[str, str] = {}
    body = typing.cast("ast.ClassDef", ast.parse(textwrap.dedent(inspect.getsource(described))).body[0]).body
    for field, text in itertools.pairwise(body):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and isinstance(text, ast.Expr):
            found[field.target.id] = _plain(str(ast.literal_eval(text.value)))
    return found


def _plain(text: str | None) -> str:
    """Return a docstring in the words of JSON, on one line, without markup."""
    plain = re.sub(r":\w+:`~?([^`]*)`|``([^`]*)``", r"\1\2", " ".join((text or "").split()))
    return re.sub(r"\bNone\b", "null", plain)


def _description(text: str) -> dict[str, str]:
    return {"description": text} if text else {}
