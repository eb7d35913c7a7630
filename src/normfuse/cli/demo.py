"""``normfuse demo``: everything in one go, on models built here."""

from __future__ import annotations

import dataclasses
import functools
import logging
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from normfuse.cli import options
from normfuse.cli.bench import threads_text
from normfuse.cli.console import console, number, print_table, progress, say, table
from normfuse.cli.optimize import print_operator_counts
from normfuse.errors import OptionError

if TYPE_CHECKING:
    import onnx

    from normfuse.measuring.benchmark import BenchmarkReport
    from normfuse.optimization.optimize import OptimizationReport


def demo_command(
    threads: options.Threads = 1,
    seconds: Annotated[float, typer.Option(min=0.1, metavar="SECONDS", help="How long to measure each model.")] = 3.0,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FOLDER", help="Keep the models in this folder.")
    ] = None,
) -> None:
    """Build reference models, optimise, verify and measure them.

    A transformer encoder as PyTorch exports it before opset 17 (LayerNorm of nine nodes, GELU of five), a network of
    convolutions as text recognisers have them, the same quantised to int8 and to 16 bits, and a chain alone.
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
    say(
        "Every result was compared with the original's, with and without normfuse's library. Times are those of\n"
        "normfuse.InferenceSession, which also chooses what a quantised model's products run in. Next:\n"
        f"{command} run your_app.py\n"
        f"{command} optimize your.onnx -o your.fused.onnx\n{command} bench your.onnx"
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
        _Model("OCR network, float", "ocr", _ocr_network, _PAGES),
        _Model("OCR network, int8", "ocr.int8", functools.partial(_quantized, "QInt8"), _PAGES),
        _Model("OCR network, 16 bits (a16w8)", "ocr.a16w8", functools.partial(_quantized, "QUInt16"), _PAGES),
        _Model(
            "GroupNorm -> SiLU [2, 320, 64, 64]",
            "groupnorm",
            lambda: models.chain(
                [2, 320, 64, 64], "GroupNormalization", spelling="instance", activation_name="silu", opset=17
            ),
            {},
        ),
    )


_PAGES = {"batch": 1, "width": 320}


def _ocr_network() -> onnx.ModelProto:
    from normfuse import models

    return models.ocr_block(channels=64, separable=6, opset=21)  # the first with 16 bits


def _quantized(activations: str) -> onnx.ModelProto:
    """Return the same network as ONNX Runtime's quantiser makes it, by default in int8, of lines of strokes."""
    import numpy as np
    import onnx
    from onnxruntime import quantization

    class Lines:
        def __init__(self) -> None:
            generator = np.random.default_rng(0)
            lines = np.where(generator.random((2, 1, 1, 48, 40)) < 0.3, -1.0, 1.0).repeat(4, -1).repeat(3, 2)
            self._left = [{"x": each.astype(np.float32)} for each in lines]

        def get_next(self) -> dict[str, np.ndarray] | None:
            return self._left.pop() if self._left else None

    logging.disable(logging.WARNING)  # it recommends what changes nothing here
    try:
        with tempfile.TemporaryDirectory(prefix="normfuse.") as folder:
            target = Path(folder) / "quantized.onnx"
            kind = quantization.QuantType[activations]
            quantization.quantize_static(_ocr_network(), target, Lines(), activation_type=kind, per_channel=True)
            return onnx.load(target)
    finally:
        logging.disable(logging.NOTSET)


def _run(model: _Model, folder: Path, threads: int, seconds: float) -> tuple[OptimizationReport, BenchmarkReport, str]:
    import onnx

    from normfuse.measuring.benchmark import benchmark
    from normfuse.optimization.optimize import optimize

    path = folder / f"{model.file}.onnx"
    onnx.save(model.build(), path)
    with progress() as tell:
        result = optimize(path, progress=tell)
        result.save(folder / f"{model.file}.fused.onnx")
        measured = benchmark(path, threads=threads, seconds=seconds, sizes=model.sizes, progress=tell)
    report = result.report
    verified = report.verification.message if report.verification is not None else ""
    sites = len(report.fused) + len(report.left)
    fused = f"{len(report.fused)} of {sites} sites fused." if sites else "left to the session."
    say(f"{model.name}: {fused} {verified}")
    return report, measured, model.name


def _print_results(results: list[tuple[OptimizationReport, BenchmarkReport, str]], threads: int) -> None:
    version = results[0][1].onnxruntime_version
    rows = table(
        f"Milliseconds of the fastest run, {threads_text(threads)}, onnxruntime {version}",
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
            number(original.best_ms),
            number(fused.best_ms),
            f"{original.best_ms / fused.best_ms:.2f}x",  # of the two beside it
            number(fused.error),
        )
    print_table(rows)
