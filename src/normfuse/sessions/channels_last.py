"""Convolution networks in integers as ONNX Runtime runs them here, with its operators of integers between convolutions
written out, so that they become chains.

ONNX Runtime makes one operator of integers (QLinearMul, QLinearSigmoid ...) of each elementwise operator between pairs,
and puts the channels last (NhwcTransformer) where they stand between integer convolutions. Chains of ours that are
claimed before would stand in the way of both. Here ONNX Runtime optimises the model first, alone and into a file; then
its elementwise operators are written as DequantizeLinear, operator and QuantizeLinear again, of which the provider
makes one node each chain; no convolution is lost by that any more. It belongs to this processor, so this is for
sessions and not for files.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import onnx_ir as ir

from normfuse.sessions.host_optimization import FUSES_CHAINS, optimized_by_host

if TYPE_CHECKING:
    import onnxruntime

__all__ = ["channels_last"]


def channels_last(
    model: ir.Model, options: onnxruntime.SessionOptions, disabled: Iterable[str] = (), *, gives_up: bool = False
) -> ir.Model | None:
    """Return the model as ONNX Runtime optimises it on this machine, with elementwise operators of integers as chains.

    Args:
        model: Rewritten by :func:`normfuse.sessions.rewriting.rewritten` for the target "standard", so that ONNX
            Runtime knows each operator.
        options: Those of the session that is to be created; they are not changed.
        disabled: ONNX Runtime's optimizers that the session will do without besides.
        gives_up: The model loses its weights; otherwise it is not changed.

    Returns:
        None where no convolution runs in integers, where nothing elementwise stands between them, and where ONNX
        Runtime cannot optimise the model by itself: then its session says why.
    """
    from normfuse.graph_rewrites.engine.facts import Facts
    from normfuse.graph_rewrites.quantization.qlinear_elementwise import write_elementwise
    from normfuse.graph_rewrites.quantization.qlinear_softmax import write_softmaxes

    optimized = optimized_by_host(model, options, [*FUSES_CHAINS, *disabled], gives_up=gives_up)
    if optimized is None or not any(node.op_type == "QLinearConv" for node in optimized.graph):
        return None
    if not write_elementwise(optimized.graph):
        return None
    write_softmaxes(optimized.graph, Facts(optimized), optimized.graph.opset_imports.get("", 1))
    # One over another dimension, or over one of which nothing is known here.
    return None if any(node.op_type == "QLinearSoftmax" for node in optimized.graph) else optimized
