"""The table of what ONNX Runtime does with operators by itself."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType

from ._reading import read_table


@dataclasses.dataclass(frozen=True, slots=True)
class OperatorList:
    """Operators of ONNX's own domain that ONNX Runtime does the same with."""

    names: tuple[str, ...]
    doc: str
    """What it does with them."""


HOST_OPERATORS: Mapping[str, OperatorList] = MappingProxyType(
    {
        row["name"]: OperatorList(tuple(row["activations"] if "activations" in row else row["operators"]), row["doc"])
        for row in read_table("host_operators")["list"]
    }
)
