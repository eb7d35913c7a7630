"""A fused site says where its chain stops although what stands behind it looks as if it belonged to it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest
from rewrite_harness import SpellingBuilder, optimize

SHAPE = (2, 5, 8)
Build = Callable[[SpellingBuilder, str], str]


def _norm(g: SpellingBuilder, x: str) -> str:
    return g.add("LayerNormalization", x, g.weight(8, mean=1.0), g.weight(8))


def _silu(g: SpellingBuilder, x: str) -> str:
    return g.add("Mul", x, g.add("Sigmoid", x))


def widening(g: SpellingBuilder, x: str) -> str:
    return g.add("Mul", _silu(g, g.add("Slice", x, [0], [1], [1])), np.ones((5, 1), np.float32))


def quotient(g: SpellingBuilder, x: str) -> str:
    return g.add("Div", _norm(g, x), g.input("divisor", (2, 1, 8)))


def second_activation(g: SpellingBuilder, x: str) -> str:
    return g.add("Tanh", g.add("Relu", _norm(g, x)))


def residual(g: SpellingBuilder, x: str) -> str:
    return g.add("Add", _norm(g, x), g.input("other", SHAPE))


def product(g: SpellingBuilder, x: str) -> str:
    return g.add("MatMul", _norm(g, x), np.eye(8, dtype=np.float32))


@pytest.mark.parametrize(
    ("build", "operator", "reason"),
    [
        (widening, "Mul", "does not fit"),
        (quotient, "Div", "is not a constant"),
        (second_activation, "Tanh", "is not an operator that is fused"),
    ],
)
def test_chain_that_stops_says_so(build: Build, operator: str, reason: str) -> None:
    g = SpellingBuilder(17)
    g.output(build(g, g.input("x", SHAPE)), SHAPE)
    _, result = optimize(g.model("m"))
    (site,) = [site for site in result.sites if site.fused_into]
    assert site.message.startswith(f"it stops before {operator} "), site
    assert reason in site.message


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


@pytest.mark.parametrize(
    "operators",
    [["LeakyRelu"], ["Relu", "Mul", "ThresholdedRelu"]],
)
def test_number_that_is_none_is_left(operators: list[str]) -> None:
    """No kernel takes NaN: a node with it, as target custom-op writes it, would not load."""
    g = SpellingBuilder(17)
    value = _norm(g, g.input("x", SHAPE))
    for name in operators:
        value = g.add(name, value, *([g.weight(8)] if name == "Mul" else []))
    g.output(value, SHAPE)
    model = g.model("nan")
    model.graph.node[-1].attribute.append(onnx.helper.make_attribute("alpha", float("nan")))
    _, result = optimize(model, target="custom-op")
    left = [site for site in result.sites if site.fused_into is None]
    assert [site.reason for site in left] == ["attribute_value"]
    assert f"attribute alpha of {operators[-1]} is NaN" in result.sites[0].message + left[0].message


def test_epsilon_that_is_no_number_is_left() -> None:
    g = SpellingBuilder(17)
    g.output(_norm(g, g.input("x", SHAPE)), SHAPE)
    model = g.model("nan")
    model.graph.node[0].attribute.append(onnx.helper.make_attribute("epsilon", float("nan")))
    _, result = optimize(model, target="custom-op")
    assert [(site.reason, site.fused_into) for site in result.sites] == [("attribute_value", None)]
