"""The table of element types: names, numbers and sizes, and what may have them."""

from __future__ import annotations

import dataclasses

from ._reading import by_name, read_table


@dataclasses.dataclass(frozen=True, slots=True)
class ElementType:
    """One element type."""

    name: str
    number: int
    """In ONNX's TensorProto.DataType."""
    bits: int = 0
    """Of one element; 0: no operator of ours takes the type."""
    kind: str = "other"
    """float: no scale goes with it; integer or float8: a quantised tensor may have it; other: neither."""
    stored: tuple[str, ...] = ()
    """The steps whose argument ``type`` may name it."""

    @property
    def is_taken(self) -> bool:
        """True for the types that tensors of the operators have."""
        return self.kind != "other"


ELEMENT_TYPES = by_name(ElementType, read_table("element_types")["type"])


def types_stored_by(step: str) -> tuple[str, ...]:
    """Return the names that the argument ``type`` of a step may have."""
    return tuple(name for name, each in ELEMENT_TYPES.items() if step in each.stored)
