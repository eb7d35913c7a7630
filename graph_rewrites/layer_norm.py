"""Layer normalisation written out: (x - mean) / sqrt(variance + epsilon), over any axes."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from .facts import label
from .fused import Fused
from .rule import FusionRule, any_of, inverse_root, mean_of, mean_square_of, root_of, square_of
from .sites import Declined

__all__ = ["DecomposedLayerNormalization"]


class DecomposedLayerNormalization(FusionRule):
    """A layer normalisation (or instance normalisation, or MVN with an epsilon) spelled out in elementary operators.

    Mean and variance in any spelling: ReduceMean or ReduceSum / N, Pow(d, 2) or d * d, mean of squares of deviations
    or E[x^2] - E[x]^2, Sqrt or Pow 0.5, division or Reciprocal; scale and bias folded in as TensorFlow and Flax do.

    Before::

        mean = ReduceMean(x)
        d = Sub(x, mean)
        Y = Div(d, Sqrt(Add(ReduceMean(Pow(d, 2)), epsilon)))

    After::

        Y = FusedNormalization(x, axes=..., epsilon=...)
    """

    has_statistics = True
    spellings = ("divide", "multiply", "scaled", "folded", "folded without bias", "stddev")

    def pattern(self, op: Any, x: Any, epsilon: Any, scale: Any, bias: Any) -> Any:
        mean = mean_of(op, x, "mean")
        deviation = op.Sub(x, mean)
        shortcut = op.Sub(mean_square_of(op, x, "variance"), square_of(op, mean))
        variance = any_of(
            mean_square_of(op, deviation, "variance"),
            shortcut,
            op.Max(shortcut, 0),
            op.Relu(shortcut),
            op.Abs(shortcut),
        )
        if self.spelling == "stddev":
            return op.Div(deviation, op.Add(op.Sqrt(variance), epsilon))
        shifted = op.Add(variance, epsilon)
        if self.spelling == "divide":
            return op.Div(deviation, root_of(op, shifted))
        inverse = inverse_root(op, shifted)
        if self.spelling == "multiply":
            return op.Mul(deviation, inverse)
        scaled = op.Mul(inverse, scale)
        if self.spelling == "scaled":
            return op.Mul(deviation, scaled)
        factor = any_of(scaled, inverse)
        if self.spelling == "folded":
            return op.Add(op.Mul(x, factor), op.Sub(bias, op.Mul(mean, factor)))
        return op.Sub(op.Mul(x, factor), op.Mul(mean, factor))

    def check(
        self,
        context: Any,
        x: ir.Value,
        epsilon: ir.Value,
        scale: ir.Value | None = None,
        bias: ir.Value | None = None,
        **bindings: Any,
    ) -> bool:
        self.require_float(x)
        self.require_scalar(epsilon, "epsilon", context.root)
        axes = self.reduced_axes("mean", x, bindings)
        if self.reduced_axes("variance", x, bindings) != axes:
            raise Declined(
                "different_formula",
                node=label(context.root),
                kind="LayerNormalization",
                detail="mean and variance are taken over different axes",
            )
        for what, parameter in (("scale", scale), ("bias", bias)):
            if parameter is not None:
                self.facts.require_fits(parameter, x, what, self.counted_from_end(axes, x))
        return True

    def rewrite(
        self,
        op: Any,
        x: ir.Value,
        epsilon: ir.Value,
        scale: ir.Value | None = None,
        bias: ir.Value | None = None,
        **bindings: Any,
    ) -> ir.Value:
        fused = Fused("FusedNormalization", {"X": x})
        fused.set(axes=self.reduced_axes("mean", x, bindings), epsilon=self.facts.scalar(epsilon))
        if self.spelling == "stddev":
            fused.set(epsilon_on="stddev")
        for name, parameter in (("scale", scale), ("bias", bias)):
            if parameter is not None:
                fused.inputs[name] = parameter
        return fused.emit(op)[0]
