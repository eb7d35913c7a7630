"""The question that onnxruntime asks about VNNI decides which kernels multiply integers, whatever it is answered."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from platform import machine

import instruction_sets
import pytest
import vnni_in_software
from vnni_in_software import without

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
needs_avx2 = pytest.mark.skipif(not instruction_sets.processor_has("avx2"), reason="this processor lacks avx2")
REFUSED = "an instruction that this processor does not have"


def outcome(**variables: str) -> str:
    """What a product of uint8 and int8 is in a process with these environment variables."""
    environment = {**os.environ, **variables}
    done = subprocess.run(
        [sys.executable, "-c", PRODUCT], env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    if done.returncode == -signal.SIGILL:
        return REFUSED
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_without_vnni_products_saturate(tmp_path: Path) -> None:
    without.write_copy(tmp_path, lambda library: without.without_avx512(library.read_bytes())[0])
    assert outcome(PYTHONPATH=str(tmp_path)) == "saturates"


@needs_avx2
def test_a_processor_with_vnni_in_software(tmp_path: Path) -> None:
    """Told of AVX-VNNI, onnxruntime uses its instructions, and a library carries out what the processor refuses."""
    variables = vnni_in_software.machine_with_vnni(tmp_path)
    assert outcome(PYTHONPATH=variables["PYTHONPATH"]) in ("exact", REFUSED)
    assert outcome(**variables) == "exact"


@needs_avx2
def test_the_instructions(tmp_path: Path) -> None:
    """Where the processor has them, of the processor."""
    folder = vnni_in_software.NATIVE
    sources = [folder / "avx_vnni" / "avx_vnni_test.cc", folder / "check.cc", folder / "guarded_page.cc"]
    program = vnni_in_software.build(tmp_path / "avx_vnni_test", "-I", folder, *sources)
    done = subprocess.run([program], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
