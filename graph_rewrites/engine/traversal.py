"""The graphs of a model and their nodes: as onnx_ir's own iterators give them, in a fraction of their time."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

_GRAPH, _GRAPHS = ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS


def inner_graphs(node: ir.Node) -> list[ir.Graph]:
    """Return the subgraphs of a node, without those in them."""
    found: list[ir.Graph] = []
    for attribute in node.attributes.data.values():
        kind = attribute.type
        if (kind is _GRAPH or kind is _GRAPHS) and not attribute.is_ref():
            found += [attribute.as_graph()] if kind is _GRAPH else attribute.as_graphs()
    return found


def graphs_of(home: ir.Graph | ir.Function) -> list[ir.Graph]:
    """Return a graph (of a function: its body) and all subgraphs in it, each before those in it."""
    graphs = [home.graph if isinstance(home, ir.Function) else home]
    position = 0
    while position < len(graphs):
        inner = [graph for node in graphs[position] for graph in inner_graphs(node)]
        position += 1
        graphs[position:position] = inner
    return graphs


def all_nodes(home: ir.Graph) -> Iterator[ir.Node]:
    """Yield the nodes of a graph and its subgraphs, those of a subgraph behind the node that it belongs to."""
    for node in home:
        yield node
        for graph in inner_graphs(node):
            yield from all_nodes(graph)
