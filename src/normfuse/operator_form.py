"""Networks of operators of integers (quant_format=QOperator) as pairs, for sessions that run products of these."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from normfuse.host.config_entries import LEAVES_PAIRS, disabled_optimizers, get_entry
from normfuse.host.versions import import_host
from normfuse.model_files import Source

if TYPE_CHECKING:
    import onnxruntime

__all__ = ["gain_as_pairs", "in_pairs"]

_MAKES_OPERATORS = "QDQSelectorActionTransformer"
_KEY = "operators of integers as pairs"


def in_pairs(source: Source) -> Source:
    """Return a model with pairs in the place of operators of integers; where it has none, the model itself.

    Who asks again gets the same one.
    """
    from normfuse.graph_rewrites.operator_form import has_operators, write_pairs

    known = source.rewrites.get(_KEY)
    if not isinstance(known, Source):
        known = source
        if has_operators(source.model.graph):
            model = source.model.clone()
            if write_pairs(model):
                known = dataclasses.replace(source, model=model, rewrites={})
        source.rewrites[_KEY] = known
    return known


def gain_as_pairs(options: onnxruntime.SessionOptions) -> bool:
    """Whether operators of integers are slow here, and a session lets ONNX Runtime make them of pairs again.

    Its kernels for x86 are made for activations of uint8.
    """
    from normfuse.graph_rewrites.quantized_weights import is_x86

    levels = import_host().GraphOptimizationLevel
    if not is_x86() or options.graph_optimization_level in (levels.ORT_DISABLE_ALL, levels.ORT_ENABLE_BASIC):
        return False
    return get_entry(options, LEAVES_PAIRS) != "1" and _MAKES_OPERATORS not in disabled_optimizers(options)
