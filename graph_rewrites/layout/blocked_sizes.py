"""Batch, height and width of the tensors [N, C, H, W] of a graph that ONNX Runtime has optimised, known or symbolic.

A Mul of two tensors can run in the blocked layout only if their shapes are the same, since the layout of channels
prevents the usual broadcasting. Shape inference gives a new name to each unknown size, so symbolic sizes are computed
here: equal tokens are equal sizes, whatever they are at run time.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import onnx_ir as ir

#: Domain of ONNX Runtime's operators on the blocked layout.
NCHWC_DOMAIN = "com.microsoft.nchwc"
SPATIAL_AXES = (2, 3)

Sizes = tuple[Hashable, Hashable, Hashable]
_RANK = 4
_PLACED = ("Conv", "MaxPool", "AveragePool")
# Attributes of a Resize that repeats pixels: defaults, and required values.
_REPEATING = (
    ("mode", "nearest", "nearest"),
    ("coordinate_transformation_mode", "half_pixel", "asymmetric"),
    ("nearest_mode", "round_prefer_floor", "floor"),
)


def is_over_all_places(node: ir.Node) -> bool:
    """Whether the node is the mean of each channel: GlobalAveragePool, or a ReduceMean that says the same."""
    if node.domain not in ("", NCHWC_DOMAIN):
        return False
    if node.op_type == "GlobalAveragePool":
        return True
    if node.op_type != "ReduceMean" or node.attributes.get_int("keepdims", 1) != 1:
        return False
    axes = node.attributes.get_ints("axes", ())
    if len(node.inputs) > 1 and node.inputs[1] is not None:
        constant = constant_of(node.inputs[1])
        axes = () if constant is None else constant.numpy().ravel().tolist()
    return sorted(axis % _RANK if -_RANK <= axis < _RANK else axis for axis in axes) == list(SPATIAL_AXES)


def scales_of(node: ir.Node) -> tuple[int, int] | None:
    """Return how many times a Resize repeats each row and each column of an image; None: it does something else.

    That is what ONNX Runtime's blocked form of the operator does in the same way.
    """
    if node.domain != "" or node.op_type != "Resize" or "axes" in node.attributes:
        return None
    if any(node.attributes.get_string(name, usual) != needed for name, usual, needed in _REPEATING):
        return None
    scales, sizes = (*node.inputs[2:4], None, None)[:2]
    constant = None if scales is None or sizes is not None else constant_of(scales)
    factors = [] if constant is None else constant.numpy().tolist()
    if len(factors) != _RANK or factors[:2] != [1, 1] or any(f < 1 or f != int(f) for f in factors):
        return None
    return int(factors[2]), int(factors[3])


class SizeFinder:
    """The sizes of every tensor of rank 4, found in one walk in the order of the graph."""

    def __init__(self, graph: ir.Graph, elementwise: frozenset[tuple[str, str]]) -> None:
        """Walk; `elementwise` are the operators whose result has the shape to which their operands broadcast."""
        self._sizes: dict[ir.Value, Sizes] = {}
        self._elementwise = elementwise
        for value in graph.inputs:
            self._keep(value, None)
        for node in graph:
            for value in node.outputs if node.op_type == "Split" else node.outputs[:1]:
                self._keep(value, self._of_result(node))

    def of(self, value: ir.Value | None) -> Sizes | None:
        """Return batch, height and width; None: the tensor may have another rank."""
        return None if value is None else self._sizes.get(value)

    def _keep(self, value: ir.Value, sizes: Sizes | None) -> None:
        shape = value.shape
        if shape is not None and len(shape) != _RANK:
            return
        if shape is not None:
            found: list[Hashable] = []
            for position, axis in enumerate((0, *SPATIAL_AXES)):
                dimension = shape[axis]
                followed = None if sizes is None else sizes[position]
                if isinstance(dimension, int):
                    found.append(dimension)
                elif followed is not None:
                    found.append(followed)
                else:
                    found.append((value.name, axis))  # names such as "?" can be any size
            sizes = (found[0], found[1], found[2])
        if sizes is not None:
            self._sizes[value] = sizes

    def _of_result(self, node: ir.Node) -> Sizes | None:
        x = self.of(node.inputs[0]) if node.inputs else None
        if (node.domain, node.op_type) in self._elementwise:
            return self._broadcast(node.inputs)
        if x is None:
            return None
        if is_over_all_places(node):
            return x[0], 1, 1
        if node.domain == NCHWC_DOMAIN and node.op_type in ("ReorderInput", "ReorderOutput"):
            return x if not node.attributes.get_int("channels_last", 0) else None
        if node.domain in ("", NCHWC_DOMAIN) and node.op_type in _PLACED:
            return x[0], self._placed(node, x[1], 0), self._placed(node, x[2], 1)
        if node.domain == "" and node.op_type in ("Concat", "Split") and node.attributes.get_int("axis", 0) == 1:
            return x
        if (scales := scales_of(node)) is not None:
            return x[0], _scaled(x[1], scales[0]), _scaled(x[2], scales[1])
        return None

    def _broadcast(self, operands: Sequence[ir.Value | None]) -> Sizes | None:
        every = [self._of_operand(value) for value in operands if value is not None and not is_one_number(value)]
        known = [sizes for sizes in every if sizes is not None]
        if not known or len(known) != len(every):
            return None
        # What is broadcast has one place for each channel, and one batch or that of the others.
        first = max(known, key=lambda sizes: (sizes[1:] != (1, 1), sizes[0] != 1))
        return first if all(sizes in (first, (first[0], 1, 1), (1, 1, 1)) for sizes in known) else None

    def _of_operand(self, value: ir.Value) -> Sizes | None:
        if value.const_value is None:
            return self.of(value)
        dims = [int(d) for d in value.const_value.shape if isinstance(d, int)]
        padded = [1] * (_RANK - len(dims)) + dims
        return (padded[0], padded[2], padded[3]) if len(padded) == _RANK else None

    def _placed(self, node: ir.Node, size: Hashable, position: int) -> Hashable:
        """Return the height or width after a window: (size + pads - dilation * (kernel - 1) - 1) / stride + 1."""
        attributes = node.attributes
        kernel = list(attributes.get_ints("kernel_shape", ()))
        if not kernel and node.op_type == "Conv" and node.inputs[1] is not None and node.inputs[1].shape is not None:
            kernel = [int(d) if isinstance(d, int) else -1 for d in node.inputs[1].shape[2:]]
        automatic = attributes.get_string("auto_pad", "NOTSET") != "NOTSET"
        if len(kernel) != len(SPATIAL_AXES) or -1 in kernel or automatic or attributes.get_int("ceil_mode", 0) != 0:
            return (node.name, id(node), position)
        pads = list(attributes.get_ints("pads", (0, 0, 0, 0)))
        stride = list(attributes.get_ints("strides", (1, 1)))[position]
        dilation = list(attributes.get_ints("dilations", (1, 1)))[position]
        grown = pads[position] + pads[position + 2] - dilation * (kernel[position] - 1)
        if isinstance(size, int):
            return (size + grown - 1) // stride + 1
        return size if stride == 1 and grown == 0 else ("placed", size, grown, stride)


def _scaled(size: Hashable, factor: int) -> Hashable:
    return size * factor if isinstance(size, int) else ("scaled", size, factor)


def constant_of(value: ir.Value) -> ir.TensorProtocol | None:
    """Return the array of a constant; None: it is no constant, or a call may replace it."""
    return None if value.is_graph_input() else value.const_value


def is_one_number(value: ir.Value) -> bool:
    """Whether the value is a constant of one element."""
    return value.const_value is not None and value.const_value.size == 1
