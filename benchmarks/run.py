"""Measure normfuse against its peers: ``python benchmarks/run.py [--quick] [--check] [--repeat N] [--output FOLDER]``.

Every job runs on ONNX Runtime's CPU execution provider, on normfuse, and on OpenVINO and PyTorch where they are
installed, in turns within one process, with one thread and with two. A time is the median over the rounds of a turn's
fastest call, a ratio the median over the rounds of the ratio within each round, beside the middle half of those: what
else runs on the machine disturbs both sides of a ratio. With one thread it is processor time, of which neighbours take
only what they take of the caches and of memory. The cost of calling a session without any work is measured as
well and taken off (``overhead`` in the JSON). GB/s counts each input and output byte of the fused job once; its share
is of a copy that moves the same bytes in the same round. The error is against float64, by the tests' oracle: the
largest of |got - exact| / max(1, |exact|), or quantisation steps for an integer output.

With ``--repeat`` all of that is done N times, and each job is reported by the run whose ratio to ORT is the median.

Writes results.json, results.md and results.svg. ``--check`` fails where a figure is below benchmarks/floors.toml.
"""

import argparse
import json
import statistics
import sys
import time
import tomllib
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "tests")]

import instruction_sets  # noqa: E402
import peers  # noqa: E402
import programs  # noqa: E402
import report  # noqa: E402
from jobs import Arrays, Job, all_jobs  # noqa: E402

from normfuse import meaning  # noqa: E402

COPY = "copy"
SAMPLE = 400_000  # elements whose error is measured
REST = 0.002  # seconds between two peers
REST_OF_THREADS = 0.03  # where the one before has threads that spin for a while


@dataclass
class Row:
    """What one peer did on one job: seconds a call, without the overhead of a call."""

    peer: str
    seconds: float
    spread: float  # half the distance between the quartiles, relative
    overhead: float
    error: float | None = None
    note: str = ""


@dataclass
class Result:
    job: str
    threads: int
    bytes: int
    elements: int
    rows: dict[str, Row] = field(default_factory=dict)
    ratios: dict[str, float] = field(default_factory=dict)  # peer's time / normfuse's, median over rounds
    middle: dict[str, tuple[float, float]] = field(default_factory=dict)  # the quartiles of those of the rounds
    runs: list[float] = field(default_factory=list)  # the ratio to ORT in every run, the lowest first

    def gigabytes_per_second(self, peer: str) -> float:
        return self.bytes / self.rows[peer].seconds / 1e9

    @property
    def share(self) -> float:
        """Speed of normfuse as a share of the copy's, median over rounds."""
        return self.ratios[COPY]


def timed(call: Callable[[], None], count: int, clock: Callable[[], float]) -> float:
    """Seconds of the fastest of ``count`` calls: what else the machine does can only add to a call."""
    fastest = float("inf")
    for _ in range(count):
        started = clock()
        call()
        fastest = min(fastest, clock() - started)
    return fastest


def measure(
    calls: dict[str, Callable[[], None]], rounds: int, slice_seconds: float, threads: int
) -> dict[str, list[float]]:
    """Seconds of a call in every round. Peers take turns, in another order each round."""
    clock = time.process_time if threads == 1 else time.perf_counter
    counts = {}
    for name, call in calls.items():
        call()
        counts[name] = max(3, int(slice_seconds / max(timed(call, 2, clock), 1e-7)))
    times: dict[str, list[float]] = {name: [] for name in calls}
    names = list(calls)
    for turn in range(rounds):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            time.sleep(REST if threads == 1 else REST_OF_THREADS)
            calls[name]()
            times[name].append(timed(calls[name], counts[name], clock))
    return times


def spread(times: list[float]) -> float:
    if len(times) < 3:
        return 0.0
    low, middle, high = statistics.quantiles(times, n=4)
    return (high - low) / 2 / middle


def sample(job: Job) -> tuple[Arrays, int]:
    """The job's inputs cut to about SAMPLE elements along a dimension that it does not reduce, and how many entries."""
    x = job.inputs["X"]
    count = min(x.shape[job.sampled], max(1, SAMPLE * x.shape[job.sampled] // x.size))
    cut = set(job.activations)
    if job.attributes.get("x_axis") == 0 == job.sampled:
        cut |= {"x_scale", "x_zero_point"}
    return {
        k: v.take(range(count), min(job.sampled, v.ndim - 1)) if k in cut else v for k, v in job.inputs.items()
    }, count


def error_of(job: Job, got: np.ndarray[Any, Any]) -> float:
    inputs, count = sample(job)
    expected = programs.evaluate(job.operator, inputs, job.attributes)["Y"]
    got = got.take(range(count), job.sampled).astype(np.float64)
    if expected.code in meaning.INTEGER_RANGE:
        return float(np.abs(got - expected.stored()).max())
    return float((np.abs(got - expected.exact) / np.maximum(1, np.abs(expected.exact))).max())


def peers_of(job: Job, everybody: list[Any]) -> list[Any]:
    return everybody + [peers.Peer(label, off) for label, off in job.variants.items()]


def run_job(
    job: Job, threads: int, everybody: list[Any], overheads: dict[str, float], rounds: int, slice_seconds: float
) -> Result:
    prepared, failures = {}, {}
    for peer in peers_of(job, everybody):
        try:
            prepared[peer.label] = peer.prepare(job, threads)
        except Exception as error:
            if peer.label in ("ORT", "normfuse"):
                raise
            failures[peer.label] = f"{type(error).__name__}: {str(error).splitlines()[0]}"
    for one in prepared.values():
        one.call()
    results = {label: one.outputs() for label, one in prepared.items()}
    moved = sum(job.inputs[name].nbytes for name in job.inputs) + sum(v.nbytes for v in results["normfuse"].values())
    calls = {label: one.call for label, one in prepared.items()} | {COPY: peers.copy_of(moved)}
    times = measure(calls, rounds, slice_seconds, threads)

    result = Result(job.name, threads, moved, job.inputs["X"].size)
    for label, values in times.items():
        overhead = overheads.get(label, overheads["ORT"] if label.startswith("ORT") else 0.0)
        times[label] = [max(value - overhead, value / 10) for value in values]
        error = None if label == COPY else error_of(job, results[label]["Y"])
        note = "" if label == COPY else prepared[label].note
        result.rows[label] = Row(label, statistics.median(times[label]), spread(times[label]), overhead, error, note)
    for label, values in times.items():
        ratios = [a / b for a, b in zip(values, times["normfuse"], strict=True)]
        low, result.ratios[label], high = statistics.quantiles(ratios, n=4)
        result.middle[label] = (low, high)
    for label, reason in failures.items():
        print(f"  {label} does not run {job.name}: {reason}", file=sys.stderr)
    return result


def of_median_run(runs: list[Result]) -> Result:
    """Of one job's results the one whose ratio to ORT is the median, the lower one where two are."""
    runs = sorted(runs, key=lambda run: run.ratios["ORT"])
    return replace(runs[(len(runs) - 1) // 2], runs=[run.ratios["ORT"] for run in runs])


def call_overheads(everybody: list[Any], threads: int) -> dict[str, float]:
    calls = {peer.label: peer.overhead(threads) for peer in everybody}
    return {name: min(values) for name, values in measure(calls, 7, 0.005, threads).items()}


def below_floors(results: list[Result], floors: dict[str, dict[str, dict[str, float]]], isa: str) -> list[str]:
    """One sentence for every figure below its floor of this instruction set, and for every floor without a job."""
    known = {job.name for job in all_jobs()}
    found = [f"floors.toml names a job that does not exist: {name}" for name in floors if name not in known]
    for result in results:
        floor = floors.get(result.job, {}).get(isa, {}) if result.threads == 1 else {}
        for key, value in {"ratio": result.ratios["ORT"], "share": result.share}.items():
            if value < floor.get(key, 0):
                found.append(f"{result.job}: {key} {value:.2f} is below its floor {floor[key]}")
    return found


def positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a number of runs")
    return value


def run_all(jobs: list[Job], arguments: argparse.Namespace) -> list[Result]:
    rounds, slice_seconds = (5, 0.004) if arguments.quick else (31, 0.02)
    everybody = peers.installed(arguments.peers)
    results = []
    for threads in arguments.threads:
        overheads = call_overheads(everybody, threads)
        for job in jobs:
            result = run_job(job, threads, everybody, overheads, rounds, slice_seconds)
            results.append(result)
            print(f"{threads} {job.name}: {result.ratios['ORT']:.2f} x ORT, {result.share:.0%} of a copy", flush=True)
    return results


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition(":")[0])
    parser.add_argument("--quick", action="store_true", help="fewer and shorter rounds: under a minute")
    parser.add_argument("--check", action="store_true", help="fail where a figure is below benchmarks/floors.toml")
    parser.add_argument("--repeat", type=positive, default=1, metavar="N", help="run N times and report median runs")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--jobs", default="", help="only jobs whose name contains this")
    parser.add_argument("--peers", nargs="*", help="of OpenVINO and PyTorch only these (default: what is installed)")
    parser.add_argument(
        "--output", type=Path, default=HERE.parent / "build" / "benchmarks", help="folder of the results"
    )
    return parser.parse_args()


def main() -> int:
    arguments = parse_arguments()
    jobs = [job for job in all_jobs() if arguments.jobs in job.name]
    if not jobs:
        print(f"benchmarks/run.py: no job's name contains {arguments.jobs!r}", file=sys.stderr)
        return 2
    runs = []
    for number in range(1, arguments.repeat + 1):
        if arguments.repeat > 1:
            print(f"run {number} of {arguments.repeat}", flush=True)
        runs.append(run_all(jobs, arguments))
    results = [of_median_run(list(each)) for each in zip(*runs, strict=True)]

    machine = report.machine()
    data = {
        "machine": machine,
        "versions": peers.versions(),
        "quick": arguments.quick,
        "results": [asdict(r) for r in results],
    }
    arguments.output.mkdir(parents=True, exist_ok=True)
    (arguments.output / "results.json").write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    (arguments.output / "results.md").write_text(report.markdown(results, machine, peers.versions()), encoding="utf-8")
    (arguments.output / "results.svg").write_text(report.plot(results), encoding="utf-8")
    print(f"written to {arguments.output}")
    if not arguments.check:
        return 0
    floors = tomllib.loads((HERE / "floors.toml").read_text(encoding="utf-8"))["floor"]
    found = below_floors(results, floors, instruction_sets.IN_USE)
    print("\n".join(found) if found else "every figure is above its floor")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
