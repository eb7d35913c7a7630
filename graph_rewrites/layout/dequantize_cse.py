"""Common subexpression elimination for DequantizeLinear: equal nodes become one.

ONNX Runtime copies a DequantizeLinear for each of its readers (EnsureUniqueDQForNodeUnit), for its QLinear operators.
Where none of these is made, a QuantizeLinear followed by one DequantizeLinear is a step of a chain; followed by several
it is not, and each node is a pass through memory.

Nodes whose readers are all elementwise are not joined: their chains can each read the quantised tensor.
"""

from __future__ import annotations

from collections.abc import Hashable

import onnx_ir as ir

from normfuse.graph_rewrites.engine.dequantization import is_dequantizer
from normfuse.graph_rewrites.engine.passes import Context
from normfuse.graph_rewrites.layout.blocked_layout import ELEMENTWISE


def join_dequantizers(graph: ir.Graph, context: Context) -> int:
    """Let the readers of equal nodes of a graph, not of subgraphs, read the first one; return how many are removed.

    It keeps the name of the node that ONNX Runtime copied, which is the shortest.
    """
    equals: dict[Hashable, list[ir.Node]] = {}
    for node in graph:
        if is_dequantizer(node) and not node.outputs[0].is_graph_output():
            attributes = sorted(str(attribute) for attribute in node.attributes.values())
            equals.setdefault((node.domain, *node.inputs, *attributes), []).append(node)
    removed = 0
    for first, *others in equals.values():
        readers = (user for node in (first, *others) for user in node.outputs[0].consumers())
        if not others or all((user.domain, user.op_type) in ELEMENTWISE for user in readers):
            continue
        first.name = min((first.name, *(node.name for node in others)), key=lambda name: len(name or ""))
        for node in others:
            node.outputs[0].replace_all_uses_with(first.outputs[0])
            graph.remove(node, safe=True)
        removed += len(others)
    return removed
