"""Plays the scenarios of device_memory_probe.py: ``python device_memory_scenarios.py FAKE_DIRECTML``.

One after the other in one process, which takes half a second for its imports; those that leave something changed behind
them each in a process of its own. All processes are forked before onnxruntime is imported, which starts threads.
"""

from __future__ import annotations

import importlib
import inspect
import os
import sys
import traceback

import numpy as np  # noqa: F401 -- for the processes to come, as the next two
import onnx  # noqa: F401
import pytest  # noqa: F401

# The library is unregistered; the fake's GPU shares the CPU's memory from then on.
ALONE = ("tensors_outlive_the_library", "unified_memory")
NOT_OFFERED = "not_offered"


def main(parts: list[str]) -> None:
    """Each part in a process: a scenario, or all others where it has no name."""
    failed = []
    for part in parts:
        child = os.fork()
        if not child:
            play(part)
            return  # to the end of the process, at which things are let go of
        _, status = os.waitpid(child, 0)
        if status:
            failed.append(f"{part or 'together'} (status {status})")
    if failed:
        sys.exit(f"failed: {'; '.join(failed)}")


def play(part: str) -> None:
    probe = importlib.import_module("device_memory_probe")
    # Scenarios are what takes no arguments.
    functions = inspect.getmembers(probe, lambda it: inspect.isfunction(it) and not inspect.signature(it).parameters)
    scenarios = [name for name, _ in functions if name not in (*ALONE, NOT_OFFERED)]
    assert len(scenarios) > 20
    wrong = []
    for scenario in [part] if part else scenarios:
        print(scenario, file=sys.stderr, flush=True)  # the last one where the process is ended
        try:
            probe.play(scenario)
        except Exception:
            traceback.print_exc()
            wrong.append(scenario)
    if wrong:
        sys.exit(f"failed: {', '.join(wrong)}")


if __name__ == "__main__":
    main(["", *ALONE] if os.environ["NORMFUSE_DEVICE_MEMORY"] == "1" else [NOT_OFFERED])
