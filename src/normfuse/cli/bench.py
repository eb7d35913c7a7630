"""``normfuse bench``: speed and error, side by side."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from normfuse.cli import options
from normfuse.cli.console import number, print_json, print_table, progress, say, table
from normfuse.cli.quantization import print_quantization
from normfuse.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.table import Table

    from normfuse.measuring.benchmark import BenchmarkReport, OperatorTime

_OPERATORS_SHOWN = 8
_LEFT_SHOWN = 4


def bench_command(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="The original ONNX model.")],
    threads: options.Threads = 1,
    seconds: Annotated[float, typer.Option(min=0.1, metavar="SECONDS", help="How long to measure.")] = 5.0,
    inputs: options.Inputs = None,
    dim: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=SIZE", help="Size of a symbolic dimension; may be repeated."),
    ] = None,
    backend: Annotated[
        str, typer.Option(metavar="BACKEND", help="What runs the fused chains: auto, cpu or directml.")
    ] = "auto",
    claim: Annotated[
        str, typer.Option(metavar="CLAIM", help="Which chains the provider takes: profitable or all.")
    ] = "profitable",
    as_json: options.Json = False,
) -> None:
    """Measure a model on ONNX Runtime's CPU provider and with normfuse, in alternating runs of one process.

    Four configurations are measured: the original and the rewritten model, each without and with the execution
    provider. A fifth one is what normfuse.InferenceSession makes of a quantised model some of whose operators run
    in float: their weights are dequantised once. The error is that against the original without any graph
    optimisation. ONNX Runtime's profiler gives the share of time in fused nodes, and the share of the same chains
    in the original, which bounds the gain (Amdahl's law). The table of operators shows where the time goes without
    and with normfuse. Of a quantised model it says the kind, and what that costs on this machine. With --backend
    directml the GPU work of a run is counted, too: submissions, waits, and bytes copied each way.
    """
    from normfuse.measuring.benchmark import benchmark

    with progress() as tell:
        report = benchmark(
            model,
            threads=threads,
            seconds=seconds,
            inputs=options.sample_files(inputs),
            sizes=_sizes(dim or []),
            ep_options={"backend": backend, "claim": claim},
            progress=tell,
        )
    if as_json:
        print_json(report.to_dict())
    else:
        print_benchmark(report)


def print_benchmark(report: BenchmarkReport) -> None:
    """Print a benchmark as a table."""
    shapes = ", ".join(f"{name} {list(shape)}" for name, shape in report.inputs.items())
    title = (
        f"{Path(report.model).name}: {shapes}; {threads_text(report.threads)}, onnxruntime {report.onnxruntime_version}"
    )
    say(title, style="bold")
    rows = table("", "run", "median ms", "speed", "middle half", "in fused", "error", numeric=5, wraps="")
    for timing in report.timings:
        slow, fast = timing.speedup_quartiles
        rows.add_row(
            timing.name,
            number(timing.median_ms),
            f"{timing.speedup:.2f}x",
            f"{slow:.2f}-{fast:.2f}",
            "" if timing.fused_share is None else f"{timing.fused_share:.1%}",
            number(timing.error),
        )
    print_table(rows)
    if report.saturation is not None:
        say(report.saturation.message)
    _print_operators(report)
    for text in (_left_text(report), _bound_text(report)):
        say(text)
    print_quantization(report.quantization)
    say(f"normfuse.InferenceSession: {report.session_plan}")
    for timing in report.timings:
        if timing.gpu_work is not None:
            say(f"On DirectML a run of '{timing.name}' makes {timing.gpu_work}.")


def _print_operators(report: BenchmarkReport) -> None:
    """Print where the kernel time goes without and with normfuse: the longest in either first, short ones as one."""
    rows = table(
        "Kernel time by operator, in milliseconds",
        "operator",
        "nodes",
        "original",
        "nodes",
        "with normfuse",
        "share",
        numeric=5,
        wraps="",
    )
    whole = _whole(report)
    for kind, title in (("product", "products"), ("fused", "fused chains"), ("other", "around them")):
        group = [operator for operator in report.operators if operator.kind == kind]
        if not group:
            continue
        group.sort(key=lambda operator: -max(operator.before_ms, operator.after_ms))
        _add_operators(rows, title, group, whole)
        for operator in group[:_OPERATORS_SHOWN] if kind != "fused" else ():
            _add_operators(rows, f"    {operator.name}", [operator], whole)
        if len(group) > _OPERATORS_SHOWN:
            _add_operators(rows, f"    {len(group) - _OPERATORS_SHOWN} more", group[_OPERATORS_SHOWN:], whole)
    print_table(rows)


def _add_operators(rows: Table, title: str, group: Sequence[OperatorTime], whole: float) -> None:
    before, after = sum(one.before_ms for one in group), sum(one.after_ms for one in group)
    nodes = [str(sum(one.before_nodes for one in group)), str(sum(one.after_nodes for one in group))]
    rows.add_row(title, nodes[0], number(before), nodes[1], number(after), f"{after / whole:.1%}")


def _whole(report: BenchmarkReport) -> float:
    return sum(operator.after_ms for operator in report.operators) or 1.0


def _left_text(report: BenchmarkReport) -> str:
    """Say what normfuse leaves, and what of it takes longest."""
    whole = _whole(report)
    shares = {
        kind: sum(operator.after_ms for operator in report.operators if operator.kind == kind) / whole
        for kind in ("product", "fused", "other")
    }
    left = [operator for operator in report.operators if operator.kind == "other" and operator.after_ms > 0]
    longest = ", ".join(
        f"{operator.name} {operator.after_ms / whole:.1%} ({operator.after_nodes} nodes)"
        if operator.after_nodes > 1
        else f"{operator.name} {operator.after_ms / whole:.1%} (1 node)"
        for operator in left[:_LEFT_SHOWN]
    )
    return (
        f"With normfuse {shares['product']:.1%} of the kernel time is in products, which it does not make faster, "
        f"{shares['fused']:.1%} in fused chains, and {shares['other']:.1%} around them"
        + (f": {longest}{' and others' if len(left) > _LEFT_SHOWN else ''}." if left else ".")
    )


def _bound_text(report: BenchmarkReport) -> str:
    if math.isinf(report.bound):
        return "The original's kernels do nothing but what is fused."
    return (
        f"The chains that are fused take {report.chain_share:.1%} of the original's kernel time. If they took none, "
        f"the model would run {report.bound:.2f} times as fast."
    )


def threads_text(count: int) -> str:
    """Return a number of threads in words."""
    return {0: "default threads", 1: "1 thread"}.get(count, f"{count} threads")


def _sizes(texts: list[str]) -> dict[str, int]:
    sizes = {}
    for text in texts:
        name, equals, size = text.rpartition("=")
        if not equals or not name or not size.isdigit():
            raise OptionError(f"--dim is '{text}'; it takes NAME=SIZE, such as batch=8.")
        sizes[name] = int(size)
    return sizes
