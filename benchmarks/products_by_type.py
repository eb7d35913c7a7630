"""Products in float and in integers, by kind: ``python benchmarks/products_by_type.py``.

Runs a row of equal convolutions of float32 in ONNX Runtime's blocked layout, or of equal MatMul or Gemm, and the same
of uint8 activations and 8-bit weights between pairs, in turns on one thread. Prints the nanoseconds of processor time
for 1,000 products of two numbers, the median of several processes, and how many times as long the integers take.
`graph_rewrites/product_times.py` estimates by the first two columns which of both a network is faster in.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from normfuse.measuring import bound_run, clock_for, take_turns

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "benchmarks"), *(str(ROOT / "tests" / name) for name in (".", "real_models"))]

import report  # noqa: E402
from quantizer_styles import options, plain  # noqa: E402

LAYERS = 12  # so that what is moved before the first and behind the last one counts little


@dataclass(frozen=True)
class Convolution:
    """One with as many channels behind it as before, of images that stay as large."""

    channels: int
    kernel: int
    size: int
    is_depthwise: bool = False
    stored: type = np.int8

    @property
    def weights(self) -> tuple[int, ...]:
        return self.channels, 1 if self.is_depthwise else self.channels, self.kernel, self.kernel

    @property
    def summands(self) -> int:
        return math.prod(self.weights[1:])

    @property
    def shape(self) -> tuple[int, ...]:
        return 1, self.channels, self.size, self.size

    def node(self, x: str, weights: str, y: str) -> onnx.NodeProto:
        group = self.channels if self.is_depthwise else 1
        return helper.make_node("Conv", [x, weights], [y], pads=[self.kernel // 2] * 4, group=group)

    def __str__(self) -> str:
        kind = ", depthwise" if self.is_depthwise else ""
        return f"Conv: {self.channels} channels, {self.kernel} x {self.kernel}{kind}, [{self.size}, {self.size}]"


@dataclass(frozen=True)
class Matrix:
    """A product with a square matrix."""

    operator: str
    rows: int
    columns: int
    stored: type = np.int8

    @property
    def weights(self) -> tuple[int, ...]:
        return self.columns, self.columns

    @property
    def summands(self) -> int:
        return self.columns

    @property
    def shape(self) -> tuple[int, ...]:
        return self.rows, self.columns

    def node(self, x: str, weights: str, y: str) -> onnx.NodeProto:
        return helper.make_node(self.operator, [x, weights], [y])

    def __str__(self) -> str:
        kind = "" if self.stored is np.int8 else f", weights of {np.dtype(self.stored).name}"
        return f"{self.operator}: [{self.rows}, {self.columns}] x [{self.columns}, {self.columns}]{kind}"


PRODUCTS = {
    str(product): product
    for product in (
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
        Matrix("MatMul", 1, 512),
        Matrix("MatMul", 128, 64),
        Matrix("MatMul", 128, 384),
        Matrix("MatMul", 128, 384, np.uint8),
        Matrix("MatMul", 512, 768),
        Matrix("MatMul", 512, 768, np.uint8),
        Matrix("Gemm", 1, 512),
        Matrix("Gemm", 128, 384),
    )
}


def network(product: Convolution | Matrix, in_integers: bool) -> bytes:
    generator = np.random.default_rng(0)
    scale = np.float32(1 / math.sqrt(product.summands) / 32)
    zero = np.array(128 if product.stored is np.uint8 else 0, product.stored)
    tensors = {"s": np.array(0.05, np.float32), "z": np.array(128, np.uint8), "ws": np.array(scale), "wz": zero}
    nodes = []
    value = "x"
    for i in range(LAYERS):
        integers = generator.integers(-64, 65, product.weights)
        if in_integers:
            tensors[f"W{i}"] = (integers + int(zero)).astype(product.stored)
            nodes.append(helper.make_node("QuantizeLinear", [value, "s", "z"], [f"q{i}"]))
            nodes.append(helper.make_node("DequantizeLinear", [f"q{i}", "s", "z"], [f"d{i}"]))
            nodes.append(helper.make_node("DequantizeLinear", [f"W{i}", "ws", "wz"], [f"w{i}"]))
            value = f"d{i}"
        else:
            tensors[f"w{i}"] = integers.astype(np.float32) * scale
        nodes.append(product.node(value, f"w{i}", f"c{i}"))
        value = f"c{i}"
    if in_integers:
        nodes.append(helper.make_node("QuantizeLinear", [value, "s", "z"], ["q"]))
        nodes.append(helper.make_node("DequantizeLinear", ["q", "s", "z"], ["y"]))
    else:
        nodes[-1].output[0] = "y"
    used = {name for node in nodes for name in node.input}
    graph = helper.make_graph(
        nodes,
        "products",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, product.shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, product.shape)],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in tensors.items() if name in used],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    return bytes(model.SerializeToString())


def measured(product: Convolution | Matrix, seconds: float) -> list[float]:
    """Nanoseconds of 1,000 products, in float and in integers, in this process."""
    x = {"x": np.random.default_rng(1).standard_normal(product.shape).astype(np.float32)}
    runs = [bound_run(plain(network(product, each), options()), x) for each in (False, True)]
    taken = take_turns(runs, seconds, lambda what, done, total: None, clock_for(1)[0])
    thousands = LAYERS * math.prod(product.shape) * product.summands / 1000
    return [1e9 * statistics.median(t for times in each for t in times) / thousands for each in taken]


def in_processes(name: str, processes: int, seconds: float) -> list[list[float]]:
    command = [sys.executable, __file__, "--one", name, "--seconds", str(seconds)]
    done = [subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True) for _ in range(processes)]
    return [json.loads(each.stdout) for each in done]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=3, help="for each product")
    parser.add_argument("--seconds", type=float, default=0.7, help="of measuring in each process")
    parser.add_argument("--one", choices=PRODUCTS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(measured(PRODUCTS[arguments.one], arguments.seconds)))
        return 0
    print(f"{report.machine()}, onnxruntime {onnxruntime.__version__}\n")
    print("| product | float, ns / 1,000 | integers, ns / 1,000 | integers / float |\n|---|---|---|---|")
    for name in PRODUCTS:
        found = in_processes(name, arguments.processes, arguments.seconds)
        in_float, in_integers = (statistics.median(each) for each in zip(*found, strict=True))
        ratio = statistics.median(integers / floats for floats, integers in found)
        print(f"| {name} | {in_float:.3g} | {in_integers:.3g} | {ratio:.2f} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
