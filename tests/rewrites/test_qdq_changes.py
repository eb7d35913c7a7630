"""What is done to Q/DQ pairs beside chains, beside tests/corpus/qdq_changes.txt: any numbers, and sessions."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import harness
import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper
from parsed_models import parse, results
from rewrite_harness import optimize
from strategies import Numbers, quantizations

import normfuse
from normfuse.files.model_files import load_model
from normfuse.host.config_entries import disabled_optimizers
from normfuse.inspection.claims import pair_nodes
from normfuse.meaning import Array, dtype_code
from normfuse.optimization.float_network import unrounded
from normfuse.sessions import layouts as nchwc
from normfuse.sessions.creation import Choices, session_model

pytestmark = pytest.mark.without_vnni

F32 = np.float32
RNG = np.random.default_rng(7)
ENDS = {
    **{np.dtype(dtype): (np.iinfo(dtype).min, np.iinfo(dtype).max) for dtype in ("i1", "u1", "i2", "u2")},
    np.dtype(ml_dtypes.int4): (-8, 7),
    np.dtype(ml_dtypes.uint4): (0, 15),
}


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
    after, result = optimize(model, target="standard", remove_quantization=True, fold_weights="file")
    done = result.quantization
    if p.block_size and p.scale.size > 1:
        assert [(pair.name, pair.reason) for pair in done.kept] == [("Q", "it has a scale for each block")]
        return
    assert (done.removed, done.clipped, done.kept) == (1, 1, [])
    assert [node.op_type for node in after.graph.node] == (
        ["Neg", "Clip", "Neg"] if p.scale.size == 1 else ["Neg", "Max", "Min", "Neg"]
    )
    along = [-1 if p.scale.size > 1 and dim == axis % len(shape) else 1 for dim in range(len(shape))]
    scale, zero = (array.astype(np.float64).reshape(along) for array in (p.scale, zero_point))
    expected = -np.clip(-x.astype(np.float64), (low - zero) * scale, (high - zero) * scale)
    np.testing.assert_allclose(results(after, {"x": x})["y"], expected, rtol=1e-6)
    reference = results(ir.to_proto(unrounded(ir.from_proto(model), ())), {"x": x})["y"]
    np.testing.assert_allclose(reference, expected, rtol=1e-6)


def folded(model: onnx.ModelProto) -> tuple[onnx.ModelProto, dict[str, int]]:
    changed, result = optimize(model, target="standard", fold_weights="session")
    return changed, result.counts


def weights(*shape: int, dtype: type = np.int8) -> Array:
    """Within what two products of uint8 fit 16 bits with: on x86 without VNNI sums of others may be wrong."""
    return RNG.integers(-64, 65, shape).astype(dtype)


@given(data=st.data())
@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.uint16, np.int32, ml_dtypes.int4, ml_dtypes.uint4])
def test_the_very_numbers_of_each_run(dtype: type, data: st.DataObject) -> None:
    numbers = Numbers(data.draw(st.integers(0, 2**32 - 1)))
    shape = tuple(data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=4)))
    p = data.draw(quantizations(numbers, shape, dtype, F32, broadcast=False))
    stored = numbers.codes(shape, dtype)
    inputs = {"w": stored, "s": p.scale} | ({} if p.zero_point is None else {"z": p.zero_point})
    if dtype == np.int32 and p.zero_point is not None:
        inputs["z"] = np.zeros_like(p.zero_point)  # ONNX Runtime takes no other
    axis = p.axis if len(shape) > 1 else 0
    nodes = [
        helper.make_node("DequantizeLinear", list(inputs), ["d"], axis=axis, block_size=p.block_size),
        helper.make_node("Sub", ["x", "d"], ["y"]),
    ]
    x = np.zeros(shape, F32)
    model = harness.build_model(nodes, {"x": x}, {"y": TensorProto.FLOAT}, inputs, opset=21)
    after, counts = folded(model)
    assert counts["FoldedWeights"] == 1
    assert [node.op_type for node in after.graph.node] == ["Sub"]
    assert len(after.graph.initializer) == 1
    np.testing.assert_array_equal(results(after, {"x": x})["y"], results(model, {"x": x})["y"])
    assert dtype_code(stored) != TensorProto.FLOAT


@given(
    kind=st.sampled_from([np.int8, np.uint8, np.int16, np.uint16]),
    mantissa=st.floats(1, 2, width=32),
    exponent=st.integers(-99, 99),
    data=st.data(),
)
def test_all_integers_come_back(kind: type[np.integer], mantissa: float, exponent: int, data: st.DataObject) -> None:
    ends = np.iinfo(kind)
    scale, zero = F32(np.ldexp(F32(mantissa), exponent)), np.array(data.draw(st.integers(ends.min, ends.max)), kind)
    every = np.arange(ends.min, ends.max + 1).astype(kind)
    name = np.dtype(kind).name
    text = f"g ({name}[N] x) => (float y) {{ d = DequantizeLinear(x, s, z) m = Identity(d) e = QuantizeLinear(m, s, z) "
    text += "w = DequantizeLinear(e, s, z) y = Neg(w) }"
    proto = parse(text, s=np.array(scale), z=zero)
    changed, result = optimize(proto, fold_weights="session", drop_redundant_pairs=True)
    assert len(result.dropped) == (2 if 1e-30 < scale < 1e30 else 0)
    before, after = results(proto, {"x": every})["y"], results(changed, {"x": every})["y"]
    assert before.tobytes() == after.tobytes()


# --- sessions ---


PRODUCT = """g (float[1,4,6,6] x) => (float[1,8,4,4] y) {
  q = QuantizeLinear(x, xs, xz) d = DequantizeLinear(q, xs, xz)
  w = DequantizeLinear<axis = 0>(W, ws, wz) b = DequantizeLinear<axis = 0>(B, bs)
  c = Conv(d, w, b) e = QuantizeLinear(c, ys, yz) y = DequantizeLinear(e, ys, yz) }"""


def product(dtype: type, text: str = PRODUCT) -> onnx.ModelProto:
    ones = np.ones(8, F32) / 64
    scales = {"xs": np.array(0.02, F32), "ys": np.array(0.0503717, F32), "ws": ones, "bs": ones}
    zeros = {"xz": np.array(3, dtype), "yz": np.array(5, dtype), "wz": np.zeros(8, np.int8)}
    return parse(text, **scales, **zeros, W=weights(8, 4, 3, 3), B=weights(8, dtype=np.int32))


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
@pytest.mark.parametrize("has_negatives", [False, True])
def test_a_relu_that_the_integers_do_not_make_superfluous_keeps_a_product_in_float(
    dtype: type, has_negatives: bool, tmp_path: Path
) -> None:
    """ONNX Runtime drops a Relu where no integer stands for a negative number, and then may multiply integers."""
    model = product(dtype, PRODUCT.replace("e = QuantizeLinear(c,", "r = Relu(c) e = QuantizeLinear(r,"))
    zero = next(each for each in model.graph.initializer if each.name == "yz")
    zero.CopyFrom(harness.initializer("yz", np.array(np.iinfo(dtype).min + has_negatives, dtype)))
    options = harness.session_options("cpu")
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    harness.create_session(model, "cpu", options)
    of_onnxruntime = {node.op_type for node in onnx.load(tmp_path / "optimized.onnx").graph.node}
    assert ("FusedConv" in of_onnxruntime) == has_negatives  # with the Relu in it
    after, counts = folded(model)
    assert counts.get("FoldedWeights", 0) == (2 if has_negatives else 0)
    x = {"x": RNG.normal(size=(1, 4, 6, 6)).astype(F32)}
    np.testing.assert_array_equal(results(after, x)["y"], results(model, x)["y"])


def test_a_session_folds_and_onnx_runtime_does_not_quantise_again() -> None:
    """Its own transformer would make int8 of float weights between quantised tensors, with other numbers."""
    model = product(np.uint16)
    x = {"x": RNG.normal(size=(1, 4, 6, 6)).astype(F32)}
    expected = results(model, x)["y"]
    options = onnxruntime.SessionOptions()
    session = normfuse.InferenceSession(model, options)
    got = session.run(None, x)[0]
    assert "WeightBiasQuantization" in disabled_optimizers(session.get_session_options())
    assert not disabled_optimizers(options)
    assert np.abs(got - expected).max() <= 0.051  # a step, at a tie
    assert np.count_nonzero(got != expected) <= 2
    kept = onnxruntime.SessionOptions()
    session = normfuse.InferenceSession(model, kept, fold_weights=False)
    assert not disabled_optimizers(session.get_session_options())


@pytest.mark.parametrize("float_bias", [True, False])
def test_a_bias_that_onnx_runtime_quantises_itself_keeps_its_product_of_integers(float_bias: bool) -> None:
    """Without that the product would run in float: the weights of 16-bit neighbours stay as they are in a file."""
    bias = "b" if float_bias else "db"
    text = f"""g (float[1,4,6,6] x) => (float[1,8,4,4] y, float[1,8,4,4] z) {{
        q = QuantizeLinear(x, s, z8) d = DequantizeLinear(q, s, z8) w = DequantizeLinear(W, ws)
        db = DequantizeLinear(B, bs) c = Conv(d, w, {bias}) cq = QuantizeLinear(c, s, z8)
        y = DequantizeLinear(cq, s, z8)
        q16 = QuantizeLinear(x, s16, z16) d16 = DequantizeLinear(q16, s16, z16) v = DequantizeLinear(W2, ws)
        e = Conv(d16, v, f) eq = QuantizeLinear(e, s16, z16) z = DequantizeLinear(eq, s16, z16) }}"""
    step = F32(0.05)
    constants = {"s": step, "z8": np.uint8(128), "ws": F32(0.01), "bs": step * F32(0.01), "s16": F32(1e-3)}
    tensors = {"W": weights(8, 4, 3, 3), "W2": weights(8, 4, 3, 3), "B": np.arange(8, dtype=np.int32)}
    model = parse(
        text,
        z16=np.array(32768, np.uint16),
        b=np.arange(8, dtype=F32) / 8,
        f=np.arange(8, dtype=F32),
        **{name: np.array(value) for name, value in constants.items()},
        **tensors,
    )
    options = harness.session_options("cpu")
    session = normfuse.InferenceSession(model, options)
    x = {"x": RNG.normal(size=(1, 4, 6, 6)).astype(F32)}
    got, expected = dict(zip(("y", "z"), session.run(None, x), strict=True)), results(model, x)
    assert np.abs(got["y"] - expected["y"]).max() <= 1.01 * step
    assert np.abs(got["z"] - expected["z"]).max() <= 1.01e-3
    assert _convolutions(model, options) == {"QLinearConv": 1, "Conv": 1}


def _convolutions(model: onnx.ModelProto, options: onnxruntime.SessionOptions) -> dict[str, int]:
    """How many of a session's convolutions run in integers and in float, by its own profile."""
    options.enable_profiling = True
    session = normfuse.InferenceSession(model, options)
    session.run(None, {"x": np.zeros((1, 4, 6, 6), F32)})
    path = Path(session.end_profiling())
    events = json.loads(path.read_text("utf-8"))
    path.unlink()
    return Counter(event["args"]["op_name"] for event in events if "Conv" in event.get("args", {}).get("op_name", ""))


def named(proto: onnx.ModelProto) -> onnx.ModelProto:
    for index, node in enumerate(proto.graph.node):
        node.name = f"{node.op_type}{index}"
    return proto


def assert_a_step_away(proto: onnx.ModelProto, x: Array) -> None:
    (got,) = normfuse.InferenceSession(proto).run(None, {"x": x})
    exact = results(proto, {"x": x})["y"]
    assert got.shape == exact.shape
    assert np.abs(got - exact).max() <= 0.11
    assert np.mean(got != exact) < 0.01


PARAMETERS = {"s": np.array(0.1, F32), "z": np.array(7, np.uint8), "flat": np.array([-1], np.int64)}


def test_a_session_says_which() -> None:
    weights = {"v": np.random.default_rng(2).normal(0, 0.1, (16, 16, 3, 3)).astype(F32), "sixteen": np.array([16, 16])}
    text = (
        "a = Conv<pads = [1, 1, 1, 1]>(x, v) {} b = Sigmoid(d) c = Mul(d, b) f = QuantizeLinear(c, s, z16) "
        "e = DequantizeLinear(f, s, z16) m = Concat<axis = 1>(e, e) h, i = Split<axis = 1>(m, sixteen) "
        "j = QuantizeLinear(i, s, z16) k = DequantizeLinear(j, s, z16) y = Conv<pads = [1, 1, 1, 1]>(k, v)"
    ).format("q = QuantizeLinear(a, s, z16) d = DequantizeLinear(q, s, z16)")
    constants = {"s": PARAMETERS["s"], "z16": np.array(7, np.uint16), **weights}
    proto = named(parse(f"g (float[1,16,24,24] x) => (float y) {{ {text} }}", **constants))
    x = np.random.default_rng(4).normal(0, 1, (1, 16, 24, 24)).astype(F32)
    session = normfuse.InferenceSession(proto)
    exact = results(proto, {"x": x})["y"]
    np.testing.assert_allclose(session.run(None, {"x": x})[0], exact, atol=np.abs(exact).max() * 1e-3)
    source = load_model(proto)
    made = session_model(source, onnxruntime.SessionOptions(), Choices())
    groups = {group.becomes: group for group in pair_nodes(source, made)}
    if made.leaves_pairs:  # this processor has a blocked layout
        assert sorted(groups["repeated"].nodes) == ["DequantizeLinear9", "QuantizeLinear8"]


@pytest.mark.skipif(nchwc.block_size() is None, reason="ONNX Runtime has no blocked layout on this processor")
def test_a_session_makes_a_pair_of_what_a_shape_and_a_reshape_read() -> None:
    """As at the head of a detector: ONNX Runtime gives each of both readers a node of its own."""
    rng = np.random.default_rng(3)
    weights = rng.normal(0, 0.1, (32, 32, 3, 3)).astype(F32)
    body = (
        "c = Conv<pads = [1, 1, 1, 1]>(x, w) q = QuantizeLinear(c, s, z) d = DequantizeLinear(q, s, z) "
        "a = Sigmoid(d) t = QuantizeLinear(a, s, z) u = DequantizeLinear(t, s, z) m = Mul(d, u) "
        "k = Conv<pads = [1, 1, 1, 1]>(m, w) l = Concat<axis = 1>(k, x) e = QuantizeLinear(l, s, z) "
        "f = DequantizeLinear(e, s, z) sizes = Shape<start = 0, end = 1>(f) target = Concat<axis = 0>(sizes, flat) "
        "y = Reshape(f, target)"
    )
    constants = {**PARAMETERS, "z": np.array(7, np.uint16), "w": weights}
    proto = named(parse(f"g (float[N,32,40,40] x) => (float[N,K] y) {{ {body} }}", **constants))
    source = load_model(proto)
    made = session_model(source, onnxruntime.SessionOptions(), Choices())
    assert made.leaves_pairs
    groups = {group.becomes: group for group in pair_nodes(source, made)}
    assert {"QuantizeLinear9", "DequantizeLinear10"} <= {*groups["claimed"].nodes}
    assert "not_seen" not in groups
    assert_a_step_away(proto, rng.normal(0, 1, (1, 32, 40, 40)).astype(F32))


def test_a_session_dequantises_nothing_for_a_shape() -> None:
    rng = np.random.default_rng(5)
    body = (
        "q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) k = DequantizeLinear(w, r, zw) "
        "c = Conv(d, k) e = QuantizeLinear(c, s, z) f = DequantizeLinear(e, s, z) "
        "sizes = Shape<start = 0, end = 1>(f) target = Concat<axis = 0>(sizes, flat) g = Reshape(f, target) "
        "h = QuantizeLinear(g, s, z) y = DequantizeLinear(h, s, z)"
    )
    weights = rng.integers(-50, 50, (8, 4, 1, 1)).astype(np.int8)
    proto = parse(
        f"g (float[N,4,H,W] x) => (float[N,K] y) {{ {body} }}",
        w=weights,
        r=np.array(0.01, F32),
        zw=np.array(0, np.int8),
        **PARAMETERS,
    )
    made = session_model(load_model(proto), onnxruntime.SessionOptions(), Choices())
    (shape,) = [node for node in made.model.graph if node.op_type == "Shape"]
    assert shape.inputs[0] is not None
    producer = shape.inputs[0].producer()
    assert producer is not None
    assert producer.op_type != "DequantizeLinear"
    assert_a_step_away(proto, rng.normal(0, 3, (3, 4, 7, 6)).astype(F32))


def test_what_is_not_asked_for_is_not_done() -> None:
    """And a table that is looked up as integers is counted."""
    text = "g (float[A,B] x) => (int64[K] n, float[J] y) { q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z)"
    _, result = optimize(parse(text + "n = Shape(d) y = Reshape(d, flat) }", **PARAMETERS))
    assert "ShapeOfIntegers" not in result.counts
    text = "g (int64[N] i) => (float[N,64] y) { w = DequantizeLinear(W, s) g = Gather(w, i) y = Identity(g) }"
    assert folded(parse(text, W=weights(512, 64), s=PARAMETERS["s"]))[1] == {"TableOfIntegers": 1}
