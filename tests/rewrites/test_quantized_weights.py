"""Weights that are dequantised once: the very numbers of each run, and only where no product of integers is lost."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

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
from oracle import Array, dtype_code
from parsed_models import parse, results
from strategies import Numbers, quantizations

import normfuse
from normfuse.graph_rewrites import Treatment, rewrite
from normfuse.graph_rewrites.quantization.weight_folding import LOOKED_UP_AS_INTEGERS, WEIGHTS_FOLDED
from normfuse.host.config_entries import disabled_optimizers

pytestmark = pytest.mark.without_vnni

F32 = np.float32
RNG = np.random.default_rng(5)


def folded(model: onnx.ModelProto, target: str = "standard") -> tuple[onnx.ModelProto, dict[str, int]]:
    copy = ir.from_proto(model)
    counts = rewrite(copy, target=target, treatment=Treatment(fold_weights="session")).counts  # type: ignore[arg-type]
    return ir.to_proto(copy), counts


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
    assert counts[WEIGHTS_FOLDED] == 1
    assert [node.op_type for node in after.graph.node] == ["Sub"]
    assert len(after.graph.initializer) == 1
    np.testing.assert_array_equal(results(after, {"x": x})["y"], results(model, {"x": x})["y"])
    assert dtype_code(stored) != TensorProto.FLOAT


BREVITAS = """g (float[6,5] x) => (float[6,5] y) {
  q = QuantizeLinear<axis = 1>(W, s, z) c = Clip(q, low, high)
  d = DequantizeLinear<axis = 1>(c, s, z) y = Sub(x, d) }"""
WITHOUT_CLIP = BREVITAS.replace("q = Q", "c = Q").replace("c = Clip(q, low, high)", "")


@pytest.mark.parametrize(
    ("dtype", "text"),
    [
        (np.int8, BREVITAS),
        (np.uint8, BREVITAS),  # ONNX Runtime has no Clip of 16 bits
        *((dtype, WITHOUT_CLIP) for dtype in (np.int8, np.uint8, np.int16, np.uint16)),
    ],
)
def test_float_weights_that_are_quantised_in_the_model(dtype: type, text: str) -> None:
    """Brevitas writes them so. Ties, values beyond the range and NaN are as ONNX Runtime's kernel quantises them."""
    limits = np.iinfo(dtype)
    scale = np.array([0.25, 0.1, 0.37, 3e-5, 0.5], F32)
    stored = (RNG.integers(-300, 300, (6, 5)) * scale / 2).astype(F32)
    stored[0, :3] = [np.nan, np.inf, -np.inf]
    zero = np.full(5, 3 if limits.min else 120, dtype)
    bounds = {"low": np.array(limits.min + 2, dtype), "high": np.array(limits.max - 3, dtype)}
    tensors = {"W": stored, "s": scale, "z": zero, **(bounds if "Clip" in text else {})}
    model = parse(text, **tensors)
    after, counts = folded(model)
    assert counts[WEIGHTS_FOLDED] == 1
    assert [node.op_type for node in after.graph.node] == ["Sub"]
    assert len(after.graph.initializer) == 1
    x = {"x": np.zeros((6, 5), F32)}
    np.testing.assert_array_equal(results(after, x)["y"], results(model, x)["y"])


def test_weights_that_are_quantised_in_the_model_may_be_given_by_the_caller() -> None:
    tensors = {"W": np.ones((6, 5), F32), "s": np.ones(5, F32), "z": np.zeros(5, np.int8)}
    bounds = {"low": np.array(-127, np.int8), "high": np.array(127, np.int8)}
    model = parse(BREVITAS, **tensors, **bounds)
    model.graph.input.append(harness.value_info("W", TensorProto.FLOAT, (6, 5)))
    assert WEIGHTS_FOLDED not in folded(model)[1]


PRODUCT = """g (float[1,4,6,6] x) => (float[1,8,4,4] y) {
  q = QuantizeLinear(x, xs, xz) d = DequantizeLinear(q, xs, xz)
  w = DequantizeLinear<axis = 0>(W, ws, wz) b = DequantizeLinear<axis = 0>(B, bs)
  c = Conv(d, w, b) e = QuantizeLinear(c, ys, yz) y = DequantizeLinear(e, ys, yz) }"""


def product(dtype: type, text: str = PRODUCT) -> onnx.ModelProto:
    ones = np.ones(8, F32) / 64
    scales = {"xs": np.array(0.02, F32), "ys": np.array(0.0503717, F32), "ws": ones, "bs": ones}
    zeros = {"xz": np.array(3, dtype), "yz": np.array(5, dtype), "wz": np.zeros(8, np.int8)}
    return parse(text, **scales, **zeros, W=weights(8, 4, 3, 3), B=weights(8, dtype=np.int32))


@pytest.mark.parametrize(
    ("dtype", "text", "expected"),
    [
        (np.uint16, PRODUCT, 2),
        (np.int16, PRODUCT, 2),
        (np.uint8, PRODUCT, 0),
        (np.int8, PRODUCT, 0),
        # Without a quantised result ONNX Runtime has no convolution of integers.
        (np.uint8, PRODUCT.replace("e = Quant", "y = Identity(c) e = Quant").replace("y = Deq", "u = Deq"), 2),
    ],
)
def test_products_that_may_run_in_integers_keep_their_weights(dtype: type, text: str, expected: int) -> None:
    model = product(dtype, text)
    after, counts = folded(model)
    assert counts.get(WEIGHTS_FOLDED, 0) == expected
    x = {"x": RNG.normal(size=(1, 4, 6, 6)).astype(F32)}
    np.testing.assert_array_equal(results(after, x)["y"], results(model, x)["y"])


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
    assert counts.get(WEIGHTS_FOLDED, 0) == (2 if has_negatives else 0)
    x = {"x": RNG.normal(size=(1, 4, 6, 6)).astype(F32)}
    np.testing.assert_array_equal(results(after, x)["y"], results(model, x)["y"])


@pytest.mark.parametrize(
    ("rows", "dtype", "expected"),
    [
        ("3", np.int8, 0),
        ("64", np.int8, 1),
        ("N", np.int8, 0),
        ("2, N", np.int8, 0),
        ("32", ml_dtypes.int4, 0),
        ("64", ml_dtypes.int4, 1),
        ("N", ml_dtypes.int4, 0),
        ("2, N", ml_dtypes.uint4, 0),
        ("4, 32", ml_dtypes.uint4, 1),
    ],
)
def test_few_rows_are_left_to_quantised_kernels(rows: str, dtype: type, expected: int) -> None:
    """Where the number of rows is not known, it is that of a language model's step."""
    text = f"g (float[{rows},16] x) => (float[{rows},8] y) {{ w = DequantizeLinear<axis = 0, block_size = 8>(W, s)"
    stored = RNG.integers(0, 8, (16, 8)).astype(dtype)
    _, counts = folded(parse(f"{text} y = MatMul(x, w) }}", W=stored, s=np.full((2, 8), 0.1, F32)))
    assert counts.get(WEIGHTS_FOLDED, 0) == expected


@pytest.mark.parametrize(
    ("rows", "dtype", "state", "expected"),
    [
        ("B, N", np.int8, "", 1),
        ("B, N", np.int8, "c", 0),
        ("B, N", np.int8, "cd", 0),
        ("B", np.int8, "", 0),
        ("B, N", ml_dtypes.int4, "", 0),
    ],
)
def test_unknown_rows_are_a_sequence_of_quantised_activations(
    rows: str, dtype: type, state: str, expected: int
) -> None:
    """But not those of a batch of vectors, nor where the graph lengthens what it is given, dequantised or not."""
    text = f"""g (float[{rows},16] x, float[1,P,16] c, uint16[1,P,16] k) => (float[{rows},8] y, float[1,Q,16] p) {{
      w = DequantizeLinear(W, s) q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) y = MatMul(d, w)
      cd = DequantizeLinear(k, s, z) n = Neg(c) p = Concat<axis = 1>(n, {state or "n"}) }}"""
    stored = RNG.integers(0, 8, (16, 8)).astype(dtype)
    _, counts = folded(parse(text, W=stored, s=np.array(0.1, F32), z=np.array(9, np.uint16)))
    assert counts.get(WEIGHTS_FOLDED, 0) == expected


def test_a_table_is_looked_up_as_integers() -> None:
    text = "g (int64[N] i) => (float[N,64] y) { w = DequantizeLinear(W, s, z) g = Gather(w, i) y = Identity(g) }"
    model = parse(text, W=weights(512, 64), s=np.array(0.1, F32), z=np.array(7, np.int8))
    after, counts = folded(model)
    assert counts == {LOOKED_UP_AS_INTEGERS: 1}
    assert {tensor.data_type for tensor in after.graph.initializer} == {TensorProto.INT8, TensorProto.FLOAT}
    i = {"i": np.array([0, 511, 3], np.int64)}
    np.testing.assert_array_equal(results(after, i)["y"], results(model, i)["y"])
    shown = harness.run(harness.create_session(after, "cpu"), i)["y"]
    np.testing.assert_array_equal(shown, results(model, i)["y"])


def test_what_a_caller_can_override_is_left() -> None:
    text = "g (float[4] x, int8[4] W) => (float[4] y) { w = DequantizeLinear(W, s) y = Sub(x, w) }"
    _, counts = folded(parse(text, W=weights(4), s=np.array(0.1, F32)))
    assert WEIGHTS_FOLDED not in counts


def test_weights_with_readers_of_both_kinds_and_graph_outputs_are_left() -> None:
    text = """g (float[64,8] x) => (float[64,8] y, float[8,8] w) { w = DequantizeLinear(W, s) y = MatMul(x, w) }"""
    _, counts = folded(parse(text, W=weights(8, 8), s=np.array(0.1, F32)))
    assert WEIGHTS_FOLDED not in counts


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
