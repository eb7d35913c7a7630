"""Redundant Q/DQ pairs: their input already consists of values that a Q/DQ pair with the same parameters gave.

Quantisers write a Q/DQ pair after every operator, also after those that only move elements (Split, Reshape, Transpose,
Concat), with the parameters of the pair before it. The first pair gives (q - z) * s for an integer q; the second one
computes the same q, and so the same bits. ONNX Runtime removes such a pair where the operator runs quantised; in a
network that runs in float it would stay, and cost two passes through memory.

This is for networks that run in float: ONNX Runtime recognises a quantised operator by the pair before it.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import onnx_ir as ir

from normfuse.graph_rewrites.engine.facts import Facts, name_of
from normfuse.graph_rewrites.engine.passes import Context
from normfuse.graph_rewrites.engine.traversal import graphs_of
from normfuse.graph_rewrites.quantization.weight_folding import array_of, tidy

_DOMAINS = ("", "com.microsoft")
_INTEGERS = frozenset(
    {
        *(ir.DataType.INT4, ir.DataType.UINT4, ir.DataType.INT8, ir.DataType.UINT8),
        *(ir.DataType.INT16, ir.DataType.UINT16),
    }
)
# Between these, (q - z) * scale is as exact as float32 is, and does not overflow.
_LEAST_SCALE, _MOST_SCALE = 1e-30, 1e30
# All elements of the results are elements of the first operand, or 0.
_MOVING = frozenset(
    {
        *("DepthToSpace", "Expand", "Flatten", "Gather", "GatherElements", "GatherND", "GlobalMaxPool", "Identity"),
        *("Relu", "Reshape", "Slice", "SpaceToDepth", "Split", "Squeeze", "Tile", "Transpose", "Unsqueeze"),
    }
)
# The same, unless they reduce no elements: then the result is infinite.
_REDUCING = frozenset({"ReduceMax", "ReduceMin"})
_COMBINING = frozenset({"Concat", "Max", "Min"})  # elements of any operand
_SCALING = frozenset({"Resize", "Upsample"})


def drop_redundant_pairs(home: ir.Graph, context: Context) -> int:
    """Remove these pairs from a graph and its subgraphs; return the number of removed nodes."""
    facts = context.facts
    steps: dict[ir.Value, Hashable] = {}
    removed: list[str] = []
    for node in [node for graph in graphs_of(home) for node in graph]:
        if node.graph is None:
            continue  # it was removed with a pair
        if node.op_type == "QuantizeLinear" and node.domain in _DOMAINS:
            removed += _drop(node, steps, facts)
        elif (found := _steps_of_results(node, steps, facts)) is not None:
            steps.update(dict.fromkeys(node.outputs, found))
    context.dropped += removed
    return len(removed)


def _drop(quantizer: ir.Node, steps: dict[ir.Value, Hashable], facts: Facts) -> list[str]:
    """Let readers of the pairs of a QuantizeLinear read its input instead, if that has the same values."""
    x, quantized = quantizer.inputs[0], quantizer.outputs[0]
    if x is None or x not in steps or _parameters(quantizer, facts) != steps[x]:
        return []
    removed: list[str] = []
    for reader in quantized.consumers():
        if reader.op_type != "DequantizeLinear" or reader.domain not in _DOMAINS or reader.inputs[0] is not quantized:
            continue
        if _parameters(reader, facts) != steps[x] or reader.outputs[0].is_graph_output():
            continue
        reader.outputs[0].replace_all_uses_with(x)
        removed.append(name_of(reader))
        tidy([reader])
    if removed and not quantized.uses() and not quantized.is_graph_output():
        removed.append(name_of(quantizer))
        tidy([quantizer])
    return removed


def _parameters(node: ir.Node, facts: Facts) -> Hashable:
    """Return scale, zero point and type of a QuantizeLinear or DequantizeLinear; None: not one constant of each."""
    given = [value for value in node.inputs[1:3] if value is not None]
    if not all(facts.is_constant(value) for value in given) or node.attributes.get_int("block_size", 0) != 0:
        return None
    scale, zero_point = (*(array_of(value) for value in given), None)[:2]
    if scale is None or scale.size != 1 or scale.dtype != "float32" or (len(given) > 1 and zero_point is None):
        return None
    if zero_point is not None and zero_point.size != 1:
        return None
    dtype = _integer_type(node, facts)
    if dtype not in _INTEGERS or not _LEAST_SCALE < scale.item() < _MOST_SCALE:
        return None
    return scale.item(), 0 if zero_point is None else int(zero_point.item()), dtype


def _integer_type(node: ir.Node, facts: Facts) -> ir.DataType | None:
    if node.op_type == "DequantizeLinear":
        gives_float32 = node.attributes.get_int("output_dtype", 0) in (0, ir.DataType.FLOAT)
        return facts.dtype(node.inputs[0]) if gives_float32 else None
    return facts.dtype(node.outputs[0])


def _steps_of_results(node: ir.Node, steps: dict[ir.Value, Hashable], facts: Facts) -> Hashable:
    """Return the parameters of the pair that gave all values in a node's results; None: there may be other values."""
    if node.op_type == "DequantizeLinear" and node.domain in _DOMAINS:
        return _parameters(node, facts)
    if node.domain != "":
        return None
    of = [None if value is None else steps.get(value) for value in node.inputs]
    if node.op_type in _MOVING:
        return of[0] if of else None
    if node.op_type in _REDUCING:
        shape = facts.static_shape(node.inputs[0])
        return of[0] if shape is not None and 0 not in shape else None
    if node.op_type in _COMBINING:
        return _only(of)
    if node.op_type == "Where":
        return _only(of[1:])
    if node.op_type == "MaxPool":
        return of[0] if _sees_an_element(node) and len(node.outputs) == 1 else None
    if node.op_type == "Pad":
        return of[0] if len(node.inputs) <= 2 and node.attributes.get_float("value", 0.0) == 0 else None
    return of[0] if node.op_type in _SCALING and repeats_elements(node) else None


def repeats_elements(scaling: ir.Node) -> bool:
    """Whether a Resize or Upsample gives only elements of its input."""
    # The only mode that reads outside of the tensor, which gives another value.
    crops = scaling.attributes.get_string("coordinate_transformation_mode", "half_pixel") == "tf_crop_and_resize"
    return scaling.attributes.get_string("mode", "nearest") == "nearest" and not crops


def _only(of: Sequence[Hashable]) -> Hashable:
    return of[0] if len(set(of)) == 1 else None


def _sees_an_element(pool: ir.Node) -> bool:
    """Whether each window covers an element: otherwise the maximum is that of the padding."""
    is_dense = all(dilation == 1 for dilation in pool.attributes.get_ints("dilations", ()))
    kernel, pads = pool.attributes.get_ints("kernel_shape", ()), pool.attributes.get_ints("pads", ())
    if pool.attributes.get_string("auto_pad", "NOTSET").startswith("SAME"):
        return is_dense  # padded by less than a window
    return not any(pads) or (is_dense and max(pads) < min(kernel, default=0))
