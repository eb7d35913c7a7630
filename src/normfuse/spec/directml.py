"""The table of operators that join an island on DirectML."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType

from ._reading import by_name, read_table


@dataclasses.dataclass(frozen=True, slots=True)
class DirectMlOperator:
    """An operator of ONNX's own domain that runs on the GPU between fused chains."""

    name: str
    versions: tuple[int, ...]
    """Of the operator, in ONNX's operator sets."""
    directml: tuple[str, ...]
    """Without DML_OPERATOR_; none: it changes how a tensor is looked at, or is computed on the CPU."""
    level: str
    """DirectML's feature level from which there are these."""
    types: tuple[str, ...]
    """Element types on the GPU."""
    note: str = ""


DIRECTML_OPERATORS = by_name(DirectMlOperator, read_table("directml_operators")["operator"])

DIRECTML_ASSUMPTIONS: Mapping[str, float] = MappingProxyType(
    {row["doc"]: row["value"] for row in read_table("directml_operators")["assumption"]}
)
"""What the rule reckons with that decides whether an island pays: by description, assumed, not measured."""
