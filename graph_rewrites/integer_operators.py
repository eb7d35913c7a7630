"""Operators of integers (QLinear...): whether there are any, and one as operators of ONNX between pairs."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from .names import Names

__all__ = ["QUANTIZED", "has_products_of_integers", "write_in_float"]

QUANTIZED = 3
"""Inputs that make an operand: a tensor, its scale and its zero point. The last two of a node are for the result."""

_NAMES = ("DynamicQuantize", "MatMulNBits", "QAttention", "QGemm", "QLinear")  # beginnings of these


def has_products_of_integers(model: ir.Model) -> bool:
    """Whether anything is left of which ONNX Runtime could make a product of integers."""
    return any(_may_be_of_integers(node) for graph in model.graphs() for node in graph)


def _may_be_of_integers(node: ir.Node) -> bool:
    x = node.inputs[0] if node.inputs else None
    if node.op_type == "DequantizeLinear" and x is not None and x.const_value is not None:
        return True
    return "Integer" in node.op_type or node.op_type.startswith(_NAMES)


def write_in_float(node: ir.Node, operator: str, attributes: Sequence[ir.Attr], names: Names) -> ir.Node:
    """Write a node so; return the operator of ONNX, which has the node's name."""
    graph, y, name = node.graph, node.outputs[0], node.name or node.op_type
    assert graph is not None
    of_result = len(node.inputs) - 2
    dequantizers = [
        ir.Node("", "DequantizeLinear", node.inputs[start : start + QUANTIZED], name=names.new(f"{name}.dequantize"))
        for start in range(0, of_result, QUANTIZED)
    ]
    middle = ir.Node("", operator, [each.outputs[0] for each in dequantizers], attributes, name=node.name)
    quantize = ir.Node(
        "", "QuantizeLinear", [middle.outputs[0], *node.inputs[of_result:]], name=names.new(f"{name}.quantize")
    )
    for each, like in (*((each, each.inputs[0]) for each in dequantizers), (middle, y)):
        value = each.outputs[0]
        value.name, value.dtype = names.new(f"{each.name or name}.result"), ir.DataType.FLOAT
        value.shape = None if like is None else like.shape
    result = quantize.outputs[0]
    result.name, result.type, result.shape = y.name, y.type, y.shape
    graph.insert_before(node, [*dequantizers, middle, quantize])
    y.replace_all_uses_with(result, replace_graph_outputs=True)
    graph.remove(node, safe=True)
    return middle
