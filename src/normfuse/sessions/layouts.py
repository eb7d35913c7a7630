"""Convolution networks with chains in the layout that ONNX Runtime chooses for its convolutions.

ONNX Runtime chooses layouts after providers have claimed their nodes: blocks of channels (NCHWc) for convolutions in
float, so that each claimed chain between two of them costs two reorders, which take about as long as the chain; and
channels last (NhwcTransformer) for quantised convolutions, with one QLinear operator (QLinearMul, QLinearSigmoid ...)
for each elementwise operator between Q/DQ pairs, which chains that are claimed before prevent. Here ONNX Runtime first
optimises the model, alone and into a file. Then `graph_rewrites.layout.blocked_layout` moves the chains into the
blocked layout, or the elementwise QLinear operators are written as Q/DQ pairs around the operator again, and the
provider fuses each chain. The result fits this processor and this ONNX Runtime only: it is for sessions, not for files.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from normfuse.graph_rewrites.engine.host_fusions import MOVES
from normfuse.graph_rewrites.engine.passes import Context, Pass
from normfuse.graph_rewrites.layout.blocked_layout import ELEMENTWISE, move_reorders
from normfuse.graph_rewrites.layout.blocked_sizes import NCHWC_DOMAIN
from normfuse.graph_rewrites.layout.dequantize_cse import join_dequantizers
from normfuse.graph_rewrites.quantization.qlinear_operators import (
    ELEMENTWISE_QLINEAR,
    count_from_the_end,
    has_quantized_products,
    write_elementwise,
    write_softmaxes,
)
from normfuse.host.plain_sessions import plain_session
from normfuse.host.versions import import_host
from normfuse.sessions.host_optimization import FUSES_CHAINS, optimize_by_host

if TYPE_CHECKING:
    import onnxruntime

# Other optimizers of ONNX Runtime that change nodes other than convolutions after providers have claimed theirs.
_LATER = """
    Avx2WeightS8ToU8Transformer DoubleQDQPairsRemover DynamicQuantizeMatMulFusion GatherSliceToSplitFusion
    GemmActivationFusion MatMulActivationFusion MatMulIntegerToFloatFusion MatMulScaleFusion MatmulTransposeFusion
    NhwcTransformer QDQFinalCleanupTransformer QDQPropagationTransformer QDQS8ToU8Transformer
    QDQSelectorActionTransformer WeightBiasQuantization
""".split()  # noqa: SIM905 -- a list is one name a line, when formatted
# Operators of chains that ONNX Runtime does not fuse into a convolution.
_OF_CHAINS = frozenset({"Erf", "Gelu", "Mish", "QuantizeLinear", "Sigmoid"})
# Operators that keep the blocked layout between a chain and a convolution; that move elements; with a blocked kernel.
_MOVED = frozenset({"Concat", "Resize", "Split", "Upsample"})
_MOVES = MOVES | {"Concat", "Identity"}
_BLOCKED = frozenset(
    {"AveragePool", "Conv", "GlobalAveragePool", "GlobalMaxPool", "MaxPool", "ReduceMax", "ReduceMean"}
)


def lay_out_in_blocks(
    model: ir.Model, options: onnxruntime.SessionOptions, *, frees_weights: bool = False
) -> ir.Model | None:
    """Return the model as ONNX Runtime optimises it on this machine, with its chains in the blocked layout.

    Args:
        model: Rewritten by :func:`normfuse.sessions.rewriting.rewrite_copy` for the target "custom-op", so that ONNX
            Runtime does not change the fused chains.
        options: Those of the session that is to be created; they are not changed.
        frees_weights: The model loses its weights; otherwise it is not changed.

    Returns:
        None if no chain is between convolutions in this layout, if products are quantised, or if ONNX Runtime cannot
        optimise the model by itself: then its session says why.
    """
    optimized = optimize_by_host(model, options, [*FUSES_CHAINS, *_LATER], frees_weights=frees_weights)
    if optimized is None or not any(node.domain == NCHWC_DOMAIN for node in optimized.graph):
        return None
    if has_quantized_products(optimized.graph):  # ONNX Runtime chooses them by the nodes around them
        return None
    context = Context(optimized)
    context.run(*IN_BLOCKS)
    return optimized if context.counts[_REORDERS] else None


def lay_out_channels_last(
    model: ir.Model, options: onnxruntime.SessionOptions, disabled: Iterable[str] = (), *, frees_weights: bool = False
) -> ir.Model | None:
    """Return the model as ONNX Runtime optimises it on this machine, with elementwise QLinear operators as chains.

    Args:
        model: As for :func:`lay_out_in_blocks`, for the target "standard", so that ONNX Runtime knows each operator.
        options: See there.
        disabled: Further optimizers of ONNX Runtime that the session will disable.
        frees_weights: See there.

    Returns:
        None if no convolution is quantised, if nothing elementwise is between them, or if ONNX Runtime cannot optimise
        the model by itself: then its session says why.
    """
    count_from_the_end(model)
    optimized = optimize_by_host(model, options, [*FUSES_CHAINS, *disabled], frees_weights=frees_weights)
    if optimized is None or not any(node.op_type == "QLinearConv" for node in optimized.graph):
        return None
    context = Context(optimized)
    context.run(*CHANNELS_LAST)
    if not context.counts[_ELEMENTWISE]:
        return None
    # A QLinearSoftmax that is left is over another dimension, or over an unknown one.
    return None if any(node.op_type == "QLinearSoftmax" for node in optimized.graph) else optimized


def allows_layouts(options: onnxruntime.SessionOptions) -> bool:
    """Whether a session with these options lets ONNX Runtime change layouts, and does not save the result."""
    levels = import_host().GraphOptimizationLevel
    return options.graph_optimization_level == levels.ORT_ENABLE_ALL and not options.optimized_model_filepath


def has_chains_of_convolutions(graph: ir.Graph, *, between: bool) -> bool:
    """Whether a step of a chain follows a convolution.

    Args:
        graph: Without its subgraphs.
        between: A convolution or pooling must follow the step, with only operators between that have a blocked form:
            otherwise `move_reorders` finds no reorder to remove.
    """
    behind: set[ir.Value | None] = set()  # results of convolutions
    in_chains: set[ir.Value | None] = set()  # results of chains that follow these
    for node in graph:
        follows, continues = not behind.isdisjoint(node.inputs), not in_chains.isdisjoint(node.inputs)
        if (follows and node.op_type in _OF_CHAINS and not between) or (continues and node.op_type in _BLOCKED):
            return True
        passes = (node.domain, node.op_type) in ELEMENTWISE or node.op_type == "BatchNormalization"
        if node.op_type == "Conv" or (follows and passes):
            behind.update(node.outputs)
        if (continues and (passes or node.op_type in _MOVED)) or (follows and node.op_type in _OF_CHAINS):
            in_chains.update(node.outputs)
    return False


def has_quantized_elementwise(graph: ir.Graph) -> bool:
    """Whether the graph has an elementwise QLinear operator, or ONNX Runtime may make one.

    It moves DequantizeLinear down, and QuantizeLinear up, past operators that only move elements.
    """
    dequantised: set[ir.Value | None] = set()
    elementwise = {row.operator for row in ELEMENTWISE_QLINEAR.values()}
    for node in graph:
        if node.op_type in ELEMENTWISE_QLINEAR:
            return True
        if node.op_type == "DequantizeLinear" or (node.op_type in _MOVES and node.inputs[0] in dequantised):
            dequantised.update(node.outputs)
        elif node.op_type in elementwise and dequantised.issuperset(node.inputs):
            users = (user for output in node.outputs for user, _ in output.uses())
            if any(user.op_type == "QuantizeLinear" or user.op_type in _MOVES for user in users):
                return True
    return False


@functools.cache
def block_size() -> int | None:
    """Return the number of channels in a block of ONNX Runtime's blocked layout here; None: there is no such layout."""
    channels = 64
    x = ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape([1, channels, 1, 2]))
    node = ir.Node(
        NCHWC_DOMAIN, "ReorderInput", [x], outputs=[ir.Value(name="y", type=ir.TensorType(ir.DataType.FLOAT))]
    )
    graph = ir.Graph([x], node.outputs, nodes=[node], opset_imports={"": 17, NCHWC_DOMAIN: 1}, name="layout")
    host = import_host()
    options = host.SessionOptions()
    options.log_severity_level = 4
    proto = ir.to_proto(ir.Model(graph, ir_version=9)).SerializeToString()
    try:
        session = plain_session(proto, options, providers=["CPUExecutionProvider"], enable_fallback=0)
    except Exception:  # this build of ONNX Runtime has no such operator
        return None
    (blocks,) = session.run(None, {"x": np.arange(2 * channels, dtype=np.float32).reshape(1, channels, 1, 2)})
    # After one block of channels at the first position comes the second position, whose first element is 1.
    return int(np.flatnonzero(np.asarray(blocks).ravel() == 1)[0])


def _move_reorders(graph: ir.Graph, context: Context) -> int:
    block = block_size()
    return 0 if block is None else move_reorders(graph, block)


_REORDERS, _ELEMENTWISE = "reorders moved", "elementwise QLinear operators as Q/DQ pairs"
#: The passes on a network in the blocked layout.
IN_BLOCKS = (
    # First: several DequantizeLinear of one tensor would split a chain.
    Pass("equal DequantizeLinear joined", join_dequantizers, in_functions=False),
    Pass(_REORDERS, _move_reorders, in_functions=False),
)
#: The passes on one with the channels last.
CHANNELS_LAST = (
    Pass(_ELEMENTWISE, write_elementwise, in_functions=False),
    # Avoids a kernel that looks up each exponential; only where chains gain already.
    Pass("QLinearSoftmax as Q/DQ pairs", write_softmaxes, lambda run: run.counts[_ELEMENTWISE] > 0, in_functions=False),
)
