"""The pass in a workflow that Olive itself runs."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

import normfuse
from normfuse.models import transformer_encoder

BIN = Path(sys.executable).parent


def run_olive(folder: Path, *passes: dict[str, object]) -> subprocess.CompletedProcess[str]:
    """Run a workflow on an encoder in ``folder`` as a user does, by Olive's command."""
    onnx.save(transformer_encoder(layers=2, hidden=64, vocabulary=50, positions=32), folder / "model.onnx")
    printed = subprocess.run(
        [sys.executable, "-m", "normfuse.integrations.olive"], capture_output=True, text=True, check=True
    )
    (folder / "package.json").write_text(printed.stdout)
    workflow = {
        "input_model": {"type": "ONNXModel", "model_path": str(folder / "model.onnx")},
        "passes": {f"step_{number}": entry for number, entry in enumerate(passes)},
        "output_dir": str(folder / "out"),
        "cache_dir": str(folder / "cache"),
        "evaluate_input_model": False,
    }
    (folder / "workflow.json").write_text(json.dumps(workflow))
    command = [str(BIN / "olive"), "run", "--config", "workflow.json", "--package-config", "package.json"]
    return subprocess.run(
        [*command, "--disable_telemetry"], cwd=folder, capture_output=True, text=True, check=False, timeout=300
    )


def outputs(model: Path, **options: str) -> np.ndarray:
    rng = np.random.default_rng(0)
    feeds = {"input_ids": rng.integers(0, 50, (2, 7)), "attention_mask": np.ones((2, 7), np.int64)}
    session = onnxruntime.InferenceSession(model, sess_options=normfuse.session_options(**options))
    return session.run(None, feeds)[0]


def test_a_workflow_optimises_a_model(tmp_path: Path) -> None:
    done = run_olive(tmp_path, {"type": "NormfuseOptimization", "require_fused": "7"})
    assert done.returncode == 0, done.stdout + done.stderr
    (result,) = (tmp_path / "out").rglob("*.onnx")
    fused = sum(node.domain == "ai.normfuse" for node in onnx.load(result).graph.node)
    assert fused == 7  # 5 layer normalisations and 2 GELU
    (report,) = (tmp_path / "cache").rglob("normfuse_report.json")
    content = json.loads(report.read_text())
    assert content["verification"]["passed"]
    assert sum(site["fused_into"] is not None for site in content["sites"]) == fused
    np.testing.assert_allclose(outputs(result, claim="all"), outputs(tmp_path / "model.onnx"), atol=1e-5)


def test_after_it_olive_can_go_on(tmp_path: Path) -> None:
    """Its result is an ordinary model of Olive: here it is quantised by Olive's own pass."""
    done = run_olive(
        tmp_path,
        {"type": "NormfuseOptimization"},
        {"type": "OnnxDynamicQuantization", "precision": "int8"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (result,) = (tmp_path / "out").rglob("*.onnx")
    types = [node.op_type for node in onnx.load(result).graph.node]
    assert "MatMulInteger" in types or "DynamicQuantizeLinear" in types
    assert np.abs(outputs(result, claim="all") - outputs(tmp_path / "model.onnx")).max() < 0.2


@pytest.mark.parametrize(("option", "sentence"), [("100", "100 were required"), ("some", "number from 0 on")])
def test_a_gate_that_does_not_hold_ends_the_workflow(option: str, sentence: str, tmp_path: Path) -> None:
    done = run_olive(tmp_path, {"type": "NormfuseOptimization", "require_fused": option})
    assert sentence in done.stdout + done.stderr
    assert not list((tmp_path / "out").rglob("*.onnx"))
