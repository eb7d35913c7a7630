"""Normalisations of a tensor that was reshaped for them and gets its shape back behind."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import onnx_ir as ir

from normfuse.graph_rewrites.engine.facts import label
from normfuse.graph_rewrites.engine.fused import Fused, new_constant
from normfuse.graph_rewrites.engine.pattern import node_of
from normfuse.graph_rewrites.engine.rule import FusionRule, fused_normalization, require_restored
from normfuse.graph_rewrites.engine.sites import Declined

_RESHAPES = ("Flatten", "Reshape")


class ReshapedNormalization(FusionRule):
    """A Reshape (or Flatten) in front of a normalisation, and one behind that gives the shape back.

    So does Keras with the batch normalisation that it uses for layer normalisation, and so does the function body of
    LayerNormalization. What is normalised is the last dimensions of x.

    Before::

        flat = Flatten(x, axis=-1)
        Y = Reshape(FusedNormalization(flat, steps="Normalize axes=-1"), Shape(x))

    After::

        Y = FusedNormalization(x, steps="Normalize axes=-1")
    """

    def pattern(self, op: Any, x: Any, restoring: Any) -> Any:
        reshaped = node_of(("",), _RESHAPES)(x, _allow_other_inputs=True, _outputs=["reshaped"])
        return op.Reshape(fused_normalization(op, reshaped), restoring)

    def check(self, root: ir.Node, x: ir.Value, restoring: ir.Value, reshaped: ir.Value, normalized: ir.Value) -> Fused:
        self.require_float(x)
        require_restored(self.facts, root, "a normalisation", x, reshaped, restoring)
        node = normalized.producer()
        assert node is not None
        fused = Fused.read(node)
        self._take_shape(fused, x, reshaped, node)
        for statistic in node.outputs[1:]:
            self._require_reshaped(statistic, node)
        return fused

    def _require_reshaped(self, statistic: ir.Value, node: ir.Node) -> None:
        """Decline if a mean or inverse standard deviation, which gets another shape, is used as it is."""
        for use in statistic.uses():
            consumer = use.node
            if consumer.op_type == "Reshape" and consumer.domain == "" and use.idx == 0 and len(consumer.inputs) > 1:
                target = self.facts.elements(consumer.inputs[1])
                if target is not None and not any(size == 0 for size in target.ravel()):
                    continue
            raise Declined("has_other_consumers", value=statistic.name, first=label(node), second=label(consumer))
        if statistic.is_graph_output():
            raise Declined("is_graph_output", value=statistic.name, first=label(node), second="its Reshape")

    def _take_shape(self, fused: Fused, x: ir.Value, reshaped: ir.Value, node: ir.Node) -> None:
        """Let the new node normalise x itself, with scale and bias as that asks for them; or decline."""
        shape, inner = self.facts.shape(x), self.facts.shape(reshaped)
        if shape is None or inner is None:
            raise Declined("unknown_type_or_rank", tensor=label(x if shape is None else reshaped))
        if fused["num_groups"] or any(name not in ("X", "scale", "bias") for name in fused.inputs):
            raise Declined("unsupported_operator", op_type="Reshape", where=f"around a chain as that of {label(node)}")
        axes = sorted(axis % len(inner) for axis in fused["axes"])
        count = _count_of_last(shape, inner, axes)
        if count is None:
            detail = f"it normalises dimensions {axes} of {inner}, which {shape} was reshaped to"
            raise Declined("different_formula", node=label(node), kind="a normalisation of the last", detail=detail)
        given = [step.operand for step in fused.affine]
        if fused.align == "trailing":
            last = list(shape)[-count:]
            for name in given:
                new = f"{node.outputs[0].name}.{name}"
                fused.inputs[name] = self._parameter(new, fused.inputs[name], node, last, inner[-1])
        else:
            if not all(self.facts.all_equal(fused.inputs[name], float(name == "scale")) for name in given):
                raise Declined("unsupported_operator", op_type="Reshape", where=f"around {label(node)} with its scale")
            for name in given:
                fused.drop(name)
        fused.inputs["X"] = x
        fused.normalize(axes=tuple(range(-count, 0)))

    def _parameter(self, name: str, value: ir.Value, node: ir.Node, last: Sequence[Any], inner_size: Any) -> ir.Value:
        """Return a scale or bias of the reshaped tensor as one of x, whose normalised dimensions are `last`.

        `name`: of a new constant, if it takes one.
        """
        source, size = value.producer(), math.prod(last)
        before = source.inputs[0] if source is not None and source.op_type in _RESHAPES and not source.domain else None
        for candidate in (before, value):
            shape = self.facts.static_shape(candidate)
            if candidate is not None and shape is not None and list(shape) == list(last):
                return candidate
        shape = self.facts.static_shape(value)
        if shape is not None and math.prod(shape) == size == shape[-1] == inner_size:
            array = self.facts.constant(value)
            if array is not None and node.graph not in self.facts.function_bodies:
                return new_constant(array.reshape(last), name)
        raise Declined("shape_mismatch", tensor=label(value), shape=shape, x_shape=list(last))


def _count_of_last(shape: ir.Shape, inner: ir.Shape, axes: Sequence[int]) -> int | None:
    """Return how many of the last dimensions of `shape` are dimensions `axes` of `inner`; None: none are exactly."""
    sizes = [size for axis in axes if isinstance(size := inner[axis], int)]
    if len(sizes) < len(axes):
        return None
    normalised = [axis for axis in axes if inner[axis] != 1]
    others = [axis for axis in range(len(inner)) if axis not in axes and inner[axis] != 1]
    if normalised and others and max(others) > normalised[0]:
        return None
    product, wanted = 1, math.prod(sizes)
    for count, size in enumerate(reversed(list(shape)), 1):
        if not isinstance(size, int) or product * size > wanted:
            return None
        product *= size
        if product == wanted:
            return count
    return None
