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

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))

import report
from real_models import NAMES, Case, cases, model_name

FLOOR = 0.98
WAYS = ("original + normfuse", "rewritten", "rewritten + normfuse", "normfuse.InferenceSession")
Row = dict[str, Any]


def benched(case: Case, threads: int, seconds: float, folder: Path) -> dict[str, Any]:
    """What ``normfuse bench`` says of a model, in a process of its own."""
    sample = folder / "sample.npz"
    np.savez(sample, **case.feeds)  # type: ignore[arg-type]
    command = [sys.executable, "-m", "normfuse", "bench", str(case.path), "--inputs", str(sample), "--json"]
    command += ["--threads", str(threads), "--seconds", str(seconds)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"benchmarks/models.py: {' '.join(command)} failed with exit code {done.returncode}:\n{done.stderr}")
    return dict(json.loads(done.stdout))


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
        row[way] = {
            "ratio": statistics.median(timing[way]["speedup"] for timing in timings),
            "low": min(timing[way]["speedup_quartiles"][0] for timing in timings),
            "high": max(timing[way]["speedup_quartiles"][1] for timing in timings),
            "error": max(timing[way]["error"] for timing in timings),
        }
    return row


def merged(old: list[Row], new: list[Row]) -> list[Row]:
    """All rows in the order of the models; a new one takes the place of an old one."""
    by_key = {(row["threads"], NAMES.index(row["model"])): row for row in (*old, *new)}
    return [by_key[key] for key in sorted(by_key)]


def ratio(cell: dict[str, float] | None) -> str:
    return "" if cell is None else f"{cell['ratio']:.2f} ({cell['low']:.2f} to {cell['high']:.2f})"


def table(rows: list[Row]) -> str:
    """The rows as Markdown."""
    lines = [
        f"| model | threads | ORT, ms | {' | '.join(WAYS)} | bound | time in chains | in fused nodes |",
        "|---" * (6 + len(WAYS)) + "|",
    ]
    for row in rows:
        cells = [row["model"], str(row["threads"]), f"{row['original_ms']:.3g}"]
        cells += [ratio(row.get(way)) for way in WAYS]
        cells += ["" if row["bound"] is None else f"{row['bound']:.2f}"]
        cells += [f"{row['chain_share']:.1%}", f"{row['fused_share']:.1%}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def save(path: Path, rows: list[Row]) -> None:
    data = {"machine": report.machine(), "rows": rows}
    written = path.with_name(path.name + ".new")
    written.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    written.replace(path)


def too_slow(rows: list[Row]) -> list[str]:
    """A sentence for every way with normfuse that is slower than ONNX Runtime."""
    return [
        f"{row['model']}, {row['threads']} thread(s), {way}: {row[way]['ratio']:.3f} is below {FLOOR}"
        for row in rows
        for way in WAYS
        if "normfuse" in way and way in row and row[way]["ratio"] < FLOOR
    ]


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", type=model_name, metavar="NAME", help=", ".join(NAMES))
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--processes", type=int, default=3, help="for each model and number of threads")
    parser.add_argument("--seconds", type=float, default=3.0, help="of measuring in each process")
    parser.add_argument("--json", type=Path, metavar="FILE", help="of the results, old ones included")
    parser.add_argument("--check", action="store_true", help=f"fail where a ratio with normfuse is below {FLOOR}")
    return parser.parse_args()


def main() -> int:
    arguments = parse_arguments()
    rows: list[Row] = []
    measured_here = 0
    if arguments.json is not None and arguments.json.exists():
        rows = json.loads(arguments.json.read_text(encoding="utf-8"))["rows"]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for case in cases(folder, arguments.names):
            for threads in arguments.threads:
                row = measured(case, threads, arguments.processes, arguments.seconds, folder)
                last = ratio(next(row[way] for way in reversed(WAYS) if way in row))
                print(f"{case.name}, {threads} thread(s): {last}", file=sys.stderr, flush=True)
                rows = merged(rows, [row])
                measured_here += 1
                if arguments.json is not None:  # each time, so that nothing is lost when the rest is interrupted
                    save(arguments.json, rows)
    if not measured_here:
        sys.exit("benchmarks/models.py: nothing was measured: each of these models was left out, for the reason above")
    print(table(rows))
    found = too_slow(rows) if arguments.check else []
    for line in found:
        print(line, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
