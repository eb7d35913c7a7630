"""A residual sum that is quantised and dequantised before its normalisation, as quantisers write it behind an Add."""

from __future__ import annotations

import harness
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import parser

import normfuse

WIDTH = 48
RNG = np.random.default_rng(7)
# Chosen so that 0.02 i + 0.03 j is never a tie between two multiples of 0.05.
SCALES = {"sa": 0.02, "sb": 0.03, "ss": 0.05, "sy": 0.03}
ZERO_POINTS = {"za": 3, "zb": -4, "zs": 5, "zy": -7}
GAMMA, BETA = RNG.normal(1, 0.2, WIDTH).astype(np.float32), RNG.normal(0, 0.2, WIDTH).astype(np.float32)

GRAPH = """<ir_version: 10, opset_import: ["": 20]>
g (int8[N,5,48] A, int8[N,5,48] B) => (int8[N,5,48] Y, float[N,5,48] S) {
  a = DequantizeLinear(A, sa, za)
  b = DequantizeLinear(B, sb, zb)
  s = Add(a, b)
  q = QuantizeLinear(s, ss, zs)
  d = DequantizeLinear(q, READ_SCALE, zs)
  n = LayerNormalization<epsilon = 1e-5>(d, gamma, beta)
  Y = QuantizeLinear(n, sy, zy)
  S = DequantizeLinear(q, ss, zs)
}"""


def model(read_scale: str = "ss", dtype: str = "int8") -> onnx.ModelProto:
    """The chain on int8, or the same numbers stored as uint8: 128 more."""
    proto = parser.parse_model(GRAPH.replace("READ_SCALE", read_scale).replace("int8", dtype))
    tensors = {name: np.array(value, np.float32) for name, value in SCALES.items()}
    offset = 128 if dtype == "uint8" else 0
    tensors |= {name: np.array(value + offset, dtype) for name, value in ZERO_POINTS.items()}
    tensors |= {"gamma": GAMMA, "beta": BETA}
    if read_scale not in tensors:
        tensors[read_scale] = np.array(0.06, np.float32)
    proto.graph.initializer.extend(harness.initializer(name, array) for name, array in tensors.items())
    return proto


def feeds() -> dict[str, np.ndarray]:
    return {name: RNG.integers(-128, 128, (3, 5, WIDTH)).astype(np.int8) for name in "AB"}


def expected(x: dict[str, np.ndarray], read_scale: float = 0.05) -> dict[str, np.ndarray]:
    """Y before its quantisation, and S, in float64."""
    real = {k: x[k].astype(np.float64) for k in "AB"}
    total = (real["A"] - 3) * 0.02 + (real["B"] + 4) * 0.03
    code = np.clip(np.rint(np.round(total / 0.05, 9)) + 5, -128, 127)
    d = (code - 5) * read_scale
    mean, variance = d.mean(-1, keepdims=True), d.var(-1, keepdims=True)
    n = (d - mean) / np.sqrt(variance + 1e-5) * GAMMA + BETA
    return {"Y": np.clip(n / 0.03 - 7, -128, 127), "S": (code - 5) * 0.05}


def check(session: onnxruntime.InferenceSession, read_scale: float = 0.05) -> None:
    x = feeds()
    y, s = session.run(["Y", "S"], x)
    want = expected(x, read_scale)
    assert np.abs(y - want["Y"]).max() <= 0.5 + 1e-3
    np.testing.assert_allclose(s, want["S"], rtol=0, atol=1e-6)


def test_the_provider_takes_the_whole_chain(make_session):
    session = make_session(model(), "ep", claim="all")
    (chain,) = (chain for chain in harness.fused_types(session) if chain != ["DequantizeLinear"])
    assert chain == sorted(["DequantizeLinear"] * 3 + ["Add"] + ["QuantizeLinear"] * 2 + ["LayerNormalization"])
    check(session)


@pytest.mark.parametrize("rewritten", [False, True])
@pytest.mark.parametrize("claim", ["profitable", "all"])
def test_onnx_runtime_adds_uint8_in_integers(make_session, rewritten, claim):
    """Its QLinearAdd and the chain behind that are faster than one chain, which claim=all takes all the same."""
    proto = model(dtype="uint8")
    if rewritten:
        proto = normfuse.optimize(proto, verify=False).model
    session = make_session(proto, "ep", claim=claim)
    chains = [chain for chain in harness.fused_types(session) if chain != ["DequantizeLinear"]]
    if claim == "profitable":
        # Whether even these are claimed is up to the instruction set.
        assert all(chain == ["DequantizeLinear", "LayerNormalization", "QuantizeLinear"] for chain in chains)
    elif not rewritten:
        (chain,) = chains
        assert "Add" in chain
    x = feeds()
    unsigned = {name: (array.astype(np.int16) + 128).astype(np.uint8) for name, array in x.items()}
    y, s = session.run(["Y", "S"], unsigned)
    want = expected(x)
    assert np.abs(y - 128.0 - want["Y"]).max() <= 0.5 + 1e-3
    np.testing.assert_allclose(s, want["S"], rtol=0, atol=1e-6)


@pytest.mark.parametrize("target", ["portable", "custom-op", "standard"])
@pytest.mark.parametrize("provider", ["ep", "cpu"])
def test_rewritten(make_session, target, provider):
    result = normfuse.optimize(model(), target=target, verify=False)
    ours = [node for node in result.model.graph.node if node.domain == "ai.normfuse"]
    if target != "standard":
        (node,) = ours
        assert list(node.output) == ["Y", "q"]
        given = harness.read_node(node).inputs
        assert (given["sum_scale"], given["sum_zero_point"]) == ("ss", "zs")
    if target == "custom-op":
        provider = "custom"
    check(make_session(result.model, provider))


def test_another_scale_behind_is_another_formula(make_session):
    session = make_session(model("other"), "ep", claim="profitable")
    assert all("Add" not in chain for chain in harness.fused_types(session))
    check(session, read_scale=0.06)
    result = normfuse.optimize(model("other"), verify=False)
    assert "Add" in [node.op_type for node in result.model.graph.node]
    check(make_session(result.model, "cpu"), read_scale=0.06)


def test_parameters_must_be_constants(make_session):
    proto = normfuse.optimize(model(), target="custom-op", verify=False).model
    (scale,) = [tensor for tensor in proto.graph.initializer if tensor.name == "ss"]
    proto.graph.initializer.remove(scale)
    proto.graph.input.append(onnx.helper.make_tensor_value_info("ss", onnx.TensorProto.FLOAT, []))
    with pytest.raises(Exception, match="sum_scale and sum_zero_point must be constants of one element"):
        make_session(proto, "custom")
