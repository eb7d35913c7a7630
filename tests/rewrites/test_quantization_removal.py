"""Quantised activations taken out: what the float network computes, within the range that the integers had."""

from __future__ import annotations

from typing import Any

import harness
import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper
from oracle import Array
from parsed_models import parse, results
from strategies import Numbers, quantizations

from normfuse.graph_rewrites import Treatment, rewrite
from normfuse.graph_rewrites.quantization.quantization_removal import RemovedQuantization
from normfuse.optimization.float_network import unrounded

F32 = np.float32
RNG = np.random.default_rng(7)
ENDS = {
    **{np.dtype(dtype): (np.iinfo(dtype).min, np.iinfo(dtype).max) for dtype in ("i1", "u1", "i2", "u2")},
    np.dtype(ml_dtypes.int4): (-8, 7),
    np.dtype(ml_dtypes.uint4): (0, 15),
}


def removed(model: onnx.ModelProto) -> tuple[onnx.ModelProto, RemovedQuantization]:
    copy = ir.from_proto(model)
    treatment = Treatment(remove_quantization=True, fold_weights="file")
    done = rewrite(copy, target="standard", treatment=treatment).quantization
    return ir.to_proto(copy), done


def operators(model: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in model.graph.node]


# What stands in the place of a pair


@given(data=st.data())
@pytest.mark.parametrize("dtype", ENDS, ids=str)
def test_the_range_of_the_integers_without_their_rounding(dtype: np.dtype[Any], data: st.DataObject) -> None:
    numbers = Numbers(data.draw(st.integers(0, 2**32 - 1)))
    shape = tuple(data.draw(st.lists(st.integers(1, 7), min_size=1, max_size=4)))
    p = data.draw(quantizations(numbers, shape, dtype, F32, broadcast=False))
    zero_point = np.zeros(p.scale.shape, dtype) if p.zero_point is None else p.zero_point
    parameters = {"s": p.scale, "z": zero_point}
    axis = p.axis if len(shape) > 1 else 0
    nodes = [
        helper.make_node("Neg", ["x"], ["n"]),  # it has no range
        helper.make_node("QuantizeLinear", ["n", "s", "z"], ["q"], "Q", axis=axis, block_size=p.block_size),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["d"], axis=axis, block_size=p.block_size),
        helper.make_node("Neg", ["d"], ["y"]),
    ]
    low, high = ENDS[dtype]
    x = numbers.normal(shape, F32, 0, float(np.mean(p.scale)) * (high - low))
    model = harness.build_model(nodes, {"x": x}, {"y": TensorProto.FLOAT}, parameters, opset=21)
    after, done = removed(model)
    if p.block_size and p.scale.size > 1:
        assert [(pair.name, pair.reason) for pair in done.kept] == [("Q", "it has a scale for each block")]
        return
    assert (done.removed, done.clipped, done.kept) == (1, 1, [])
    assert operators(after) == (["Neg", "Clip", "Neg"] if p.scale.size == 1 else ["Neg", "Max", "Min", "Neg"])
    along = [-1 if p.scale.size > 1 and dim == axis % len(shape) else 1 for dim in range(len(shape))]
    scale, zero = (array.astype(np.float64).reshape(along) for array in (p.scale, zero_point))
    expected = -np.clip(-x.astype(np.float64), (low - zero) * scale, (high - zero) * scale)
    np.testing.assert_allclose(results(after, {"x": x})["y"], expected, rtol=1e-6)
    reference = results(ir.to_proto(unrounded(ir.from_proto(model), ())), {"x": x})["y"]
    np.testing.assert_allclose(reference, expected, rtol=1e-6)


CONVOLUTIONS = """g (float[1,4,8,8] x) => (float[1,4,4,4] y) {
  c = Conv(x, v) q = QuantizeLinear(c, s, z) d = DequantizeLinear(q, s, z)
  w = DequantizeLinear<axis = 0>(W, ws) y = Conv(d, w) }"""


def convolutions(text: str = CONVOLUTIONS, zero_point: int = 0, **more: Array) -> onnx.ModelProto:
    tensors = {
        "v": RNG.normal(size=(4, 4, 3, 3)).astype(F32),
        "s": np.array(0.04, F32),
        "z": np.array(zero_point, np.uint8),
        "W": RNG.integers(-100, 100, (4, 4, 3, 3)).astype(np.int8),
        "ws": np.full(4, 0.01, F32),
    }
    return parse(text, **(tensors | more))


def test_a_relu_that_the_quantiser_left_out_is_there_again() -> None:
    """Quantisers drop a Relu in front of a zero point that is the least integer: saturation does what it did."""
    model = convolutions()
    after, done = removed(model)
    assert (done.removed, done.clipped) == (1, 1)
    assert operators(after) == ["Conv", "Clip", "Conv"]
    x = {"x": RNG.normal(size=(1, 4, 8, 8)).astype(F32)}
    got, quantized = results(after, x)["y"], results(model, x)["y"]
    assert np.abs(got - quantized).max() < 0.05 * np.abs(quantized).max()
    bounds = {tensor.name: harness.to_array(tensor) for tensor in after.graph.initializer}
    assert [bounds[name] for name in after.graph.node[1].input[1:]] == [0, F32(255) * F32(0.04)]


@pytest.mark.parametrize(
    ("before", "scale", "zero_point", "expected"),
    [
        ("Sigmoid(c)", 1 / 255, 0, 0),
        ("Sigmoid(c)", 1 / 256, 0, 1),  # 1 is not there
        ("Softmax(c)", 1 / 255, 0, 0),
        ("Tanh(c)", 1 / 127, 128, 0),
        ("Tanh(c)", 1 / 127, 0, 1),
        ("Relu(c)", 0.04, 0, 1),  # its upper end
        ("Clip(c, zero, six)", 6 / 255, 0, 0),
        ("Clip(c, zero, six)", 5 / 255, 0, 1),
    ],
)
def test_no_clip_where_values_are_within_the_range(before: str, scale: float, zero_point: int, expected: int) -> None:
    text = CONVOLUTIONS.replace("q = Quant", f"t = {before} r = Reshape(t, shape) q = Quant").replace("(c, s", "(r, s")
    shape = np.array([1, 4, 6, 6])
    constants = {"s": np.array(scale, F32), "zero": np.array(0, F32), "six": np.array(6, F32), "shape": shape}
    _, done = removed(convolutions(text, zero_point, **constants))
    assert (done.removed, done.clipped) == (1, expected)


def test_of_two_pairs_of_one_range_the_first_has_the_clip() -> None:
    text = CONVOLUTIONS.replace(
        "w =", "m = MaxPool<kernel_shape = [1, 1]>(d) e = QuantizeLinear(m, s, z) f = DequantizeLinear(e, s, z) w ="
    )
    after, done = removed(convolutions(text.replace("Conv(d, w)", "Conv(f, w)")))
    assert (done.removed, done.clipped) == (2, 1)
    assert operators(after) == ["Conv", "Clip", "MaxPool", "Conv"]


def test_clip_of_old_models_has_attributes() -> None:
    text = "g (float[4] x) => (float[4] y) { q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) y = Neg(d) }"
    model = parse(text, 10, s=np.array(0.5, F32), z=np.array(100, np.uint8))
    after, _ = removed(model)
    assert operators(after) == ["Clip", "Neg"]
    x = {"x": np.array([-60, -1.2, 30.1, 90], F32)}
    np.testing.assert_array_equal(results(after, x)["y"], -np.array([-50, -1.2, 30.1, 77.5], F32))


def test_an_infinity_that_dequantising_makes_is_finite() -> None:
    """The mask of a transformer, -3.4e38, overflows as a quantised constant; quantised, 0 times that was a number."""
    text = """g (float[4] x) => (float[4] y) { m = DequantizeLinear(M, ms, mz) p = Mul(x, m)
      q = QuantizeLinear(p, ms, mz) d = DequantizeLinear(q, ms, mz) y = Identity(d) }"""
    least = np.finfo(F32).min
    scale = np.nextafter(F32(-least / 65535), F32(1e38))
    model = parse(text, M=np.array(0, np.uint16), ms=np.asarray(scale), mz=np.array(65535, np.uint16))
    x = {"x": np.array([0, 0, 1, 0], F32)}
    for changed in (removed(model)[0], ir.to_proto(unrounded(ir.from_proto(model), ()))):
        np.testing.assert_allclose(results(changed, x)["y"], np.array([0, 0, least, 0]), rtol=1e-6)


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(
    ("bounds", "ends"),
    [
        ("low, high", (-7, 9)),
        ("low", (-7, 127)),
        ("'', high", (-128, 9)),
        ("high, low", (-7, -7)),  # ONNX: the upper bound, where that is below the lower one
        ("low, low", (-7, -7)),
    ],
)
def test_a_clip_of_the_integers_narrows_the_range(bounds: str, ends: tuple[int, int], channels: int) -> None:
    text = f"""g (float[5, 3] x) => (float[5, 3] y) {{
      q = QuantizeLinear(x, s, z) c = Clip(q, {bounds}) d = DequantizeLinear(c, s, z) y = Neg(d) }}"""
    scale, zero = np.linspace(0.1, 0.3, channels, dtype=F32), np.arange(channels).astype(np.int8)
    constants = {"s": scale, "z": zero} if channels > 1 else {"s": scale.reshape(()), "z": zero.reshape(())}
    model = parse(text.replace("''", ""), **constants, low=np.array(-7, np.int8), high=np.array(9, np.int8))
    after, done = removed(model)
    assert (done.removed, done.clipped, done.kept) == (1, 1, [])
    assert operators(after) == (["Clip", "Neg"] if channels == 1 else ["Max", "Min", "Neg"])
    x = {"x": RNG.normal(0, 3, (5, 3)).astype(F32)}
    low, high = ((end - zero.astype(np.float64)) * scale for end in ends)
    expected = -np.minimum(np.maximum(x["x"].astype(np.float64), low), high)
    np.testing.assert_allclose(results(after, x)["y"], expected, rtol=1e-6, atol=1e-7)
    reference = results(ir.to_proto(unrounded(ir.from_proto(model), ())), x)["y"]
    np.testing.assert_allclose(reference, expected, rtol=1e-6, atol=1e-7)
    assert np.abs(results(model, x)["y"] - expected).max() <= 0.5 * scale.max() + 1e-6


def test_a_clip_of_the_integers_where_values_are_within_it() -> None:
    """Half a step beyond its bounds is no more than rounding."""
    text = """g (float[5, 3] x) => (float[5, 3] y) {
      t = Tanh(x) q = QuantizeLinear(t, s, z) c = Clip(q, low, high) d = DequantizeLinear(c, s, z) y = Neg(d) }"""
    constants = {"s": np.array(1 / 127, F32), "z": np.array(0, np.int8)}
    for end, clipped in ((127, 0), (126, 1)):
        bounds = {"low": np.array(-end, np.int8), "high": np.array(end, np.int8)}
        model = parse(text, **constants, **bounds)
        after, done = removed(model)
        assert (done.removed, done.clipped) == (1, clipped)
        x = {"x": np.array([[-30, 0.1, 30]] * 5, F32)}
        same = results(ir.to_proto(unrounded(ir.from_proto(model), (), done.unclipped)), x)["y"]
        np.testing.assert_allclose(results(after, x)["y"], same, rtol=1e-6)


# What stays

PAIR = (
    "g (float[4] x, float t) => (float[4] y) { q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) y = Neg(d) }"
)

CLIPPED = PAIR.replace("d = DequantizeLinear(q", "c = Clip(q, z2) d = DequantizeLinear(c")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (PAIR.replace("=> (", "=> (uint8[4] q, "), "'q' is an output of the graph"),
        (
            PAIR.replace("d =", "u = Cast<to = 1>(q) d =").replace("> (", "> (float[4] u, "),
            "Cast 'u' reads its integers",
        ),
        (PAIR.replace("(q, s", "(q, s2"), "DequantizeLinear 'd' has other parameters"),
        (PAIR.replace("(q, s, z", "(q, s, z2"), "DequantizeLinear 'd' has other parameters"),
        (PAIR.replace("(q, s, z", "(q, s"), "DequantizeLinear 'd' has other parameters"),
        (
            PAIR.replace("(q, s", "(q, t").replace("(x, s", "(x, t"),
            "the parameters of QuantizeLinear 'q' are not constant",
        ),
        (PAIR.replace("(x, s", "(s4, s"), "what it quantises is constant"),
        (PAIR.replace("z)", "f8)"), "it quantises to FLOAT8E4M3FN"),
        (CLIPPED.replace("=> (", "=> (uint8[4] c, "), "'c' is an output of the graph"),
        (CLIPPED.replace("=> (", "=> (uint8[4] q, "), "'q' is an output of the graph"),
        (
            CLIPPED.replace("d =", "u = Cast<to = 1>(c) d =").replace("> (", "> (float[4] u, "),
            "Cast 'u' reads its integers",
        ),
        (CLIPPED.replace("(q, z2", "(z2, q").replace("uint8", "int8"), "Clip 'c' reads its integers"),
        (CLIPPED.replace("(c, s", "(c, s2"), "DequantizeLinear 'd' has other parameters"),
        (CLIPPED.replace("float t", "uint8 t").replace("(q, z2", "(q, t"), "the bounds of Clip 'c' are not constant"),
    ],
)
def test_kept_with_its_reason(text: str, reason: str) -> None:
    scales = {"s": np.array(0.5, F32), "s2": np.array(0.25, F32), "s4": np.ones(4, F32)}
    zeros = {"z": np.array(7, np.uint8), "z2": np.array(8, np.uint8), "f8": np.array(0, ml_dtypes.float8_e4m3fn)}
    model = parse(text, **scales, **zeros)
    after, done = removed(model)
    assert done.removed == 0
    assert [pair.reason for pair in done.kept] == [reason]
    assert "QuantizeLinear" in operators(after)


def test_a_scale_that_a_caller_can_override_is_no_constant() -> None:
    model = parse(PAIR, s=np.array(0.5, F32), z=np.array(7, np.uint8))
    model.graph.input.append(harness.value_info("s", TensorProto.FLOAT, []))
    _, done = removed(model)
    assert [pair.reason for pair in done.kept] == ["the parameters of QuantizeLinear 'q' are not constant"]


def test_integers_at_the_inputs_and_outputs_of_the_graph_stay() -> None:
    text = """g (uint8[4] a) => (uint8[4] y) { x = DequantizeLinear(a, s, z) n = Neg(x) q = QuantizeLinear(n, s, z)
      d = DequantizeLinear(q, s, z) e = Neg(d) y = QuantizeLinear(e, s, z) }"""
    after, done = removed(parse(text, s=np.array(0.5, F32), z=np.array(128, np.uint8)))
    assert done.removed == 1
    assert operators(after) == ["DequantizeLinear", "Neg", "Clip", "Neg", "QuantizeLinear"]


# Where pairs are

BRANCHES = """g (float[4] x, bool c) => (float[4] y) {
  q = QuantizeLinear(x, s, z)
  y = If(c) <then_branch = then_graph () => (float[4] t) { d = DequantizeLinear(q, s, z) t = Neg(d) },
             else_branch = else_graph () => (float[4] e) { e = DequantizeLinear(q, s, z) }> }"""
LOOP = """g (float[4] x, int64 n, bool c) => (float[4] y) {
  y = Loop(n, c, x) <body = b (int64 i, bool k, float[4] v) => (bool l, float[4] o) {
    l = Identity(k) q = QuantizeLinear(v, s, z) d = DequantizeLinear(q, s, z) o = Add(d, d) }> }"""


@pytest.mark.parametrize("condition", [True, False])
def test_a_pair_across_the_branches_of_an_if(condition: bool) -> None:
    """The result of the second branch is what DequantizeLinear gives, and a branch cannot give a value of outside."""
    after, done = removed(parse(BRANCHES, s=np.array(0.5, F32), z=np.array(128, np.uint8)))
    assert (done.removed, done.clipped) == (1, 1)
    x = np.array([-70, -1.2, 30.1, 90], F32)
    expected = np.clip(x, -64, 63.5) * (-1 if condition else 1)
    got = results(after, {"x": x, "c": np.array(condition)})["y"]
    np.testing.assert_array_equal(got, expected.astype(F32))


def test_a_pair_in_the_body_of_a_loop() -> None:
    after, done = removed(parse(LOOP, s=np.array(0.5, F32), z=np.array(128, np.uint8)))
    assert (done.removed, done.clipped) == (1, 1)
    feeds = {"x": np.array([0.3, 40, -1, 0], F32), "n": np.array(3), "c": np.array(True)}
    np.testing.assert_array_equal(results(after, feeds)["y"], np.array([2.4, 127, -8, 0], F32))


def test_a_shared_scale_stays_for_its_other_readers() -> None:
    text = PAIR.replace("(float[4] y)", "(float[4] y, uint8[4] u)").replace("y =", "u = QuantizeLinear(d, s, z) y =")
    after, done = removed(parse(text, s=np.array(0.5, F32), z=np.array(128, np.uint8)))
    assert (done.removed, len(done.kept)) == (1, 1)
    assert {"s", "z"} <= {tensor.name for tensor in after.graph.initializer}
    onnx.checker.check_model(after)


def test_constant_nodes_instead_of_initialisers() -> None:
    text = PAIR.replace("{", "{ s = Constant<value = float {0.5}>() z = Constant<value = uint8 {128}>()")
    after, done = removed(parse(text))
    assert done.removed == 1
    assert operators(after) == ["Clip", "Neg"]


def test_an_output_of_the_graph_keeps_its_name() -> None:
    text = "g (float[4] x) => (float[4] y) { n = Neg(x) q = QuantizeLinear(n, s, z) y = DequantizeLinear(q, s, z) }"
    after, _ = removed(parse(text, s=np.array(0.5, F32), z=np.array(128, np.uint8)))
    x = {"x": np.array([-70, -1.2, 30.1, 90], F32)}
    np.testing.assert_array_equal(results(after, x)["y"], np.array([63.5, 1.2, -30.1, -64], F32))


def test_in_half_precision() -> None:
    text = PAIR.replace("float", "float16")
    after, done = removed(parse(text, s=np.array(0.5, np.float16), z=np.array(128, np.uint8)))
    assert (done.removed, done.clipped) == (1, 1)
    x = {"x": np.array([-70, -1.2, 30.1, 90], np.float16), "t": np.array(0, np.float16)}
    np.testing.assert_array_equal(results(after, x)["y"], -np.array([-64, -1.2, 30.1, 63.5], np.float16))


@pytest.mark.parametrize("rows", ["n, k", "1, k", "k"])
def test_weights_of_products_are_folded_for_any_number_of_rows(rows: str) -> None:
    """ONNX Runtime makes a MatMulNBits of quantised weights, which rounds the activations to 8 bits."""
    text = f"""g (float[{rows}, 64] x) => (float[{rows}, 32] y) {{
      q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) w = DequantizeLinear(W, ws) y = MatMul(d, w) }}"""
    arrays = {
        "s": F32(1e-4),
        "z": np.uint16(32768),
        "ws": F32(0.01),
        "W": RNG.integers(-127, 128, (64, 32)).astype(np.int8),
    }
    after, _ = removed(parse(text, 21, **arrays))
    assert operators(after) == ["Clip", "MatMul"]
