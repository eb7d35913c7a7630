"""``normfuse optimize FOLDER``: many models, and a table of what became of them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from normfuse._version import __version__
from normfuse.cli.console import console, number, print_json, print_table, progress, say, table, warn
from normfuse.cli.options import UNDECIDED_EXIT_CODE
from normfuse.reports.page import size_text

if TYPE_CHECKING:
    from normfuse.folders import Engine, Row


def optimize_models(
    source: Path, target: Path, engine: Engine, options: dict[str, Any], *, strict: bool, as_json: bool
) -> None:
    """Optimise a folder, print what became of each model, and exit with the code of the worst."""
    from normfuse.folders import optimize_folder

    with progress() as tell:
        rows = optimize_folder(source, target, engine=engine, progress=tell, **options)
    counts = Counter(row["status"] for row in rows)
    if as_json:
        data = {"schema_version": 1, "normfuse_version": __version__, "source": str(source), "target": str(target)}
        print_json(data | {"models": rows})
    else:
        _print_rows(source, rows)
        beside = ", each with its report beside it" if counts["written"] else ""
        say(f"Wrote {counts['written']} of {len(rows)} models to {target}{beside}.")
    if counts["invalid"]:
        raise typer.Exit(2)
    if counts["failed"]:
        raise typer.Exit(1)
    if strict and any(row["result"] == "undecided" for row in rows):
        raise typer.Exit(UNDECIDED_EXIT_CODE)


def _print_rows(source: Path, rows: list[Row]) -> None:
    title = f"Models of {source}"
    lines = table(title, "model", "sites fused", "error", "size", "seconds", numeric=4, wraps="model")
    for row in rows:
        if row["status"] == "written":
            fused = f"{row['fused']} of {row['sites']}"
            size = size_text(row["bytes_written"])
            lines.add_row(row["model"], fused, number(row["error"]), size, number(row["seconds"]))
    if lines.row_count:
        print_table(lines)
    for row in rows:
        if row["result"] == "undecided":
            warn(f"{row['model']}: {row['message']}")
        if row["status"] != "written":
            colour = "red" if row["status"] == "invalid" else "yellow"
            console.print(f"[{colour}]Not written:[/] ", end="")
            say(row["message"])
