"""``normfuse verify``: two versions of a model on the same inputs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from normfuse._version import __version__
from normfuse.cli import options
from normfuse.cli.console import number, print_json, print_table, progress, say, table, warn
from normfuse.cli.grouping import grouped

if TYPE_CHECKING:
    from normfuse.verification import VerificationReport


@grouped
def verify_command(
    original: Annotated[Path, typer.Argument(metavar="A", help="The original model.")],
    optimized: Annotated[Path, typer.Argument(metavar="B", help="The model to compare with it.")],
    comparing: options.Comparing,
    as_json: options.Json = False,
) -> None:
    """Compare two versions of a model on the same inputs.

    A runs on ONNX Runtime with every graph optimisation off; B runs with normfuse, and without it if it can. Random
    inputs are made from A's signature: token ids within their table, masks of 0 and 1, several sizes for symbolic
    dimensions. Each site at which the two differ is run by itself on A's own values there, and has to be as exact as A.
    Exits with 1 if one is not. The comparison is undecided if not all could be compared in time.
    """
    from normfuse.verification import verify

    inputs = options.sample_files(comparing.inputs)
    with progress() as tell:
        report = verify(
            original,
            optimized,
            inputs=inputs,
            seconds=comparing.seconds,
            progress=lambda what: tell(what, 0, 0),
            **comparing.arguments(),
        )
    if as_json:
        named = {
            "schema_version": 1,
            "normfuse_version": __version__,
            "original": str(original),
            "optimized": str(optimized),
        }
        print_json(named | report.to_dict())
    else:
        print_verification(report)
    if report.result == "differ":
        raise typer.Exit(1)
    exit_if_undecided(report, comparing.strict)


def exit_if_undecided(report: VerificationReport | None, strict: bool) -> None:
    """Exit with the code of a verification that is not decided, if that is asked for."""
    if strict and report is not None and report.result == "undecided":
        raise typer.Exit(options.UNDECIDED_EXIT_CODE)


def print_verification(report: VerificationReport) -> None:
    """Print a verification as a table and a sentence."""
    for run in report.runs:
        classified = any(output.top1 is not None for output in run.outputs)
        columns = ("output", "type", "error", "allowed", "absolute", "ULP", *(("top-1",) if classified else ()))
        rows = table(f"Results {run.name}", *columns, numeric=len(columns) - 2, wraps="output")
        for output in run.outputs:
            error = number(output.error) if output.passed or report.passed else f"[red]{number(output.error)}[/]"
            cells = [output.name, output.dtype, error, *map(number, (output.tolerance, output.max_abs, output.max_ulp))]
            if classified:
                cells.append("" if output.top1 is None else f"{output.top1:.0%}")
            rows.add_row(*cells)
        print_table(rows)
    for warning in report.warnings:
        warn(warning)
    if report.result == "undecided":
        warn(report.message)
        return
    say(report.message, style="green" if report.passed else "red")
