"""Steps beside chains that no formula of tests/corpus/chains.txt has: random ones, and numbers that are none."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rewrite_harness import SpellingBuilder, check_fused, optimize

SHAPE = (2, 5, 8)
RNG = np.random.default_rng(5)


def _norm(g: SpellingBuilder, x: str) -> str:
    return g.add("LayerNormalization", x, g.weight(8, mean=1.0), g.weight(8))


@given(words=st.lists(st.sampled_from(["Mul", "Add", "Sub", "Div"]), min_size=1, max_size=6), data=st.data())
def test_any_affine_steps(words: Sequence[str], data: st.DataObject) -> None:
    """Behind a normalisation that has its own scale and bias, on operands of any shape that fits."""
    shapes: list[tuple[int, ...]] = [(), (1,), (8,), (5, 1), (1, 8), (2, 1, 1), (2, 1, 8)]
    drawn = [data.draw(st.sampled_from(shapes)) for _ in words]
    at_run_time = [data.draw(st.booleans()) for _ in words]
    g = SpellingBuilder(20, swap=data.draw(st.booleans()))
    y, given_shapes = _norm(g, g.input("x", SHAPE)), {"x": SHAPE}
    for i, (word, shape, given_late) in enumerate(zip(words, drawn, at_run_time, strict=True)):
        if given_late and word in ("Mul", "Add"):
            given_shapes[f"t{i}"] = shape
            operand = g.input(f"t{i}", shape)
        else:
            operand = g.constant((RNG.random(shape) + 0.5).astype(np.float32))
        y = g.add(word, y, operand)
    g.output(y, SHAPE)
    steps = " ".join({"Sub": "Add", "Div": "Mul"}.get(word, word) for word in words)
    feeds = {name: np.asarray(RNG.standard_normal(shape), np.float32) for name, shape in given_shapes.items()}
    check_fused(g.model("m"), feeds, f"Normalize Mul Add {steps}".split())


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
