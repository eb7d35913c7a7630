"""What a fused configuration is called: the kind of its site, and its chain in the names of the standard operators."""

from __future__ import annotations

from normfuse.graph_rewrites.engine.fused import Fused
from normfuse.graph_rewrites.engine.labels import is_further, is_pair


def kind_of(fused: Fused) -> str:
    """Return the kind of site that a configuration is."""
    if fused.op_type == "FusedDequantizeLinear":
        return "DequantizeLinear"
    if fused.op_type == "FusedActivation":
        return "Activation"
    if fused.core is not None and fused.core.name != "Normalize":
        return fused.core.name
    if not fused["use_mean"]:
        return "RMSNormalization"
    if fused["num_groups"]:
        return "GroupNormalization"
    if fused["epsilon_on"] == "stddev" or not fused["normalize_variance"]:
        return "MeanVarianceNormalization"
    if fused.align == "channel":
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
    if fused.first is not None:
        steps.append("DequantizeLinear")
    if activation is None:
        steps += [step.name for step in fused.summed if is_further(step.operand) or is_pair(step)]
    if fused.has("residual", "residual_bias"):
        steps.append("Add")
    if fused.core is not None:
        steps.append(kind_of(fused))
    else:
        steps += [step.name for step in fused.affine]
    if fused.activation.name != "Identity":
        steps.append(activation or fused.activation.name)
    if activation is None:
        steps += [step.name for step in fused.further]
    if fused.quantizes:
        steps.append("QuantizeLinear")
    return steps


def description_of(fused: Fused) -> str:
    """Return the chain as people read it, such as "DequantizeLinear -> LayerNormalization -> Gelu"."""
    return " -> ".join(chain_of(fused))
