"""Sub of a constant behind a convolution, written as Add of its negation: the bits stay.

ONNX Runtime makes Mul and Add of constants part of a convolution's weights (ConvMulFusion, ConvAddFusion), and knows no
Sub. A batch normalisation that is written out, `(conv(x) - mean) * scale + bias`, is stopped by its first node, and
all of it runs beside the convolution. docs/decisions/0025-subtraction-as-addition.md has the measurements.
"""

from __future__ import annotations

import onnx_ir as ir

from normfuse.graph_rewrites.engine.facts import Facts
from normfuse.graph_rewrites.engine.fused import new_constant
from normfuse.graph_rewrites.engine.host_fusions import has_fixed_weights
from normfuse.graph_rewrites.engine.names import Names
from normfuse.graph_rewrites.engine.passes import Context
from normfuse.graph_rewrites.engine.traversal import graphs_of

# What ONNX Runtime moves away from between the convolution and the Sub, or makes part of the convolution first.
_MOVED = ("Cast", "Identity", "Transpose")
_FOLDED = ("Add", "Mul", "Sub")


def write_additions(home: ir.Graph, context: Context) -> int:
    """Write every Sub of a graph and its subgraphs that becomes part of a convolution as Add; return how many."""
    facts, names = context.facts, Names(home)
    found = [node for graph in graphs_of(home) for node in graph if _belongs_to_convolution(node, facts)]
    for node in found:
        subtrahend, graph = node.inputs[1], node.graph
        array = facts.constant(subtrahend)
        assert subtrahend is not None
        assert array is not None
        assert graph is not None
        addend = new_constant(-array, names.new(f"{node.outputs[0].name}.addend"))
        graph.register_initializer(addend)
        node.replace_input_with(1, addend)
        node.op_type = "Add"
        _remove_unused(subtrahend)
    return len(found)


def _remove_unused(value: ir.Value) -> None:
    if value.uses() or value.is_graph_input() or value.is_graph_output() or not value.is_initializer():
        return
    if value.graph is not None and value.name is not None:
        value.graph.initializers.pop(value.name)


def _belongs_to_convolution(node: ir.Node, facts: Facts) -> bool:
    """True for Sub(x, constant) where x is a convolution's result, or what becomes part of it, and nothing else's."""
    if node.op_type != "Sub" or node.domain != "" or facts.dtype(node.inputs[1]) != ir.DataType.FLOAT:
        return False
    if facts.constant(node.inputs[1]) is None:
        return False
    while node.op_type != "Conv":
        x = node.inputs[0]
        if node.op_type in ("Add", "Mul") and facts.is_constant(x):
            x = node.inputs[1]
        elif node.op_type in _FOLDED and not facts.is_constant(node.inputs[1]):
            return False
        producer = None if x is None else x.producer()
        if x is None or producer is None or len(x.uses()) != 1 or x.is_graph_output():
            return False
        if producer.domain != "" or producer.op_type not in ("Conv", *_MOVED, *_FOLDED):
            return False
        if facts.dtype(x) != ir.DataType.FLOAT:
            return False
        node = producer
    return has_fixed_weights(facts, node)
