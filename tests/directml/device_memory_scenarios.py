"""Plays scenarios of device_memory_probe.py: ``python device_memory_scenarios.py FAKE_DIRECTML SCENARIO ...``.

Each in a process of its own from the import of onnxruntime, which starts threads, to its end. What can be imported
before it forks is, as imports take most of a scenario's time.
"""

from __future__ import annotations

import importlib
import os
import sys

import numpy as np  # noqa: F401 -- for the processes to come, as the next two
import onnx  # noqa: F401
import pytest  # noqa: F401


def main(scenarios: list[str]) -> None:
    failed = []
    for scenario in scenarios:
        child = os.fork()
        if not child:
            importlib.import_module("device_memory_probe").play(scenario)
            return  # to the end of the process, at which things are let go of
        _, status = os.waitpid(child, 0)
        if status:
            failed.append(f"{scenario} (status {status})")
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main(sys.argv[2:])
