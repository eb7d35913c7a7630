"""Products of int8 that ONNX Runtime runs in integers stay so beside the chains that are claimed by default."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import harness
import instruction_sets
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import parser
from onnx.numpy_helper import from_array

import normfuse

pytestmark = pytest.mark.without_vnni

IN_INTEGERS = ("QLinearMatMul", "MatMulIntegerToFloat", "QLinearConv", "QGemm")
ROWS, WIDTH = 64, 32
NORM = "n = LayerNormalization (x, g, g)\n"
QUANTIZED = "q = QuantizeLinear ({source}, s, z)\n d = DequantizeLinear (q, s, z)\n"
MATMUL = "v = DequantizeLinear (w, s, zero)\n m = MatMul (d, v)\n"
CONV = "v = DequantizeLinear (f, s, zero)\n m = Conv ({x}, v)\n"
BEHIND = "mq = QuantizeLinear (m, s, z)\n md = DequantizeLinear (mq, s, z)\n"
CHAINS = {
    "a norm in front": NORM + QUANTIZED.format(source="n") + MATMUL + BEHIND + "y = Add (md, g)",
    "a norm in front, float behind": NORM + QUANTIZED.format(source="n") + MATMUL + "y = Add (m, g)",
    "a dequantisation behind": QUANTIZED.format(source="x") + MATMUL + BEHIND + "y = Identity (md)",
    "a norm behind": QUANTIZED.format(source="x")
    + MATMUL
    + BEHIND
    + "a = Add (md, x)\n y = LayerNormalization (a, g, g)",
    "a softmax behind": QUANTIZED.format(source="x") + MATMUL + BEHIND + "y = Softmax (md)",
    "a norm in front, read twice": NORM
    + QUANTIZED.format(source="n")
    + "e = DequantizeLinear (q, s, z)\n"
    + MATMUL
    + BEHIND
    + "y = Add (md, e)",
    "two products": NORM
    + QUANTIZED.format(source="n")
    + MATMUL
    + BEHIND
    + "a = Gelu (md)\n aq = QuantizeLinear (a, s, z)\n ad = DequantizeLinear (aq, s, z)\n t = MatMul (ad, v)\n"
    + "tq = QuantizeLinear (t, s, z)\n td = DequantizeLinear (tq, s, z)\n u = Add (td, x)\n"
    + "y = LayerNormalization (u, g, g)",
    "a gate in front, an activation that is quantised behind": QUANTIZED.format(source="x")
    + "h = Sigmoid (d)\n hq = QuantizeLinear (h, s, z)\n hd = DequantizeLinear (hq, s, z)\n"
    + "e = Mul (d, hd)\n eq = QuantizeLinear (e, s, z)\n ed = DequantizeLinear (eq, s, z)\n"
    + CONV.format(x="ed")
    + BEHIND
    + "a = Sigmoid (md)\n aq = QuantizeLinear (a, s, z)\n y = DequantizeLinear (aq, s, z)",
    "a Relu behind that one chain reads twice": QUANTIZED.format(source="x")
    + MATMUL
    + "r = Relu (m)\n a = Add (r, g)\n aq = QuantizeLinear (a, s, z)\n ad = DequantizeLinear (aq, s, z)\n"
    + "y = Add (ad, r)",
    "a convolution": QUANTIZED.format(source="x") + CONV.format(x="d") + BEHIND + "y = LayerNormalization (md, g, g)",
}


def model_of(nodes: str, dtype: type) -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    constants = {
        "g": rng.standard_normal(WIDTH).astype(np.float32),
        "s": np.array(0.05, np.float32),
        "z": np.array(3, dtype),
        "zero": np.array(0, np.int8),
        "w": rng.integers(-127, 128, (WIDTH, WIDTH)).astype(np.int8),
        "f": rng.integers(-127, 128, (ROWS, ROWS, 1)).astype(np.int8),
    }
    tensor = f"float[2,{ROWS},{WIDTH}]"
    model = parser.parse_model(f'<ir_version: 9, opset_import: ["" : 20]> g ({tensor} x) => ({tensor} y) {{ {nodes} }}')
    model.graph.initializer.extend(from_array(array, name) for name, array in constants.items() if name in nodes)
    return model


def operators(model: onnx.ModelProto, options: onnxruntime.SessionOptions, folder: Path) -> Counter[str]:
    """How often each operator runs that ONNX Runtime's CPU provider has."""
    options.enable_profiling = True
    options.profile_file_prefix = str(folder / "profile")
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, enable_fallback=0)
    harness.run(session, {"x": np.random.default_rng(1).standard_normal((2, ROWS, WIDTH)).astype(np.float32)})
    events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
    return Counter(event["args"]["op_name"] for event in events if event["name"].endswith("kernel_time"))


@pytest.mark.parametrize("rewritten", [False, True])
@pytest.mark.parametrize("int8_allowed", ["0", "1", None])
@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
@pytest.mark.parametrize("chain", CHAINS)
def test_products_stay_in_integers(
    chain: str, dtype: type, int8_allowed: str | None, rewritten: bool, tmp_path: Path
) -> None:
    model = model_of(CHAINS[chain], dtype)

    def options() -> onnxruntime.SessionOptions:
        made = onnxruntime.SessionOptions()
        made.log_severity_level = 3
        if int8_allowed is not None:
            made.add_session_config_entry("session.qdqisint8allowed", int8_allowed)
        return made

    expected = operators(model, options(), tmp_path)
    if rewritten:
        model = normfuse.optimize(model, verify=False).model
    got = operators(model, normfuse.session_options(options(), model=model), tmp_path)
    for product in IN_INTEGERS:
        assert got[product] >= expected[product], f"{got} {expected}"


def test_a_chain_is_claimed_where_no_product_is_lost(tmp_path: Path) -> None:
    """With uint8, and where the quantised tensor is read twice: that stays int8, and the product is one of floats."""
    for chain, dtype in (("a norm in front", np.uint8), ("a norm in front, read twice", np.int8)):
        model = model_of(CHAINS[chain], dtype)
        got = operators(model, normfuse.session_options(onnxruntime.SessionOptions()), tmp_path)
        # The plain kernels quantise more slowly than ONNX Runtime.
        assert ("LayerNormalization" in got) == (instruction_sets.IN_USE == "baseline")


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
def test_what_is_beside_a_product_is_left_because_of_the_product(dtype: type, tmp_path: Path) -> None:
    """Not because of its size, which is too small here for any claim."""
    report = tmp_path / "claims.jsonl"
    model = model_of(CHAINS["a dequantisation behind"], dtype)
    harness.create_session(model, "ep", claim="profitable", claim_report=str(report))
    sites = [json.loads(line) for line in report.read_text("utf-8").splitlines()]
    said = {node: site["message"] for site in sites for node in site["nodes"]}
    # The outer halves of the pairs are no part of the product, but of int8 half a pair would keep it in float.
    beside = {"v", "d", "mq"} | ({"q", "y"} if dtype == np.int8 else set())
    assert set(said) == {"v", "d", "mq", "q", "y"}
    for node in beside:
        assert "product of int8" in said[node] or "the quantised operator" in said[node], (node, said[node])
