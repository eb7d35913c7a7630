"""The table of prices: what the cost model adds up."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from ._reading import read_table


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


@dataclasses.dataclass(frozen=True, slots=True)
class ProductPrice:
    """Nanoseconds of a convolution or a product of matrices, on one thread with AVX2."""

    products: float
    """For a thousand multiplications of two numbers."""
    weights: float = 0.0
    """For a thousand numbers of the right matrix."""
    elements: float = 0.0
    """For each element of the result."""


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
#: What decides between integers and floats for the products of a network.
PRODUCTS: Mapping[str, ProductPrice] = MappingProxyType(
    {row["name"]: ProductPrice(**{k: float(v) for k, v in row.items() if k != "name"}) for row in _TABLE["product"]}
)
#: Sizes in the place of those that a model does not give.
TYPICAL: Mapping[str, int] = MappingProxyType({row["name"]: row["size"] for row in _TABLE["typical"]})
