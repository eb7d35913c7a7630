"""The onnxruntime that sees no VNNI: the question that it is answered decides which kernels multiply integers."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
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
# mov eax, 16 (AVX-VNNI and nothing else); xor ecx, ecx; xor edx, edx; xor ebx, ebx; nop
SAYS_VNNI = b"\xb8\x10\0\0\0\x31\xc9\x31\xd2\x31\xdb\x90"


def hidden(library: bytes) -> bytes:
    return without.without_avx512(library)[0]


def said(library: bytes) -> bytes:
    answered = bytearray(hidden(library))
    for question in without.SUBLEAF_QUESTION.finditer(library):
        answered[question.start() : question.end()] = SAYS_VNNI
    return bytes(answered)


def outcome(change: Callable[[bytes], bytes], folder: Path) -> str:
    """What a product of uint8 and int8 is on a changed copy."""
    copy = folder / "onnxruntime"
    shutil.copytree(without.installed(), copy, ignore=shutil.ignore_patterns("__pycache__"))
    for library in copy.glob("capi/*.so*"):
        library.write_bytes(change(library.read_bytes()))
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    done = subprocess.run(
        [sys.executable, "-c", PRODUCT], env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    if done.returncode == -signal.SIGILL:
        return "an instruction that this processor does not have"
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_question_decides(tmp_path: Path) -> None:
    """A processor that answers it with AVX-VNNI is given the instructions of AVX-VNNI, whether it has them or not."""
    assert outcome(hidden, tmp_path / "hidden") == "saturates"
    assert outcome(said, tmp_path / "said") in ("exact", "an instruction that this processor does not have")
