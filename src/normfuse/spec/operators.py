"""The table of operators: outputs, attributes, the steps of a program, and what holds at the edges."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType

from ._reading import by_name, made, read_table


@dataclasses.dataclass(frozen=True, slots=True)
class Operator:
    """One operator of the domain ``ai.normfuse``."""

    name: str
    summary: str
    outputs: tuple[str, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Attribute:
    """One attribute of the operators' nodes."""

    name: str
    type: str
    """int or string."""
    doc: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step that a program may have, beside the activations."""

    name: str
    place: str
    """first, before, core, behind or last; beside is before and behind."""
    has_operand: bool = dataclasses.field(default=False, metadata={"key": "operand"})
    output: str = ""
    """What it stores of d; "": nothing."""
    arguments: tuple[str, ...]
    doc: str
    since: int = 1
    """The version of the specification that it came with."""

    @property
    def quantized(self) -> str:
        """What its scale is of, where that is not its operand: "x", "y", its output or "d"; "": it takes none such."""
        if self.has_operand or "scale" not in self.arguments:
            return ""
        return {"first": "x", "last": "y"}.get(self.place, self.output or "d")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Argument:
    """One argument of steps."""

    name: str
    type: str
    """tensor, int, ints, float, flag, word or type."""
    default: int | float | str | tuple[int, ...] | None = None
    """None: it is a tensor."""
    values: tuple[str, ...] = ()
    """Those that a word can have."""
    doc: str
    since: int = 1
    """The version of the specification that it came with."""


@dataclasses.dataclass(frozen=True, slots=True)
class Edge:
    """What holds at an edge of the operators' domain."""

    name: str
    operators: tuple[str, ...]
    """Names of the operators that it is about."""
    doc: str


_OPERATOR_TABLE = read_table("operators")

OPERATOR_DOMAIN: str = _OPERATOR_TABLE["domain"]
OPSET_VERSION: int = _OPERATOR_TABLE["opset_version"]

MOST_TENSORS: int = _OPERATOR_TABLE["most_tensors"]
MOST_STEP_TENSORS: int = _OPERATOR_TABLE["most_step_tensors"]
TENSORS_OF_QUANTIZED: int = _OPERATOR_TABLE["tensors_of_quantized"]
MOST_DIMENSIONS: int = _OPERATOR_TABLE["most_dimensions"]
UNNAMED_DIMENSION: str = _OPERATOR_TABLE["unnamed_dimension"]

OPERATORS = by_name(Operator, _OPERATOR_TABLE["operator"])
ATTRIBUTES = by_name(Attribute, _OPERATOR_TABLE["attribute"])
STEPS = by_name(Step, _OPERATOR_TABLE["step"])
ARGUMENTS = by_name(Argument, _OPERATOR_TABLE["argument"])
EDGES: Mapping[str, Edge] = MappingProxyType(
    {
        row["name"]: made(Edge, row, operators=tuple(OPERATORS)) if row["operators"] == "all" else made(Edge, row)
        for row in _OPERATOR_TABLE["edge"]
    }
)
