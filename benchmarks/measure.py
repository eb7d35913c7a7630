"""What the benchmarks share: tables, child processes, and rows of whole models, kept and checked against a floor."""

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import report

os.environ["NORMFUSE_CACHE"] = "0"  # each session is a first one, unless a benchmark says otherwise

FLOOR = 0.98
Row = dict[str, Any]
"""Of a "model" and a number of "threads"; a ratio among its values is {"ratio": , "low": , "high": }."""


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    return "\n".join([f"| {' | '.join(head)} |", "|---" * len(head) + "|", *(f"| {' | '.join(row)} |" for row in rows)])


def child(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Run Python with these arguments in a process of its own."""
    command = [sys.executable, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)} failed with exit code {done.returncode}:\n{done.stderr}")
    return done


def write_json(path: Path | None, data: dict[str, Any]) -> None:
    """Write results with the machine's name, if there is a path; a file is never there in part."""
    if path is not None:
        written = path.with_name(path.name + ".new")
        written.write_text(json.dumps({"machine": report.machine(), **data}, indent=1) + "\n", encoding="utf-8")
        written.replace(path)


def add_options(parser: argparse.ArgumentParser, threads: list[int], seconds: float) -> None:
    """Those of a command that measures rows; the numbers are defaults."""
    parser.add_argument("--threads", type=int, nargs="+", default=threads)
    parser.add_argument("--processes", type=int, default=3, help="for each model and number of threads")
    parser.add_argument("--seconds", type=float, default=seconds, help="of measuring in each process")
    parser.add_argument("--json", type=Path, metavar="FILE", help="of the results, old ones included")
    parser.add_argument("--check", action="store_true", help=f"fail where a ratio with normfuse is below {FLOOR}")


def over_processes(ratios: Sequence[dict[str, float]]) -> dict[str, float]:
    """The median of the ratios of several processes, with the lowest and the highest quartile of them."""
    return {
        "ratio": statistics.median(each["ratio"] for each in ratios),
        "low": min(each["low"] for each in ratios),
        "high": max(each["high"] for each in ratios),
    }


def collected(rows: Iterable[Row], names: Sequence[str], told: Callable[[Row], str], path: Path | None) -> list[Row]:
    """Measure the rows, and return them with those of the file, in the order of the names.

    Each is told on stderr, and saved at once, so that nothing is lost when the rest is interrupted.
    """
    saved = json.loads(path.read_text(encoding="utf-8"))["rows"] if path is not None and path.exists() else []
    by_key = {(row["threads"], names.index(row["model"])): row for row in saved}
    is_empty = True
    for row in rows:
        is_empty = False
        print(f"{row['model']}, {row['threads']} thread(s): {told(row)}", file=sys.stderr, flush=True)
        by_key[row["threads"], names.index(row["model"])] = row
        write_json(path, {"rows": _in_order(by_key)})
    if is_empty:
        sys.exit("Nothing was measured: each of these models was left out, for the reason above.")
    return _in_order(by_key)


def _in_order(by_key: dict[tuple[int, int], Row]) -> list[Row]:
    return [by_key[key] for key in sorted(by_key)]


def ratio(cell: dict[str, float] | None) -> str:
    return "" if cell is None else f"{cell['ratio']:.2f} ({cell['low']:.2f} to {cell['high']:.2f})"


def exit_code(rows: list[Row], labels: Sequence[str]) -> int:
    """1 if one of these ratios is below the floor, and a sentence for each of them on stderr."""
    found = [(row, label) for row in rows for label in labels if label in row and row[label]["ratio"] < FLOOR]
    for row, label in found:
        how = f"{row['model']}, {row['threads']} thread(s), {label}"
        print(f"{how}: {row[label]['ratio']:.3f} is below {FLOOR}", file=sys.stderr)
    return 1 if found else 0
