"""Values that are known without running the model.

Exporters write a constant as an initialiser, as a Constant node, or as a small subgraph of either (Cast, Unsqueeze,
Expand of a ConstantOfShape ...). The evaluator looks through such subgraphs lazily and never changes them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

# Larger tensors are weights: they are never read, let alone evaluated.
_MAX_ELEMENTS = 1 << 18
# Elements of all that is computed for one model together.
_MAX_COMPUTED = 1 << 24
_MAX_RANK = 64
_MAX_DEPTH = 12

Array = np.ndarray[Any, np.dtype[Any]]
Dimension = int | ir.SymbolicDim


def constant_tensor(node: ir.Node) -> ir.TensorProtocol | None:
    """Return what a Constant node holds; None: it is not known here.

    The node stays as it is: onnx_ir's own function gives a tensor of the model another name.
    """
    value = node.attributes.get("value")
    if value is not None and value.type == ir.AttributeType.TENSOR and not value.is_ref():
        return value.as_tensor()
    try:
        return ir.convenience.get_const_tensor(node.outputs[0])
    except ValueError:
        return None  # several attributes or outputs, or a sparse tensor


def _ints(node: ir.Node, name: str, inputs: Sequence[Array | None], position: int) -> list[int] | None:
    attribute = node.attributes.get(name)
    if attribute is not None and not attribute.is_ref():
        return list(attribute.as_ints())
    if len(inputs) > position and (value := inputs[position]) is not None:
        return [int(i) for i in value.ravel()]
    return None


def _flag(node: ir.Node, name: str) -> bool:
    attribute = node.attributes.get(name)
    return attribute is not None and attribute.value != 0


def _unsqueeze(node: ir.Node, inputs: Sequence[Array]) -> Array | None:
    axes = _ints(node, "axes", inputs, 1)
    return None if axes is None else np.expand_dims(inputs[0], tuple(axes))


def _squeeze(node: ir.Node, inputs: Sequence[Array]) -> Array:
    axes = _ints(node, "axes", inputs, 1)
    return np.squeeze(inputs[0], None if axes is None else tuple(axes))


def _reshape(node: ir.Node, inputs: Sequence[Array]) -> Array | None:
    if len(inputs) < 2 or _flag(node, "allowzero"):
        return None
    shape = [int(n) for n in inputs[1]]
    return inputs[0].reshape([inputs[0].shape[i] if n == 0 else n for i, n in enumerate(shape)])


def _expand(node: ir.Node, inputs: Sequence[Array]) -> Array:
    return np.broadcast_to(inputs[0], np.broadcast_shapes(inputs[0].shape, tuple(int(n) for n in inputs[1])))


def _constant_of_shape(node: ir.Node, inputs: Sequence[Array]) -> Array:
    shape = tuple(int(n) for n in inputs[0])
    fill = node.attributes.get("value")
    value = np.zeros(1, np.float32) if fill is None else fill.as_tensor().numpy()
    return np.full(shape, value.ravel()[0], value.dtype)


def _cast(node: ir.Node, inputs: Sequence[Array]) -> Array:
    return inputs[0].astype(ir.DataType(node.attributes["to"].as_int()).numpy())


def _reduce_prod(node: ir.Node, inputs: Sequence[Array]) -> Array:
    axes = _ints(node, "axes", inputs, 1)
    keepdims = "keepdims" not in node.attributes or _flag(node, "keepdims")
    return np.asarray(
        np.prod(inputs[0], None if axes is None else tuple(axes), dtype=inputs[0].dtype, keepdims=keepdims)
    )


def _range(node: ir.Node, inputs: Sequence[Array]) -> Array:
    return np.arange(inputs[0].item(), inputs[1].item(), inputs[2].item(), dtype=inputs[0].dtype)


def _slice(node: ir.Node, inputs: Sequence[Array]) -> Array | None:
    if len(inputs) < 3:
        return None
    axes = inputs[3] if len(inputs) > 3 else np.arange(len(inputs[1]))
    steps = inputs[4] if len(inputs) > 4 else np.ones(len(inputs[1]), np.int64)
    index: list[slice] = [slice(None)] * inputs[0].ndim
    for start, end, axis, step in zip(inputs[1], inputs[2], axes, steps, strict=True):
        if step <= 0:
            return None
        index[int(axis)] = slice(int(start), int(end), int(step))
    return inputs[0][tuple(index)]


def _divide(node: ir.Node, inputs: Sequence[Array]) -> Array | None:
    if not np.issubdtype(inputs[0].dtype, np.integer):
        return np.asarray(inputs[0] / inputs[1])
    # ONNX truncates towards zero; shapes, the only integers met here, are not negative.
    positive = (inputs[0] >= 0).all() and (inputs[1] > 0).all()
    return np.asarray(inputs[0] // inputs[1]) if positive else None


def _dequantize(node: ir.Node, inputs: Sequence[Array]) -> Array | None:
    # Quantisers store numbers such as an epsilon in 8 bits as well.
    if len(inputs) < 2 or _flag(node, "block_size") or _flag(node, "output_dtype") or inputs[0].dtype.kind not in "iu":
        return None
    scale, zero_point = inputs[1], inputs[2] if len(inputs) > 2 else np.zeros((), np.int64)
    if scale.size > 1:
        shape = [1] * inputs[0].ndim
        shape[node.attributes.get_int("axis", 1)] = scale.size
        scale, zero_point = scale.reshape(shape), zero_point.reshape(shape if zero_point.size > 1 else ())
    else:
        scale, zero_point = scale.reshape(()), zero_point.reshape(())
    steps = inputs[0].astype(np.int64) - zero_point.astype(np.int64)
    return np.asarray(steps.astype(scale.dtype) * scale, scale.dtype)


_OPERATORS: dict[str, Callable[[ir.Node, Sequence[Any]], Array | None]] = {
    "Identity": lambda node, inputs: inputs[0],
    "Cast": _cast,
    "Unsqueeze": _unsqueeze,
    "Squeeze": _squeeze,
    "Reshape": _reshape,
    "DequantizeLinear": _dequantize,
    "Expand": _expand,
    "ConstantOfShape": _constant_of_shape,
    "Range": _range,
    "ReduceProd": _reduce_prod,
    "Slice": _slice,
    "Transpose": lambda node, inputs: np.transpose(inputs[0], _ints(node, "perm", (), 0)),
    "Concat": lambda node, inputs: np.concatenate(inputs, node.attributes["axis"].as_int()),
    "Gather": lambda node, inputs: np.take(inputs[0], inputs[1], node.attributes.get_int("axis", 0)),
    "Add": lambda node, inputs: np.asarray(inputs[0] + inputs[1]),
    "Sub": lambda node, inputs: np.asarray(inputs[0] - inputs[1]),
    "Mul": lambda node, inputs: np.asarray(inputs[0] * inputs[1]),
    "Div": _divide,
    "Neg": lambda node, inputs: np.asarray(-inputs[0]),
    "Sqrt": lambda node, inputs: np.asarray(np.sqrt(inputs[0])),
    "Reciprocal": lambda node, inputs: np.asarray(np.reciprocal(inputs[0])),
}


def _broadcast(node: ir.Node, inputs: Sequence[Array]) -> int:
    return math.prod(np.broadcast_shapes(*(array.shape for array in inputs)))


def _dequantized(node: ir.Node, inputs: Sequence[Array]) -> int:
    x, scale = inputs[:2]
    fits = scale.size == 1 or x.shape[node.attributes.get_int("axis", 1)] == scale.size
    return x.size if fits else x.size * scale.size


def _gathered(node: ir.Node, inputs: Sequence[Array]) -> int:
    size = inputs[0].shape[node.attributes.get_int("axis", 0)]
    return int(inputs[0].size // max(size, 1) * inputs[1].size)


# How many elements an operator's result has, where these can be more than those of each input: known before a small
# file makes something of terabytes.
_SIZES: dict[str, Callable[[ir.Node, Sequence[Any]], int | float]] = {
    **dict.fromkeys(("Add", "Sub", "Mul", "Div"), _broadcast),
    "Concat": lambda node, inputs: sum(array.size for array in inputs),
    "ConstantOfShape": lambda node, inputs: math.prod(int(n) for n in inputs[0]),
    "DequantizeLinear": _dequantized,
    "Expand": lambda node, inputs: math.prod(np.broadcast_shapes(inputs[0].shape, tuple(int(n) for n in inputs[1]))),
    "Gather": _gathered,
    "Range": lambda node, inputs: (inputs[1].item() - inputs[0].item()) / inputs[2].item(),
}


def _compute(node: ir.Node, inputs: Sequence[Any], most: int) -> Any:
    """Return what a node of `_OPERATORS` computes; None: it is invalid, or has more elements than that."""
    size = _SIZES.get(node.op_type)
    try:
        with np.errstate(all="ignore"):
            if size is not None and size(node, inputs) > most:
                return None
            return _OPERATORS[node.op_type](node, inputs)
    except (ArithmeticError, IndexError, KeyError, MemoryError, TypeError, ValueError):
        return None  # an invalid constant subgraph is for ORT to complain about


# Operators that only move elements, whatever these are.
_MOVING = ("Concat", "Gather", "Identity", "Reshape", "Slice", "Squeeze", "Unsqueeze")

# Operators whose results hold nothing but elements of their first input.
_REPEATING = ("Expand", "Identity", "Reshape", "Unsqueeze")


def _product_of_known(first: Any, second: Any) -> Any:
    product = first * second if isinstance(first, int) and isinstance(second, int) else None
    return product if product is None or abs(product) < 2**63 else None  # more is no size, and grows without end


class Constants:
    """The values of one model that do not depend on its inputs."""

    def __init__(
        self,
        ir_version: int,
        shape_of: Callable[[ir.Value], ir.Shape | None],
        dtype_of: Callable[[ir.Value], ir.DataType | None],
    ) -> None:
        """`shape_of` gives a value's shape as far as it is known, `dtype_of` its element type."""
        # Up to IR version 3 every initialiser had to be listed as an input as well; it was no less constant for that.
        self._inputs_override = ir_version >= 4
        self._shape_of = shape_of
        self._dtype_of = dtype_of
        self._known: dict[ir.Value, Array | None] = {}
        self._left = _MAX_COMPUTED
        self._known_in_part: dict[ir.Value, Array | None] = {}

    def is_constant(self, value: ir.Value | None) -> bool:
        """True for an initialiser that a caller cannot override, whatever its size, and for what follows from such."""
        if value is None:
            return False
        waiting, seen = [value], {value}
        while waiting:
            operand = waiting.pop()
            node = operand.producer()
            if node is not None and node.op_type == "DequantizeLinear":
                further = [source for source in node.inputs if source is not None and source not in seen]
                seen.update(further)
                waiting += further
            elif not self._is_fixed_initializer(operand) and self.get(operand) is None:
                return False
        return True

    def get(self, value: ir.Value | None) -> Array | None:
        """Return the value as a NumPy array (ml_dtypes for bfloat16 and the like), or None if unknown or too large."""
        return self._get(value, _MAX_DEPTH)

    def in_part(self, value: ir.Value | None) -> Array | None:
        """Return a tensor that is computed from shapes: numbers, open `dimensions`, and None for what is not known.

        None instead of an array: nothing is known.
        """
        return self._in_part(value, _MAX_DEPTH)

    def filled_with(self, value: ir.Value | None) -> float | None:
        """Return the number that all elements of a tensor are, whose shape need not be known; None: there is none."""
        node = value.producer() if value is not None else None
        while node is not None and node.domain == "" and node.op_type in _REPEATING:
            value = node.inputs[0]
            node = value.producer() if value is not None else None
        if node is not None and node.domain == "" and node.op_type == "ConstantOfShape":
            fill = node.attributes.get("value")
            return 0.0 if fill is None else float(fill.as_tensor().numpy().ravel()[0])
        array = self.get(value)
        if array is None or array.size == 0 or array.dtype.kind in "OSU":
            return None
        first = array.ravel()[0]
        return float(first) if (array == first).all() else None

    def _is_fixed_initializer(self, value: ir.Value) -> bool:
        return value.is_initializer() and not (self._inputs_override and value.is_graph_input())

    def _get(self, value: ir.Value | None, depth: int) -> Array | None:
        if value is None or depth == 0:
            return None
        if value not in self._known:
            self._known[value] = self._evaluate(value, depth)
        return self._known[value]

    def _evaluate(self, value: ir.Value, depth: int) -> Array | None:
        node = value.producer()
        if node is None:
            return self._read(value.const_value) if self._is_fixed_initializer(value) else None
        if node.domain != "" or len(node.outputs) != 1:
            return None
        if node.op_type == "Constant":
            return self._read(constant_tensor(node))
        if node.op_type in ("Shape", "Size"):
            return self._shape(node)
        if node.op_type == "CastLike":
            return self._cast_like(node, depth)
        if node.op_type not in _OPERATORS:
            return None
        inputs = [self._get(operand, depth - 1) for operand in node.inputs]
        if any(operand is None for operand in inputs):
            return self._in_full(value, depth)
        result: Array | None = _compute(node, inputs, min(_MAX_ELEMENTS, self._left))
        if result is None or result.size > _MAX_ELEMENTS:
            return None
        self._left -= result.size
        return result

    def _shape(self, node: ir.Node) -> Array | None:
        shape = self._asked_for(node)
        known = [dim for dim in shape or () if isinstance(dim, int)]
        if shape is None or len(known) < len(shape):
            return None
        return np.array(math.prod(known) if node.op_type == "Size" else known, np.int64)

    def dimensions(self, value: ir.Value) -> list[Dimension] | None:
        """Return a shape in which equal dimensions are equal: one without a name has that of its place."""
        shape = self._shape_of(value)
        if shape is None:
            return None
        return [
            dim if isinstance(dim, int) or dim.value is not None else ir.SymbolicDim(f"{value.name}[{index}]")
            for index, dim in enumerate(shape)
        ]

    def _asked_for(self, node: ir.Node) -> list[Dimension] | None:
        """Return what Shape gives, or what Size multiplies."""
        shape = self.dimensions(node.inputs[0]) if node.inputs and node.inputs[0] is not None else None
        start, end = node.attributes.get_int("start", 0), node.attributes.get("end")
        return None if shape is None else shape[start : None if end is None else end.as_int()]

    def _in_full(self, value: ir.Value, depth: int) -> Array | None:
        """Return a tensor whose elements are all known although not all that they are picked from is."""
        elements = self._in_part(value, depth)
        if elements is None or not all(isinstance(element, int) for element in elements.ravel()):
            return None
        return elements.astype(np.int64)

    def _in_part(self, value: ir.Value | None, depth: int) -> Array | None:
        if value is None or depth == 0:
            return None
        if value not in self._known_in_part:
            self._known_in_part[value] = None  # should the graph have a cycle
            self._known_in_part[value] = self._evaluate_in_part(value, depth)
        return self._known_in_part[value]

    def _evaluate_in_part(self, value: ir.Value, depth: int) -> Array | None:
        node = value.producer()
        if node is None or node.op_type in ("Constant", "ConstantOfShape"):
            known = self._get(value, depth)
            return (
                known.astype(object)
                if known is not None and known.dtype.kind in "iu" and known.dtype != np.uint64
                else None
            )
        if node.domain != "" or not node.inputs:
            return None
        if node.op_type == "Shape":
            dims = self._asked_for(node)
            return None if dims is None else np.array(dims, object)
        if node.op_type == "Cast":
            target = node.attributes.get_int("to", 0)
            return (
                self._in_part(node.inputs[0], depth - 1) if target in (ir.DataType.INT32, ir.DataType.INT64) else None
            )
        if node.op_type == "Mul":
            factors = [self._in_part(operand, depth - 1) for operand in node.inputs]
            if len(factors) != 2 or factors[0] is None or factors[1] is None:
                return None
            given = [factor for factor in factors if factor is not None]
            try:
                size = _broadcast(node, given)
            except ValueError:
                return None
            return np.asarray(np.frompyfunc(_product_of_known, 2, 1)(*given), object) if size <= _MAX_RANK else None
        return self._moved(node, depth) if node.op_type in _MOVING else None

    def _moved(self, node: ir.Node, depth: int) -> Array | None:
        data = node.inputs if node.op_type == "Concat" else node.inputs[:1]
        inputs = [self._in_part(operand, depth - 1) for operand in data]
        inputs += [self._get(operand, depth - 1) for operand in node.inputs[len(data) :]]
        if any(operand is None for operand in inputs):
            return None
        result = _compute(node, inputs, _MAX_RANK)
        if result is None:
            return None
        moved = np.asarray(result, object)  # one element picked out of an array of objects is no array
        return moved if moved.size <= _MAX_RANK else None

    def _cast_like(self, node: ir.Node, depth: int) -> Array | None:
        # Only the type of the second input counts: it need not be constant.
        value = self._get(node.inputs[0], depth - 1)
        dtype = self._dtype_of(node.inputs[1]) if node.inputs[1] is not None else None
        return None if value is None or dtype is None else value.astype(dtype.numpy())

    @staticmethod
    def _read(tensor: ir.TensorProtocol | None) -> Array | None:
        if tensor is None or tensor.size > _MAX_ELEMENTS or tensor.dtype == ir.DataType.STRING:
            return None
        try:
            return tensor.numpy()
        except (OSError, ValueError):
            return None  # external data that is not there: the caller reports it when the model is saved or run
