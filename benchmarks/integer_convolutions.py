"""Convolutions in float and in integers, by kind: ``python benchmarks/integer_convolutions.py``.

Runs a row of equal convolutions of float32 in ONNX Runtime's blocked layout, and the same of uint8 activations and int8
weights between pairs, in turns on one thread. Prints the nanoseconds of processor time for 1,000 products of two
numbers, and how many times as long the integers take. `graph_rewrites/quantized_products.py` estimates by the first two
columns which of both a network is faster in.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from normfuse.measuring import bound_run, clock_for, take_turns

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "benchmarks"), *(str(ROOT / "tests" / name) for name in (".", "real_models"))]

import report  # noqa: E402
from quantizer_styles import options, plain  # noqa: E402

LAYERS = 12  # so that what is moved before the first and behind the last one counts little


class Convolution(NamedTuple):
    """One with as many channels behind it as before, of images that stay as large."""

    channels: int
    kernel: int
    size: int
    is_depthwise: bool = False

    @property
    def weights(self) -> tuple[int, int, int, int]:
        return self.channels, 1 if self.is_depthwise else self.channels, self.kernel, self.kernel

    @property
    def thousand_products(self) -> float:
        return math.prod(self.weights) * self.size**2 / 1000

    def __str__(self) -> str:
        kind = ", depthwise" if self.is_depthwise else ""
        return f"{self.channels} channels, {self.kernel} x {self.kernel}{kind}, [{self.size}, {self.size}]"


CONVOLUTIONS = (
    Convolution(16, 1, 96),
    Convolution(32, 1, 48),
    Convolution(64, 1, 48),
    Convolution(128, 1, 24),
    Convolution(16, 3, 96),
    Convolution(64, 3, 48),
    Convolution(128, 3, 24),
    Convolution(16, 3, 96, is_depthwise=True),
    Convolution(64, 3, 48, is_depthwise=True),
    Convolution(128, 5, 24, is_depthwise=True),
)


def network(convolution: Convolution, in_integers: bool) -> bytes:
    generator = np.random.default_rng(0)
    scale = np.float32(1 / math.sqrt(math.prod(convolution.weights[1:])) / 32)
    tensors = {"s": np.array(0.05, np.float32), "z": np.array(128, np.uint8), "ws": np.array(scale), "wz": np.int8(0)}
    nodes = []
    value = "x"
    for i in range(LAYERS):
        stored = generator.integers(-64, 65, convolution.weights).astype(np.int8)
        if in_integers:
            tensors[f"W{i}"] = stored
            nodes.append(helper.make_node("QuantizeLinear", [value, "s", "z"], [f"q{i}"]))
            nodes.append(helper.make_node("DequantizeLinear", [f"q{i}", "s", "z"], [f"d{i}"]))
            nodes.append(helper.make_node("DequantizeLinear", [f"W{i}", "ws", "wz"], [f"w{i}"]))
            value = f"d{i}"
        else:
            tensors[f"w{i}"] = stored * scale
        pads = [convolution.kernel // 2] * 4
        group = convolution.channels if convolution.is_depthwise else 1
        nodes.append(helper.make_node("Conv", [value, f"w{i}"], [f"c{i}"], pads=pads, group=group))
        value = f"c{i}"
    if in_integers:
        nodes.append(helper.make_node("QuantizeLinear", [value, "s", "z"], ["q"]))
        nodes.append(helper.make_node("DequantizeLinear", ["q", "s", "z"], ["y"]))
    else:
        nodes[-1].output[0] = "y"
    shape = [1, convolution.channels, convolution.size, convolution.size]
    used = {name for node in nodes for name in node.input}
    graph = helper.make_graph(
        nodes,
        "convolutions",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in tensors.items() if name in used],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    return bytes(model.SerializeToString())


def measured(convolution: Convolution, seconds: float) -> tuple[float, float]:
    """Nanoseconds of one convolution, in float and in integers."""
    shape = (1, convolution.channels, convolution.size, convolution.size)
    x = {"x": np.random.default_rng(1).standard_normal(shape).astype(np.float32)}
    runs = [bound_run(plain(network(convolution, each), options()), x) for each in (False, True)]
    taken = take_turns(runs, seconds, lambda what, done, total: None, clock_for(1)[0])
    in_float, in_integers = (1e9 * statistics.median(t for times in each for t in times) / LAYERS for each in taken)
    return in_float, in_integers


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=1.0, help="of measuring each convolution")
    arguments = parser.parse_args()
    print(f"{report.machine()}, onnxruntime {onnxruntime.__version__}\n")
    print("| convolution | float, ns / 1,000 | uint8 x int8, ns / 1,000 | integers / float |\n|---|---|---|---|")
    for convolution in CONVOLUTIONS:
        in_float, in_integers = measured(convolution, arguments.seconds)
        cells = [f"{time / convolution.thousand_products:.3g}" for time in (in_float, in_integers)]
        print(f"| {convolution} | {' | '.join(cells)} | {in_integers / in_float:.2f} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
