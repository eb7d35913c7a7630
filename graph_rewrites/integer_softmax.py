"""QLinearSoftmax written as DequantizeLinear, Softmax and QuantizeLinear, of which the provider makes one node.

ONNX Runtime's kernel of 8-bit integers looks up each exponential and divides for each element: it takes ten times
as long as its Softmax of floats (ep/spec/prices.toml). Its results differ from the exact ones by a step here and there,
so this is for sessions alone: a file is compared with the original.
"""

from __future__ import annotations

import onnx_ir as ir

from .facts import Facts
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
    graph, x, y = node.graph, node.inputs[0], node.outputs[0]
    assert graph is not None
    assert x is not None
    shape, name = facts.shape(x), node.name or y.name or node.op_type
    dequantize = ir.Node("", "DequantizeLinear", list(node.inputs[:3]), name=names.new(f"{name}.dequantize"))
    axis = ir.AttrInt64("axis", -1 if shape is None else len(shape) - 1)
    softmax = ir.Node("", "Softmax", [dequantize.outputs[0]], [axis], name=node.name)
    quantize = ir.Node("", "QuantizeLinear", [softmax.outputs[0], *node.inputs[3:]], name=names.new(f"{name}.quantize"))
    for each, suffix in ((dequantize, "dequantized"), (softmax, "quotients")):
        value = each.outputs[0]
        value.name, value.dtype, value.shape = names.new(f"{name}.{suffix}"), ir.DataType.FLOAT, shape
    result = quantize.outputs[0]
    result.name, result.type, result.shape = y.name, y.type, y.shape
    for index, value in enumerate(graph.outputs):
        if value is y:
            graph.outputs[index] = result
    y.replace_all_uses_with(result)
    graph.insert_before(node, [dequantize, softmax, quantize])
    graph.remove(node, safe=True)
