"""One example for each kind of site that was fused: the nodes as they were, for drawing."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import onnx_ir as ir

if TYPE_CHECKING:
    from normfuse.graph_rewrites.engine.sites import Site


@dataclasses.dataclass(frozen=True)
class ExampleNode:
    """A node of the original model."""

    op_type: str
    inputs: tuple[int, ...]
    """Which nodes of the example it reads from, by index; all others come from outside."""


@dataclasses.dataclass(frozen=True)
class SiteExample:
    """The original nodes of one site, standing for all sites that look the same."""

    site: str
    """Name of the site shown."""
    description: str
    fused_into: str
    count: int
    """Sites with the same description and the same number of each operator."""
    nodes: tuple[ExampleNode, ...]
    """In an order in which every node comes after those that it reads from."""


def site_examples(model: ir.Model, sites: Iterable[Site]) -> tuple[SiteExample, ...]:
    """Return an example of each kind of fused site, most frequent first.

    Args:
        model: The original model.
        sites: Of this model, fused or left.
    """
    named = _nodes_by_name(model)
    kinds: dict[tuple[object, ...], list[tuple[Site, list[ir.Node]]]] = collections.defaultdict(list)
    for site in sites:
        nodes = [node for name in site.nodes if (node := named.get(name)) is not None]
        if site.fused_into is not None and nodes and len(nodes) == len(site.nodes):
            operators = tuple(sorted(node.op_type for node in nodes))
            kinds[site.description, site.fused_into, operators].append((site, nodes))
    examples = [_example(alike[0][0], alike[0][1], len(alike)) for alike in kinds.values()]
    return tuple(sorted(examples, key=lambda example: -example.count))


def _nodes_by_name(model: ir.Model) -> dict[str, ir.Node | None]:
    """Return name (or first output) -> node; None for a name that several nodes have."""
    from normfuse.graph_rewrites.engine.facts import name_of

    named: dict[str, ir.Node | None] = {}
    containers: list[Iterable[ir.Node]] = [ir.traversal.RecursiveGraphIterator(model.graph)]
    containers += [ir.traversal.RecursiveGraphIterator(function) for function in model.functions.values()]
    for container in containers:
        for node in container:
            name = name_of(node)
            named[name] = None if name in named else node
    return named


def _example(site: Site, nodes: Sequence[ir.Node], count: int) -> SiteExample:
    assert site.fused_into is not None
    ordered = _in_order(nodes)
    index = {node: number for number, node in enumerate(ordered)}
    drawn = tuple(
        ExampleNode(node.op_type, tuple(sorted(index[producer] for producer in _producers(node) if producer in index)))
        for node in ordered
    )
    return SiteExample(site.name, site.description, site.fused_into, count, drawn)


def _producers(node: ir.Node) -> set[ir.Node]:
    producers = (value.producer() for value in node.inputs if value is not None)
    return {producer for producer in producers if producer is not None}


def _in_order(nodes: Sequence[ir.Node]) -> list[ir.Node]:
    """Return the nodes, each behind those that it reads from."""
    waiting, ordered = dict.fromkeys(nodes), dict[ir.Node, None]()

    def place(node: ir.Node) -> None:
        for producer in sorted(_producers(node) & waiting.keys(), key=lambda producer: producer.name or ""):
            if producer not in ordered:
                place(producer)
        ordered[node] = None

    for node in nodes:
        if node not in ordered:
            place(node)
    return list(ordered)
