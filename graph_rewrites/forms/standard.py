"""The target "standard": fused nodes written out again in standard operators, for tools that drop functions."""

from __future__ import annotations

import itertools
from collections.abc import Collection

import onnx_ir as ir

from normfuse.graph_rewrites.engine.facts import Facts, name_of
from normfuse.graph_rewrites.engine.fused import Fused
from normfuse.graph_rewrites.engine.matching import is_dead
from normfuse.graph_rewrites.forms.functions import Body, Types

# Between the name of a fused node and the number of a node that it is written out in.
_MARK = ".normfuse."


def names_written(graph: ir.Graph) -> set[str]:
    """Return the names in a graph that `write_out` gave to nodes in an earlier run, of which values may be left."""
    values = (value.name.rpartition(".")[0] for node in graph for value in node.outputs if value.name)
    return {name for name in (*(node.name for node in graph), *values) if name and _MARK in name}


def is_written(node: ir.Node, rules: str) -> bool:
    """True for a node that an earlier run wrote out; the last one of a chain has the metadata `rules`."""
    return node.domain == "" and (_MARK in (node.name or "") or rules in node.metadata_props)


def write_out(node: ir.Node, opsets: dict[str, int], facts: Facts, taken: set[str]) -> None:
    """Replace a fused node by standard operators of the opset; its outputs keep their names.

    `taken`: names that nodes of the graph have from an earlier run; the new ones are added.
    """
    graph = node.graph
    assert graph is not None
    fused = Fused.read(node)
    body = Body(fused, Types.of(fused, node.outputs[0], facts), opsets.get("", 1))
    results = body.write(len(node.outputs))
    base = name_of(node)
    numbers = (number for number in itertools.count() if f"{base}{_MARK}{number}" not in taken)
    for number, part in zip(numbers, body.nodes, strict=False):
        part.name = f"{base}{_MARK}{number}"
        for index, value in enumerate(part.outputs):
            value.name = f"{base}{_MARK}{number}.{index}"
        if part.op_type == "Constant":
            part.attributes.get_tensor("value").name = part.outputs[0].name
    _give_name(results[0], base, node)
    graph.insert_before(node, body.nodes)
    for old, new in zip(node.outputs, results, strict=True):
        if old.name:
            new.name, new.type, new.shape = old.name, old.type, old.shape
        old.replace_all_uses_with(new, replace_graph_outputs=True)
    graph.remove(node, safe=True)
    for part in reversed(body.nodes):
        if is_dead(part):  # an output that nobody uses
            graph.remove(part, safe=True)
    taken.update(part.name or "" for part in body.nodes)
    for domain in body.domains:
        opsets.setdefault(domain, 1)


def original_name(node: ir.Node, matched: Collection[ir.Node]) -> str | None:
    """Return the node's name, or that of the fused node which an earlier run wrote it out of: names do not grow.

    The last of the nodes that were written out has that name. Where it is not among the matched ones it keeps it.
    """
    parts = (node.name or "").split(_MARK)
    names = {each.name for each in matched}
    outer = (_MARK.join(parts[:count]) for count in range(1, len(parts)))
    return next((name for name in outer if name in names), node.name)


def _give_name(result: ir.Value, name: str, node: ir.Node) -> None:
    last = result.producer()
    assert last is not None
    last.name = name
    last.doc_string = node.doc_string
    last.metadata_props.update(node.metadata_props)
