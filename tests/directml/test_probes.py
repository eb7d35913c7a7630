"""Tests that need a process of their own: what they ask is decided when the library is registered."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import directml_libraries as libraries
import pytest

FOLDER = Path(__file__).parent
MEMORY = "NORMFUSE_DEVICE_MEMORY"
LAST = "outlive_the_library"  # unregisters it


def run(names: list[str], chosen: str = "", **variables: str) -> None:
    tests = [FOLDER / f"{name}.py" for name in names]
    pytest_ = [sys.executable, "-m", "pytest", "-q", "-m", "not slow", "-p", "no:cacheprovider", "-k", chosen, *tests]
    environment = {**os.environ, **variables}
    done = subprocess.run(pytest_, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr
    assert " passed" in done.stdout


def test_tensors_stay_on_the_gpu() -> None:
    run(["device_memory_probe"], f"not not_offered and not {LAST}", **{MEMORY: "1"})


def test_tensors_outlive_the_library() -> None:
    run(["device_memory_probe"], LAST, **{MEMORY: "1"})


def test_they_do_not_where_they_are_not_offered() -> None:
    run(["device_memory_probe"], "not_offered", **{MEMORY: "0"})


def test_a_machine_with_a_gpu(library: str) -> None:
    shim = str(libraries.build_fake_gpu())
    run(["gpu_probe"], NORMFUSE_LIBRARY=shim, NORMFUSE_BEHIND_FAKE_GPU=library)


@pytest.mark.slow
def test_operators_with_device_memory() -> None:
    """All that islands compute, with outputs that stay on the GPU until they are looked at."""
    names = ["test_islands", "test_island_operators", "test_random_islands", "test_following_chains"]
    # With the option, what is in no island is left to ONNX Runtime.
    run(names, "not test_a_chain_alone_stays_on_the_cpu", **{MEMORY: "1"})
