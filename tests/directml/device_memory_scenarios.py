"""Plays scenarios of device_memory_probe.py: ``python device_memory_scenarios.py FAKE_DIRECTML SCENARIO ...``.

One after the other in one process, which takes half a second for its imports; those that leave something changed behind
them each in a process of its own. All processes are forked before onnxruntime is imported, which starts threads.
"""

from __future__ import annotations

import importlib
import os
import sys
import traceback

import numpy as np  # noqa: F401 -- for the processes to come, as the next two
import onnx  # noqa: F401
import pytest  # noqa: F401

# The library is unregistered; the fake's GPU shares the CPU's memory from then on.
ALONE = ("tensors_outlive_the_library", "unified_memory")


def main(scenarios: list[str]) -> None:
    alone = [[scenario] for scenario in scenarios if scenario in ALONE]
    together = [scenario for scenario in scenarios if scenario not in ALONE]
    failed = []
    for part in ([together] if together else []) + alone:
        child = os.fork()
        if not child:
            play(part)
            return  # to the end of the process, at which things are let go of
        _, status = os.waitpid(child, 0)
        if status:
            failed.append(f"{', '.join(part)} (status {status})")
    if failed:
        sys.exit(f"failed: {'; '.join(failed)}")


def play(scenarios: list[str]) -> None:
    probe = importlib.import_module("device_memory_probe")
    wrong = []
    for scenario in scenarios:
        print(scenario, file=sys.stderr, flush=True)  # the last one where the process is ended
        try:
            probe.play(scenario)
        except Exception:
            traceback.print_exc()
            wrong.append(scenario)
    if wrong:
        sys.exit(f"failed: {', '.join(wrong)}")


if __name__ == "__main__":
    main(sys.argv[2:])
