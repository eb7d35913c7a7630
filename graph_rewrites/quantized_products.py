"""Products of 8-bit tensors, brought into the form that a session runs fastest here: in integers, or in float.

ONNX Runtime's integer kernels on x86 take activations of uint8. It makes uint8 of int8 where one node reads a tensor
(QDQS8ToU8Transformer); where several do, the products beside it run in float, between tensors that are dequantised and
quantised again. Here all of a network's int8 activations become uint8: 128 more in each integer and in its zero point
is the same number, so that no result changes but by the order of a sum, where a product is now summed in integers.

Convolutions of each channel by itself are slow in integers. A network that mainly consists of them is faster in float.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Literal

import numpy as np
import onnx_ir as ir

from .facts import Facts
from .fused import new_constant
from .names import Names
from .quantized_weights import (
    array_of,
    dequantizer_of,
    drop_unused_constant,
    is_held,
    quantizer_behind,
    stays_int8,
)

__all__ = ["INT8_AS_UINT8", "Products", "activation_types", "are_faster_in_float", "make_unsigned"]

#: What the report calls it, among the rules.
INT8_AS_UINT8 = "Int8AsUint8"

Products = Literal["as they are", "integer", "exact integer", "float"]
"""What becomes of products of 8 bits. "integer": activations of int8 become uint8, so that ONNX Runtime takes them;
"exact integer": weights as well, where sums of uint8 x int8 would saturate (x86 without VNNI); "float": they run in
float, and their weights are dequantised once."""

_MULTIPLY = frozenset({"Conv", "Gemm", "MatMul"})
_ELEMENTWISE = frozenset({"Add", "Mul"})
_OFFSET = 128
_SAFE = 64  # two products of uint8 and a weight within it fit 16 bits
_BYTES = (ir.DataType.INT8, ir.DataType.UINT8)


# In integers


def make_unsigned(home: ir.Graph, facts: Facts, *, exact: bool) -> int:
    """Make uint8 of the int8 activations of a graph and its subgraphs, where products gain by it; return how many.

    Args:
        home: The graph.
        facts: About its model.
        exact: Make uint8 of the weights beside them, too, where sums might saturate.
    """
    if home in facts.function_bodies:
        return 0  # they hold no initialisers
    nodes = [node for graph in (home, *home.subgraphs()) for node in graph]
    if not any(_runs_in_float(node, facts) for node in nodes):
        return 0
    shifted = _Shifted(home)
    quantizers = [node for node in nodes if _makes_int8(node, facts)]
    for quantizer in quantizers:
        output = quantizer.outputs[0]
        for each in (quantizer, *(use.node for use in output.uses())):
            shifted.replace(each, 2)
        output.type = ir.TensorType(ir.DataType.UINT8)
    for dequantizer in [node for node in nodes if _dequantizes_constants(node, facts)]:
        if _is_operand(dequantizer) or (exact and _are_weights(dequantizer, facts) and _are_large(dequantizer)):
            shifted.replace(dequantizer, 0)
            shifted.replace(dequantizer, 2)
    shifted.tidy()
    return len(quantizers)


class _Shifted:
    """Constants of int8 as uint8, each made once."""

    def __init__(self, home: ir.Graph) -> None:
        self._home = home
        self._names = Names(home)
        self._known: dict[ir.Value, ir.Value] = {}

    def replace(self, node: ir.Node, position: int) -> None:
        """Let a node read the constant as uint8."""
        old = node.inputs[position]
        assert old is not None
        if old not in self._known:
            array = array_of(old)
            assert array is not None
            shifted = (array.astype(np.int16) + _OFFSET).astype(np.uint8)
            self._known[old] = new_constant(shifted, self._names.new(f"{old.name}.uint8"))
            self._home.register_initializer(self._known[old])
        node.replace_input_with(position, self._known[old])

    def tidy(self) -> None:
        """Take the constants away that nothing reads any more."""
        for old in self._known:
            drop_unused_constant(old)


def activation_types(model: ir.Model) -> set[ir.DataType | None]:
    """Return the element types that a model quantises to in each run; None: one is not known."""
    facts = Facts(model)
    return {
        _type_of_zero_point(node, facts)
        for node in model.graph
        if node.op_type == "QuantizeLinear" and not facts.is_constant(node.inputs[0])
    }


def _runs_in_float(product: ir.Node, facts: Facts) -> bool:
    """Whether a product is one of tensors of which ONNX Runtime leaves one as int8."""
    if product.op_type not in _MULTIPLY or product.domain != "":
        return False
    dequantizer, quantizer = dequantizer_of(product.inputs[0]), quantizer_behind(product.outputs[0], facts)
    if dequantizer is None:
        return False
    result = None if quantizer is None else quantizer.outputs[0]
    return stays_int8(dequantizer.inputs[0], facts) or stays_int8(result, facts)


def _makes_int8(node: ir.Node, facts: Facts) -> bool:
    """Whether a QuantizeLinear makes int8 that nothing but DequantizeLinear reads, by zero points that are known."""
    if node.op_type != "QuantizeLinear" or node.domain != "" or _type_of_zero_point(node, facts) != ir.DataType.INT8:
        return False
    if node.outputs[0].is_graph_output() or facts.is_constant(node.inputs[0]):
        return False
    uses = tuple(node.outputs[0].uses())
    if any((use.node.op_type, use.node.domain, use.idx) != ("DequantizeLinear", "", 0) for use in uses):
        return False
    return all(_type_of_zero_point(each, facts) == ir.DataType.INT8 for each in (use.node for use in uses))


def _type_of_zero_point(node: ir.Node, facts: Facts) -> ir.DataType | None:
    """Return the element type of a QuantizeLinear's or DequantizeLinear's integers, if their zero point is known."""
    zero_point = node.inputs[2] if len(node.inputs) > 2 else None
    return facts.dtype(zero_point) if is_held(zero_point, facts) else None


def _dequantizes_constants(node: ir.Node, facts: Facts) -> bool:
    """Whether a DequantizeLinear makes floats of int8 that are known."""
    if node.op_type != "DequantizeLinear" or node.domain != "" or node.outputs[0].is_graph_output():
        return False
    return _type_of_zero_point(node, facts) == ir.DataType.INT8 and is_held(node.inputs[0], facts)


def _is_operand(dequantizer: ir.Node) -> bool:
    """Whether only sums and products of elements read it, of which ONNX Runtime takes only tensors of one type."""
    return all(use.node.op_type in _ELEMENTWISE and use.node.domain == "" for use in dequantizer.outputs[0].uses())


def _are_weights(dequantizer: ir.Node, facts: Facts) -> bool:
    """Whether only products with tensors of uint8 read it."""
    for use in dequantizer.outputs[0].uses():
        left = dequantizer_of(use.node.inputs[0])
        if use.node.op_type not in _MULTIPLY or use.node.domain != "" or use.idx != 1 or left is None:
            return False
        if _type_of_zero_point(left, facts) != ir.DataType.UINT8:
            return False
    return True


def _are_large(dequantizer: ir.Node) -> bool:
    """Whether two products of them and uint8 may not fit 16 bits."""
    weights = array_of(dequantizer.inputs[0])
    return weights is not None and weights.size > 0 and bool(weights.min() < -_SAFE or weights.max() > _SAFE)


# In float


@dataclasses.dataclass(frozen=True)
class _Kernel:
    """What a convolution takes in nanoseconds, with one thread on AVX2."""

    thousand_products: float
    element: float = 0.0

    def time(self, products: float, elements: float) -> float:
        """Return the nanoseconds for so many products of two numbers and elements of the result."""
        return self.thousand_products * products / 1000 + self.element * elements


# `python benchmarks/integer_convolutions.py` prints what they follow from. With VNNI, _INTEGER takes less.
_FLOAT, _FLOAT_DEPTHWISE = _Kernel(24), _Kernel(50)
_INTEGER, _INTEGER_DEPTHWISE = _Kernel(10.5, 0.3), _Kernel(53, 0.3)
_STRIDED = frozenset({"AveragePool", "Conv", "MaxPool"})
_USUAL_SIZE = 224.0  # of an image whose height or width is not known
_Sizes = tuple[float, ...]


def are_faster_in_float(model: ir.Model) -> bool:
    """Whether the convolutions of a network with 8-bit activations are faster in float than in integers, on x86."""
    facts = Facts(model)
    sizes: dict[ir.Value | None, _Sizes] = {value: _size_of_input(value) for value in model.graph.inputs}
    in_float = in_integers = 0.0
    for node in model.graph:
        given = max((sizes.get(value, ()) for value in node.inputs), key=math.prod, default=())
        here = _size_behind(node, given)
        sizes.update(dict.fromkeys(node.outputs, here))
        shape = _shape_of_weights(node, facts)
        if shape is None or len(shape) != len(here) + 2:
            continue
        elements, taps = shape[0] * math.prod(here), math.prod(shape[1:])
        # In float the padding is not multiplied, of which an image of few rows has much.
        inside = shape[1] * math.prod(min(pair) for pair in zip(shape[2:], given, strict=True))
        is_depthwise = shape[1] == 1 and shape[0] > 1
        in_float += (_FLOAT_DEPTHWISE if is_depthwise else _FLOAT).time(elements * inside, elements)
        in_integers += (_INTEGER_DEPTHWISE if is_depthwise else _INTEGER).time(elements * taps, elements)
    return in_integers > in_float


def _size_of_input(value: ir.Value) -> _Sizes:
    """Return height and width of an image [N, C, ...] that is an input."""
    dims = () if value.shape is None else value.shape[2:]
    return tuple(float(dim) if isinstance(dim, int) else _USUAL_SIZE for dim in dims)


def _size_behind(node: ir.Node, given: _Sizes) -> _Sizes:
    """Return about how large the images are behind a node: as before, where its operator is not known here."""
    if node.op_type.startswith("Global"):
        return (1.0,) * len(given)
    strides = node.attributes.get_ints("strides", ()) if node.op_type in _STRIDED else ()
    if len(strides) != len(given):
        return given
    return tuple(max(1.0, math.ceil(size / stride)) for size, stride in zip(given, strides, strict=True))


def _shape_of_weights(node: ir.Node, facts: Facts) -> tuple[int, ...] | None:
    """Return [M, C / group, ...] of a convolution of 8-bit tensors; None: the node is none."""
    if node.op_type != "Conv" or node.domain != "":
        return None
    x, weights = (dequantizer_of(value) for value in node.inputs[:2])
    if x is None or weights is None or _type_of_zero_point(x, facts) not in _BYTES:
        return None
    return facts.static_shape(weights.inputs[0])
