"""Graphs with more chains than ONNX Runtime compiles in a reasonable time: registered kernels run the nodes there."""

from __future__ import annotations

import time

import harness
import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper

CHAINS = 1500
X = np.random.default_rng(3).normal(0, 2, (4, 16)).astype(np.float32)
CONSTANTS = {
    "g": np.linspace(0.5, 1.5, 16).astype(np.float32),
    "slope": np.asarray([0.25], np.float32),
    "low": np.asarray(-1, np.float32),
    "high": np.asarray(1.5, np.float32),
    "step": np.asarray(0.05, np.float32),
    "zero": np.asarray(3, np.int8),
}
# Operator, further inputs, attributes.
SINGLE = [
    ("Celu", [], {"alpha": 1.5}),
    ("Clip", ["low", "high"], {}),
    ("Elu", [], {"alpha": 0.7}),
    ("Gelu", [], {}),
    ("Gelu", [], {"approximate": "tanh"}),
    ("HardSigmoid", [], {"alpha": 0.3}),
    ("HardSwish", [], {}),
    ("LeakyRelu", [], {"alpha": 0.2}),
    ("Mish", [], {}),
    ("PRelu", ["slope"], {}),
    ("Relu", [], {}),
    ("Selu", [], {}),
    ("Sigmoid", [], {}),
    ("Softplus", [], {}),
    ("Softsign", [], {}),
    ("Tanh", [], {}),
    ("ThresholdedRelu", [], {"alpha": 0.5}),
]


def in_a_row(count: int) -> list[onnx.NodeProto]:
    """Chains with a node between each two that nobody fuses."""
    nodes, value = [], "X"
    for index in range(count):
        n, r, m = f"n{index}", f"r{index}", f"m{index}"
        nodes += [
            helper.make_node("LayerNormalization", [value, "g"], [n], name=f"norm{index}"),
            helper.make_node("Relu", [n], [r], name=f"relu{index}"),
            helper.make_node("Neg", [r], [m], name=f"neg{index}"),
        ]
        value = m
    return nodes


def build(nodes: list[onnx.NodeProto], outputs: dict[str, int]) -> bytes:
    used = {name for node in nodes for name in node.input}
    constants = {name: value for name, value in CONSTANTS.items() if name in used}
    return harness.build_model(nodes, {"X": X}, outputs, constants, opset=22).SerializeToString()


def seconds(model: bytes, provider: str) -> tuple[float, onnxruntime.InferenceSession]:
    start = time.perf_counter()
    session = harness.create_session(model, provider)
    return time.perf_counter() - start, session


def test_claiming_everything_in_a_large_graph_takes_no_longer_than_loading_it() -> None:
    """Compiled one by one these chains take a minute; a plain session takes about as long as this one should."""
    model = build(in_a_row(CHAINS), {f"m{CHAINS - 1}": TensorProto.FLOAT})
    plain, reference = seconds(model, "cpu")
    ours, session = seconds(model, "ep")
    assert ours < 4 * plain + 2, (ours, plain)
    assert harness.fused_types(session) == [["LayerNormalization"]] * CHAINS + [["Relu"]] * CHAINS
    got, wanted = session.run(None, {"X": X})[0], reference.run(None, {"X": X})[0]
    assert np.abs(got - wanted).max() < 1e-3


def test_every_single_node_on_its_kernel() -> None:
    nodes = in_a_row(CHAINS // 2)
    outputs = {}
    for index, (op_type, inputs, attributes) in enumerate(SINGLE):
        outputs[f"y{index}"] = TensorProto.FLOAT
        nodes.append(helper.make_node(op_type, ["X", *inputs], [f"y{index}"], name=f"single{index}", **attributes))
    nodes.append(helper.make_node("QuantizeLinear", ["X", "step", "zero"], ["q"], name="quantise"))
    nodes.append(helper.make_node("DequantizeLinear", ["q", "step", "zero"], ["d"], name="dequantise"))
    outputs |= {f"m{CHAINS // 2 - 1}": TensorProto.FLOAT, "q": TensorProto.INT8, "d": TensorProto.FLOAT}
    model = build(nodes, outputs)
    session, reference = harness.create_session(model), harness.create_session(model, "cpu")
    assert harness.fused_types(session) == sorted([node.op_type] for node in nodes if node.op_type != "Neg")
    got, wanted = harness.run(session, {"X": X}), harness.run(reference, {"X": X})
    for name, value in wanted.items():
        tolerance = 0 if value.dtype == np.int8 else 1e-3
        assert np.abs(got[name].astype(np.float64) - value).max() <= tolerance, name
