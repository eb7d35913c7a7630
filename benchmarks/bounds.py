"""What fusing could bring a real model at most: ``python benchmarks/bounds.py [NAME ...] [--threads 1]``.

Amdahl's law bounds a model's gain as if its chains took no time. They have to read and write their tensors at
least. So for each model this adds up, by ONNX Runtime's profiler, the kernel time of the original, and of the rewritten
model with normfuse; of the latter the fused nodes' part; and the time of copies of as many bytes as each fused node
reads and writes, from the caches wherever they fit. ``gain`` is the ratio of the two kernel times, ``at a copy`` what
it were if each fused node took as long as its copy.
"""

from __future__ import annotations

import argparse
import functools
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import onnxruntime

import normfuse
from normfuse.host.native_library import EP_NAME

sys.path.insert(0, str(Path(__file__).resolve().parent))

import peers
from costs import fastest
from real_models import NAMES, Case, cases, model_name

RUNS, WARM_UP = 20, 3


class Node(NamedTuple):
    microseconds: float
    """The median of the runs."""
    bytes_moved: int
    """Of inputs and outputs."""
    is_fused: bool


def session_of(case: Case, threads: int, folder: str, fused: bool) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = threads, 3
    options.enable_profiling, options.profile_file_prefix = True, str(Path(folder) / f"fused_{fused}")
    if fused:
        return normfuse.InferenceSession(case.path, options)
    return onnxruntime.InferenceSession(case.path, options, providers=["CPUExecutionProvider"])


def profiled(case: Case, threads: int) -> list[list[Node]]:
    """The nodes that a run executes, of the original and of the rewritten model, which take turns."""
    with tempfile.TemporaryDirectory() as folder:
        sessions = [session_of(case, threads, folder, fused) for fused in (False, True)]
        for _ in range(RUNS):
            for session in sessions:
                session.run(None, case.feeds)
        return [nodes_of(Path(session.end_profiling())) for session in sessions]


def nodes_of(profile: Path) -> list[Node]:
    by_name: dict[str, list[dict[str, Any]]] = {}
    for event in json.loads(profile.read_text(encoding="utf-8")):
        if event["cat"] == "Node" and event["name"].endswith("_kernel_time"):
            by_name.setdefault(event["name"], []).append(event)
    return [node_of(of_node[WARM_UP:]) for of_node in by_name.values()]


def node_of(events: list[dict[str, Any]]) -> Node:
    arguments = events[-1]["args"]
    moved = int(arguments["activation_size"]) + int(arguments["output_size"])
    return Node(statistics.median(event["dur"] for event in events), moved, arguments["provider"] == EP_NAME)


@functools.cache
def copy_microseconds(moved: int) -> float:
    return fastest([peers.copy_of(moved)])[0] / 1000


def row(case: Case, threads: int) -> str:
    before, nodes = profiled(case, threads)
    original = sum(each.microseconds for each in before)
    now = sum(each.microseconds for each in nodes)
    fused = [each for each in nodes if each.is_fused]
    taken = sum(each.microseconds for each in fused)
    copies = sum(copy_microseconds(each.bytes_moved) for each in fused)
    milliseconds = [f"{each / 1000:.3g}" for each in (original, now, taken, copies)]
    ratios = [f"{original / now:.2f}", f"{original / (now - taken + copies):.2f}"]
    cells = [case.name, str(threads), *milliseconds[:2], str(len(fused)), *milliseconds[2:], *ratios]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", type=model_name, metavar="NAME", help=", ".join(NAMES))
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    print("| model | threads | ORT, ms | with normfuse, ms | fused nodes | ms | their copies, ms | gain | at a copy |")
    print("|---" * 9 + "|")
    with tempfile.TemporaryDirectory() as name:
        for case in cases(Path(name), arguments.names):
            print(row(case, arguments.threads), flush=True)


if __name__ == "__main__":
    main()
