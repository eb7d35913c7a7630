"""Whether a network of 8-bit products is faster in integers or in float, by the price of each kind of product.

Depthwise convolutions are slow in integers. A network that mainly consists of them is faster in float.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator

import onnx_ir as ir

from normfuse.graph_rewrites.engine.facts import Facts
from normfuse.graph_rewrites.quantization.int8_products import type_of_zero_point
from normfuse.graph_rewrites.quantization.weight_folding import dequantizer_of
from normfuse.spec import PRODUCTS, TYPICAL

_BYTES = (ir.DataType.INT8, ir.DataType.UINT8)


@dataclasses.dataclass(frozen=True)
class _Product:
    """The work of a convolution or matrix product."""

    products: float
    """Multiplications."""
    elements: float
    """Elements of the result."""
    weights: float = 0.0
    """Elements of the right matrix, which are read from memory."""

    def time(self, name: str) -> float:
        """Return its time in nanoseconds, by a row of the table of prices."""
        price = PRODUCTS[name]
        return (price.products * self.products + price.weights * self.weights) / 1000 + price.elements * self.elements


_STRIDED = frozenset({"AveragePool", "Conv", "MaxPool"})
_Sizes = tuple[float, ...]


def are_faster_in_float(model: ir.Model) -> bool:
    """Whether a network with 8-bit activations is faster in float than in integers, on x86.

    Only convolutions can be faster in float: matrix products are looked at only if convolutions are.
    """
    facts = Facts(model)
    nodes = list(_with_sizes(model.graph))
    gained = sum(_gain_of_convolution(node, given, here, facts) for node, given, here in nodes)
    if gained <= 0:
        return False
    facts.infer()
    return gained > sum(_loss_of_matrices(node, given, facts) for node, given, _ in nodes)


def _with_sizes(graph: ir.Graph) -> Iterator[tuple[ir.Node, _Sizes, _Sizes]]:
    """Yield each node with height and width of its input and output images."""
    sizes: dict[ir.Value | None, _Sizes] = {value: _size_of_input(value) for value in graph.inputs}
    for node in graph:
        given = max((sizes.get(value, ()) for value in node.inputs), key=math.prod, default=())
        here = _size_after(node, given)
        sizes.update(dict.fromkeys(node.outputs, here))
        yield node, given, here


def _gain_of_convolution(node: ir.Node, given: _Sizes, here: _Sizes, facts: Facts) -> float:
    """Return the nanoseconds by which it is faster in float; 0: it is no convolution of 8-bit tensors."""
    if node.op_type != "Conv" or not _is_8_bit_product(node, facts):
        return 0.0
    shape = facts.static_shape(_quantized(node.inputs[1]))
    if shape is None or len(shape) != len(here) + 2:
        return 0.0
    elements, taps = shape[0] * math.prod(here), math.prod(shape[1:])
    # In float the padding is not multiplied; small images have much of it.
    inside = shape[1] * math.prod(min(pair) for pair in zip(shape[2:], given, strict=True))
    is_depthwise = shape[1] == 1 and shape[0] > 1
    kind = "depthwise" if is_depthwise else "convolution"
    in_integers = _Product(elements * taps, elements).time(f"integer_{kind}")
    return in_integers - _Product(elements * inside, elements).time(f"float_{kind}")


def _loss_of_matrices(node: ir.Node, given: _Sizes, facts: Facts) -> float:
    """Return the nanoseconds by which a product of 8-bit matrices is slower in float; 0: the node is none."""
    if node.op_type not in ("Gemm", "MatMul") or not _is_8_bit_product(node, facts):
        return 0.0
    # Unknown dimensions are the batch, which is first, and the length of a sequence: the number of pixels before.
    length = math.prod(given) if given else TYPICAL["dimension"]
    shapes = [facts.shape(_quantized(value)) for value in node.inputs[:2]]
    left, right = ([_size_of_dimension(dim, length) for dim in shape or ()] for shape in shapes)
    if len(left) < 2 or len(right) < 2:
        return 0.0
    if shapes[0] is not None and not isinstance(shapes[0][0], int):
        left[0] = 1.0
    is_transposed = [node.attributes.get_int(name, 0) != 0 for name in ("transA", "transB")]
    depth, columns = left[-2 if is_transposed[0] else -1], right[-2 if is_transposed[1] else -1]
    elements = math.prod(left) / max(depth, 1.0) * columns
    product = _Product(elements * depth, elements, math.prod(right))
    return product.time("float_matrix") - product.time("integer_matrix")


def _size_of_input(value: ir.Value) -> _Sizes:
    """Return height and width of an image [N, C, ...] that is an input."""
    return tuple(_size_of_dimension(dim, TYPICAL["image"]) for dim in (() if value.shape is None else value.shape[2:]))


def _size_of_dimension(dim: int | ir.SymbolicDim, unknown: float) -> float:
    return float(dim) if isinstance(dim, int) else unknown


def _size_after(node: ir.Node, given: _Sizes) -> _Sizes:
    """Return the approximate size of a node's output images: that of its input, if the operator is unknown here."""
    if node.op_type.startswith("Global"):
        return (1.0,) * len(given)
    strides = node.attributes.get_ints("strides", ()) if node.op_type in _STRIDED else ()
    if len(strides) != len(given):
        return given
    return tuple(max(1.0, math.ceil(size / stride)) for size, stride in zip(given, strides, strict=True))


def _is_8_bit_product(product: ir.Node, facts: Facts) -> bool:
    """Whether a node of ONNX multiplies two dequantised tensors, the left one of 8 bits."""
    left, right = (dequantizer_of(value) for value in product.inputs[:2])
    if left is None or right is None or product.domain != "":
        return False
    return type_of_zero_point(left, facts) in _BYTES


def _quantized(dequantized: ir.Value | None) -> ir.Value | None:
    """Return the quantised tensor of a dequantised one; None: it is not dequantised."""
    node = dequantizer_of(dequantized)
    return None if node is None else node.inputs[0]
