"""What is known about the values of one model while it is rewritten: types, shapes, constants, identity, order."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import onnx_ir as ir

from normfuse.graph_rewrites.engine.constants import Array, Constants, Dimension
from normfuse.graph_rewrites.engine.element_types import FLOAT_TYPES, integers_of
from normfuse.graph_rewrites.engine.inference import infer_types
from normfuse.graph_rewrites.engine.options import AS_GIVEN, RewriteOptions
from normfuse.graph_rewrites.engine.sites import Declined
from normfuse.graph_rewrites.engine.traversal import all_nodes

CASTS = ("Cast", "CastLike")
_CAST_TYPES = (*FLOAT_TYPES, ir.DataType.DOUBLE)
_WIDTH = {ir.DataType.FLOAT16: 1, ir.DataType.BFLOAT16: 1, ir.DataType.FLOAT: 2, ir.DataType.DOUBLE: 3}
# Relative error of a decimal constant once stored in the type: half a unit in the last place, and a little for
# exporters that write seven digits.
_TOLERANCE = {"float16": 1e-3, "bfloat16": 8e-3}
_DEFAULT_TOLERANCE = 1e-6
# Operators whose value is a function of their inputs and attributes alone, as far as duplicates of them occur.
_DUPLICATED = frozenset(
    {"Add", "Cast", "DequantizeLinear", "Div", "Mul", "Pow", "QuantizeLinear", "ReduceMean", "ReduceSum", "Reshape"}
    | {"Shape", "Sqrt", "Sub", "Unsqueeze"}
)
_MAX_SAME_DEPTH = 4
# ONNX Runtime knows these, but lets no custom operator have them.
_NOT_IN_CUSTOM_OPERATORS = integers_of(2)


def is_float(dtype: ir.DataType | None) -> bool:
    """True for the float types that the operators take."""
    return dtype in FLOAT_TYPES


def label(item: ir.Node | ir.Value) -> str:
    """Return what a message calls a node or value: its operator and name."""
    if isinstance(item, ir.Value):
        return f"'{item.name}'"
    return f"{item.op_type} '{name_of(item)}'"


def name_of(node: ir.Node) -> str:
    """Return the node's name, or its first output's where the exporter gave none."""
    return node.name or next((output.name for output in node.outputs if output.name), "")


def merged_shape(first: ir.Shape, second: ir.Shape) -> ir.Shape:
    """Return what is known of one shape from two sources: numbers before names, names of the first before others."""
    if len(first) != len(second):
        return first
    pairs = zip(first, second, strict=True)
    return ir.Shape(
        [p if isinstance(p, int) or (p.value is not None and not isinstance(q, int)) else q for p, q in pairs]
    )


def subgraphs(node: ir.Node) -> Iterator[tuple[str, ir.Graph]]:
    """Yield the node's subgraphs with the names of their attributes."""
    for name, attribute in node.attributes.items():
        if attribute.type == ir.AttributeType.GRAPH:
            yield name, attribute.as_graph()
        elif attribute.type == ir.AttributeType.GRAPHS:
            for number, graph in enumerate(attribute.as_graphs()):
                yield f"{name}[{number}]", graph


class Facts:
    """Answers about the values of one model. Nothing here changes the model."""

    def __init__(self, model: ir.Model, options: RewriteOptions = AS_GIVEN) -> None:
        self._model = model
        #: What is to become of the model.
        self.options = options
        self._inferred: Mapping[ir.Graph, Mapping[str, ir.Value]] = {}
        # What Shape nodes give.
        self._asked_for: dict[ir.Value, ir.Shape | None] = {}
        self._order: dict[ir.Node, float] = {}
        self._owner: dict[ir.Graph, ir.Node] = {}
        self._constants = Constants(model.ir_version, self.shape, self.dtype)
        #: Bodies of the model's own functions, which hold no initialisers.
        self.function_bodies = {function.graph for function in model.functions.values()}
        #: Opset imports of the graph that is being rewritten.
        self.opsets: dict[str, int] = model.graph.opset_imports

    def is_call(self, node: ir.Node) -> bool:
        """Whether a node calls one of the model's own functions, which ONNX Runtime writes out before it optimises."""
        return node.op_identifier() in self._model.functions

    # Types and shapes

    def dtype(self, value: ir.Value | None) -> ir.DataType | None:
        """Return the element type, from the model or by shape inference; None: unknown."""
        if value is None:
            return None
        if value.dtype is not None and value.dtype != ir.DataType.UNDEFINED:
            return value.dtype
        if value.const_value is not None:
            return value.const_value.dtype
        inferred = self._inference(value)
        return inferred.dtype if inferred is not None else None

    def shape(self, value: ir.Value | None) -> ir.Shape | None:
        """Return the shape, from the model or by shape inference; None: not even the rank is known."""
        if value is None:
            return None
        if value.const_value is not None:
            return ir.Shape(value.const_value.shape.numpy())
        shape = value.shape
        if shape is not None and shape.is_static():
            return shape
        if value in self._asked_for:
            return self._asked_for[value]
        inferred = self._inference(value)
        if inferred is not None and inferred.shape is not None:
            shape = inferred.shape if shape is None else merged_shape(shape, inferred.shape)
        if shape is None or not shape.is_static():
            return self._computed(value) or self._reshaped(value, shape) or shape
        return shape

    def _computed(self, value: ir.Value) -> ir.Shape | None:
        """Return the shape of a constant that small operators compute, whose arguments inference does not follow."""
        array = self.constant(value) if value.producer() is not None else None
        return None if array is None else ir.Shape(array.shape)

    def _reshaped(self, value: ir.Value, shape: ir.Shape | None) -> ir.Shape | None:
        """Return the shape behind a Reshape whose target is computed from shapes, as far as inference knows less."""
        node = value.producer()
        if node is None or node.op_type != "Reshape" or node.domain != "" or len(node.inputs) < 2:
            return None
        target = self.elements(node.inputs[1])
        if target is None or target.ndim != 1 or (shape is not None and len(shape) != target.size):
            return None
        sizes = ir.Shape([size if isinstance(size, int) and size > 0 else None for size in target])
        return sizes if shape is None else merged_shape(shape, sizes)

    def rank(self, value: ir.Value | None) -> int | None:
        """Return the number of dimensions, or None."""
        shape = self.shape(value)
        return None if shape is None else len(shape)

    def static_shape(self, value: ir.Value | None) -> tuple[int, ...] | None:
        """Return the shape if all its dimensions are known numbers."""
        shape = self.shape(value)
        if shape is None or not all(isinstance(dim, int) for dim in shape):
            return None
        return tuple(int(dim) for dim in shape)  # type: ignore[arg-type]

    def infer(self) -> None:
        """Find the types and shapes that the model does not give itself. To be called while the model is as it came."""
        self._inferred = infer_types(self._model)
        # In graph order, so that finding a shape never leads back through one Shape after the other.
        for home in (self._model.graph, *self.function_bodies):
            for node in all_nodes(home):
                if (
                    node.op_type in ("Shape", "Size")
                    and node.domain == ""
                    and node.inputs
                    and node.inputs[0] is not None
                ):
                    self._asked_for[node.inputs[0]] = self.shape(node.inputs[0])

    def _inference(self, value: ir.Value) -> ir.Value | None:
        table = self._inferred.get(value.graph) if value.graph is not None else None
        return table.get(value.name) if table is not None and value.name is not None else None

    def require_allowed(self, value: ir.Value, node: ir.Node) -> None:
        """Decline if the value, which `node` reads or writes, has a type that the target's form cannot have."""
        dtype = self.dtype(value)
        if "custom-op" in self.options.targets and dtype in _NOT_IN_CUSTOM_OPERATORS:
            what = "a custom operator of ONNX Runtime"
            raise Declined("unsupported_type", at=node, tensor=label(value), type=dtype, what=what)

    # Constants

    def constant(self, value: ir.Value | None) -> Array | None:
        """Return the value of a small constant, seen through Constant, Cast, Reshape ..., or None."""
        return self._constants.get(value)

    def elements(self, value: ir.Value | None) -> Array | None:
        """Return a tensor that is computed from shapes, None for each element that is not known; None: nothing is."""
        return self._constants.in_part(value)

    def dimensions(self, value: ir.Value) -> list[Dimension] | None:
        """Return a shape in which dimensions that are certainly the same are equal, as they are among `elements`."""
        return self._constants.dimensions(value)

    def is_constant(self, value: ir.Value | None) -> bool:
        """True for anything that does not depend on the model's inputs, large weights included."""
        return self._constants.is_constant(value)

    def constant_last(self, a: ir.Value, b: ir.Value) -> tuple[ir.Value, ir.Value]:
        """Return two operands, a constant one last: exporters write a bias or a scale on either side."""
        return (b, a) if self.is_constant(a) else (a, b)

    def scalar(self, value: ir.Value | None) -> float | None:
        """Return the value of a constant of one element, or None."""
        array = self.constant(value)
        if array is None or array.size != 1 or array.dtype.kind in "OSUb":
            return None
        return float(array.ravel()[0])

    def equals(self, value: ir.Value | None, expected: float) -> bool:
        """True for a constant of one element that is `expected`, up to the rounding of its type."""
        actual = self.scalar(value)
        if actual is None:
            return False
        array = self.constant(value)
        assert array is not None
        return math.isclose(actual, expected, rel_tol=_TOLERANCE.get(str(array.dtype), _DEFAULT_TOLERANCE))

    def all_equal(self, value: ir.Value | None, expected: float) -> bool:
        """True for a constant all of whose elements are exactly `expected`, even if their number is not known."""
        return self._constants.filled_with(value) == expected

    def clip_bounds(self, clip: ir.Node) -> tuple[float | None, float | None]:
        """Return between which numbers a Clip keeps what it reads, by inputs or attributes; None: it is not known."""
        given = [*clip.inputs[1:], None, None]
        ends = zip(given, ("min", "max"), (-math.inf, math.inf), strict=False)
        low, high = (
            clip.attributes.get_float(name, end) if value is None else self.scalar(value) for value, name, end in ends
        )
        return low, high

    # Which values are one

    def unwrap(self, value: ir.Value) -> ir.Value:
        """Follow nodes that give back the very same tensor: Identity, Dropout in inference, a cast to the same type."""
        while (node := value.producer()) is not None and self.transparent(node) and value.index() == 0:
            source = node.inputs[0]
            if source is None or source.graph is not value.graph:
                break
            if node.op_type in CASTS and self.dtype(source) != self.cast_target(node):
                break
            value = source
        return value

    def strip(self, value: ir.Value) -> ir.Value:
        """Follow nodes that give back the same tensor, or a wider copy of it."""
        while True:
            value = self.unwrap(value)
            node = value.producer()
            if node is None or node.op_type not in CASTS or node.domain != "" or not self._widens(node):
                return value
            assert node.inputs[0] is not None
            value = node.inputs[0]

    def _widens(self, cast: ir.Node) -> bool:
        source, target = self.dtype(cast.inputs[0]), self.cast_target(cast)
        return source in _WIDTH and target in _WIDTH and _WIDTH[source] < _WIDTH[target]

    def same(self, a: ir.Value | None, b: ir.Value | None, depth: int = _MAX_SAME_DEPTH) -> bool:
        """True if both are certainly the same tensor: one value, or computed twice in the same way (as ONNX Runtime
        and quantisers duplicate DequantizeLinear, and old exporters Sub).
        """
        if a is b:
            return True
        if a is None or b is None:
            return False
        if self.strip(a) is self.strip(b):
            return True
        p, q = self.constant(a), self.constant(b)
        if p is not None and q is not None:
            return p.dtype == q.dtype and p.shape == q.shape and bool((p == q).all())
        x, y = a.producer(), b.producer()
        return (
            depth > 0
            and x is not None
            and y is not None
            and x.op_type in _DUPLICATED
            and x.op_identifier() == y.op_identifier()
            and a.index() == b.index()
            and len(x.inputs) == len(y.inputs)
            and dict(x.attributes) == dict(y.attributes)
            and all(self.same(p, q, depth - 1) for p, q in zip(x.inputs, y.inputs, strict=True))
        )

    def cast_target(self, node: ir.Node) -> ir.DataType | None:
        """Return the type that a Cast or CastLike casts to."""
        if node.op_type == "CastLike":
            return self.dtype(node.inputs[1])
        return ir.DataType(node.attributes.get_int("to", 0))

    # Nodes that a chain may be seen through

    def transparent(self, node: ir.Node) -> bool:
        """True for a node that repeats its first input: Identity, Dropout in inference, a Cast between float types."""
        if node.domain != "":
            return False
        if node.op_type == "Identity":
            return True
        if node.op_type in CASTS:
            return self.cast_target(node) in _CAST_TYPES and self.dtype(node.inputs[0]) in (None, *_CAST_TYPES)
        if node.op_type == "Dropout":
            training = node.inputs[2] if len(node.inputs) > 2 else None
            return training is None or self.all_equal(training, 0)
        return False

    # Order

    def enter(self, graph: ir.Graph) -> None:
        """Note the order of a graph's nodes, and which of them hold subgraphs."""
        for index, node in enumerate(graph):
            self._order[node] = float(index)
            for _, subgraph in subgraphs(node):
                self._owner[subgraph] = node
                self.enter(subgraph)

    def order(self, node: ir.Node) -> float:
        """Return the node's place in its graph: a later node has a larger number."""
        return self._order[node]

    def place(self, node: ir.Node, order: float) -> None:
        """Note a new node's place."""
        self._order[node] = order

    def before(self, graph: ir.Graph, value: ir.Value) -> float:
        """Return the place in `graph` up to which the value is not there yet; -inf for outer values and inputs."""
        node = value.producer()
        return self._order[node] if node is not None and node.graph is graph else -math.inf

    def first_use(self, graph: ir.Graph, value: ir.Value, but: Sequence[ir.Node]) -> float:
        """Return the place in `graph` of the first consumer of the value other than `but`; inf where there is none."""
        return min((self._order[node] for node in self._users(graph, value, but)), default=math.inf)

    def first_consumer(self, graph: ir.Graph, values: Sequence[ir.Value], but: Sequence[ir.Node]) -> ir.Node:
        """Return the first node in `graph` that consumes one of the values, other than `but`."""
        return min((node for value in values for node in self._users(graph, value, but)), key=self._order.__getitem__)

    def _users(self, graph: ir.Graph, value: ir.Value, but: Sequence[ir.Node]) -> Iterator[ir.Node]:
        for consumer in value.consumers():
            if consumer in but:
                continue
            # A consumer in a subgraph counts as the node that holds the subgraph.
            node: ir.Node | None = consumer
            while node is not None and node.graph is not graph:
                node = self._owner.get(node.graph) if node.graph is not None else None
            if node is not None:
                yield node

    # Broadcasting

    def require_fits(self, parameter: ir.Value, x: ir.Value, what: str, degenerate_axes: Sequence[int] = ()) -> None:
        """Decline unless `parameter` broadcasts to `x`'s shape, from the last dimension, without enlarging it.

        An open dimension of x can only be taken for the parameter's at `degenerate_axes` (counted from the end, -1 is
        the last): the normalised ones, where a dimension of 1 would make the normalisation itself meaningless.

        Raises:
            Declined: with `shape_mismatch` or `unknown_type_or_rank`.
        """
        small, large = self.shape(parameter), self.shape(x)
        if small is not None and len(small) == 0:
            return
        if large is None or small is None:
            raise Declined("unknown_type_or_rank", tensor=label(x if large is None else parameter))
        if len(small) > len(large):
            raise Declined("shape_mismatch", tensor=f"{what} {label(parameter)}", shape=small, x_shape=large)
        for offset in range(1, len(small) + 1):
            p, d = small[-offset], large[-offset]
            if p == 1 or (p == d and (isinstance(p, int) or p.value is not None)):
                continue
            if isinstance(p, int) and isinstance(d, int):
                raise Declined("shape_mismatch", tensor=f"{what} {label(parameter)}", shape=small, x_shape=large)
            if isinstance(p, int) and -offset in degenerate_axes:
                continue
            raise Declined(
                "unknown_type_or_rank", tensor=f"dimension {-offset} of {label(x if isinstance(p, int) else parameter)}"
            )
