"""Names of dimensions: those that a model gives, and those that shape inference makes up where it knows no number.

The latter say which dimensions are equal. The pass needs that, but does not write it into the model: knowing it, ONNX
Runtime makes SkipLayerNormalization of an Add and a LayerNormalization that it leaves alone in the original, and its
kernel for CPUs takes three times as long as the two.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

import onnx_ir as ir

from normfuse.graph_rewrites.engine.traversal import graphs_of


def names_of_dimensions(model: ir.Model) -> frozenset[str]:
    """Return the names of dimensions in all graphs and functions of the model."""
    return frozenset(
        dimension.value
        for value in _shaped_values(model)
        for dimension in value.shape or ()
        if isinstance(dimension, ir.SymbolicDim) and dimension.value is not None
    )


def drop_other_names(model: ir.Model, names: Collection[str]) -> None:
    """Make every dimension of the model unknown that has another name."""
    for value in _shaped_values(model):
        kept = [d if isinstance(d, int) or d.value in names else None for d in value.shape or ()]
        if kept != list(value.shape or ()):
            value.shape = ir.Shape(kept)


def _shaped_values(model: ir.Model) -> Iterator[ir.Value]:
    for root in (model.graph, *(function.graph for function in model.functions.values())):
        for graph in graphs_of(root):
            values = (*graph.inputs, *graph.initializers.values(), *(y for node in graph for y in node.outputs))
            yield from (value for value in values if value.shape is not None)
