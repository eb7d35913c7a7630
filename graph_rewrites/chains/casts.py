"""Float casts around a fused node: a half-precision model that normalises in float32 is still one chain."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from normfuse.graph_rewrites.engine.element_types import FLOAT_TYPES
from normfuse.graph_rewrites.engine.facts import CASTS, label
from normfuse.graph_rewrites.engine.fused import Fused
from normfuse.graph_rewrites.engine.pattern import node_of
from normfuse.graph_rewrites.engine.rule import FusionRule, fused_of
from normfuse.graph_rewrites.engine.sites import Declined

_OPERATORS = ("FusedNormalization", "FusedActivation")


class NarrowedResult(FusionRule):
    """A cast (Cast, CastLike) back to the type that the chain came from.

    Before::

        Y = Cast(FusedNormalization(Cast(x, to=float32)), to=float16)

    After::

        Y = FusedNormalization(Cast(x, to=float32), steps="...; Store type=float16")
    """

    spellings = _OPERATORS

    def pattern(self, op: Any) -> Any:
        cast = node_of(("",), CASTS)
        return cast(fused_of(op, self.spelling), _allow_other_inputs=True, _outputs=["narrowed"])

    def check(self, root: ir.Node, inner: ir.Value, narrowed: ir.Value) -> Fused:
        fused = Fused.of(inner)
        target = self.facts.cast_target(root)
        x = fused.inputs["X"]
        source = self.facts.dtype(self.facts.strip(x))
        if fused.quantizes or fused.first is not None or target not in FLOAT_TYPES or source != target:
            raise Declined("unsupported_type", tensor=label(narrowed), type=target, what="the chain")
        return fused


class WidenedInput(FusionRule):
    """A cast to float32 in front of a fused node whose result has the type before the cast.

    Before::

        Y = FusedNormalization(Cast(x, to=float32), steps="...; Store type=float16")

    After::

        Y = FusedNormalization(x)
    """

    spellings = _OPERATORS

    def pattern(self, op: Any, x: Any) -> Any:
        cast = node_of(("",), CASTS)
        return fused_of(op, self.spelling, cast(x, _allow_other_inputs=True, _outputs=["widened"]))

    def check(self, root: ir.Node, x: ir.Value, inner: ir.Value, widened: ir.Value) -> Fused:
        fused = Fused.of(inner)
        dtype = self.require_float(x)
        if self.facts.strip(widened) is not self.facts.strip(x) or self.facts.dtype(inner) != dtype:
            raise Declined("unsupported_type", tensor=label(x), type=dtype, what="a chain with another result type")
        if fused.first is not None or fused.joined:
            raise Declined("unsupported_type", tensor=label(x), type=dtype, what="a chain with a residual")
        fused.inputs["X"] = x
        return fused
