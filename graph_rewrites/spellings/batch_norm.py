"""Batch normalisation: in inference a scale and a bias per channel, and with the batch's own statistics."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from normfuse.graph_rewrites.engine.facts import label
from normfuse.graph_rewrites.engine.fused import Activation, Fused, new_constant
from normfuse.graph_rewrites.engine.host_fusions import require_no_weights
from normfuse.graph_rewrites.engine.pattern import any_of
from normfuse.graph_rewrites.engine.rule import FusionRule, canonical_axes, fused_activation, mean_of, mean_square_of
from normfuse.graph_rewrites.engine.sites import Declined
from normfuse.graph_rewrites.spellings.activations import any_activation, read_activation


class BatchNormalizationActivation(FusionRule):
    """Batch normalisation in inference, followed by an activation.

    Before::

        Y = Relu(BatchNormalization(x, scale, bias, mean, variance))

    After::

        Y = FusedActivation(x, scale / sqrt(variance + epsilon), bias - mean * scale / sqrt(variance + epsilon))
    """

    spellings = ("canonical", "decomposed")

    def pattern(self, op: Any, x: Any, scale: Any, bias: Any, mean: Any, variance: Any) -> Any:
        normalized = op.BatchNormalization(x, scale, bias, mean, variance, _outputs=["normalized"])
        if self.spelling == "canonical":
            return any_activation(op, normalized, output="activated")
        return fused_activation(op, normalized)

    def check(self, root: ir.Node, x: ir.Value, normalized: ir.Value, activated: ir.Value, **given: Any) -> Fused:
        node = normalized.producer()
        assert node is not None
        dtype = self.require_float(x, "FusedActivation")
        if self.facts.rank(x) is None:
            raise Declined("unknown_type_or_rank", tensor=label(x))
        require_inference(node)
        parameters = []
        for name in ("scale", "bias", "mean", "variance"):
            value, array = given[name], self.facts.constant(given[name])
            if array is None:
                raise Declined("parameter_not_constant", parameter=f"{name} {label(value)}", node=label(node))
            if self.facts.dtype(value) != dtype:
                raise Declined("unsupported_type", tensor=label(value), type=self.facts.dtype(value), what="this chain")
            parameters.append(array.astype(np.float64))
        if node.graph in self.facts.function_bodies:
            raise Declined("unsupported_operator", op_type="BatchNormalization", where="inside a function")
        require_no_weights(self.facts, x, node)
        activation = self._activation(activated)
        gamma, beta, mean, variance = parameters
        factor = gamma / np.sqrt(variance + node.attributes.get_float("epsilon", 1e-5))
        fused = Fused("FusedActivation", {"X": x})
        fused.put_affine(
            new_constant(factor.astype(dtype.numpy()), f"{normalized.name}.scale"),
            new_constant((beta - mean * factor).astype(dtype.numpy()), f"{normalized.name}.bias"),
            "channel",
        )
        fused.activate(activation)
        return fused

    def _activation(self, activated: ir.Value) -> Activation:
        node = activated.producer()
        assert node is not None
        if self.spelling == "decomposed":
            behind = Fused.read(node)
            if behind.affine or behind.first is not None or behind.quantizes or behind.further:
                raise Declined("unsupported_operator", op_type="Add", where=f"in front of {label(node)}")
            return behind.activation
        activation, extra = read_activation(node, self.facts, self.facts.opsets)
        if activation.slope is not None or extra is not None:
            raise Declined("unsupported_operator", op_type=node.op_type, where="behind a batch normalisation")
        return activation


def require_inference(node: ir.Node) -> None:
    """Decline a BatchNormalization in training, or one with statistics for each place."""
    if node.attributes.get_int("training_mode", 0):
        raise Declined("training_mode", node=label(node))
    if node.attributes.get_int("spatial", 1) != 1:
        raise Declined("attribute_value", attribute="spatial", node=label(node), value=0, supported="1")


class BatchStatisticsNormalization(FusionRule):
    """Batch normalisation whose mean and variance are computed from its own input, as tf2onnx writes Keras' training
    mode: a normalisation over all dimensions but the channels'.

    Before::

        mean = ReduceMean(x, axes=[0, 2, 3])
        variance = Div(ReduceSumSquare(Sub(x, mean), axes=[0, 2, 3]), N)
        Y = BatchNormalization(x, scale, bias, Squeeze(mean), variance)

    After::

        steps = "Normalize axes=0,2,3; Mul scale align=channel; Add bias align=channel"
        Y = FusedNormalization(x, scale, bias, steps=steps)
    """

    def pattern(self, op: Any, x: Any, scale: Any, bias: Any) -> Any:
        mean = mean_of(op, x, "mean")
        variance = mean_square_of(op, op.Sub(x, mean), "variance")
        squeezed = op.Squeeze(mean, _allow_other_inputs=True)
        flat_variance = any_of(variance, op.Squeeze(variance, _allow_other_inputs=True))
        return op.BatchNormalization(x, scale, bias, squeezed, flat_variance, _outputs=["normalized"])

    def check(self, root: ir.Node, x: ir.Value, scale: ir.Value, bias: ir.Value, **bindings: Any) -> Fused:
        self.require_float(x)
        axes = self._axes_but_the_channels(x)
        require_inference(root)
        # BatchNormalization itself sees to it that both are vectors.
        of_mean = self.reduced_axes("mean", x, bindings)
        of_variance = self.reduced_axes("variance", x, bindings, keepdims=False)
        if of_mean != axes or of_variance != axes:
            detail = f"its statistics are taken over dimensions {of_mean} and {of_variance}, and not over {axes}"
            raise Declined("different_formula", node=label(root), kind="a batch normalisation", detail=detail)
        fused = Fused("FusedNormalization", {"X": x})
        fused.normalize(axes=axes, epsilon=root.attributes.get_float("epsilon", 1e-5))
        if not (self.facts.all_equal(scale, 1) and self.facts.all_equal(bias, 0)):
            fused.put_affine(scale, bias, "channel")
        return fused

    def _axes_but_the_channels(self, x: ir.Value) -> tuple[int, ...]:
        rank = self.facts.rank(x)
        if rank is None:
            raise Declined("unknown_type_or_rank", tensor=label(x))
        return canonical_axes([axis for axis in range(rank) if axis != 1], rank, x)
