"""What other optimisers find in the same models: ``python benchmarks/compare_rewriters.py [--write PAGE] [NAME ...]``.

Counts the normalisations and the activations (GELU, SiLU, HardSwish, Mish) that each tool leaves as one operator, or as
part of one, in real third-party models (tests/real_models/model_zoo.py) and in the models that onnxscript tests its own
rewriter with. Tools that are not installed are left out: pip install onnxslim openvino sympy. Prints one table, or
writes it into a page of the documentation, and fails where any tool finds more than normfuse.

* ort: onnxruntime.transformers.optimizer, the best of its model types
* onnxscript: onnxscript.optimizer, then onnxscript.rewriter.ort_fusions
* onnxslim: onnxslim.slim
* openvino: the CPU plugin's runtime model for normalisations; for activations the model after openvino's common
  transformations, as the plugin makes them part of matrix products
* session: what ONNX Runtime's own session fuses (ORT_ENABLE_EXTENDED)
"""

from __future__ import annotations

import argparse
import contextlib
import io
import logging
import multiprocessing
import re
import resource
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NamedTuple

import onnx
import onnxruntime

import normfuse

sys.path.insert(0, str(Path(__file__).resolve().parent))

from real_models import cases

MODEL_TYPES = ("bert", "gpt2", "t5", "clip", "unet", "vae")
MEMORY = 14 << 30
NORMALIZATIONS = re.compile(r"(LayerNorm|GroupNorm|RMSNorm|InstanceNorm|MeanVarianceNorm)")
ACTIVATIONS = re.compile(r"(Gelu|Swish|Mish|Silu)")


class Found(NamedTuple):
    """How many of each were found."""

    normalizations: int
    activations: int


def count(op_types: Iterable[str]) -> Found:
    """Count operators by their names; a BiasGelu is an activation, a SkipLayerNormalization a normalisation."""
    counted = Counter(op_types)
    return Found(
        sum(number for name, number in counted.items() if NORMALIZATIONS.search(name)),
        sum(number for name, number in counted.items() if ACTIVATIONS.search(name)),
    )


def nodes(model: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in model.graph.node]


def by_normfuse(path: Path) -> Found:
    fused = [site for site in normfuse.inspect(path) if site.fused_into is not None]
    return Found(
        sum(bool(NORMALIZATIONS.search(site.kind)) for site in fused),
        sum(bool(ACTIVATIONS.search(site.description)) for site in fused),
    )


def by_ort(path: Path) -> Found:
    from onnxruntime.transformers import optimizer

    best = Found(0, 0)
    for model_type in MODEL_TYPES:
        # Some model types do not take some models.
        with contextlib.suppress(Exception):
            optimized = optimizer.optimize_model(str(path), model_type=model_type, opt_level=0, use_gpu=False)
            best = Found(*map(max, zip(best, count(nodes(optimized.model)), strict=True)))
    return best


def by_onnxscript(path: Path) -> Found:
    import onnx_ir as ir
    from onnxscript import optimizer
    from onnxscript.rewriter import ort_fusions

    model = ir.load(path)
    optimizer.optimize(model)
    optimized, _ = ort_fusions.optimize_for_ort(model)
    return count(nodes(ir.to_proto(optimized)))


def by_onnxslim(path: Path) -> Found:
    import onnxslim

    return count(nodes(onnxslim.slim(onnx.load(path))))


def by_openvino(path: Path) -> Found:
    import openvino
    from openvino._offline_transformations import apply_moc_transformations

    core = openvino.Core()
    runtime = core.compile_model(core.read_model(path), "CPU").get_runtime_model()
    layers = Counter(op.get_rt_info()["layerType"].astype(str) for op in runtime.get_ordered_ops())
    transformed = core.read_model(path)
    apply_moc_transformations(transformed, cf=False)
    operators = [op.get_type_name() for op in transformed.get_ordered_ops()]
    activations = sum(name in ("Gelu", "HSwish", "Mish", "Swish") for name in operators)
    return Found(layers["MVN"] + layers["RMS"] + layers["GroupNormalization"], activations)


def by_session(path: Path) -> Found:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.log_severity_level = 4
    with tempfile.TemporaryDirectory() as folder:
        options.optimized_model_filepath = str(Path(folder) / "optimized.onnx")
        onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        return count(nodes(onnx.load(options.optimized_model_filepath)))


#: Column -> how it counts, and the package that it needs.
TOOLS: dict[str, tuple[Callable[[Path], Found], str]] = {
    "ort": (by_ort, "sympy"),
    "onnxscript": (by_onnxscript, "onnxscript"),
    "onnxslim": (by_onnxslim, "onnxslim"),
    "openvino": (by_openvino, "openvino"),
    "session": (by_session, "onnxruntime"),
    "normfuse": (by_normfuse, "normfuse"),
}


def installed() -> dict[str, Callable[[Path], Found]]:
    tools = {}
    for name, (tool, package) in TOOLS.items():
        with contextlib.suppress(PackageNotFoundError):
            version(package)
            tools[name] = tool
    return tools


def measured(tool: Callable[[Path], Found], path: Path) -> Found | None:
    """Return what a tool finds; None where it fails on the model. What it prints is swallowed."""
    logging.disable(logging.CRITICAL)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        try:
            return tool(path)
        except Exception:
            return None


def page(rows: list[tuple[str, list[Found | None]]], tools: Iterable[str]) -> str:
    """Return the table with what it says, as Markdown."""
    packages = ("onnxruntime", "onnxscript", "onnxslim", "openvino")
    versions = ", ".join(f"{name} {version(name)}" for name in packages if name in [*tools, "onnxruntime"])
    lines = [
        "# What other optimisers find",
        "",
        "Normalisations + activations (GELU, SiLU, HardSwish, Mish) that each tool leaves as one operator or part of "
        "one; `-`: the tool fails on the model.",
        "",
        "Written by `python benchmarks/compare_rewriters.py --write "
        f"docs/pages/rewriters.md` with {versions}; the script says how each tool is run and counted.",
        "",
        "| model | " + " | ".join(tools) + " |",
        "| --- |" + " --- |" * len(list(tools)),
    ]
    for name, row in rows:
        cells = ["-" if found is None else f"{found.normalizations} + {found.activations}" for found in row]
        lines.append("| " + " | ".join([name, *cells]) + " |")
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="models; none: all")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="write the table there")
    arguments = parser.parse_args()
    tools = installed()
    rows: list[tuple[str, list[Found | None]]] = []
    beaten = []
    # A process of its own for each, as most tools keep a model's memory.
    processes = multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1)
    with tempfile.TemporaryDirectory() as folder, processes:
        for case in cases(Path(folder), arguments.names):
            row = [processes.apply(measured, (tool, case.path)) for tool in tools.values()]
            rows.append((case.name, row))
            print(
                case.name, *(f"{tool} {found}" for tool, found in zip(tools, row, strict=True)), sep="\n  ", flush=True
            )
            ours = row[-1]
            assert ours is not None, f"normfuse failed on {case.name}"
            beaten += [
                f"{case.name}: {tool} finds {found}, normfuse {ours}"
                for tool, found in zip(tools, row, strict=True)
                if found is not None and any(theirs > mine for theirs, mine in zip(found, ours, strict=True))
            ]
    table = page(rows, list(tools))
    print(table)
    if arguments.write:
        arguments.write.write_text(table, encoding="utf-8")
    print("\n".join(beaten) or "No tool finds more than normfuse in any model.")
    return 1 if beaten else 0


if __name__ == "__main__":
    sys.exit(main())
