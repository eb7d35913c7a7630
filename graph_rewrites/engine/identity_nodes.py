"""Nodes that only repeat a tensor, in the way of no pattern.

While rules are tried, whatever reads such a node reads the tensor itself. Behind the last rule, all that is still there
reads again what it did: a model keeps its own Identity nodes wherever nothing was fused.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

import onnx_ir as ir

from normfuse.graph_rewrites.engine.facts import CASTS, Facts

# Since this opset Dropout does nothing unless an input says that this is training; before opset 7 an attribute did.
_DROPOUT_SINCE = 7


class IdentityNodes:
    """The nodes of a model that repeat their first input, and who read them."""

    def __init__(self, facts: Facts) -> None:
        """Take what is known of the model's values."""
        self._facts = facts
        self._uses: dict[ir.Node, list[tuple[ir.Node, int]]] = {}
        # The last of those between an input and what it reads now.
        self._passed: dict[tuple[ir.Node, int], ir.Node] = {}

    def bypass(self, graphs: Iterable[ir.Graph], opset: int) -> None:
        """Let all that reads a repeated tensor read the tensor itself."""
        for graph in graphs:
            for node in graph:
                if not self._repeats(node, opset):
                    continue
                source, uses = node.inputs[0], [(use.node, use.idx) for use in node.outputs[0].uses()]
                if source is None or source.graph is not graph or not uses:
                    continue
                if any(value.is_graph_output() or (value.uses() and value.index()) for value in node.outputs):
                    continue  # it is needed for itself
                self._uses[node] = uses
                for consumer, index in uses:
                    self._passed[consumer, index] = node
                    consumer.replace_input_with(index, source)
                node.replace_input_with(0, None)

    def restore(self) -> None:
        """Let what is left read what it did, and remove the nodes that nothing is left to read of."""
        for node, uses in reversed(self._uses.items()):
            for consumer, index in uses:
                value = consumer.inputs[index] if consumer.graph is not None and index < len(consumer.inputs) else None
                if value is not None:
                    node.replace_input_with(0, value)
                    consumer.replace_input_with(index, node.outputs[0])
            if node.graph is not None and not node.outputs[0].uses():
                node.graph.remove(node, safe=True)

    def between(self, nodes: Collection[ir.Node]) -> Iterator[ir.Node]:
        """Yield the nodes that stood between some nodes."""
        for node in nodes:
            for index, value in enumerate(node.inputs):
                repeater = self._passed.get((node, index)) if value is not None and value.producer() in nodes else None
                while repeater is not None:
                    yield repeater
                    repeater = self._passed.get((repeater, 0))

    def _repeats(self, node: ir.Node, opset: int) -> bool:
        if not self._facts.transparent(node):
            return False
        if node.op_type in CASTS:
            dtype = self._facts.dtype(node.inputs[0])
            return dtype is not None and dtype == self._facts.cast_target(node)
        if node.op_type == "Dropout":
            return opset >= _DROPOUT_SINCE or bool(node.attributes.get_int("is_test", 0))
        return True
