"""claim=profitable: what ONNX Runtime's own kernels run as fast stays with them, with a reason."""

from __future__ import annotations

import json
from pathlib import Path

import harness
import numpy as np
import onnx
import pytest
from onnx import parser
from test_instruction_sets import AVAILABLE, python


def model(graph: str, width: int) -> onnx.ModelProto:
    proto = parser.parse_model('<ir_version: 10, opset_import: ["": 23]>' + graph)
    weights = np.linspace(0.5, 1.5, width, dtype=np.float32)
    constants = {"gamma": weights, "beta": weights, "xs": np.float32(0.05), "xz": np.int8(3)}
    rows = int(proto.graph.input[0].type.tensor_type.shape.dim[0].dim_value)
    constants |= {"scales": np.linspace(0.5, 1.5, rows, dtype=np.float32)}
    named = {name for node in proto.graph.node for name in node.input}
    proto.graph.initializer.extend(harness.initializer(k, np.asarray(v)) for k, v in constants.items() if k in named)
    return proto


NORM = "LayerNormalization<axis = -1>(X, gamma, beta)"
RMS = "RMSNormalization<axis = -1>(X, gamma)"
# name -> graph, width, instruction sets on which it is claimed
CASES = {
    "large LayerNorm": (f"g (float[1,128,768] X) => (float[1,128,768] Y) {{ Y = {NORM} }}", 768, AVAILABLE),
    "small LayerNorm": (f"g (float[2,24] X) => (float[2,24] Y) {{ Y = {NORM} }}", 24, []),
    "LayerNorm of unknown length": (f"g (float[B,S,768] X) => (float[B,S,768] Y) {{ Y = {NORM} }}", 768, AVAILABLE),
    "large RMSNorm": (f"g (float[1,128,768] X) => (float[1,128,768] Y) {{ Y = {RMS} }}", 768, ["avx512", "avx2"]),
    "LayerNorm, Gelu": (
        f"g (float[128,768] X) => (float[128,768] Y) {{ n = {NORM}  Y = Gelu(n) }}",
        768,
        ["avx512", "avx2"],
    ),
    "Relu": ("g (float[64,4096] X) => (float[64,4096] Y) { Y = Relu(X) }", 1, []),
    "HardSwish": ("g (float[64,4096] X) => (float[64,4096] Y) { Y = HardSwish(X) }", 1, ["avx512", "avx2"]),
    "Mish": ("g (float[64,4096] X) => (float[64,4096] Y) { Y = Mish(X) }", 1, AVAILABLE),
    "small Mish": ("g (float[4] X) => (float[4] Y) { Y = Mish(X) }", 1, []),
    "Sigmoid, Mul": ("g (float[64,4096] X) => (float[64,4096] Y) { s = Sigmoid(X)  Y = Mul(X, s) }", 1, ["avx512"]),
    "DequantizeLinear": ("g (int8[64,4096] X) => (float[64,4096] Y) { Y = DequantizeLinear(X, xs, xz) }", 1, []),
    "DequantizeLinear of rows": (
        "g (int8[512,512] X) => (float[512,512] Y) { Y = DequantizeLinear<axis = 0>(X, scales) }",
        1,
        ["avx512", "avx2"],
    ),
    "large DequantizeLinear of rows": (
        "g (int8[4096,2048] X) => (float[4096,2048] Y) { Y = DequantizeLinear<axis = 0>(X, scales) }",
        1,
        ["avx512", "avx2"],
    ),
    "large DequantizeLinear": (
        "g (int8[4096,2048] X) => (float[4096,2048] Y) { Y = DequantizeLinear(X, xs, xz) }",
        1,
        ["avx512", "avx2"],
    ),
}


def decisions(path: Path, claim: str) -> dict[str, list[str]]:
    """The reasons of every case's sites; an empty one for what is claimed. (Also run by itself, in a process.)"""
    found = {}
    for name, (graph, width, _) in CASES.items():
        path.unlink(missing_ok=True)
        harness.create_session(model(graph, width), "ep", claim=claim, claim_report=str(path))
        sites = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
        # ONNX Runtime expands an operator that has no kernel and asks again.
        found[name] = sorted({"" if site["claimed"] else site["reason"] for site in sites})
    return found


def test_everything_with_claim_all(tmp_path: Path) -> None:
    assert decisions(tmp_path / "claims.jsonl", "all") == {name: [""] for name in CASES}


@pytest.mark.parametrize("isa", [isa for isa in AVAILABLE if isa != "neon"])
def test_what_is_faster_with_claim_profitable(isa: str, tmp_path: Path) -> None:
    script = (
        f"import sys; sys.path[:0] = {[str(Path(__file__).parent), str(Path(__file__).parent.parent)]!r}\n"
        "import json, pathlib, test_cost_model as t\n"
        f"print(json.dumps(t.decisions(pathlib.Path({str(tmp_path / 'claims.jsonl')!r}), 'profitable')))"
    )
    done = python("-c", script, isa=isa)
    assert done.returncode == 0, done.stderr
    expected = {name: [""] if isa in sets else ["not_profitable"] for name, (_, _, sets) in CASES.items()}
    assert json.loads(done.stdout.splitlines()[-1]) == expected
