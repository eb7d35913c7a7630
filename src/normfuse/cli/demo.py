"""``normfuse demo``: everything in one go, on models built here."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated

import typer

from normfuse.cli.bench import print_benchmark
from normfuse.cli.console import console, progress, table
from normfuse.cli.optimize import print_summary
from normfuse.errors import OptionError

__all__ = ["demo_command"]


def demo_command(
    threads: Annotated[int, typer.Option(min=0, help="Threads inside an operator; 0: ONNX Runtime's default.")] = 1,
    seconds: Annotated[float, typer.Option(min=0.1, help="How long to measure each model.")] = 4.0,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FOLDER", help="Keep the models in this folder.")
    ] = None,
) -> None:
    """Build two reference models, optimise, verify and measure them.

    A transformer encoder as PyTorch exports it before opset 17 (LayerNorm of nine nodes, GELU of five), and a block of
    a diffusion U-Net (GroupNorm and SiLU).

    Example: [bold]normfuse demo --threads 2[/]
    """
    if output is not None and not output.is_dir():
        raise OptionError(f"{output} is not a folder; create it first.")
    with tempfile.TemporaryDirectory(prefix="normfuse.") as temporary:
        folder = output or Path(temporary)
        rows = table("normfuse demo", "model", "sites fused", "nodes", "error", "speed", numeric=4)
        for name, sizes in (("transformer", {"batch": 4, "sequence": 128}), ("diffusion", {"batch": 1})):
            rows.add_row(name, *_run(name, folder, sizes, threads, seconds))
    console.print(rows)
    console.print(
        "Speed: ONNX Runtime's time for the original / time of the rewritten model with normfuse. "
        "Next: normfuse optimize your.onnx -o your.fused.onnx",
        markup=False,
        soft_wrap=True,
    )


def _run(name: str, folder: Path, sizes: dict[str, int], threads: int, seconds: float) -> list[str]:
    import onnx

    from normfuse import models
    from normfuse.benchmark import benchmark
    from normfuse.optimization import optimize

    path = folder / f"{name}.onnx"
    model = (
        models.transformer_encoder(layers=4, hidden=384, heads=6, opset=13)
        if name == "transformer"
        else models.diffusion_resblock(channels=128, size=64)
    )
    onnx.save(model, path)
    with progress() as tell:
        result = optimize(path, progress=tell)
        written = result.save(folder / f"{name}.fused.onnx")
        measured = benchmark(path, threads=threads, seconds=seconds, sizes=sizes, progress=tell)
    print_summary(result.report, folder / f"{name}.fused.onnx", written)
    print_benchmark(measured)
    report, fused = result.report, measured.timings[-1]
    return [
        f"{len(report.fused)} of {len(report.sites)}",
        f"{sum(report.operators_before.values())} -> {sum(report.operators_after.values())}",
        f"{fused.error:.2g}",
        f"{fused.speedup:.2f}x",
    ]
