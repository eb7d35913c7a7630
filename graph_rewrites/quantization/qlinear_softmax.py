"""QLinearSoftmax over one dimension as DequantizeLinear, Softmax and QuantizeLinear, which the provider runs as one.

ONNX Runtime's kernel of 8-bit integers looks up each exponential and divides for each element: it takes ten times
as long as its Softmax of floats (ep/spec/prices.toml). Its results differ from the exact ones by a step here and there,
so this is for sessions alone: a file is compared with the original.
"""

from __future__ import annotations

import onnx_ir as ir

from normfuse.graph_rewrites.engine.facts import Facts
from normfuse.graph_rewrites.engine.names import Names
from normfuse.graph_rewrites.engine.passes import Context
from normfuse.graph_rewrites.engine.traversal import graphs_of
from normfuse.graph_rewrites.quantization.qlinear_operators import in_float, write_in_float

_INPUTS = 5  # X, its scale and zero point, those of Y
_QUANTIZING_OPSET = 10
_SINGLE_AXIS_OPSET = 13  # of Softmax; before it, `axis` is the first of all the dimensions of a sum
_OPSET_FROM_THE_END = 11  # from it on, an axis may be negative
_BYTES = (ir.DataType.INT8, ir.DataType.UINT8)


def write_softmaxes(home: ir.Graph, context: Context) -> int:
    """Write every QLinearSoftmax over one dimension of a graph and its subgraphs so; return how many."""
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
    """Say -1 where a Softmax is over the last dimension, for when ONNX Runtime has left no shapes."""
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
    if node.op_type != "QLinearSoftmax" or node.domain != "com.microsoft" or len(node.inputs) != _INPUTS:
        return False
    return all(value is not None for value in node.inputs) and facts.dtype(node.inputs[2]) in _BYTES


def _is_over_one(node: ir.Node) -> bool:
    """True where `axis` is the one dimension of the sums: the node says of which opset its Softmax is."""
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
        axis = -1  # the last one also where the shape is not known any more
    softmax = write_in_float(node, in_float(node, "Softmax", [ir.AttrInt64("axis", axis)]), names)
    for value in (softmax.inputs[0], softmax.outputs[0]):
        assert value is not None
        value.shape = shape
