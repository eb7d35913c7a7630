"""The table of element types: names, numbers and sizes, and what may have them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType

from ._reading import Row, read_table

__all__ = ["ELEMENT_TYPES", "ElementType", "types_stored_by"]


@dataclasses.dataclass(frozen=True, slots=True)
class ElementType:
    """One element type."""

    name: str
    number: int
    """In ONNX's TensorProto.DataType."""
    bits: int
    """Of one element; 0: no operator of ours takes the type."""
    kind: str
    """float: no scale goes with it; integer or float8: a quantised tensor may have it; other: neither."""
    stored: tuple[str, ...]
    """The steps whose argument ``type`` may name it."""

    @property
    def is_taken(self) -> bool:
        """True for the types that tensors of the operators have."""
        return self.kind != "other"


def _element_type(row: Row) -> ElementType:
    return ElementType(
        name=row["name"],
        number=row["number"],
        bits=row.get("bits", 0),
        kind=row.get("kind", "other"),
        stored=tuple(row.get("stored", ())),
    )


ELEMENT_TYPES: Mapping[str, ElementType] = MappingProxyType(
    {row["name"]: _element_type(row) for row in read_table("element_types")["type"]}
)


def types_stored_by(step: str) -> tuple[str, ...]:
    """Return the names that the argument ``type`` of a step may have."""
    return tuple(name for name, each in ELEMENT_TYPES.items() if step in each.stored)
