"""All rules, in the order in which they are tried. A new rule is added to one of these lists, and nowhere else."""

from __future__ import annotations

from normfuse.graph_rewrites.chains.affine import ActivationOperand, StepBehind
from normfuse.graph_rewrites.chains.casts import NarrowedResult, WidenedInput
from normfuse.graph_rewrites.chains.chains_before import (
    DequantizeTensor,
    RequantizedSum,
    ResidualAdd,
    ResidualBias,
)
from normfuse.graph_rewrites.chains.chains_behind import (
    NormalizationActivation,
    NormalizationBias,
    NormalizationScale,
    QuantizedActivation,
    QuantizeOutput,
)
from normfuse.graph_rewrites.chains.qdq_pairs import PairBehind, PairInFront
from normfuse.graph_rewrites.engine.rule import FusionRule
from normfuse.graph_rewrites.spellings.activations import NodeActivation
from normfuse.graph_rewrites.spellings.batch_norm import BatchNormalizationActivation, BatchStatisticsNormalization
from normfuse.graph_rewrites.spellings.canonical import CanonicalNormalization
from normfuse.graph_rewrites.spellings.decomposed_activations import DecomposedActivation, DecomposedSoftplus
from normfuse.graph_rewrites.spellings.decomposed_norms import (
    DecomposedLayerNormalization,
    DecomposedRMSNormalization,
    MultipleOfNormalization,
)
from normfuse.graph_rewrites.spellings.group_norm import NodeGroupNormalization, ReshapedGroupNormalization
from normfuse.graph_rewrites.spellings.reshaped import ReshapedNormalization

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
    DequantizeTensor,
    RequantizedSum,
    PairInFront,
    ActivationOperand,
    StepBehind,
    NarrowedResult,
    WidenedInput,
)

RULES: tuple[type[FusionRule], ...] = (*SEEDS, *ACTIVATION_SEEDS, *CHAINS)
