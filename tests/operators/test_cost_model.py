"""claim=profitable: what ONNX Runtime's own kernels run as fast stays with them, with a reason."""

from __future__ import annotations

import json
from pathlib import Path

import harness
import instruction_sets
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import parser


def model(graph: str, width: int) -> onnx.ModelProto:
    proto = parser.parse_model('<ir_version: 10, opset_import: ["": 23]>' + graph)
    weights = np.linspace(0.5, 1.5, width, dtype=np.float32)
    constants = {
        "gamma": weights,
        "beta": weights,
        "xs": np.float32(0.05),
        "xz": np.int8(3),
        "one": np.float32(1),
        "two": np.float32(2),
    }
    rows = int(proto.graph.input[0].type.tensor_type.shape.dim[0].dim_value)
    constants |= {"scales": np.linspace(0.5, 1.5, rows, dtype=np.float32)}
    named = {name for node in proto.graph.node for name in node.input}
    proto.graph.initializer.extend(harness.initializer(k, np.asarray(v)) for k, v in constants.items() if k in named)
    return proto


NORM = "LayerNormalization<axis = -1>(X, gamma, beta)"
RMS = "RMSNormalization<axis = -1>(X, gamma)"
EVERY = ["avx512", "avx2", "baseline"]
# name -> graph, width, instruction sets on which it is claimed
CASES = {
    "large LayerNorm": (f"g (float[1,128,768] X) => (float[1,128,768] Y) {{ Y = {NORM} }}", 768, EVERY),
    "small LayerNorm": (f"g (float[2,24] X) => (float[2,24] Y) {{ Y = {NORM} }}", 24, []),
    "LayerNorm of a row of 512": (f"g (float[1,512] X) => (float[1,512] Y) {{ Y = {NORM} }}", 512, []),
    "DequantizeLinear, LeakyRelu, QuantizeLinear": (
        "g (int8[512,512] X) => (int8[512,512] Y) { d = DequantizeLinear(X, xs, xz)  s = LeakyRelu(d) "
        "Y = QuantizeLinear(s, xs, xz) }",
        1,
        ["avx512", "avx2"],
    ),
    "DequantizeLinear of int16, a scale for each row": (
        "g (int16[512,512] X) => (float[512,512] Y) { Y = DequantizeLinear<axis = 0>(X, scales) }",
        1,
        [],
    ),
    "LayerNorm of unknown length": (f"g (float[B,S,768] X) => (float[B,S,768] Y) {{ Y = {NORM} }}", 768, EVERY),
    "large RMSNorm": (f"g (float[1,128,768] X) => (float[1,128,768] Y) {{ Y = {RMS} }}", 768, ["avx512", "avx2"]),
    "LayerNorm, Gelu": (
        f"g (float[128,768] X) => (float[128,768] Y) {{ n = {NORM}  Y = Gelu(n) }}",
        768,
        ["avx512", "avx2"],
    ),
    "Relu": ("g (float[64,4096] X) => (float[64,4096] Y) { Y = Relu(X) }", 1, []),
    "HardSwish": ("g (float[64,4096] X) => (float[64,4096] Y) { Y = HardSwish(X) }", 1, ["avx512", "avx2"]),
    "Tanh": ("g (float[64,4096] X) => (float[64,4096] Y) { Y = Tanh(X) }", 1, []),
    "Sigmoid": ("g (float[64,4096] X) => (float[64,4096] Y) { Y = Sigmoid(X) }", 1, []),
    # Of the first ONNX Runtime makes a FastGelu, with what is around it.
    "1 + Tanh": ("g (float[64,4096] X) => (float[64,4096] Y) { t = Tanh(X)  Y = Add(t, one) }", 1, []),
    "2 + Tanh": ("g (float[64,4096] X) => (float[64,4096] Y) { t = Tanh(X)  Y = Add(t, two) }", 1, ["avx512"]),
    "Mish": ("g (float[64,4096] X) => (float[64,4096] Y) { Y = Mish(X) }", 1, EVERY),
    "small Mish": ("g (float[4] X) => (float[4] Y) { Y = Mish(X) }", 1, []),
    "Sigmoid, Mul": (
        "g (float[64,4096] X) => (float[64,4096] Y) { s = Sigmoid(X)  Y = Mul(X, s) }",
        1,
        ["avx512", "avx2"],
    ),
    "small Gelu": ("g (float[2,512] X) => (float[2,512] Y) { Y = Gelu(X) }", 1, []),
    "LeakyRelu": ("g (float[64,4096] X) => (float[64,4096] Y) { Y = LeakyRelu(X) }", 1, ["avx512", "avx2"]),
    "small LeakyRelu": ("g (float[8,512] X) => (float[8,512] Y) { Y = LeakyRelu(X) }", 1, []),
    "QuantizeLinear": ("g (float[64,4096] X) => (int8[64,4096] Y) { Y = QuantizeLinear(X, xs, xz) }", 1, []),
    "DequantizeLinear": (
        "g (int8[64,4096] X) => (float[64,4096] Y) { Y = DequantizeLinear(X, xs, xz) }",
        1,
        ["avx512", "avx2"],
    ),
    "small DequantizeLinear": ("g (int8[8,512] X) => (float[8,512] Y) { Y = DequantizeLinear(X, xs, xz) }", 1, []),
    "DequantizeLinear, Sigmoid, QuantizeLinear": (
        "g (int8[512,512] X) => (int8[512,512] Y) { d = DequantizeLinear(X, xs, xz)  s = Sigmoid(d) "
        "Y = QuantizeLinear(s, xs, xz) }",
        1,
        ["avx512", "avx2"],
    ),
    "DequantizeLinear, HardSwish, QuantizeLinear": (
        "g (int8[512,512] X) => (int8[512,512] Y) { d = DequantizeLinear(X, xs, xz)  s = HardSwish(d) "
        "Y = QuantizeLinear(s, xs, xz) }",
        1,
        ["avx512", "avx2"],
    ),
    "DequantizeLinear of int16": (
        "g (int16[512,512] X) => (float[512,512] Y) { Y = DequantizeLinear(X, xs) }",
        1,
        [],
    ),
    "DequantizeLinear of int16, scales along rows": (
        "g (int16[512,512] X) => (float[512,512] Y) { Y = DequantizeLinear<axis = 1>(X, scales) }",
        1,
        EVERY,
    ),
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


@instruction_sets.each(*EVERY)
def test_what_is_faster_with_claim_profitable(isa: str, tmp_path: Path) -> None:
    script = (
        f"import sys; sys.path[:0] = {[str(Path(__file__).parent), str(Path(__file__).parent.parent)]!r}\n"
        "import json, pathlib, test_cost_model as t\n"
        f"print(json.dumps(t.decisions(pathlib.Path({str(tmp_path / 'claims.jsonl')!r}), 'profitable')))"
    )
    done = instruction_sets.python("-c", script, isa=isa)
    assert done.returncode == 0, done.stderr
    expected = {name: [""] if isa in sets else ["not_profitable"] for name, (_, _, sets) in CASES.items()}
    assert json.loads(done.stdout.splitlines()[-1]) == expected


# Between DequantizeLinear and QuantizeLinear ONNX Runtime runs these on the quantised tensor.
ON_QUANTIZED = {
    "ArgMax<axis = 1, keepdims = 1>(d)": "int64",
    "AveragePool<kernel_shape = [2, 2]>(d)": "",
    "Concat<axis = 1>(d, d)": "",
    "Expand(d, larger)": "",
    "Flatten<axis = 2>(d)": "",
    "Gather<axis = 1>(d, first)": "",
    "GatherElements<axis = 1>(d, places)": "",
    "GlobalAveragePool(d)": "",
    "MaxPool<kernel_shape = [2, 2]>(d)": "",
    "ReduceMax(d, first)": "",
    "ReduceMin(d, first)": "",
    "Reshape(d, shape)": "",
    "Slice(d, first, second)": "",
    "Squeeze(d)": "",
    "Tile(d, shape)": "",
    "Transpose(d)": "",
    "Unsqueeze(d, first)": "",
}


@pytest.mark.parametrize("text", ON_QUANTIZED)
def test_a_dequantisation_that_onnxruntime_takes_away_is_left(text: str, tmp_path: Path) -> None:
    if ON_QUANTIZED[text]:
        behind, ends = "", f"{ON_QUANTIZED[text]} Y"
    else:
        behind, ends = "Y = QuantizeLinear(y, xs, xz)", "int8 Y"
    graph = (
        f"g (int8[1,64,64,64] X) => ({ends}) {{ d = DequantizeLinear(X, xs, xz) "
        f"{'Y' if not behind else 'y'} = {text} {behind} }}"
    )
    proto = model(graph, 1)
    constants = {
        "shape": np.array([1, 64, 64, 64]),
        "larger": np.array([2, 64, 64, 64]),
        "first": np.array([1]),
        "second": np.array([2]),
        "places": np.zeros([1, 64, 64, 64], np.int64),
    }
    proto.graph.initializer.extend(harness.initializer(k, v) for k, v in constants.items() if k in text)
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    assert "DequantizeLinear" not in {n.op_type for n in onnx.load(options.optimized_model_filepath).graph.node}
    # Not by a saved model again: nothing is compiled where one is written, and nothing of this would be claimed.
    path = tmp_path / "claims.jsonl"
    harness.create_session(proto, "ep", claim="profitable", claim_report=str(path))
    sites = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    assert {site["reason"] for site in sites} == {"not_profitable"}
