"""QLinearSoftmax in a session is one chain of integers, more exact than ONNX Runtime's; in a file it stays."""

from __future__ import annotations

import harness
import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from onnx import numpy_helper, parser

import normfuse
from normfuse.graph_rewrites import Treatment, rewrite

COUNT = "SoftmaxOfIntegers"
X_SCALE, Y_SCALE = np.float32(0.06), np.float32(1 / 256)


def model(stored: str = "uint8", dims: str = "2,3,40", opset: int = 13, **changed: str) -> onnx.ModelProto:
    attributes = changed.get("attributes", "axis = -1, opset = 13")
    inputs = changed.get("inputs", "X, xs, xz, ys, yz")
    proto = parser.parse_model(
        f'<ir_version: 8, opset_import: ["": {opset}, "com.microsoft": 1]> '
        f"g ({stored}[{dims}] X) => ({stored}[{dims}] Y)"
        f"{{ Y = com.microsoft.QLinearSoftmax<{attributes}>({inputs}) }}"
    )
    kind = np.dtype(stored)
    constants = {"xs": X_SCALE, "xz": zero_points(stored)[0], "ys": Y_SCALE, "yz": zero_points(stored)[1]}
    named = set(proto.graph.node[0].input)
    for name, value in constants.items():
        if name in named:
            array = np.asarray(value, np.float32 if name.endswith("s") else kind)
            proto.graph.initializer.append(numpy_helper.from_array(array, name))
    return proto


def operators_of(proto: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in proto.graph.node]


def zero_points(stored: str) -> tuple[int, int]:
    return (100, 0) if stored == "uint8" else (-28, -128)


def written(proto: onnx.ModelProto, fold_weights: str = "session") -> tuple[onnx.ModelProto, int]:
    changed = ir.from_proto(proto)
    result = rewrite(changed, treatment=Treatment(fold_weights=fold_weights))  # type: ignore[arg-type]
    return ir.to_proto(changed), result.counts.get(COUNT, 0)


@pytest.mark.parametrize("stored", ["uint8", "int8"])
@pytest.mark.parametrize(
    ("dims", "axis"),
    [("2,3,40", -1), ("2,3,40", 2), ("7", 0), ("1,1,1,1", 3), ("0,5", 1), ("2,16,4,30", 1), ("5,3,40", -3)],
)
def test_exact_to_a_step_in_one_chain(stored: str, dims: str, axis: int) -> None:
    proto = model(stored, dims, attributes=f"axis = {axis}, opset = 13")
    shape = tuple(map(int, dims.split(",")))
    low, high = np.iinfo(stored).min, np.iinfo(stored).max
    x = np.random.default_rng(3).integers(low, high, shape, endpoint=True).astype(stored)
    session = normfuse.InferenceSession(proto, harness.session_options("cpu"))
    got = session.run(None, {"X": x})[0]
    x_zero, y_zero = zero_points(stored)
    powers = np.exp((x.astype(np.float64) - x_zero) * np.float64(X_SCALE))
    exact = powers / powers.sum(axis, keepdims=True) / np.float64(Y_SCALE) + y_zero
    assert got.dtype == np.dtype(stored)
    assert got.shape == shape
    assert np.all(np.abs(got - np.clip(exact, low, high)) <= 0.5 + 1e-4)


def test_the_provider_has_it() -> None:
    options = harness.session_options("cpu")
    session = normfuse.InferenceSession(model(dims="12,128,128"), options)
    assert harness.fused_types(session) == [["DequantizeLinear", "QuantizeLinear", "Softmax"]]


@pytest.mark.parametrize(
    "proto",
    [
        pytest.param(model(attributes="axis = 1, opset = 11", opset=11), id="over several dimensions"),
        pytest.param(model(attributes="axis = 1, opset = 11"), id="over several dimensions, by the node's word"),
        pytest.param(model(attributes="axis = 1, opset = 13", opset=12), id="over one, which Softmax cannot say"),
        pytest.param(model(inputs="X, xs, xz, ys"), id="without the zero point of Y"),
        pytest.param(model(opset=9, attributes="axis = -1, opset = 9"), id="before QuantizeLinear"),
    ],
)
def test_others_stay(proto: onnx.ModelProto) -> None:
    changed, count = written(proto)
    assert (operators_of(changed), count) == (["QLinearSoftmax"], 0)


@pytest.mark.parametrize(("opset", "axis"), [(10, 2), (11, -1), (13, -1)])
def test_the_axis_needs_no_shape(opset: int, axis: int) -> None:
    """Where ONNX Runtime makes its operator of it again, and writes a model without shapes, it is found again."""
    changed, count = written(model(opset=opset, attributes="axis = 2, opset = 11"))
    assert count == 1
    (softmax,) = (node for node in changed.graph.node if node.op_type == "Softmax")
    assert [each.i for each in softmax.attribute] == [axis]


def test_a_file_keeps_it() -> None:
    proto = model()
    for folding in ("never", "file"):
        assert operators_of(written(proto, folding)[0]) == ["QLinearSoftmax"]


def test_names_stay_and_subgraphs_are_searched() -> None:
    softmax = "com.microsoft.QLinearSoftmax<axis = -1, opset = 13>(X, xs, xz, ys, yz)"
    body = parser.parse_graph(f"g () => (uint8[2,3,40] B) {{ B = {softmax} }}")
    other = parser.parse_graph("h () => (uint8[2,3,40] B2) { B2 = Identity(X) }")
    proto = model()
    node = onnx.helper.make_node("If", ["condition"], ["Z"], then_branch=body, else_branch=other)
    proto.graph.node.append(node)
    proto.graph.input.append(onnx.helper.make_tensor_value_info("condition", onnx.TensorProto.BOOL, []))
    proto.graph.output.append(onnx.helper.make_tensor_value_info("Z", onnx.TensorProto.UINT8, [2, 3, 40]))
    changed, count = written(proto)
    assert count == 2
    assert [value.name for value in changed.graph.output] == ["Y", "Z"]
    onnx.checker.check_model(changed, full_check=True)
    session = onnxruntime.InferenceSession(changed.SerializeToString(), providers=["CPUExecutionProvider"])
    x = np.random.default_rng(3).integers(0, 255, (2, 3, 40)).astype(np.uint8)
    y, z = session.run(None, {"X": x, "condition": np.array(True)})
    np.testing.assert_array_equal(y, z)
