"""Blocks of today's models: what stands beside their normalisations and activations is in their fused nodes."""

import copy
import sys
from collections import Counter
from pathlib import Path

import harness
import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from blocks import BLOCKS, SMALL, exported

import normfuse
from normfuse.spec import read_program

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))

import real_models

# Of each fused node: its steps, but for scale, bias and a residual.
SNAKE = "SinSquared Mul Add"
EXPECTED = {
    "llama_block": ["Normalize", "Normalize", "Swish Mul"],
    "qwen3_block": ["Normalize", "Normalize", "Normalize", "Normalize", "Swish Mul"],
    "dit_block": ["Swish", "Normalize", "Normalize", "GeluTanh"],
    "convnext_v2_block": ["Normalize", "Gelu"],
    "dinov2_block": ["Normalize", "Normalize", "Gelu"],
    "sdxl_resblock": [*["Normalize Swish"] * 2, "Swish"],
    "mamba2_output": ["Swish Mul", "Normalize"],
    "kokoro_block": [*["Normalize Add"] * 2, SNAKE, SNAKE],
}
# The legacy exporter cuts a modulation into parts whose sizes it computes at run time; these have none.
BY_BOTH = [name for name in BLOCKS if name not in ("dit_block", "sdxl_resblock", "kokoro_block")]
CASES = [(name, "dynamo") for name in BLOCKS] + [(name, "legacy") for name in BY_BOTH]


def test_the_benchmarks_have_every_block() -> None:
    assert tuple(BLOCKS) == real_models.BLOCKS


def steps_of(node: onnx.NodeProto) -> str:
    steps = read_program(harness.read_node(node).steps)
    return " ".join(step.name for step in steps if not step.operand or step.operand.startswith("operand_"))


@pytest.mark.parametrize(("name", "exporter"), CASES)
def test_block(name: str, exporter: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    module, inputs = BLOCKS[name](SMALL)
    module.eval()
    model = exported(module, inputs, exporter)
    result = normfuse.optimize(model)
    assert result.report.verification.passed
    path = tmp_path / "optimized.onnx"
    result.save(path)

    nodes = onnx.load(path).graph.node
    found = [steps_of(node) for node in nodes if node.domain == "ai.normfuse"]
    assert Counter(found) == Counter(EXPECTED[name]), [site.message for site in result.report.left]

    with torch.no_grad():
        exact = copy.deepcopy(module).double()(*(each.double() for each in inputs)).numpy()
    feeds = {f"input_{i}": each.numpy() for i, each in enumerate(inputs)}
    plain = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    fused = onnxruntime.InferenceSession(path, sess_options=normfuse.session_options(claim="all"))
    for session in (plain, fused):
        np.testing.assert_allclose(session.run(None, feeds)[0], exact, rtol=1e-5, atol=1e-5)
