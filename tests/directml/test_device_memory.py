"""Tensors that stay on the GPU between nodes and runs, where the environment and a session ask for it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import directml_libraries as libraries
import pytest

PROBE = Path(__file__).with_name("device_memory_probe.py")


@pytest.mark.parametrize("variable", ["1", "0"])
def test_device_memory(variable: str) -> None:
    environment = {**os.environ, "NORMFUSE_DEVICE_MEMORY": variable}
    command = [sys.executable, PROBE.with_name("device_memory_scenarios.py"), libraries.build_fake()]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_operators_with_device_memory() -> None:
    """All that islands compute, with outputs that stay on the GPU until they are looked at."""
    names = [
        "test_islands",
        "test_island_operators",
        "test_random_islands",
        "test_following_chains",
    ]
    tests = [str(PROBE.with_name(f"{name}.py")) for name in names]
    # With the option, what is in no island is left to ONNX Runtime.
    left = ["-k", "not test_a_chain_alone_stays_on_the_cpu"]
    command = [sys.executable, "-m", "pytest", "-q", "-m", "not slow", "-p", "no:cacheprovider", *left, *tests]
    environment = {**os.environ, "NORMFUSE_DEVICE_MEMORY": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr
