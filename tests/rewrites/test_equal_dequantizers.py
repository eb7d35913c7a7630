"""DequantizeLinear nodes of the same integers become one, but for those that chains are found by."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from parsed_models import parse, results

from normfuse import InferenceSession
from normfuse.files.model_files import load_model
from normfuse.graph_rewrites.layout.blocked_layout import ELEMENTWISE
from normfuse.graph_rewrites.quantization.dequantize_cse import join_dequantizers
from normfuse.inspection.claims import pair_nodes
from normfuse.sessions import blocked_layout as nchwc
from normfuse.sessions.creation import Choices, session_model

F32 = np.float32
CHANNELS = 32
CONSTANTS = {
    "s": np.array(0.1, F32),
    "r": np.array(0.2, F32),
    "z": np.array(7, np.uint16),
    "si": np.array([0.1, 0.2], F32),
    "zi": np.array([7, 7], np.uint16),
    "flat": np.array([-1], np.int64),
}
Q = "q = QuantizeLinear(x, s, z)"


def model(body: str, outputs: str = "float y") -> onnx.ModelProto:
    named = {*body.replace(",", " ").replace("(", " ").replace(")", " ").split()}
    tensors = {name: array for name, array in CONSTANTS.items() if name in named}
    return parse(f"g (float[2,2] x) => ({outputs}) {{ {body} }}", **tensors)


def joined(proto: onnx.ModelProto) -> tuple[ir.Model, int]:
    changed = ir.from_proto(proto)
    return changed, join_dequantizers(changed.graph, ELEMENTWISE)


def test_readers_share_one() -> None:
    body = (
        f"{Q} d = DequantizeLinear(q, s, z) e = DequantizeLinear(q, s, z) f = DequantizeLinear(q, s, z) "
        "a = Reshape(d, flat) b = Neg(e) c = Neg(f) g = Reshape(b, flat) h = Reshape(c, flat) "
        "y = Concat<axis = 0>(a, g, h)"
    )
    proto = model(body)
    changed, gone = joined(proto)
    assert gone == 2
    assert sum(node.op_type == "DequantizeLinear" for node in changed.graph) == 1
    x = np.random.default_rng(0).normal(0, 3, (2, 2)).astype(F32)
    before, after = results(proto, {"x": x})["y"], results(ir.to_proto(changed), {"x": x})["y"]
    assert before.tobytes() == after.tobytes()


def test_a_reader_in_a_subgraph() -> None:
    body = (
        f"{Q} d = DequantizeLinear(q, s, z) e = DequantizeLinear(q, s, z) a = Reshape(d, flat) "
        "c = ReduceSum<keepdims = 0>(x) b = Cast<to = 9>(c) "
        "y = If (b) <then_branch = t () => (float m) { m = Reshape(e, flat) }, "
        "else_branch = u () => (float n) { n = Neg(a) }>"
    )
    proto = model(body)
    changed, gone = joined(proto)
    assert gone == 1
    for sign in (0, 1):
        x = sign * np.random.default_rng(0).uniform(1, 3, (2, 2)).astype(F32)
        before, after = results(proto, {"x": x})["y"], results(ir.to_proto(changed), {"x": x})["y"]
        assert before.tobytes() == after.tobytes()


@pytest.mark.parametrize(
    ("body", "outputs"),
    [
        pytest.param(
            f"{Q} d = DequantizeLinear(q, s, z) e = DequantizeLinear(q, s, z) a = Sigmoid(d) y = Mul(a, e)",
            "float y",
            id="a chain reads all",
        ),
        pytest.param(
            f"{Q} d = DequantizeLinear(q, s, z) e = DequantizeLinear(q, r, z) y = Concat<axis = 0>(d, e)",
            "float y",
            id="another scale",
        ),
        pytest.param(
            f"{Q} d = DequantizeLinear(q, s) e = DequantizeLinear(q, s, z) y = Concat<axis = 0>(d, e)",
            "float y",
            id="another zero point",
        ),
        pytest.param(
            f"{Q} d = DequantizeLinear<axis = 0>(q, si, zi) e = DequantizeLinear<axis = 1>(q, si, zi) "
            "y = Concat<axis = 0>(d, e)",
            "float y",
            id="another axis",
        ),
        pytest.param(
            f"{Q} d = own.DequantizeLinear(q, s, z) e = own.DequantizeLinear(q, s, z) y = Concat<axis = 0>(d, e)",
            "float y",
            id="operators of the model's own",
        ),
        pytest.param(
            f"{Q} d = DequantizeLinear(q, s, z) y = DequantizeLinear(q, s, z) v = Reshape(d, flat)",
            "float y, float v",
            id="a result of the graph",
        ),
    ],
)
def test_others_stay(body: str, outputs: str) -> None:
    changed, gone = joined(model(body, outputs))
    assert gone == 0
    assert sum(node.op_type == "DequantizeLinear" for node in changed.graph) == 2


@pytest.mark.skipif(nchwc.block_size() is None, reason="ONNX Runtime has no blocked layout on this processor")
def test_a_session_makes_a_pair_of_what_a_shape_and_a_reshape_read() -> None:
    """As at the head of a detector: ONNX Runtime gives each of both readers a node of its own."""
    rng = np.random.default_rng(3)
    weights = rng.normal(0, 0.1, (CHANNELS, CHANNELS, 3, 3)).astype(F32)
    body = (
        "c = Conv<pads = [1, 1, 1, 1]>(x, w) q = QuantizeLinear(c, s, z) d = DequantizeLinear(q, s, z) "
        "a = Sigmoid(d) t = QuantizeLinear(a, s, z) u = DequantizeLinear(t, s, z) m = Mul(d, u) "
        "k = Conv<pads = [1, 1, 1, 1]>(m, w) l = Concat<axis = 1>(k, x) e = QuantizeLinear(l, s, z) "
        "f = DequantizeLinear(e, s, z) sizes = Shape<start = 0, end = 1>(f) target = Concat<axis = 0>(sizes, flat) "
        "y = Reshape(f, target)"
    )
    text = f"g (float[N,{CHANNELS},40,40] x) => (float[N,K] y) {{ {body} }}"
    proto = parse(text, w=weights, **{name: CONSTANTS[name] for name in ("s", "z", "flat")})
    for index, node in enumerate(proto.graph.node):
        node.name = f"{node.op_type}{index}"
    source = load_model(proto)
    made = session_model(source, onnxruntime.SessionOptions(), Choices())
    assert made.leaves_pairs
    groups = {group.becomes: group for group in pair_nodes(source, made)}
    assert {"QuantizeLinear9", "DequantizeLinear10"} <= {*groups["claimed"].nodes}
    assert "not_seen" not in groups
    x = rng.normal(0, 1, (1, CHANNELS, 40, 40)).astype(F32)
    (got,) = InferenceSession(proto).run(None, {"x": x})
    exact = results(proto, {"x": x})["y"]
    assert got.shape == exact.shape
    assert np.abs(got - exact).max() <= 0.11  # a step
    assert np.mean(got != exact) < 0.01
