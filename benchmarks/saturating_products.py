"""How many results of ONNX Runtime's products of integers are wrong here: ``python benchmarks/saturating_products.py``.

Each operator multiplies uint8 by weights over their whole range and within -64 to 64, and by weights of uint8, and is
held against exact integers; those that quantise their results may be one step off. On x86 without VNNI sums of uint8 x
int8 are added in pairs in 16 bits, and saturate.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

sys.path.insert(0, str(Path(__file__).resolve().parent))

import report

Array = np.ndarray[Any, Any]
ROWS, DEPTH, COLUMNS = 8, 64, 16
WEIGHTS = {"int8": (-128, 128, np.int8), "int8, -64 to 64": (-64, 65, np.int8), "uint8": (0, 256, np.uint8)}
QUANTISED = ("QLinearMatMul", "QGemm", "QLinearConv")
INPUTS = {
    "MatMulInteger": ["a", "w", "zero", "w_zero"],
    "ConvInteger": ["a", "w", "zero", "w_zero"],
    "QLinearMatMul": ["a", "one", "zero", "w", "one", "w_zero", "y_scale", "y_zero"],
    "QLinearConv": ["a", "one", "zero", "w", "one", "w_zero", "y_scale", "y_zero"],
    "QGemm": ["a", "one", "zero", "w", "one", "w_zero", "", "y_scale", "y_zero"],
    "DynamicQuantizeMatMul": ["a", "w", "one", "w_zero"],
}


def result(operator: str, a: Array, arrays: dict[str, Array]) -> Array:
    """What ONNX Runtime's CPU provider gives."""
    domain = "com.microsoft" if operator in ("QGemm", "DynamicQuantizeMatMul") else ""
    node = helper.make_node(operator, INPUTS[operator], ["y"], domain=domain)
    dtype = TensorProto.UINT8 if operator in QUANTISED else TensorProto.INT32
    graph = helper.make_graph(
        [node],
        operator,
        [helper.make_tensor_value_info("a", helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT if a.dtype == np.float32 else dtype, None)],
        [numpy_helper.from_array(array, name) for name, array in arrays.items() if name in INPUTS[operator]],
    )
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=9)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, {"a": a})[0]).reshape(-1)


def wrong(operator: str, low: int, high: int, dtype: type) -> float:
    """The share of results that are wrong."""
    generator = np.random.default_rng(0)
    a = generator.integers(0, 256, (ROWS, DEPTH)).astype(np.uint8)
    a[0, :2] = 0, 255  # the range that DynamicQuantizeMatMul finds
    w = generator.integers(low, high, (DEPTH, COLUMNS)).astype(dtype)
    zero = 128 if dtype is np.uint8 else 0
    exact = a.astype(np.int64) @ (w.astype(np.int64) - zero)
    scale = np.float32(exact.std() / 40)
    arrays = {"w": w, "zero": np.array(0, np.uint8), "w_zero": np.array(zero, dtype), "one": np.array(1, np.float32)}
    arrays |= {"y_scale": np.asarray(scale), "y_zero": np.array(128, np.uint8)}
    fed = a.astype(np.float32) if operator == "DynamicQuantizeMatMul" else a
    if "Conv" in operator:  # a column for each row of a
        fed, exact = a.reshape(1, 1, ROWS, DEPTH), exact.T
        arrays["w"] = w.T.reshape(COLUMNS, 1, 1, DEPTH).copy()
    expected = np.clip(np.rint(exact / scale) + 128, 0, 255) if operator in QUANTISED else exact
    apart = np.abs(result(operator, fed, arrays) - expected.reshape(-1))
    return float((apart > 1).mean())


def lines() -> Iterator[str]:
    yield f"| operator | {' | '.join(WEIGHTS)} |"
    yield "|---" * (len(WEIGHTS) + 1) + "|"
    for operator in INPUTS:
        yield f"| {operator} | {' | '.join(f'{wrong(operator, *kind):.0%}' for kind in WEIGHTS.values())} |"


if __name__ == "__main__":
    print(f"{report.machine()}, onnxruntime {onnxruntime.__version__}: wrong results by the weights\n")
    print("\n".join(lines()))
