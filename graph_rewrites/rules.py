"""All rules, in the order in which they are tried. A new rule is added to one of these lists, and nowhere else."""

from __future__ import annotations

from .activations import (
    DecomposedGelu,
    DecomposedGeluTanh,
    DecomposedHardSwish,
    DecomposedMish,
    DecomposedSoftplus,
    DecomposedSwish,
)
from .canonical import CanonicalLayerNormalization
from .chains_before import (
    ActivationBias,
    DequantizeInput,
    DequantizeParameter,
    DequantizeResidual,
    ResidualAdd,
    ResidualBias,
)
from .chains_behind import (
    NormalizationActivation,
    NormalizationBias,
    NormalizationScale,
    QuantizedActivation,
    QuantizeOutput,
)
from .layer_norm import DecomposedLayerNormalization
from .rule import FusionRule

__all__ = ["ACTIVATION_SEEDS", "CHAINS", "RULES", "SEEDS"]

#: Spellings that become one fused node. Tried on every node, in graph order.
SEEDS: tuple[type[FusionRule], ...] = (
    CanonicalLayerNormalization,
    DecomposedLayerNormalization,
    DecomposedGelu,
    DecomposedGeluTanh,
    DecomposedSwish,
    DecomposedHardSwish,
    DecomposedMish,
    DecomposedSoftplus,
)

#: Single activations beside a quantisation or dequantisation. Tried once the normalisations have taken theirs.
ACTIVATION_SEEDS: tuple[type[FusionRule], ...] = (QuantizedActivation,)

#: What a fused node takes in from before and behind. Tried on every fused node until nothing more joins.
CHAINS: tuple[type[FusionRule], ...] = (
    NormalizationScale,
    NormalizationBias,
    NormalizationActivation,
    QuantizeOutput,
    DequantizeInput,
    ResidualAdd,
    ResidualBias,
    DequantizeResidual,
    DequantizeParameter,
    ActivationBias,
)

RULES: tuple[type[FusionRule], ...] = (*SEEDS, *ACTIVATION_SEEDS, *CHAINS)
