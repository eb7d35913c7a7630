"""Every way in which exporters write layer normalisation out, and what only looks like it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from covering import parametrize_covering, parametrize_spread
from rewrite_harness import (
    CONSTANT_FORMS,
    SpellingBuilder,
    check_fused,
    configuration,
    fused_nodes,
    optimize,
    round_trip,
)

EPSILON = 1e-5
SHAPE = (2, 5, 8)
Spelling = Callable[[SpellingBuilder, str, Sequence[int]], str]


def _mean(g: SpellingBuilder, x: str, axes: Sequence[int]) -> str:
    return g.reduce("ReduceMean", x, axes)


def _shifted(g: SpellingBuilder, variance: str) -> str:
    return g.add("Add", variance, EPSILON)


def pow_div(g: SpellingBuilder, x: str, axes: Sequence[int]) -> str:
    """PyTorch before opset 17, paddle2onnx."""
    d = g.add("Sub", x, _mean(g, x, axes))
    return g.add("Div", d, g.add("Sqrt", _shifted(g, _mean(g, g.add("Pow", d, 2.0), axes))))


def integer_exponent(g: SpellingBuilder, x: str, axes: Sequence[int]) -> str:
    d = g.add("Sub", x, _mean(g, x, axes))
    square = g.add("Pow", d, np.array(2, np.int64))
    return g.add("Div", d, g.add("Sqrt", _shifted(g, _mean(g, square, axes))))


def mul_div(g: SpellingBuilder, x: str, axes: Sequence[int]) -> str:
    d = g.add("Sub", x, _mean(g, x, axes))
    return g.add("Div", d, g.add("Sqrt", _shifted(g, _mean(g, g.add("Mul", d, d), axes))))


def reciprocal(g: SpellingBuilder, x: str, axes: Sequence[int]) -> str:
    d = g.add("Sub", x, _mean(g, x, axes))
    root = g.add("Sqrt", _shifted(g, _mean(g, g.add("Mul", d, d), axes)))
    return g.add("Mul", d, g.add("Reciprocal", root))


def one_over(g: SpellingBuilder, x: str, axes: Sequence[int]) -> str:
    d = g.add("Sub", x, _mean(g, x, axes))
    root = g.add("Sqrt", _shifted(g, _mean(g, g.add("Pow", d, 2.0), axes)))
    return g.add("Mul", d, g.add("Div", 1.0, root))


def power_of_minus_half(g: SpellingBuilder, x: str, axes: Sequence[int]) -> str:
    d = g.add("Sub", x, _mean(g, x, axes))
    return g.add("Mul", d, g.add("Pow", _shifted(g, _mean(g, g.add("Mul", d, d), axes)), -0.5))


def power_of_half(g: SpellingBuilder, x: str, axes: Sequence[int]) -> str:
    d = g.add("Sub", x, _mean(g, x, axes))
    return g.add("Div", d, g.add("Pow", _shifted(g, _mean(g, g.add("Mul", d, d), axes)), 0.5))


def two_subtractions(g: SpellingBuilder, x: str, axes: Sequence[int]) -> str:
    """Old PyTorch: the deviation is computed twice."""
    mean = _mean(g, x, axes)
    square = g.add("Pow", g.add("Sub", x, mean), 2.0)
    return g.add("Div", g.add("Sub", x, mean), g.add("Sqrt", _shifted(g, _mean(g, square, axes))))


def two_means(g: SpellingBuilder, x: str, axes: Sequence[int]) -> str:
    square = g.add("Pow", g.add("Sub", x, _mean(g, x, axes)), 2.0)
    d = g.add("Sub", x, _mean(g, x, axes))
    return g.add("Div", d, g.add("Sqrt", _shifted(g, _mean(g, square, axes))))


def dead_reciprocal(g: SpellingBuilder, x: str, axes: Sequence[int]) -> str:
    """PyTorch leaves the inverse standard deviation behind, unused."""
    d = g.add("Sub", x, _mean(g, x, axes))
    root = g.add("Sqrt", _shifted(g, _mean(g, g.add("Pow", d, 2.0), axes)))
    g.add("Reciprocal", root)
    return g.add("Div", d, root)


def mean_of_squares(g: SpellingBuilder, x: str, axes: Sequence[int]) -> str:
    """Flax and JAX: E[x^2] - E[x]^2."""
    mean = _mean(g, x, axes)
    variance = g.add("Sub", _mean(g, g.add("Mul", x, x), axes), g.add("Mul", mean, mean))
    return g.add("Mul", g.add("Sub", x, mean), g.add("Reciprocal", g.add("Sqrt", _shifted(g, variance))))


def clamped_variance(g: SpellingBuilder, x: str, axes: Sequence[int]) -> str:
    """Flax: the difference of squares is kept from going below zero."""
    mean = _mean(g, x, axes)
    variance = g.add("Sub", _mean(g, g.add("Pow", x, 2.0), axes), g.add("Pow", mean, 2.0))
    return g.add("Div", g.add("Sub", x, mean), g.add("Sqrt", _shifted(g, g.add("Relu", variance))))


def sums(g: SpellingBuilder, x: str, axes: Sequence[int]) -> str:
    count = float(np.prod([SHAPE[axis] for axis in axes]))
    d = g.add("Sub", x, g.add("Div", g.reduce("ReduceSum", x, axes), count))
    variance = g.add("Mul", g.reduce("ReduceSum", g.add("Mul", d, d), axes), 1.0 / count)
    return g.add("Div", d, g.add("Sqrt", _shifted(g, variance)))


def sum_of_squares(g: SpellingBuilder, x: str, axes: Sequence[int]) -> str:
    """tf2onnx: ReduceSumSquare over the number of elements."""
    count = float(np.prod([SHAPE[axis] for axis in axes]))
    d = g.add("Sub", x, _mean(g, x, axes))
    variance = g.add("Div", g.reduce("ReduceSumSquare", d, axes), count)
    return g.add("Div", d, g.add("Sqrt", _shifted(g, variance)))


def folded(g: SpellingBuilder, x: str, axes: Sequence[int]) -> str:
    """TensorFlow without scale and offset: x * r - mean * r."""
    mean = _mean(g, x, axes)
    d = g.add("Sub", x, mean)
    r = g.add("Reciprocal", g.add("Sqrt", _shifted(g, _mean(g, g.add("Mul", d, d), axes))))
    return g.add("Sub", g.add("Mul", x, r), g.add("Mul", mean, r))


def repeaters(g: SpellingBuilder, x: str, axes: Sequence[int]) -> str:
    """Identity and Dropout in between."""
    d = g.add("Identity", g.add("Sub", x, _mean(g, g.add("Identity", x), axes)))
    root = g.add("Sqrt", _shifted(g, g.add("Identity", _mean(g, g.add("Pow", d, 2.0), axes))))
    return g.add("Div", g.add("Dropout", d), root)


SPELLINGS = (
    *(pow_div, integer_exponent, mul_div, reciprocal, one_over, power_of_minus_half, power_of_half, two_subtractions),
    *(two_means, dead_reciprocal, mean_of_squares, clamped_variance, sums, sum_of_squares, folded, repeaters),
)
BY_NAME = {spelling.__name__: spelling for spelling in SPELLINGS}


def _model(
    spelling: Spelling,
    opset: int = 13,
    axes: Sequence[int] = (-1,),
    affine: str = "both",
    constants: str = "initializer",
    swap: bool = False,
    shape: Sequence[int | str] = SHAPE,
) -> onnx.ModelProto:
    g = SpellingBuilder(opset, constants=constants, swap=swap)
    y = spelling(g, g.input("x", shape), axes)
    normalized = [SHAPE[axis] for axis in sorted(axis % len(SHAPE) for axis in axes)]
    if affine in ("both", "scale"):
        y = g.add("Mul", y, g.weight(*normalized, mean=1.0))
    if affine in ("both", "bias"):
        y = g.add("Add", y, g.weight(*normalized))
    g.output(y, shape)
    return g.model("layer_norm")


def _feeds() -> dict[str, Any]:
    return {"x": (np.random.default_rng(1).standard_normal(SHAPE) * 3 + 1).astype(np.float32)}


def _check(model: onnx.ModelProto, axes: Sequence[int] = (-1,), **expected: Any) -> None:
    check_fused(model, _feeds(), "FusedNormalization", {"axes": list(axes), **expected})


@parametrize_spread(
    "name,opset",
    list(BY_NAME),
    (7, 11, 13, 17, 18, 21, 23, 25),
    each=3,
    where=lambda name, opset: name != "integer_exponent" or opset >= 12,  # from there on Pow takes two types
)
def test_spelling_at_every_opset(name: str, opset: int) -> None:
    _check(_model(BY_NAME[name], opset))


@parametrize_covering(
    "name,axes,affine",
    ["pow_div", "reciprocal", "sums", "folded"],
    [(-1,), (2,), (-2, -1), (1, 2), (2, 1), (-1, 1)],
    ["both", "scale", "bias", "none"],
)
def test_axes_and_affine(name: str, axes: tuple[int, ...], affine: str) -> None:
    _check(_model(BY_NAME[name], axes=axes, affine=affine), range(-len(axes), 0))


@parametrize_covering(
    "name,constants,swap", ["pow_div", "one_over", "clamped_variance", "sums"], CONSTANT_FORMS, [False, True]
)
def test_constants_and_operand_order(name: str, constants: str, swap: bool) -> None:
    _check(_model(BY_NAME[name], constants=constants, swap=swap))


@pytest.mark.parametrize("name", BY_NAME)
def test_dynamic_shapes(name: str) -> None:
    if name in ("sums", "sum_of_squares"):
        _check(_model(BY_NAME[name], shape=("batch", "length", 8)))
    else:
        _check(_model(BY_NAME[name], shape=("batch", "length", 8), swap=True))


def test_axes_that_are_not_the_last() -> None:
    g = SpellingBuilder(13)
    y = pow_div(g, g.input("x", SHAPE), [0, 1])
    g.output(y, SHAPE)
    check_fused(g.model("m"), _feeds(), "FusedNormalization", {"axes": [0, 1]})


@pytest.mark.parametrize("opset", [13, 18])
def test_scale_folded_into_the_factor(opset: int) -> None:
    """Flax, TensorFlow: d * (r * scale) + bias."""
    g = SpellingBuilder(opset)
    x = g.input("x", SHAPE)
    d = g.add("Sub", x, _mean(g, x, [-1]))
    r = g.add("Reciprocal", g.add("Sqrt", _shifted(g, _mean(g, g.add("Mul", d, d), [-1]))))
    y = g.add("Add", g.add("Mul", d, g.add("Mul", r, g.weight(8, mean=1.0))), g.weight(8))
    g.output(y, SHAPE)
    _check(g.model("m"))


@pytest.mark.parametrize("training", [False, True])
def test_dropout_between(training: bool) -> None:
    """From opset 12 on, an input says whether a Dropout does anything."""
    g = SpellingBuilder(13)
    x = g.input("x", SHAPE)
    d = g.add("Sub", x, _mean(g, x, [-1]))
    dropped = g.add("Dropout", d, np.float32(0.5), np.array(training))
    root = g.add("Sqrt", _shifted(g, _mean(g, g.add("Pow", d, 2.0), [-1])))
    g.output(g.add("Div", dropped, root), SHAPE)
    if training:
        assert not fused_nodes(optimize(g.model("m"))[0])
    else:
        _check(g.model("m"))


@pytest.mark.parametrize("with_scale", [True, False])
@pytest.mark.parametrize("with_bias", [True, False])
def test_tensorflow_batch_normalization_form(with_scale: bool, with_bias: bool) -> None:
    """tf.nn.moments and tf.nn.batch_normalization: x * s + (bias - mean * s) with s = r * scale."""
    g = SpellingBuilder(13)
    x = g.input("x", SHAPE)
    mean = _mean(g, x, [-1])
    d = g.add("Sub", x, mean)
    s = g.add("Reciprocal", g.add("Sqrt", _shifted(g, _mean(g, g.add("Mul", d, d), [-1]))))
    if with_scale:
        s = g.add("Mul", s, g.weight(8, mean=1.0))
    scaled, offset = g.add("Mul", x, s), g.add("Mul", mean, s)
    y = g.add("Add", scaled, g.add("Sub", g.weight(8), offset)) if with_bias else g.add("Sub", scaled, offset)
    g.output(y, SHAPE)
    _check(g.model("m"))


@pytest.mark.parametrize("opset", [13, 17])
def test_half_precision_with_casts(opset: int) -> None:
    """PyTorch's legacy exporter squares half-precision deviations in float32."""
    g = SpellingBuilder(opset, "float16")
    x = g.input("x", SHAPE)
    d16 = g.add("Sub", x, _mean(g, x, [-1]))
    d = g.add("Cast", d16, to=onnx.TensorProto.FLOAT)
    variance = _mean(g, g.add("Pow", d, np.float32(2)), [-1])
    root = g.add("Sqrt", g.add("Add", variance, np.float32(EPSILON)))
    y = g.add("Cast", g.add("Div", d, root), to=onnx.TensorProto.FLOAT16)
    y = g.add("Add", g.add("Mul", y, g.weight(8, mean=1.0)), g.weight(8))
    g.output(y, SHAPE)
    feeds = {"x": _feeds()["x"].astype(np.float16)}
    check_fused(g.model("m"), feeds, "FusedNormalization", {"axes": [-1]})


@pytest.mark.parametrize("affine_type", ["float16", "float32"])
def test_half_precision_normalised_in_float32(affine_type: str) -> None:
    """Cast -> LayerNorm -> Cast, with scale and bias before or after the cast back."""
    g = SpellingBuilder(13, "float16")
    x16 = g.input("x", SHAPE)
    x = g.add("Cast", x16, to=onnx.TensorProto.FLOAT)
    d = g.add("Sub", x, _mean(g, x, [-1]))
    root = g.add("Sqrt", g.add("Add", _mean(g, g.add("Mul", d, d), [-1]), np.float32(EPSILON)))
    y = g.add("Div", d, root)
    weight, bias = (np.linspace(a, b, 8).astype(affine_type) for a, b in ((0.5, 2), (-1, 1)))
    if affine_type == "float16":
        y = g.add("Cast", y, to=onnx.TensorProto.FLOAT16)
    y = g.add("Add", g.add("Mul", y, weight), bias)
    if affine_type == "float32":
        y = g.add("Cast", y, to=onnx.TensorProto.FLOAT16)
    g.output(y, SHAPE)
    feeds = {"x": _feeds()["x"].astype(np.float16)}
    node = check_fused(g.model("m"), feeds, "FusedNormalization", {"axes": [-1]})
    assert node.input[0] == "x"


def test_scale_and_bias_given_at_run_time() -> None:
    """Adaptive layer normalisation: scale and bias of shape [batch, 1, channels]."""
    g = SpellingBuilder(17)
    y = pow_div(g, g.input("x", SHAPE), [-1])
    y = g.add("Mul", y, g.input("scale", (2, 1, 8)))
    y = g.add("Add", y, g.input("shift", (2, 1, 8)))
    g.output(y, SHAPE)
    rng = np.random.default_rng(2)
    feeds = _feeds() | {name: rng.standard_normal((2, 1, 8)).astype(np.float32) for name in ("scale", "shift")}
    check_fused(g.model("m"), feeds, "FusedNormalization", {"axes": [-1]})


# --- what only looks like it ---------------------------------------------------------------------------------------


def _near_miss(name: str) -> onnx.ModelProto:
    g = SpellingBuilder(13)
    x = g.input("x", SHAPE)
    mean_axes, variance_axes = ([-2], [-1]) if name == "other axis for the mean" else ([-1], [-1])
    if name == "other axis for the variance":
        variance_axes = [-2]
    mean = _mean(g, x, mean_axes)
    d = g.add("Sub", x, mean)
    exponent = {"cube": 3.0, "almost a square": 2.0001}.get(name, 2.0)
    square = g.add("Pow", d, exponent)
    variance = _mean(g, square, variance_axes)
    if name == "epsilon at run time":
        shifted = g.add("Add", variance, g.input("epsilon", (1,)))
    elif name == "epsilon per channel":
        shifted = g.add("Add", variance, np.full((5, 1), 1e-5, np.float32))
    elif name == "epsilon in float64":
        wide = g.add("Cast", variance, to=onnx.TensorProto.DOUBLE)
        shifted = g.add("Cast", g.add("Add", wide, np.float64(1e-5)), to=onnx.TensorProto.FLOAT)
    else:
        shifted = g.add("Add", variance, EPSILON)
    root = g.add("Sqrt", shifted)
    if name == "deviation of another tensor":
        d = g.add("Sub", g.input("other", SHAPE), mean)
    y = g.add("Div", root, d) if name == "divided the other way" else g.add("Div", d, root)
    extra = {
        "deviation is an output": d,
        "variance is an output": variance,
        "deviation has another consumer": g.add("Relu", d) if name == "deviation has another consumer" else "",
        "variance has another consumer": g.add("Relu", variance) if name == "variance has another consumer" else "",
    }.get(name)
    g.output(y, SHAPE)
    if extra:
        g.output(extra, (2, 5, 1) if "variance" in name else SHAPE)
    return g.model("near_miss")


NEAR_MISSES = {
    "other axis for the mean": "different_formula",
    "other axis for the variance": "different_formula",
    "deviation of another tensor": "different_formula",
    "cube": "different_formula",
    "almost a square": "different_formula",
    "divided the other way": "different_formula",
    "epsilon at run time": "parameter_not_constant",
    "epsilon per channel": "different_formula",
    "epsilon in float64": "unsupported_type",
    "deviation is an output": "is_graph_output",
    "variance is an output": "is_graph_output",
    "deviation has another consumer": "has_other_consumers",
    "variance has another consumer": "has_other_consumers",
}


@pytest.mark.parametrize(("name", "reason"), NEAR_MISSES.items())
def test_near_miss_is_left_with_its_reason(name: str, reason: str) -> None:
    model = _near_miss(name)
    optimized, result = optimize(model)
    assert not fused_nodes(optimized)
    assert optimized == round_trip(model)
    sites = [site for site in result.sites if site.kind in ("LayerNormalization", "RMSNormalization")]
    assert [site.reason for site in sites] == [reason], sites
    assert sites[0].message
    assert sites[0].advice


@pytest.mark.parametrize("missing", ["at x", "at the mean"])
def test_scale_in_one_of_two_factors_is_no_layer_norm(missing: str) -> None:
    """x * (r * scale) + (bias - mean * r) and the other way round."""
    g = SpellingBuilder(13)
    x = g.input("x", SHAPE)
    mean = g.reduce_mean(x, [-1])
    d = g.add("Sub", x, mean)
    r = g.add("Reciprocal", g.add("Sqrt", _shifted(g, g.reduce_mean(g.add("Mul", d, d), [-1]))))
    factors = [r, g.add("Mul", r, g.weight(8, mean=2.0))]
    if missing == "at the mean":
        factors.reverse()
    offset = g.add("Sub", g.weight(8), g.add("Mul", mean, factors[1]))
    g.output(g.add("Add", g.add("Mul", x, factors[0]), offset), SHAPE)
    optimized, _ = optimize(g.model("m"))
    assert not fused_nodes(optimized)


@pytest.mark.parametrize("shape", [(5, 1), (2, 1, 1, 8), (3,), (1, 1, 1, 8)])
def test_scale_of_another_shape_is_not_taken_in(shape: tuple[int, ...]) -> None:
    """A scale that would enlarge the result, or meets another dimension, stays a node of its own (or is per row)."""
    g = SpellingBuilder(13)
    y = pow_div(g, g.input("x", (2, 5, 8)), [-1])
    if shape == (3,):
        g = SpellingBuilder(13)
        y = pow_div(g, g.input("x", (2, 5, 1)), [-1])
    enlarged = {(2, 1, 1, 8): (2, 2, 5, 8), (3,): (2, 5, 3), (1, 1, 1, 8): (1, 2, 5, 8)}
    g.output(g.add("Mul", y, g.weight(*shape)), enlarged.get(shape, SHAPE))
    optimized, _ = optimize(g.model("m"))
    (node,) = fused_nodes(optimized)
    if shape == (5, 1):
        assert len(node.input) == 2  # one scale for each row: broadcast along the normalised dimension
    else:
        assert list(node.input) == ["x"]
        assert optimized.graph.node[-1].op_type == "Mul"


def test_difference_from_another_tensors_mean_is_an_rms_normalisation() -> None:
    """Not centred, so no layer normalisation; divided by its own root mean square, it is an RMS normalisation."""
    g = SpellingBuilder(13)
    d = g.add("Sub", g.input("x", SHAPE), _mean(g, g.input("other", SHAPE), [-1]))
    root = g.add("Sqrt", _shifted(g, _mean(g, g.add("Pow", d, 2.0), [-1])))
    g.output(g.add("Div", d, root), SHAPE)
    optimized, result = optimize(g.model("m"))
    (node,) = fused_nodes(optimized)
    assert configuration(node) == {"axes": [-1], "use_mean": 0}
    assert list(node.input) == [d]
    assert [site.kind for site in result.sites] == ["RMSNormalization"]


def test_keepdims_0_is_left() -> None:
    g = SpellingBuilder(13)
    x = g.input("x", (4, 4))
    d = g.add("Sub", x, g.reduce("ReduceMean", x, [-1], keepdims=0))
    root = g.add("Sqrt", g.add("Add", g.reduce("ReduceMean", g.add("Pow", d, 2.0), [-1], keepdims=1), EPSILON))
    g.output(g.add("Div", d, root), (4, 4))
    optimized, result = optimize(g.model("m"))
    assert not fused_nodes(optimized)
    assert [site.reason for site in result.sites] == ["attribute_value"]
    assert "keepdims" in result.sites[0].message


def test_float64_is_left_to_onnx_runtime() -> None:
    g = SpellingBuilder(13, "float64")
    y = pow_div(g, g.input("x", SHAPE), [-1])
    g.output(y, SHAPE)
    model = g.model("m")
    optimized, result = optimize(model)
    assert optimized == round_trip(model)
    assert [site.reason for site in result.sites] == ["unsupported_type"]
    assert "DOUBLE" in result.sites[0].message
