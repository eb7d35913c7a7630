"""Weights as integers against weights in float, by the number of rows: ``python benchmarks/kept_weights.py``.

Runs a MatMul whose weights ONNX Runtime has to dequantise, or makes a MatMulNBits of, and the same with weights that
were dequantised once, in turns on one thread. Prints how many times the latter's processor time the former takes, the
range of weights with one scale, with one for each column and with one for each 32 rows of a column. `--quantised`: of
activations of 16 bits.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from normfuse.measuring import bound_run, clock_for, ratio_of, take_turns

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "benchmarks"), *(str(ROOT / "tests" / name) for name in (".", "real_models"))]

import report  # noqa: E402
from quantizer_styles import options, plain  # noqa: E402

ROWS = (1, 4, 16, 32, 128)
SIZES = ((384, 384), (768, 768), (768, 3072))
TYPES = {"int8": (np.int8, 127), "int4": (ml_dtypes.int4, 7)}
BLOCK = 32


def product(size: tuple[int, int], dtype: str, scales: tuple[int, ...], quantised: bool, folded: bool) -> bytes:
    generator = np.random.default_rng(0)
    element, largest = TYPES[dtype]
    stored = generator.integers(-largest, largest + 1, size).astype(element)
    scale = generator.uniform(0.005, 0.02, scales).astype(np.float32)
    tensors = {"W": stored, "s": scale, "xs": np.array(1e-3, np.float32), "xz": np.array(1 << 15, np.uint16)}
    nodes = []
    if quantised:
        nodes.append(helper.make_node("QuantizeLinear", ["x", "xs", "xz"], ["xq"]))
        nodes.append(helper.make_node("DequantizeLinear", ["xq", "xs", "xz"], ["xd"]))
    if folded:
        spread = np.repeat(scale, BLOCK, 0) if len(scales) == 2 else scale
        tensors["w"] = stored.astype(np.float32) * spread
    else:
        attributes = ({}, {"axis": 1}, {"axis": 0, "block_size": BLOCK})[len(scales)]
        nodes.append(helper.make_node("DequantizeLinear", ["W", "s"], ["w"], **attributes))
    nodes.append(helper.make_node("MatMul", ["xd" if quantised else "x", "w"], ["y"]))
    used = {name for node in nodes for name in node.input}
    graph = helper.make_graph(
        nodes,
        "product",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", size[0]])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(array, name) for name, array in tensors.items() if name in used],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    return bytes(model.SerializeToString())


def cells(size: tuple[int, int], dtype: str, quantised: bool, seconds: float) -> list[str]:
    """The ranges of one line of the table."""
    granularities: tuple[tuple[int, ...], ...] = ((), size[1:], (size[0] // BLOCK, size[1]))
    found: list[list[float]] = [[] for _ in ROWS]
    for scales in granularities:
        sessions = [plain(product(size, dtype, scales, quantised, folded), options()) for folded in (False, True)]
        for ratios, rows in zip(found, ROWS, strict=True):
            x = {"x": np.random.default_rng(1).standard_normal((rows, size[0])).astype(np.float32)}
            runs = [bound_run(session, x) for session in sessions]
            kept, dequantised = take_turns(runs, seconds, lambda what, done, total: None, clock_for(1)[0])
            ratios.append(ratio_of(kept, dequantised).median)
    return [f"{min(ratios):.2f} to {max(ratios):.2f}" for ratios in found]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quantised", action="store_true", help="activations of 16 bits; none: float")
    parser.add_argument("--seconds", type=float, default=0.25, help="of measuring each product")
    arguments = parser.parse_args()
    print(f"{report.machine()}, onnxruntime {onnxruntime.__version__}\n")
    print(f"| weights, rows: | {' | '.join(map(str, ROWS))} |\n{'|---' * (1 + len(ROWS))}|")
    for dtype in TYPES:
        for size in SIZES:
            line = cells(size, dtype, arguments.quantised, arguments.seconds)
            print(f"| {dtype} {list(size)} | {' | '.join(line)} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
