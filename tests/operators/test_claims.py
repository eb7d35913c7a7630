"""Which chains of standard nodes the execution provider claims, as one, and which it must leave alone."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import harness
import numpy as np
import onnx
import onnxruntime
import oracle
import pytest
from onnx import parser

F32 = np.float32
WIDTH = 24


def numbers(*shape: int, seed: int = 0, mean: float = 0.0) -> np.ndarray:
    return np.random.default_rng(seed).normal(mean, 1.0, shape).astype(F32)


GAMMA, BETA = numbers(WIDTH, seed=1, mean=1.0), numbers(WIDTH, seed=2)
X, R = numbers(2, 5, WIDTH, seed=3), numbers(2, 5, WIDTH, seed=4)
CONSTANTS = {
    "gamma": GAMMA,
    "beta": BETA,
    "xs": np.array(0.05, F32),
    "xz": np.array(3, np.int8),
    "ys": np.array(0.03, F32),
    "yz": np.array(-4, np.int8),
}
XQ = oracle.quantize(X, CONSTANTS["xs"], CONSTANTS["xz"], onnx.TensorProto.INT8)
TENSOR = f"float[2,5,{WIDTH}]"


def model(graph: str, *, opset: int = 20, ir_version: int = 10, **constants: np.ndarray) -> onnx.ModelProto:
    """A model from ONNX's text format; every constant of the file (or given) that the text names is an initialiser."""
    header = f'<ir_version: {ir_version}, opset_import: ["": {opset}, "com.microsoft": 1, "ai.normfuse": 1]>'
    proto = parser.parse_model(header + graph)
    named = {name for node in _all_nodes(proto.graph) for name in node.input} - {i.name for i in proto.graph.input}
    for name, array in {**CONSTANTS, **constants}.items():
        if name in named:
            proto.graph.initializer.append(harness.initializer(name, array))
    return proto


def _all_nodes(graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    nodes = list(graph.node)
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                nodes += _all_nodes(attribute.g)
    return nodes


def layer_norm(x: np.ndarray, **attributes: Any) -> oracle.Expected:
    """LayerNormalization over the last dimension with gamma and beta, then what the attributes say."""
    inputs = {"X": x, "scale": GAMMA, "bias": BETA}
    return oracle.evaluate("FusedNormalization", inputs, {"axes": [-1], **attributes})["Y"]


def session_and_report(
    proto: onnx.ModelProto, tmp_path: Path, **options: Any
) -> tuple[onnxruntime.InferenceSession, list[dict[str, Any]]]:
    path = tmp_path / "claims.jsonl"
    session = harness.create_session(proto, "ep", claim_report=str(path), **options)
    return session, [json.loads(line) for line in path.read_text("utf-8").splitlines()]


# --- claimed as one -------------------------------------------------------------------------------

LN = "LayerNormalization<axis = -1>"


@pytest.mark.parametrize("opset", [20, 21, 22, 23, 24])
def test_layer_normalization_then_gelu(opset: int) -> None:
    proto = model(f"g ({TENSOR} X) => ({TENSOR} Y) {{ n = {LN}(X, gamma, beta)  Y = Gelu(n) }}", opset=opset)
    session = harness.create_session(proto)
    assert harness.fused_types(session) == [["Gelu", "LayerNormalization"]]
    layer_norm(X, activation="Gelu").check(harness.run(session, {"X": X})["Y"])


@pytest.mark.parametrize(
    ("opset", "op_type"),
    [(opset, "MeanVarianceNormalization") for opset in (9, 11, 13, 18, 23)]
    + [(opset, "InstanceNormalization") for opset in (7, 11, 16, 22)]
    + [(opset, "GroupNormalization") for opset in (18, 20, 21, 23)]
    + [(opset, "RMSNormalization") for opset in (23, 24)]
    + [(opset, "LayerNormalization") for opset in (17, 19, 21)],
)
def test_every_normalization_at_every_version(opset: int, op_type: str) -> None:
    x = numbers(3, 6, 5, 4, mean=2.0)
    per_group = op_type == "GroupNormalization" and opset < 21
    count = 3 if per_group else 6
    gamma, beta = numbers(count, seed=1), numbers(count, seed=2)
    if op_type in ("LayerNormalization", "RMSNormalization"):
        gamma, beta = numbers(5, 4, seed=1), numbers(5, 4, seed=2)
    nodes = {
        "MeanVarianceNormalization": "MeanVarianceNormalization<axes = [0, 2, 3]>(X)",
        "InstanceNormalization": "InstanceNormalization<epsilon = 0.01>(X, gamma, beta)",
        "GroupNormalization": "GroupNormalization<num_groups = 3, epsilon = 0.01>(X, gamma, beta)",
        "RMSNormalization": "RMSNormalization<axis = 2, epsilon = 0.01>(X, gamma)",
        "LayerNormalization": "LayerNormalization<axis = 2, epsilon = 0.01>(X, gamma, beta)",
    }
    meaning: dict[str, dict[str, Any]] = {
        "MeanVarianceNormalization": {"axes": [0, 2, 3], "epsilon": 1e-9, "epsilon_on": "stddev"},
        "InstanceNormalization": {"axes": [2, 3], "affine_align": "channel"},
        "GroupNormalization": {"num_groups": 3, "affine_align": "group" if per_group else "channel"},
        "RMSNormalization": {"axes": [2, 3], "use_mean": 0},
        "LayerNormalization": {"axes": [2, 3]},
    }
    text = f"g (float[3,6,5,4] X) => (float[3,6,5,4] Y) {{ n = {nodes[op_type]}  Y = Relu(n) }}"
    session = harness.create_session(model(text, opset=opset, ir_version=8, gamma=gamma, beta=beta))
    assert harness.fused_types(session) == [[op_type, "Relu"]] or harness.fused_types(session) == [["Relu", op_type]]
    inputs: dict[str, np.ndarray] = {"X": x}
    if op_type != "MeanVarianceNormalization":
        inputs["scale"] = gamma
    if op_type not in ("MeanVarianceNormalization", "RMSNormalization"):
        inputs["bias"] = beta
    attributes = {"epsilon": 0.01, **meaning[op_type], "activation": "Relu"}
    oracle.evaluate("FusedNormalization", inputs, attributes)["Y"].check(harness.run(session, {"X": x})["Y"])


def test_quantised_chain_with_residual() -> None:
    proto = model(f"""g (int8[2,5,{WIDTH}] XQ, {TENSOR} R) => (int8[2,5,{WIDTH}] Y) {{
        d = DequantizeLinear(XQ, xs, xz)
        s = Add(R, d)
        n = {LN}(s, gamma, beta)
        a = Gelu(n)
        Y = QuantizeLinear(a, ys, yz)
    }}""")
    session = harness.create_session(proto)
    assert harness.fused_types(session) == [["Add", "DequantizeLinear", "Gelu", "LayerNormalization", "QuantizeLinear"]]
    inputs = {"X": XQ, "x_scale": CONSTANTS["xs"], "x_zero_point": CONSTANTS["xz"], "residual": R}
    inputs |= {"scale": GAMMA, "bias": BETA, "y_scale": CONSTANTS["ys"], "y_zero_point": CONSTANTS["yz"]}
    expected = oracle.evaluate("FusedNormalization", inputs, {"axes": [-1], "activation": "Gelu"})["Y"]
    expected.check(harness.run(session, {"XQ": XQ, "R": R})["Y"])


def test_both_operands_of_the_residual_add_are_quantised() -> None:
    rq = oracle.quantize(R, np.array(0.04, F32), None, onnx.TensorProto.UINT8)
    proto = model(
        f"""g (int8[2,5,{WIDTH}] XQ, uint8[2,5,{WIDTH}] RQ) => ({TENSOR} Y) {{
        d = DequantizeLinear(XQ, xs, xz)
        e = DequantizeLinear(RQ, rs)
        s = Add(d, e)
        Y = {LN}(s, gamma, beta)
    }}""",
        rs=np.array(0.04, F32),
    )
    session = harness.create_session(proto)
    assert harness.fused_types(session) == [["Add", "DequantizeLinear", "DequantizeLinear", "LayerNormalization"]]
    inputs = {"X": XQ, "x_scale": CONSTANTS["xs"], "x_zero_point": CONSTANTS["xz"], "scale": GAMMA, "bias": BETA}
    inputs |= {"residual": rq, "residual_scale": np.array(0.04, F32)}
    oracle.evaluate("FusedNormalization", inputs, {"axes": [-1]})["Y"].check(
        harness.run(session, {"XQ": XQ, "RQ": rq})["Y"]
    )


def test_quantised_gamma_and_beta_as_the_quantizer_writes_them() -> None:
    gamma, beta = np.arange(WIDTH).astype(np.int8), (np.arange(WIDTH) * 100 - 900).astype(np.int32)
    constants = {
        "gq": gamma,
        "gs": np.array(0.05, F32),
        "gz": np.array(2, np.int8),
        "bq": beta,
        "bs": np.array([1e-3], F32),
        "bz": np.array(0, np.int32),
    }
    proto = model(
        f"""g (int8[2,5,{WIDTH}] XQ) => (int8[2,5,{WIDTH}] Y) {{
        d = DequantizeLinear(XQ, xs, xz)
        gd = DequantizeLinear(gq, gs, gz)
        bd = DequantizeLinear(bq, bs, bz)
        n = {LN}(d, gd, bd)
        Y = QuantizeLinear(n, ys, yz)
    }}""",
        **constants,
    )
    session = harness.create_session(proto)
    assert len(harness.ep_groups(session)) == 1
    assert harness.cpu_types(session) == []
    inputs = {"X": XQ, "x_scale": CONSTANTS["xs"], "x_zero_point": CONSTANTS["xz"]}
    inputs |= {"y_scale": CONSTANTS["ys"], "y_zero_point": CONSTANTS["yz"], "scale": gamma, "bias": beta}
    inputs |= {"scale_scale": constants["gs"], "scale_zero_point": constants["gz"]}
    inputs |= {"bias_scale": constants["bs"], "bias_zero_point": constants["bz"]}
    oracle.evaluate("FusedNormalization", inputs, {"axes": [-1]})["Y"].check(harness.run(session, {"XQ": XQ})["Y"])


def test_gamma_and_beta_may_be_one_initialiser() -> None:
    """ORT merges equal initialisers, so that one name comes in twice."""
    ones = np.ones(WIDTH, F32)
    proto = model(f"g ({TENSOR} X) => ({TENSOR} Y) {{ Y = {LN}(X, a, b) }}", a=ones, b=ones)
    session = harness.create_session(proto)
    assert harness.fused_types(session) == [["LayerNormalization"]]
    inputs = {"X": X, "scale": ones, "bias": ones}
    oracle.evaluate("FusedNormalization", inputs, {"axes": [-1]})["Y"].check(harness.run(session, {"X": X})["Y"])


def test_two_normalisations_that_share_a_dequantisation() -> None:
    """ORT duplicates the DequantizeLinear; each chain takes its own."""
    proto = model(f"""g (int8[2,5,{WIDTH}] XQ) => ({TENSOR} Y, {TENSOR} Z) {{
        d = DequantizeLinear(XQ, xs, xz)
        Y = {LN}(d, gamma, beta)
        n = {LN}(d, gamma, beta)
        Z = Relu(n)
    }}""")
    session = harness.create_session(proto)
    assert harness.fused_types(session) == [
        ["DequantizeLinear", "LayerNormalization"],
        ["DequantizeLinear", "LayerNormalization", "Relu"],
    ]
    got = harness.run(session, {"XQ": XQ})
    inputs = {"X": XQ, "x_scale": CONSTANTS["xs"], "x_zero_point": CONSTANTS["xz"], "scale": GAMMA, "bias": BETA}
    for name, activation in (("Y", "Identity"), ("Z", "Relu")):
        attributes = {"axes": [-1], "activation": activation}
        oracle.evaluate("FusedNormalization", inputs, attributes)["Y"].check(got[name], name)


def test_softsign_takes_steps_behind_it() -> None:
    text = f"g ({TENSOR} X) => ({TENSOR} Y) {{ a = Softsign(X)  b = Mul(a, gamma)  Y = Add(b, beta) }}"
    session = harness.create_session(model(text), "ep")
    assert harness.fused_types(session) == [["Add", "Mul", "Softsign"]]
    expected = oracle.activate("Softsign", X) * GAMMA + BETA
    np.testing.assert_allclose(session.run(None, {"X": X})[0], expected, rtol=2e-6, atol=1e-6)


# Formulas are written with these: GELU, softmax, SiLU, Mish, Snake.
PARTS = pytest.mark.parametrize("kind", ["Erf", "Exp", "Sin"])


@PARTS
def test_a_part_of_formulas_ends_a_normalisation_alone(kind: str) -> None:
    text = f"g ({TENSOR} X) => ({TENSOR} Y) {{ n = {LN}(X, gamma, beta)  Y = {kind}(n) }}"
    session = harness.create_session(model(text), "ep")
    assert harness.fused_types(session) == [sorted([kind, "LayerNormalization"])]
    inputs = {"X": X, "scale": GAMMA, "bias": BETA}
    expected = oracle.evaluate("FusedNormalization", inputs, {"axes": [-1], "activation": kind})["Y"]
    expected.check(harness.run(session, {"X": X})["Y"], kind)


@PARTS
@pytest.mark.parametrize(
    ("behind", "is_taken"),
    [
        ("Y = MatMul(a, w)", True),
        ("q = QuantizeLinear(a, ys, yz)  d = DequantizeLinear(q, ys, yz)  Y = MatMul(d, w)", True),
        ("Y = Add(a, beta)", False),
        ("Y = Mul(n, a)", False),
        ("s = ReduceSum<keepdims = 1>(a, last)  Y = Div(a, s)", False),
        ("q = QuantizeLinear(a, ys, yz)  d = DequantizeLinear(q, ys, yz)  Y = Add(d, beta)", False),
    ],
)
def test_a_part_of_a_formula_stays_with_it(kind: str, behind: str, is_taken: bool) -> None:
    text = f"g ({TENSOR} X) => ({TENSOR} Y) {{ n = {LN}(X, gamma, beta)  a = {kind}(n)  {behind} }}"
    constants = {"w": numbers(WIDTH, WIDTH, seed=9), "last": np.array([-1])}
    session = harness.create_session(model(text, **constants), "ep")
    assert any(kind in types for types in harness.fused_types(session)) == is_taken


@PARTS
@pytest.mark.parametrize(
    "text",
    [
        "Y = {kind}(X)",
        "a = {kind}(X)  b = Mul(a, gamma)  Y = Add(b, beta)",
        "q = QuantizeLinear(X, xs, xz)  d = DequantizeLinear(q, xs, xz)  Y = {kind}(d)",
        "a = {kind}(X)  q = QuantizeLinear(a, ys, yz)  Y = DequantizeLinear(q, ys, yz)",
        "g = Gelu(X)  m = Mul(g, gamma)  Y = {kind}(m)",
    ],
)
def test_a_part_of_formulas_begins_no_chain(kind: str, text: str) -> None:
    proto = model(f"g ({TENSOR} X) => ({TENSOR} Y) {{ {text.replace('{kind}', kind)} }}")
    session = harness.create_session(proto, "ep")
    assert not any(kind in types for types in harness.fused_types(session))


def test_an_activation_and_its_own_input() -> None:
    """Such an Add is no residual connection: nothing but the activation is between the two."""
    text = f"g ({TENSOR} X) => ({TENSOR} Y) {{ a = Gelu(X)  s = Mul(a, gamma)  Y = Add(X, s) }}"
    session = harness.create_session(model(text), "ep")
    assert harness.fused_types(session) == [["Add", "Gelu", "Mul"]]
    expected = X + oracle.activate("Gelu", X) * GAMMA
    np.testing.assert_allclose(session.run(None, {"X": X})[0], expected, rtol=2e-6, atol=1e-6)


def test_gates_of_an_lstm_cell() -> None:
    """Each product is one node with one of its activations."""
    tensors = ", ".join(f"{TENSOR} {name}" for name in "figoc")
    text = (
        f"g ({tensors}) => ({TENSOR} cell, {TENSOR} hidden) {{ sf = Sigmoid(f)  kept = Mul(sf, c)  si = Sigmoid(i) "
        "tg = Tanh(g)  new = Mul(si, tg)  cell = Add(kept, new)  so = Sigmoid(o)  tc = Tanh(cell) "
        "hidden = Mul(so, tc) }"
    )
    session = harness.create_session(model(text), "ep")
    fused = harness.fused_types(session)
    assert len(fused) == 5
    assert sum("Mul" in types for types in fused) == 3
    assert sorted(kind for types in fused for kind in types if kind != "Mul") == ["Sigmoid"] * 3 + ["Tanh"] * 2
    feeds = {name: numbers(2, 5, WIDTH, seed=seed) for seed, name in enumerate("figoc", 10)}
    gate = {name: oracle.activate("Sigmoid", feeds[name]) for name in "fio"}
    cell = gate["f"] * feeds["c"] + gate["i"] * np.tanh(feeds["g"].astype(np.float64))
    for got, wanted in zip(session.run(None, feeds), (cell, gate["o"] * np.tanh(cell)), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=2e-6, atol=1e-6)


@pytest.mark.parametrize("mul", ["Mul(n, s)", "Mul(s, n)"])
def test_silu_in_two_nodes(mul: str) -> None:
    text = f"g ({TENSOR} X) => ({TENSOR} Y) {{ n = {LN}(X, gamma, beta)  s = Sigmoid(n)  Y = {mul} }}"
    session = harness.create_session(model(text))
    assert harness.fused_types(session) == [["LayerNormalization", "Mul", "Sigmoid"]]
    layer_norm(X, activation="Swish").check(harness.run(session, {"X": X})["Y"])


@pytest.mark.parametrize("behind", ["Tanh", "Softplus", "Identity"])
@pytest.mark.parametrize("mul", ["Mul(n, s)", "Mul(s, n)"])
def test_silu_of_a_value_with_a_third_reader(mul: str, behind: str) -> None:
    """In the whole graph n is read three times, within a fused node twice: what is found must be the same chain."""
    text = f"g ({TENSOR} X) => ({TENSOR} Y) {{ n = Neg(X)  s = Sigmoid(n)  m = {mul}  t = {behind}(m)  Y = Add(n, t) }}"
    n = -X.astype(np.float64)
    silu = n / (1 + np.exp(-n))
    last = {"Tanh": np.tanh(silu), "Softplus": np.logaddexp(0, silu), "Identity": silu}[behind]
    got = harness.run(harness.create_session(model(text)), {"X": X})["Y"]
    np.testing.assert_allclose(got, n + last, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("mul", ["Mul(d, s)", "Mul(s, d)"])
def test_silu_of_a_dequantised_value(mul: str) -> None:
    """ORT makes a DequantizeLinear for each of the two nodes that read its value."""
    text = f"g (int8[2,5,{WIDTH}] X) => ({TENSOR} Y) {{ d = DequantizeLinear(X, xs, xz)  s = Sigmoid(d)  Y = {mul} }}"
    session = harness.create_session(model(text))
    assert harness.fused_types(session) == [["DequantizeLinear", "DequantizeLinear", "Mul", "Sigmoid"]]
    inputs = {"X": XQ, "x_scale": CONSTANTS["xs"], "x_zero_point": CONSTANTS["xz"]}
    expected = oracle.evaluate("FusedDequantizeLinear", inputs, {"activation": "Swish"})["Y"]
    expected.check(harness.run(session, {"X": XQ})["Y"])


def test_sigmoid_times_another_dequantised_value_is_no_silu() -> None:
    text = f"""g (int8[2,5,{WIDTH}] X) => ({TENSOR} Y) {{
        d = DequantizeLinear(X, xs, xz)  e = DequantizeLinear(X, ys, xz)  s = Sigmoid(d)  Y = Mul(s, e)
    }}"""
    session = harness.create_session(model(text))
    assert harness.fused_types(session) == [["DequantizeLinear", "DequantizeLinear", "Mul", "Sigmoid"]]
    d, e = (oracle.dequantize(XQ, CONSTANTS[scale], CONSTANTS["xz"]) for scale in ("xs", "ys"))
    np.testing.assert_allclose(harness.run(session, {"X": XQ})["Y"], e / (1 + np.exp(-d)), rtol=1e-6, atol=1e-7)


def test_bias_residual_and_their_sum_used_elsewhere() -> None:
    """Transformer block: Add(Add(x, bias), residual) goes to the norm and past it."""
    proto = model(
        f"""g ({TENSOR} X, {TENSOR} R) => ({TENSOR} Y, {TENSOR} Z) {{
        b = Add(bias, X)
        s = Add(b, R)
        Y = {LN}(s, gamma, beta)
        Z = Neg(s)
    }}""",
        bias=BETA,
    )
    session = harness.create_session(proto)
    assert ["Add", "Add", "LayerNormalization"] in harness.fused_types(session)
    assert harness.cpu_types(session) == ["Neg"]
    got = harness.run(session, {"X": X, "R": R})
    inputs = {"X": X, "residual": R, "residual_bias": BETA, "scale": GAMMA, "bias": BETA}
    out = oracle.evaluate("FusedNormalization", inputs, {"axes": [-1]})
    out["Y"].check(got["Y"])
    out["sum"].check(-got["Z"])


def test_mean_and_inverse_deviation_outputs() -> None:
    text = f"g ({TENSOR} X) => ({TENSOR} Y, float[2,5,1] M, float[2,5,1] I) {{ Y, M, I = {LN}(X, gamma, beta) }}"
    session = harness.create_session(model(text))
    assert harness.fused_types(session) == [["LayerNormalization"]]
    got = harness.run(session, {"X": X})
    out = oracle.evaluate("FusedNormalization", {"X": X, "scale": GAMMA, "bias": BETA}, {"axes": [-1]})
    out["Y"].check(got["Y"])
    out["mean"].check(got["M"])
    out["inv_std_dev"].check(got["I"])


# --- a value in between is needed elsewhere -------------------------------------------------------


def test_value_in_between_is_a_graph_output() -> None:
    text = f"g ({TENSOR} X) => ({TENSOR} n, {TENSOR} Y) {{ n = {LN}(X, gamma, beta)  Y = Gelu(n) }}"
    session = harness.create_session(model(text))
    assert harness.fused_types(session) == [["Gelu"], ["LayerNormalization"]]
    got = harness.run(session, {"X": X})
    layer_norm(X).check(got["n"])
    oracle.evaluate("FusedActivation", {"X": got["n"]}, {"activation": "Gelu"})["Y"].check(got["Y"])


def test_value_in_between_has_other_consumers() -> None:
    text = f"""g ({TENSOR} X) => ({TENSOR} Y, {TENSOR} Z) {{
        n = {LN}(X, gamma, beta)
        Y = Gelu(n)
        Z = Neg(n)
    }}"""
    session = harness.create_session(model(text))
    assert harness.fused_types(session) == [["Gelu"], ["LayerNormalization"]]
    got = harness.run(session, {"X": X})
    layer_norm(X).check(-got["Z"])


def test_value_in_between_is_used_in_a_subgraph() -> None:
    text = f"""g ({TENSOR} X, bool C) => ({TENSOR} Y, {TENSOR} Z) {{
        n = {LN}(X, gamma, beta)
        Y = Gelu(n)
        Z = If(C) <then_branch = t () => ({TENSOR} a) {{ a = Neg(n) }},
                   else_branch = e () => ({TENSOR} b) {{ b = Abs(n) }}>
    }}"""
    session = harness.create_session(model(text))
    assert sorted(harness.fused_types(session)) == [["Gelu"], ["LayerNormalization"]]
    got = harness.run(session, {"X": X, "C": np.array(True)})
    layer_norm(X).check(-got["Z"])
    layer_norm(X, activation="Gelu").check(got["Y"])


def test_sum_that_comes_back_as_scale() -> None:
    """Taking the Add would make the group non-convex, and ORT would drop every claim of the session."""
    text = f"""g (float[{WIDTH}] X, float[{WIDTH}] R) => (float[{WIDTH}] Y, float[{WIDTH}] Z) {{
        s = Add(X, R)
        e = Exp(s)
        Y = {LN}(s, e)
        Z = {LN}(R, gamma, beta)
    }}"""
    session = harness.create_session(model(text))
    assert ["LayerNormalization"] in harness.fused_types(session)
    assert len(harness.ep_groups(session)) >= 2
    x, r = X[0, 0], R[0, 0]
    got = harness.run(session, {"X": x, "R": r})
    layer_norm(r).check(got["Z"])
    scale = np.exp((x + r).astype(F32))
    expected = oracle.evaluate("FusedNormalization", {"X": x + r, "scale": scale}, {"axes": [-1]})["Y"]
    expected.widened(1e-5 * scale).check(got["Y"])


# --- subgraphs and shapes -------------------------------------------------------------------------


@pytest.mark.parametrize("condition", [True, False])
def test_chains_in_branches(condition: bool) -> None:
    text = f"""g ({TENSOR} X, bool C) => ({TENSOR} Y) {{
        Y = If(C) <
            then_branch = t () => ({TENSOR} a) {{ m = {LN}(X, gamma, beta)  a = Gelu(m) }},
            else_branch = e () => ({TENSOR} b) {{ k = {LN}(X, gamma, beta)  b = Relu(k) }}>
    }}"""
    session = harness.create_session(model(text))
    assert harness.fused_types(session) == [["Gelu", "LayerNormalization"], ["LayerNormalization", "Relu"]]
    got = harness.run(session, {"X": X, "C": np.array(condition)})["Y"]
    layer_norm(X, activation="Gelu" if condition else "Relu").check(got)


def test_chain_in_a_loop() -> None:
    text = f"""g ({TENSOR} X, int64 N, bool C) => ({TENSOR} Y) {{
        Y = Loop(N, C, X) <body = b (int64 i, bool c, {TENSOR} v) => (bool d, {TENSOR} w) {{
            d = Identity(c)
            m = {LN}(v, gamma, beta)
            w = Relu(m)
        }}>
    }}"""
    session = harness.create_session(model(text))
    assert harness.fused_types(session) == [["LayerNormalization", "Relu"]]
    got = harness.run(session, {"X": X, "N": np.array(1, np.int64), "C": np.array(True)})["Y"]
    layer_norm(X, activation="Relu").check(got)
    got = harness.run(session, {"X": X, "N": np.array(3, np.int64), "C": np.array(True)})["Y"]
    once = layer_norm(X, activation="Relu").array()
    twice = layer_norm(once, activation="Relu").array()
    layer_norm(twice, activation="Relu").widened(1e-4).check(got)


@pytest.mark.parametrize("shape", [(2, 5, WIDTH), (1, 1, WIDTH), (0, 5, WIDTH), (7, 3, WIDTH)])
def test_dynamic_shapes(shape: tuple[int, ...]) -> None:
    text = f"""g (float[batch, length, {WIDTH}] X) => (float[batch, length, {WIDTH}] Y) {{
        n = {LN}(X, gamma, beta)
        Y = Gelu(n)
    }}"""
    session = harness.create_session(model(text))
    assert harness.fused_types(session) == [["Gelu", "LayerNormalization"]]
    x = numbers(*shape)
    layer_norm(x, activation="Gelu").check(harness.run(session, {"X": x})["Y"])


def test_every_dimension_dynamic() -> None:
    text = f"g (float[a, b, c] X) => (float[a, b, c] Y) {{ n = {LN}(X, gamma, beta)  Y = Gelu(n) }}"
    session = harness.create_session(model(text))
    assert harness.fused_types(session) == [["Gelu", "LayerNormalization"]]
    layer_norm(X, activation="Gelu").check(harness.run(session, {"X": X})["Y"])
    with pytest.raises(Exception, match=f"(?s)scale.*{WIDTH}"):
        harness.run(session, {"X": numbers(2, 3, WIDTH + 1)})


@pytest.mark.parametrize(("x_rows", "r_rows"), [(2, 2), (1, 2), (2, 1)])
def test_residual_that_broadcasts_only_at_run_time(x_rows: int, r_rows: int) -> None:
    text = f"""g (float[m, {WIDTH}] X, float[n, {WIDTH}] R) => (float[k, {WIDTH}] Y) {{
        s = Add(X, R)
        Y = {LN}(s, gamma, beta)
    }}"""
    session = harness.create_session(model(text))
    x, r = numbers(x_rows, WIDTH, seed=8), numbers(r_rows, WIDTH, seed=9)
    inputs = {"X": x, "residual": r, "scale": GAMMA, "bias": BETA}
    expected = oracle.evaluate("FusedNormalization", inputs, {"axes": [-1]})["Y"]
    expected.widened(1e-6).check(harness.run(session, {"X": x, "R": r})["Y"])


@pytest.mark.parametrize("shape", [(WIDTH,), (1, 1, WIDTH), (5, 1), (2, 1, 1), (2, 5, WIDTH), (), (1,)])
def test_added_constant_of_any_shape(shape: tuple[int, ...]) -> None:
    added = numbers(*shape, seed=11)
    text = f"g ({TENSOR} X) => ({TENSOR} Y) {{ s = Add(c, X)  Y = {LN}(s, gamma, beta) }}"
    session = harness.create_session(model(text, c=added))
    inputs = {"X": X, "residual": added, "scale": GAMMA, "bias": BETA}
    expected = oracle.evaluate("FusedNormalization", inputs, {"axes": [-1]})["Y"]
    expected.widened(1e-6).check(harness.run(session, {"X": X})["Y"])


def test_x_added_to_itself() -> None:
    text = f"g ({TENSOR} X) => ({TENSOR} Y) {{ s = Add(X, X)  Y = {LN}(s, gamma, beta) }}"
    session = harness.create_session(model(text))
    inputs = {"X": X, "residual": X, "scale": GAMMA, "bias": BETA}
    oracle.evaluate("FusedNormalization", inputs, {"axes": [-1]})["Y"].check(harness.run(session, {"X": X})["Y"])


def test_an_initialiser_that_is_also_a_graph_input_is_read_at_run_time() -> None:
    text = f"g ({TENSOR} X, float[{WIDTH}] gamma) => ({TENSOR} Y) {{ Y = {LN}(X, gamma, beta) }}"
    proto = model(text)
    proto.graph.initializer.append(harness.initializer("gamma", GAMMA))
    session = harness.create_session(proto)
    assert harness.fused_types(session) == [["LayerNormalization"]]
    layer_norm(X).check(harness.run(session, {"X": X})["Y"])
    other = numbers(WIDTH, seed=20)
    inputs = {"X": X, "scale": other, "bias": BETA}
    got = harness.from_ort(
        session.run_with_ort_values(["Y"], {"X": harness.to_ort(X), "gamma": harness.to_ort(other)})[0]
    )
    oracle.evaluate("FusedNormalization", inputs, {"axes": [-1]})["Y"].check(got)


def test_parameters_known_only_at_run_time() -> None:
    text = f"""g ({TENSOR} X, float[{WIDTH}] G, float S, int8 Z) => (int8[2,5,{WIDTH}] Y) {{
        n = {LN}(X, G)
        Y = QuantizeLinear(n, S, Z)
    }}"""
    session = harness.create_session(model(text))
    assert harness.fused_types(session) == [["LayerNormalization", "QuantizeLinear"]]
    for seed in (1, 2):
        gamma, scale = numbers(WIDTH, seed=seed), np.array(0.01 * seed, F32)
        zero_point = np.array(seed, np.int8)
        inputs = {"X": X, "scale": gamma, "y_scale": scale, "y_zero_point": zero_point}
        got = harness.run(session, {"X": X, "G": gamma, "S": scale, "Z": zero_point})["Y"]
        oracle.evaluate("FusedNormalization", inputs, {"axes": [-1]})["Y"].check(got)


# --- left alone, with the reason ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "opset", "reason"),
    [
        (
            "g (double[3,8] X, double[8] G) => (double[3,8] Y) { Y = LayerNormalization(X, G) }",
            17,
            "unsupported_type",
        ),
        (
            f"g ({TENSOR} X) => ({TENSOR} Y) {{ Y = LayerNormalization<stash_type = 16>(X, gamma) }}",
            17,
            "attribute_value",
        ),
        (
            f"g ({TENSOR} X) => ({TENSOR} Y) {{ Y = RMSNormalization<stash_type = 11>(X, gamma) }}",
            23,
            "attribute_value",
        ),
    ],
)
def test_left_alone_with_its_reason(text: str, opset: int, reason: str, tmp_path: Path) -> None:
    session, report = session_and_report(model(text, opset=opset), tmp_path)
    assert harness.ep_groups(session) == []
    assert [entry["reason"] for entry in report] == [reason]
    assert all(entry["message"].strip() and entry["advice"].strip() for entry in report)


def test_clip_with_a_limit_that_is_not_constant() -> None:
    text = f"""g ({TENSOR} X, float H) => ({TENSOR} Y) {{
        n = {LN}(X, gamma, beta)
        Y = Clip(n, low, H)
    }}"""
    session = harness.create_session(model(text, low=np.array(-0.5, F32)))
    assert harness.fused_types(session) == [["LayerNormalization"]]
    got = harness.run(session, {"X": X, "H": np.array(0.75, F32)})["Y"]
    layer_norm(X, activation="Clip", activation_params=[-0.5, 0.75]).check(got)


def test_a_call_for_a_newer_specification_runs_its_body(tmp_path: Path) -> None:
    function = parser.parse_function(
        '<domain: "ai.normfuse", opset_import: ["": 20]> FusedActivation_test (X) => (Y) { Y = Relu(X) }'
    )
    for attribute, reason in (("spec_version = 99", "newer_spec_version"), ("flavour = 3", "unknown_attribute")):
        text = f"g ({TENSOR} X) => ({TENSOR} Y) {{ Y = ai.normfuse.FusedActivation_test<{attribute}>(X) }}"
        proto = model(text)
        proto.functions.append(function)
        (tmp_path / attribute[:4]).mkdir()
        session, report = session_and_report(proto, tmp_path / attribute[:4])
        assert reason in {entry.get("reason") for entry in report}
        got = harness.run(session, {"X": X})["Y"]
        assert (got == np.maximum(X, 0)).all()


@pytest.mark.parametrize(
    ("steps", "count", "words"),
    [
        ("; ".join(f"Mul t{i}" for i in range(16)), 16, "16 tensors; at most 15"),
        ("; ".join(f"Add t{i} scale=s{i} zero_point=z{i}" for i in range(9)), 27, "27 tensors; at most 24"),
    ],
)
def test_a_call_with_too_many_tensors_runs_its_body(steps: str, count: int, words: str, tmp_path: Path) -> None:
    names = ", ".join(f"t{i}" for i in range(count))
    function = parser.parse_function(
        f'<domain: "ai.normfuse", opset_import: ["": 20]> FusedActivation_test <steps> (X, {names}) => (Y)'
        " { Y = Relu(X) }"
    )
    call = f'ai.normfuse.FusedActivation_test<steps = "{steps}">(X, {", ".join(["gamma"] * count)})'
    proto = model(f"g ({TENSOR} X) => ({TENSOR} Y) {{ Y = {call} }}")
    proto.functions.append(function)
    session, report = session_and_report(proto, tmp_path)
    (entry,) = (entry for entry in report if "message" in entry)
    assert entry["reason"] == "too_many_tensors"
    assert words in entry["message"]
    assert (harness.run(session, {"X": X})["Y"] == np.maximum(X, 0)).all()


@pytest.mark.parametrize("where", ["main", "branch"])
def test_a_function_call_is_claimed(where: str) -> None:
    """The body is wrong on purpose: it must not be what runs."""
    function = parser.parse_function(
        '<domain: "ai.normfuse", opset_import: ["": 20]> FusedActivation_gelu (X) => (Y) { Y = Neg(X) }'
    )
    call = 'ai.normfuse.FusedActivation_gelu<steps = "Gelu", spec_version = 1>(X)'
    text = {
        "main": f"g ({TENSOR} X, bool C) => ({TENSOR} Y) {{ Y = {call} }}",
        "branch": f"""g ({TENSOR} X, bool C) => ({TENSOR} Y) {{
            Y = If(C) <then_branch = t () => ({TENSOR} a) {{ a = {call} }},
                       else_branch = e () => ({TENSOR} b) {{ b = Abs(X) }}>
        }}""",
    }[where]
    proto = model(text)
    proto.functions.append(function)
    session = harness.create_session(proto)
    assert harness.fused_types(session) == [["FusedActivation_gelu"]]
    got = harness.run(session, {"X": X, "C": np.array(True)})["Y"]
    oracle.evaluate("FusedActivation", {"X": X}, {"activation": "Gelu"})["Y"].check(got)


# --- ways to select the provider ------------------------------------------------------------------

CHAIN = f"g ({TENSOR} X) => ({TENSOR} Y) {{ n = {LN}(X, gamma, beta)  Y = Gelu(n) }}"
CUSTOM = f'g ({TENSOR} X) => ({TENSOR} Y) {{ Y = ai.normfuse.FusedActivation<steps = "Gelu">(X) }}'


def record(options: onnxruntime.SessionOptions) -> onnxruntime.SessionOptions:
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    return options


def test_selected_by_name() -> None:
    import normfuse

    normfuse.register()
    session = onnxruntime.InferenceSession(
        model(CHAIN).SerializeToString(),
        record(onnxruntime.SessionOptions()),
        providers=[(harness.EP_NAME, {"claim": "all"}), "CPUExecutionProvider"],
        enable_fallback=0,
    )
    assert harness.fused_types(session) == [["Gelu", "LayerNormalization"]]
    layer_norm(X, activation="Gelu").check(harness.run(session, {"X": X})["Y"])


def test_selected_by_device() -> None:
    import normfuse

    options = record(onnxruntime.SessionOptions())
    options.add_provider_for_devices(normfuse.register()[:1], {"claim": "all"})
    session = onnxruntime.InferenceSession(model(CHAIN).SerializeToString(), options, enable_fallback=0)
    assert harness.fused_types(session) == [["Gelu", "LayerNormalization"]]
    layer_norm(X, activation="Gelu").check(harness.run(session, {"X": X})["Y"])


@pytest.mark.parametrize("order", ["operators first", "provider first", "operators twice"])
def test_custom_operators_and_provider_in_one_session(order: str) -> None:
    import normfuse

    options = record(onnxruntime.SessionOptions())
    if order != "provider first":
        options.register_custom_ops_library(normfuse.get_library_path())
    if order == "operators twice":
        options.register_custom_ops_library(normfuse.get_library_path())
    options.add_provider_for_devices(normfuse.register()[:1], {"claim": "all"})
    if order == "provider first":
        options.register_custom_ops_library(normfuse.get_library_path())
    session = onnxruntime.InferenceSession(model(CUSTOM).SerializeToString(), options, enable_fallback=0)
    assert harness.fused_types(session) == [["FusedActivation"]]
    got = harness.run(session, {"X": X})["Y"]
    oracle.evaluate("FusedActivation", {"X": X}, {"activation": "Gelu"})["Y"].check(got)


def test_context_generation_claims_nothing(tmp_path: Path) -> None:
    options = harness.session_options("ep", claim_report=str(tmp_path / "claims.jsonl"))
    options.add_session_config_entry("ep.context_enable", "1")
    options.add_session_config_entry("ep.context_file_path", str(tmp_path / "context.onnx"))
    source = tmp_path / "source.onnx"
    onnx.save(model(CHAIN), source)
    session = harness.create_session(source, options=options)
    assert harness.ep_groups(session) == []
    lines = (tmp_path / "claims.jsonl").read_text("utf-8").splitlines()
    assert {json.loads(line)["reason"] for line in lines} == {"context_generation"}
    layer_norm(X, activation="Gelu").widened(1e-5).check(harness.run(session, {"X": X})["Y"])


def test_optimized_model_can_be_written(tmp_path: Path) -> None:
    """ORT cannot save compiled nodes: session_options() then leaves chains alone and takes operators as kernels."""
    import normfuse

    function = parser.parse_function(
        '<domain: "ai.normfuse", opset_import: ["": 20]> FusedActivation_Activation (X) => (Y) { Y = Gelu(X) }'
    )
    call = 'ai.normfuse.FusedActivation_Activation<steps = "Gelu", spec_version = 1>(n)'
    proto = model(f"g ({TENSOR} X) => ({TENSOR} Y) {{ n = {LN}(X, gamma, beta)  Y = {call} }}")
    proto.functions.append(function)
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    options = record(normfuse.session_options(options, claim="all", claim_report=tmp_path / "claims.jsonl"))
    session = harness.create_session(proto, options=options)
    assert harness.fused_types(session) == [["FusedActivation_Activation"]]
    lines = [json.loads(line) for line in (tmp_path / "claims.jsonl").read_text("utf-8").splitlines()]
    assert "compilation_off" in {entry.get("reason") for entry in lines}
    layer_norm(X, activation="Gelu").widened(1e-5).check(harness.run(session, {"X": X})["Y"])
    again = harness.create_session(tmp_path / "optimized.onnx", "ep")
    layer_norm(X, activation="Gelu").widened(1e-5).check(harness.run(again, {"X": X})["Y"])


@pytest.mark.parametrize("level", ["ORT_DISABLE_ALL", "ORT_ENABLE_BASIC", "ORT_ENABLE_EXTENDED", "ORT_ENABLE_ALL"])
def test_every_optimisation_level(level: str) -> None:
    options = harness.session_options("ep")
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
    session = harness.create_session(model(CHAIN), options=options)
    assert harness.fused_types(session) == [["Gelu", "LayerNormalization"]]
    layer_norm(X, activation="Gelu").check(harness.run(session, {"X": X})["Y"])


def test_nothing_is_left_to_the_cpu_provider() -> None:
    options = harness.session_options("ep")
    options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    session = harness.create_session(model(CHAIN), options=options)
    layer_norm(X, activation="Gelu").check(harness.run(session, {"X": X})["Y"])


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_results_do_not_depend_on_threads(threads: int) -> None:
    x = numbers(300, 40, WIDTH)
    text = f"g (float[a, b, {WIDTH}] X) => (float[a, b, {WIDTH}] Y) {{ n = {LN}(X, gamma, beta)  Y = Gelu(n) }}"
    options = harness.session_options("ep")
    options.intra_op_num_threads = threads
    session = harness.create_session(model(text), options=options)
    layer_norm(x, activation="Gelu").check(harness.run(session, {"X": x})["Y"])


def test_one_session_from_several_threads() -> None:
    text = f"g (float[a, b, {WIDTH}] X) => (float[a, b, {WIDTH}] Y) {{ n = {LN}(X, gamma, beta)  Y = Gelu(n) }}"
    session = harness.create_session(model(text))
    inputs = [numbers(3 + i, 7, WIDTH, seed=i) for i in range(4)]
    failures: list[str] = []

    def work(x: np.ndarray) -> None:
        for _ in range(50):
            try:
                layer_norm(x, activation="Gelu").check(harness.run(session, {"X": x})["Y"])
            except AssertionError as error:
                failures.append(str(error))

    threads = [threading.Thread(target=work, args=(x,)) for x in inputs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures[0]


def test_many_sessions_come_and_go() -> None:
    data = model(CHAIN).SerializeToString()
    for _ in range(30):
        session = harness.create_session(data)
        layer_norm(X, activation="Gelu").check(harness.run(session, {"X": X})["Y"])
        del session
