"""Products of 8-bit tensors in the form that a session runs fastest on this machine: in integers, or in float.

ONNX Runtime's integer kernels on x86 take uint8 activations. It converts int8 to uint8 if one node reads a tensor
(QDQS8ToU8Transformer); if several do, the products run in float, between a DequantizeLinear and a QuantizeLinear. Here
all int8 activations of a network become uint8: adding 128 to each quantised value and to the zero point gives the same
number, so results change only by the order of a sum, where a product is now summed in integers.

`product_times` decides which networks are faster in float.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from normfuse.graph_rewrites.engine.constants import Array
from normfuse.graph_rewrites.engine.dequantization import is_dequantizer
from normfuse.graph_rewrites.engine.facts import Facts
from normfuse.graph_rewrites.engine.fused import new_constant
from normfuse.graph_rewrites.engine.names import Names
from normfuse.graph_rewrites.engine.passes import Context
from normfuse.graph_rewrites.engine.traversal import graphs_of
from normfuse.graph_rewrites.quantization.weight_folding import (
    array_of,
    dequantizer_of,
    drop_unused_constant,
    following_quantizer,
    is_in_pair,
    is_readable,
    stays_int8,
)

_MULTIPLY = frozenset({"Conv", "Gemm", "MatMul"})
_ELEMENTWISE = frozenset({"Add", "Mul"})
_OFFSET = 128
_SAFE = 64  # two products of uint8 and a weight within it fit 16 bits


def make_unsigned(home: ir.Graph, context: Context) -> int:
    """Convert int8 activations of a graph and its subgraphs to uint8, if products gain by it; return how many."""
    facts = context.facts
    nodes = [node for graph in graphs_of(home) for node in graph]
    if not any(_runs_in_float(node, facts) for node in nodes):
        return 0
    quantizers = [node for node in nodes if _are_activations(node, facts)]
    weights: list[ir.Node] = []
    if context.options.products == "exact integer":
        quantizers, weights = _without_saturation(quantizers, nodes, facts)
    shifted = _Shifted(home)
    for node in [*quantizers, *weights]:
        shifted.shift(node)
    for node in nodes:
        if _is_gemm_beside(node, quantizers):
            shifted.write_zero_point(dequantizer_of(node.inputs[1]))
    for dequantizer in [node for node in nodes if _dequantizes_constants(node, facts) and _is_operand(node)]:
        shifted.shift(dequantizer)
    shifted.tidy()
    return len(quantizers)


def _without_saturation(
    quantizers: list[ir.Node], nodes: list[ir.Node], facts: Facts
) -> tuple[list[ir.Node], list[ir.Node]]:
    """Return the quantisers that can become uint8 without new saturation, and the nodes of weights that must follow.

    The latter dequantise weights or quantise constants. A product of uint8 with int8 weights that cannot become uint8
    would saturate in integers, where it was right in float before: then its activations stay int8, or its result if
    the activations are uint8 anyhow.
    """
    kept = dict.fromkeys(quantizers)
    products = [node for node in nodes if node.op_type in _MULTIPLY and node.domain == ""]
    while True:
        weights: dict[ir.Node, None] = {}
        refused: set[ir.Node] = set()
        for product in products:
            left, right = (dequantizer_of(value) for value in product.inputs[:2])
            source = _source_of(left)
            if source not in kept and not _becomes_uint8(left, facts):
                continue
            if right is None:  # ONNX Runtime may quantise constants to int8 (WeightBiasQuantization)
                fits = not facts.is_constant(product.inputs[1])
            else:
                fits = _source_of(right) in kept or _cannot_saturate(right, facts)
            if fits:
                continue
            shiftable = _shiftable_weights(right, facts)
            if shiftable is not None:
                weights[shiftable] = None
            else:  # then the product runs in float between int8 and uint8
                changed = source if source in kept else following_quantizer(product.outputs[0], facts)
                refused.update([changed] if changed is not None and changed in kept else [])
        if not refused:
            return list(kept), list(weights)
        kept = {each: None for each in kept if each not in refused}


def _is_gemm_beside(node: ir.Node, quantizers: list[ir.Node]) -> bool:
    return node.op_type == "Gemm" and node.domain == "" and _source_of(dequantizer_of(node.inputs[0])) in quantizers


def _becomes_uint8(dequantizer: ir.Node | None, facts: Facts) -> bool:
    """Whether a tensor is uint8 for ONNX Runtime's kernels without a conversion here."""
    quantized = None if dequantizer is None else dequantizer.inputs[0]
    if quantized is None:
        return False
    return facts.dtype(quantized) == ir.DataType.UINT8 or is_in_pair(quantized)


def _source_of(dequantizer: ir.Node | None) -> ir.Node | None:
    """Return the node that computes the quantised tensor of a DequantizeLinear; None: no node does."""
    quantized = None if dequantizer is None else dequantizer.inputs[0]
    return None if quantized is None else quantized.producer()


def _cannot_saturate(dequantizer: ir.Node, facts: Facts) -> bool:
    """Whether two products of uint8 and these weights always fit 16 bits, or are not summed in 16 bits."""
    if facts.dtype(dequantizer.inputs[0]) not in (ir.DataType.INT8, None):
        return True
    weights = array_of(dequantizer.inputs[0])
    return weights is not None and (weights.size == 0 or bool(weights.min() >= -_SAFE and weights.max() <= _SAFE))


def _shiftable_weights(dequantizer: ir.Node | None, facts: Facts) -> ir.Node | None:
    """Return the node to change so that weights become uint8: a DequantizeLinear, or the quantiser of constants."""
    if dequantizer is None or _dequantizes_constants(dequantizer, facts):
        return dequantizer
    source = _source_of(dequantizer)
    is_quantizer = source is not None and _makes_int8(source, facts) and facts.is_constant(source.inputs[0])
    return source if is_quantizer else None


class _Shifted:
    """int8 constants as uint8, each converted once."""

    def __init__(self, home: ir.Graph) -> None:
        self._home = home
        self._names = Names(home)
        self._known: dict[ir.Value, ir.Value] = {}

    def shift(self, node: ir.Node) -> None:
        """Change a QuantizeLinear and its readers, or the DequantizeLinear of a constant, to uint8."""
        if node.op_type == "DequantizeLinear":
            self._replace(node, 0)
            self._replace(node, 2)
            return
        output = node.outputs[0]
        for each in (node, *(use.node for use in output.uses())):
            self._replace(each, 2)
        node.attributes.pop("output_dtype", None)  # the zero point has the type
        output.type = ir.TensorType(ir.DataType.UINT8)

    def write_zero_point(self, node: ir.Node | None) -> None:
        """Give a DequantizeLinear of int8 weights its zero points: ONNX Runtime 1.24's QGemm assumes a single one."""
        scale = None if node is None or len(node.inputs) > 2 else array_of(node.inputs[1])
        if node is None or scale is None or scale.ndim == 0:
            return
        node.resize_inputs(3)
        node.replace_input_with(2, self._add_constant(np.zeros(scale.shape, np.int8), f"{node.name}.zero_point"))

    def _replace(self, node: ir.Node, position: int) -> None:
        """Let a node read the constant as uint8; a missing zero point is 0."""
        old = node.inputs[position] if position < len(node.inputs) else None
        if old is None:
            scale = array_of(node.inputs[1])
            assert scale is not None
            node.resize_inputs(position + 1)
            node.replace_input_with(position, self._made(np.zeros(scale.shape, np.int8), f"{node.name}.zero_point"))
            return
        array = array_of(old)
        assert array is not None
        if array.dtype == np.uint8:
            return  # converted already
        if old not in self._known:
            self._known[old] = self._made(array, str(old.name))
        node.replace_input_with(position, self._known[old])

    def _made(self, integers: Array, name: str) -> ir.Value:
        return self._add_constant((integers.astype(np.int16) + _OFFSET).astype(np.uint8), f"{name}.uint8")

    def _add_constant(self, array: Array, name: str) -> ir.Value:
        made = new_constant(array, self._names.new(name))
        self._home.register_initializer(made)
        return made

    def tidy(self) -> None:
        """Remove constants that nothing reads any more."""
        for old in self._known:
            drop_unused_constant(old)


def activation_types(model: ir.Model) -> set[ir.DataType | None]:
    """Return the types that activations are quantised to; None among them: one is unknown."""
    facts = Facts(model)
    return {
        type_of_zero_point(node, facts)
        for node in model.graph
        if node.op_type == "QuantizeLinear" and not facts.is_constant(node.inputs[0])
    }


def _runs_in_float(product: ir.Node, facts: Facts) -> bool:
    """Whether ONNX Runtime runs a product in float because its input or result stays int8."""
    if product.op_type not in _MULTIPLY or product.domain != "":
        return False
    dequantizer, quantizer = dequantizer_of(product.inputs[0]), following_quantizer(product.outputs[0], facts)
    if dequantizer is None:
        return False
    result = None if quantizer is None else quantizer.outputs[0]
    return stays_int8(dequantizer.inputs[0], facts) or stays_int8(result, facts)


def _makes_int8(node: ir.Node, facts: Facts) -> bool:
    """Whether a QuantizeLinear gives int8 that only DequantizeLinear reads, with known zero points."""
    if node.op_type != "QuantizeLinear" or node.domain != "" or node.outputs[0].is_graph_output():
        return False
    uses = tuple(node.outputs[0].uses())
    if any((use.node.op_type, use.node.domain, use.idx) != ("DequantizeLinear", "", 0) for use in uses):
        return False
    return all(type_of_zero_point(each, facts) == ir.DataType.INT8 for each in (node, *(use.node for use in uses)))


def _are_activations(quantizer: ir.Node, facts: Facts) -> bool:
    """Whether a QuantizeLinear gives int8 activations by known scalars: with others ONNX Runtime's operators fail."""
    if not _makes_int8(quantizer, facts) or facts.is_constant(quantizer.inputs[0]):
        return False
    if _is_beside_softmax(quantizer):
        return False
    nodes = (quantizer, *(use.node for use in quantizer.outputs[0].uses()))
    return all(is_readable(value, facts) and facts.rank(value) == 0 for each in nodes for value in each.inputs[1:])


def _is_beside_softmax(quantizer: ir.Node) -> bool:
    """Whether a Softmax precedes or follows a Q/DQ pair: ONNX Runtime's QLinearSoftmax of uint8 may be wrong."""
    value = quantizer.inputs[0]
    before = None if value is None else value.producer()
    readers = (use.node for each in quantizer.outputs[0].uses() for use in each.node.outputs[0].uses())
    return any(node is not None and node.op_type == "Softmax" for node in (before, *readers))


def type_of_zero_point(node: ir.Node, facts: Facts) -> ir.DataType | None:
    """Return the quantised type of a QuantizeLinear or DequantizeLinear, if its zero point is known."""
    zero_point = node.inputs[2] if len(node.inputs) > 2 else None
    return facts.dtype(zero_point) if is_readable(zero_point, facts) else None


def _dequantizes_constants(node: ir.Node, facts: Facts) -> bool:
    """Whether a DequantizeLinear reads constant int8, with a zero point that is constant or 0."""
    if not is_dequantizer(node) or node.outputs[0].is_graph_output():
        return False
    if len(node.inputs) > 2 and node.inputs[2] is not None:
        is_known = is_readable(node.inputs[2], facts)
    else:
        is_known = is_readable(node.inputs[1], facts)  # a zero point has the shape of the scale
    return is_known and facts.dtype(node.inputs[0]) == ir.DataType.INT8 and is_readable(node.inputs[0], facts)


def _is_operand(dequantizer: ir.Node) -> bool:
    """Whether only elementwise Add and Mul read it, whose operands ONNX Runtime takes only in one type."""
    return all(use.node.op_type in _ELEMENTWISE and use.node.domain == "" for use in dequantizer.outputs[0].uses())
