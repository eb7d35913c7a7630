"""Tensors that stay on the GPU between nodes and runs, where the environment and a session ask for it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import directml_libraries as libraries
import pytest

PROBE = Path(__file__).with_name("device_memory_probe.py")
SCENARIOS = [
    "states_go_around",
    "outputs_that_are_given",
    "runs_without_binding",
    "inputs_that_stay",
    "outputs_are_read_at_once",
    "between_islands",
    "element_types",
    "integers_are_checked",
    "shapes_from_the_gpu",
    "initialisers_that_are_inputs",
    "control_flow",
    "threads_and_sessions",
    "no_memory",
    "every_call_that_can_fail",
    "a_lost_gpu",
    "two_gpus",
    "tensors_outlive_sessions",
    "tensors_outlive_the_library",
    "what_was_never_written",
    "unified_memory",
    "chains_alone",
    "other_sessions",
    "refused",
]


@pytest.mark.parametrize(("variable", "scenarios"), [("1", SCENARIOS), ("0", ["not_offered"])])
def test_device_memory(variable: str, scenarios: list[str]) -> None:
    environment = {**os.environ, "NORMFUSE_DEVICE_MEMORY": variable}
    command = [sys.executable, PROBE.with_name("device_memory_scenarios.py"), libraries.build_fake(), *scenarios]
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
