"""What normfuse adds to creating a session.

    python benchmarks/sessions.py [--model] [--nodes N ...] [--starts FILE ...] [--json FILE]

``--starts`` creates sessions on these ONNX files, each in a process of its own: on ONNX Runtime alone, with normfuse
for the first time, and with normfuse on what the cache of prepared models keeps. Goals, as processor time (on a machine
with other work, seconds on the clock say little): 4 times ONNX Runtime's and 0.5 s, and 1.1 times ONNX Runtime's and
50 ms; peak memory of the first is ONNX Runtime's, 1.2 times the model and 60 MiB. It fails where one is missed. Modules
are compiled to bytecode before, as those of an installation are: that takes a third of a first start.

``--model`` creates sessions on the U-Net of the real models (2,103 nodes): original and rewritten, each on ONNX
Runtime's CPU provider and with normfuse, in turns. It fails where normfuse adds more than 5 % or 20 ms, whichever is
larger, to ONNX Runtime's own time.

``--nodes`` creates sessions on generated models of so many nodes, layers of a quantised transformer, and prints the
time inside GetCapability and Compile, which the execution provider logs. With no optimisation of ONNX Runtime's (its
level "disable") and at its default level, and with what is claimed by default and everything. A linear time is the same
number of microseconds a node. ONNX Runtime's own time grows faster: its default level is measured up to 10,000 nodes,
and compiling everything, where it goes through the whole graph for each fused node, up to 3,000.

Without any of these, the first two are measured.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnx
import onnxruntime

import normfuse

sys.path.insert(0, str(Path(__file__).resolve().parent))

from measure import Row, child, table, write_json
from real_models import cases
from rewriting import layers

MODEL = "terrain-unet"
SHARE, SECONDS = 0.05, 0.020  # what normfuse may add
LARGEST_AT_DEFAULT, LARGEST_COMPILED = 10_000, 3_000
INFORMATION = 1  # the severity of the lines that the execution provider logs its times with
LOGGED = re.compile(r"normfuse: (GetCapability|Compile) of (\d+) [a-z ]+ took (\d+) us")


def seconds_to_create(path: Path, with_normfuse: bool) -> float:
    """Create a session from a file."""
    started = time.perf_counter()
    if with_normfuse:
        onnxruntime.InferenceSession(str(path), normfuse.session_options())
    else:
        onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    return time.perf_counter() - started


def creation(runs: int, folder: Path) -> list[Row]:
    """The U-Net, original and rewritten, without and with normfuse."""
    (case,) = cases(folder, [MODEL])
    rewritten = folder / "rewritten.onnx"
    started = time.perf_counter()
    normfuse.optimize(case.path, verify=False).save(rewritten)
    print(f"{MODEL}: rewritten without verification in {time.perf_counter() - started:.1f} s", file=sys.stderr)
    ways = [(path, ours) for path in (case.path, rewritten) for ours in (False, True)]
    times: dict[tuple[Path, bool], list[float]] = {way: [] for way in ways}
    for way in ways:
        seconds_to_create(*way)  # not counted: the file is read from the disk, libraries are loaded
    for turn in range(runs):
        for way in (*ways[turn % len(ways) :], *ways[: turn % len(ways)]):
            times[way].append(seconds_to_create(*way))
    return [
        _creation_row(label, times[path, False], times[path, True]) for label, path in _labels(case.path, rewritten)
    ]


def _labels(original: Path, rewritten: Path) -> list[tuple[str, Path]]:
    return [(f"{MODEL}, original", original), (f"{MODEL}, rewritten", rewritten)]


def _creation_row(label: str, without: list[float], with_normfuse: list[float]) -> Row:
    """Medians, and the median over the turns of what normfuse added."""
    added = [ours - theirs for theirs, ours in zip(without, with_normfuse, strict=True)]
    low, middle, high = statistics.quantiles(added, n=4)
    theirs = statistics.median(without)
    return {
        "model": label,
        "ort_seconds": theirs,
        "normfuse_seconds": statistics.median(with_normfuse),
        "added_seconds": middle,
        "added_quartiles": (low, high),
        "allowed_seconds": max(SHARE * theirs, SECONDS),
    }


def creation_table(rows: list[Row]) -> str:
    lines = []
    for row in rows:
        low, high = row["added_quartiles"]
        added = f"{1e3 * row['added_seconds']:.0f} ({1e3 * low:.0f} to {1e3 * high:.0f})"
        cells = [row["model"], f"{1e3 * row['ort_seconds']:.0f}", f"{1e3 * row['normfuse_seconds']:.0f}", added]
        lines.append([*cells, f"{1e3 * row['allowed_seconds']:.0f}"])
    return table(("session on", "ONNX Runtime, ms", "with normfuse, ms", "added, ms", "allowed, ms"), lines)


# --- our own time ----------------------------------------------------------------------------------------------------


def create_and_log(path: str, level: str, claim: str) -> None:
    """Create one session whose log, on standard error, has the times. This is what the child process does."""
    options = onnxruntime.SessionOptions()
    levels = onnxruntime.GraphOptimizationLevel
    options.graph_optimization_level = levels.ORT_DISABLE_ALL if level == "disable" else levels.ORT_ENABLE_ALL
    options.log_severity_level = INFORMATION
    normfuse.session_options(options, claim=claim)
    started = time.perf_counter()
    onnxruntime.InferenceSession(path, options)
    print(time.perf_counter() - started)


def own_time(path: Path, level: str, claim: str, runs: int) -> Row:
    """Seconds of a session in all, and in GetCapability and Compile: medians, each run a process of its own."""
    totals: list[float] = []
    spent: dict[str, list[float]] = {"GetCapability": [], "Compile": []}
    fused = 0
    for _ in range(runs):
        done = child(__file__, "--create", path, level, claim)
        totals.append(float(done.stdout))
        lines = [(call, int(count), int(us) / 1e6) for call, count, us in LOGGED.findall(done.stderr)]
        fused = sum(count for call, count, _ in lines if call == "Compile")
        for name, times in spent.items():
            times.append(sum(seconds for call, _, seconds in lines if call == name))
    nodes = len(onnx.load(path).graph.node)
    row = {"nodes": nodes, "level": level, "claim": claim, "fused": fused, "session_seconds": statistics.median(totals)}
    return row | {name: statistics.median(times) for name, times in spent.items()}


def own_times(sizes: list[int], runs: int, folder: Path) -> Iterator[Row]:
    for nodes in sizes:
        path = folder / f"{nodes}.onnx"
        onnx.save(layers(nodes, (2, 4), decomposed=False), path)
        yield own_time(path, "disable", "profitable", runs)
        if nodes <= LARGEST_COMPILED:
            yield own_time(path, "disable", "all", runs)
        if nodes <= LARGEST_AT_DEFAULT:
            yield own_time(path, "default", "profitable", runs)


def own_table(rows: list[Row]) -> str:
    titles = (
        *("nodes", "level", "claim", "session, s", "GetCapability, ms", "us a node"),
        *("fused nodes", "Compile, ms", "us a fused node"),
    )
    lines = []
    for row in rows:
        compiled = ["", ""]
        if row["fused"]:
            compiled = [f"{1e3 * row['Compile']:.1f}", f"{1e6 * row['Compile'] / row['fused']:.1f}"]
        cells = [f"{row['nodes']:,}", row["level"], row["claim"], f"{row['session_seconds']:.2f}"]
        cells += [f"{1e3 * row['GetCapability']:.1f}", f"{1e6 * row['GetCapability'] / row['nodes']:.1f}"]
        lines.append([*cells, str(row["fused"]), *compiled])
    return table(titles, lines)


# --- first and second start ------------------------------------------------------------------------------------------


# What the child process does: it imports nothing but what the way needs.
CREATE = """
import re, sys, time
import onnxruntime
path, way = sys.argv[1:]
if way != "plain":
    import normfuse
seconds, cpu = time.perf_counter(), time.process_time()
if way == "plain":
    onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
else:
    normfuse.InferenceSession(path)
print(time.perf_counter() - seconds, time.process_time() - cpu)
print(int(re.search(r"VmHWM:\\s+(\\d+) kB", open("/proc/self/status").read())[1]) / 1024)
"""


def start(path: Path, runs: int, folder: Path) -> Row:
    """Medians of seconds, processor seconds, and peak memory in MiB, each run a process of its own."""
    cache = os.environ["NORMFUSE_CACHE"] = str(folder / "cache")
    os.environ["PYTHONPYCACHEPREFIX"] = str(folder / "compiled")
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    child("-c", CREATE, path, "first")
    found: dict[str, list[list[float]]] = {"plain": [], "first": [], "second": []}
    for _ in range(runs):
        for way, told in found.items():
            if way == "first":
                shutil.rmtree(cache, ignore_errors=True)
            done = child("-c", CREATE, path, way)
            told.append([float(word) for word in done.stdout.split()])
    row: Row = {"model": path.name, "megabytes": path.stat().st_size / 1e6}
    for way, told in found.items():
        seconds, cpu, peak = (statistics.median(column) for column in zip(*told, strict=True))
        row[way] = {"seconds": seconds, "cpu_seconds": cpu, "peak": peak}
    plain = row["plain"]
    peak = plain["peak"] + 1.2 * path.stat().st_size / 2**20 + 60
    row["first_allowed"] = {"cpu_seconds": 4 * plain["cpu_seconds"] + 0.5, "peak": peak}
    row["second_allowed"] = {"cpu_seconds": 1.1 * plain["cpu_seconds"] + 0.050}
    return row


def misses(row: Row) -> bool:
    """Whether a start takes more than it may."""
    return any(row[way][key] > most for way in ("first", "second") for key, most in row[f"{way}_allowed"].items())


def start_table(rows: list[Row]) -> str:
    titles = (
        "model",
        "MB",
        *(f"{way}: s, CPU s, MiB" for way in ("plain", "first", "second")),
        "goals: CPU s, MiB; CPU s",
    )
    lines = []
    for row in rows:
        ways = [row[way] for way in ("plain", "first", "second")]
        cells = [f"{each['seconds']:.2f}, {each['cpu_seconds']:.3f}, {each['peak']:.0f}" for each in ways]
        first, second = row["first_allowed"], row["second_allowed"]
        goals = f"{first['cpu_seconds']:.2f}, {first['peak']:.0f}; {second['cpu_seconds']:.3f}"
        lines.append([row["model"], f"{row['megabytes']:.1f}", *cells, goals])
    return table(titles, lines)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", action="store_true", help="measure the U-Net")
    parser.add_argument("--nodes", type=int, nargs="*", help="measure generated models of so many nodes")
    parser.add_argument("--starts", type=Path, nargs="+", default=[], metavar="FILE", help="measure first and second")
    parser.add_argument("--runs", type=int, default=7, help="of which the median is taken")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there")
    parser.add_argument("--create", nargs=3, metavar=("PATH", "LEVEL", "CLAIM"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if not arguments.model and arguments.nodes is None and not arguments.starts:
        arguments.model, arguments.nodes = True, [1_000, 3_000, 10_000, 100_000]
    return arguments


def main() -> int:
    arguments = parse_arguments()
    if arguments.create:
        create_and_log(*arguments.create)
        return 0
    results: dict[str, Any] = {"creation": [], "own": [], "starts": []}
    with tempfile.TemporaryDirectory() as name:
        if arguments.model:
            results["creation"] = creation(arguments.runs, Path(name))
            print(creation_table(results["creation"]), flush=True)
        if arguments.nodes:
            results["own"] = list(own_times(arguments.nodes, arguments.runs, Path(name)))
            print(own_table(results["own"]))
        if arguments.starts:
            results["starts"] = [start(path, arguments.runs, Path(name)) for path in arguments.starts]
            print(start_table(results["starts"]))
    write_json(arguments.json, results)
    slow = [row["model"] for row in results["creation"] if row["added_seconds"] > row["allowed_seconds"]]
    slow += [row["model"] for row in results["starts"] if misses(row)]
    for label in slow:
        print(f"{label}: normfuse takes more than it may", file=sys.stderr)
    return 1 if slow else 0


if __name__ == "__main__":
    sys.exit(main())
