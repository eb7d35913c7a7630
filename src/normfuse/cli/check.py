"""``normfuse check``: a check for continuous integration."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from normfuse.cli import options
from normfuse.cli.console import console, print_json, progress, say
from normfuse.cli.printable import printable
from normfuse.cli.verify import exit_if_undecided

if TYPE_CHECKING:
    from normfuse.optimization.checking import CheckReport


class _Format(StrEnum):
    TEXT = "text"
    JSON = "json"
    GITHUB = "github"


def check_command(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="The model to check.")],
    require_fused: options.RequireFused = None,
    original: Annotated[
        Path | None, typer.Option(metavar="MODEL", help="Also compare the results with those of this model.")
    ] = None,
    inputs: options.Inputs = None,
    max_error: options.MaxError = None,
    verify_seconds: options.VerifySeconds = None,
    strict: options.Strict = False,
    output_format: Annotated[
        _Format, typer.Option("--format", help="Output; github: annotations for GitHub Actions.")
    ] = _Format.TEXT,
    as_json: Annotated[bool, typer.Option("--json", help="The same as --format json.")] = False,
) -> None:
    """Fail if a model is not fused as required, or its results differ; for continuous integration.

    Exits with 1 if a site that can be fused is not, if fewer sites than required are fused, or if the results differ
    from the original's.
    """
    from normfuse.optimization.checking import check
    from normfuse.verification import VERIFY_SECONDS

    with progress() as tell:
        tell("checking", 0, 0)
        report = check(
            model,
            require_fused=options.required_count(require_fused),
            original=original,
            inputs=options.sample_files(inputs),
            max_error=max_error,
            verify_seconds=verify_seconds or VERIFY_SECONDS,
        )
    if as_json or output_format is _Format.JSON:
        print_json(report.to_dict())
    elif output_format is _Format.GITHUB:
        _print_annotations(report)
    else:
        _print_text(report)
    if not report.passed:
        raise typer.Exit(1)
    exit_if_undecided(report.verification, strict)


def _print_text(report: CheckReport) -> None:
    colours = {"error": "red", "warning": "yellow", "notice": "blue"}
    for remark in report.remarks:
        console.print(f"[{colours[remark.level]}]{remark.level}[/]: {escape(remark.message)}", soft_wrap=True)
    if report.verification is not None and report.verification.passed:
        console.print(report.verification.message, markup=False)
    verdict = "passed" if report.passed else "failed"
    say(f"{report.model}: {verdict}; {report.fused} sites are fused.")


def _print_annotations(report: CheckReport) -> None:
    def escaped(text: str, more: str = "") -> str:
        for character in "%\r\n" + more:
            text = text.replace(character, f"%{ord(character):02X}")
        return text

    for remark in report.remarks:
        properties = f"file={escaped(report.model, ':,')},title={escaped(remark.title, ':,')}"
        print(printable(f"::{remark.level} {properties}::{escaped(remark.message)}"))
