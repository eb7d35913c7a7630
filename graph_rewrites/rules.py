"""All rules, in the order in which they are tried. A new rule is added to one of these lists, and nowhere else."""

from __future__ import annotations

from .activations import NodeActivation
from .affine import ActivationBias, ActivationScale, GateBefore, StepBehind
from .batch_norm import BatchNormalizationActivation, BatchStatisticsNormalization
from .canonical import CanonicalNormalization
from .casts import NarrowedResult, WidenedInput
from .chains_before import (
    DequantizeInput,
    DequantizeOperand,
    DequantizeParameter,
    DequantizeResidual,
    RequantizedSum,
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
from .decomposed_norms import DecomposedLayerNormalization, DecomposedRMSNormalization, MultipleOfNormalization
from .formulas import DecomposedActivation, DecomposedSoftplus
from .group_norm import NodeGroupNormalization, ReshapedGroupNormalization
from .pairs import PairBehind, PairInFront
from .reshaped import ReshapedNormalization
from .rule import FusionRule

__all__ = ["ACTIVATION_SEEDS", "CHAINS", "RULES", "SEEDS"]

#: Spellings that become one fused node. A rule is tried on the whole graph before the next one is: what is part of
#: another rule's spelling comes after it.
SEEDS: tuple[type[FusionRule], ...] = (
    ReshapedGroupNormalization,
    NodeGroupNormalization,
    BatchStatisticsNormalization,
    DecomposedLayerNormalization,
    DecomposedRMSNormalization,
    MultipleOfNormalization,
    DecomposedActivation,
    DecomposedSoftplus,
    NodeActivation,
    CanonicalNormalization,
)

#: Single activations beside a quantisation or dequantisation. Tried once the normalisations have taken theirs.
ACTIVATION_SEEDS: tuple[type[FusionRule], ...] = (QuantizedActivation, BatchNormalizationActivation)

#: What a fused node takes in from before and behind. Tried on every fused node until nothing more joins.
CHAINS: tuple[type[FusionRule], ...] = (
    NormalizationScale,
    NormalizationBias,
    ReshapedNormalization,
    NormalizationActivation,
    QuantizeOutput,
    PairBehind,
    ResidualAdd,
    ResidualBias,
    DequantizeInput,
    RequantizedSum,
    DequantizeResidual,
    DequantizeParameter,
    DequantizeOperand,
    PairInFront,
    ActivationBias,
    ActivationScale,
    GateBefore,
    StepBehind,
    NarrowedResult,
    WidenedInput,
)

RULES: tuple[type[FusionRule], ...] = (*SEEDS, *ACTIVATION_SEEDS, *CHAINS)
