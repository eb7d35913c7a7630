"""What ONNX Runtime makes one operator of before it asks an execution provider.

A chain that takes a node away from such a fusion changes which kernel runs, and with quantised weights the numbers: a
Gemm of dequantised tensors is computed in float, a MatMul of the same tensors in integers, and on x86 without VNNI the
integer product saturates.
"""

from __future__ import annotations

import onnx_ir as ir

from normfuse.graph_rewrites.engine.facts import Facts, label
from normfuse.graph_rewrites.engine.sites import Declined
from normfuse.spec import HOST_OPERATORS

# What may stand between the dequantisation of weights and the product: ONNX Runtime moves it to the other side.
_MOVED = ("Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze")
# What moves elements, or picks them: in integers, where they mean the same in front of it and behind.
MOVES = frozenset(
    {
        *("Expand", "Flatten", "Gather", "GatherElements", "MaxPool", "Pad", "Reshape", "Resize", "Slice", "Split"),
        *("Squeeze", "Tile", "Transpose", "Unsqueeze"),
    }
)
_MOVED_INTEGERS = "ONNX Runtime runs it on the integers in front of it"
_ON_BYTES = "ONNX Runtime may run it on the integers"
_OTHER_KERNEL = "ONNX Runtime would multiply by its quantised weights with another kernel"
# Of these the execution provider makes chains among quantised tensors (ep/plugin/chain_pairs.cc).
_STEPS = ("Add", "Div", "Mul")
_WITH_WEIGHTS = ("Conv", "ConvTranspose", "Gemm", "MatMul")
# Relu and Clip are dropped before a QuantizeLinear that saturates where they do.
_OF_BYTES = frozenset(HOST_OPERATORS["quantized_kernels"].names) - {"Clip", "Relu"}


def _producer(value: ir.Value | None, *op_types: str) -> ir.Node | None:
    node = None if value is None else value.producer()
    return node if node is not None and node.domain == "" and node.op_type in op_types else None


def is_dequantized(value: ir.Value | None) -> bool:
    """True for what ONNX Runtime takes for a quantised operand of a product."""
    while (moved := _producer(value, *_MOVED)) is not None:
        value = moved.inputs[0]
    return _producer(value, "DequantizeLinear") is not None


def _has_quantized_weights(node: ir.Node) -> bool:
    return is_dequantized(node.inputs[1])


def _gemm_of(facts: Facts, product: ir.Value, addend: ir.Value) -> ir.Node | None:
    """Return the MatMul or Gemm that ONNX Runtime makes one Gemm of with the Add of `addend` (MatMulAddFusion)."""
    node = _producer(product, "Gemm", "MatMul")
    if node is None or len(product.uses()) != 1 or product.is_graph_output():
        return None
    rank = facts.rank(product)
    if rank == 2:
        return node
    # Between two Reshapes, which have to know the shape.
    a_vector = facts.rank(addend) == 1
    return node if a_vector and facts.rank(node.inputs[1]) == 2 and facts.static_shape(node.inputs[0]) else None


def require_no_gemm(facts: Facts, a: ir.Value, b: ir.Value) -> None:
    """Decline the Add of a and b where ONNX Runtime makes it part of the matrix product that one of them is.

    Where both are float, only a bias of a matrix: taking the other ones in is worth more than what they cost the Gemm.
    """
    for product, addend in ((a, b), (b, a)):
        node = _gemm_of(facts, product, addend)
        if node is None:
            continue
        bias_of_matrix = facts.rank(product) == 2 and facts.is_constant(addend) and (facts.rank(addend) or 0) <= 1
        if bias_of_matrix or (node.op_type == "MatMul" and _has_quantized_weights(node)):
            raise Declined("not_profitable", node=label(node), detail="the Add becomes part of its Gemm")


def require_no_quantized_product(facts: Facts, value: ir.Value) -> None:
    """Decline where the value, of which a Relu or Clip and a QuantizeLinear follow, is a quantised product's.

    ONNX Runtime drops the activation where the quantisation does the same, and only then quantises the bias of the
    product, which it needs for running that in integers.
    """
    added = _producer(value, "Add")
    values = [value]
    if added is not None and added.inputs[0] is not None and added.inputs[1] is not None:
        a, b = added.inputs[0], added.inputs[1]
        values = [product for product, addend in ((a, b), (b, a)) if _gemm_of(facts, product, addend) is not None]
    for product in values:
        node = _producer(product, *_WITH_WEIGHTS)
        if node is not None and _has_quantized_weights(node):
            raise Declined(
                "not_profitable", node=label(node), detail="the activation and the QuantizeLinear belong to it"
            )


def has_fixed_weights(facts: Facts, product: ir.Node) -> bool:
    """True where ONNX Runtime can compute other weights of a convolution or product from those that it has."""
    weights = product.inputs[1:]
    return all(value is None or (facts.is_constant(value) and not is_dequantized(value)) for value in weights)


def require_no_weights(facts: Facts, x: ir.Value, normalization: ir.Node) -> None:
    """Decline a batch normalisation of x that ONNX Runtime makes part of the weights that x is a product of.

    It has fusions for convolutions and for the MatMul of a matrix, and none for Gemm (ConvBNFusion, MatmulBNFusion).
    """
    product = _producer(x, "Conv", "ConvTranspose", "MatMul")
    if product is None or len(x.uses()) != 1 or x.is_graph_output():
        return
    if product.op_type == "MatMul" and facts.rank(x) != 2:
        return
    if has_fixed_weights(facts, product):
        detail = f"it becomes part of {label(product)}"
        raise Declined("not_profitable", node=label(normalization), detail=detail)


def require_no_integers_behind(facts: Facts, dequantized: ir.Value) -> None:
    """Decline to take the DequantizeLinear of a value away from what ONNX Runtime runs on its integers.

    Of a MatMul whose weights alone are dequantised it makes MatMulNBits, which rounds the other factor to 8 bits.
    """
    for reader in dict.fromkeys(dequantized.consumers()):
        if reader.domain != "":
            continue
        if reader.op_type in MOVES and any(
            user.op_type == "QuantizeLinear" for value in reader.outputs for user in value.consumers()
        ):
            raise Declined(
                "not_profitable", node=label(reader), detail="ONNX Runtime runs it on the integers before it"
            )
        others = [value for value in reader.inputs if value is not dequantized]
        if reader.op_type in ("Gemm", "MatMul") and any(_is_quantized_weight(facts, value) for value in others):
            raise Declined("not_profitable", node=label(reader), detail=_OTHER_KERNEL)


def require_no_integers_before(facts: Facts, x: ir.Value) -> None:
    """Decline to take the QuantizeLinear of a value away from what ONNX Runtime runs on integers, likewise."""
    node = _producer(x, *MOVES, "Gemm", "MatMul")
    if node is None:
        return
    if node.op_type in MOVES:
        if is_dequantized(node.inputs[0]):
            raise Declined("not_profitable", node=label(node), detail=_MOVED_INTEGERS)
    elif not is_dequantized(node.inputs[0]) and any(_is_quantized_weight(facts, value) for value in node.inputs[1:]):
        raise Declined("not_profitable", node=label(node), detail=_OTHER_KERNEL)


def quantizer_of(codes: ir.Value | None) -> tuple[ir.Node | None, bool]:
    """Return the QuantizeLinear that makes integers, and whether a Clip keeps these within a range."""
    clip = _producer(codes, "Clip")
    whole = codes if clip is None else clip.inputs[0]
    node = None if whole is None else whole.producer()
    return (node if node is not None and node.op_type == "QuantizeLinear" else None), clip is not None


def _may_run_on_bytes(node: ir.Node) -> bool:
    """Whether ONNX Runtime has a kernel for integers of 8 bits, and all that the operator reads may be such."""
    if node.domain != "" or node.op_type not in _OF_BYTES or not node.inputs:
        return False
    if node.op_type in _WITH_WEIGHTS:
        return _has_quantized_weights(node)
    return all(map(is_dequantized, node.inputs[:2] if node.op_type in _STEPS else node.inputs[:1]))


def require_no_bytes_behind(dequantized: ir.Value) -> None:
    """Decline to take the DequantizeLinear of a value away from what ONNX Runtime may run on its bytes."""
    for reader in dict.fromkeys(dequantized.consumers()):
        quantizes = any(user.op_type == "QuantizeLinear" for value in reader.outputs for user in value.consumers())
        if _may_run_on_bytes(reader) and (quantizes or reader.op_type in _WITH_WEIGHTS):
            raise Declined("not_profitable", node=label(reader), detail=_ON_BYTES)


def require_no_bytes_before(x: ir.Value) -> None:
    """Decline to take the QuantizeLinear of a value away from what ONNX Runtime may run on bytes, likewise."""
    node = x.producer()
    if node is not None and _may_run_on_bytes(node) and is_dequantized(node.inputs[0]):
        raise Declined("not_profitable", node=label(node), detail=_ON_BYTES)


def require_no_chain_before(x: ir.Value, quantize: ir.Node) -> None:
    """Decline to take the QuantizeLinear away from the chain that the execution provider makes of what is before it."""
    node = _producer(x, *_STEPS)
    if node is not None and any(map(is_dequantized, node.inputs)):
        raise Declined("not_profitable", node=label(quantize), detail=f"it is the end of a chain with {label(node)}")


def require_no_chain_behind(dequantized: ir.Value, activation: ir.Node) -> None:
    """Decline an activation that the execution provider makes one chain of with what reads its dequantised result."""
    for reader in dequantized.consumers():
        if reader.domain == "" and reader.op_type in ("Add", "Div"):
            detail = f"it is part of a chain with {label(reader)}"
            raise Declined("not_profitable", node=label(activation), detail=detail)


def _is_quantized_weight(facts: Facts, value: ir.Value | None) -> bool:
    return is_dequantized(value) and facts.is_constant(value)
