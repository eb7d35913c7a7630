"""Reading the tables of ``ep/spec``, which are data files of this package."""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Mapping
from importlib import resources
from types import MappingProxyType
from typing import Any, TypeVar

_Kind = TypeVar("_Kind")


class Row(dict[str, Any]):
    """One row of a table: a key that is missing is an error that says where."""

    def __init__(self, where: str, values: dict[str, Any]) -> None:
        super().__init__(values)
        self.where = where

    def __missing__(self, key: str) -> Any:
        raise KeyError(f"{self.where}: no key '{key}'")


def read_table(name: str) -> Row:
    """Return the table ``name``.toml; what it holds in lists of rows are ``Row`` too."""
    text = resources.files(__package__).joinpath(f"{name}.toml").read_text(encoding="utf-8")
    values = tomllib.loads(text)
    for kind, rows in values.items():
        if isinstance(rows, list) and rows and isinstance(rows[0], dict):
            values[kind] = [Row(f"{name}.toml: {_label(row)}", row) for row in rows]
    return Row(f"{name}.toml", values)


def _label(row: dict[str, Any]) -> str:
    return str(row.get("name") or row.get("op") or row.get("code") or "a row without a name")


def made(kind: type[_Kind], row: Mapping[str, Any], **given: Any) -> _Kind:
    """Return a dataclass of a row: each field, unless it is given, by the key in its metadata or of its own name."""
    values = dict(given)
    for field in dataclasses.fields(kind):  # type: ignore[arg-type]
        key = field.metadata.get("key", field.name)
        if field.name not in given and (key in row or field.default is dataclasses.MISSING):
            value = row[key]
            frozen = tuple(value) if isinstance(value, list) else value
            values[field.name] = MappingProxyType(value) if isinstance(value, dict) else frozen
    return kind(**values)


def by_name(kind: type[_Kind], rows: list[Row]) -> Mapping[str, _Kind]:
    """Return the rows by their names."""
    return MappingProxyType({row["name"]: made(kind, row) for row in rows})
