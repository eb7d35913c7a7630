"""What tuning measured, as tables."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from normfuse.cli.bench import threads_text
from normfuse.cli.console import print_table, say, table

if TYPE_CHECKING:
    from rich.table import Table

    from normfuse.measuring.timing import Ratio
    from normfuse.tuning import GroupResult, TuningReport

_MUCH_NOISE = 0.03
_STARTS = {"off": "every group off", "cost": "what the cost model takes", "on": "every group on"}


def print_tuning(report: TuningReport) -> None:
    """Print the decisions with their gains, and the comparison of the whole model."""
    columns = ("group", "sites", "decision", "cost model", "gain", "+/-")
    rows = table("Groups of chains, by measuring", *columns, numeric=len(columns) - 1, wraps="group")
    for results in _rows(report.groups):
        first = results[0]
        rows.add_row(
            first.group if len(results) == 1 else f"{_family(first.group)} ({len(results)} shapes)",
            str(sum(result.sites for result in results)),
            "on" if first.on else "off",
            "on" if first.by_cost_model else "off",
            "not measured" if first.gain is None else f"{first.gain:.3f}x",
            "" if first.error is None else f"{first.error:.3f}",
        )
    print_table(rows)
    runs = table("The whole model against the original", "run", "speed", "middle half", numeric=2, wraps="run")
    for start, ratio in report.starts.items():
        _add(runs, f"rewritten, {_STARTS[start]} (before)", ratio)
    _add(runs, "the original once more (noise)", report.original_again)
    _add(runs, f"tuned: the {report.written} model", report.speedup)
    print_table(runs)
    say(_verdict(report))


def _rows(groups: Sequence[GroupResult]) -> list[list[GroupResult]]:
    """Groups that differ in their shapes alone, and of which nothing else differs, are one row."""
    rows: dict[tuple[object, ...], list[GroupResult]] = {}
    for result in groups:
        key = (_family(result.group), result.on, result.by_cost_model, result.gain)
        rows.setdefault(key, []).append(result)
    return list(rows.values())


def _family(group: str) -> str:
    return re.sub(r"\[[^\[\]]*\]", "", group)


def _add(rows: Table, name: str, ratio: Ratio) -> None:
    rows.add_row(name, f"{ratio.median:.3f}x", f"{ratio.low:.3f}-{ratio.high:.3f}")


def _verdict(report: TuningReport) -> str:
    gain, noise = report.speedup.median - 1, report.final_noise
    if abs(gain) <= noise:
        found = "which is within the noise: no difference from the original without normfuse can be told"
        if noise > _MUCH_NOISE:
            found += " (a quieter machine, or more --tune-seconds, tells more)"
    elif gain > 0:
        found = "so it is faster than the original without normfuse"
    else:
        found = "so it is slower than the original without normfuse although nothing of it runs here: tune it again"
    unmeasured = sum(1 for group in report.groups if group.gain is None)
    if unmeasured:
        found += (
            f". {unmeasured} of {len(report.groups)} groups were not reached; --tune-seconds gives them more time than "
            f"{report.seconds:.0f}"
        )
    written = "" if report.written == "rewritten" else " The rewritten model was slower, so the original is written."
    return (
        f"Tuned in {report.seconds:.0f} s by {report.clock} with {threads_text(report.threads)}: the model runs at "
        f"{report.speedup.median:.3f} times the speed, with a noise of {noise:.3f}, {found}.{written} The decisions "
        f"hold for {report.isa} and onnxruntime {report.onnxruntime}; elsewhere the cost model decides."
    )
