"""Activations by other identities; `test_equal_forms` writes them in random orders of their sums and products."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from rewrite_harness import SpellingBuilder, check_fused, fused_nodes, optimize

SHAPE = (3, 4, 16)
ROOT_HALF = math.sqrt(0.5)
FACTOR = math.sqrt(2 / math.pi)
Spelling = Callable[[SpellingBuilder, str], str]

GELU = {"activation": "Gelu"}
GELU_TANH = {"activation": "GeluTanh"}
SILU = {"activation": "Swish", "activation_params": [1.0]}
MISH = {"activation": "Mish"}
SIXTH = float(np.float32(1 / 6))
HARD_SWISH = {"activation": "HardSwish", "activation_params": [SIXTH, 0.5]}
LEAKY_RELU = {"activation": "LeakyRelu", "activation_params": [0.25]}
SIN_SQUARED = {"activation": "SinSquared"}
SOFTPLUS = {"activation": "Softplus", "activation_params": [1.0]}


def _feeds(low: float = -6, high: float = 6) -> dict[str, Any]:
    return {"x": np.linspace(low, high, math.prod(SHAPE)).reshape(SHAPE).astype(np.float32)}


# --- other identities -----------------------------------------------------------------------------------------------


def _polynomial(g: SpellingBuilder, x: str, factor: float = FACTOR, cubic: float = 0.044715) -> str:
    cube = g.add("Mul", g.add("Mul", x, x), x)
    return g.add("Mul", g.add("Add", x, g.add("Mul", cube, cubic)), factor)


def gelu_of_two_terms(g: SpellingBuilder, x: str) -> str:
    half = g.add("Mul", x, 0.5)
    return g.add("Add", half, g.add("Mul", half, g.add("Erf", g.add("Mul", x, ROOT_HALF))))


def gelu_of_a_negative(g: SpellingBuilder, x: str) -> str:
    erf = g.add("Erf", g.add("Div", g.add("Neg", x), math.sqrt(2)))
    return g.add("Mul", g.add("Mul", x, 0.5), g.add("Sub", 1.0, erf))


def gelu_six_digits(g: SpellingBuilder, x: str) -> str:
    erf = g.add("Erf", g.add("Div", x, 1.41421))
    return g.add("Mul", g.add("Mul", x, 0.5), g.add("Add", erf, 1.0))


def gelu_tanh_by_sigmoid(g: SpellingBuilder, x: str) -> str:
    return g.add("Mul", x, g.add("Sigmoid", g.add("Mul", _polynomial(g, x), 2.0)))


def gelu_tanh_jax(g: SpellingBuilder, x: str) -> str:
    """magika: x * (x * (c * x))."""
    cube = g.add("Mul", x, g.add("Mul", x, g.add("Mul", 0.044715, x)))
    tanh = g.add("Tanh", g.add("Mul", FACTOR, g.add("Add", x, cube)))
    return g.add("Mul", x, g.add("Mul", 0.5, g.add("Add", 1.0, tanh)))


def gelu_tanh_six_digits(g: SpellingBuilder, x: str) -> str:
    tanh = g.add("Tanh", _polynomial(g, x, factor=0.797885))
    return g.add("Mul", x, g.add("Add", 0.5, g.add("Mul", tanh, 0.5)))


def gelu_tanh_by_exponential(g: SpellingBuilder, x: str) -> str:
    return g.add("Div", x, g.add("Add", 1.0, g.add("Exp", g.add("Mul", _polynomial(g, x), -2.0))))


def silu_by_reciprocal(g: SpellingBuilder, x: str) -> str:
    return g.add("Mul", x, g.add("Reciprocal", g.add("Add", 1.0, g.add("Exp", g.add("Neg", x)))))


def silu_by_minus_one(g: SpellingBuilder, x: str) -> str:
    return g.add("Div", x, g.add("Add", g.add("Exp", g.add("Mul", x, -1.0)), 1.0))


def silu_by_tanh(g: SpellingBuilder, x: str) -> str:
    half = g.add("Mul", x, 0.5)
    return g.add("Add", half, g.add("Mul", half, g.add("Tanh", half)))


def hard_swish_of_sixths(g: SpellingBuilder, x: str) -> str:
    gate = g.add("Max", g.add("Min", g.add("Add", g.add("Div", x, 6.0), 0.5), 1.0), 0.0)
    return g.add("Mul", x, gate)


def hard_swish_by_relu(g: SpellingBuilder, x: str) -> str:
    """Relu(x + 3) - Relu(x - 3) is 0 to 6."""
    up, down = g.add("Relu", g.add("Add", x, 3.0)), g.add("Relu", g.add("Sub", x, 3.0))
    return g.add("Mul", x, g.add("Mul", g.add("Sub", up, down), 0.166667))


def mish_by_exponential(g: SpellingBuilder, x: str) -> str:
    e = g.add("Exp", x)
    product = g.add("Mul", e, g.add("Add", e, 2.0))
    return g.add("Mul", x, g.add("Div", product, g.add("Add", product, 2.0)))


def mish_by_square(g: SpellingBuilder, x: str) -> str:
    square = g.add("Pow", g.add("Add", g.add("Exp", x), 1.0), 2.0)
    return g.add("Mul", x, g.add("Div", g.add("Sub", square, 1.0), g.add("Add", square, 1.0)))


def softplus_without_overflow(g: SpellingBuilder, x: str) -> str:
    small = g.add("Log", g.add("Add", g.add("Exp", g.add("Neg", g.add("Abs", x))), 1.0))
    return g.add("Add", g.add("Max", x, 0.0), small)


def leaky_relu_by_where(g: SpellingBuilder, x: str) -> str:
    return g.add("Where", g.add("Greater", x, 0.0), x, g.add("Mul", x, 0.25))


def leaky_relu_of_two_halves(g: SpellingBuilder, x: str) -> str:
    return g.add("Sub", g.add("Relu", x), g.add("Mul", g.add("Relu", g.add("Neg", x)), 0.25))


def squared_sine(g: SpellingBuilder, x: str) -> str:
    return g.add("Pow", g.add("Sin", x), 2.0)


def squared_sine_as_a_product(g: SpellingBuilder, x: str) -> str:
    sine = g.add("Sin", x)
    return g.add("Mul", sine, sine)


def squared_sine_by_cosine(g: SpellingBuilder, x: str) -> str:
    return g.add("Mul", 0.5, g.add("Sub", 1.0, g.add("Cos", g.add("Mul", x, 2.0))))


IDENTITIES: list[tuple[Spelling, dict[str, Any]]] = [
    *((spelling, GELU) for spelling in (gelu_of_two_terms, gelu_of_a_negative, gelu_six_digits)),
    *((spelling, GELU_TANH) for spelling in (gelu_tanh_by_sigmoid, gelu_tanh_jax, gelu_tanh_six_digits)),
    (gelu_tanh_by_exponential, GELU_TANH),
    *((spelling, SILU) for spelling in (silu_by_reciprocal, silu_by_minus_one, silu_by_tanh)),
    *((spelling, HARD_SWISH) for spelling in (hard_swish_of_sixths, hard_swish_by_relu)),
    *((spelling, MISH) for spelling in (mish_by_exponential, mish_by_square)),
    (softplus_without_overflow, SOFTPLUS),
    *((each, SIN_SQUARED) for each in (squared_sine, squared_sine_as_a_product, squared_sine_by_cosine)),
    *((spelling, LEAKY_RELU) for spelling in (leaky_relu_by_where, leaky_relu_of_two_halves)),
]


@pytest.mark.parametrize(("spelling", "expected"), IDENTITIES)
def test_identity(spelling: Spelling, expected: dict[str, Any]) -> None:
    g = SpellingBuilder(13)
    g.output(spelling(g, g.input("x", SHAPE)), SHAPE)
    check_fused(g.model("m"), _feeds(), "FusedActivation", expected)


# --- constants ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("root", "fused"), [(1.4142135, True), (1.41421, True), (1.4142, False), (1.42, False)])
def test_six_digits_of_a_constant_are_enough(root: float, fused: bool) -> None:
    g = SpellingBuilder(13)
    x = g.input("x", SHAPE)
    g.output(g.add("Mul", g.add("Mul", x, 0.5), g.add("Add", g.add("Erf", g.add("Div", x, root)), 1.0)), SHAPE)
    optimized, result = optimize(g.model("m"))
    assert bool(fused_nodes(optimized)) == fused
    if not fused:
        (site,) = result.sites
        assert site.reason == "different_formula"
        assert "looks like Gelu, but for x = " in site.message


@pytest.mark.parametrize("threshold", [0.0, 100.0, 9000.0])
def test_a_kink_anywhere_is_seen(threshold: float) -> None:
    """The function is SiLU but for what lies beyond a threshold."""
    g = SpellingBuilder(13)
    x = g.input("x", SHAPE)
    silu = g.add("Mul", x, g.add("Sigmoid", x))
    g.output(g.add("Where", g.add("Greater", x, threshold), g.add("Mul", silu, 1.001), silu), SHAPE)
    optimized, _ = optimize(g.model("m"))
    assert "Where" in [node.op_type for node in optimized.graph.node]


def _mish_with_three(g: SpellingBuilder, x: str) -> str:
    e = g.add("Exp", x)
    product = g.add("Mul", e, g.add("Add", e, 2.0))
    return g.add("Mul", x, g.add("Div", product, g.add("Add", product, 3.0)))


def _silu_of_another_one(g: SpellingBuilder, x: str) -> str:
    return g.add("Div", x, g.add("Add", 1.1, g.add("Exp", g.add("Neg", x))))


@pytest.mark.parametrize("spelling", [_mish_with_three, _silu_of_another_one])
def test_what_looks_like_an_activation_without_a_node_of_one_is_listed(spelling: Spelling) -> None:
    g = SpellingBuilder(13)
    g.output(spelling(g, g.input("x", SHAPE)), SHAPE)
    optimized, result = optimize(g.model("m"))
    assert not fused_nodes(optimized)
    (site,) = result.sites
    assert (site.kind, site.reason) == ("Activation", "different_formula")
    assert "looks like Swish, but for x = " in site.message
