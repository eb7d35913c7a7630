"""Speed of quantised models against their float networks: ``python benchmarks/quantized_models.py [NAME ...]
[--threads N ...] [--json FILE] [--check]``.

Each file of `tests/real_models/quantized_zoo.py` is run on ONNX Runtime's CPU provider and by
`normfuse.InferenceSession`, and so is the float network that it was made of, all four in turns. Several processes
measure, because where ONNX Runtime's memory happens to lie moves a model by a few per cent and stays the same within a
process. A ratio is the median over the processes; in brackets stand the lowest and the highest quartile of them.

Files in the operator-oriented form (quant_format=QOperator, names that end with "op") have a table of their own.

``--json FILE`` adds to what the file holds already, so that a long measurement can be split, and prints a table of all
of it. ``--check`` fails where normfuse makes a model slower than 0.98 times ONNX Runtime's speed.
"""

import argparse
import json
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnxruntime

import normfuse
from normfuse.measuring.timing import bound_run, clock_for, ratio_of, take_turns

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "benchmarks"), *(str(ROOT / "tests" / name) for name in (".", "real_models"))]

import quantized_zoo  # noqa: E402
import report  # noqa: E402
from measure import Row, add_options, child, collected, exit_code, over_processes, ratio, table  # noqa: E402

NAMES = (*quantized_zoo.NAMES, *quantized_zoo.OPERATOR_NAMES)
WAYS = ("quantised, ORT", "quantised, normfuse", "float, ORT", "float, normfuse")
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
    rows = [json.loads(child(__file__, "--one", name, threads, seconds).stdout) for _ in range(processes)]
    row: Row = {"model": name, "threads": threads, "onnxruntime": onnxruntime.__version__, "inputs": rows[0]["inputs"]}
    row |= {way: statistics.median(one[way] for one in rows) for way in WAYS}
    return row | {label: over_processes([one[label] for one in rows]) for label in RATIOS}


def tables(rows: list[Row]) -> str:
    """The rows as Markdown, those of each form by themselves."""
    by_form: dict[str, list[Row]] = {}
    for row in rows:
        by_form.setdefault(quantized_zoo.scheme_of(row["model"]).form, []).append(row)
    return "\n\n".join(table(head(form), map(cells, those)) for form, those in by_form.items())


def head(form: str) -> list[str]:
    """The columns for files of one form."""
    speeds = ["ORT, ms", "normfuse, ms", "ORT / normfuse", f"{form} / float"]
    return ["model", "threads", "float, ms: ORT, normfuse", form, *speeds]


def cells(row: Row) -> list[str]:
    """A row of the table."""
    model, _, scheme = row["model"].rpartition("-")
    (shape,) = {tuple(shape) for shape in row["inputs"].values()}
    times = [f"{row['float, ORT']:.3g}, {row['float, normfuse']:.3g}", scheme]
    times += [f"{row['quantised, ORT']:.3g}", f"{row['quantised, normfuse']:.3g}"]
    return [
        f"{model} {list(shape)}",
        str(row["threads"]),
        *times,
        ratio(row["normfuse"]),
        f"{row['of float']['ratio']:.2f}",
    ]


def file_name(text: str) -> str:
    """The name of a quantised file, as an argument of the command."""
    if text not in NAMES:
        raise argparse.ArgumentTypeError(f"there is no model {text}; there are {', '.join(NAMES)}")
    return text


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = ", ".join(NAMES)
    parser.add_argument("names", nargs="*", type=file_name, metavar="NAME", help=f"{names}; none: all of them")
    add_options(parser, threads=[1], seconds=4.0)
    parser.add_argument("--one", nargs=3, metavar=("NAME", "THREADS", "SECONDS"), help=argparse.SUPPRESS)
    return parser.parse_args()


def measurements(arguments: argparse.Namespace) -> Iterator[Row]:
    for name in arguments.names or NAMES:
        quantized_zoo.quantized_file(name)  # made here, where its warnings are seen
        for threads in arguments.threads:
            yield measured(name, threads, arguments.processes, arguments.seconds)


def main() -> int:
    arguments = parse_arguments()
    if arguments.one:
        name, threads, seconds = arguments.one
        print(json.dumps(measure(name, int(threads), float(seconds))))
        return 0
    rows = collected(measurements(arguments), NAMES, lambda row: ratio(row["normfuse"]), arguments.json)
    print(f"{report.machine()}, onnxruntime {onnxruntime.__version__}\n\n{tables(rows)}")
    return exit_code(rows, ["normfuse"]) if arguments.check else 0


if __name__ == "__main__":
    sys.exit(main())
