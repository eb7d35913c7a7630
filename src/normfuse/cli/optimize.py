"""``normfuse optimize``: rewrite, verify, report, write."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from normfuse.cli.bench import print_benchmark
from normfuse.cli.console import (
    InputsOption,
    JsonOption,
    MaxErrorOption,
    SamplesOption,
    StrictOption,
    VerifySecondsOption,
    console,
    print_json,
    print_table,
    progress,
    size_text,
    table,
    warn,
)
from normfuse.cli.folder import optimize_models
from normfuse.cli.inspect import RequantizationOption, print_claims, print_left, print_site_counts
from normfuse.cli.verify import exit_if_undecided, print_verification
from normfuse.errors import OptionError
from normfuse.report_html import by_operator

if TYPE_CHECKING:
    from normfuse.optimization import OptimizationReport

__all__ = ["RequireFusedOption", "optimize_command", "print_operator_counts", "print_summary", "required_count"]


RequireFusedOption = Annotated[
    str | None,
    typer.Option(metavar="N|all", help="Fail unless so many sites are fused."),
]


class _Target(StrEnum):
    PORTABLE = "portable"
    CUSTOM_OP = "custom-op"
    STANDARD = "standard"


class _Engine(StrEnum):
    AUTO = "auto"
    RAY = "ray"
    LOCAL = "local"


def optimize_command(
    model: Annotated[
        Path, typer.Argument(metavar="MODEL", help="The ONNX model, or a folder of models; it is not changed.")
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="OUT", help="The file to write; for a folder, a folder.")
    ],
    target: Annotated[
        _Target,
        typer.Option(
            help="portable: runs everywhere, and fast where normfuse is; custom-op: needs normfuse's library; "
            "standard: ONNX operators only."
        ),
    ] = _Target.PORTABLE,
    no_verify: Annotated[bool, typer.Option("--no-verify", help="Write without comparing with the original.")] = False,
    inputs: InputsOption = None,
    samples: SamplesOption = None,
    max_error: MaxErrorOption = None,
    verify_seconds: VerifySecondsOption = None,
    strict: StrictOption = False,
    require_fused: RequireFusedOption = None,
    allow_requantization_removal: RequantizationOption = False,
    report: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE", help="Also write the report: *.html for people, *.json for programs; may be repeated."
        ),
    ] = None,
    measure: Annotated[
        float | None,
        typer.Option(min=0.1, metavar="SECONDS", help="Also measure the speed for so long, for the report."),
    ] = None,
    engine: Annotated[
        _Engine,
        typer.Option(help="For a folder. ray: one model to a task; local: one after the other; auto: Ray, if there."),
    ] = _Engine.AUTO,
    as_json: JsonOption = False,
) -> None:
    """Fuse the normalisation chains of a model, verify the result, and write it.

    The result is compared with the original on inputs made from the model's own signature, or on yours, and is not
    written if it differs. Where the comparison stays undecided it is written, with a warning. Of a folder every
    *.onnx file is optimised, also in the folders below, and a report <name>.json is written beside each result.
    """
    from normfuse.verification import VERIFY_SECONDS

    if model.is_dir():
        only_for_one = {"--inputs": inputs, "--report": report, "--measure": measure}
        given = [name for name, value in only_for_one.items() if value]
        if given:
            raise OptionError(f"{given[0]} is for one model, and {model} is a folder; leave it out.")
        options = {
            "target": target.value,
            "verify": not no_verify,
            "samples": samples,
            "max_error": max_error,
            "verify_seconds": verify_seconds or VERIFY_SECONDS,
            "require_fused": required_count(require_fused),
            "allow_requantization_removal": allow_requantization_removal,
        }
        optimize_models(model, output, engine.value, options, strict=strict, as_json=as_json)
        return
    from normfuse.benchmark import benchmark
    from normfuse.model_files import check_target
    from normfuse.optimization import OptimizationError, optimize
    from normfuse.report_files import check_report_path, write_report

    check_target(output, never_path=model)
    for path in report or ():
        check_report_path(path)
    with progress() as tell:
        try:
            result = optimize(
                model,
                target=target.value,
                verify=not no_verify,
                inputs=list(inputs) if inputs else None,
                samples=samples,
                max_error=max_error,
                verify_seconds=verify_seconds or VERIFY_SECONDS,
                require_fused=required_count(require_fused),
                allow_requantization_removal=allow_requantization_removal,
                progress=tell,
            )
        except OptimizationError as error:
            for path in report or ():
                write_report(error.report.to_dict(), path)
            raise
        if result.report.claims is None:
            tell("asking the execution provider", 0, 0)
            result = result.with_claims()
        tell("writing", 0, 0)
        written = result.save(output)
        measured = (
            None if measure is None else benchmark(result.source, seconds=measure, inputs=inputs or None, progress=tell)
        )
    data = result.report.to_dict() | {"output": str(output), "bytes_written": written}
    if measured is not None:
        data["benchmark"] = measured.to_dict()
    for path in report or ():
        write_report(data, path)
    if as_json:
        print_json(data)
    else:
        print_summary(result.report, output, written)
        if measured is not None:
            print_benchmark(measured)
    exit_if_undecided(result.report.verification, strict)


def print_operator_counts(report: OptimizationReport) -> None:
    """Print the operators whose number changed, and the sum of all."""
    rows = table("Operators", "operator", "before", "after", numeric=2)
    before, after = by_operator(report.operators_before), by_operator(report.operators_after)
    for name in sorted({*before, *after}, key=lambda name: (-before[name], name)):
        if before[name] != after[name]:
            rows.add_row(name, str(before[name]), str(after[name]))
    rows.add_section()
    rows.add_row("all operators", str(before.total()), str(after.total()))
    print_table(rows)


def print_summary(report: OptimizationReport, output: Path, written: int) -> None:
    """Print what was done, what was left, and what it amounts to."""
    for warning in report.warnings:
        warn(warning)
    print_operator_counts(report)
    print_site_counts(report.sites)
    print_left(report.left)
    if report.claims is not None:
        print_claims(report.claims)
    if report.verification is not None:
        print_verification(report.verification)
    else:
        warn("The result was not compared with the original (--no-verify).")
    found = len(report.fused) + len(report.left)
    console.print(
        f"Wrote {output}: {len(report.fused)} of {found} sites fused in {report.rewrite_seconds:.2f} s, "
        f"{size_text(report.bytes_before)} before, {size_text(written)} after.",
        markup=False,
        soft_wrap=True,
    )
    if not found:
        console.print(
            f"There was nothing to fuse: normfuse inspect --all {report.model} lists what was looked at.",
            markup=False,
            soft_wrap=True,
        )


def required_count(text: str | None) -> int | Literal["all"] | None:
    """Return the value of --require-fused."""
    if text is None:
        return None
    if text == "all":
        return "all"
    if not text.isdigit():
        raise OptionError(f"--require-fused is '{text}'; it takes a number from 0 on, or all.")
    return int(text)
