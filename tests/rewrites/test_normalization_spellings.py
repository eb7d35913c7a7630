"""RMS, group, instance, batch and mean-variance normalisation in every spelling, and what only looks alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from rewrite_harness import CONSTANT_FORMS, SpellingBuilder, check_fused, close, fused_nodes, optimize, round_trip, run

SHAPE = (2, 5, 8)
IMAGE = (2, 6, 4, 3)


def _feeds(shape: Sequence[int], dtype: str = "float32", name: str = "x") -> dict[str, Any]:
    return {name: (np.random.default_rng(3).standard_normal(shape) * 2 + 0.5).astype(dtype)}


# --- RMS ------------------------------------------------------------------------------------------------------------


def rms_divide(g: SpellingBuilder, x: str) -> str:
    return g.add("Div", x, g.add("Sqrt", g.add("Add", g.reduce_mean(g.add("Pow", x, 2.0), [-1]), 1e-6)))


def rms_one_over(g: SpellingBuilder, x: str) -> str:
    """T5, Llama."""
    root = g.add("Sqrt", g.add("Add", g.reduce_mean(g.add("Pow", x, 2.0), [-1]), 1e-6))
    return g.add("Mul", x, g.add("Div", 1.0, root))


def rms_reciprocal(g: SpellingBuilder, x: str) -> str:
    """torch.rsqrt."""
    root = g.add("Sqrt", g.add("Add", g.reduce_mean(g.add("Mul", x, x), [-1]), 1e-6))
    return g.add("Mul", x, g.add("Reciprocal", root))


def rms_power(g: SpellingBuilder, x: str) -> str:
    return g.add("Mul", x, g.add("Pow", g.add("Add", g.reduce_mean(g.add("Mul", x, x), [-1]), 1e-6), -0.5))


def rms_sum(g: SpellingBuilder, x: str) -> str:
    mean = g.add("Div", g.reduce("ReduceSumSquare", x, [-1]), 8.0)
    return g.add("Div", x, g.add("Sqrt", g.add("Add", mean, 1e-6)))


RMS = {f.__name__: f for f in (rms_divide, rms_one_over, rms_reciprocal, rms_power, rms_sum)}
RMS_CONFIGURATION = {"axes": [-1], "use_mean": 0, "epsilon": float(np.float32(1e-6))}


@pytest.mark.parametrize("opset", [9, 13, 18, 23])
@pytest.mark.parametrize("scaled", [True, False])
@pytest.mark.parametrize("name", RMS)
def test_rms(name: str, scaled: bool, opset: int) -> None:
    g = SpellingBuilder(opset)
    y = RMS[name](g, g.input("x", SHAPE))
    g.output(g.add("Mul", g.weight(8, mean=1.0), y) if scaled else y, SHAPE)
    check_fused(g.model("m"), _feeds(SHAPE), "FusedNormalization", RMS_CONFIGURATION)


@pytest.mark.parametrize("swap", [False, True])
@pytest.mark.parametrize("constants", CONSTANT_FORMS)
def test_rms_constants_and_order(constants: str, swap: bool) -> None:
    g = SpellingBuilder(17, constants=constants, swap=swap)
    g.output(g.add("Mul", rms_one_over(g, g.input("x", SHAPE)), g.weight(8, mean=1.0)), SHAPE)
    check_fused(g.model("m"), _feeds(SHAPE), "FusedNormalization", RMS_CONFIGURATION)


def test_rms_scale_folded_into_the_factor() -> None:
    g = SpellingBuilder(17)
    x = g.input("x", SHAPE)
    root = g.add("Sqrt", g.add("Add", g.reduce_mean(g.add("Mul", x, x), [-1]), 1e-6))
    g.output(g.add("Mul", x, g.add("Mul", g.add("Reciprocal", root), g.weight(8, mean=1.0))), SHAPE)
    check_fused(g.model("m"), _feeds(SHAPE), "FusedNormalization", RMS_CONFIGURATION)


def test_rms_of_half_precision_in_float32() -> None:
    """Llama: cast, normalise, cast back, scale."""
    g = SpellingBuilder(17, "float16")
    x = g.add("Cast", g.input("x", SHAPE), to=onnx.TensorProto.FLOAT)
    mean = g.reduce_mean(g.add("Pow", x, np.float32(2)), [-1])
    root = g.add("Sqrt", g.add("Add", mean, np.float32(1e-6)))
    y = g.add("Cast", g.add("Mul", x, g.add("Div", np.float32(1), root)), to=onnx.TensorProto.FLOAT16)
    g.output(g.add("Mul", g.weight(8, mean=1.0), y), SHAPE)
    node = check_fused(g.model("m"), _feeds(SHAPE, "float16"), "FusedNormalization", RMS_CONFIGURATION)
    assert node.input[0] == "x"


# --- group normalisation --------------------------------------------------------------------------------------------


def _group_norm(g: SpellingBuilder, x: str, restore: str = "shape", grouping: Sequence[int] = (0, 3, -1)) -> str:
    grouped = g.add("Reshape", x, np.array(grouping, np.int64))
    normal = g.add("InstanceNormalization", grouped, np.ones(3, g.dtype), np.zeros(3, g.dtype), epsilon=1e-5)
    target = g.add("Shape", x) if restore == "shape" else np.array(IMAGE, np.int64)
    return g.add("Reshape", normal, target)


@pytest.mark.parametrize("opset", [9, 13, 18, 21])
@pytest.mark.parametrize("restore", ["shape", "constant"])
@pytest.mark.parametrize("grouping", [(0, 3, -1), (2, 3, -1), (0, 3, 24), (-1, 3, 24)])
def test_group_norm(opset: int, restore: str, grouping: Sequence[int]) -> None:
    g = SpellingBuilder(opset)
    y = _group_norm(g, g.input("x", IMAGE), restore, grouping)
    y = g.add("Add", g.add("Mul", y, g.weight(6, 1, 1, mean=1.0)), g.weight(6, 1, 1))
    g.output(y, IMAGE)
    check_fused(g.model("m"), _feeds(IMAGE), "FusedNormalization", {"num_groups": 3})


@pytest.mark.parametrize("affine", [True, False])
def test_group_norm_and_silu(affine: bool) -> None:
    g = SpellingBuilder(18)
    y = _group_norm(g, g.input("x", ("batch", 6, 4, 3)))
    if affine:
        y = g.add("Add", g.add("Mul", y, g.weight(6, 1, 1, mean=1.0)), g.weight(6, 1, 1))
    g.output(g.add("Mul", y, g.add("Sigmoid", y)), ("batch", 6, 4, 3))
    check_fused(g.model("m"), _feeds(IMAGE), "FusedNormalization", {"num_groups": 3, **SWISH})


SWISH = {"activation": "Swish", "activation_params": [1.0]}


def test_group_norm_with_scale_per_group() -> None:
    g = SpellingBuilder(18)
    x = g.input("x", IMAGE)
    grouped = g.add("Reshape", x, np.array([0, 3, -1], np.int64))
    normal = g.add("InstanceNormalization", grouped, g.weight(3, mean=1.0), g.weight(3), epsilon=1e-5)
    g.output(g.add("Reshape", normal, g.add("Shape", x)), IMAGE)
    wanted = {"num_groups": 3, "affine_align": "group"}
    check_fused(g.model("m"), _feeds(IMAGE), "FusedNormalization", wanted)


def test_group_norm_whose_parameters_are_computed() -> None:
    """PyTorch's dynamo exporter, before constants are folded: ones and zeros, and the axes of an Unsqueeze."""
    g = SpellingBuilder(18)
    x = g.input("x", ("batch", 6, 4, 3))
    ones, zeros = (g.add("CastLike", g.add("Expand", np.float32(fill), [3]), x) for fill in (1, 0))
    normal = g.add("InstanceNormalization", g.add("Reshape", x, [0, 3, -1]), ones, zeros, epsilon=1e-5)
    y = g.add("Reshape", normal, g.add("Shape", x))
    axes = g.add("Range", np.int64(1), np.int64(3), np.int64(1))
    y = g.add("Mul", y, g.add("Unsqueeze", g.weight(6, mean=1.0), axes))
    g.output(g.add("Add", y, g.add("Unsqueeze", g.weight(6), axes)), ("batch", 6, 4, 3))
    model = g.model("m")
    optimized, result = optimize(model)
    (node,) = fused_nodes(optimized)
    assert optimized.graph.output[0].name == node.output[0]
    assert [site.description for site in result.sites] == ["GroupNormalization"]
    expected, got = run(model, _feeds(IMAGE), optimized=False), run(optimized, _feeds(IMAGE))
    for name in expected:
        close(got[name], expected[name], name)


@pytest.mark.parametrize("opset", [13, 17])
def test_group_norm_behind_another(opset: int) -> None:
    """Opset 13: the shape behind the first one is only known to those who follow Shape."""
    g = SpellingBuilder(opset)
    first = _group_norm(g, g.input("x", IMAGE))
    y = _group_norm(g, g.add("Conv", first, g.weight(6, 6, 1, 1)))
    g.output(y, IMAGE)
    model, result = optimize(g.model("m"))
    plain, fused = run(g.model("m"), _feeds(IMAGE)), run(model, _feeds(IMAGE))
    for name in plain:
        np.testing.assert_allclose(fused[name], plain[name], atol=1e-5)
    assert [site.kind for site in result.sites if site.fused_into] == ["GroupNormalization"] * 2


@pytest.mark.parametrize(
    ("grouping", "restore", "reason"),
    [
        ((0, 4, -1), (2, 6, 4, 3), "different_formula"),  # 6 channels in 4 groups
        ((1, 6, -1), (2, 6, 4, 3), "different_formula"),  # the batch dimension is lost
        ((0, 3, -1), (2, 6, 3, 4), "different_formula"),  # another shape afterwards
    ],
)
def test_group_norm_near_miss(grouping: Sequence[int], restore: Sequence[int], reason: str) -> None:
    g = SpellingBuilder(18)
    x = g.input("x", IMAGE)
    channels = grouping[1]
    grouped = g.add("Reshape", x, np.array(grouping, np.int64))
    normal = g.add("InstanceNormalization", grouped, np.ones(channels, g.dtype), np.zeros(channels, g.dtype))
    g.output(g.add("Reshape", normal, np.array(restore, np.int64)), restore)
    model = g.model("m")
    optimized, _ = optimize(model)
    # The InstanceNormalization by itself is fused; the Reshapes around it stay.
    assert [node.op_type for node in optimized.graph.node] == [
        "Reshape",
        "FusedNormalization_InstanceNormalization",
        "Reshape",
    ]
    close(run(optimized, _feeds(IMAGE))[restore_name(optimized)], run(model, _feeds(IMAGE))[restore_name(model)], "")


def restore_name(model: onnx.ModelProto) -> str:
    return model.graph.output[0].name


# --- single nodes ---------------------------------------------------------------------------------------------------


def _single(opset: int, shape: Sequence[int], build: Callable[[SpellingBuilder, str], str]) -> onnx.ModelProto:
    g = SpellingBuilder(opset)
    g.output(build(g, g.input("x", shape)), shape)
    return g.model("m")


@pytest.mark.parametrize("opset", [17, 23])
@pytest.mark.parametrize(("axis", "axes"), [(-1, [-1]), (2, [-1]), (1, [-2, -1]), (-2, [-2, -1]), (0, [-3, -2, -1])])
@pytest.mark.parametrize("bias", [True, False])
def test_layer_normalization(opset: int, axis: int, axes: list[int], bias: bool) -> None:
    shape = SHAPE[axis:]
    model = _single(
        opset,
        SHAPE,
        lambda g, x: g.add(
            *("LayerNormalization", x, g.weight(*shape, mean=1.0), *([g.weight(*shape)] if bias else [])),
            axis=axis,
            epsilon=1e-3,
        ),
    )
    wanted = {"axes": axes, "epsilon": float(np.float32(1e-3))}
    check_fused(model, _feeds(SHAPE), "FusedNormalization", wanted)


def test_rms_normalization() -> None:
    model = _single(23, SHAPE, lambda g, x: g.add("RMSNormalization", x, g.weight(8, mean=1.0), epsilon=1e-6))
    check_fused(model, _feeds(SHAPE), "FusedNormalization", RMS_CONFIGURATION)


@pytest.mark.parametrize("opset", [7, 13, 22])
@pytest.mark.parametrize("shape", [(2, 6, 7), IMAGE, (1, 6, 2, 3, 4)])
def test_instance_normalization(opset: int, shape: tuple[int, ...]) -> None:
    model = _single(
        opset, shape, lambda g, x: g.add("InstanceNormalization", x, g.weight(6, mean=1.0), g.weight(6), epsilon=1e-5)
    )
    wanted = {"axes": list(range(2 - len(shape), 0)), "affine_align": "channel"}
    check_fused(model, _feeds(shape), "FusedNormalization", wanted)


def test_instance_normalization_with_scale_given_at_run_time() -> None:
    g = SpellingBuilder(13)
    y = g.add("InstanceNormalization", g.input("x", IMAGE), g.input("scale", (6,)), g.input("bias", (6,)))
    g.output(y, IMAGE)
    feeds = _feeds(IMAGE) | _feeds((6,), name="scale") | _feeds((6,), name="bias")
    check_fused(g.model("m"), feeds, "FusedNormalization", {"axes": [-2, -1], "affine_align": "channel"})


@pytest.mark.parametrize("opset", [13, 17])
def test_layer_norm_as_instance_normalization(opset: int) -> None:
    """tf2onnx: over the last dimension of three, each step of the sequence taken for a channel."""
    g = SpellingBuilder(opset)
    y = g.add("InstanceNormalization", g.input("x", SHAPE), np.ones(5, g.dtype), np.zeros(5, g.dtype), epsilon=1e-5)
    g.output(g.add("Add", g.add("Mul", y, g.weight(8, mean=1.0)), g.weight(8)), SHAPE)
    check_fused(g.model("m"), _feeds(SHAPE), "FusedNormalization", {"axes": [-1]})


def test_instance_norm_without_affine_then_scaled_by_channel() -> None:
    g = SpellingBuilder(13)
    y = g.add("InstanceNormalization", g.input("x", IMAGE), np.ones(6, g.dtype), np.zeros(6, g.dtype), epsilon=1e-5)
    g.output(g.add("Add", g.add("Mul", y, g.weight(6, 1, 1, mean=1.0)), g.weight(6, 1, 1)), IMAGE)
    check_fused(g.model("m"), _feeds(IMAGE), "FusedNormalization", {"axes": [-2, -1]})


def test_instance_norm_decomposed() -> None:
    g = SpellingBuilder(13)
    x = g.input("x", IMAGE)
    d = g.add("Sub", x, g.reduce_mean(x, [2, 3]))
    y = g.add("Div", d, g.add("Sqrt", g.add("Add", g.reduce_mean(g.add("Pow", d, 2.0), [2, 3]), 1e-5)))
    g.output(g.add("Add", g.add("Mul", y, g.weight(6, 1, 1, mean=1.0)), g.weight(6, 1, 1)), IMAGE)
    check_fused(g.model("m"), _feeds(IMAGE), "FusedNormalization", {"axes": [-2, -1]})


def test_group_normalization_21() -> None:
    model = _single(
        21, IMAGE, lambda g, x: g.add("GroupNormalization", x, g.weight(6, mean=1.0), g.weight(6), num_groups=3)
    )
    check_fused(model, _feeds(IMAGE), "FusedNormalization", {"num_groups": 3, "affine_align": "channel"})


def test_group_normalization_18_has_a_scale_per_group(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx.checker, "check_model", lambda model, **_: None)  # it refuses a deprecated operator
    model = _single(
        18, IMAGE, lambda g, x: g.add("GroupNormalization", x, g.weight(3, mean=1.0), g.weight(3), num_groups=3)
    )
    check_fused(model, _feeds(IMAGE), "FusedNormalization", {"num_groups": 3, "affine_align": "group"})


MVN = {"epsilon": float(np.float32(1e-9)), "epsilon_on": "stddev"}


@pytest.mark.parametrize("opset", [9, 13, 25])
@pytest.mark.parametrize(
    ("given", "axes"), [(None, [0, 2, 3]), ([0, 2, 3], [0, 2, 3]), ([2, 3], [-2, -1]), ([-1, 1], [1, 3])]
)
def test_mean_variance_normalization(opset: int, given: list[int] | None, axes: list[int]) -> None:
    attributes = {} if given is None else {"axes": given}
    model = _single(opset, IMAGE, lambda g, x: g.add("MeanVarianceNormalization", x, **attributes))
    check_fused(model, _feeds(IMAGE), "FusedNormalization", {"axes": axes, **MVN})


def test_activation_behind_a_skip_norm_with_unnamed_outputs() -> None:
    g = SpellingBuilder(21)
    x, skip = g.input("x", SHAPE), g.input("skip", SHAPE)
    y = g.add("SkipSimplifiedLayerNormalization", x, skip, g.weight(SHAPE[-1], mean=1.0), domain="com.microsoft")
    g.output(g.add("PRelu", y, g.weight(1)), SHAPE)
    model = g.model("m")
    model.graph.node[0].output.extend(["", "", ""])
    optimized, _ = optimize(model)
    assert [node.op_type for node in optimized.graph.node] == ["FusedNormalization_Add_RMSNormalization_Activation"]


@pytest.mark.parametrize("behind", [["Relu"], ["Sigmoid", "Mul"]])
@pytest.mark.parametrize("norm", ["GroupNormalization", "MeanVarianceNormalization"])
def test_activation_behind_a_norm_whose_shape_onnx_does_not_infer(norm: str, behind: list[str]) -> None:
    """Nothing but the graph's input and output has a type, as without the exporter's value_info."""
    g = SpellingBuilder(21)
    x = g.input("x", IMAGE)
    if norm == "GroupNormalization":
        y = g.add(norm, x, g.weight(6, mean=1.0), g.weight(6), num_groups=3)
        wanted: dict[str, object] = {"num_groups": 3, "affine_align": "channel"}
    else:
        y, wanted = g.add(norm, x), {"axes": [0, 2, 3], **MVN}
    activated = g.add(behind[0], y)
    g.output(g.add("Mul", y, activated) if len(behind) == 2 else activated, IMAGE)
    wanted |= SWISH if len(behind) == 2 else {"activation": "Relu"}
    check_fused(g.model("m"), _feeds(IMAGE), "FusedNormalization", wanted)


def test_norm_behind_a_spectrum_of_unknown_length() -> None:
    """ONNX infers no shape of an STFT but where all of its sizes are known, and so none of what is behind it."""
    g = SpellingBuilder(17)
    signal = g.input("x", (2, "samples"))
    step, window = g.constant(np.asarray(8)), g.constant(np.hanning(16).astype(np.float32))
    x = g.add("STFT", signal, step, window)
    d = g.add("Sub", x, g.reduce_mean(x, [1]))
    deviation = g.add("Sqrt", g.add("Add", g.reduce_mean(g.add("Mul", d, d), [1]), 1e-5))
    scale, bias = (g.constant(np.asarray(values, np.float32)) for values in ([1.5, 0.5], [0.25, -0.5]))
    g.output(g.add("Add", g.add("Mul", g.add("Div", d, deviation), scale), bias), (2, None, None, 2))
    model, feeds = g.model("m"), _feeds((2, 64))
    optimized, _ = optimize(model)
    assert [node.op_type for node in optimized.graph.node] == ["STFT", "FusedNormalization_MeanVarianceNormalization"]
    expected, got = run(model, feeds), run(optimized, feeds)
    for name in expected:
        close(got[name], expected[name], name)


@pytest.mark.parametrize("shortcut", [True, False])
def test_mean_variance_normalization_decomposed(shortcut: bool) -> None:
    """The function body of MeanVarianceNormalization: epsilon is added to the standard deviation."""
    g = SpellingBuilder(13)
    x = g.input("x", IMAGE)
    mean = g.reduce_mean(x, [0, 2, 3])
    d = g.add("Sub", x, mean)
    if shortcut:
        square = g.reduce_mean(g.add("Pow", x, 2.0), [0, 2, 3])
        variance = g.add("Sub", square, g.add("Pow", mean, 2.0))
    else:
        variance = g.reduce_mean(g.add("Pow", d, 2.0), [0, 2, 3])
    g.output(g.add("Div", d, g.add("Add", g.add("Sqrt", variance), 1e-9)), IMAGE)
    check_fused(g.model("m"), _feeds(IMAGE), "FusedNormalization", {"axes": [0, 2, 3], **MVN})


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("simplified", [True, False])
def test_skip_layer_normalization(simplified: bool, bias: bool) -> None:
    g = SpellingBuilder(17)
    x, skip = g.input("x", SHAPE), g.input("skip", SHAPE)
    parameters = [g.weight(8, mean=1.0)] + ([] if simplified else [g.weight(8)]) + ([g.weight(8)] if bias else [])
    op = "SkipSimplifiedLayerNormalization" if simplified else "SkipLayerNormalization"
    g.output(g.add(op, x, skip, *parameters, domain="com.microsoft", epsilon=1e-5), SHAPE)
    feeds = _feeds(SHAPE) | _feeds(SHAPE, name="skip")
    wanted = {"axes": [-1]} | ({"use_mean": 0} if simplified else {})
    check_fused(g.model("m"), feeds, "FusedNormalization", wanted)


def test_outputs_of_skip_layer_normalization() -> None:
    g = SpellingBuilder(17)
    x, skip = g.input("x", SHAPE), g.input("skip", SHAPE)
    scale, bias = g.weight(8, mean=1.0), g.weight(8)
    g.output(g.add("SkipLayerNormalization", x, skip, scale, bias, domain="com.microsoft", epsilon=1e-5), SHAPE)
    model = g.model("m")
    model.graph.node[0].output.extend(["", "", "total"])
    model.graph.output.append(onnx.helper.make_tensor_value_info("total", onnx.TensorProto.FLOAT, SHAPE))
    feeds = _feeds(SHAPE) | {"skip": np.random.default_rng(9).standard_normal(SHAPE).astype(np.float32)}
    optimized, _ = optimize(model)
    (node,) = fused_nodes(optimized)
    assert list(node.output) == ["SkipLayerNormalization_0_0", "total"]
    expected, got = run(model, feeds), run(optimized, feeds)
    for name in expected:
        close(got[name], expected[name], name)


def test_mean_and_inverse_standard_deviation_of_layer_normalization() -> None:
    g = SpellingBuilder(17)
    g.output(g.add("LayerNormalization", g.input("x", SHAPE), g.weight(8, mean=1.0)), SHAPE)
    model = g.model("m")
    model.graph.node[0].output.extend(["mean", "inverse"])
    for name in ("mean", "inverse"):
        model.graph.output.append(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, (2, 5, 1)))
    optimized, _ = optimize(model)
    (node,) = fused_nodes(optimized)
    assert list(node.output) == ["LayerNormalization_0_0", "", "mean", "inverse"]
    onnx.checker.check_model(optimized, full_check=True)
    expected, got = run(model, _feeds(SHAPE)), run(optimized, _feeds(SHAPE))
    for name in expected:
        close(got[name], expected[name], name)


# --- batch normalisation --------------------------------------------------------------------------------------------


def _batch_norm(g: SpellingBuilder, x: str, **attributes: Any) -> str:
    parameters = [g.weight(6, mean=1.0), g.weight(6), g.weight(6), g.constant(np.linspace(0.5, 2, 6).astype(g.dtype))]
    return g.add("BatchNormalization", x, *parameters, epsilon=1e-4, **attributes)


@pytest.mark.parametrize("opset", [9, 13, 15])
@pytest.mark.parametrize("activation", ["Relu", "LeakyRelu", "Swish"])
def test_batch_normalization_and_activation(opset: int, activation: str) -> None:
    g = SpellingBuilder(opset)
    y = _batch_norm(g, g.input("x", IMAGE))
    y = g.add("Mul", y, g.add("Sigmoid", y)) if activation == "Swish" else g.add(activation, y)
    g.output(y, IMAGE)
    parameters = {"LeakyRelu": [float(np.float32(0.01))], "Swish": [1.0]}.get(activation)
    wanted: dict[str, Any] = {"affine_align": "channel", "activation": activation}
    if parameters:
        wanted["activation_params"] = parameters
    check_fused(g.model("m"), _feeds(IMAGE), "FusedActivation", wanted)


def _quantised_weights(g: SpellingBuilder) -> str:
    weights = np.random.default_rng(5).integers(-127, 128, (6, 6, 1, 1)).astype(np.int8)
    return g.add("DequantizeLinear", g.constant(weights), g.constant(np.asarray(0.01, np.float32)))


PRODUCTS: dict[str, tuple[Callable[[SpellingBuilder, str], str], tuple[int, ...]]] = {
    "Conv": (lambda g, x: g.add("Conv", x, g.weight(6, 6, 1, 1), g.weight(6)), IMAGE),
    "grouped ConvTranspose": (lambda g, x: g.add("ConvTranspose", x, g.weight(6, 3, 1, 1), group=2), IMAGE),
    "MatMul": (lambda g, x: g.add("MatMul", x, g.weight(6, 6)), (4, 6)),
    "MatMul of a stack": (lambda g, x: g.add("MatMul", x, g.weight(5, 5)), (4, 6, 5)),
    "Gemm": (lambda g, x: g.add("Gemm", x, g.weight(6, 6), g.weight(6)), (4, 6)),
    "Conv with quantised weights": (lambda g, x: g.add("Conv", x, _quantised_weights(g)), IMAGE),
    "Conv with weights from a caller": (lambda g, x: g.add("Conv", x, g.input("w", (6, 6, 1, 1))), IMAGE),
}


@pytest.mark.parametrize("product", PRODUCTS)
def test_batch_normalization_is_left_where_onnx_runtime_makes_it_part_of_a_product(
    product: str, tmp_path: Path
) -> None:
    build, shape = PRODUCTS[product]
    g = SpellingBuilder(13)
    g.output(g.add("Relu", _batch_norm(g, build(g, g.input("x", shape)))), shape)
    model = g.model("m")
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    options.log_severity_level = 3
    onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    on_its_own = "BatchNormalization" in {n.op_type for n in onnx.load(options.optimized_model_filepath).graph.node}
    optimized, result = optimize(model)
    if on_its_own:
        assert "BatchNormalization" not in {node.op_type for node in optimized.graph.node}
    else:
        assert optimized == round_trip(model)
        (site,) = (site for site in result.sites if site.kind == "BatchNormalization")
        assert site.reason == "not_profitable"


def test_batch_normalization_behind_a_linear_layer() -> None:
    """Linear, BatchNorm1d and ReLU of PyTorch: ONNX Runtime has no fusion of a Gemm with a batch normalisation."""
    g = SpellingBuilder(17)
    x = g.add("Gemm", g.input("x", (5, 4)), g.weight(6, 4), g.weight(6), transB=1)
    g.output(g.add("Relu", _batch_norm(g, x)), (5, 6))
    model, feeds = g.model("m"), _feeds((5, 4))
    optimized, _ = optimize(model)
    assert [node.op_type for node in optimized.graph.node] == ["Gemm", "FusedActivation_Mul_Add_Activation"]
    expected, got = run(model, feeds), run(optimized, feeds)
    for name in expected:
        close(got[name], expected[name], name)


def test_batch_normalization_in_training_mode_is_left() -> None:
    g = SpellingBuilder(15)
    normalized = _batch_norm(g, g.input("x", IMAGE), training_mode=1)
    g.output(g.add("Relu", normalized), IMAGE)
    model = g.model("m")
    model.graph.node[0].output.extend(["running_mean", "running_var"])
    optimized, result = optimize(model)
    assert optimized == round_trip(model)
    (site,) = (site for site in result.sites if site.kind == "BatchNormalization")
    assert site.reason == "training_mode"
