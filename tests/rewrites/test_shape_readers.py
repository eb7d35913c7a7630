"""Shape and Size read the bytes that are dequantised for others, and nothing else changes."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from parsed_models import parse, results

from normfuse import InferenceSession
from normfuse.files.model_files import load_model
from normfuse.graph_rewrites import Treatment, rewrite
from normfuse.graph_rewrites.quantization.shape_readers import SHAPE_OF_INTEGERS
from normfuse.sessions.creation import Choices, session_model

F32 = np.float32
CONSTANTS = {
    "s": np.array(0.1, F32),
    "z": np.array(7, np.uint8),
    "zi": np.array(7, np.int8),
    "z16": np.array(7, np.uint16),
    "flat": np.array([-1], np.int64),
    "three": np.array(3, np.int64),
}
PAIR = "q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z)"
SHAPE = "n = Shape(d) y = Reshape(d, flat)"
X = np.random.default_rng(0).normal(0, 3, (2, 5)).astype(F32)


def model(body: str, outputs: str = "int64[K] n, float[J] y") -> onnx.ModelProto:
    named = {*body.replace(",", " ").replace("(", " ").replace(")", " ").split()}
    tensors = {name: array for name, array in CONSTANTS.items() if name in named}
    return parse(f"g (float[A,B] x) => ({outputs}) {{ {body} }}", **tensors)


def rewritten(proto: onnx.ModelProto) -> tuple[onnx.ModelProto, int]:
    changed = ir.from_proto(proto)
    result = rewrite(changed, treatment=Treatment(shapes_of_integers=True))
    return ir.to_proto(changed), result.counts.get(SHAPE_OF_INTEGERS, 0)


def readers_of(proto: onnx.ModelProto, name: str) -> list[str]:
    return [node.op_type for node in proto.graph.node if name in node.input]


@pytest.mark.parametrize(
    ("body", "outputs"),
    [
        pytest.param(f"{PAIR} {SHAPE}", "int64[K] n, float[J] y", id="Shape"),
        pytest.param(
            f"{PAIR} n = Shape<start = 1>(d) y = Reshape(d, flat)", "int64[K] n, float[J] y", id="a part of it"
        ),
        pytest.param(f"{PAIR} n = Size(d) y = Reshape(d, flat)", "int64 n, float[J] y", id="Size"),
        pytest.param(f"{PAIR} n = Shape(d) m = Size(d) y = Neg(d)", "int64[K] n, int64 m, float[A,B] y", id="both"),
        pytest.param(f"{PAIR} {SHAPE}".replace("z)", "zi)"), "int64[K] n, float[J] y", id="int8"),
        pytest.param(f"{PAIR} n = Shape(d)", "int64[K] n, float[A,B] d", id="a result of the graph"),
    ],
)
def test_of_the_integers(body: str, outputs: str) -> None:
    proto = model(body, outputs)
    changed, count = rewritten(proto)
    asking = [node.op_type for node in proto.graph.node if node.op_type in ("Shape", "Size")]
    assert count == len(asking)
    assert readers_of(changed, "q") == ["DequantizeLinear", *asking]
    before, after = results(proto, {"x": X}), results(changed, {"x": X})
    assert before.keys() == after.keys()
    for name, array in before.items():
        assert array.tobytes() == after[name].tobytes()


def test_in_a_subgraph() -> None:
    body = (
        f"{PAIR} a = ReduceSum<keepdims = 0>(x) b = Cast<to = 9>(a) y = Reshape(d, flat) "
        "n = If (b) <then_branch = t () => (int64 u) { u = Size(d) }, else_branch = e () => (int64 v) "
        "{ v = Identity(three) }>"
    )
    proto = model(body, "int64 n, float[J] y")
    changed, count = rewritten(proto)
    assert count == 1
    for x in (X, 0 * X):
        before, after = results(proto, {"x": x}), results(changed, {"x": x})
        assert before["n"] == after["n"] == (X.size if x.any() else 3)
        assert before["y"].tobytes() == after["y"].tobytes()


@pytest.mark.parametrize(
    ("body", "outputs"),
    [
        pytest.param(f"{PAIR} n = Shape(d)", "int64[K] n", id="nothing else needs the numbers"),
        pytest.param(f"{PAIR} {SHAPE}".replace("z)", "z16)"), "int64[K] n, float[J] y", id="a step of a chain"),
        pytest.param(f"{PAIR} m = Neg(d) n = Shape(m) y = Reshape(d, flat)", "int64[K] n, float[J] y", id="of others"),
        pytest.param(
            f"{PAIR} {SHAPE}".replace("DequantizeLinear", "own.DequantizeLinear"),
            "int64[K] n, float[J] y",
            id="an operator of the model's own",
        ),
        pytest.param("n = Shape(x) y = Neg(x)", "int64[K] n, float[A,B] y", id="of an input"),
    ],
)
def test_others_stay(body: str, outputs: str) -> None:
    proto = model(body, outputs)
    changed, count = rewritten(proto)
    assert count == 0
    assert [(node.op_type, *node.input) for node in changed.graph.node] == [
        (node.op_type, *node.input) for node in proto.graph.node
    ]


def test_not_unasked() -> None:
    changed = ir.from_proto(model(f"{PAIR} {SHAPE}"))
    assert SHAPE_OF_INTEGERS not in rewrite(changed).counts


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
        **{name: CONSTANTS[name] for name in ("s", "z", "flat")},
    )
    made = session_model(load_model(proto), onnxruntime.SessionOptions(), Choices())
    (shape,) = [node for node in made.model.graph if node.op_type == "Shape"]
    assert shape.inputs[0] is not None
    producer = shape.inputs[0].producer()
    assert producer is not None
    assert producer.op_type != "DequantizeLinear"
    x = rng.normal(0, 3, (3, 4, 7, 6)).astype(F32)
    (got,) = InferenceSession(proto).run(None, {"x": x})
    exact = results(proto, {"x": x})["y"]
    assert got.shape == exact.shape
    assert np.abs(got - exact).max() <= 0.11  # a step
    assert np.mean(got != exact) < 0.01
