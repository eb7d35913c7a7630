"""ONNX Runtime's elementwise operators of 8-bit integers as DequantizeLinear, operator and QuantizeLinear.

The provider makes one node of several of these, with the results of the three nodes. ONNX Runtime makes its operator
of integers again of what the provider leaves.
"""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from .names import Names

__all__ = ["write_elementwise"]

# Operator of com.microsoft -> that of ONNX, and how many tensors it reads, each with scale and zero point.
_OPERATORS: Mapping[str, tuple[str, int]] = {
    "QLinearAdd": ("Add", 2),
    "QLinearLeakyRelu": ("LeakyRelu", 1),
    "QLinearMul": ("Mul", 2),
    "QLinearSigmoid": ("Sigmoid", 1),
}
_QUANTIZED = 3  # a tensor, its scale and its zero point


def write_elementwise(graph: ir.Graph) -> int:
    """Write the graph's elementwise operators of uint8 so; return how many."""
    found = [node for node in graph if _is_written(node)]
    names = Names(graph) if found else None
    for node in found:
        assert names is not None
        _write(node, graph, names)
    return len(found)


def _is_written(node: ir.Node) -> bool:
    if node.domain != "com.microsoft" or node.op_type not in _OPERATORS:
        return False
    _, operands = _OPERATORS[node.op_type]
    zero_points = node.inputs[2::_QUANTIZED][:operands], node.inputs[-1:]
    # What has none is of an unknown type here; ONNX Runtime makes no operator of pairs of int8 on x86.
    known = [value for values in zero_points for value in values]
    is_whole = len(node.inputs) == _QUANTIZED * operands + 2 and None not in node.inputs
    return is_whole and all(_is_uint8(value) for value in known)


def _is_uint8(value: ir.Value | None) -> bool:
    return value is not None and value.const_value is not None and value.const_value.dtype == ir.DataType.UINT8


def _write(node: ir.Node, graph: ir.Graph, names: Names) -> None:
    operator, operands = _OPERATORS[node.op_type]
    y, name = node.outputs[0], node.name or node.op_type
    dequantizers = [
        ir.Node("", "DequantizeLinear", node.inputs[start : start + _QUANTIZED], name=names.new(f"{name}.dequantize"))
        for start in range(0, _QUANTIZED * operands, _QUANTIZED)
    ]
    values = [each.outputs[0] for each in dequantizers]
    attributes = list(node.attributes.values())
    middle = ir.Node("", operator, values, attributes, name=names.new(f"{name}.{operator}"))
    scale = node.inputs[_QUANTIZED * operands :]
    quantize = ir.Node("", "QuantizeLinear", [middle.outputs[0], *scale], name=names.new(f"{name}.quantize"))
    for each in (*dequantizers, middle):
        each.outputs[0].name = names.new(f"{each.name}.result")
        each.outputs[0].type = ir.TensorType(ir.DataType.FLOAT)
    written = [*dequantizers, middle, quantize]
    made = quantize.outputs[0]
    made.type, made.shape = y.type, y.shape
    name_of_result = y.name
    graph.insert_before(node, written)
    y.replace_all_uses_with(made, replace_graph_outputs=True)
    graph.remove(node, safe=True)
    made.name = name_of_result
