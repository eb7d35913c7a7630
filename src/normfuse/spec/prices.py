"""The table of prices: what the cost model adds up."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from ._reading import read_table

__all__ = ["CALLS", "PRICES", "Call", "Price", "price_of"]


@dataclasses.dataclass(frozen=True, slots=True)
class Price:
    """Nanoseconds per element, on one thread."""

    ort: float
    """ONNX Runtime's own kernels."""
    avx512: float
    avx2: float
    """Also taken for NEON."""
    baseline: float
    doc: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Call:
    """Nanoseconds that do not depend on the number of elements."""

    nanoseconds: float
    doc: str


def price_of(row: Mapping[str, Any], doc: str = "") -> Price:
    """Return the price in a row of a table."""
    return Price(float(row["ort"]), float(row["avx512"]), float(row["avx2"]), float(row["baseline"]), doc)


_TABLE = read_table("prices")

#: What a step costs for each element.
PRICES: Mapping[str, Price] = MappingProxyType({row["name"]: price_of(row, row["doc"]) for row in _TABLE["price"]})
#: What a call costs by itself.
CALLS: Mapping[str, Call] = MappingProxyType(
    {row["name"]: Call(float(row["nanoseconds"]), row["doc"]) for row in _TABLE["call"]}
)
