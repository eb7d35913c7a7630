"""What a node on DirectML asks of the GPU: one submission and one wait a call, nothing new for shapes seen."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import directml_libraries as libraries
import harness
import numpy as np
import onnx
import pytest
from directml_islands import OUT_OF_MEMORY, FakeGpu, session_of

from normfuse import meaning
from normfuse.meaning import evaluate

X = np.random.default_rng(5).normal(size=(6, 8)).astype(np.float32)
# Two nodes, which something that the execution provider leaves alone keeps apart. A row of X has 32 bytes.
MODEL = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["": 20]>
    apart (float[N, 8] x) => (float[N, 8] y) <float[8] s = {1, 2, 3, 4, 5, 6, 7, 8}> {
        n = LayerNormalization <axis = -1> (x, s)
        a = Relu(n)
        c = Atan(a)
        m = LayerNormalization <axis = -1> (c, s)
        y = Tanh(m)
    }""")
for node in MODEL.graph.node:
    node.name = f"{node.op_type} of {node.input[0]}"
COUNTED = ("submissions", "waits", "dispatches", "barriers", "bytes_up", "bytes_down")
CREATED = ("buffers", "descriptor_heaps", "operators", "graphs", "lists")
ONE_CALL = {"submissions": 1, "waits": 1, "dispatches": 1, "barriers": 3, "created": 0, "recorded": 0}


def counts(fake: Path) -> dict[str, int]:
    return {name: libraries.counted(str(fake), name) for name in (*COUNTED, *CREATED, "recordings")}


def read(report: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in report.read_text("utf-8").splitlines()]
    report.unlink()
    return lines


def test_the_library_counts_what_direct3d_is_asked_for(tmp_path: Path) -> None:
    fake, report = libraries.build_fake(), tmp_path / "gpu work ß.jsonl"
    options = {"directml_library": fake, "d3d12_library": fake, "directml_report": report}
    session = harness.create_session(MODEL, "ep", backend="directml", **options)
    for rows in (6, 6, 4, 6, 4):
        before = counts(fake)
        session.run(None, {"x": X[:rows]})
        asked = {name: value - before[name] for name, value in counts(fake).items()}
        calls = read(report)
        assert len(calls) == len(harness.ep_groups(session)) == 2
        assert len({call["node"] for call in calls}) == 2
        assert {name: sum(call[name] for call in calls) for name in COUNTED} == {name: asked[name] for name in COUNTED}
        assert sum(call["recorded"] for call in calls) == asked["recordings"]
        created = sum(call["created"] for call in calls)
        asked_for = sum(asked[name] for name in CREATED)
        # For new shapes it counts an initialiser for each node, and binding tables, which are kept for others.
        assert asked_for + len(calls) <= created <= asked_for + 2 * len(calls) if asked_for else created == 0
    # The shapes of the last two runs were seen before.
    for call in calls:
        assert {name: call[name] for name in ONE_CALL} == ONE_CALL
        assert call["bytes_up"] == call["bytes_down"] == 256  # 4 rows; tensors start at multiples of 256 bytes


def normalised(x: meaning.Array) -> meaning.Array:
    scale = np.arange(1, 9, dtype=np.float32)
    return evaluate("Normalize axes=-1; Mul scale", {"X": x, "scale": scale})["Y"].exact


def test_a_call_that_the_gpu_fails_has_its_result(capfd: pytest.CaptureFixture[str], gpu: FakeGpu) -> None:
    """It runs on the CPU path, ONNX Runtime logs why, and the next call is the GPU's again."""
    session = session_of(MODEL, gpu.options)
    expected = np.tanh(normalised(np.arctan(np.maximum(normalised(X), 0)).astype(np.float32)))
    gpu.control("fail:CreateCommittedResource", OUT_OF_MEMORY)
    np.testing.assert_allclose(session.run(None, {"x": X})[0], expected, rtol=0, atol=4e-5)
    assert "runs on the CPU path: DirectML path: ID3D12Device::CreateCommittedResource" in capfd.readouterr().err
    before = gpu["dispatches"]
    np.testing.assert_allclose(session.run(None, {"x": X})[0], expected, rtol=0, atol=4e-5)
    assert gpu["dispatches"] > before
    assert "CPU path" not in capfd.readouterr().err


def command(folder: Path, *arguments: str) -> dict[str, Any]:
    """The command's data, on a system whose loader finds DirectML by its name."""
    fake = libraries.build_fake()
    for name in ("libd3d12.so", "libdirectml.so"):
        (folder / name).symlink_to(fake)
    environment = {**os.environ, "LD_LIBRARY_PATH": str(folder)}
    done = subprocess.run(
        [sys.executable, "-m", "normfuse", *arguments, "--backend", "directml", "--json"],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    data: dict[str, Any] = json.loads(done.stdout)
    return data


def test_bench_says_what_a_run_asks_for(tmp_path: Path) -> None:
    onnx.save(MODEL, tmp_path / "model.onnx")
    arguments = "bench", str(tmp_path / "model.onnx"), "--claim", "all", "--seconds", "0.1", "--dim", "N=6"
    timings = {timing["name"]: timing["gpu_work"] for timing in command(tmp_path, *arguments)["timings"]}
    both = {**{name: 2 * count for name, count in ONE_CALL.items()}, "calls": 2, "bytes_up": 512, "bytes_down": 512}
    nothing = None
    assert timings == {
        "original": nothing,
        "original + normfuse": both,
        "rewritten": nothing,
        "rewritten + normfuse": both,
    }


def test_doctor_says_what_a_call_asks_for(tmp_path: Path) -> None:
    finding = command(tmp_path, "doctor")["findings"][-1]
    assert finding["name"] == "DirectML"
    calls = "1 call of nodes: 1 submission, 1 wait, 1 dispatch, 3 barriers, "
    assert finding["text"].endswith(calls + "1,024 bytes up, 1,024 bytes down, nothing created")


def test_doctor_says_that_directml_is_missing() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "normfuse", "doctor", "--backend", "directml", "--json"],
        capture_output=True,
        text=True,
        check=False,
    )
    finding = json.loads(done.stdout)["findings"][-1]
    assert (done.returncode, finding["name"], finding["ok"]) == (1, "DirectML", False)
    assert "cannot load" in finding["text"]


@pytest.mark.parametrize("backend", ["cpu", "directml"])
def test_a_report_that_cannot_be_written_is_refused(backend: str, tmp_path: Path) -> None:
    """By the library, too, when the session is created."""
    import onnxruntime as ort

    import normfuse

    fake = str(libraries.build_fake())
    options = ort.SessionOptions()
    given = {"backend": backend, "directml_library": fake, "d3d12_library": fake}
    given["directml_report"] = str(tmp_path / "no such folder" / "report")
    options.add_provider_for_devices(normfuse.register(), given)
    with pytest.raises(Exception, match=r"cannot write directml_report .* name a file in a folder that exists"):
        ort.InferenceSession(MODEL.SerializeToString(), options, enable_fallback=0)
