"""Normalisations by a multiple of the deviation, such as that of torch.std or a Euclidean norm, and what is none."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from rewrite_harness import SpellingBuilder, check_fused, close, configuration, fused_nodes, only_fused, optimize, run

WIDTH = 8
SHAPE = (3, 5, WIDTH)
EPSILON = 1e-5
SAMPLE = math.sqrt(WIDTH / (WIDTH - 1))


def _feeds(dtype: str = "float32") -> dict[str, Any]:
    return {"x": (np.random.default_rng(1).standard_normal(SHAPE) * 3 + 1).astype(dtype)}


def _sample_variance(g: SpellingBuilder, x: str, count: str = "number") -> str:
    """torch.var, as both exporters of PyTorch write it: with a mean of its own, and a count that may come from x."""
    d = g.add("Sub", x, g.reduce_mean(x, [-1]))
    variance = g.reduce_mean(g.add("Mul", d, d), [-1])
    if count == "factor":
        return g.add("Mul", variance, WIDTH / (WIDTH - 1))
    if count == "number":
        return g.add("Div", g.add("Mul", variance, float(WIDTH)), float(WIDTH - 1))
    dims = g.add("Gather", g.add("Shape", x), np.array([-1], np.int64), axis=0)
    number = g.add("Cast", g.add("ReduceProd", dims, keepdims=0), to=g.onnx_type(g.dtype))
    return g.add("Div", g.add("Mul", variance, number), g.add("Sub", number, 1.0))


def _expected(factor: float, **others: Any) -> dict[str, Any]:
    """The attributes; an epsilon beside a multiple of the deviation is one beside the deviation divided by as much."""
    return {"axes": [-1], "epsilon": pytest.approx(EPSILON / factor, rel=1e-6)} | others


@pytest.mark.parametrize("opset", [11, 13, 18])
@pytest.mark.parametrize("count", ["number", "factor", "from x"])
@pytest.mark.parametrize("scaled", ["first", "last", "not"])
def test_sample_deviation(scaled: str, count: str, opset: int) -> None:
    """a * (x - mean) / (std + epsilon) + b, of the Annotated Transformer and many models after it."""
    g = SpellingBuilder(opset)
    x = g.input("x", SHAPE)
    d = g.add("Sub", x, g.reduce_mean(x, [-1]))
    deviation = g.add("Add", g.add("Sqrt", _sample_variance(g, x, count)), EPSILON)
    scale, bias = g.weight(WIDTH, mean=1.0), g.weight(WIDTH)
    y = g.add("Div", g.add("Mul", scale, d) if scaled == "first" else d, deviation)
    y = g.add("Mul", y, scale) if scaled == "last" else y
    g.output(y if scaled == "not" else g.add("Add", y, bias), SHAPE)
    model = g.model("m")
    node = check_fused(model, _feeds(), "FusedNormalization", _expected(SAMPLE, epsilon_on="stddev"))
    assert len(node.input) == (2 if scaled == "not" else 3)


Form = Callable[[SpellingBuilder, str, str], tuple[str, str]]
"""Takes x and its deviations from the mean, and gives what is divided and by what."""


def epsilon_inside(g: SpellingBuilder, x: str, d: str) -> tuple[str, str]:
    return d, g.add("Sqrt", g.add("Add", _sample_variance(g, x), EPSILON))


def half(g: SpellingBuilder, x: str, d: str) -> tuple[str, str]:
    variance = g.reduce_mean(g.add("Mul", d, d), [-1])
    return d, g.add("Mul", g.add("Sqrt", g.add("Add", variance, EPSILON)), 0.5)


def length_of_deviations(g: SpellingBuilder, x: str, d: str) -> tuple[str, str]:
    return d, g.add("Sqrt", g.reduce("ReduceSum", g.add("Mul", d, d), [-1]))


def length(g: SpellingBuilder, x: str, d: str) -> tuple[str, str]:
    return x, g.reduce("ReduceL2", x, [-1])


def length_and_epsilon(g: SpellingBuilder, x: str, d: str) -> tuple[str, str]:
    return x, g.add("Add", g.reduce("ReduceL2", x, [-1]), EPSILON)


def sum_and_epsilon(g: SpellingBuilder, x: str, d: str) -> tuple[str, str]:
    return x, g.add("Sqrt", g.add("Add", g.reduce("ReduceSum", g.add("Mul", x, x), [-1]), EPSILON))


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        (epsilon_inside, _expected(SAMPLE**2)),
        (half, {"axes": [-1]}),
        (length_of_deviations, {"axes": [-1], "epsilon": 0.0}),
        (length, {"axes": [-1], "epsilon": 0.0, "use_mean": 0}),
        (length_and_epsilon, _expected(math.sqrt(WIDTH), use_mean=0, epsilon_on="stddev")),
        (sum_and_epsilon, _expected(WIDTH, use_mean=0)),
    ],
)
def test_other_multiples(form: Form, expected: dict[str, Any]) -> None:
    g = SpellingBuilder(13)
    x = g.input("x", SHAPE)
    d = x if "use_mean" in expected else g.add("Sub", x, g.reduce_mean(x, [-1]))
    g.output(g.add("Div", *form(g, x, d)), SHAPE)
    check_fused(g.model("m"), _feeds(), "FusedNormalization", expected)


def test_half_precision() -> None:
    g = SpellingBuilder(13, "float16")
    x = g.input("x", SHAPE)
    norm = g.add("Sqrt", g.add("Add", g.reduce("ReduceSum", g.add("Mul", x, x), [-1]), EPSILON))
    g.output(g.add("Mul", g.add("Div", x, norm), g.weight(WIDTH, mean=1.0)), SHAPE)
    rounded = float(np.float16(EPSILON)) / WIDTH
    expected = {"axes": [-1], "use_mean": 0, "epsilon": pytest.approx(rounded, rel=1e-6)}
    node = check_fused(g.model("m"), _feeds("float16"), "FusedNormalization", expected)
    assert len(node.input) == 2


def _model(g: SpellingBuilder, y: Callable[[str, str], str]) -> onnx.ModelProto:
    """A model of the deviations from the mean and the sample variance of an input."""
    x = g.input("x", SHAPE)
    d, variance = g.add("Sub", x, g.reduce_mean(x, [-1])), _sample_variance(g, x)
    g.output(y(d, variance), SHAPE)
    return g.model("m")


@pytest.mark.parametrize("what", ["residual", "scale", "bias"])
def test_what_is_given_at_run_time_stays_behind(what: str) -> None:
    g = SpellingBuilder(13)
    operator, shape = {"residual": ("Add", SHAPE), "scale": ("Mul", (WIDTH,)), "bias": ("Add", (WIDTH,))}[what]
    given = g.input(what, shape)
    model = _model(g, lambda d, v: g.add(operator, given, g.add("Div", d, g.add("Sqrt", g.add("Add", v, EPSILON)))))
    feeds = _feeds() | {what: np.random.default_rng(2).standard_normal(shape).astype(np.float32)}
    optimized, _ = optimize(model)
    (node,) = fused_nodes(optimized)
    assert node.input[0] == "x"
    assert numpy_helper.to_array(optimized.graph.initializer[0]) == pytest.approx(1 / SAMPLE, rel=1e-6)
    (got,), (wanted,) = run(optimized, feeds).values(), run(model, feeds, optimized=False).values()
    close(got, wanted, what)


def test_one_epsilon_inside_and_one_beside_are_no_multiple() -> None:
    g = SpellingBuilder(13)
    model = _model(g, lambda d, v: g.add("Div", d, g.add("Add", g.add("Sqrt", g.add("Add", v, EPSILON)), EPSILON)))
    optimized, result = optimize(model)
    assert not fused_nodes(optimized)
    assert [site.reason for site in result.sites] == ["different_formula"]


def test_a_factor_for_each_row_is_no_multiple() -> None:
    """Its epsilon would have to be another one in each row."""
    g = SpellingBuilder(13)
    rows = np.array([1, 2, 3, 4, 5], np.float32).reshape(5, 1)
    optimized, _ = optimize(
        _model(g, lambda d, v: g.add("Div", d, g.add("Add", g.add("Mul", g.add("Sqrt", v), rows), EPSILON)))
    )
    assert not fused_nodes(optimized)


def test_a_scale_that_its_type_does_not_hold_is_left() -> None:
    g = SpellingBuilder(13, "float16")
    x = g.input("x", SHAPE)
    tiny = g.add("Mul", g.add("Sqrt", g.add("Add", g.reduce_mean(g.add("Mul", x, x), [-1]), EPSILON)), 1e-6)
    g.output(g.add("Div", x, tiny), SHAPE)
    optimized, result = optimize(g.model("m"))
    assert not fused_nodes(optimized)
    assert [site.reason for site in result.sites] == ["different_formula"]


def test_normalisation_with_a_number_behind_keeps_its_own_scale() -> None:
    """What is an RMS normalisation once a number behind it is counted in has no scale that would be its inverse."""
    g = SpellingBuilder(13)
    x = g.input("x", SHAPE)
    norm = g.add("Add", g.reduce("ReduceL2", x, [-1]), EPSILON)
    g.output(g.add("Mul", g.add("Div", x, norm), WIDTH**0.5), SHAPE)
    node = only_fused(optimize(g.model("m"))[0])
    assert list(node.input) == ["x"]
    assert configuration(node)["epsilon"] == pytest.approx(EPSILON / math.sqrt(WIDTH), rel=1e-6)


def test_in_a_function_of_the_model_it_is_left() -> None:
    """A function holds no initialisers, which the scale would be."""
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 13, "custom" : 1]>
        main (float[3,5,8] x) => (float[3,5,8] y) { y = custom.norm (x) }
        <domain: "custom", opset_import: ["" : 13]>
        norm (a) => (b)
        {
            two = Constant <value_float: float = 2.0> ()
            epsilon = Constant <value_float: float = 0.00001> ()
            squares = Mul (a, a)
            mean = ReduceMean <axes = [-1]> (squares)
            shifted = Add (mean, epsilon)
            root = Sqrt (shifted)
            twice = Mul (root, two)
            b = Div (a, twice)
        }""")
    optimized, result = optimize(model)
    (own,) = optimized.functions
    assert [node.op_type for node in own.node][-1] == "Div"
    assert [site.reason for site in result.sites] == ["unsupported_operator"]
