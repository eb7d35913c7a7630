"""How ONNX Runtime multiplies 8-bit tensors on this machine: whether sums saturate, and what a product costs.

Both are measured on a product, not read from the processor's features: an onnxruntime may be built without an
instruction set, and Arm has others.
"""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from normfuse.host.plain_sessions import plain_session
from normfuse.host.versions import import_host

if TYPE_CHECKING:
    import onnxruntime

_ROWS, _DEPTH, _COLUMNS = 128, 768, 768
_RUNS = 7
_FLOATS = (ir.DataType.FLOAT, ir.DataType.FLOAT)
_BYTES = (
    (ir.DataType.UINT8, ir.DataType.INT8),
    (ir.DataType.UINT8, ir.DataType.UINT8),
    (ir.DataType.INT8, ir.DataType.INT8),
    (ir.DataType.INT8, ir.DataType.UINT8),
)


@dataclasses.dataclass(frozen=True)
class IntegerProducts:
    """Measured facts about MatMulInteger of the installed onnxruntime on this machine."""

    saturates: bool
    """Sums of two uint8 x int8 products saturate at 16 bits: x86 without VNNI."""
    cost: Mapping[str, float]
    """Types, such as "uint8 x int8" -> time of a product on one thread / that of a product of float32."""


@functools.cache
def integer_products() -> IntegerProducts:
    """Measure 8-bit products, once a process: about 0.1 s.

    Raises:
        HostVersionError: onnxruntime is missing.
    """
    in_float = _seconds(_FLOATS)
    cost = {" x ".join(each.name.lower() for each in types): _seconds(types) / in_float for types in _BYTES}
    return IntegerProducts(sums_saturate(), MappingProxyType(cost))


@functools.cache
def sums_saturate() -> bool:
    """Whether sums of 8-bit products saturate here: see `IntegerProducts`. Takes about 10 ms, once a process.

    Raises:
        HostVersionError: onnxruntime is missing.
    """
    return any(
        bool((_session(types).run(None, {"a": _left(types)})[0] != _large(types[0]) * _large(types[1]) * _DEPTH).any())
        for types in _BYTES
    )


def _seconds(types: tuple[ir.DataType, ir.DataType]) -> float:
    """Return the seconds that a product of these types takes."""
    session, left = _session(types), _left(types)
    session.run(None, {"a": left})
    seconds = []
    for _ in range(_RUNS):
        start = time.thread_time()
        session.run(None, {"a": left})
        seconds.append(time.thread_time() - start)
    return max(min(seconds), 1e-9)


def _left(types: tuple[ir.DataType, ir.DataType]) -> np.ndarray[Any, Any]:
    return np.full((_ROWS, _DEPTH), _large(types[0]), types[0].numpy())


def _large(dtype: ir.DataType) -> int:
    """Return a number of the type two of whose products do not fit 16 bits."""
    return 200 if dtype == ir.DataType.UINT8 else 127


def _session(types: tuple[ir.DataType, ir.DataType]) -> onnxruntime.InferenceSession:
    host = import_host()
    operator, result = ("MatMul", ir.DataType.FLOAT) if types == _FLOATS else ("MatMulInteger", ir.DataType.INT32)
    a = ir.Value(name="a", type=ir.TensorType(types[0]), shape=ir.Shape((_ROWS, _DEPTH)))
    weights = ir.tensor(np.full((_DEPTH, _COLUMNS), _large(types[1]), types[1].numpy()), name="b")
    b = ir.Value(name="b", const_value=weights, type=ir.TensorType(types[1]), shape=ir.Shape((_DEPTH, _COLUMNS)))
    node = ir.Node("", operator, [a, b])
    y = node.outputs[0]
    y.name, y.type = "y", ir.TensorType(result)
    graph = ir.Graph([a], [y], nodes=[node], initializers=[b], opset_imports={"": 17}, name="product")
    options = host.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    data = ir.to_proto(ir.Model(graph, ir_version=9)).SerializeToString()
    return plain_session(data, sess_options=options, providers=["CPUExecutionProvider"])
