"""Random graphs of the table's operators, with chains among them, as one island against float64."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import harness
import numpy as np
import onnx
from directml_islands import doubled, in_double, session_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from normfuse.meaning import Array

UNARY = ("Neg", "Abs", "Sin", "Cos", "Tanh", "Sigmoid", "Relu")
BINARY = ("Add", "Sub", "Mul", "Min", "Max")
REDUCED = ("ReduceMean", "ReduceSum", "ReduceMax")
MOST_ELEMENTS = 3000
LARGEST = 100.0  # products of larger numbers are left out: their rounding errors are of their own size


@dataclasses.dataclass
class Graph:
    """Nodes drawn so far, and what each of their values is in float64."""

    draw: Callable[[Any], Any]
    generator: np.random.Generator
    nodes: list[onnx.NodeProto] = dataclasses.field(default_factory=list)
    constants: dict[str, Array] = dataclasses.field(default_factory=dict)
    conditions: dict[str, Array] = dataclasses.field(default_factory=dict)
    inputs: dict[str, Array] = dataclasses.field(default_factory=dict)
    values: dict[str, Array] = dataclasses.field(default_factory=dict)

    def pick(self, most: int) -> int:
        return int(self.draw(st.integers(0, most - 1)))

    def value(self) -> str:
        """A value so far; those made last come first."""
        return list(self.values)[-1 - min(self.pick(4), len(self.values) - 1)]

    def constant(self, values: Any) -> str:
        """Floats between -2 and 2 of a shape, or integers."""
        array = self.floats(values) if isinstance(values, tuple) else np.asarray(values)
        name = f"c{len(self.constants)}"
        self.constants[name] = array
        return name

    def floats(self, shape: tuple[int, ...]) -> Array:
        return np.asarray(self.generator.uniform(-2, 2, shape).astype(np.float32))

    def add(self, op: str, *inputs: str, **attributes: Any) -> bool:
        """Unless the result would have more elements, or be larger, than a test can stand."""
        name = f"v{len(self.nodes)}"
        node = helper.make_node(op, inputs, [name], **attributes)
        feeds = {each: doubled({**self.values, **self.constants, **self.conditions}[each]) for each in inputs}
        (result,) = in_double(harness.build_model([node], feeds, {name: TensorProto.DOUBLE}, opset=20), feeds)
        if result.size > MOST_ELEMENTS or result.ndim > 6 or np.abs(result).max() > LARGEST:
            return False
        self.nodes.append(node)
        self.values[name] = result
        return True

    def add_input(self) -> None:
        name = f"x{len(self.inputs)}"
        self.inputs[name] = self.floats(tuple(1 + self.pick(5) for _ in range(self.pick(5))))
        self.values[name] = doubled(self.inputs[name])


def add_unary(graph: Graph, x: str) -> None:
    graph.add(UNARY[graph.pick(len(UNARY))], x)


def add_binary(graph: Graph, x: str) -> None:
    """Of two values, or of one and a constant that broadcasts to it, or to which it broadcasts."""
    y, shape = graph.value(), graph.values[x].shape
    try:
        np.broadcast_shapes(shape, graph.values[y].shape)
    except ValueError:
        y = graph.constant(tuple(size if graph.pick(2) else 1 for size in shape)[graph.pick(3) :])
    graph.add(BINARY[graph.pick(len(BINARY))], x, y)


def add_product(graph: Graph, x: str) -> None:
    graph.add("MatMul", x, graph.constant((graph.values[x].shape[-1], 1 + graph.pick(5))))


def add_attention(graph: Graph, x: str) -> None:
    """A tensor's product with itself, transposed."""
    rank = graph.values[x].ndim
    if rank > 1 and graph.add("Transpose", x, perm=[*range(rank - 2), rank - 1, rank - 2]):
        graph.add("MatMul", x, list(graph.values)[-1])


def add_transpose(graph: Graph, x: str) -> None:
    graph.add("Transpose", x, perm=graph.draw(st.permutations(range(graph.values[x].ndim))))


def add_reshape(graph: Graph, x: str) -> None:
    shape, size = graph.values[x].shape, graph.values[x].size
    to = [[-1], [size, 1], [1, *shape], [*shape[:-2], -1]][graph.pick(4)]
    graph.add("Reshape", x, graph.constant(to))


def add_slice(graph: Graph, x: str) -> None:
    axis = graph.pick(graph.values[x].ndim)
    at = graph.pick(graph.values[x].shape[axis]), 2**62, axis, 1 + graph.pick(3)
    graph.add("Slice", x, *(graph.constant([each]) for each in at))


def add_concat(graph: Graph, x: str) -> None:
    graph.add("Concat", x, x, axis=graph.pick(graph.values[x].ndim))


def add_gather(graph: Graph, x: str) -> None:
    axis = graph.pick(graph.values[x].ndim)
    indices = [graph.pick(graph.values[x].shape[axis]) for _ in range(1 + graph.pick(3))]
    graph.add("Gather", x, graph.constant(indices), axis=axis)


def add_reduction(graph: Graph, x: str) -> None:
    if axes := [axis for axis in range(graph.values[x].ndim) if graph.pick(2)]:
        graph.add(REDUCED[graph.pick(len(REDUCED))], x, graph.constant(axes), keepdims=graph.pick(2))


def add_pad(graph: Graph, x: str) -> None:
    graph.add("Pad", x, graph.constant([graph.pick(3) for _ in range(2 * graph.values[x].ndim)]))


def add_choice(graph: Graph, x: str) -> None:
    """By an input of the graph, which no rounding touches."""
    name = list(graph.inputs)[graph.pick(len(graph.inputs))]
    try:
        np.broadcast_shapes(graph.values[x].shape, graph.inputs[name].shape)
    except ValueError:
        return
    condition = f"b{len(graph.nodes)}"
    graph.conditions[condition] = graph.inputs[name] > 0.5
    if graph.add("Where", condition, x, graph.constant(())):
        bound = graph.constant(np.array(0.5, np.float32))
        graph.nodes.insert(-1, helper.make_node("Greater", [name, bound], [condition]))


def add_normalization(graph: Graph, x: str) -> None:
    """A chain."""
    graph.add("LayerNormalization", x, graph.constant(graph.values[x].shape[-1:]), epsilon=1.0)


def add_softmax(graph: Graph, x: str) -> None:
    graph.add("Softmax", x)


STEPS = [
    add_unary,
    add_binary,
    add_product,
    add_attention,
    add_transpose,
    add_reshape,
    add_slice,
    add_concat,
    add_gather,
    add_reduction,
    add_pad,
    add_choice,
    add_normalization,
    add_softmax,
]


def drawn(data: st.DataObject) -> Graph:
    graph = Graph(data.draw, np.random.default_rng(data.draw(st.integers(0, 2**32 - 1))))
    for _ in range(1 + graph.pick(2)):
        graph.add_input()
    for _ in range(4 + graph.pick(12)):
        step, x = STEPS[graph.pick(len(STEPS))], graph.value()
        if graph.values[x].ndim or step in (add_unary, add_binary, add_reshape, add_choice):
            step(graph, x)
    return graph


def model_of(graph: Graph) -> onnx.ModelProto:
    """Its last values are outputs; dimensions of its inputs are open."""
    made = [name for name in graph.values if name not in graph.inputs][-3:]
    shapes = {name: [f"{name}_{i}" for i in range(x.ndim)] for name, x in graph.values.items()}
    outputs = dict.fromkeys(made, TensorProto.FLOAT)
    return harness.build_model(graph.nodes, graph.inputs, outputs, graph.constants, opset=20, shapes=shapes)


@settings(suppress_health_check=list(HealthCheck), deadline=None, max_examples=150)
@given(data=st.data())
def test_random_islands(fake: dict[str, str], data: st.DataObject) -> None:
    graph = drawn(data)
    if not graph.nodes:
        return
    model = model_of(graph)
    session = session_of(model, fake)
    for _ in range(2):  # compiled, and as it was compiled
        results = session.run(None, graph.inputs)
        for output, result in zip(model.graph.output, results, strict=True):
            expected = graph.values[output.name]
            assert result.shape == expected.shape
            np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-4 * (1 + np.abs(expected).max()))
