"""What a run asks of the GPU on the DirectML path, counted by the native library (option ``directml_report``)."""

from __future__ import annotations

import dataclasses
import json
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import onnxruntime

_WARM_UP_RUNS = 2


@dataclasses.dataclass(frozen=True)
class GpuWork:
    """What one run of a session asks of the GPU, all calls of nodes together."""

    calls: int
    """Of nodes that ran on the GPU."""
    submissions: int
    waits: int
    """Of the CPU for the GPU."""
    dispatches: int
    """Of compiled DirectML graphs."""
    barriers: int
    bytes_up: int
    bytes_down: int
    created: int
    """Buffers, operators, graphs ...: 0 once the shapes were seen."""
    recorded: int
    """Command lists: 0 once the shapes were seen."""

    def __str__(self) -> str:
        """The counts in a line, for people."""
        created = f"{self.created} objects created" if self.created else "nothing created"
        recorded = f", {_count(self.recorded, 'command list')} recorded" if self.recorded else ""
        return (
            f"{_count(self.calls, 'call')} of nodes: {_count(self.submissions, 'submission')}, "
            f"{_count(self.waits, 'wait')}, {_count(self.dispatches, 'dispatch', 'dispatches')}, "
            f"{_count(self.barriers, 'barrier')}, {self.bytes_up:,} bytes up, {self.bytes_down:,} bytes down, "
            f"{created}{recorded}"
        )


def _count(number: int, one: str, several: str = "") -> str:
    return f"{number:,} {one if number == 1 else several or f'{one}s'}"


def count_gpu_work(
    open_session: Callable[[dict[str, Any]], onnxruntime.InferenceSession], sample: Mapping[str, Any]
) -> GpuWork:
    """Count what a run asks of the GPU when its shapes were seen before.

    Args:
        open_session: Makes the session, on DirectML, given the options that it needs besides.
        sample: What it is run on.
    """
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "gpu_work.jsonl"
        session = open_session({"directml_report": report})
        for _ in range(_WARM_UP_RUNS):
            session.run(None, sample)
        report.unlink(missing_ok=True)
        session.run(None, sample)
        lines = report.read_text(encoding="utf-8").splitlines() if report.exists() else []
    calls = [json.loads(line) for line in lines]
    counted = [field.name for field in dataclasses.fields(GpuWork) if field.name != "calls"]
    return GpuWork(calls=len(calls), **{name: sum(call[name] for call in calls) for name in counted})
