"""Blocks of today's models: what stands beside their normalisations and activations is in their fused nodes."""

from __future__ import annotations

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

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))

import real_models

# Of each fused node: its operator, its activation, steps before and behind the normalisation or the activation.
NORM = ("FusedNormalization", "Identity", "", "")
GATED_SUM = ("FusedNormalization", "Identity", "Mul", "")
GATED_SILU = ("FusedActivation", "Swish", "", "Mul")
SNAKE = ("FusedActivation", "SinSquared", "", "Mul Add")


def alone(name: str) -> tuple[str, str, str, str]:
    return ("FusedActivation", name, "", "")


EXPECTED = {
    "llama_block": [NORM, NORM, GATED_SILU],
    "qwen3_block": [NORM, NORM, NORM, NORM, GATED_SILU],
    "dit_block": [alone("Swish"), NORM, GATED_SUM, alone("GeluTanh")],
    "convnext_v2_block": [NORM, alone("Gelu")],
    "dinov2_block": [NORM, GATED_SUM, alone("Gelu")],
    "sdxl_resblock": [*[("FusedNormalization", "Swish", "", "")] * 2, alone("Swish")],
    "mamba2_output": [alone("Swish"), GATED_SUM],
    "kokoro_block": [*[("FusedNormalization", "Identity", "", "Add")] * 2, SNAKE, SNAKE],
}
# The legacy exporter cuts a modulation into parts whose sizes it computes at run time; these have none.
BY_BOTH = [name for name in BLOCKS if name not in ("dit_block", "sdxl_resblock", "kokoro_block")]
CASES = [(name, "dynamo") for name in BLOCKS] + [(name, "legacy") for name in BY_BOTH]


def test_the_benchmarks_have_every_block() -> None:
    assert tuple(BLOCKS) == real_models.BLOCKS


def steps_of(node: onnx.NodeProto) -> tuple[str, str, str, str]:
    op, _, _, attributes = harness.read_node(node)
    before, behind = (attributes.get(key, "") for key in ("steps_before", "steps_behind"))
    return op, attributes.get("activation", "Identity"), before, behind


@pytest.mark.parametrize(("name", "exporter"), CASES)
def test_block(name: str, exporter: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    module, inputs = BLOCKS[name](SMALL)
    module.eval()
    model = exported(module, inputs, exporter)
    result = normfuse.optimize(model)
    assert result.report.verification is not None
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
