"""Names for what the pass writes beside what is fused."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator

import onnx_ir as ir

from normfuse.graph_rewrites.engine.traversal import graphs_of


class Names:
    """Names that nothing in a graph and its subgraphs has."""

    def __init__(self, home: ir.Graph) -> None:
        self._home = home

    @functools.cached_property
    def _taken(self) -> set[str | None]:
        return {name for graph in graphs_of(self._home) for name in _names(graph)}

    def new(self, name: str) -> str:
        """Return the name, or where that is taken with a number behind it."""
        choices = itertools.chain([name], (f"{name}.{number}" for number in itertools.count(1)))
        found = next(choice for choice in choices if choice not in self._taken)
        self._taken.add(found)
        return found


def _names(graph: ir.Graph) -> Iterator[str | None]:
    yield from graph.initializers
    yield from (value.name for value in graph.inputs)
    for node in graph:
        yield node.name
        yield from (value.name for value in node.outputs)
