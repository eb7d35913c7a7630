"""QLinearSoftmax written as DequantizeLinear, Softmax and QuantizeLinear, of which the provider makes one node.

ONNX Runtime's kernel of 8-bit integers looks up each exponential and divides for each element: it takes ten times
as long as its Softmax of floats (ep/spec/prices.toml). Its results differ from the exact ones by a step here and there,
so this is for sessions alone: a file is compared with the original.
"""

from __future__ import annotations

import onnx_ir as ir

from .facts import Facts
from .integer_operators import write_in_float
from .names import Names

__all__ = ["SOFTMAX_OF_INTEGERS", "write_softmaxes"]

#: What the report calls it, among the rules.
SOFTMAX_OF_INTEGERS = "SoftmaxOfIntegers"

_INPUTS = 5  # X, its scale and zero point, those of Y
_QUANTIZING_OPSET = 10
_BYTES = (ir.DataType.INT8, ir.DataType.UINT8)


def write_softmaxes(home: ir.Graph, facts: Facts, opset: int) -> int:
    """Write every QLinearSoftmax over the last dimension of a graph and its subgraphs so; return how many."""
    if opset < _QUANTIZING_OPSET:
        return 0
    found = [node for graph in (home, *home.subgraphs()) for node in graph if _is_over_last(node, facts)]
    names = Names(home) if found else None
    for node in found:
        assert names is not None
        _write(node, facts, names)
    return len(found)


def _is_over_last(node: ir.Node, facts: Facts) -> bool:
    """True where both meanings of `axis`, the one before opset 13 and the one from it on, are the same."""
    if node.op_type != "QLinearSoftmax" or node.domain != "com.microsoft" or len(node.inputs) != _INPUTS:
        return False
    if any(value is None for value in node.inputs) or facts.dtype(node.inputs[2]) not in _BYTES:
        return False
    axis = node.attributes.get_int("axis", -1)
    shape = facts.shape(node.inputs[0])
    return axis == -1 or (shape is not None and len(shape) > 0 and axis == len(shape) - 1)


def _write(node: ir.Node, facts: Facts, names: Names) -> None:
    x = node.inputs[0]
    assert x is not None
    shape = facts.shape(x)
    axis = ir.AttrInt64("axis", -1 if shape is None else len(shape) - 1)
    softmax = write_in_float(node, "Softmax", [axis], names)
    for value in (softmax.inputs[0], softmax.outputs[0]):
        assert value is not None
        value.shape = shape
