"""Pairs that change nothing, because their numbers come from such a pair, go; every other pair stays."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from hypothesis import given
from hypothesis import strategies as st
from parsed_models import parse, results

import normfuse
from normfuse.files.model_files import load_model
from normfuse.graph_rewrites import Treatment, rewrite
from normfuse.inspection.claims import pair_nodes
from normfuse.sessions.creation import Choices, session_model

F32 = np.float32
PAIRS = ("QuantizeLinear", "DequantizeLinear")
X = np.random.default_rng(8).normal(0, 3, (1, 4, 6, 6)).astype(F32)
CONSTANTS = {
    "s": np.array(0.1, F32),
    "z": np.array(7, np.uint8),
    "s1": np.array(0.2, F32),
    "z1": np.array(8, np.uint8),
    "z8": np.array(7, np.int8),
    "z16": np.array(7, np.uint16),
    "si": np.array([0.1, 0.2, 0.3, 0.4], F32),
    "zi": np.array([7, 7, 7, 7], np.uint8),
    "sh": np.array(0.1, np.float16),
    "huge": np.array(1e35, F32),
    "shape": np.array([1, 4, 36], np.int64),
    "sizes": np.array([1, 3], np.int64),
    "twice": np.array([1, 1, 2, 2], F32),
    "pads": np.array([0, 0, 1, 1, 0, 0, 0, 2], np.int64),
    "first": np.array([1], np.int64),
    "last": np.array([3], np.int64),
    "one": np.array(1, F32),
    "roi": np.array([0, 0, -1, -1, 1, 1, 2, 2], F32),
    "mask": np.array([True, False] * 3),
}
FIRST = "q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z)"
AGAIN = "e = QuantizeLinear(m, s, z) w = DequantizeLinear(e, s, z) y = Neg(w)"
# What moves the elements of d to m.
MOVING = {
    "nothing": "m = Identity(d)",
    "Reshape": "m = Reshape(d, shape)",
    "Transpose": "m = Transpose<perm = [0, 2, 3, 1]>(d)",
    "Split": "m, n = Split<axis = 1>(d, sizes)",
    "the second of Split": "n, m = Split<axis = 1>(d, sizes)",
    "Slice": "m = Slice(d, first, last, last)",
    "Gather": "m = Gather<axis = 1>(d, last)",
    "MaxPool": "m = MaxPool<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>(d)",
    "MaxPool, padded by itself": 'm = MaxPool<kernel_shape = [3, 3], auto_pad = "SAME_LOWER">(d)',
    "MaxPool, dilated": "m = MaxPool<kernel_shape = [2, 2], dilations = [2, 2]>(d)",
    "Resize": 'm = Resize<mode = "nearest", coordinate_transformation_mode = "asymmetric">(d, , twice)',
    "Resize by default": "m = Resize(d, , twice)",
    "Pad": "m = Pad(d, pads)",
    "Pad by reflection": 'm = Pad<mode = "reflect">(d, pads)',
    "Concat": "a = Transpose<perm = [0, 1, 3, 2]>(d) m = Concat<axis = 1>(d, a)",
    "Where": "a = Transpose<perm = [0, 1, 3, 2]>(d) m = Where(mask, d, a)",
    "Max": "a = Transpose<perm = [0, 1, 3, 2]>(d) m = Max(d, a)",
    "Relu": "m = Relu(d)",
    "ReduceMax": "m = ReduceMax<keepdims = 0>(d, first)",
    "GlobalMaxPool": "m = GlobalMaxPool(d)",
    "DepthToSpace": "m = DepthToSpace<blocksize = 2>(d)",
    "several": "a = Reshape(d, shape) b = Transpose<perm = [0, 2, 1]>(a) m = Unsqueeze(b, first)",
}


def model(body: str, shape: str = "1,4,6,6", kind: str = "float", **more: np.ndarray) -> onnx.ModelProto:
    named = {*body.replace(",", " ").replace("(", " ").replace(")", " ").split()}
    tensors = {name: array for name, array in {**CONSTANTS, **more}.items() if name in named}
    return parse(f"g ({kind}[{shape}] x) => ({kind} y) {{ {body} }}", **tensors)


def dropped(proto: onnx.ModelProto, fold_weights: str = "session") -> tuple[onnx.ModelProto, tuple[str, ...]]:
    changed = ir.from_proto(proto)
    treatment = Treatment(fold_weights=fold_weights, drop_repeated_pairs=True)  # type: ignore[arg-type]
    result = rewrite(changed, treatment=treatment)
    return ir.to_proto(changed), result.repeated


def count(proto: onnx.ModelProto) -> int:
    return sum(node.op_type in PAIRS for node in proto.graph.node)


@pytest.mark.parametrize("moves", MOVING)
def test_it_goes(moves: str) -> None:
    proto = model(f"{FIRST} {MOVING[moves]} {AGAIN}")
    changed, names = dropped(proto)
    assert len(names) == 2
    assert count(changed) <= 2  # one of the others may be part of a chain
    before, after = results(proto, {"x": X})["y"], results(changed, {"x": X})["y"]
    assert before.tobytes() == after.tobytes()


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        pytest.param(f"{FIRST} m = Neg(d) {AGAIN}", "float", id="not only moved"),
        pytest.param(f"{FIRST} m = Concat<axis = 1>(d, x) {AGAIN}", "float", id="beside others"),
        pytest.param(f"{FIRST} m = Pad(d, pads, one) {AGAIN}", "float", id="padded with another number"),
        pytest.param(
            f"{FIRST} m = MaxPool<kernel_shape = [2, 2], dilations = [3, 3], pads = [1, 1, 1, 1]>(d) {AGAIN}",
            "float",
            id="windows of padding alone",
        ),
        pytest.param(
            f'{FIRST} m = MaxPool<kernel_shape = [2, 2], dilations = [7, 7], auto_pad = "SAME_UPPER">(d) {AGAIN}',
            "float",
            id="windows of automatic padding alone",
        ),
        pytest.param(f'{FIRST} m = Resize<mode = "linear">(d, , twice) {AGAIN}', "float", id="interpolated"),
        pytest.param(
            f'{FIRST} m = Resize<mode = "nearest", coordinate_transformation_mode = "tf_crop_and_resize">'
            f"(d, roi, twice) {AGAIN}",
            "float",
            id="read beside the tensor",
        ),
        pytest.param(
            f"{FIRST} m = Identity(d) e = QuantizeLinear(m, s1, z) w = DequantizeLinear(e, s1, z) y = Neg(w)",
            "float",
            id="another scale",
        ),
        pytest.param(
            f"{FIRST} m = Identity(d) e = QuantizeLinear(m, s, z1) w = DequantizeLinear(e, s, z1) y = Neg(w)",
            "float",
            id="another zero point",
        ),
        pytest.param(
            f"{FIRST} m = Identity(d) e = QuantizeLinear(m, s, z8) w = DequantizeLinear(e, s, z8) y = Neg(w)",
            "float",
            id="another type",
        ),
        pytest.param(
            f"{FIRST} m = Identity(d) e = QuantizeLinear(m, s, z) w = DequantizeLinear(e, s1, z) y = Neg(w)",
            "float",
            id="no pair",
        ),
        pytest.param(
            "q = QuantizeLinear(x, si, zi) d = DequantizeLinear(q, si, zi) m = Transpose<perm = [0, 1, 3, 2]>(d) "
            "e = QuantizeLinear(m, si, zi) w = DequantizeLinear(e, si, zi) y = Neg(w)",
            "float",
            id="a scale for each channel",
        ),
        pytest.param(
            "q = QuantizeLinear(x, sh, z16) d = DequantizeLinear(q, sh, z16) m = Identity(d) "
            "e = QuantizeLinear(m, sh, z16) w = DequantizeLinear(e, sh, z16) y = Neg(w)",
            "float16",
            id="products that are rounded to fewer bits than the integers have",
        ),
        pytest.param(
            "q = QuantizeLinear(x, huge, z16) d = DequantizeLinear(q, huge, z16) m = Identity(d) "
            "e = QuantizeLinear(m, huge, z16) w = DequantizeLinear(e, huge, z16) y = Neg(w)",
            "float",
            id="products that overflow",
        ),
    ],
)
def test_it_stays(body: str, kind: str) -> None:
    changed, names = dropped(model(body, kind=kind))
    assert (count(changed), names) == (4, ())


@pytest.mark.parametrize("shape", ["1,4,N,6", "1,4,0,6"])
def test_the_largest_of_nothing_is_no_number_of_the_pair(shape: str) -> None:
    proto = model(f"{FIRST} {MOVING['ReduceMax']} {AGAIN}", shape, first=np.array([2]))
    changed, names = dropped(proto)
    assert names == ()
    x = np.zeros((1, 4, 0, 6), F32)
    before, after = results(proto, {"x": x})["y"], results(changed, {"x": x})["y"]
    assert before.tobytes() == after.tobytes()


def test_what_may_be_given_another_value_is_no_parameter() -> None:
    proto = model(f"{FIRST} m = Identity(d) {AGAIN}")
    proto.graph.input.append(onnx.helper.make_tensor_value_info("s", onnx.TensorProto.FLOAT, []))
    assert dropped(proto)[1] == ()


@pytest.mark.parametrize(("seen", "gone"), [("e", 1), ("w", 0)])
def test_what_is_read_besides_stays(seen: str, gone: int) -> None:
    proto = model(f"{FIRST} m = Identity(d) {AGAIN}")
    dtype = onnx.TensorProto.UINT8 if seen == "e" else onnx.TensorProto.FLOAT
    proto.graph.output.append(onnx.helper.make_tensor_value_info(seen, dtype, None))
    changed, names = dropped(proto)
    assert len(names) == gone
    before, after = results(proto, {"x": X}), results(changed, {"x": X})
    assert set(before) == {"y", seen}
    for name, array in before.items():
        assert array.tobytes() == after[name].tobytes()


def test_products_of_integers_keep_their_pairs() -> None:
    weights = {"v": np.ones((2, 4, 1, 1), np.int8), "zv": np.array(0, np.int8)}
    text = f"{FIRST} m = Transpose<perm = [0, 1, 3, 2]>(d) e = QuantizeLinear(m, s, z) f = DequantizeLinear(e, s, z) "
    text += "k = DequantizeLinear(v, s1, zv) c = Conv(f, k) h = QuantizeLinear(c, s1, z) y = DequantizeLinear(h, s1, z)"
    assert dropped(model(text, **weights))[1] == ()
    # Without the last pair the product runs in float, and so does all in front of it.
    text = text.partition(" h =")[0].replace("c =", "y =")
    assert len(dropped(model(text, **weights))[1]) == 2


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
    text = f"g ({name}[N] x) => (float y) {{ d = DequantizeLinear(x, s, z) m = Identity(d) {AGAIN} }}"
    proto = parse(text, s=np.array(scale), z=zero)
    changed, names = dropped(proto)
    assert len(names) == (2 if 1e-30 < scale < 1e30 else 0)
    before, after = results(proto, {"x": every})["y"], results(changed, {"x": every})["y"]
    assert before.tobytes() == after.tobytes()


def test_a_session_says_which() -> None:
    weights = {"v": np.random.default_rng(2).normal(0, 0.1, (16, 16, 3, 3)).astype(F32), "sixteen": np.array([16, 16])}
    text = (
        "a = Conv<pads = [1, 1, 1, 1]>(x, v) {} b = Sigmoid(d) c = Mul(d, b) f = QuantizeLinear(c, s, z16) "
        "e = DequantizeLinear(f, s, z16) m = Concat<axis = 1>(e, e) h, i = Split<axis = 1>(m, sixteen) "
        "j = QuantizeLinear(i, s, z16) k = DequantizeLinear(j, s, z16) y = Conv<pads = [1, 1, 1, 1]>(k, v)"
    ).format("q = QuantizeLinear(a, s, z16) d = DequantizeLinear(q, s, z16)")
    proto = model(text, "1,16,24,24", **weights)
    for index, node in enumerate(proto.graph.node):
        node.name = f"{node.op_type}{index}"
    x = np.random.default_rng(4).normal(0, 1, (1, 16, 24, 24)).astype(F32)
    session = normfuse.InferenceSession(proto)
    exact = results(proto, {"x": x})["y"]
    np.testing.assert_allclose(session.run(None, {"x": x})[0], exact, atol=np.abs(exact).max() * 1e-3)
    source = load_model(proto)
    made = session_model(source, onnxruntime.SessionOptions(), Choices())
    groups = {group.becomes: group for group in pair_nodes(source, made)}
    if made.leaves_pairs:  # this processor has a blocked layout
        assert sorted(groups["repeated"].nodes) == ["DequantizeLinear9", "QuantizeLinear8"]
