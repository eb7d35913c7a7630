"""Chains in the blocked layout (NCHWc) that ONNX Runtime's CPU provider uses for the tensors of convolutions.

ONNX Runtime's layout pass runs after all other providers have claimed their nodes, and reorders each input and output
of these. Here the pass has run already: the graph is what ONNX Runtime saves with every optimisation, on this
processor. Elementwise operators between a ReorderOutput and a ReorderInput read and write the blocked tensor instead,
and the reorders are removed; so do Concat and Split along the channels, pooling, and a Resize that repeats pixels,
which have blocked forms. The last block of a tensor whose channels do not fill it is padded; padding must be finite, as
its weights in the next product are 0.

A factor for each channel, such as the gate [N, C, 1, 1] of a squeeze-and-excitation block, broadcasts only if channels
are last: around it tensors are viewed as [N, C / b, H, W, b], by a Reshape, which copies nothing. ONNX Runtime writes
Q/DQ pairs around Reshape and other operators, unless it is set to leave Q and DQ nodes unchanged.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Container, Sequence

import numpy as np
import onnx_ir as ir

from normfuse.graph_rewrites.engine.names import Names
from normfuse.graph_rewrites.layout.blocked_sizes import (
    NCHWC_DOMAIN,
    SizeFinder,
    constant_of,
    is_one_number,
    is_over_all_places,
    scales_of,
)
from normfuse.spec import OPERATOR_DOMAIN, TYPICAL

#: Suffix of the names of nodes that were moved.
BLOCKED = "/nchwc"

# Operators whose result is finite for every finite operand, and within the bound of `_Padding`.
_BOUNDED = frozenset(
    {"Relu", "LeakyRelu", "Sigmoid", "HardSigmoid", "HardSwish", "Tanh", "Elu", "Selu", "Celu", "Softplus", "Softsign"}
    | {"Mish", "Gelu", "Erf", "Clip", "Abs", "Neg", "ThresholdedRelu", "Identity", "Swish"}
)
_BOUNDED_OF_MICROSOFT = frozenset({"Gelu", "QuickGelu", "FastGelu"})
_OWN = frozenset({"FusedActivation"})
_COMBINING = frozenset({"Add", "Sub", "Mul", "Div", "Min", "Max", "Sum"})
_QUANTIZING = frozenset({"QuantizeLinear", "DequantizeLinear"})
_TAKING_INTEGERS = _QUANTIZING | _OWN | {"Clip"}

#: Operators, by domain and name, whose result has the shape to which their operands broadcast.
ELEMENTWISE = frozenset(
    {("", name) for name in _BOUNDED | _COMBINING | _QUANTIZING}
    | {("com.microsoft", name) for name in _BOUNDED_OF_MICROSOFT}
    | {(OPERATOR_DOMAIN, name) for name in _OWN}
)

_LARGEST_PADDING = 1e30
_LARGEST_INTEGER = 65536.0
# Limit of nodes between a gate and the node that has its number of channels.
_LONGEST_WAY = 32
_SCALE = 1  # input of QuantizeLinear and DequantizeLinear


def move_reorders(graph: ir.Graph, block: int) -> int:
    """Run nodes between reorders of a graph on blocked tensors, in place.

    Args:
        graph: As ONNX Runtime wrote it, with the layout pass of this processor.
        block: Channels of a block: the last dimension of a blocked tensor.

    Returns:
        The number of ReorderInput and ReorderOutput that were removed.
    """
    before = _count_reorders(graph)
    plan = _Plan(graph, block)
    if plan.parts:
        _Writer(graph, plan, block).write()
    return before - _count_reorders(graph)


def _count_reorders(graph: ir.Graph) -> int:
    return sum(_is_reorder(node, "ReorderInput") or _is_reorder(node, "ReorderOutput") for node in graph)


def _is_reorder(node: ir.Node | None, op_type: str) -> bool:
    return (
        node is not None
        and node.domain == NCHWC_DOMAIN
        and node.op_type == op_type
        and node.attributes.get_int("channels_last", 0) == 0
    )


def _blocked_source(value: ir.Value | None) -> ir.Value | None:
    """Return the blocked tensor that the value was reordered from."""
    node = None if value is None else value.producer()
    return node.inputs[0] if node is not None and _is_reorder(node, "ReorderOutput") else None


def _is_elementwise(node: ir.Node) -> bool:
    return (node.domain, node.op_type) in ELEMENTWISE


def _connected(nodes: Sequence[ir.Node]) -> list[list[ir.Node]]:
    """Return the connected parts: no node reads a result of another part."""
    leader = {node: node for node in nodes}

    def find(node: ir.Node) -> ir.Node:
        while leader[node] is not node:
            leader[node] = leader[leader[node]]
            node = leader[node]
        return node

    for node in nodes:
        for value in node.inputs:
            producer = None if value is None else value.producer()
            if producer is not None and producer in leader:
                leader[find(producer)] = find(node)
    parts: dict[ir.Node, list[ir.Node]] = {}
    for node in nodes:
        parts.setdefault(find(node), []).append(node)
    return list(parts.values())


@dataclasses.dataclass(frozen=True)
class _Exits:
    """How results of a part are read outside of the blocked layout."""

    values: tuple[ir.Value, ...]
    """Values that are reordered, in float32."""
    staying: tuple[ir.Node, ...]
    """Nodes that also run on the reordered values."""


class _Plan:
    """The nodes that are moved: all that can be, in those parts that need fewer reorders then."""

    def __init__(self, graph: ir.Graph, block: int) -> None:
        self._block = block
        self._padding = _Padding(graph)
        self._sizes = SizeFinder(graph, ELEMENTWISE)
        self._outputs = set(graph.outputs)
        self._channels: dict[ir.Value, int] = {}
        self._floats: set[ir.Value] = set()  # of these
        self._movable: dict[ir.Node, bool] = {}  # whether the node needs the view
        self._refused: set[ir.Node] = set()
        movable = self._find_movable(graph)
        while refused := self._gates_of_floats(movable):
            self._refused |= refused
            movable = self._find_movable(graph)
        #: Nodes that are moved together or not at all, in the order of the graph.
        self.parts = [part for part in _connected(movable) if self._gain(part) > 0]
        #: Those on tensors whose blocks have a dimension of their own, because something broadcasts along the others.
        self.viewed = {
            node
            for together in _connected([node for node in movable if _is_elementwise(node)])
            if any(self._movable[node] for node in together)
            for node in together
        }

    def _find_movable(self, graph: ir.Graph) -> list[ir.Node]:
        self._channels.clear()
        self._floats.clear()
        self._movable.clear()
        for node in graph:
            self._look_at(node)
        return [node for node in self._movable if node.outputs[0] in self._channels]

    def _gates_of_floats(self, movable: Sequence[ir.Node]) -> set[ir.Node]:
        """Return nodes that would need a view, among nodes that form no chain: ONNX Runtime is slow there."""
        return {
            node
            for together in _connected([node for node in movable if _is_elementwise(node)])
            if not any(node.op_type in _QUANTIZING for node in together)
            for node in together
            if self._movable[node]
        }

    def channels(self, value: ir.Value) -> int | None:
        """Return the channels, without padding, of a tensor that has a blocked form."""
        return self._channels.get(value)

    def _look_at(self, node: ir.Node) -> None:
        if _is_reorder(node, "ReorderOutput"):
            self._channels[node.outputs[0]] = node.attributes.get_int("channels", 0)
            self._floats.add(node.outputs[0])
            return
        if node.domain == "" and node.op_type == "Split":
            self._look_at_split(node)
            return
        if len(node.outputs) != 1 or node in self._refused:
            return
        channels = self._channels_moved(node)
        if channels is None:
            return
        y = node.outputs[0]
        if channels % self._block and not self._padding.of(y) < _LARGEST_PADDING:
            return
        self._channels[y] = channels
        if not self._gives_integers(node):
            self._floats.add(y)

    def _look_at_split(self, node: ir.Node) -> None:
        """The blocks of a Split's operand are those of its results one after the other, if none is divided."""
        x = node.inputs[0]
        channels = None if x is None else self._channels.get(x)
        if channels is None or x not in self._floats or node.attributes.get_int("axis", 0) != 1:
            return
        sizes = _sizes_of_split(node, channels)
        # ONNX Runtime reorders no tensor without channels.
        if sum(sizes) != channels or any(size == 0 or size % self._block for size in sizes):
            return
        self._channels.update(zip(node.outputs, sizes, strict=True))
        self._floats.update(node.outputs)
        self._movable[node] = False

    def _gives_integers(self, node: ir.Node) -> bool:
        if node.op_type in _OWN:
            return node.outputs[0].dtype != ir.DataType.FLOAT
        return node.op_type == "QuantizeLinear" or (node.op_type == "Clip" and node.inputs[0] not in self._floats)

    def _channels_moved(self, node: ir.Node) -> int | None:
        """Return the channels of the node's result; None: it has no blocked form."""
        if _is_elementwise(node):
            return self._channels_of_elementwise(node)
        known = [self._channels.get(value) for value in node.inputs[:1] if value is not None]
        if not known or known[0] is None:
            return None
        if node.domain == "" and node.op_type == "Concat" and node.attributes.get_int("axis", 0) == 1:
            every = [None if value is None else self._channels.get(value) for value in node.inputs]
            whole = [c for c in every if c is not None and c % self._block == 0]
            if len(whole) != len(every) or not self._floats.issuperset(node.inputs):
                return None
            self._movable[node] = False
            return sum(whole)
        pools = node.domain == "" and node.op_type in ("MaxPool", "AveragePool")
        if known[0] % self._block or not (pools or is_over_all_places(node) or scales_of(node) is not None):
            return None
        if node.inputs[0] not in self._floats:
            return None
        self._movable[node] = False
        return known[0]

    def _channels_of_elementwise(self, node: ir.Node) -> int | None:
        operands = self._operands(node)
        if not operands or not self._takes_blocks(node):
            return None
        known = {self._channels[value] for value in operands if value in self._channels}
        if len(known) != 1:
            return None
        channels = known.pop()
        sizes = self._sizes.of(node.outputs[0])
        others = [value for value in operands if value not in self._channels or self._sizes.of(value) != sizes]
        # The operands of a node of ours may follow the channels in another way than broadcasting does.
        if others and (node.op_type in _OWN or not all(self._broadcasts(each, node, channels) for each in others)):
            return None
        self._movable[node] = bool(others)
        return channels

    def _operands(self, node: ir.Node) -> list[ir.Value]:
        """Return the tensors that an elementwise node reads, without single numbers; empty: it cannot be moved."""
        x, *parameters = node.inputs
        if node.op_type not in _QUANTIZING:
            operands = [value for value in node.inputs if value is not None and not is_one_number(value)]
            takes_integers = node.op_type in _TAKING_INTEGERS
            are_taken = takes_integers or self._floats.issuperset(set(operands) & self._channels.keys())
            return operands if are_taken else []
        if x is None or any(value is not None and not is_one_number(value) for value in parameters):
            return []
        return [x] if (x in self._floats) == (node.op_type == "QuantizeLinear") else []

    def _takes_blocks(self, node: ir.Node) -> bool:
        """Whether attributes, types and sizes of an elementwise node let it run on blocked tensors."""
        if self._sizes.of(node.outputs[0]) is None:
            return False
        if node.op_type in _QUANTIZING:
            scale = node.inputs[_SCALE]
            # The one number of a block has the rank of the tensor, which the view has not.
            is_by_blocks = node.attributes.get_int("block_size", 0) != 0
            return scale is not None and scale.dtype == ir.DataType.FLOAT and not is_by_blocks
        if node.op_type in _OWN:
            return node.outputs[0].dtype is not None and "block" not in node.attributes.get_string("steps", "")
        return True

    def _broadcasts(self, value: ir.Value, node: ir.Node, channels: int) -> bool:
        """Whether an operand is a gate [N, C, 1, 1] or a number for each channel."""
        sizes = self._sizes.of(node.outputs[0])
        assert sizes is not None
        is_whole = channels % self._block == 0 and channels_of_gate(value) == channels
        is_gate = self._sizes.of(value) == (sizes[0], 1, 1) and (value in self._channels or is_whole)
        return is_gate or _is_vector_of_channels(value, channels)

    def exits(self, part: Sequence[ir.Node]) -> _Exits:
        """Return how a part is read outside of the blocked layout.

        Quantised tensors are not reordered: the nodes that quantise them run once more for the other readers.
        """
        inside = set(part)
        values: dict[ir.Value, None] = {}
        staying: dict[ir.Node, None] = {}
        results = [value for node in part for value in node.outputs]
        wanted = [value for value in results if not self._is_read_blocked(value, inside)]
        while wanted:
            value = wanted.pop()
            producer = value.producer()
            if producer is None or producer not in inside or producer in staying:
                continue
            if value in self._floats:
                values[value] = None
            else:
                staying[producer] = None
                wanted.extend(operand for operand in producer.inputs if operand is not None)
        return _Exits(tuple(values), tuple(staying))

    def _gain(self, part: Sequence[ir.Node]) -> float:
        """Return the number of elements that need no reorder any more, as far as sizes are known."""
        exits = self.exits(part)
        moved = set(part) - set(exits.staying)
        read = {value for node in part for value in node.inputs if _blocked_source(value) is not None}
        gain = sum(self._weight(value) for value in read if value is not None and self._is_read_blocked(value, moved))
        for y in (value for node in part for value in node.outputs):
            gain += self._weight(y) * any(_is_reorder(user, "ReorderInput") for user in y.consumers())
        return gain - sum(self._weight(value) for value in exits.values)

    def _is_read_blocked(self, value: ir.Value, moved: set[ir.Node]) -> bool:
        users = value.consumers()
        blocked = all(user in moved or _is_reorder(user, "ReorderInput") for user in users)
        return blocked and value not in self._outputs

    def _weight(self, value: ir.Value) -> float:
        sizes = self._sizes.of(value)
        numbers = [d if isinstance(d, int) else TYPICAL["blocked"] for d in (sizes or (1, 1, 1))[1:]]
        return float(self._channels[value] * math.prod(numbers))


def channels_of_gate(value: ir.Value | None) -> int | None:
    """Return the channels of a float32 tensor [N, C, 1, 1] without blocks; None: they are unknown."""
    for _ in range(_LONGEST_WAY):
        if value is None or value.const_value is not None:
            return None
        shape = value.shape
        if shape is not None and isinstance(shape[1], int):
            return shape[1]
        node = value.producer()
        if node is None:
            return None
        if node.domain == "" and node.op_type == "Conv":
            weights = node.inputs[1]
            tensor = None if weights is None else weights.const_value
            return None if tensor is None else int(tensor.numpy().shape[0])
        if not _is_elementwise(node):
            return None
        value = next((x for x in node.inputs if x is not None and not is_one_number(x)), None)
    return None


def _sizes_of_split(node: ir.Node, channels: int) -> list[int]:
    """Return the channels of each result; empty: they are not known."""
    count = len(node.outputs)
    if len(node.inputs) > 1 and node.inputs[1] is not None:
        constant = constant_of(node.inputs[1])
        sizes = [] if constant is None else [int(size) for size in constant.numpy().ravel()]
    else:
        sizes = list(node.attributes.get_ints("split", [channels // count] * count))
    return sizes if len(sizes) == count else []


def _is_vector_of_channels(value: ir.Value, channels: int) -> bool:
    """Whether the value is a constant float32 [C, 1, 1] or [1, C, 1, 1] of finite numbers."""
    constant = constant_of(value)
    if constant is None or constant.dtype != ir.DataType.FLOAT:
        return False
    shape = tuple(constant.shape.numpy())
    return shape in ((channels, 1, 1), (1, channels, 1, 1)) and bool(np.all(np.isfinite(constant.numpy())))


class _Padding:
    """Upper bounds of the absolute values in the channels that pad the last block: they must stay finite."""

    def __init__(self, graph: ir.Graph) -> None:
        self._bounds: dict[ir.Value, float] = {}
        for node in graph:
            for value in node.outputs[:1]:
                self._bounds[value] = self._of_result(node)

    def of(self, value: ir.Value | None) -> float:
        """Return the bound; for padding of 0 it is 1."""
        if value is None:
            return 1.0
        if value.const_value is None:
            return self._bounds.get(value, 1.0)
        constant = constant_of(value)
        if constant is None:
            return math.inf
        if constant.size == 0:
            return 1.0
        largest = float(np.max(np.abs(constant.numpy().astype(np.float64))))
        return largest if math.isfinite(largest) else math.inf

    def _of_result(self, node: ir.Node) -> float:
        if not _is_elementwise(node):
            # A convolution's weights and bias are 0 there; what is added to it, and an activation of 0, need not be.
            return max(1.0, *(self.of(value) for value in (*node.inputs[:1], *node.inputs[3:]))) + 1.0
        if node.op_type in _OWN:
            return math.inf
        bounds = [self.of(value) for value in node.inputs]
        if node.op_type in _QUANTIZING:
            scale = node.inputs[_SCALE]
            constant = None if scale is None else constant_of(scale)
            return math.inf if constant is None else bounds[_SCALE] * _LARGEST_INTEGER * 2
        if node.op_type == "Mul":
            return math.prod(bounds)
        if node.op_type == "Div":
            return self._of_quotient(node, bounds[0])
        return sum(bounds) + 2.0

    @staticmethod
    def _of_quotient(node: ir.Node, bound: float) -> float:
        constant = None if node.inputs[1] is None else constant_of(node.inputs[1])
        if constant is None:
            return math.inf
        least = float(np.min(np.abs(constant.numpy().astype(np.float64)), initial=math.inf))
        return bound / least if least > 0 else math.inf


class _Writer:
    """Writes the blocked forms of the nodes of a plan, in the order of the graph."""

    def __init__(self, graph: ir.Graph, plan: _Plan, block: int) -> None:
        self._graph = graph
        self._plan = plan
        self._block = block
        self._names = Names(graph)
        self._moved = {node for part in plan.parts for node in part}
        exits = [plan.exits(part) for part in plan.parts]
        self._leaving = {value for each in exits for value in each.values}
        self._staying = {node for each in exits for node in each.staying}
        # Blocked tensors by the value in the graph that was, and by whether it is the view.
        self._forms: dict[tuple[ir.Value, bool], ir.Value] = {}
        self._made: dict[tuple[object, ...], Sequence[ir.Value]] = {}
        self._reordered: dict[ir.Value, ir.Value] = {}

    def write(self) -> None:
        for node in list(self._graph):
            if node in self._moved:
                self._move(node)
            elif _is_reorder(node, "ReorderInput"):
                blocked = self._form(node.inputs[0], viewed=False, at=node)
                if blocked is not None:
                    _replace_uses(node.outputs[0], blocked)
        # At the end: a node that is also kept outside reads values of the original graph.
        for value, reordered in self._reordered.items():
            _replace_uses(value, reordered, but=self._moved - self._staying)
        self._remove_unread()

    def _move(self, node: ir.Node) -> None:
        viewed = node in self._plan.viewed
        inputs = [self._operand(node, value, viewed=viewed) for value in node.inputs]
        attributes = list(node.attributes.values())
        domain, op_type = node.domain, node.op_type
        if not _is_elementwise(node) and op_type not in ("Concat", "Split"):
            domain = NCHWC_DOMAIN
            if (scales := scales_of(node)) is not None:
                op_type, inputs, attributes = "Upsample", inputs[:1], [ir.AttrInt64s("scales", [1, 1, *scales])]
                attributes += [ir.AttrString("mode", "nearest")]
                attributes += [ir.AttrString("coordinate_transformation_mode", "asymmetric")]
            elif is_over_all_places(node):
                op_type, inputs, attributes = "GlobalAveragePool", inputs[:1], []
        # Several DequantizeLinear of one tensor are not merged here: chains depend on that (see `dequantize_cse`).
        own = node if op_type == "DequantizeLinear" else None
        key = (domain, op_type, len(node.outputs), own, *inputs, *(str(attribute) for attribute in attributes))
        if key not in self._made:
            moved = ir.Node(domain, op_type, inputs, attributes, num_outputs=len(node.outputs))
            self._made[key] = self._insert(node, moved, node.outputs)
        for y, blocked in zip(node.outputs, self._made[key], strict=True):
            self._forms[y, viewed] = blocked
            if y in self._leaving:
                channels = ir.AttrInt64("channels", self._plan.channels(y) or 0)
                reorder = ir.Node(NCHWC_DOMAIN, "ReorderOutput", [self._form(y, viewed=False, at=node)], [channels])
                (self._reordered[y],) = self._insert(node, reorder, [y])

    def _insert(self, at: ir.Node, node: ir.Node, likes: Sequence[ir.Value]) -> Sequence[ir.Value]:
        """Insert a node whose results replace others; return these."""
        node.name = self._names.new(f"{at.name or at.op_type}{BLOCKED}")
        for value, like in zip(node.outputs, likes, strict=True):
            value.name = self._names.new(f"{like.name}{BLOCKED}")
            if like.dtype is not None:
                value.dtype = like.dtype
        self._graph.insert_before(at, node)
        return node.outputs

    def _operand(self, node: ir.Node, value: ir.Value | None, *, viewed: bool) -> ir.Value | None:
        if value is None or is_one_number(value):
            return value
        if value.const_value is not None and viewed:
            return self._vector(value)
        return self._form(value, viewed=viewed, at=node) or value  # the latter: the axes of a ReduceMean

    def _form(self, value: ir.Value | None, *, viewed: bool, at: ir.Node) -> ir.Value | None:
        """Return the blocked tensor of a value as [N, C, H, W], as ONNX Runtime has it, or as [N, C / b, H, W, b]."""
        if value is None:
            return None
        source = _blocked_source(value)
        if source is not None:
            self._forms[value, False] = source
        channels = self._plan.channels(value)
        other = self._forms.get((value, not viewed))
        if other is None and viewed and channels is None:
            channels, other = channels_of_gate(value), value  # its blocks lie as they did
        if (value, viewed) not in self._forms and other is not None and channels is not None:
            blocks = -(-channels // self._block)
            # 0: as the dimension there, which is the same one both ways.
            target = [0, blocks, 0, 0, self._block] if viewed else [0, blocks * self._block, 0, 0]
            self._forms[value, viewed] = self._reshape(other, target, at, value)
        return self._forms.get((value, viewed))

    def _reshape(self, x: ir.Value, target: list[int], at: ir.Node, like: ir.Value) -> ir.Value:
        shape = self._constant("nchwc_view", np.array(target, np.int64))
        (viewed,) = self._insert(at, ir.Node("", "Reshape", [x, shape]), [like])
        return viewed

    def _vector(self, value: ir.Value) -> ir.Value:
        """Return a constant for each channel in the view's form; padding has the factor and summand 1."""
        assert value.const_value is not None
        vector = value.const_value.numpy().ravel()
        padded = np.ones(-(-vector.size // self._block) * self._block, np.float32)
        padded[: vector.size] = vector
        return self._constant(f"{value.name}{BLOCKED}", padded.reshape(1, -1, 1, 1, self._block))

    def _constant(self, name: str, array: np.ndarray) -> ir.Value:
        tensor = ir.tensor(array)
        value = ir.Value(
            name=self._names.new(name),
            type=ir.TensorType(tensor.dtype),
            shape=ir.Shape(array.shape),
            const_value=tensor,
        )
        self._graph.register_initializer(value)
        return value

    def _remove_unread(self) -> None:
        for node in reversed(list(self._graph)):
            if node not in self._moved and node.domain != NCHWC_DOMAIN:
                continue
            if not any(value.uses() or value.is_graph_output() for value in node.outputs):
                self._graph.remove(node, safe=True)


def _replace_uses(value: ir.Value, new: ir.Value, but: Container[ir.Node] = ()) -> None:
    """Let the readers of a value that are not excepted read another one, which a graph output then is named after."""
    for user, index in list(value.uses()):
        if user not in but and not _is_reorder(user, "ReorderInput"):
            user.replace_input_with(index, new)
    producer = new.producer()
    outputs = producer.graph.outputs if producer is not None and isinstance(producer.graph, ir.Graph) else []
    for index, output in enumerate(outputs):
        if output is value:
            new.shape, new.name, value.name = value.shape, value.name, new.name
            outputs[index] = new
