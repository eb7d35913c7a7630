"""Speed of quantised models against their float networks: ``python benchmarks/quantized_models.py [NAME ...]
[--threads N ...] [--json FILE] [--check]``.

Each file of `tests/real_models/quantized_zoo.py` is run on ONNX Runtime's CPU provider and by
`normfuse.InferenceSession`, and so is the float network that it was made of, all four in turns. Several processes
measure, because where ONNX Runtime's memory happens to lie moves a model by a few per cent and stays the same within a
process. A ratio is the median over the processes; in brackets stand the lowest and the highest quartile of them.

``--json FILE`` adds to what the file holds already, so that a long measurement can be split, and prints a table of all
of it. ``--check`` fails where normfuse makes a model slower than 0.98 times ONNX Runtime's speed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnxruntime

import normfuse
from normfuse.measuring import bound_run, clock_for, ratio_of, take_turns

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "benchmarks"), *(str(ROOT / "tests" / name) for name in (".", "real_models"))]

import quantized_zoo  # noqa: E402
import report  # noqa: E402

from models import FLOOR, Row, ratio, save  # noqa: E402

WAYS = ("QDQ, ORT", "QDQ, normfuse", "float, ORT", "float, normfuse")
# What is divided by what: the time of the one is so many times that of the other.
RATIOS = {"normfuse": WAYS[:2], "of float": (WAYS[1], WAYS[3])}


def measure(name: str, threads: int, seconds: float) -> Row:
    """The four ways in turns, in this process."""
    network = quantized_zoo.network_of(name)
    sample = network.feeds(np.random.default_rng(0))
    runs = []
    for path in (quantized_zoo.quantized_file(name), network.path()):
        for with_normfuse in (False, True):
            options = onnxruntime.SessionOptions()
            options.intra_op_num_threads = threads
            options.log_severity_level = 4
            # Threads that wait for work of one session must not take the processor from the next one.
            options.add_session_config_entry("session.force_spinning_stop", "1")
            if with_normfuse:
                session = normfuse.InferenceSession(path, options)
            else:
                session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
            runs.append(bound_run(session, sample))
    clock, _ = clock_for(threads)
    taken = dict(zip(WAYS, take_turns(runs, seconds, lambda what, done, total: None, clock), strict=True))
    row: Row = {way: 1e3 * statistics.median(t for times in taken[way] for t in times) for way in WAYS}
    for label, (one, other) in RATIOS.items():
        found = ratio_of(taken[one], taken[other])
        row[label] = {"ratio": found.median, "low": found.low, "high": found.high}
    return row | {"inputs": {key: list(array.shape) for key, array in sample.items()}}


def measured(name: str, threads: int, processes: int, seconds: float) -> Row:
    """One row of the table."""
    command = [sys.executable, __file__, "--one", name, str(threads), str(seconds)]
    rows: list[Row] = []
    for _ in range(processes):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"{' '.join(command)} failed with exit code {done.returncode}:\n{done.stderr}")
        rows.append(json.loads(done.stdout))
    row: Row = {"model": name, "threads": threads, "onnxruntime": onnxruntime.__version__, "inputs": rows[0]["inputs"]}
    row |= {way: statistics.median(one[way] for one in rows) for way in WAYS}
    for label in RATIOS:
        row[label] = {
            "ratio": statistics.median(one[label]["ratio"] for one in rows),
            "low": min(one[label]["low"] for one in rows),
            "high": max(one[label]["high"] for one in rows),
        }
    return row


def merged(old: list[Row], new: Row) -> list[Row]:
    """All rows in the order of the files; a new one takes the place of an old one."""
    by_key = {(row["threads"], quantized_zoo.NAMES.index(row["model"])): row for row in (*old, new)}
    return [by_key[key] for key in sorted(by_key)]


def table(rows: list[Row]) -> str:
    """The rows as Markdown."""
    head = (
        "| model | threads | float, ms: ORT, normfuse | QDQ | ORT, ms | normfuse, ms | ORT / normfuse | QDQ / float |"
    )
    lines = [head, "|---" * (head.count("|") - 1) + "|"]
    for row in rows:
        model, _, scheme = row["model"].rpartition("-")
        (shape,) = {tuple(shape) for shape in row["inputs"].values()}
        cells = [f"{model} {list(shape)}", str(row["threads"])]
        cells += [f"{row['float, ORT']:.3g}, {row['float, normfuse']:.3g}", scheme]
        cells += [f"{row['QDQ, ORT']:.3g}", f"{row['QDQ, normfuse']:.3g}"]
        lines.append(f"| {' | '.join([*cells, ratio(row['normfuse']), format(row['of float']['ratio'], '.2f')])} |")
    return "\n".join(lines)


def too_slow(rows: list[Row]) -> list[str]:
    return [
        f"{row['model']}, {row['threads']} thread(s): {row['normfuse']['ratio']:.3f} is below {FLOOR}"
        for row in rows
        if row["normfuse"]["ratio"] < FLOOR
    ]


def file_name(text: str) -> str:
    """The name of a quantised file, as an argument of the command."""
    if text not in quantized_zoo.NAMES:
        raise argparse.ArgumentTypeError(f"there is no model {text}; there are {', '.join(quantized_zoo.NAMES)}")
    return text


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = ", ".join(quantized_zoo.NAMES)
    parser.add_argument("names", nargs="*", type=file_name, metavar="NAME", help=f"{names}; none: all of them")
    parser.add_argument("--threads", type=int, nargs="+", default=[1])
    parser.add_argument("--processes", type=int, default=3, help="for each model and number of threads")
    parser.add_argument("--seconds", type=float, default=4.0, help="of measuring in each process")
    parser.add_argument("--json", type=Path, metavar="FILE", help="of the results, old ones included")
    parser.add_argument("--check", action="store_true", help=f"fail where a ratio is below {FLOOR}")
    parser.add_argument("--one", nargs=3, metavar=("NAME", "THREADS", "SECONDS"), help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> int:
    arguments = parse_arguments()
    if arguments.one:
        name, threads, seconds = arguments.one
        print(json.dumps(measure(name, int(threads), float(seconds))))
        return 0
    rows: list[Row] = []
    if arguments.json is not None and arguments.json.exists():
        rows = json.loads(arguments.json.read_text(encoding="utf-8"))["rows"]
    for name in arguments.names or quantized_zoo.NAMES:
        quantized_zoo.quantized_file(name)  # made here, where its warnings are seen
        for threads in arguments.threads:
            row = measured(name, threads, arguments.processes, arguments.seconds)
            print(f"{name}, {threads} thread(s): {ratio(row['normfuse'])}", file=sys.stderr, flush=True)
            rows = merged(rows, row)
            if arguments.json is not None:  # each time, so that nothing is lost when the rest is interrupted
                save(arguments.json, rows)
    print(f"{report.machine()}, onnxruntime {onnxruntime.__version__}\n\n{table(rows)}")
    found = too_slow(rows) if arguments.check else []
    for line in found:
        print(line, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
