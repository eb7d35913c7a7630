"""Shape and Size of dequantised tensors, read from the quantised ones, which have the same shape.

ONNX Runtime copies a DequantizeLinear for each of its readers, also for a Shape: a whole tensor is dequantised just for
its sizes. The head of a detector that takes images of any size has many of these.
"""

from __future__ import annotations

import onnx_ir as ir

from normfuse.graph_rewrites.engine.dequantization import is_dequantizer
from normfuse.graph_rewrites.engine.facts import Facts
from normfuse.graph_rewrites.engine.passes import Context
from normfuse.graph_rewrites.engine.traversal import graphs_of

_ASK = frozenset({"Shape", "Size"})
_BYTES = (ir.DataType.INT8, ir.DataType.UINT8)


def read_shapes_of_quantized(home: ir.Graph, context: Context) -> int:
    """Let these nodes of a graph and its subgraphs read the 8-bit tensor, if another node reads the dequantised one.

    Returns how many. ONNX Runtime has hardly any kernels for other quantised types: these are steps within chains,
    which continue after a Q/DQ pair only if nothing else reads the quantised tensor.
    """
    facts = context.facts
    found = [node for graph in graphs_of(home) for node in graph if _asks_for_dequantized(node, facts)]
    for node in found:
        x = node.inputs[0]
        assert x is not None
        dequantize = x.producer()
        assert dequantize is not None
        integers = dequantize.inputs[0]
        assert integers is not None
        dtype = facts.dtype(integers)
        if integers.shape is None and dtype is not None:  # known sizes stay known
            integers.type, integers.shape = ir.TensorType(dtype), facts.shape(x)
        node.replace_input_with(0, integers)
    return len(found)


def _asks_for_dequantized(node: ir.Node, facts: Facts) -> bool:
    if not _is_asking(node):
        return False
    value = node.inputs[0]
    producer = None if value is None else value.producer()
    if value is None or producer is None or not is_dequantizer(producer):
        return False
    if facts.dtype(producer.inputs[0]) not in _BYTES:
        return False
    return value.is_graph_output() or not all(_is_asking(user) for user in value.consumers())


def _is_asking(node: ir.Node) -> bool:
    return node.domain == "" and node.op_type in _ASK
