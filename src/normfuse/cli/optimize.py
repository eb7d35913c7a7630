"""``normfuse optimize``: rewrite, verify, report, write."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from normfuse.arguments import MOST_THREADS
from normfuse.cli import options
from normfuse.cli.bench import print_benchmark
from normfuse.cli.console import console, print_json, print_table, progress, say, table, warn
from normfuse.cli.folder import optimize_models
from normfuse.cli.grouping import grouped
from normfuse.cli.inspect import print_claims, print_left, print_site_counts
from normfuse.cli.tuning import print_tuning
from normfuse.cli.verify import exit_if_undecided, print_verification
from normfuse.errors import OptionError
from normfuse.reports.page import by_operator, size_text

if TYPE_CHECKING:
    from normfuse.optimization.float_network import RemovalReport
    from normfuse.optimization.optimize import OptimizationReport


class _Target(StrEnum):
    PORTABLE = "portable"
    CUSTOM_OP = "custom-op"
    STANDARD = "standard"


class _Engine(StrEnum):
    AUTO = "auto"
    RAY = "ray"
    LOCAL = "local"


@dataclasses.dataclass(frozen=True)
class _Rewriting:
    target: Annotated[
        _Target,
        typer.Option(
            help="portable: runs everywhere, faster where normfuse is installed; custom-op: needs normfuse's library; "
            "standard: ONNX operators only."
        ),
    ] = _Target.PORTABLE
    require_fused: options.RequireFused = None
    allow_requantization_removal: options.Requantization = False
    remove_quantization: Annotated[
        bool,
        typer.Option(
            "--remove-quantization",
            help="Take the quantisation of activations out: the float network. Results change, and it is said by how "
            "much.",
        ),
    ] = False
    fold_weights: Annotated[
        bool | None,
        typer.Option(
            "--fold-weights/--no-fold-weights",
            help="Dequantise weights once instead of in every run, where they are used as floats; the file grows. By "
            "default only if --tune measures that it is faster, or with --remove-quantization.",
            show_default=False,
        ),
    ] = None

    def arguments(self) -> dict[str, Any]:
        """As :func:`normfuse.optimize` takes them."""
        return {
            "target": self.target.value,
            "require_fused": options.required_count(self.require_fused),
            "allow_requantization_removal": self.allow_requantization_removal,
            "remove_quantization": self.remove_quantization,
            "fold_weights": self.fold_weights,
        }


@dataclasses.dataclass(frozen=True)
class _Verifying(options.Comparing):
    no_verify: Annotated[bool, typer.Option("--no-verify", help="Write without comparing with the original.")] = False

    def arguments(self) -> dict[str, Any]:
        """As :func:`normfuse.optimize` takes them, the inputs excepted, which are for one model."""
        return super().arguments() | {"verify": not self.no_verify, "verify_seconds": self.seconds}


@dataclasses.dataclass(frozen=True)
class _Tuning:
    tune: Annotated[
        bool,
        typer.Option(
            "--tune", help="Measure on this machine which chains are worth fusing, and store that in the model."
        ),
    ] = False
    tune_seconds: Annotated[
        float | None, typer.Option(min=0.1, metavar="SECONDS", help="Time limit of --tune. [60]")
    ] = None
    tune_threads: Annotated[
        int | None,
        typer.Option(
            min=0, max=MOST_THREADS, metavar="N", help="Intra-op threads for --tune; 0: ONNX Runtime's default. [1]"
        ),
    ] = None

    def arguments(self) -> dict[str, Any]:
        """As :func:`normfuse.optimize` takes them."""
        from normfuse.tuning import TUNE_SECONDS

        if not self.tune:
            given = {"--tune-seconds": self.tune_seconds, "--tune-threads": self.tune_threads}
            for name, value in given.items():
                if value is not None:
                    raise OptionError(f"{name} is for --tune, which is not given; add --tune or leave it out.")
            return {}
        threads = 1 if self.tune_threads is None else self.tune_threads
        return {"tune": self.tune_seconds or TUNE_SECONDS, "tune_threads": threads}


@dataclasses.dataclass(frozen=True)
class _Reporting:
    report: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE", help="Also write the report: *.html for people, *.json for programs; may be repeated."
        ),
    ] = None
    measure: Annotated[
        float | None,
        typer.Option(min=0.1, metavar="SECONDS", help="Also measure the speed, for this long, and report it."),
    ] = None
    engine: Annotated[
        _Engine,
        typer.Option(help="For a folder. ray: one model to a task; local: one after the other; auto: Ray, if there."),
    ] = _Engine.AUTO
    as_json: options.Json = False


@grouped
def optimize_command(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="The ONNX model, or a folder of models. Not changed.")],
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="OUT", help="The file to write, or the folder if MODEL is one.")
    ],
    rewriting: _Rewriting,
    verifying: _Verifying,
    tuning: _Tuning,
    reporting: _Reporting,
) -> None:
    """Fuse the normalisation chains of a model, verify the result, and write it.

    The result is compared with the original, on inputs made from the model's signature or on --inputs, and is
    not written if it differs. If the comparison is undecided it is written, with a warning. In a folder every *.onnx
    file is optimised, subfolders included, and a report <name>.json is written beside each result.

    With --tune the whole model is measured with groups of chains on and off. The decisions are stored in it and hold
    for this instruction set and this release of ONNX Runtime; elsewhere the cost model decides.
    """
    given = {**rewriting.arguments(), **verifying.arguments(), **tuning.arguments()}
    if model.is_dir():
        for name, value in (
            ("--inputs", verifying.inputs),
            ("--tune", tuning.tune),
            ("--report", reporting.report),
            ("--measure", reporting.measure),
        ):
            if value:
                raise OptionError(f"{name} is for one model, and {model} is a folder; leave it out.")
        strict, as_json = verifying.strict, reporting.as_json
        optimize_models(model, output, reporting.engine.value, given, strict=strict, as_json=as_json)
        return
    report = _optimize_one(model, output, given | {"inputs": options.sample_files(verifying.inputs)}, reporting)
    exit_if_undecided(report.verification, verifying.strict)


def _optimize_one(model: Path, output: Path, given: dict[str, Any], reporting: _Reporting) -> OptimizationReport:
    """Optimise a model, write it and its reports, and print what was done."""
    from normfuse.files.model_files import check_target
    from normfuse.measuring.benchmark import benchmark
    from normfuse.optimization.optimize import OptimizationError, optimize
    from normfuse.reports.files import check_report_path, write_report

    paths = reporting.report or ()
    check_target(output, never_path=model)
    for path in paths:
        check_report_path(path)
    measured = None
    with progress() as tell:
        try:
            result = optimize(model, **given, progress=tell)
        except OptimizationError as error:
            for path in paths:
                write_report(error.report.to_dict(), path)
            raise
        if result.report.claims is None:
            tell("asking the execution provider", 0, 0)
            result = result.with_claims()
        tell("writing", 0, 0)
        written = result.save(output)
        if reporting.measure is not None:
            measured = benchmark(
                result.source,
                seconds=reporting.measure,
                inputs=given["inputs"],
                optimized=result.in_memory,
                progress=tell,
            )
    data = result.report.to_dict() | {"output": str(output), "bytes_written": written}
    if measured is not None:
        data["benchmark"] = measured.to_dict()
    for path in paths:
        write_report(data, path)
    if reporting.as_json:
        print_json(data)
    else:
        print_summary(result.report, output, written)
        if measured is not None:
            print_benchmark(measured)
    return result.report


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


def _print_other_changes(rules: Mapping[str, int]) -> None:
    """Print how many operators changed their spelling: no sites, and the only changes beside those of the sites."""
    for rule, op_type, what in (
        ("EinsumAsMatMul", "Einsum", "MatMul, which ONNX Runtime computes faster"),
        ("SubtractionAsAddition", "Sub", "Add, which ONNX Runtime makes part of the convolution in front of it"),
    ):
        count = rules.get(rule, 0)
        if count:
            console.print(f"{count} {op_type} {'is' if count == 1 else 'are'} written as {what}.", soft_wrap=True)


def _print_removal(removal: RemovalReport) -> None:
    """Print what became of quantised activations, with one example for each reason to stay."""
    if removal.kept:
        rows = table("Quantisations that stay", "reason", "number", "for example", numeric=1, wraps="reason")
        reasons = Counter(pair.reason for pair in removal.kept)
        examples = {pair.reason: pair.name for pair in reversed(removal.kept)}
        for reason, count in reasons.most_common():
            rows.add_row(reason, str(count), examples[reason])
        print_table(rows)
    say(removal.message)


def print_summary(report: OptimizationReport, output: Path, written: int) -> None:
    """Print what was done, what was left, and what it amounts to."""
    for warning in report.warnings:
        warn(warning)
    print_operator_counts(report)
    _print_other_changes(report.rules)
    if report.folding is not None and report.folding.message:
        say(report.folding.message)
    print_site_counts(report.sites)
    print_left(report.left)
    if report.tuning is not None:
        print_tuning(report.tuning)
    if report.claims is not None:
        print_claims(report.claims)
    if report.verification is not None:
        print_verification(report.verification)
    else:
        warn("The result was not compared with the original (--no-verify).")
    if report.removal is not None:
        _print_removal(report.removal)
    found = len(report.fused) + len(report.left)
    say(
        f"Wrote {output}: {len(report.fused)} of {found} sites fused in {report.rewrite_seconds:.2f} s, "
        f"{size_text(report.bytes_before)} before, {size_text(written)} after."
    )
    if not found:
        say(f"There was nothing to fuse: normfuse inspect --all {report.model} lists what was looked at.")
