"""Operators of the QOperator format: a table of them, and how one is written as an ONNX operator between Q/DQ pairs.

The provider fuses several elementwise ones into one node, with the same results as the nodes one by one; ONNX Runtime
makes QLinear operators of those that are not claimed. ONNX Runtime's QLinearSoftmax looks up each exponential and
divides for each element: it takes ten times as long as its float Softmax (ep/spec/prices.toml). Its results differ
from the exact ones by a step in places, so it is replaced for sessions only: a file is compared with the original.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import onnx_ir as ir

from normfuse.graph_rewrites.engine.facts import Facts
from normfuse.graph_rewrites.engine.names import Names
from normfuse.graph_rewrites.engine.passes import Context
from normfuse.graph_rewrites.engine.traversal import graphs_of

QUANTIZED = 3
"""Inputs that make an operand: a tensor, its scale and its zero point."""


class Row(NamedTuple):
    """The float operator of a QLinear operator, and the positions of its inputs."""

    operator: str
    operands: int = 1
    """Tensors with scale and zero point, but for weights."""
    first: int = 0
    weights: int | None = None
    bias: int | None = None
    result: int | None = None
    """Position of the result's scale and zero point; None: after the operands."""
    reads: int = 0
    """The number of inputs before the operands that are not quantised."""
    elementwise: bool = False


_MICROSOFT = {
    "QGemm": Row("Gemm", weights=3, bias=6, result=7),
    "QLinearAdd": Row("Add", 2, elementwise=True),
    "QLinearAveragePool": Row("AveragePool"),
    "QLinearConcat": Row("Concat", 0, first=2, result=0),  # as many operands as there are
    "QLinearGlobalAveragePool": Row("GlobalAveragePool"),
    "QLinearLeakyRelu": Row("LeakyRelu", elementwise=True),
    "QLinearMul": Row("Mul", 2, elementwise=True),
    "QLinearSigmoid": Row("Sigmoid", elementwise=True),
    "QLinearWhere": Row("Where", 2, first=1, reads=1),
}
#: By domain and name.
QLINEAR: Mapping[tuple[str, str], Row] = {
    ("", "QLinearConv"): Row("Conv", weights=3, bias=8, result=6),
    ("", "QLinearMatMul"): Row("MatMul", weights=3, result=6),
    **{("com.microsoft", name): row for name, row in _MICROSOFT.items()},
}
#: The elementwise ones of com.microsoft, by name.
ELEMENTWISE_QLINEAR = {name: row for name, row in _MICROSOFT.items() if row.elementwise}

_QUANTIZING_OPSET = 10
_SINGLE_AXIS_OPSET = 13  # of Softmax; before it, `axis` is the first of all the dimensions of a sum
_OPSET_FROM_THE_END = 11  # from it on, an axis may be negative
_BYTES = (ir.DataType.INT8, ir.DataType.UINT8)

_NAMES = ("DynamicQuantize", "MatMulNBits", "QAttention", "QGemm", "QLinear")  # beginnings of these
# Operators that read dequantised constants without being a product: grids of positions, of which ONNX Runtime folds
# all but the DequantizeLinear.
_COMBINING = frozenset({"Add", "Concat", "Div", "Max", "Min", "Mul", "Pow", "Sub", "Where"})


def has_quantized_products(home: ir.Graph) -> bool:
    """Whether the graph has anything that ONNX Runtime could run as a quantised product."""
    return any(_may_be_quantized(node) for graph in graphs_of(home) for node in graph)


def _may_be_quantized(node: ir.Node) -> bool:
    x = node.inputs[0] if node.inputs else None
    if node.op_type == "DequantizeLinear" and x is not None and x.const_value is not None:
        return any(reader.op_type not in _COMBINING for reader in node.outputs[0].consumers())
    return "Integer" in node.op_type or node.op_type.startswith(_NAMES)


class Quantized(NamedTuple):
    """A quantised tensor with its parameters."""

    tensor: ir.Value | None
    scale: ir.Value | None
    zero_point: ir.Value | None
    axis: int | None = None
    """The axis of a scale that is not one number."""
    domain: str = ""
    """The domain of its DequantizeLinear."""


class InFloat(NamedTuple):
    """The float form of a QLinear operator."""

    operator: str
    inputs: Sequence[Quantized | ir.Value | None]
    """A Quantized is dequantised first; the others are read directly."""
    attributes: Sequence[ir.Attr]
    result: tuple[ir.Value | None, ir.Value | None] | None
    """Scale and zero point of the result; None: it is float."""


def _in_float(node: ir.Node, operator: str, attributes: Sequence[ir.Attr]) -> InFloat:
    """Return the form of a node whose inputs are operands with scale and zero point each, and then those of Y."""
    *operands, scale, zero_point = node.inputs
    parts = (operands[start::QUANTIZED] for start in range(QUANTIZED))
    groups = [Quantized(x, x_scale, x_zero) for x, x_scale, x_zero in zip(*parts, strict=True)]
    return InFloat(operator, groups, attributes, (scale, zero_point))


def write_in_float(node: ir.Node, form: InFloat, names: Names) -> ir.Node:
    """Write a node in float between Q/DQ pairs; return the ONNX operator, which has the node's name."""
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
    """Name a float tensor that replaces a quantised one; return it."""
    producer = value.producer()
    assert producer is not None
    value.name = names.new(f"{producer.name or name}.result")
    value.dtype, value.shape = ir.DataType.FLOAT, None if like is None else like.shape
    return value


# Elementwise ones, and softmax


def write_elementwise(graph: ir.Graph, context: Context) -> int:
    """Write the graph's elementwise QLinear operators of uint8 in float; return how many."""
    found = [node for node in graph if _is_elementwise_of_uint8(node)]
    names = Names(graph)
    for node in found:
        form = _in_float(node, QLINEAR[node.domain, node.op_type].operator, list(node.attributes.values()))
        write_in_float(node, form, names)
    return len(found)


def _is_elementwise_of_uint8(node: ir.Node) -> bool:
    row = ELEMENTWISE_QLINEAR.get(node.op_type)
    if row is None or node.domain != "com.microsoft" or None in node.inputs:
        return False
    # Without a zero point the type is unknown here; ONNX Runtime makes no QLinear operator of int8 Q/DQ pairs on x86.
    zero_points = (*node.inputs[2::QUANTIZED][: row.operands], *node.inputs[-1:])
    return len(node.inputs) == QUANTIZED * row.operands + 2 and all(map(_is_uint8, zero_points))


def _is_uint8(value: ir.Value | None) -> bool:
    return value is not None and value.const_value is not None and value.const_value.dtype == ir.DataType.UINT8


def write_softmaxes(home: ir.Graph, context: Context) -> int:
    """Write every QLinearSoftmax over one dimension of a graph and its subgraphs in float; return how many."""
    facts, opset, names = context.facts, context.opset, Names(home)
    if opset < _QUANTIZING_OPSET:
        return 0
    over_any = opset >= _SINGLE_AXIS_OPSET
    nodes = [node for graph in graphs_of(home) for node in graph if _has_parameters(node, facts)]
    found = [node for node in nodes if _is_over_last(node, facts) or (over_any and _is_over_one(node))]
    for node in found:
        _write(node, facts, names, opset)
    return len(found)


def count_from_the_end(model: ir.Model) -> None:
    """Set the axis of a Softmax over the last dimension to -1, since ONNX Runtime may remove shapes."""
    opset = model.graph.opset_imports.get("", 1)
    nodes = [node for node in model.graph if node.op_type == "Softmax" and node.attributes.get_int("axis", 1) > 0]
    if not nodes or not _OPSET_FROM_THE_END <= opset < _SINGLE_AXIS_OPSET:
        return
    facts = Facts(model)
    facts.infer()
    for node in nodes:
        if _is_over_last(node, facts):
            node.attributes["axis"] = ir.AttrInt64("axis", -1)


def _has_parameters(node: ir.Node, facts: Facts) -> bool:
    if node.op_type != "QLinearSoftmax" or node.domain != "com.microsoft" or len(node.inputs) != QUANTIZED + 2:
        return False
    return all(value is not None for value in node.inputs) and facts.dtype(node.inputs[2]) in _BYTES


def _is_over_one(node: ir.Node) -> bool:
    """True if `axis` is the only dimension of the sums: the node has the opset of its Softmax."""
    return node.attributes.get_int("opset", 0) >= _SINGLE_AXIS_OPSET


def _is_over_last(node: ir.Node, facts: Facts) -> bool:
    """True where both meanings of `axis`, the one before opset 13 and the one from it on, are the same."""
    axis = node.attributes.get_int("axis", -1)
    shape = facts.shape(node.inputs[0])
    return axis == -1 or (shape is not None and len(shape) > 0 and axis == len(shape) - 1)


def _write(node: ir.Node, facts: Facts, names: Names, opset: int) -> None:
    x = node.inputs[0]
    assert x is not None
    shape = facts.shape(x)
    axis = node.attributes.get_int("axis", -1)
    if shape is not None and opset < _OPSET_FROM_THE_END:
        axis %= len(shape)
    elif shape is not None and axis == len(shape) - 1:
        axis = -1  # the last one, even when the shape is no longer known
    softmax = write_in_float(node, _in_float(node, "Softmax", [ir.AttrInt64("axis", axis)]), names)
    for value in (softmax.inputs[0], softmax.outputs[0]):
        assert value is not None
        value.shape = shape
