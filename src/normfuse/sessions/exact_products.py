"""Models whose 8-bit products are exact on every processor.

On x86 without VNNI, ONNX Runtime's sums of uint8 x int8 saturate, at every optimisation level. Its sums of uint8 x
uint8 are exact. So int8 weights become uint8 by adding 128, as do their zero points: the differences that are
multiplied are the same, and so is the result that ONNX defines.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from typing import NamedTuple, TypeAlias

import numpy as np
import onnx_ir as ir

from normfuse.errors import InvalidModelError
from normfuse.graph_rewrites.engine.inference import Types, infer_types

_SHIFT = 128

_Tensors: TypeAlias = dict[int, tuple[ir.TensorProtocol, ir.TensorProtocol]]
"""id of a tensor -> the tensor itself, which keeps it alive, and its uint8 version."""


class Factors(NamedTuple):
    """Which inputs of an operator are multiplied as quantised values; -1: there is none."""

    left: int
    left_zero: int
    right: int
    right_zero: int
    scale: int
    """The scale of the right factor."""


INTEGER_FACTORS: Mapping[str, tuple[Factors, ...]] = {
    "ConvInteger": (Factors(0, 2, 1, 3, -1),),
    "DynamicQuantizeLSTM": (Factors(-1, -1, 1, 9, 8), Factors(-1, -1, 2, 11, 10)),
    "DynamicQuantizeMatMul": (Factors(-1, -1, 1, 3, 2),),
    "MatMulInteger": (Factors(0, 2, 1, 3, -1),),
    "MatMulIntegerToFloat": (Factors(0, 4, 1, 5, 3),),
    "QAttention": (Factors(0, 6, 1, 7, 4),),
    "QGemm": (Factors(0, 2, 3, 5, 4),),
    "QLinearConv": (Factors(0, 2, 3, 5, 4),),
    "QLinearMatMul": (Factors(0, 2, 3, 5, 4),),
}
"""Operator -> the quantised products in it."""


def with_exact_sums(*models: ir.Model) -> tuple[ir.Model, ...]:
    """Return copies in which int8 weights that are multiplied by uint8 are uint8; shared tensors stay shared."""
    tensors: _Tensors = {}
    return tuple(_Copy(model.clone(), tensors).shift_weights() for model in models)


class _Copy:
    """A copy of a model that is being changed."""

    def __init__(self, model: ir.Model, tensors: _Tensors) -> None:
        self._model = model
        self._tensors = tensors
        # ids of a graph and a value -> the value, which keeps it alive, and its uint8 version in that graph.
        self._values: dict[tuple[int, int], tuple[ir.Value, ir.Value]] = {}

    def shift_weights(self) -> ir.Model:
        types = _Types(self._model)
        for graph in self._model.graphs():
            for node in tuple(graph):
                for weights, zero_point, scale in _weights(node, types):
                    self._shift(graph, node, weights, zero_point, scale)
        return self._model

    def _shift(self, graph: ir.Graph, node: ir.Node, weights: int, zero_point: int, scale: int) -> None:
        factor, zero = node.inputs[weights], _at(node, zero_point) or _zeros(node, _at(node, scale))
        if factor is None or zero is None:
            return
        node.resize_inputs(max(len(node.inputs), zero_point + 1))
        node.replace_input_with(weights, self._as_uint8(graph, node, factor))
        node.replace_input_with(zero_point, self._as_uint8(graph, node, zero))

    def _as_uint8(self, graph: ir.Graph, node: ir.Node, value: ir.Value) -> ir.Value:
        """Return an int8 value as uint8, 128 higher, for a node of a graph."""
        key = (id(graph), id(value))
        if key not in self._values:
            tensor = _constant(value)
            higher = _insert_shift(graph, node, value) if tensor is None else self._shift_constant(graph, value, tensor)
            self._values[key] = value, higher
        return self._values[key][1]

    def _shift_constant(self, graph: ir.Graph, value: ir.Value, tensor: ir.TensorProtocol) -> ir.Value:
        if id(tensor) not in self._tensors:
            # In two's complement, adding 128 to an 8-bit number flips its highest bit.
            bits = np.ascontiguousarray(tensor.numpy()).view(np.uint8).reshape(tensor.shape.numpy())
            self._tensors[id(tensor)] = tensor, ir.tensor(bits ^ np.uint8(_SHIFT))
        return _initializer(graph, f"{value.name} + {_SHIFT}", self._tensors[id(tensor)][1])


def _insert_shift(graph: ir.Graph, node: ir.Node, value: ir.Value) -> ir.Value:
    """Insert nodes before a node that convert int8 to uint8, 128 higher."""
    shift = _initializer(graph, f"{value.name} shift", ir.tensor(np.array(_SHIFT, np.int32)))
    name = f"{value.name} + {_SHIFT}"
    wide = ir.Node("", "Cast", [value], [ir.AttrInt64("to", int(ir.DataType.INT32))], name=f"{name} wide")
    moved = ir.Node("", "Add", [wide.outputs[0], shift], name=f"{name} moved")
    last = ir.Node("", "Cast", [moved.outputs[0]], [ir.AttrInt64("to", int(ir.DataType.UINT8))], name=name)
    for added in (wide, moved, last):
        added.outputs[0].name = added.name
        graph.insert_before(node, added)
    return last.outputs[0]


def _initializer(graph: ir.Graph, name: str, tensor: ir.TensorProtocol) -> ir.Value:
    value = ir.Value(
        name=name, const_value=tensor, type=ir.TensorType(tensor.dtype), shape=ir.Shape(tensor.shape.numpy())
    )
    graph.register_initializer(value)
    return value


class _Types:
    """The element types of a model's values."""

    def __init__(self, model: ir.Model) -> None:
        self._model = model

    def is_int8(self, value: ir.Value | None, zero_point: ir.Value | None) -> bool:
        """Whether a tensor is int8, by its own type or that of its zero point."""
        dtype = _dtype(value, zero_point)
        if dtype is None and value is not None:
            known = (table.get(value.name or "") for table in self._inferred)
            dtype = next((found.dtype for found in known if found is not None), None)
        return dtype == ir.DataType.INT8

    @functools.cached_property
    def _inferred(self) -> list[Types]:
        try:
            return list({id(table): table for table in infer_types(self._model).values()}.values())
        except InvalidModelError:
            return []  # ONNX Runtime has the better message


def _weights(node: ir.Node, types: _Types) -> Iterator[tuple[int, int, int]]:
    """Yield the positions of each int8 tensor that may be multiplied by uint8, of its zero point and of its scale."""
    if node.op_type == "DequantizeLinear":
        is_plain = not node.attributes.get_int("block_size", 0)
        if is_plain and _is_weights(node.inputs[0]) and types.is_int8(node.inputs[0], _at(node, 2)):
            yield 0, 2, 1
        return
    for factors in INTEGER_FACTORS.get(node.op_type, ()):
        if _dtype(_at(node, factors.left), _at(node, factors.left_zero)) == ir.DataType.INT8:
            continue
        if types.is_int8(_at(node, factors.right), _at(node, factors.right_zero)):
            yield factors.right, factors.right_zero, factors.scale


def _dtype(value: ir.Value | None, zero_point: ir.Value | None) -> ir.DataType | None:
    dtypes = [(_constant(each) or each).dtype for each in (zero_point, value) if each is not None]
    return next((dtype for dtype in dtypes if dtype is not None), None)


def _is_weights(value: ir.Value | None) -> bool:
    """Whether a tensor is constant, or quantised from a constant."""
    quantizer = quantizer_of(value)
    value = value if quantizer is None else quantizer.inputs[0]
    return value is not None and _constant(value) is not None


def quantizer_of(quantized: ir.Value | None) -> ir.Node | None:
    """Return the QuantizeLinear that computes a quantised tensor, also if a Clip follows it, as Brevitas writes."""
    node = None if quantized is None else quantized.producer()
    if node is not None and node.op_type == "Clip":
        value = _at(node, 0)
        node = None if value is None else value.producer()
    return node if node is not None and node.op_type == "QuantizeLinear" else None


def _zeros(node: ir.Node, scale: ir.Value | None) -> ir.Value | None:
    """Return zeros for a zero point that a node omits, one for each scale; None: their number is unknown."""
    shape = ir.Shape(()) if scale is None else (_constant(scale) or scale).shape
    if not isinstance(shape, ir.Shape) or not shape.is_static():
        return None
    zeros = ir.tensor(np.zeros(shape.numpy(), np.int8))
    return ir.Value(name=f"{node.outputs[0].name} zero point", const_value=zeros)


def _at(node: ir.Node, position: int) -> ir.Value | None:
    return node.inputs[position] if 0 <= position < len(node.inputs) else None


def _constant(value: ir.Value) -> ir.TensorProtocol | None:
    """Return a tensor that no run can replace."""
    return None if value.is_graph_input() else ir.convenience.get_const_tensor(value)
