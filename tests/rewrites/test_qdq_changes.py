"""What is done to Q/DQ pairs beside chains, beside tests/corpus/qdq_changes.txt: any numbers, and sessions."""

from __future__ import annotations

from typing import Any

import harness
import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from corpus_reader import model_of
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper
from parsed_models import parse, results
from rewrite_harness import optimize
from strategies import Numbers, quantizations

import normfuse
from normfuse.files.model_files import load_model
from normfuse.inspection.claims import pair_nodes
from normfuse.meaning import Array, dtype_code
from normfuse.optimization.float_network import unrounded
from normfuse.sessions import AllowedChanges
from normfuse.sessions import layouts as nchwc
from normfuse.sessions.session_model import session_model

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


def assert_a_step_away(proto: onnx.ModelProto, x: Array) -> None:
    (got,) = normfuse.InferenceSession(proto).run(None, {"x": x})
    (exact,) = results(proto, {"x": x}).values()
    assert got.shape == exact.shape
    assert np.abs(got - exact).max() <= 0.11
    assert np.mean(got != exact) < 0.01


PAIRS = """
let P(x) = DequantizeLinear(QuantizeLinear(x, float32(0.1), uint8(7)), float32(0.1), uint8(7))
let P16(x) = DequantizeLinear(QuantizeLinear(x, float32(0.1), uint16(7)), float32(0.1), uint16(7))
let Head(x) = Reshape(x, Concat(Shape(x, start=0, end=1), [-1], axis=0))
"""


def test_a_session_says_which() -> None:
    text = "a = Conv(x, float32(normal(0.1, [16, 16, 3, 3])), pads=[1, 1, 1, 1]); d = P16(a); e = P16(d * Sigmoid(d)); "
    text += "h, i = Split(Concat(e, e, axis=1), [16, 16], axis=1); q = P16(i); "
    proto = model_of(text + "Conv(q, weight[16, 16, 3, 3], pads=[1, 1, 1, 1])", PAIRS, x="1,16,24,24", opset=21)
    x = np.random.default_rng(4).normal(0, 1, (1, 16, 24, 24)).astype(F32)
    session = normfuse.InferenceSession(proto)
    (exact,) = results(proto, {"x": x}).values()
    np.testing.assert_allclose(session.run(None, {"x": x})[0], exact, atol=np.abs(exact).max() * 1e-3)
    source = load_model(proto)
    made = session_model(source, onnxruntime.SessionOptions(), AllowedChanges())
    groups = {group.becomes: group for group in pair_nodes(source, made)}
    if made.leaves_qdq:  # this processor has a blocked layout
        last = [node.name for node in proto.graph.node if node.op_type in ("QuantizeLinear", "DequantizeLinear")][-2:]
        assert sorted(groups["repeated"].nodes) == sorted(last)


@pytest.mark.skipif(nchwc.block_size() is None, reason="ONNX Runtime has no blocked layout on this processor")
def test_a_session_makes_a_pair_of_what_a_shape_and_a_reshape_read() -> None:
    """As at the head of a detector: ONNX Runtime gives each of both readers a node of its own."""
    weights = "float32(normal(0.1, [32, 32, 3, 3])), pads=[1, 1, 1, 1]"
    text = f"d = P16(Conv(x, {weights})); k = Conv(d * P16(Sigmoid(d)), {weights}); Head(P16(Concat(k, x, axis=1)))"
    proto = model_of(text, PAIRS, x="N:2,32,40,40", y="N:,K:", opset=21, dynamic="")
    source = load_model(proto)
    made = session_model(source, onnxruntime.SessionOptions(), AllowedChanges())
    assert made.leaves_qdq
    groups = {group.becomes: group for group in pair_nodes(source, made)}
    last = [node.name for node in proto.graph.node if node.op_type in ("QuantizeLinear", "DequantizeLinear")][-2:]
    assert {*last} <= {*groups["claimed"].nodes}
    assert "not_seen" not in groups
    assert_a_step_away(proto, np.random.default_rng(3).normal(0, 1, (1, 32, 40, 40)).astype(F32))


def test_a_session_dequantises_nothing_for_a_shape() -> None:
    weights = "DequantizeLinear(int8.weight[8, 4, 1, 1], float32(0.01), int8(0))"
    text = f"P(Head(P(Conv(P(x), {weights}))))"
    proto = model_of(text, PAIRS, x="N:2,4,H:7,W:6", y="N:,K:", opset=21, dynamic="")
    made = session_model(load_model(proto), onnxruntime.SessionOptions(), AllowedChanges())
    (shape,) = [node for node in made.model.graph if node.op_type == "Shape"]
    assert shape.inputs[0] is not None
    producer = shape.inputs[0].producer()
    assert producer is not None
    assert producer.op_type != "DequantizeLinear"
    assert_a_step_away(proto, np.random.default_rng(5).normal(0, 3, (3, 4, 7, 6)).astype(F32))


def test_what_is_not_asked_for_is_not_done() -> None:
    """And a table that is looked up as integers is counted."""
    _, result = optimize(model_of("d = P(x); output(Shape(d)); Reshape(d, [-1])", PAIRS, x="2,5", opset=21))
    assert "ShapeOfIntegers" not in result.counts
    table = "Identity(Gather(DequantizeLinear(int8.weight[512, 64], float32(0.1)), x))"
    assert folded(model_of(table, x="3", x_type="int64", opset=21))[1] == {"TableOfIntegers": 1}
