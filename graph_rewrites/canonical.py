"""Normalisations that are one node already: each becomes a FusedNormalization that its neighbours can join."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import onnx_ir as ir

from .facts import label
from .fused import Fused
from .rule import FusionRule, canonical_axes, require_groups
from .sites import Declined

__all__ = [
    "CanonicalGroupNormalization",
    "CanonicalInstanceNormalization",
    "CanonicalLayerNormalization",
    "CanonicalMeanVarianceNormalization",
    "CanonicalRMSNormalization",
    "CanonicalSkipLayerNormalization",
]


class _Canonical(FusionRule):
    """Base of the rules below: one node, read by ``configuration``."""

    def check(self, root: ir.Node, **_: Any) -> None:
        node = root
        if not node.inputs or node.inputs[0] is None:
            raise Declined("invalid_configuration", node=label(node), detail="it has no input")
        self.require_float(node.inputs[0], "FusedNormalization")
        stash = node.attributes.get_int("stash_type", 1)
        if stash != 1:
            raise Declined(
                "attribute_value", attribute="stash_type", node=label(node), value=stash, supported="1 (float32)"
            )
        self.configuration(node)

    def rewrite(self, tape: ir.tape.Tape, normalized: ir.Value, **_: Any) -> ir.Value | list[ir.Value]:
        node = normalized.producer()
        assert node is not None
        return self.configuration(node).emit(tape)[0]

    @abstractmethod
    def configuration(self, node: ir.Node) -> Fused:
        """Return the node's configuration, or decline."""

    def parameters(self, fused: Fused, node: ir.Node, *names: str, first: int = 1) -> None:
        """Take the node's inputs from number `first` on as inputs `names`."""
        for name, value in zip(names, node.inputs[first:], strict=False):
            if value is not None:
                fused.inputs[name] = value

    def trailing_axes(self, node: ir.Node, x: ir.Value) -> tuple[int, ...]:
        """Return the dimensions from attribute `axis` on."""
        axis = node.attributes.get_int("axis", -1)
        if axis < 0:
            return tuple(range(axis, 0))
        rank = self.facts.rank(x)
        if rank is None:
            raise Declined("unknown_type_or_rank", tensor=label(x))
        return canonical_axes(range(axis, rank), rank, x)

    def input(self, node: ir.Node) -> ir.Value:
        """Return the node's first input."""
        value = node.inputs[0]
        assert value is not None
        return value

    def require_known_rank(self, x: ir.Value, least: int) -> int:
        """Return the rank of x, at least `least`, or decline."""
        rank = self.facts.rank(x)
        if rank is None:
            raise Declined("unknown_type_or_rank", tensor=label(x))
        if rank < least:
            raise Declined(
                "unsupported_rank",
                tensor=label(x),
                rank=rank,
                what="this normalisation",
                supported=f"{least} or more",
            )
        return rank


class CanonicalLayerNormalization(_Canonical):
    """LayerNormalization, from opset 17 or ONNX Runtime's own of the default domain before that.

    Before::

        Y, mean, inv_std_dev = LayerNormalization(x, scale, bias, axis=-1, epsilon=1e-5)

    After::

        Y, _, mean, inv_std_dev = FusedNormalization(x, scale, bias, axes=[-1], epsilon=1e-5)
    """

    def pattern(self, op: Any) -> Any:
        return op.LayerNormalization(_allow_other_inputs=True, _outputs=["normalized", "mean", "inv_std_dev"])

    def configuration(self, node: ir.Node) -> Fused:
        x = self.input(node)
        fused = Fused("FusedNormalization", {"X": x})
        fused.set(axes=self.trailing_axes(node, x), epsilon=node.attributes.get_float("epsilon", 1e-5))
        self.parameters(fused, node, "scale", "bias")
        for name in ("scale", "bias"):
            if fused.has(name):
                self.facts.require_fits(fused.inputs[name], x, name, fused["axes"])
        return fused

    def rewrite(self, tape: ir.tape.Tape, normalized: ir.Value, **_: Any) -> list[ir.Value]:
        node = normalized.producer()
        assert node is not None
        y, _sum, mean, inverse = self.configuration(node).emit(tape)
        return [y, mean, inverse]


class CanonicalRMSNormalization(_Canonical):
    """RMSNormalization (opset 23), and ONNX Runtime's SimplifiedLayerNormalization of the default domain.

    Before::

        Y = RMSNormalization(x, scale, axis=-1, epsilon=1e-5)

    After::

        Y = FusedNormalization(x, scale, axes=[-1], use_mean=0, epsilon=1e-5)
    """

    spellings = ("RMSNormalization", "SimplifiedLayerNormalization")

    def pattern(self, op: Any) -> Any:
        return getattr(op, self.spelling)(_allow_other_inputs=True, _outputs=["normalized", "inv_std_dev"])

    def configuration(self, node: ir.Node) -> Fused:
        x = self.input(node)
        fused = Fused("FusedNormalization", {"X": x})
        fused.set(axes=self.trailing_axes(node, x), use_mean=0, epsilon=node.attributes.get_float("epsilon", 1e-5))
        self.parameters(fused, node, "scale")
        if fused.has("scale"):
            self.facts.require_fits(fused.inputs["scale"], x, "scale", fused["axes"])
        return fused

    def rewrite(self, tape: ir.tape.Tape, normalized: ir.Value, **_: Any) -> list[ir.Value]:
        node = normalized.producer()
        assert node is not None
        y, _sum, _mean, inverse = self.configuration(node).emit(tape)
        return [y, inverse]


class CanonicalSkipLayerNormalization(_Canonical):
    """SkipLayerNormalization and SkipSimplifiedLayerNormalization of com.microsoft.

    Before::

        Y, mean, inv_std_var, sum = SkipLayerNormalization(x, skip, gamma, beta, bias)

    After::

        Y, sum, mean, inv_std_dev = FusedNormalization(x, gamma, beta, skip, bias, axes=[-1])
    """

    spellings = ("SkipLayerNormalization", "SkipSimplifiedLayerNormalization")

    def pattern(self, op: Any) -> Any:
        outputs = ["normalized", "mean", "inv_std_dev", "total"]
        return getattr(op, self.spelling)(_domain="com.microsoft", _allow_other_inputs=True, _outputs=outputs)

    def configuration(self, node: ir.Node) -> Fused:
        x = self.input(node)
        fused = Fused("FusedNormalization", {"X": x})
        fused.set(axes=(-1,), epsilon=node.attributes.get_float("epsilon", 1e-12))
        if self.spelling == "SkipLayerNormalization":
            self.parameters(fused, node, "residual", "scale", "bias", "residual_bias")
        else:
            fused.set(use_mean=0)
            self.parameters(fused, node, "residual", "scale", "residual_bias")
        # The operator itself asks for a residual that broadcasts to x, and for vectors of x's last dimension.
        for name, value in fused.inputs.items():
            if name not in ("X", "residual") and self.facts.rank(value) not in (None, 1):
                self.facts.require_fits(value, x, name, (-1,))
        return fused

    def rewrite(self, tape: ir.tape.Tape, normalized: ir.Value, **_: Any) -> list[ir.Value]:
        node = normalized.producer()
        assert node is not None
        y, total, mean, inverse = self.configuration(node).emit(tape)
        return [y, mean, inverse, total]


class CanonicalInstanceNormalization(_Canonical):
    """InstanceNormalization: over all dimensions from the third on, scale and bias per channel.

    Before::

        Y = InstanceNormalization(x, scale, bias, epsilon=1e-5)

    After::

        Y = FusedNormalization(x, scale, bias, axes=[-2, -1], affine_align="channel", epsilon=1e-5)
    """

    def pattern(self, op: Any) -> Any:
        return op.InstanceNormalization(_allow_other_inputs=True, _outputs=["normalized"])

    def configuration(self, node: ir.Node) -> Fused:
        x = self.input(node)
        rank = self.require_known_rank(x, 3)
        fused = Fused("FusedNormalization", {"X": x})
        axes = canonical_axes(range(2, rank), rank, x)
        fused.set(axes=axes, epsilon=node.attributes.get_float("epsilon", 1e-5), affine_align="channel")
        self.parameters(fused, node, "scale", "bias")
        return fused


class CanonicalGroupNormalization(_Canonical):
    """GroupNormalization: scale and bias per group at opset 18, per channel from opset 21 on.

    Before::

        Y = GroupNormalization(x, scale, bias, num_groups=32, epsilon=1e-5)

    After::

        Y = FusedNormalization(x, scale, bias, num_groups=32, affine_align="channel", epsilon=1e-5)
    """

    def pattern(self, op: Any) -> Any:
        return op.GroupNormalization(_allow_other_inputs=True, _outputs=["normalized"])

    def configuration(self, node: ir.Node) -> Fused:
        x = self.input(node)
        groups = require_groups(self.facts, x, node.attributes.get_int("num_groups", 0), node)
        fused = Fused("FusedNormalization", {"X": x})
        fused.set(
            num_groups=groups,
            epsilon=node.attributes.get_float("epsilon", 1e-5),
            affine_align="channel" if self.facts.opsets.get("", 1) >= 21 else "group",
        )
        self.parameters(fused, node, "scale", "bias")
        return fused


class CanonicalMeanVarianceNormalization(_Canonical):
    """MeanVarianceNormalization, which adds 1e-9 to the standard deviation.

    Before::

        Y = MeanVarianceNormalization(x, axes=[0, 2, 3])

    After::

        Y = FusedNormalization(x, axes=[0, 2, 3], epsilon=1e-9, epsilon_on="stddev")
    """

    def pattern(self, op: Any) -> Any:
        return op.MeanVarianceNormalization(_allow_other_inputs=True, _outputs=["normalized"])

    def configuration(self, node: ir.Node) -> Fused:
        x = self.input(node)
        if "across_channels" in node.attributes or "normalize_variance" in node.attributes:
            raise Declined("unsupported_operator", op_type="MeanVarianceNormalization before opset 9", where="here")
        fused = Fused("FusedNormalization", {"X": x})
        given = node.attributes.get_ints("axes", (0, 2, 3))
        axes = canonical_axes(tuple(given), self.require_known_rank(x, 1), x)
        fused.set(axes=axes, epsilon=1e-9, epsilon_on="stddev")
        return fused
