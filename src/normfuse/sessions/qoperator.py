"""Networks of operators of integers (quant_format=QOperator) as pairs, for sessions that run products of these."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from normfuse.files.model_files import Source
from normfuse.host.config_entries import LEAVES_PAIRS, disabled_optimizers, get_entry
from normfuse.host.versions import import_host

if TYPE_CHECKING:
    import onnxruntime

__all__ = ["in_pairs", "makes_operators"]

_MAKES_OPERATORS = "QDQSelectorActionTransformer"
_KEY = "operators of integers as pairs"


def in_pairs(source: Source, *, in_place: bool = False) -> Source:
    """Return a model with pairs in the place of operators of integers; where it has none, the model itself.

    Who asks again gets the same one; `in_place` changes the source's own model, of which nothing else has need.
    """
    from normfuse.graph_rewrites.quantization.qoperator_to_qdq import has_operators, write_pairs

    if in_place:
        write_pairs(source.model)
        return source
    known = source.rewrites.get(_KEY)
    if not isinstance(known, Source):
        known = source
        if has_operators(source.model.graph):
            model = source.model.clone()
            if write_pairs(model):
                known = dataclasses.replace(source, model=model, rewrites={})
        source.rewrites[_KEY] = known
    return known


def makes_operators(options: onnxruntime.SessionOptions) -> bool:
    """Whether a session with these options lets ONNX Runtime make operators of integers of Q/DQ pairs."""
    levels = import_host().GraphOptimizationLevel
    if options.graph_optimization_level in (levels.ORT_DISABLE_ALL, levels.ORT_ENABLE_BASIC):
        return False
    return get_entry(options, LEAVES_PAIRS) != "1" and _MAKES_OPERATORS not in disabled_optimizers(options)
