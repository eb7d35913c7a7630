"""Speed of real models, whole: ``python benchmarks/models.py [NAME ...] [--threads 1 2] [--json FILE] [--check]``.

Runs ``normfuse bench`` on each model, several times, each in a process of its own: where ONNX Runtime's memory happens
to lie moves a model by a few per cent, and stays the same within a process. The original on ONNX Runtime's CPU provider
is compared with the original with normfuse, with the rewritten model without and with it, and with what
`normfuse.InferenceSession` makes of it where that is yet another model. A ratio is the median
over the processes; in brackets stand the lowest and the highest quartile of them.

Beside it stand the share of kernel time that the chains take in the original, the share that the fused nodes take in
the rewritten model, and the bound that Amdahl's law sets: 1 / (1 - share).

``--json FILE`` adds to what the file holds already, so that a long measurement can be split, and prints a table of all
of it. ``--check`` fails where normfuse makes a model slower than 0.98 times ONNX Runtime's speed.
"""

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))

from measure import Row, add_options, child, collected, exit_code, over_processes, ratio, table
from real_models import NAMES, Case, cases, model_name

WAYS = ("original + normfuse", "rewritten", "rewritten + normfuse", "normfuse.InferenceSession")
HEAD = ("model", "threads", "ORT, ms", *WAYS, "bound", "time in chains", "in fused nodes")


def benched(case: Case, threads: int, seconds: float, folder: Path) -> dict[str, Any]:
    """What ``normfuse bench`` says of a model, in a process of its own."""
    sample = folder / "sample.npz"
    np.savez(sample, **case.feeds)  # type: ignore[arg-type]
    bench = ("-m", "normfuse", "bench", case.path, "--inputs", sample, "--json")
    return dict(json.loads(child(*bench, "--threads", threads, "--seconds", seconds).stdout))


def ratio_in(timing: dict[str, Any]) -> dict[str, float]:
    """How fast one process found a way."""
    low, high = timing["speedup_quartiles"]
    return {"ratio": timing["speedup"], "low": low, "high": high}


def measured(case: Case, threads: int, processes: int, seconds: float, folder: Path) -> Row:
    """One row of the table."""
    runs = [benched(case, threads, seconds, folder) for _ in range(processes)]
    timings = [{timing["name"]: timing for timing in run["timings"]} for run in runs]
    share = statistics.median(run["chain_share"] for run in runs)
    row: Row = {
        "model": case.name,
        "threads": threads,
        "inputs": runs[0]["inputs"],
        "onnxruntime": runs[0]["onnxruntime_version"],
        "original_ms": statistics.median(timing["original"]["median_ms"] for timing in timings),
        "chain_share": share,
        "fused_share": statistics.median(run["timings"][-1]["fused_share"] for run in runs),
        "bound": 1 / (1 - share) if share < 1 else None,
    }
    for way in WAYS:
        if way not in timings[0]:
            continue
        ratios = [ratio_in(timing[way]) for timing in timings]
        row[way] = over_processes(ratios) | {"error": max(timing[way]["error"] for timing in timings)}
    return row


def cells(row: Row) -> list[str]:
    """A row of the table."""
    bound = "" if row["bound"] is None else f"{row['bound']:.2f}"
    found = [row["model"], str(row["threads"]), f"{row['original_ms']:.3g}", *(ratio(row.get(way)) for way in WAYS)]
    return [*found, bound, f"{row['chain_share']:.1%}", f"{row['fused_share']:.1%}"]


def told(row: Row) -> str:
    return ratio(next(row[way] for way in reversed(WAYS) if way in row))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", type=model_name, metavar="NAME", help=", ".join(NAMES))
    add_options(parser, threads=[1, 2], seconds=3.0)
    return parser.parse_args()


def main() -> int:
    arguments = parse_arguments()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        measurements = (
            measured(case, threads, arguments.processes, arguments.seconds, folder)
            for case in cases(folder, arguments.names)
            for threads in arguments.threads
        )
        rows = collected(measurements, NAMES, told, arguments.json)
    print(table(HEAD, map(cells, rows)))
    return exit_code(rows, [way for way in WAYS if "normfuse" in way]) if arguments.check else 0


if __name__ == "__main__":
    sys.exit(main())
