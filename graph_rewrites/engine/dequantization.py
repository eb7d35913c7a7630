"""A DequantizeLinear as the dequantisation of an input of a fused node."""

from __future__ import annotations

import onnx_ir as ir

from normfuse.graph_rewrites.engine.facts import Facts, label
from normfuse.graph_rewrites.engine.fused import Fused
from normfuse.graph_rewrites.engine.pattern import Mismatch
from normfuse.graph_rewrites.engine.sites import Declined


def is_dequantizer(node: ir.Node) -> bool:
    """Whether the node is ONNX's DequantizeLinear or that of ONNX Runtime, not a model's own operator of the name."""
    return node.op_type == "DequantizeLinear" and node.domain in ("", "com.microsoft")


def dequantization_of(value: ir.Value) -> ir.Node:
    """Return the DequantizeLinear that produces the value, or decline.

    It is not part of a pattern: a dequantisation that others use too stays for them, as ONNX Runtime itself has it.
    """
    node = value.producer()
    if node is None or node.op_type != "DequantizeLinear" or len(node.inputs) < 2:
        raise Mismatch(f"{label(value)} is not dequantised")
    return node


def require_dequantization(facts: Facts, fused: Fused, node: ir.Node, tensor: str) -> ir.DataType | None:
    """Return the 16-bit type that a DequantizeLinear of the input `tensor` rounds to, if it does, as Y will.

    Raises:
        Declined: an attribute has a value that the operator does not take.
    """
    scale = node.inputs[1]
    assert node.inputs[0] is not None
    assert scale is not None
    dtype = node.attributes.get_int("output_dtype", 0)
    stored = facts.dtype(scale)
    rounds = bool(dtype) and dtype != stored  # so it may where the scale's type is not known
    is_first = tensor == "X" and not fused.has("residual", "residual_bias")
    if rounds and not (is_first and stored == ir.DataType.FLOAT):
        raise Declined(
            "attribute_value",
            at=node,
            attribute="output_dtype",
            node=label(node),
            value=dtype,
            supported="the type of the scale",
        )
    facts.require_allowed(node.inputs[0], node)
    block_size = node.attributes.get_int("block_size", 0)
    if block_size and tensor not in ("X", "residual"):
        raise Declined(
            "attribute_value",
            at=node,
            attribute="block_size",
            node=label(node),
            value=block_size,
            supported="0 for scale and bias",
        )
    return ir.DataType(dtype) if rounds else None


def dequantize(facts: Facts, fused: Fused, node: ir.Node, tensor: str) -> None:
    """Move a DequantizeLinear of the input `tensor` into the fused node.

    X is dequantised in float32 where DequantizeLinear rounds it to a 16-bit type, which Y then gets.

    Raises:
        Declined: an attribute has a value that the operator does not take.
    """
    dtype = require_dequantization(facts, fused, node, tensor)
    if dtype is not None and fused.last is None:
        fused.y_type = dtype
    scale = node.inputs[1]
    assert node.inputs[0] is not None
    assert scale is not None
    fused.inputs[tensor] = node.inputs[0]
    block_size = node.attributes.get_int("block_size", 0)
    # Per tensor, the axis says nothing.
    axis = 1 if facts.static_shape(scale) in ((), (1,)) else node.attributes.get_int("axis", 1)
    zero_point = node.inputs[2] if len(node.inputs) > 2 else None
    fused.dequantize(tensor, (scale, zero_point), axis=axis, block_size=block_size)
