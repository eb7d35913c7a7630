"""Normalisations that are one standard node already: each becomes a FusedNormalization that its neighbours can join."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from .facts import label
from .fused import Fused
from .rule import FusionRule, canonical_axes
from .sites import Declined

__all__ = [
    "CanonicalLayerNormalization",
]


class CanonicalLayerNormalization(FusionRule):
    """LayerNormalization, from opset 17 or ONNX Runtime's own of the default domain before that.

    Before::

        Y = LayerNormalization(x, scale, bias, axis=-1, epsilon=1e-5)

    After::

        Y = FusedNormalization(x, scale, bias, axes=[-1], epsilon=1e-5)
    """

    def pattern(self, op: Any, x: Any) -> Any:
        return op.LayerNormalization(x, _allow_other_inputs=True, _outputs=["normalized"])

    def check(self, context: Any, x: ir.Value, **_: Any) -> bool:
        node = context.root
        self.require_float(x, "FusedNormalization")
        stash = node.attributes.get_int("stash_type", 1)
        if stash != 1:
            raise Declined(
                "attribute_value", attribute="stash_type", node=label(node), value=stash, supported="1 (float32)"
            )
        self._configuration(node)
        return True

    def rewrite(self, op: Any, normalized: ir.Value, **_: Any) -> ir.Value:
        node = normalized.producer()
        assert node is not None
        return self._configuration(node).emit(op)[0]

    def _configuration(self, node: ir.Node) -> Fused:
        x = node.inputs[0]
        assert x is not None
        axes = self._trailing_axes(node, x)
        fused = Fused("FusedNormalization", {"X": x})
        for name, value in zip(("scale", "bias"), node.inputs[1:3], strict=False):
            if value is not None:
                self.facts.require_fits(value, x, name, axes)
                fused.inputs[name] = value
        fused.set(axes=axes, epsilon=node.attributes.get_float("epsilon", 1e-5))
        return fused

    def _trailing_axes(self, node: ir.Node, x: ir.Value) -> tuple[int, ...]:
        axis = node.attributes.get_int("axis", -1)
        rank = self.facts.rank(x)
        if axis < 0:
            return tuple(range(axis, 0))
        if rank is None:
            raise Declined("unknown_type_or_rank", tensor=label(x))
        return canonical_axes(range(axis, rank), rank, x)
