"""What a fused configuration is called: the kind of its site, and its chain in the names of the standard operators."""

from __future__ import annotations

from .fused import Fused

__all__ = ["chain_of", "description_of", "kind_of"]


def kind_of(fused: Fused) -> str:
    """Return the kind of site that a configuration is."""
    if fused.op_type == "FusedDequantizeLinear":
        return "DequantizeLinear"
    if fused.op_type == "FusedActivation":
        return "Activation"
    if fused["method"] != "standard":
        return "Softmax" if fused["method"] == "softmax" else "LogSoftmax"
    if not fused["use_mean"]:
        return "RMSNormalization"
    if fused["num_groups"]:
        return "GroupNormalization"
    if fused["epsilon_on"] == "stddev" or not fused["normalize_variance"]:
        return "MeanVarianceNormalization"
    if fused["affine_align"] == "channel":
        return "InstanceNormalization"
    axes = fused["axes"]
    return "LayerNormalization" if axes == tuple(range(-len(axes), 0)) else "MeanVarianceNormalization"


def chain_of(fused: Fused, *, activation: str | None = None) -> list[str]:
    """Return the steps of a configuration in order, such as ["DequantizeLinear", "LayerNormalization", "Gelu"].

    Args:
        fused: The configuration.
        activation: What the activation is called, and further steps are left out, as the names of functions ask for;
            None: all by their own names.
    """
    steps = []
    if fused.has("x_scale"):
        steps.append("DequantizeLinear")
    if activation is None:
        steps += [step.operator for step in fused.before]
    if fused.has("residual", "residual_bias"):
        steps.append("Add")
    if fused.op_type == "FusedNormalization":
        steps.append(kind_of(fused))
    else:
        steps += [name for name, given in (("Mul", fused.has("scale")), ("Add", fused.has("bias"))) if given]
    if fused["activation"] != "Identity":
        steps.append(activation or fused["activation"])
    if activation is None:
        steps += [step.operator for step in fused.behind]
    if fused.has("y_scale"):
        steps.append("QuantizeLinear")
    return steps


def description_of(fused: Fused) -> str:
    """Return the chain as people read it, such as "DequantizeLinear -> LayerNormalization -> Gelu"."""
    return " -> ".join(chain_of(fused))
