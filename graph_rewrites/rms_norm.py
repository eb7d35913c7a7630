"""RMS normalisation written out: x / sqrt(mean(x^2) + epsilon)."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from .facts import label
from .fused import Fused
from .rule import FusionRule, inverse_root, mean_square_of, root_of
from .sites import Declined

__all__ = ["DecomposedRMSNormalization"]

_MEANS = ("ReduceMean", "Div", "Mul")


class DecomposedRMSNormalization(FusionRule):
    """RMS normalisation as T5, Llama and torch.rsqrt leave it.

    Before::

        Y = Mul(x, Reciprocal(Sqrt(Add(ReduceMean(Pow(x, 2)), epsilon))))

    After::

        Y = FusedNormalization(x, axes=..., use_mean=0, epsilon=...)
    """

    has_statistics = True
    spellings = ("divide", "multiply", "scaled")

    def pattern(self, op: Any, x: Any, epsilon: Any, scale: Any) -> Any:
        shifted = op.Add(mean_square_of(op, x, "variance"), epsilon)
        if self.spelling == "divide":
            return op.Div(x, root_of(op, shifted))
        inverse = inverse_root(op, shifted)
        return op.Mul(x, inverse if self.spelling == "multiply" else op.Mul(inverse, scale))

    def check(
        self,
        context: Any,
        x: ir.Value,
        epsilon: ir.Value,
        scale: ir.Value | None = None,
        **bindings: Any,
    ) -> bool:
        self.require_float(x)
        self.require_scalar(epsilon, "epsilon", context.root)
        axes = self.reduced_axes("variance", x, bindings)
        if self._is_centred(x):
            raise Declined(
                "different_formula",
                node=label(context.root),
                kind="RMSNormalization",
                detail="its input is centred before: it is a LayerNormalization that could not be fused as a whole",
            )
        if scale is not None:
            self.facts.require_fits(scale, x, "scale", self.counted_from_end(axes, x))
        return True

    def _is_centred(self, x: ir.Value) -> bool:
        node = self.facts.strip(x).producer()
        if node is None or node.op_type != "Sub" or node.domain != "":
            return False
        mean = node.inputs[1].producer() if node.inputs[1] is not None else None
        return mean is not None and mean.op_type in _MEANS and self.facts.same(mean.inputs[0], node.inputs[0])

    def rewrite(
        self,
        op: Any,
        x: ir.Value,
        epsilon: ir.Value,
        scale: ir.Value | None = None,
        **bindings: Any,
    ) -> ir.Value:
        fused = Fused("FusedNormalization", {"X": x})
        axes = self.reduced_axes("variance", x, bindings)
        fused.set(axes=axes, use_mean=0, epsilon=self.facts.scalar(epsilon))
        if scale is not None:
            fused.inputs["scale"] = scale
        return fused.emit(op)[0]
