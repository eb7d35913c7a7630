"""The instruction sets that kernels are compiled for, and which of them this processor has.

The library chooses when it is loaded, by NORMFUSE_ISA where that is set: each one needs a process of its own.
"""

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

CPU_FLAGS = {"avx2": {"avx2", "fma", "f16c"}, "avx512": {"avx512f", "avx512bw", "avx512dq", "avx512vl"}}
# Best first, as the library chooses.
OF_ARCHITECTURE = ("neon", "baseline") if platform.machine() in ("aarch64", "arm64") else ("avx512", "avx2", "baseline")


def processor_has(isa: str) -> bool:
    if isa not in CPU_FLAGS:
        return isa in OF_ARCHITECTURE
    cpuinfo = Path("/proc/cpuinfo")
    if isa not in OF_ARCHITECTURE or not cpuinfo.exists():
        return False
    flags = next(line for line in cpuinfo.read_text().splitlines() if line.startswith("flags")).split()
    return set(flags) >= CPU_FLAGS[isa]


AVAILABLE = [isa for isa in OF_ARCHITECTURE if processor_has(isa)]
# What the tests of this process run on.
IN_USE = os.environ.get("NORMFUSE_ISA") or AVAILABLE[0]


def each(*names: str) -> pytest.MarkDecorator:
    """Parametrises ``isa``; what this processor lacks shows as skipped."""
    params = []
    for isa in names:
        lacks = pytest.mark.skipif(isa not in AVAILABLE, reason=f"this processor lacks {isa}")
        params.append(pytest.param(isa, marks=lacks))
    return pytest.mark.parametrize("isa", params)


def python(*arguments: str, isa: str) -> subprocess.CompletedProcess[str]:
    """A Python process on this instruction set."""
    environment = {**os.environ, "NORMFUSE_ISA": isa}
    return subprocess.run(
        [sys.executable, *arguments], env=environment, capture_output=True, text=True, timeout=550, check=False
    )
