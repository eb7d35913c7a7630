"""How a session prepares a model, decided before any change, from facts about the model and the machine."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Literal

from normfuse.sessions import AllowedChanges

if TYPE_CHECKING:
    from normfuse.graph_rewrites.engine.options import Products

MOST_BYTES = 1 << 30
"""Limit of weights for the layout of convolutions: ONNX Runtime writes one protobuf message, for a moment in memory."""

Layout = Literal["as given", "of convolutions"]


@dataclasses.dataclass(frozen=True)
class ModelFacts:
    """Facts about a model that decide its plan; a QOperator model that is converted is described as Q/DQ pairs."""

    activations: frozenset[str] = frozenset()
    """Types that activations are quantised to, such as INT8."""
    chains_of_convolutions: bool = False
    """Steps of chains follow convolutions; without 8-bit activations, between two of them."""
    is_narrow: bool = False
    """It has inputs or weights of float16 or bfloat16."""
    weight_bytes: int = 0
    is_faster_in_float: bool = False
    """Most of its 8-bit products are depthwise convolutions, which are slow in integers on x86."""
    becomes_qdq: bool = False
    """It has operators of the QOperator format that are written as Q/DQ pairs: see `converts_to_qdq`."""


@dataclasses.dataclass(frozen=True)
class HostFacts:
    """Facts about the machine and the session's options that decide a plan."""

    is_x86: bool = True
    sums_saturate: bool = False
    """Sums of uint8 x int8 products saturate at 16 bits: x86 without VNNI."""
    makes_operators: bool = True
    """ONNX Runtime makes QLinear operators of Q/DQ pairs."""
    lays_out: bool = True
    """ONNX Runtime changes layouts: all its optimisations are on, and the optimised model is not saved."""
    compiles: bool = True
    """The execution provider claims chains of standard operators."""


@dataclasses.dataclass(frozen=True)
class SessionPlan:
    """How a model is prepared. What only a trial shows is a condition: see the documentation, Debugging."""

    as_qdq: bool
    """Operators of the QOperator format are written as Q/DQ pairs."""
    products: tuple[Products, ...]
    """The types of 8-bit products, best first: the next is tried if no layout is found for the one before."""
    layout: Layout
    """"of convolutions": ONNX Runtime optimises the model first, and chains run in the layout of its convolutions:
    NCHWc where products run in float, channels last where they run in integers."""
    allowed: AllowedChanges
    """With `fold_weights`, weights of products in float are dequantised once, and ONNX Runtime is kept from quantising
    them again."""
    shapes_before_dequantization: bool
    """Shape reads the quantised tensor, before DequantizeLinear."""
    reasons: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Return it in one line."""
        parts = [
            "form=Q/DQ pairs" if self.as_qdq else "form=as given",
            f"products={', else '.join(self.products)}",
            f"layout={self.layout}",
            f"weights={'dequantised once' if self.allowed.fold_weights else 'as given'}",
            *(["uint8 x int8=exact"] if self.allowed.exact_products else []),
        ]
        return f"session plan: {', '.join(parts)}, because {'; '.join(self.reasons)}"


def converts_to_qdq(host: HostFacts, allowed: AllowedChanges) -> bool:
    """Whether QLinear operators are written as Q/DQ pairs, which ONNX Runtime turns into faster operators."""
    return allowed.remove_quantization or (allowed.choose_products and host.is_x86 and host.makes_operators)


def plan_session(model: ModelFacts, host: HostFacts, allowed: AllowedChanges) -> SessionPlan:
    """Decide how a model is prepared."""
    products, why_products = _products(model, host, allowed)
    layout, why_layout = _layout(model, host, allowed)
    return SessionPlan(
        as_qdq=model.becomes_qdq,
        products=products if layout == "of convolutions" else products[-1:],
        layout=layout,
        allowed=allowed,
        shapes_before_dequantization=not model.activations.isdisjoint(("INT8", "UINT8")),
        reasons=(why_products, why_layout),
    )


def _products(model: ModelFacts, host: HostFacts, allowed: AllowedChanges) -> tuple[tuple[Products, ...], str]:
    """Return the types of 8-bit products, and why: float only with the layout of convolutions."""
    if not allowed.choose_products:
        return ("as they are",), "choose_products is off"
    in_float = host.is_x86 and model.is_faster_in_float
    first: tuple[Products, ...] = ("float",) if in_float else ()
    why = "depthwise convolutions are faster in float on x86, and " if in_float else ""
    if "INT8" not in model.activations:
        return (*first, "as they are"), f"{why}no activation is int8"
    if host.sums_saturate:
        return (*first, "exact integer"), f"{why}activations are int8, and sums of uint8 x int8 saturate here"
    return (*first, "integer"), f"{why}activations are int8"


def _layout(model: ModelFacts, host: HostFacts, allowed: AllowedChanges) -> tuple[Layout, str]:
    obstacles = {
        "blocked_layout is off": not allowed.blocked_layout,
        "the session options leave optimisations out, or save the optimised model": not host.lays_out,
        "the option compile is 0": not host.compiles,
        "no chain stands between convolutions": not model.chains_of_convolutions,
        "it is in float16 or bfloat16": model.is_narrow,
        f"its weights take {MOST_BYTES >> 30} GiB or more": model.weight_bytes >= MOST_BYTES,
    }
    found = next((obstacle for obstacle, there in obstacles.items() if there), None)
    return ("of convolutions", "chains stand between convolutions") if found is None else ("as given", found)
