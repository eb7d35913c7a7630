"""How much ONNX's shape inference would compute, known before it does.

It keeps every dimension of every value, and with `data_prop` also every element of the tensors with one dimension or
none that go through the operators below: of whatever size, and whether or not these become shapes. A small file can
ask for more than any machine has. Everything here is an upper bound, found in one walk, from the types that the model
gives and those that inference found without data.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import onnx_ir as ir

from normfuse.graph_rewrites.engine.constants import constant_tensor
from normfuse.graph_rewrites.engine.traversal import inner_graphs

Shapes = Mapping[str, Sequence[int | None]]
"""Names of values -> their dimensions as far as these are known."""

# Dimensions of all values together, and elements of all tensors that data is kept of: a hundred bytes each.
_MOST_DIMENSIONS = 1 << 22
_MOST_ELEMENTS = 1 << 20
# Elements of constants that are read for the numbers in them.
_MOST_READ = 1 << 12
_CAP = 2.0**62

# Operators that ONNX computes the elements of.
_PROPAGATED = frozenset(
    {"Add", "Cast", "Concat", "Gather", "Mul", "Shape", "Size", "Slice", "Squeeze", "Sub", "Unsqueeze"}
)


class _Bound(NamedTuple):
    """What a value has at the most."""

    rank: float = 0
    """Dimensions."""
    dim: float = 1
    """The size of one of them."""
    elements: float = 1
    """Elements that ONNX can know of; 0: it has several dimensions."""
    number: float = 0
    """The largest of them."""


_Bounds: TypeAlias = Sequence[_Bound]
_Functions: TypeAlias = Mapping[ir.OperatorIdentifier, ir.Function]


class Sizes:
    """Adds up what inference would keep of a model."""

    def __init__(self, functions: _Functions, shapes: Shapes, weights: Iterable[ir.Value] = ()) -> None:
        """Take the model's functions, the shapes of values in its graphs, and the weights that are left out."""
        self._functions = functions
        self._shapes = shapes
        self._known: dict[ir.Value, _Bound] = {}
        self._known.update((value, _without_numbers(value.const_value)) for value in weights)
        self._kept: set[ir.Value] = set()
        self._calls: dict[tuple[ir.OperatorIdentifier, tuple[_Bound, ...]], tuple[_Bounds, float, float]] = {}
        #: Dimensions of all values.
        self.dimensions = 0.0
        #: Elements of all tensors that data is kept of.
        self.elements = 0.0

    @property
    def has_few_dimensions(self) -> bool:
        """Whether inference is possible at all."""
        return self.dimensions <= _MOST_DIMENSIONS

    @property
    def has_few_elements(self) -> bool:
        """Whether data may be propagated."""
        return self.elements <= _MOST_ELEMENTS

    def add(self, graph: ir.Graph) -> Sizes:
        """Add a graph and its subgraphs."""
        for node in graph:
            if not (self.has_few_dimensions and self.has_few_elements):
                break
            self._add_node(node)
        return self

    def _add_node(self, node: ir.Node) -> None:
        given = [_BOUND if value is None else self._of(value) for value in node.inputs]
        inner = inner_graphs(node)
        for graph in inner:
            self._known.update((value, self._typed(value, _largest(given))) for value in graph.inputs)
            self.add(graph)
        if node.op_identifier() in self._functions:
            found = self._call(node.op_identifier(), tuple(given))
        elif inner:
            results = [self._of(value) for graph in inner for value in graph.outputs]
            largest = _largest([*given, *results])
            found = [largest._replace(rank=largest.rank + 1)]  # Loop and Scan stack what their bodies give
        else:
            found = [_bound(node, given)]
        for index, value in enumerate(node.outputs):
            self._known[value] = self._typed(value, found[min(index, len(found) - 1)] if found else _BOUND)
            self.dimensions += self._known[value].rank
        if node.domain == "" and node.op_type in _PROPAGATED:
            kept = {*node.outputs, *(value for value in node.inputs if value is not None and node.op_type != "Shape")}
            self.elements += sum(self._known[value].elements for value in kept - self._kept)
            self._kept |= kept

    def _of(self, value: ir.Value) -> _Bound:
        """Return what is known of a value that has been computed, or is given."""
        if value not in self._known:
            tensor = value.const_value
            self._known[value] = self._typed(value, _BOUND) if tensor is None else _constant(tensor)
        return self._known[value]

    def _typed(self, value: ir.Value, bound: _Bound) -> _Bound:
        """Return a bound with what the type of the value says instead."""
        dims: Sequence[Any] | None = self._shapes.get(value.name or "")
        if dims is None and value.shape is not None:
            dims = value.shape.dims
        if dims is None:
            # It may have one dimension only; this is no matter while that is of a usual size.
            return bound if bound.dim <= _MOST_ELEMENTS else bound._replace(elements=max(bound.elements, bound.dim))
        known = [float(dim) for dim in dims if isinstance(dim, int)]
        size = max(known, default=1.0)
        if len(known) < len(dims):
            size = max(size, bound.dim)
        elements = bound.elements
        node = value.producer()
        if len(dims) > 1 and (node is None or node.op_type not in _PROPAGATED):
            elements = 0
        elif len(dims) <= 1:
            elements = math.prod(known) if len(known) == len(dims) else max(elements, size)
        return bound._replace(rank=len(dims), dim=size, elements=elements)

    def _call(self, function: ir.OperatorIdentifier, arguments: tuple[_Bound, ...]) -> _Bounds:
        """Return the results of a call, and count all that is inside of it."""
        key = function, arguments
        if key not in self._calls:
            self._calls[key] = [], math.inf, math.inf  # should it call itself
            inside = Sizes(self._functions, {})
            inside._calls = self._calls
            body = self._functions[function].graph
            inside._known.update(zip(body.inputs, arguments, strict=False))
            inside.add(body)
            self._calls[key] = [inside._of(value) for value in body.outputs], inside.dimensions, inside.elements
        results, dimensions, elements = self._calls[key]
        self.dimensions += dimensions
        self.elements += elements
        return results


_BOUND = _Bound()


def _largest(bounds: _Bounds) -> _Bound:
    return _Bound(*map(max, zip(*bounds, strict=True))) if bounds else _BOUND


def _without_numbers(tensor: ir.TensorProtocol | None) -> _Bound:
    dims = () if tensor is None else tensor.shape.numpy()
    return _Bound(len(dims), max(dims, default=1), 0, 0)


def _constant(tensor: ir.TensorProtocol) -> _Bound:
    dims = tuple(tensor.shape.numpy())
    number = 0.0
    if 0 < tensor.size <= _MOST_READ and (tensor.dtype.is_integer() or tensor.dtype.is_floating_point()):
        try:
            array = np.abs(tensor.numpy().astype(np.float64))
        except (OSError, ValueError):
            array = np.zeros(1)  # data that is not there, or damaged: ONNX knows no more of it
        number = float(np.max(array, initial=0, where=np.isfinite(array)))
    is_kept = len(dims) <= 1 and tensor.dtype in (ir.DataType.INT32, ir.DataType.INT64)
    return _Bound(len(dims), max(dims, default=1), tensor.size if is_kept else 0, number)


def _bound(node: ir.Node, inputs: _Bounds) -> _Bound:
    """Return a bound for the first output of an operator."""
    own = _OPERATORS.get(node.op_type) if node.domain == "" else None
    largest = _largest(inputs)
    bound = largest if own is None else own(node, [*inputs, *[_BOUND] * 8], largest)
    return _Bound(*(min(float(number), _CAP) for number in bound))


def _numbers(node: ir.Node, name: str) -> list[float]:
    attribute = node.attributes.get(name)
    if attribute is None or attribute.is_ref() or attribute.value is None:
        return []
    if attribute.type in (ir.AttributeType.INT, ir.AttributeType.FLOAT):
        return [float(attribute.value)]
    if attribute.type in (ir.AttributeType.INTS, ir.AttributeType.FLOATS):
        return [float(number) for number in attribute.value]
    return []


def _most(node: ir.Node, *names: str) -> float:
    return max((abs(number) for name in names for number in _numbers(node, name)), default=0.0)


def _concat(node: ir.Node, inputs: _Bounds, largest: _Bound) -> _Bound:
    given = inputs[: len(node.inputs)]
    return largest._replace(dim=sum(x.dim for x in given), elements=sum(x.elements for x in given))


def _made(rank: float, dim: float, number: float = 0) -> _Bound:
    """Return the bound of a tensor of its own shape: with one dimension its elements are as many as that is large."""
    return _Bound(rank, dim, dim if rank <= 1 else 0, number)


def _constant_node(node: ir.Node, inputs: _Bounds, largest: _Bound) -> _Bound:
    tensor = constant_tensor(node)
    return _BOUND if tensor is None else _constant(tensor)


def _range(node: ir.Node, inputs: _Bounds, largest: _Bound) -> _Bound:
    start, limit, delta = inputs[:3]
    # Steps smaller than 1 are of floats, and constant where ONNX knows how many there are.
    step = min(delta.number, 1) or 1
    return _made(1, (start.number + limit.number) / step, start.number + limit.number)


def _resized(node: ir.Node, inputs: _Bounds, largest: _Bound) -> _Bound:
    x, *others = inputs[:4]
    factor = max(_most(node, "scales"), *(other.number for other in others), 1)
    sizes = max(other.number for other in others)
    return _made(x.rank, max(x.dim * factor, sizes))


def _reshaped(node: ir.Node, inputs: _Bounds, largest: _Bound) -> _Bound:
    x, shape = inputs[:2]
    source = node.inputs[0] if node.inputs else None
    dims = None if source is None or source.shape is None else source.shape.dims
    size = math.prod(dim for dim in dims if isinstance(dim, int)) if dims is not None else x.dim
    wanted = _numbers(node, "shape")
    return _made(max(shape.elements, len(wanted)), max(size, shape.number, *wanted, 1))


def _unsqueeze(node: ir.Node, inputs: _Bounds, largest: _Bound) -> _Bound:
    x, axes = inputs[:2]
    return x._replace(rank=x.rank + (len(_numbers(node, "axes")) or axes.elements))


_Rule = Callable[[ir.Node, _Bounds, _Bound], _Bound]
_OPERATORS: dict[str, _Rule] = {
    **dict.fromkeys(
        ("Add", "Sub"), lambda node, inputs, largest: largest._replace(number=inputs[0].number + inputs[1].number)
    ),
    "Mul": lambda node, inputs, largest: largest._replace(number=inputs[0].number * inputs[1].number),
    "Cast": lambda node, inputs, largest: inputs[0],
    "Concat": _concat,
    "Constant": _constant_node,
    "ConstantOfShape": lambda node, inputs, largest: _made(inputs[0].elements, inputs[0].number),
    "EyeLike": lambda node, inputs, largest: _made(2, inputs[0].dim),
    "Expand": lambda node, inputs, largest: _made(
        max(inputs[0].rank, inputs[1].elements), max(inputs[0].dim, inputs[1].number)
    ),
    "Gather": lambda node, inputs, largest: _Bound(
        inputs[0].rank + inputs[1].rank,
        largest.dim,
        inputs[1].elements if inputs[0].elements else 0,
        inputs[0].number,
    ),
    "OneHot": lambda node, inputs, largest: _made(inputs[0].rank + 1, max(inputs[0].dim, inputs[1].number)),
    "Pad": lambda node, inputs, largest: _made(
        inputs[0].rank, inputs[0].dim + 2 * max(inputs[1].number, _most(node, "pads", "paddings"))
    ),
    **dict.fromkeys(
        ("RandomNormal", "RandomUniform"),
        lambda node, inputs, largest: _made(len(_numbers(node, "shape")), _most(node, "shape")),
    ),
    "Range": _range,
    "Reshape": _reshaped,
    **dict.fromkeys(("Resize", "Upsample"), _resized),
    "Shape": lambda node, inputs, largest: _Bound(1, inputs[0].rank, inputs[0].rank, inputs[0].dim),
    "Size": lambda node, inputs, largest: _Bound(0, 1, 1, inputs[0].dim ** min(inputs[0].rank, 8)),
    "Slice": lambda node, inputs, largest: inputs[0],
    "Squeeze": lambda node, inputs, largest: inputs[0],
    "Tile": lambda node, inputs, largest: _made(
        inputs[0].rank, inputs[0].dim * max(inputs[1].number, inputs[2].number, 1)
    ),
    "Unsqueeze": _unsqueeze,
}
