"""The question that onnxruntime asks about VNNI decides which kernels multiply integers, whatever it is answered."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from platform import machine

import pytest

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))
import onnxruntime_without_avx512 as without

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux" or machine() != "x86_64", reason="asks in another way, or not at all"),
]

PRODUCT = """
import numpy as np, onnx, onnxruntime
graph = "g (uint8[4, 64] a, int8[64, 4] b) => (int32[4, 4] y) { y = MatMulInteger (a, b) }"
model = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["" : 17]> {graph}').SerializeToString()
session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
(y,) = session.run(None, {"a": np.full((4, 64), 255, np.uint8), "b": np.full((64, 4), 127, np.int8)})
print("exact" if (y == 255 * 127 * 64).all() else "saturates")
"""


def outcome(**variables: str) -> str:
    """What a product of uint8 and int8 is in a process with these environment variables."""
    environment = {**os.environ, **variables}
    done = subprocess.run(
        [sys.executable, "-c", PRODUCT], env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_without_vnni_products_saturate(tmp_path: Path) -> None:
    without.write_copy(tmp_path, lambda library: without.without_avx512(library.read_bytes())[0])
    assert outcome(PYTHONPATH=str(tmp_path)) == "saturates"
