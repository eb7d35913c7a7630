"""The library chooses its instruction set when it is loaded, so each one needs a process of its own."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
CPU_FLAGS = {"avx2": {"avx2", "fma", "f16c"}, "avx512": {"avx512f", "avx512bw", "avx512dq", "avx512vl"}}


def machine_has(isa: str) -> bool:
    if platform.machine() in ("aarch64", "arm64"):
        return isa in ("neon", "baseline")
    cpuinfo = Path("/proc/cpuinfo")
    if isa == "baseline":
        return True
    if isa == "neon" or not cpuinfo.exists():
        return False
    flags = next(line for line in cpuinfo.read_text().splitlines() if line.startswith("flags")).split()
    return set(flags) >= CPU_FLAGS[isa]


AVAILABLE = [isa for isa in ("avx512", "avx2", "neon", "baseline") if machine_has(isa)]

SELECTED = """
import normfuse
print({device.ep_metadata["instruction_set"] for device in normfuse.register()})
"""


def python(*arguments: str, isa: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "NORMFUSE_ISA": isa}
    return subprocess.run(
        [sys.executable, *arguments], env=environment, capture_output=True, text=True, timeout=550, check=False
    )


@pytest.mark.parametrize("isa", AVAILABLE)
def test_the_variable_chooses_the_instruction_set(isa: str) -> None:
    done = python("-c", SELECTED, isa=isa)
    assert done.stdout.strip() == repr({isa}), done.stderr


@pytest.mark.parametrize("isa", ["sse9", "", "neon" if "avx2" in AVAILABLE else "avx2"])
def test_an_unknown_instruction_set_is_an_error_that_names_it(isa: str) -> None:
    done = python("-c", SELECTED, isa=isa)
    if isa == "":  # an empty variable is as good as none
        assert done.returncode == 0, done.stderr
    else:
        assert done.returncode != 0
        assert isa in done.stderr
        assert "NORMFUSE_ISA" in done.stderr


@pytest.mark.parametrize("isa", AVAILABLE[1:])
def test_everything_again_on_a_lower_instruction_set(isa: str) -> None:
    """AVAILABLE[0] is what the other tests of this run use."""
    options = ["-q", "--no-header", "-m", "every_isa", "-p", "no:cacheprovider", "--hypothesis-profile=short"]
    done = python("-m", "pytest", *options, str(HERE), isa=isa)
    assert done.returncode == 0, done.stdout[-4000:]
