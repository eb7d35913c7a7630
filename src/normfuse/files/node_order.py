"""Node lists in any order, as some converters write them and ONNX Runtime loads them: sorted for all that follows."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

from normfuse.errors import InvalidModelError
from normfuse.graph_rewrites.engine.traversal import graphs_of

# Nodes of a cycle that a message names.
_NAMED = 6


def is_sorted(model: ir.Model) -> bool:
    """Return whether every node comes after those whose results it, or a graph inside of it, reads."""
    return all(_is_sorted(graph, set()) for graph in _homes(model))


def sort_nodes(model: ir.Model, what: str) -> None:
    """Sort the nodes of all graphs, changing their order as little as possible.

    Args:
        model: The model; it is changed.
        what: Name of the model in messages.

    Raises:
        InvalidModelError: A node depends on its own result.
    """
    for home in _homes(model):
        try:
            home.sort()
        except ValueError as error:
            from normfuse.graph_rewrites.engine.facts import name_of

            cycle = next(cycle for graph in graphs_of(home) if (cycle := _cycle(graph)))
            names = [f"'{name_of(node)}' ({node.op_type})" for node in cycle]
            way = " -> ".join(names if len(names) <= _NAMED else [*names[: _NAMED - 1], "...", names[-1]])
            raise InvalidModelError(f"{what}: the graph has a cycle, {way}; no such model can be run.") from error


def sorted_clone(model: ir.Model, what: str) -> ir.Model:
    """Return a clone with sorted nodes; the model is not changed, and errors are those of :func:`sort_nodes`."""
    orders = [(graph, tuple(graph)) for home in _homes(model) for graph in graphs_of(home)]
    try:
        sort_nodes(model, what)  # a model that is not sorted cannot be cloned
        return model.clone()
    finally:
        for graph, nodes in orders:
            graph.extend(nodes)


def _homes(model: ir.Model) -> Iterator[ir.Graph]:
    yield model.graph
    yield from (function.graph for function in model.functions.values())


def _is_sorted(graph: ir.Graph, done: set[ir.Node]) -> bool:
    for node in graph:
        if any(value is not None and (p := value.producer()) is not None and p not in done for value in node.inputs):
            return False
        if not all(_is_sorted(inner, done) for inner in _inner_graphs(node)):
            return False
        done.add(node)
    return True


def _inner_graphs(node: ir.Node) -> Iterator[ir.Graph]:
    for attribute in node.attributes.values():
        if attribute.type == ir.AttributeType.GRAPH and not attribute.is_ref():
            yield attribute.as_graph()
        elif attribute.type == ir.AttributeType.GRAPHS and not attribute.is_ref():
            yield from attribute.as_graphs()


def _needed(node: ir.Node) -> dict[ir.Node, None]:
    """Return the nodes of the node's own graph whose results it, or a graph inside of it, reads."""
    readers = [node, *(inner for graph in _inner_graphs(node) for inner in ir.traversal.RecursiveGraphIterator(graph))]
    producers = (value.producer() for reader in readers for value in reader.inputs if value is not None)
    return {producer: None for producer in producers if producer is not None and producer.graph is node.graph}


def _cycle(graph: ir.Graph) -> list[ir.Node]:
    """Return the nodes of a cycle, the first once more at the end; none if there is no cycle in this graph itself."""
    needed = {node: _needed(node) for node in graph}
    users: dict[ir.Node, list[ir.Node]] = {node: [] for node in graph}
    for node, producers in needed.items():
        for producer in producers:
            users[producer].append(node)
    ready = [node for node, producers in needed.items() if not producers]
    while ready:
        done = ready.pop()
        del needed[done]
        for user in users[done]:
            del needed[user][done]
            if not needed[user]:
                ready.append(user)
    if not needed:
        return []
    # Each remaining node waits for another one: going back from any of them ends in a cycle.
    node, places, way = next(iter(needed)), dict[ir.Node, int](), list[ir.Node]()
    while node not in places:
        places[node] = len(way)
        way.append(node)
        node = next(iter(needed[node]))
    return [*way[places[node] :], node][::-1]
