"""The table of operators: inputs, outputs, attributes, and what holds at the edges."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType

from ._reading import Row, read_table

__all__ = [
    "ATTRIBUTES",
    "EDGES",
    "OPERATORS",
    "OPERATOR_DOMAIN",
    "OPSET_VERSION",
    "SPEC_VERSION",
    "Attribute",
    "Edge",
    "Operator",
]


@dataclasses.dataclass(frozen=True, slots=True)
class Operator:
    """One operator of the domain ``ai.normfuse``."""

    name: str
    summary: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Attribute:
    """One attribute of the operators."""

    name: str
    type: str
    """int, ints, float, floats or string."""
    default: int | float | str | tuple[int, ...] | tuple[float, ...]
    values: tuple[str, ...]
    """The values a string attribute can have; empty: any."""
    operators: tuple[str, ...]
    """Names of the operators that take it."""
    doc: str


@dataclasses.dataclass(frozen=True, slots=True)
class Edge:
    """What holds at an edge of the operators' domain."""

    name: str
    operators: tuple[str, ...]
    """Names of the operators that it is about."""
    doc: str


def _names(row: Row, operators: Mapping[str, Operator]) -> tuple[str, ...]:
    return tuple(operators) if row["operators"] == "all" else tuple(row["operators"])


def _attribute(row: Row, operators: Mapping[str, Operator]) -> Attribute:
    default = row["default"]
    return Attribute(
        name=row["name"],
        type=row["type"],
        default=tuple(default) if isinstance(default, list) else default,
        values=tuple(row.get("values", ())),
        operators=_names(row, operators),
        doc=row["doc"],
    )


_OPERATOR_TABLE = read_table("operators")

OPERATOR_DOMAIN: str = _OPERATOR_TABLE["domain"]
OPSET_VERSION: int = _OPERATOR_TABLE["opset_version"]
SPEC_VERSION: int = _OPERATOR_TABLE["spec_version"]

OPERATORS: Mapping[str, Operator] = MappingProxyType(
    {
        row["name"]: Operator(row["name"], row["summary"], tuple(row["inputs"]), tuple(row["outputs"]))
        for row in _OPERATOR_TABLE["operator"]
    }
)
ATTRIBUTES: Mapping[str, Attribute] = MappingProxyType(
    {row["name"]: _attribute(row, OPERATORS) for row in _OPERATOR_TABLE["attribute"]}
)
EDGES: Mapping[str, Edge] = MappingProxyType(
    {row["name"]: Edge(row["name"], _names(row, OPERATORS), row["doc"]) for row in _OPERATOR_TABLE["edge"]}
)
