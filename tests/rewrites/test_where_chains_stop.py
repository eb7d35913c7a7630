"""A fused site says where its chain stops although what stands behind it looks as if it belonged to it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from rewrite_harness import SpellingBuilder, optimize

SHAPE = (2, 5, 8)
Build = Callable[[SpellingBuilder, str], str]


def _norm(g: SpellingBuilder, x: str) -> str:
    return g.add("LayerNormalization", x, g.weight(8, mean=1.0), g.weight(8))


def _silu(g: SpellingBuilder, x: str) -> str:
    return g.add("Mul", x, g.add("Sigmoid", x))


def modulation(g: SpellingBuilder, x: str) -> str:
    """AdaLN behind an affine of its own."""
    scale = g.add("Add", g.input("scale", (2, 1, 8)), 1.0)
    return g.add("Add", g.add("Mul", _norm(g, x), scale), g.input("shift", (2, 1, 8)))


def affine_behind_an_activation(g: SpellingBuilder, x: str) -> str:
    return g.add("Add", g.add("Mul", _silu(g, x), 1.25), 0.5)


def channels_behind_an_activation(g: SpellingBuilder, x: str) -> str:
    return g.add("Mul", _silu(g, x), g.weight(5, 1))


def second_activation(g: SpellingBuilder, x: str) -> str:
    return g.add("Tanh", g.add("Relu", _norm(g, x)))


def residual(g: SpellingBuilder, x: str) -> str:
    return g.add("Add", _norm(g, x), g.input("other", SHAPE))


def product(g: SpellingBuilder, x: str) -> str:
    return g.add("MatMul", _norm(g, x), np.eye(8, dtype=np.float32))


@pytest.mark.parametrize(
    ("build", "operator"),
    [
        (modulation, "Mul"),
        (affine_behind_an_activation, "Mul"),
        (channels_behind_an_activation, "Mul"),
        (second_activation, "Tanh"),
    ],
)
def test_chain_that_stops_says_so(build: Build, operator: str) -> None:
    g = SpellingBuilder(17)
    g.output(build(g, g.input("x", SHAPE)), SHAPE)
    _, result = optimize(g.model("m"))
    (site,) = [site for site in result.sites if site.fused_into]
    assert site.message.startswith(f"it stops before {operator} "), site
    assert "is not an operator that is fused" in site.message


@pytest.mark.parametrize("build", [residual, product])
def test_chain_that_ends_says_nothing(build: Build) -> None:
    g = SpellingBuilder(17)
    g.output(build(g, g.input("x", SHAPE)), SHAPE)
    _, result = optimize(g.model("m"))
    assert [site.message for site in result.sites if site.fused_into] == [""]


@pytest.mark.parametrize("operator", ["Mul", "Add"])
@pytest.mark.parametrize("made", [("Tanh",), ("Tanh", "Neg"), ("Exp", "Neg", "Abs")])
def test_parameter_that_is_made_from_the_result_is_none(operator: str, made: tuple[str, ...]) -> None:
    """As in LiSHT, n * tanh(n): the node that makes the operand would go with the chain, and be needed by it."""
    g = SpellingBuilder(17)
    n = operand = _norm(g, g.input("x", SHAPE))
    for each in made:
        operand = g.add(each, operand)
    g.output(g.add(operator, n, operand), SHAPE)
    model, _ = optimize(g.model("made_inside"))
    assert [node.op_type for node in model.graph.node][1:] == [*made, operator]
