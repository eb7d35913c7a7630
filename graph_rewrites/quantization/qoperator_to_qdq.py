"""Networks in the QOperator format converted to Q/DQ pairs, for sessions.

ONNX Runtime makes QLinear operators of the pairs again where it runs them in integers. Pairs allow what the QOperator
format prevents: int8 products as uint8, weights that are dequantised once, chains.

An operator is written with DequantizeLinear before and QuantizeLinear after it, as `quantize_static` does for QDQ. So
are operators that only move quantised elements, with the parameters of the tensor: dequantising and quantising again
gives the same values. Uncertain cases are not converted: parameters that are not constant, activations of two types.
Before opset 13, weights with a scale for each channel are dequantised by com.microsoft's DequantizeLinear.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import onnx_ir as ir

from normfuse.graph_rewrites.engine.constants import Array
from normfuse.graph_rewrites.engine.facts import Facts
from normfuse.graph_rewrites.engine.fused import new_constant
from normfuse.graph_rewrites.engine.names import Names
from normfuse.graph_rewrites.engine.passes import Context
from normfuse.graph_rewrites.engine.traversal import all_nodes, graphs_of
from normfuse.graph_rewrites.quantization.qlinear_operators import (
    QLINEAR,
    QUANTIZED,
    InFloat,
    Quantized,
    write_in_float,
)
from normfuse.graph_rewrites.quantization.redundant_qdq import repeats_elements
from normfuse.graph_rewrites.quantization.weight_folding import array_of, drop_unused_constant, is_readable

_QUANTIZING_OPSET, _OPSET_WITH_AXES = 10, 13
_OPTIONAL_C_OPSET = 11  # of Gemm
_BYTES = (ir.DataType.INT8, ir.DataType.UINT8)
# Between these, dequantised 8-bit values are normal float32 numbers.
_LEAST_SCALE, _LARGEST_SCALE = np.finfo(np.float32).tiny, np.finfo(np.float32).max / 256
# Operators that only move elements: ONNX Runtime runs them quantised between Q/DQ pairs.
_MOVES = frozenset(
    {
        *("DepthToSpace", "Expand", "Flatten", "Gather", "MaxPool", "Reshape", "Resize", "Slice", "Split", "Squeeze"),
        *("Tile", "Transpose", "Unsqueeze"),
    }
)
_POOLED_BYTES = range(12, 22)  # opsets in which every ONNX Runtime runs a quantised MaxPool


def has_qlinear_operators(graph: ir.Graph) -> bool:
    """Whether a graph or its subgraphs have QLinear operators that can be written as Q/DQ pairs."""
    return any(node.op_identifier()[:2] in QLINEAR for node in all_nodes(graph))


def write_qdq_pairs(home: ir.Graph, context: Context) -> int:
    """Write the QLinear operators of a graph and its subgraphs as Q/DQ pairs; return how many."""
    if context.opset < _QUANTIZING_OPSET:
        return 0
    context.facts.infer()
    return _Pairs(home, context.facts, context.opset).write()


class _NotConverted(Exception):  # noqa: N818 -- no error
    """The node is not converted."""


class _Pairs:
    """The operators of one graph and its subgraphs."""

    def __init__(self, home: ir.Graph, facts: Facts, opset: int) -> None:
        self._home, self._facts, self._opset = home, facts, opset
        self._names = Names(home)
        self._made: list[ir.Value] = []  # constants for the operator that is being written

    def write(self) -> int:
        """Write them; return how many."""
        nodes = [node for graph in graphs_of(self._home) for node in graph]
        written = sum(self._write(node) for node in nodes if (node.domain, node.op_type) in QLINEAR)
        if written:
            moving = [node for node in nodes if node.op_type in _MOVES and node.domain == ""]
            # First with the parameters of the QuantizeLinear before, then with those of the DequantizeLinear after it.
            left = [node for node in moving if not self._move(node, self._made_with(node.inputs[0]))]
            for node in reversed(left):
                self._move(node, self._read_with(node))
        return written

    def _write(self, node: ir.Node) -> bool:
        given = [value for value in node.inputs if value is not None]
        try:
            form = self._form(node)
        except _NotConverted:
            for value in self._made:
                drop_unused_constant(value)
            return False
        finally:
            self._made = []
        write_in_float(node, form, self._names)
        for value in given:
            drop_unused_constant(value)
        return True

    # What operators read

    def _form(self, node: ir.Node) -> InFloat:
        """Return the float form of an operator; trailing parameters of its result may be missing."""
        row = QLINEAR[node.domain, node.op_type]
        end = row.first + QUANTIZED * row.operands if row.operands else len(node.inputs)
        inputs, dtype = self._activations(node, range(row.first, end, QUANTIZED))
        if row.weights is not None:
            is_transposed = row.operator == "Conv" or node.attributes.get_int("transB", 0) != 0
            inputs.append(self._weights(node, row.weights, 0 if is_transposed else 1, dtype))
            bias = None if row.bias is None else self._bias(node, row.bias, inputs)
            inputs += [] if bias is None else [bias]
        if row.operator == "Gemm" and (
            node.attributes.get_float("alpha", 1.0) != 1.0 or (len(inputs) < 3 and self._opset < _OPTIONAL_C_OPSET)
        ):
            raise _NotConverted
        attributes = [each for each in node.attributes.values() if each.name != "channels_last"]
        if node.attributes.get_int("channels_last", 0):
            raise _NotConverted
        at = end if row.result is None else row.result
        is_float = row.operator == "Gemm" and _at(node, at) is None
        result = None if is_float else self._parameters(node, at, dtype)
        return InFloat(row.operator, [*node.inputs[: row.reads], *inputs], attributes, result)

    def _activation(self, node: ir.Node, at: int) -> Quantized:
        """Return an 8-bit operand with one scale."""
        tensor, zero_point = _at(node, at), _at(node, at + 2)
        dtype = self._facts.dtype(tensor if zero_point is None else zero_point)
        return Quantized(tensor, *self._parameters(node, at + 1, dtype))

    def _activations(self, node: ir.Node, places: Iterable[int]) -> tuple[list[Quantized], ir.DataType]:
        """Return operands of one type, and the type."""
        operands = [self._activation(node, at) for at in places]
        types = {self._type_of(operand) for operand in operands}
        if len(types) != 1:
            raise _NotConverted
        return operands, types.pop()

    def _type_of(self, operand: Quantized) -> ir.DataType:
        """Return the quantised element type."""
        dtype = self._facts.dtype(operand.zero_point)
        if dtype not in _BYTES:
            raise _NotConverted
        return dtype

    def _parameters(self, node: ir.Node, at: int, dtype: ir.DataType | None) -> tuple[ir.Value, ir.Value]:
        """Return scale and zero point of a type, as scalars; a missing zero point is 0."""
        scale, zero_point = self._array(node, at), self._array(node, at + 1, optional=True)
        if scale is None or scale.size != 1 or not _is_usual(scale) or dtype not in _BYTES:
            raise _NotConverted
        if zero_point is None:
            zero_point = np.zeros((), dtype.numpy())
        if zero_point.size != 1 or zero_point.dtype != dtype.numpy():
            raise _NotConverted
        return self._scalar(_at(node, at), scale), self._scalar(_at(node, at + 1), zero_point)

    def _weights(self, node: ir.Node, at: int, axis: int, beside: ir.DataType) -> Quantized:
        """Return an operand with one scale, or with one for each index of an axis."""
        scale, zero_point = self._array(node, at + 1), self._array(node, at + 2, optional=True)
        if scale is None or scale.size == 1:
            operand = self._activation(node, at)
        else:
            operand = self._of_axis(node, at, axis, (scale, zero_point))
        dtype = self._type_of(operand)
        if beside == ir.DataType.INT8 and dtype != beside:
            raise _NotConverted  # ONNX Runtime has no kernel for int8 x uint8
        return operand

    def _of_axis(self, node: ir.Node, at: int, axis: int, parameters: tuple[Array, Array | None]) -> Quantized:
        tensor, (scale, zero_point) = _at(node, at), parameters
        shape, dtype = self._facts.static_shape(tensor), self._facts.dtype(tensor)
        if shape is None or axis >= len(shape) or dtype not in _BYTES:
            raise _NotConverted
        if scale.shape != (shape[axis],) or not _is_usual(scale):
            raise _NotConverted
        if zero_point is not None and zero_point.shape == scale.shape:
            return Quantized(tensor, _at(node, at + 1), _at(node, at + 2), axis, self._domain_of_axes())
        if zero_point is not None and zero_point.size != 1:
            raise _NotConverted
        zeros = np.full(scale.shape, 0 if zero_point is None else zero_point.ravel()[0], dtype.numpy())
        zero_points = self._add_constant(zeros, f"{node.name}.zero_points")
        return Quantized(tensor, _at(node, at + 1), zero_points, axis, self._domain_of_axes())

    def _domain_of_axes(self) -> str:
        """Return the domain whose DequantizeLinear has an axis."""
        if self._opset >= _OPSET_WITH_AXES:
            return ""
        self._home.opset_imports.setdefault("com.microsoft", 1)
        return "com.microsoft"

    def _bias(self, node: ir.Node, at: int, factors: Sequence[Quantized]) -> Quantized | None:
        """Return an int32 bias, whose scale is the product of the scales of two factors."""
        tensor = _at(node, at)
        if tensor is None:
            return None
        x, w = (array_of(factor.scale) for factor in factors)
        shape = self._facts.static_shape(tensor)
        if x is None or w is None or shape is None or not is_readable(tensor, self._facts):
            raise _NotConverted
        with np.errstate(over="ignore"):
            scale = np.asarray(x * w, np.float32)
        if not _is_usual(scale) or (scale.ndim and shape[-1:] != scale.shape):
            raise _NotConverted
        zero_point = self._add_constant(np.zeros(scale.shape, np.int32), f"{tensor.name}.zero_point")
        added = self._add_constant(scale, f"{tensor.name}.scale")
        if scale.ndim:
            return Quantized(tensor, added, zero_point, len(shape) - 1, self._domain_of_axes())
        return Quantized(tensor, added, zero_point)

    def _array(self, node: ir.Node, at: int, *, optional: bool = False) -> Array | None:
        value = _at(node, at)
        if value is None and optional:
            return None
        if not is_readable(value, self._facts):
            raise _NotConverted
        return array_of(value)

    def _scalar(self, value: ir.Value | None, array: Array) -> ir.Value:
        if value is not None and array.ndim == 0:
            return value
        return self._add_constant(array.reshape(()), "zero_point" if value is None else f"{value.name}.scalar")

    def _add_constant(self, array: Array, name: str) -> ir.Value:
        made = new_constant(array, self._names.new(name))
        self._home.register_initializer(made)
        self._made.append(made)
        return made

    # What moves elements

    def _move(self, node: ir.Node, parameters: tuple[ir.Value, ir.Value] | None) -> bool:
        """Write an operator that moves quantised elements between Q/DQ pairs, if their parameters are known."""
        if parameters is None or not self._only_moves(node):
            return False
        operand = Quantized(node.inputs[0], *parameters)
        form = InFloat(node.op_type, [operand, *node.inputs[1:]], list(node.attributes.values()), parameters)
        write_in_float(node, form, self._names)
        return True

    def _only_moves(self, node: ir.Node) -> bool:
        if node.op_type != "Gather" and self._facts.is_constant(node.inputs[0]):
            return False  # ONNX Runtime does it once
        if node.op_type == "MaxPool":
            return len(node.outputs) == 1 and self._opset in _POOLED_BYTES
        return node.op_type != "Resize" or repeats_elements(node)

    def _made_with(self, value: ir.Value | None) -> tuple[ir.Value, ir.Value] | None:
        producer = None if value is None else value.producer()
        return None if producer is None or producer.op_type != "QuantizeLinear" else self._of_pair(producer)

    def _read_with(self, node: ir.Node) -> tuple[ir.Value, ir.Value] | None:
        readers = (use.node for output in node.outputs for use in output.uses() if use.idx == 0)
        found = (self._of_pair(reader) for reader in readers if reader.op_type == "DequantizeLinear")
        return next((each for each in found if each is not None), None)

    def _of_pair(self, node: ir.Node) -> tuple[ir.Value, ir.Value] | None:
        """Return scale and zero point of an 8-bit QuantizeLinear or DequantizeLinear."""
        try:
            return self._parameters(node, 1, self._facts.dtype(_at(node, 2)))
        except _NotConverted:
            return None


def _at(node: ir.Node, position: int) -> ir.Value | None:
    return node.inputs[position] if position < len(node.inputs) else None


def _is_usual(scales: Array) -> bool:
    """Whether dequantising by such scales and quantising again gives the same values."""
    return scales.dtype == np.float32 and bool(np.all((scales >= _LEAST_SCALE) & (scales <= _LARGEST_SCALE)))
