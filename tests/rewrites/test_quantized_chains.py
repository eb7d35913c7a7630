"""Chains of quantised models, placed as the quantisers place QuantizeLinear and DequantizeLinear."""

from __future__ import annotations

from typing import Any

import harness
import numpy as np
import onnx
import onnx.parser
import pytest
from rewrite_harness import SpellingBuilder, check_fused, close, configuration, fused_nodes, optimize, round_trip, run

from normfuse.graph_rewrites import Treatment

SHAPE = (2, 5, 8)
RNG = np.random.default_rng(5)
THREE = np.int8(3)


def _quantized(shape: tuple[int, ...], dtype: str, seed: int = 0) -> Any:
    info = np.iinfo(dtype)
    return np.random.default_rng(seed).integers(info.min, info.max, shape, endpoint=True).astype(dtype)


class QuantizedBuilder(SpellingBuilder):
    """Adds quantisation with scalar scale and zero point of a type."""

    def dequantize(self, x: str, scale: Any = 0.05, zero_point: Any = THREE, **attributes: Any) -> str:
        scale = np.asarray(scale, np.float32)
        return self.add("DequantizeLinear", x, scale, zero_point, **attributes)

    def quantize(self, x: str, scale: Any = 0.04, zero_point: Any = THREE, **attributes: Any) -> str:
        scale = np.asarray(scale, np.float32)
        return self.add("QuantizeLinear", x, scale, zero_point, **attributes)


@pytest.mark.parametrize("opset", [17, 18, 21, 23])
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("activation", [None, "Relu", "Sigmoid", "Tanh"])
def test_dequantize_layer_norm_activation_quantize(opset: int, dtype: str, activation: str | None) -> None:
    g = QuantizedBuilder(opset)
    zero = np.array(3, dtype)
    x = g.dequantize(g.input("x", SHAPE, dtype), 0.05, zero)
    y = g.add("LayerNormalization", x, g.weight(8, mean=1.0), g.weight(8))
    if activation:
        y = g.add(activation, y)
    g.output(g.quantize(y, 0.04, zero), SHAPE, dtype)
    wanted = {"axes": [-1]} | ({"activation": activation} if activation else {})
    check_fused(g.model("m"), {"x": _quantized(SHAPE, dtype)}, "FusedNormalization", wanted)


@pytest.mark.parametrize("opset", [13, 17])
def test_quantized_scale_and_bias_as_onnxruntime_writes_them(opset: int) -> None:
    """Scale int8 per tensor; bias int32 whose scale has shape [1] and whose zero point has none."""
    g = QuantizedBuilder(opset)
    x = g.dequantize(g.input("x", SHAPE, "int8"))
    gamma = g.dequantize(g.constant(_quantized((8,), "int8", 1)), 0.01, np.int8(0))
    beta = g.add(
        "DequantizeLinear",
        g.constant(np.arange(-400, 400, 100).astype(np.int32)),
        np.array([5e-4], np.float32),
        np.array(0, np.int32),
    )
    if opset >= 17:
        y = g.add("LayerNormalization", x, gamma, beta)
    else:
        d = g.add("Sub", x, g.reduce_mean(x, [-1]))
        root = g.add("Sqrt", g.add("Add", g.reduce_mean(g.add("Pow", d, 2.0), [-1]), 1e-5))
        y = g.add("Add", g.add("Mul", g.add("Div", d, root), gamma), beta)
    g.output(g.quantize(y), SHAPE, "int8")
    node = check_fused(g.model("m"), {"x": _quantized(SHAPE, "int8")}, "FusedNormalization", {"axes": [-1]})
    assert {"scale_scale", "bias_scale", "bias_zero_point"} <= set(harness.read_node(node).inputs)


def test_dequantization_duplicated_for_each_consumer() -> None:
    """ONNX Runtime and some quantisers give every consumer a DequantizeLinear of its own."""
    g = QuantizedBuilder(13)
    x = g.input("x", SHAPE, "int8")
    scale, zero = g.constant(np.array(0.05, np.float32)), g.constant(np.int8(3))
    first, second = (g.add("DequantizeLinear", x, scale, zero) for _ in range(2))
    d = g.add("Sub", first, g.reduce_mean(second, [-1]))
    root = g.add("Sqrt", g.add("Add", g.reduce_mean(g.add("Pow", d, 2.0), [-1]), 1e-5))
    g.output(g.add("Div", d, root), SHAPE)
    check_fused(g.model("m"), {"x": _quantized(SHAPE, "int8")}, "FusedNormalization", {"axes": [-1]})


def test_dequantization_with_other_consumers_stays_for_them() -> None:
    g = QuantizedBuilder(17)
    x = g.dequantize(g.input("x", SHAPE, "int8"))
    g.output(g.add("LayerNormalization", x, g.weight(8, mean=1.0), g.weight(8)), SHAPE)
    g.output(g.add("Exp", x), SHAPE)
    model = g.model("m")
    optimized, _ = optimize(model)
    (node,) = fused_nodes(optimized)
    assert node.input[0] == "x"
    assert [n.op_type for n in optimized.graph.node if n.domain == ""] == ["DequantizeLinear", "Exp"]
    feeds = {"x": _quantized(SHAPE, "int8")}
    expected, got = run(model, feeds, optimized=False), run(optimized, feeds)
    for name in expected:
        close(got[name], expected[name], name)


def test_residual_with_its_own_dequantization() -> None:
    g = QuantizedBuilder(17)
    x = g.dequantize(g.input("x", SHAPE, "int8"), 0.05, np.int8(1))
    skip = g.dequantize(g.input("skip", SHAPE, "uint8"), 0.02, np.uint8(128))
    total = g.add("Add", x, skip)
    g.output(g.quantize(g.add("LayerNormalization", total, g.weight(8, mean=1.0), g.weight(8))), SHAPE, "int8")
    feeds = {"x": _quantized(SHAPE, "int8"), "skip": _quantized(SHAPE, "uint8", 2)}
    check_fused(g.model("m"), feeds, "FusedNormalization", {"axes": [-1]})


def test_sum_requantised_before_the_normalisation_stays_quantised() -> None:
    """ORT's quantiser: DQ -> Add -> Q -> DQ -> norm. The rounding of the sum is kept, inside the fused node."""
    g = QuantizedBuilder(17)
    total = g.add("Add", g.dequantize(g.input("x", SHAPE, "int8")), g.dequantize(g.input("skip", SHAPE, "int8")))
    x = g.dequantize(g.quantize(total, 0.1, np.int8(0)), 0.1, np.int8(0))
    g.output(g.quantize(g.add("LayerNormalization", x, g.weight(8, mean=1.0), g.weight(8))), SHAPE, "int8")
    model = g.model("m")
    optimized, _ = optimize(model)
    (node,) = fused_nodes(optimized)
    # X, scale, bias and residual, and two for each quantisation: of X, the residual, Y and the sum.
    assert len([name for name in node.input if name]) == 12
    assert [n.op_type for n in optimized.graph.node] == [node.op_type]


@pytest.mark.parametrize("opset", [13, 21])
@pytest.mark.parametrize(("op_type", "attributes"), [("Sigmoid", {}), ("Relu", {}), ("LeakyRelu", {"alpha": 0.25})])
def test_activation_between_dequantize_and_quantize(opset: int, op_type: str, attributes: dict[str, Any]) -> None:
    g = QuantizedBuilder(opset)
    x = g.dequantize(g.input("x", SHAPE, "int8"))
    g.output(g.quantize(g.add(op_type, x, **attributes)), SHAPE, "int8")
    wanted: dict[str, Any] = {"activation": op_type}
    if attributes:
        wanted["activation_params"] = [0.25]
    check_fused(g.model("m"), {"x": _quantized(SHAPE, "int8")}, "FusedActivation", wanted)


@pytest.mark.parametrize("opset", [13, 21])
def test_dequantization_per_axis(opset: int) -> None:
    g = QuantizedBuilder(opset)
    x = g.dequantize(g.input("x", SHAPE, "int8"), np.linspace(0.01, 0.1, 8), np.arange(8, dtype=np.int8), axis=2)
    g.output(g.quantize(g.add("Relu", x)), SHAPE, "int8")
    wanted = {"activation": "Relu", "x_axis": 2}
    check_fused(g.model("m"), {"x": _quantized(SHAPE, "int8")}, "FusedActivation", wanted)


def test_dequantize_and_decomposed_gelu() -> None:
    g = QuantizedBuilder(17)
    x = g.dequantize(g.input("x", SHAPE, "uint8"), 0.03, np.uint8(120))
    erf = g.add("Erf", g.add("Div", x, float(np.sqrt(2))))
    g.output(g.add("Mul", g.add("Mul", x, g.add("Add", erf, 1.0)), 0.5), SHAPE)
    check_fused(g.model("m"), {"x": _quantized(SHAPE, "uint8")}, "FusedDequantizeLinear", {"activation": "Gelu"})


@pytest.mark.parametrize("bias", [False, True])
def test_decomposed_gelu_between_dequantize_and_quantize(bias: bool) -> None:
    g = QuantizedBuilder(17)
    x = g.dequantize(g.input("x", SHAPE, "uint8"), 0.03, np.uint8(120))
    if bias:
        x = g.add("Add", x, g.weight(8))
    erf = g.add("Erf", g.add("Div", x, float(np.sqrt(2))))
    g.output(g.quantize(g.add("Mul", g.add("Mul", x, g.add("Add", erf, 1.0)), 0.5)), SHAPE, "int8")
    check_fused(g.model("m"), {"x": _quantized(SHAPE, "uint8")}, "FusedActivation", {"activation": "Gelu"})


@pytest.mark.parametrize("dtype", ["int16", "uint16"])
@pytest.mark.parametrize(("opset", "domain"), [(17, "com.microsoft"), (21, "")])
def test_16_bit_activations(dtype: str, opset: int, domain: str) -> None:
    """Before opset 21 ONNX Runtime's quantiser writes 16-bit types with its own operators."""
    g = QuantizedBuilder(opset)
    scale, zero = np.float32(2e-4), np.array(100, dtype)
    x = g.add("DequantizeLinear", g.input("x", SHAPE, dtype), scale, zero, domain=domain)
    y = g.add("LayerNormalization", x, g.weight(8, mean=1.0), g.weight(8))
    g.output(g.add("QuantizeLinear", y, scale, zero, domain=domain), SHAPE, dtype)
    check_fused(g.model("m"), {"x": _quantized(SHAPE, dtype)}, "FusedNormalization", {"axes": [-1]})


def test_blocked_dequantization() -> None:
    g = QuantizedBuilder(21)
    scale = np.abs(RNG.standard_normal((2, 5, 2))).astype(np.float32) * 0.05 + 0.01
    zero = np.zeros((2, 5, 2), np.int8)
    x = g.add("DequantizeLinear", g.input("x", SHAPE, "int8"), scale, zero, axis=2, block_size=4)
    g.output(g.add("LayerNormalization", x, g.weight(8, mean=1.0), g.weight(8)), SHAPE)
    wanted = {"axes": [-1], "x_axis": 2, "x_block_size": 4}
    check_fused(g.model("m"), {"x": _quantized(SHAPE, "int8")}, "FusedNormalization", wanted)


def test_quantization_without_zero_point() -> None:
    g = QuantizedBuilder(21)
    x = g.add("DequantizeLinear", g.input("x", SHAPE, "int8"), np.float32(0.05))
    y = g.add("LayerNormalization", x, g.weight(8, mean=1.0), g.weight(8))
    g.output(g.add("QuantizeLinear", y, np.float32(0.04), output_dtype=onnx.TensorProto.INT8), SHAPE, "int8")
    wanted = {"axes": [-1], "y_dtype": onnx.TensorProto.INT8}
    check_fused(g.model("m"), {"x": _quantized(SHAPE, "int8")}, "FusedNormalization", wanted)


def test_dequantization_into_half_precision() -> None:
    """The attribute output_dtype, from opset 23 on; what follows is computed in float32 and rounded once."""
    half, dtype = {"output_dtype": onnx.TensorProto.FLOAT16}, {"y_dtype": onnx.TensorProto.FLOAT16}
    feeds = {"x": _quantized(SHAPE, "int8")}
    g = QuantizedBuilder(23)
    g.output(g.add("Relu", g.dequantize(g.input("x", SHAPE, "int8"), **half)), SHAPE, "float16")
    check_fused(g.model("m"), feeds, "FusedDequantizeLinear", {"activation": "Relu", **dtype})
    weights = [np.linspace(start, 1.5, 8).astype(np.float16) for start in (0.5, -1.0)]
    g = QuantizedBuilder(23)
    x = g.dequantize(g.input("x", SHAPE, "int8"), **half)
    g.output(g.add("LayerNormalization", x, *weights), SHAPE, "float16")
    check_fused(g.model("m"), feeds, "FusedNormalization", {"axes": [-1], **dtype})
    g = QuantizedBuilder(23)
    x = g.dequantize(g.input("x", SHAPE, "int8"), **half)
    y = g.add("LayerNormalization", x, *weights)
    g.output(g.add("QuantizeLinear", y, np.float16(0.04), THREE), SHAPE, "int8")
    check_fused(g.model("m"), feeds, "FusedNormalization", {"axes": [-1]})


def test_dequantization_into_a_wider_type_is_left() -> None:
    g = QuantizedBuilder(23)
    x = g.add("DequantizeLinear", g.input("x", SHAPE, "int8"), np.float16(0.1), output_dtype=onnx.TensorProto.FLOAT)
    g.output(g.add("Relu", x), SHAPE)
    _, result = optimize(g.model("m"))
    assert {site.reason for site in result.sites} == {"attribute_value"}


# --- quantisation inside a chain ------------------------------------------------------------------------------------


def _split_layer_norm() -> onnx.ModelProto:
    """A decomposed layer normalisation as a quantiser splits it: every intermediate value is requantised."""
    g = QuantizedBuilder(13)

    def requantize(value: str, scale: float) -> str:
        pair = (np.float32(scale), np.int8(0))
        return g.add("DequantizeLinear", g.add("QuantizeLinear", value, *pair), *pair)

    x = g.dequantize(g.input("x", SHAPE, "int8"))
    d = requantize(g.add("Sub", x, requantize(g.reduce_mean(x, [-1]), 0.02)), 0.1)
    variance = requantize(g.reduce_mean(requantize(g.add("Pow", d, 2.0), 0.9), [-1]), 0.3)
    root = g.add("Sqrt", g.add("Add", variance, 1e-5))
    n = requantize(g.add("Div", d, root), 0.03)
    y = g.add("Add", requantize(g.add("Mul", n, g.weight(8, mean=1.0)), 0.05), g.weight(8))
    g.output(g.quantize(y), SHAPE, "int8")
    return g.model("split")


def test_requantised_chain_is_left_unless_allowed() -> None:
    model = _split_layer_norm()
    optimized, result = optimize(model)
    assert not [node for node in fused_nodes(optimized) if node.op_type.startswith("FusedNormalization")]
    (site,) = (site for site in result.sites if site.kind == "LayerNormalization")
    assert site.reason == "changes_rounding"
    assert "--allow-requantization-removal" in site.advice


def test_requantised_chain_is_fused_where_allowed() -> None:
    model = _split_layer_norm()
    optimized, result = optimize(model, treatment=Treatment(allow_requantization_removal=True))
    (node,) = fused_nodes(optimized)
    assert configuration(node) == {"axes": [-1]}
    assert [n.op_type for n in optimized.graph.node] == [node.op_type]
    feeds = {"x": _quantized(SHAPE, "int8")}
    name = node.output[0]
    expected, got = (run(m, feeds, optimized=False)[name].astype(int) for m in (model, optimized))
    # The difference is the rounding that was removed: a few steps of the intermediate scales.
    assert np.abs(expected - got).max() <= 8
    assert any("requantization removed" in site.message for site in result.sites)


def test_pair_with_different_scales_is_no_rounding() -> None:
    g = QuantizedBuilder(17)
    x = g.input("x", SHAPE)
    y = g.add("LayerNormalization", x, g.weight(8, mean=1.0))
    rescaled = g.dequantize(g.quantize(y, 0.04, np.int8(0)), 0.05, np.int8(0))
    g.output(g.add("Add", rescaled, g.weight(8)), SHAPE)
    optimized, _ = optimize(g.model("m"), treatment=Treatment(allow_requantization_removal=True))
    assert [n.op_type for n in optimized.graph.node][1:] == ["DequantizeLinear", "Add"]


def test_quantizer_of_a_weight_alone_is_left() -> None:
    g = QuantizedBuilder(17)
    weight = g.dequantize(g.constant(_quantized((8, 8), "int8")))
    g.output(g.add("MatMul", g.input("x", SHAPE), weight), SHAPE)
    model = g.model("m")
    optimized, result = optimize(model)
    assert optimized == round_trip(model)
    assert [(site.kind, site.reason) for site in result.sites] == [("DequantizeLinear", "nothing_to_fuse")]
    assert "MatMul" in result.sites[0].message


# --- types that a target's form cannot have -------------------------------------------------------------------------

TWO_BITS = """<ir_version: 13, opset_import: ["" : 25]>
g (int2[4] x) => (uint2[4] y)
<float scale = {0.5}, uint2 zero = {1}, float[4] gamma = {1, 1, 2, 2}>
{ d = DequantizeLinear (x, scale)  n = RMSNormalization (d, gamma)  y = QuantizeLinear (n, scale, zero) }"""


def test_custom_operators_have_no_two_bit_types() -> None:
    """ONNX Runtime refuses a custom operator's node with a tensor of a 2-bit type; a function may have one."""
    model = onnx.parser.parse_model(TWO_BITS)
    portable, _ = optimize(model)
    assert [node.op_type for node in portable.graph.node] == [
        "FusedNormalization_DequantizeLinear_RMSNormalization_QuantizeLinear"
    ]
    plain, result = optimize(model, target="custom-op")
    assert [node.op_type for node in plain.graph.node] == ["DequantizeLinear", "FusedNormalization", "QuantizeLinear"]
    assert [site.reason for site in result.sites] == ["unsupported_type", None, "unsupported_type"]
    again, _ = optimize(portable, target="custom-op")
    assert again.graph.node == portable.graph.node
    assert again.functions == portable.functions
