"""ONNX Runtime's elementwise operators of 8-bit integers as DequantizeLinear, operator and QuantizeLinear.

The provider makes one node of several of these, with the results of the three nodes. ONNX Runtime makes its operator
of integers again of what the provider leaves.
"""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from normfuse.graph_rewrites.engine.names import Names
from normfuse.graph_rewrites.engine.passes import Context
from normfuse.graph_rewrites.quantization.qlinear_operators import QUANTIZED, in_float, write_in_float

# Operator of com.microsoft -> that of ONNX, and how many tensors it reads, each with scale and zero point.
INTEGER_OPERATORS: Mapping[str, tuple[str, int]] = {
    "QLinearAdd": ("Add", 2),
    "QLinearLeakyRelu": ("LeakyRelu", 1),
    "QLinearMul": ("Mul", 2),
    "QLinearSigmoid": ("Sigmoid", 1),
}


def write_elementwise(graph: ir.Graph, context: Context) -> int:
    """Write the graph's elementwise operators of uint8 so; return how many."""
    found = [node for node in graph if _is_written(node)]
    names = Names(graph)
    for node in found:
        form = in_float(node, INTEGER_OPERATORS[node.op_type][0], list(node.attributes.values()))
        write_in_float(node, form, names)
    return len(found)


def _is_written(node: ir.Node) -> bool:
    if node.domain != "com.microsoft" or node.op_type not in INTEGER_OPERATORS:
        return False
    _, operands = INTEGER_OPERATORS[node.op_type]
    zero_points = node.inputs[2::QUANTIZED][:operands], node.inputs[-1:]
    # What has none is of an unknown type here; ONNX Runtime makes no operator of pairs of int8 on x86.
    known = [value for values in zero_points for value in values]
    is_whole = len(node.inputs) == QUANTIZED * operands + 2 and None not in node.inputs
    return is_whole and all(_is_uint8(value) for value in known)


def _is_uint8(value: ir.Value | None) -> bool:
    return value is not None and value.const_value is not None and value.const_value.dtype == ir.DataType.UINT8
