"""Layer and group normalisation as whole frameworks, converters and optimisers write them, around a normalisation of
another kind or of another shape.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from oracle import evaluate
from rewrite_harness import (
    SpellingBuilder,
    check_fused,
    close,
    configuration,
    fused_nodes,
    inputs_of,
    optimize,
    round_trip,
    run,
)

import normfuse
from normfuse.optimization import Target

SHAPE = (2, 5, 8)
IMAGE = (2, 6, 4, 3)
RNG = np.random.default_rng(11)


def _feeds(shape: Sequence[int], name: str = "x") -> dict[str, Any]:
    return {name: (np.random.default_rng(7).standard_normal(shape) * 2 + 0.5).astype(np.float32)}


def _affine(g: SpellingBuilder, y: str) -> str:
    return g.add("Add", g.add("Mul", y, g.weight(8, mean=1.0)), g.weight(8))


# --- Keras, by tf2onnx: batch normalisation of [1, rows, columns, 1] with the batch's own statistics ----------------


def _squeeze(g: SpellingBuilder, x: str, axes: Sequence[int]) -> str:
    return g.add("Squeeze", x, np.array(axes, np.int64)) if g.opset >= 13 else g.add("Squeeze", x, axes=list(axes))


def _dimension(g: SpellingBuilder, shape: str, index: int) -> str:
    picked = g.add("Gather", g.add("Cast", shape, to=TensorProto.INT32), np.array([index], np.int64))
    return _squeeze(g, picked, [0])


def _batch_statistics(g: SpellingBuilder, x: str, scale: str, bias: str) -> str:
    axes = np.array([0, 2, 3], np.int64)
    mean = g.reduce("ReduceMean", x, [0, 2, 3])
    total = g.reduce("ReduceSumSquare", g.add("Sub", x, mean), [0, 2, 3], keepdims=0)
    sizes = g.add("Gather", g.add("Shape", x), axes)
    count = g.add("Cast", g.reduce("ReduceProd", sizes, [0], keepdims=0), to=TensorProto.FLOAT)
    variance = g.add("Div", total, count)
    return g.add("BatchNormalization", x, scale, bias, _squeeze(g, mean, [0, 2, 3]), variance, epsilon=1e-3)


def keras_layer_norm(g: SpellingBuilder, x: str) -> str:
    shape = g.add("Shape", x)
    rows = g.add("Mul", _dimension(g, shape, 0), _dimension(g, shape, 1))
    vector = g.add("Reshape", rows, np.array([-1], np.int64))
    columns = g.add("Mul", np.array([1], np.int32), g.add("Gather", g.add("Cast", shape, to=TensorProto.INT32), [2]))
    target = g.add("Concat", np.array([1], np.int32), vector, columns, np.array([1], np.int32), axis=0)
    flat = g.add("Reshape", x, g.add("Cast", target, to=TensorProto.INT64))
    size = g.add("Cast", vector, to=TensorProto.INT64)
    fill = helper.make_tensor("fill", TensorProto.FLOAT, [1], [1.0])
    ones, zeros = g.add("ConstantOfShape", size, value=fill), g.add("ConstantOfShape", size)
    y = _batch_statistics(g, flat, ones, zeros)
    return g.add("Reshape", y, g.add("Cast", g.add("Cast", shape, to=TensorProto.INT32), to=TensorProto.INT64))


@pytest.mark.parametrize("opset", [9, 11, 13, 17, 18])
@pytest.mark.parametrize("shape", [SHAPE, ("batch", "length", 8)])
def test_keras_layer_normalization(opset: int, shape: Sequence[Any]) -> None:
    g = SpellingBuilder(opset)
    g.output(_affine(g, keras_layer_norm(g, g.input("x", shape))), shape)
    model = g.model("m")
    optimized, result = optimize(model)
    (node,) = fused_nodes(optimized)
    assert configuration(node) == {"axes": [-1], "epsilon": float(np.float32(1e-3))}
    assert [n.op_type for n in optimized.graph.node] == [node.op_type]
    assert [site.description for site in result.sites if site.fused_into] == ["LayerNormalization"]
    name = node.output[0]
    exact = evaluate("FusedNormalization", inputs_of(node, optimized, _feeds(SHAPE)), configuration(node))["Y"].array()
    close(run(model, _feeds(SHAPE), optimized=False)[name], exact, "original")
    close(run(optimized, _feeds(SHAPE))[name], exact, "optimised")
    standard, _ = optimize(model, target="standard")
    again, _ = optimize(standard, target="standard")
    assert again.SerializeToString(deterministic=True) == standard.SerializeToString(deterministic=True)


@pytest.mark.parametrize("opset", [13, 18])
def test_batch_normalization_with_its_own_statistics(opset: int) -> None:
    """Training mode of a batch normalisation that keeps no running averages."""
    g = SpellingBuilder(opset)
    g.output(_batch_statistics(g, g.input("x", IMAGE), g.weight(6, mean=1.0), g.weight(6)), IMAGE)
    wanted = {"axes": [0, 2, 3], "affine_align": "channel", "epsilon": float(np.float32(1e-3))}
    node = check_fused_apart_from_shapes(g.model("m"), wanted)
    assert len(node.input) == 3


def check_fused_apart_from_shapes(model: onnx.ModelProto, wanted: dict[str, Any]) -> onnx.NodeProto:
    optimized, _ = optimize(model)
    (node,) = fused_nodes(optimized)
    assert configuration(node) == wanted
    expected, got = run(model, _feeds(IMAGE), optimized=False), run(optimized, _feeds(IMAGE))
    for name in expected:
        close(got[name], expected[name], name)
    return node


def test_statistics_of_another_tensor_are_not_the_batches() -> None:
    g = SpellingBuilder(13)
    x, other = g.input("x", IMAGE), g.input("other", IMAGE)
    mean = g.reduce("ReduceMean", other, [0, 2, 3])
    variance = g.reduce("ReduceMean", g.add("Pow", g.add("Sub", other, mean), 2.0), [0, 2, 3], keepdims=0)
    y = g.add("BatchNormalization", x, g.weight(6), g.weight(6), _squeeze(g, mean, [0, 2, 3]), variance)
    g.output(y, IMAGE)
    model = g.model("m")
    assert optimize(model)[0] == round_trip(model)


# --- InstanceNormalization whose channels are the steps of a sequence -----------------------------------------------


@pytest.mark.parametrize("opset", [10, 13, 17])
def test_instance_normalization_of_sequences_of_any_length(opset: int) -> None:
    """tf2onnx's rewriter: as many ones and zeros as the sequence has steps."""
    g = SpellingBuilder(opset)
    x = g.input("x", ("batch", "length", 8))
    length = g.add("Slice", g.add("Shape", x), [1], [2], [0])
    fill = helper.make_tensor("fill", TensorProto.FLOAT, [1], [1.0])
    ones, zeros = g.add("ConstantOfShape", length, value=fill), g.add("ConstantOfShape", length)
    y = g.add("InstanceNormalization", x, ones, zeros, epsilon=1e-5)
    g.output(_affine(g, y), ("batch", "length", 8))
    check_fused(g.model("m"), _feeds(SHAPE), "FusedNormalization", {"axes": [-1]})


# --- reshaped for the normalisation, and back -----------------------------------------------------------------------


def _normal(g: SpellingBuilder, x: str) -> str:
    d = g.add("Sub", x, g.reduce_mean(x, [-1]))
    return g.add("Div", d, g.add("Sqrt", g.add("Add", g.reduce_mean(g.add("Mul", d, d), [-1]), 1e-5)))


@pytest.mark.parametrize(
    ("shape", "target", "axes"),
    [
        (SHAPE, [-1, 8], [-1]),
        (SHAPE, [10, 8], [-1]),
        (SHAPE, [2, 40], [-2, -1]),
        (SHAPE, [1, 80], [-3, -2, -1]),
        (("batch", "length", 8), [-1, 8], [-1]),
        (("batch", 5, 8), [-1, 40], [-2, -1]),
        (("batch", 5, 8), [0, 5, 1, 8], [-1]),
    ],
)
@pytest.mark.parametrize("scaled", [True, False])
def test_rows_made_for_the_normalization(shape: Any, target: list[int], axes: list[int], scaled: bool) -> None:
    g = SpellingBuilder(13)
    x = g.input("x", shape)
    y = _normal(g, g.add("Reshape", x, target))
    if scaled:
        y = g.add("Add", g.add("Mul", y, g.weight(target[-1], mean=1.0)), g.weight(target[-1]))
    g.output(g.add("Reshape", y, g.add("Shape", x)), shape)
    check_fused(g.model("m"), _feeds(SHAPE), "FusedNormalization", {"axes": axes})


@pytest.mark.parametrize("shape", [SHAPE, ("batch", "length", 8), ("batch", 5, 8)])
def test_rows_made_with_sizes_picked_one_by_one(shape: Any) -> None:
    """As PyTorch writes x.reshape(-1, x.size(2)): each size is picked out of the shape as a scalar."""
    g = SpellingBuilder(13)
    x = g.input("x", shape)
    one = np.array([0], np.int64)
    sizes = [g.add("Unsqueeze", g.add("Gather", g.add("Shape", x), np.array(i, np.int64)), one) for i in range(3)]
    y = _normal(g, g.add("Reshape", x, g.add("Concat", np.array([-1], np.int64), sizes[2], axis=0)))
    g.output(g.add("Reshape", _affine(g, y), g.add("Concat", *sizes, axis=0)), shape)
    check_fused(g.model("m"), _feeds(SHAPE), "FusedNormalization", {"axes": [-1]})


@pytest.mark.parametrize(
    ("target", "restored"),
    [
        ([-1, 4], SHAPE),  # half of a row
        ([8, 10], SHAPE),  # rows across rows
        ([-1, 8], (5, 2, 8)),  # another shape behind
        ([5, 2, 8], (0, 0, 8)),  # a zero stands for the dimension of what is restored, not of x
    ],
)
def test_rows_of_another_kind_keep_their_reshapes(target: list[int], restored: Sequence[int]) -> None:
    g = SpellingBuilder(13)
    y = _normal(g, g.add("Reshape", g.input("x", SHAPE), target))
    g.output(g.add("Reshape", y, list(restored)), [5, 2, 8] if 0 in restored else restored)
    model = g.model("m")
    optimized, _ = optimize(model)
    assert [node.op_type for node in optimized.graph.node] == [
        *("Reshape", "FusedNormalization_LayerNormalization", "Reshape")
    ]
    expected, got = run(model, _feeds(SHAPE), optimized=False), run(optimized, _feeds(SHAPE))
    for name in expected:
        close(got[name], expected[name], name)


def test_group_normalization_restored_with_a_zero_for_the_groups() -> None:
    """The zero copies the number of groups, not of channels: the shape behind is another one."""
    g = SpellingBuilder(13)
    grouped = g.add("Reshape", g.input("x", IMAGE), np.array([0, 3, -1], np.int64))
    normal = g.add("InstanceNormalization", grouped, np.ones(3, g.dtype), np.zeros(3, g.dtype))
    g.output(g.add("Reshape", normal, [0, 0, -1, 3]), (2, 3, 8, 3))
    optimized, _ = optimize(g.model("m"))
    assert [node.op_type for node in optimized.graph.node][::2] == ["Reshape", "Reshape"]


# --- the function body of LayerNormalization, with the statistics that it also has as outputs -----------------------


@pytest.mark.parametrize("spelling", ["divide", "multiply", "one over"])
@pytest.mark.parametrize(
    "used",
    [
        *(("mean",), ("inverse",), ("mean", "inverse")),
        *(("deviation",), ("mean", "deviation"), ("inverse", "deviation"), ("mean", "inverse", "deviation")),
    ],
)
def test_statistics_that_are_used_become_outputs(spelling: str, used: tuple[str, ...]) -> None:
    g = SpellingBuilder(13)
    x = g.input("x", SHAPE)
    mean = g.reduce_mean(x, [-1])
    d = g.add("Sub", x, mean)
    root = g.add("Sqrt", g.add("Add", g.reduce_mean(g.add("Mul", d, d), [-1]), 1e-5))
    inverse = g.add("Div", 1.0, root) if spelling == "one over" else g.add("Reciprocal", root)
    g.output(g.add("Div", d, root) if spelling == "divide" else g.add("Mul", d, inverse), SHAPE, name="y")
    for name, value in (("mean", mean), ("inverse", inverse), ("deviation", root)):
        if name in used:
            g.output(value, (2, 5, 1), name=name)
    model = g.model("m")
    optimized, _ = optimize(model)
    (node,) = fused_nodes(optimized)
    others = Counter(node.op_type for node in optimized.graph.node if node.domain == "")
    assert others == Counter({"Identity": 1 + len(used), "Reciprocal": int("deviation" in used)})
    assert len(node.output) == (3 if used == ("mean",) else 4)
    expected, got = run(model, _feeds(SHAPE), optimized=False), run(optimized, _feeds(SHAPE))
    for name in expected:
        close(got[name], expected[name], name)


def _revin(g: SpellingBuilder, used: str) -> str:
    """Reversible instance normalisation: what is taken out of each series is put back behind the network."""
    x = g.input("x", ("batch", 12, 3))
    mean = g.reduce_mean(x, [1])
    d = g.add("Sub", x, mean)
    variance = g.add("Add", g.reduce_mean(g.add("Mul", d, d), [1]), 1e-5)
    deviation = g.add("Sqrt", variance)
    scale, bias = g.weight(3, mean=1.0), g.weight(3)
    y = g.add("Tanh", g.add("Add", g.add("Mul", g.add("Div", d, deviation), scale), bias))
    y = g.add("Div", g.add("Sub", y, bias), scale)
    return g.add("Add", g.add("Mul", y, {"deviation": deviation, "variance": variance}[used]), mean)


@pytest.mark.parametrize("target", ["portable", "custom-op", "standard"])
def test_reversible_instance_normalization(target: Target) -> None:
    g = SpellingBuilder(17)
    g.output(_revin(g, "deviation"), ("batch", 12, 3))
    result = normfuse.optimize(g.model("m"), target=target)
    assert result.report.verification is not None
    assert result.report.verification.result == "agree"
    assert [site.kind for site in result.report.fused] == ["MeanVarianceNormalization"]
    if target != "standard":
        assert [node.op_type for node in result.model.graph.node][1:] == ["Reciprocal", "Mul", "Add"]
    again = normfuse.optimize(result.model, target=target, verify=False)
    assert [node.op_type for node in again.model.graph.node] == [node.op_type for node in result.model.graph.node]


def test_a_variance_that_is_used_is_no_output() -> None:
    g = SpellingBuilder(17)
    g.output(_revin(g, "variance"), ("batch", 12, 3))
    optimized, result = optimize(g.model("m"))
    assert not fused_nodes(optimized)
    (site,) = (site for site in result.sites if site.kind == "LayerNormalization")
    assert site.reason == "has_other_consumers"
    assert "is used elsewhere" in site.message


@pytest.mark.parametrize("use", ["output", "operator", "reshaped"])
def test_statistics_of_rows_have_the_shape_of_rows(use: str) -> None:
    """The mean of 10 rows is no mean of [2, 5]: what uses it as it is keeps the Reshapes."""
    g = SpellingBuilder(13)
    rows = g.add("Reshape", g.input("x", SHAPE), [-1, 8])
    mean = g.reduce_mean(rows, [-1])
    d = g.add("Sub", rows, mean)
    y = g.add("Div", d, g.add("Sqrt", g.add("Add", g.reduce_mean(g.add("Mul", d, d), [-1]), 1e-5)))
    g.output(g.add("Reshape", y, [2, 5, 8]), SHAPE, name="y")
    if use == "output":
        g.output(mean, (10, 1))
    elif use == "operator":
        g.output(g.add("Mul", mean, g.weight(10, 1)), (10, 1))
    else:
        g.output(g.add("Reshape", mean, [2, 5, 1]), (2, 5, 1))
    model = g.model("m")
    optimized, _ = optimize(model)
    assert len(fused_nodes(optimized)) == 1
    left = [node.op_type for node in optimized.graph.node].count("Reshape")
    assert left == (1 if use == "reshaped" else 2)
    expected, got = run(model, _feeds(SHAPE), optimized=False), run(optimized, _feeds(SHAPE))
    for name in expected:
        close(got[name], expected[name], name)


def test_statistics_in_half_precision_are_left() -> None:
    """The operator's are float32: another rounding than the model's own."""
    g = SpellingBuilder(13, "float16")
    x = g.input("x", SHAPE)
    mean = g.reduce_mean(x, [-1])
    d = g.add("Sub", x, mean)
    g.output(g.add("Div", d, g.add("Sqrt", g.add("Add", g.reduce_mean(g.add("Mul", d, d), [-1]), 1e-5))), SHAPE)
    g.output(mean, (2, 5, 1))
    optimized, result = optimize(g.model("m"))
    assert not fused_nodes(optimized)
    assert [site.reason for site in result.sites] == ["is_graph_output"]


# --- ONNX Runtime's own group normalisation, for which its CPU provider has no kernel -------------------------------


def _group_norm(g: SpellingBuilder, x: str, op_type: str, activation: int, last: int, *skip: str) -> str:
    parameters = [g.weight(6, mean=1.0), g.weight(6)]
    attributes = {"groups": 3, "activation": activation, "channels_last": last, "epsilon": 1e-5}
    return g.add(op_type, x, *parameters, *skip, domain="com.microsoft", **attributes)


def _check_group_norm(model: onnx.ModelProto, wanted: dict[str, Any], *names: str) -> onnx.NodeProto:
    optimized, _ = optimize(model)
    (node,) = fused_nodes(optimized)
    assert [n.op_type for n in optimized.graph.node] == [node.op_type]
    assert configuration(node) == {"num_groups": 3, "affine_align": "channel", **wanted}
    standard, _ = optimize(model, target="standard")
    again, _ = optimize(standard, target="standard")
    assert again.SerializeToString(deterministic=True) == standard.SerializeToString(deterministic=True)
    feeds = {name: RNG.standard_normal(IMAGE).astype(np.float32) for name in names}
    outputs = evaluate("FusedNormalization", inputs_of(node, optimized, feeds), configuration(node))
    got = run(optimized, feeds)
    for name, value in zip(node.output, ("Y", "sum"), strict=False):
        close(got[name], outputs[value].array(), value)
    return node


SILU = {"activation": "Swish", "activation_params": [1.0]}


@pytest.mark.parametrize("transposed", [True, False])
@pytest.mark.parametrize("activation", [0, 1])
def test_group_norm_of_onnxruntime(activation: int, transposed: bool) -> None:
    g = SpellingBuilder(17)
    x = g.input("x", IMAGE)
    moved = g.add("Transpose", x, perm=[0, 2, 3, 1]) if transposed else x
    y = _group_norm(g, moved, "GroupNorm", activation, int(transposed))
    g.output(g.add("Transpose", y, perm=[0, 3, 1, 2]) if transposed else y, IMAGE)
    _check_group_norm(g.model("m"), SILU if activation else {}, "x")


def test_skip_group_norm_of_onnxruntime() -> None:
    g = SpellingBuilder(17)
    x, skip = g.input("x", IMAGE), g.input("skip", IMAGE)
    g.output(_group_norm(g, x, "SkipGroupNorm", 1, 0, skip), IMAGE)
    model = g.model("m")
    model.graph.node[0].output.append("total")
    model.graph.output.append(helper.make_tensor_value_info("total", TensorProto.FLOAT, IMAGE))
    node = _check_group_norm(model, SILU, "x", "skip")
    assert list(node.output) == [model.graph.node[0].output[0], "total"]


@pytest.mark.parametrize(
    ("op_type", "last", "skip", "reason"),
    [
        ("GroupNorm", 1, None, "attribute_value"),
        ("SkipGroupNorm", 1, IMAGE, "attribute_value"),
        ("SkipGroupNorm", 0, (2, 6), "shape_mismatch"),
    ],
)
def test_group_norm_of_onnxruntime_that_is_left(op_type: str, last: int, skip: Any, reason: str) -> None:
    g = SpellingBuilder(17)
    x = g.input("x", IMAGE)
    more = [] if skip is None else [g.input("skip", skip)]
    g.output(_group_norm(g, x, op_type, 0, last, *more), IMAGE)
    model = g.model("m")
    optimized, result = optimize(model)
    assert optimized == round_trip(model)
    assert [(site.kind, site.reason) for site in result.sites] == [("GroupNormalization", reason)]


# --- paddle2onnx ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("affine", ["both", "scale", "bias"])
def test_paddle_reshapes_scale_and_bias(affine: str) -> None:
    g = SpellingBuilder(11, constants="vector")
    x = g.input("x", SHAPE)
    d = g.add("Sub", x, g.reduce_mean(x, [2]))
    y = g.add("Div", d, g.add("Sqrt", g.add("Add", g.reduce_mean(g.add("Pow", d, 2.0), [2]), 1e-5)))
    last = g.add("Slice", g.add("Shape", x), [2], [3], [0])
    if affine != "bias":
        y = g.add("Mul", y, g.add("Reshape", g.weight(2, 4, mean=1.0), [-1]))
    if affine != "scale":
        y = g.add("Add", y, g.add("Reshape", g.weight(8), last))
    g.output(y, SHAPE)
    optimized, _ = optimize(g.model("m"))
    (node,) = fused_nodes(optimized)
    assert optimized.graph.node[-1].name == node.name
    assert configuration(node) == {"axes": [-1]}
    expected, got = run(g.model("m"), _feeds(SHAPE), optimized=False), run(optimized, _feeds(SHAPE))
    close(got[node.output[0]], expected[node.output[0]], "y")
