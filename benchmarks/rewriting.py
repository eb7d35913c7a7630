"""How long the rewriting pass takes: ``python benchmarks/rewriting.py [--nodes 1000 10000 100000] [--model FILE ...]``.

Measures normfuse.optimize without verification, and what normfuse.InferenceSession makes of a model before ONNX Runtime
creates a session on it, reading from and writing to memory included, on generated models of so many nodes (layers of a
transformer as exporters before opset 17 write them, quantised and not) and on files. Prints two lines for each: nodes,
sites, seconds of processor time, and microseconds a node, which stay the same where the time is linear.
"""

import argparse
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx

import normfuse
from normfuse import models
from normfuse.collection import without_collection
from normfuse.files.model_files import runnable
from normfuse.models import spellings
from normfuse.sessions import creation as sessions


def layers(
    count: int, rows: tuple[str | int, str | int] = ("batch", "length"), *, decomposed: bool = True
) -> onnx.ModelProto:
    """A model of about `count` nodes: residual layers with a normalisation, GELU and a requantisation each."""
    g = models.GraphBuilder(opset=13 if decomposed else 20)
    width = 8
    first, second = g.weight(width, 2 * width), g.weight(2 * width, width)
    x = g.input("x", (*rows, width))
    while g.node_count < count:
        affine = g.weight(width, mean=1.0), g.weight(width)
        normal = spellings.layer_norm(g, x, *affine) if decomposed else g.add("LayerNormalization", x, *affine)
        hidden = g.add("Add", g.add("MatMul", normal, first), g.weight(2 * width))
        grid = (np.float32(0.05), np.int8(0))
        gelu = spellings.activation(g, hidden, "gelu_erf") if decomposed else g.add("Gelu", hidden)
        quantised = g.add("QuantizeLinear", gelu, *grid)
        x = g.add("Add", x, g.add("MatMul", g.add("DequantizeLinear", quantised, *grid), second))
    g.output(x, (*rows, width))
    return g.model("layers")


def measured(name: str, model: onnx.ModelProto) -> str:
    """Optimise a model and return the line about it."""
    start = time.process_time()
    result = normfuse.optimize(model, verify=False)
    size = len(result.model.SerializeToString())
    seconds = time.process_time() - start
    return line(name, len(model.graph.node), len(result.report.fused), seconds, size)


def prepared(name: str, model: onnx.ModelProto) -> str:
    """Make of a model what a session is created on, as sessions do, and return the line about it."""
    nodes, options = len(model.graph.node), normfuse.session_options()
    start = time.process_time()
    with without_collection():
        given = sessions.GivenModel(model, None)
        made = sessions.session_model(given.take(), options, sessions.AllowedChanges(), again=given.take)
        with runnable(made.model) as (data, _):
            size = len(data) if isinstance(data, bytes) else data.stat().st_size
    seconds = time.process_time() - start
    fused = 0 if made.written is None else sum(site.fused_into is not None for site in made.written.sites)
    return line(f"{name}, session", nodes, fused, seconds, size)


def line(name: str, nodes: int, fused: int, seconds: float, size: int) -> str:
    return f"{name:32} {nodes:8} {fused:7} {seconds:9.2f} {1e6 * seconds / nodes:9.0f} {size / 1e6:9.1f}"


def cases(sizes: list[int], files: list[Path]) -> Iterator[tuple[str, onnx.ModelProto]]:
    """Yield name and model of everything that was asked for."""
    for nodes in sizes:
        yield f"layers, {nodes}", layers(nodes)
    for path in files:
        yield path.name, onnx.load(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, nargs="*", default=[1_000, 10_000, 100_000])
    parser.add_argument("--model", type=Path, nargs="*", default=[])
    arguments = parser.parse_args()
    print(f"{'model':32} {'nodes':>8} {'fused':>7} {'seconds':>9} {'us/node':>9} {'MB':>9}")
    measured("warming up", layers(200))
    prepared("warming up", layers(200))
    for name, model in cases(arguments.nodes, arguments.model):
        print(measured(name, model), flush=True)
        print(prepared(name, model), flush=True)


if __name__ == "__main__":
    main()
