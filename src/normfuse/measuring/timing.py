"""Timing ways of running a model against each other.

They take turns, so that whatever else the machine does hits all of them alike; inputs and outputs are bound, so that
allocating them is not measured.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from normfuse.host.versions import import_host
from normfuse.verification import Sample

if TYPE_CHECKING:
    import onnxruntime

Clock = Callable[[], float]
Rounds = list[list[float]]
"""Seconds of the runs of each round."""
Progress = Callable[[str, int, int], None]
"""Called with (what is being done, steps done, steps in all; 0 if not known)."""

_WARM_UP_RUNS = 3
_WARM_UP_SECONDS = 0.1
_SLICE_SECONDS = 0.02
_MINIMUM_ROUNDS = 5
_FINE = 1e-6
# What the median of n numbers may be off by, in 19 of 20 cases, is so many times their middle half / sqrt(n).
_MEDIAN_ERROR = 1.57


@dataclasses.dataclass(frozen=True)
class Ratio:
    """How many times as fast something is."""

    median: float
    """Over the rounds."""
    low: float
    high: float
    """Between these lies the middle half of the rounds."""
    error: float
    """What the median may be off by, as the rounds spread."""


def clock_for(threads: int) -> tuple[Clock, str]:
    """Return the clock to measure with, and what it counts.

    For one thread that is the processor time of the calling thread, where the system tells it finely: what other
    processes take is not in it. Threads that wait for each other take processor time, too, so that several are
    measured by the time that passes.
    """
    if threads == 1 and time.get_clock_info("thread_time").resolution <= _FINE:
        return time.thread_time, "processor time"
    return time.perf_counter, "time that passes"


def bound_run(session: onnxruntime.InferenceSession, sample: Sample) -> Callable[[], None]:
    """Return a function that runs the session once, on bound tensors where all of them can be bound."""
    results = session.run(None, sample)
    arrays = [*sample.values(), *results]
    tensors = all(isinstance(array, np.ndarray) and array.dtype != object for array in arrays)
    # ONNX Runtime refuses to bind an output of another rank than the model gives it, which it does not mind otherwise.
    if not tensors or any(
        output.shape and len(output.shape) != array.ndim
        for output, array in zip(session.get_outputs(), results, strict=True)
    ):
        return lambda: session.run(None, sample)
    host = import_host()
    binding = session.io_binding()
    for name, array in sample.items():
        binding.bind_cpu_input(name, np.ascontiguousarray(array))
    for output, array in zip(session.get_outputs(), results, strict=True):
        binding.bind_ortvalue_output(output.name, host.OrtValue.ortvalue_from_numpy(array))
    return lambda: session.run_with_iobinding(binding)


def take_turns(
    runs: Sequence[Callable[[], None]], seconds: float, tell: Progress, clock: Clock = time.perf_counter
) -> list[Rounds]:
    """Run all of them in turn for so long, and return the rounds of each.

    Args:
        runs: What to run.
        seconds: How long, all together; at least a few rounds are made.
        tell: Called with ("measuring", tenths of seconds done, tenths of seconds in all).
        clock: What a run is timed by.
    """
    counts = [_runs_a_slice(run) for run in runs]
    rounds: list[Rounds] = [[] for _ in runs]
    start = time.perf_counter()
    elapsed = 0.0
    while len(rounds[0]) < _MINIMUM_ROUNDS or elapsed < seconds:
        shift = len(rounds[0]) % len(runs)
        for index in (*range(shift, len(runs)), *range(shift)):
            rounds[index].append([_timed(runs[index], clock) for _ in range(counts[index])])
        elapsed = time.perf_counter() - start
        tell("measuring", min(int(elapsed * 10), int(seconds * 10)), int(seconds * 10))
    return rounds


def ratio_of(base: Rounds, other: Rounds) -> Ratio:
    """Return the time of the one / the time of the other, round by round."""
    ratios = [statistics.median(before) / statistics.median(after) for before, after in zip(base, other, strict=True)]
    low, median, high = statistics.quantiles(ratios, n=4)
    return Ratio(median, low, high, _MEDIAN_ERROR * (high - low) / math.sqrt(len(ratios)))


def _runs_a_slice(run: Callable[[], None]) -> int:
    """Warm up, and return how many runs a slice has."""
    times = [_timed(run, time.perf_counter)]
    while len(times) < _WARM_UP_RUNS and sum(times) < _WARM_UP_SECONDS:
        times.append(_timed(run, time.perf_counter))
    return max(1, min(1000, int(_SLICE_SECONDS / max(statistics.fmean(times), 1e-7))))


def _timed(run: Callable[[], None], clock: Clock) -> float:
    start = clock()
    run()
    return clock() - start
