"""QLinear operators: whether there are any, and one as operators of ONNX between pairs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import onnx_ir as ir

from normfuse.graph_rewrites.engine.names import Names
from normfuse.graph_rewrites.engine.traversal import graphs_of

QUANTIZED = 3
"""Inputs that make an operand: a tensor, its scale and its zero point."""

_NAMES = ("DynamicQuantize", "MatMulNBits", "QAttention", "QGemm", "QLinear")  # beginnings of these
# What may read constants without being a product: grids of places, of which ONNX Runtime folds all but the
# DequantizeLinear.
_COMBINING = frozenset({"Add", "Concat", "Div", "Max", "Min", "Mul", "Pow", "Sub", "Where"})


def has_products_of_integers(home: ir.Graph) -> bool:
    """Whether anything is left of which ONNX Runtime could make a product of integers."""
    return any(_may_be_of_integers(node) for graph in graphs_of(home) for node in graph)


def _may_be_of_integers(node: ir.Node) -> bool:
    x = node.inputs[0] if node.inputs else None
    if node.op_type == "DequantizeLinear" and x is not None and x.const_value is not None:
        return any(reader.op_type not in _COMBINING for reader in node.outputs[0].consumers())
    return "Integer" in node.op_type or node.op_type.startswith(_NAMES)


class Quantized(NamedTuple):
    """A tensor of integers, and what says which numbers they stand for."""

    tensor: ir.Value | None
    scale: ir.Value | None
    zero_point: ir.Value | None
    axis: int | None = None
    """Of a scale that is not one number."""
    domain: str = ""
    """Of the DequantizeLinear."""


class InFloat(NamedTuple):
    """What a node of integers is among floats."""

    operator: str
    inputs: Sequence[Quantized | ir.Value | None]
    """What is no Quantized is read as it is."""
    attributes: Sequence[ir.Attr]
    result: tuple[ir.Value | None, ir.Value | None] | None
    """Scale and zero point of what it writes; None: these are floats."""


def in_float(node: ir.Node, operator: str, attributes: Sequence[ir.Attr]) -> InFloat:
    """Return what a node is whose inputs are its operands, each with scale and zero point, and then these of Y."""
    *operands, scale, zero_point = node.inputs
    parts = (operands[start::QUANTIZED] for start in range(QUANTIZED))
    groups = [Quantized(x, x_scale, x_zero) for x, x_scale, x_zero in zip(*parts, strict=True)]
    return InFloat(operator, groups, attributes, (scale, zero_point))


def write_in_float(node: ir.Node, form: InFloat, names: Names) -> ir.Node:
    """Write a node so; return the operator of ONNX, which has the node's name."""
    graph, name = node.graph, node.name or node.op_type
    assert graph is not None
    inputs: list[ir.Value | None] = []
    for each in form.inputs:
        if isinstance(each, Quantized):
            dequantizer = _dequantizer(each, names.new(f"{name}.dequantize"))
            inputs.append(_as_floats(dequantizer.outputs[0], each.tensor, names))
            graph.insert_before(node, dequantizer)
        else:
            inputs.append(each)
    middle = ir.Node("", form.operator, inputs, form.attributes, num_outputs=len(node.outputs), name=node.name)
    graph.insert_before(node, middle)
    for y, result in zip(node.outputs, middle.outputs, strict=True):
        if form.result is None:
            made = result
        else:
            _as_floats(result, y, names, name)
            quantizer = ir.Node("", "QuantizeLinear", [result, *form.result], name=names.new(f"{name}.quantize"))
            graph.insert_before(node, quantizer)
            made = quantizer.outputs[0]
        made.name, made.type, made.shape = y.name, y.type, y.shape
        y.replace_all_uses_with(made, replace_graph_outputs=True)
    graph.remove(node, safe=True)
    return middle


def _dequantizer(operand: Quantized, name: str) -> ir.Node:
    axis = [] if operand.axis is None else [ir.AttrInt64("axis", operand.axis)]
    inputs = [operand.tensor, operand.scale, operand.zero_point]
    return ir.Node(operand.domain, "DequantizeLinear", inputs, axis, name=name)


def _as_floats(value: ir.Value, like: ir.Value | None, names: Names, name: str = "") -> ir.Value:
    """Name a tensor of floats in the place of one of integers; return it."""
    producer = value.producer()
    assert producer is not None
    value.name = names.new(f"{producer.name or name}.result")
    value.dtype, value.shape = ir.DataType.FLOAT, None if like is None else like.shape
    return value
