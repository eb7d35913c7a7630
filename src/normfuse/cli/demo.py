"""``normfuse demo``: everything in one go, on models built here."""

from __future__ import annotations

import dataclasses
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from normfuse.arguments import MOST_THREADS
from normfuse.cli.bench import threads_text
from normfuse.cli.console import console, number, print_table, progress, table
from normfuse.cli.optimize import print_operator_counts
from normfuse.errors import OptionError

if TYPE_CHECKING:
    import onnx

    from normfuse.benchmark import BenchmarkReport
    from normfuse.optimization import OptimizationReport

__all__ = ["demo_command"]


def demo_command(
    threads: Annotated[
        int, typer.Option(min=0, max=MOST_THREADS, metavar="N", help="Intra-op threads; 0: ONNX Runtime's default.")
    ] = 1,
    seconds: Annotated[float, typer.Option(min=0.1, metavar="SECONDS", help="How long to measure each model.")] = 3.0,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FOLDER", help="Keep the models in this folder.")
    ] = None,
) -> None:
    """Build reference models, optimise, verify and measure them.

    A transformer encoder as PyTorch exports it before opset 17 (LayerNorm of nine nodes, GELU of five), a block of a
    diffusion U-Net (GroupNorm and SiLU), and two of their chains alone.
    """
    if output is not None and not output.is_dir():
        raise OptionError(f"{output} is not a folder; create it first.")
    with tempfile.TemporaryDirectory(prefix="normfuse.") as temporary:
        results = [_run(model, output or Path(temporary), threads, seconds) for model in _models()]
    console.print("\nThe transformer, before and after:", style="bold")
    print_operator_counts(results[0][0])
    _print_results(results, threads)
    # As it was called, where the environment that it is in is not active.
    command = "normfuse" if shutil.which("normfuse") else sys.argv[0]
    console.print(
        "Every result was compared with the original's, with and without normfuse's library. Next:\n"
        f"{command} optimize your.onnx -o your.fused.onnx\n{command} bench your.onnx",
        markup=False,
        soft_wrap=True,
    )


@dataclasses.dataclass(frozen=True)
class _Model:
    name: str
    file: str
    build: Callable[[], onnx.ModelProto]
    sizes: dict[str, int]


def _models() -> tuple[_Model, ...]:
    from normfuse import models

    return (
        _Model(
            "transformer encoder, 4 layers",
            "transformer",
            lambda: models.transformer_encoder(layers=4, hidden=384, heads=6, opset=13),
            {"batch": 4, "sequence": 128},
        ),
        _Model(
            "diffusion block [1, 128, 64, 64]",
            "diffusion",
            lambda: models.diffusion_resblock(channels=128, size=64),
            {"batch": 1},
        ),
        _Model(
            "Add -> LayerNorm -> GELU [8, 512, 768]",
            "layernorm",
            lambda: models.chain([8, 512, 768], residual=True, activation_name="gelu_erf", opset=17),
            {},
        ),
        _Model(
            "GroupNorm -> SiLU [2, 320, 64, 64]",
            "groupnorm",
            lambda: models.chain(
                [2, 320, 64, 64], "GroupNormalization", spelling="instance", activation_name="silu", opset=17
            ),
            {},
        ),
    )


def _run(model: _Model, folder: Path, threads: int, seconds: float) -> tuple[OptimizationReport, BenchmarkReport, str]:
    import onnx

    from normfuse.benchmark import benchmark
    from normfuse.optimization import optimize

    path = folder / f"{model.file}.onnx"
    onnx.save(model.build(), path)
    with progress() as tell:
        result = optimize(path, progress=tell)
        result.save(folder / f"{model.file}.fused.onnx")
        measured = benchmark(path, threads=threads, seconds=seconds, sizes=model.sizes, progress=tell)
    report = result.report
    verified = report.verification.message if report.verification is not None else ""
    console.print(
        f"{model.name}: {len(report.fused)} of {len(report.fused) + len(report.left)} sites fused. {verified}",
        markup=False,
        soft_wrap=True,
    )
    return report, measured, model.name


def _print_results(results: list[tuple[OptimizationReport, BenchmarkReport, str]], threads: int) -> None:
    version = results[0][1].onnxruntime_version
    rows = table(
        f"Milliseconds, {threads_text(threads)}, onnxruntime {version}",
        *("model", "nodes", "original", "normfuse", "speed", "error"),
        numeric=5,
        wraps="model",
    )
    for report, measured, name in results:
        original, fused = measured.timings[0], measured.timings[-1]
        before, after = sum(report.operators_before.values()), sum(report.operators_after.values())
        rows.add_row(
            name,
            f"{before} -> {after}",
            number(original.median_ms),
            number(fused.median_ms),
            f"{fused.speedup:.2f}x",
            number(fused.error),
        )
    print_table(rows)
