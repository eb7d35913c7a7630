"""Random graphs of the table's operators, with chains among them, as one island against float64."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import harness
import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from oracle import Array

UNARY: dict[str, Callable[[Array], Array]] = {
    "Neg": np.negative,
    "Abs": np.abs,
    "Sin": np.sin,
    "Cos": np.cos,
    "Tanh": np.tanh,
    "Sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "Relu": lambda x: np.maximum(x, 0),
}
BINARY: dict[str, Callable[[Array, Array], Array]] = {
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Min": np.minimum,
    "Max": np.maximum,
}
REDUCED: dict[str, Callable[..., Array]] = {"ReduceMean": np.mean, "ReduceSum": np.sum, "ReduceMax": np.max}
MOST_ELEMENTS = 3000
LARGEST = 100.0  # products of larger numbers are left out: their rounding errors are of their own size


@dataclasses.dataclass
class Graph:
    """Nodes drawn so far, and what each of their values is in float64."""

    draw: Callable[[Any], Any]
    generator: np.random.Generator
    nodes: list[onnx.NodeProto] = dataclasses.field(default_factory=list)
    constants: list[onnx.TensorProto] = dataclasses.field(default_factory=list)
    inputs: dict[str, Array] = dataclasses.field(default_factory=dict)
    values: dict[str, Array] = dataclasses.field(default_factory=dict)

    def pick(self, most: int) -> int:
        return int(self.draw(st.integers(0, most - 1)))

    def value(self) -> str:
        """A value so far; those made last come first."""
        return list(self.values)[-1 - min(self.pick(4), len(self.values) - 1)]

    def constant(self, array: Array) -> str:
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(array, name))
        return name

    def ints(self, *values: int) -> str:
        return self.constant(np.array(values, np.int64))

    def add(self, op: str, inputs: list[str], result: Array, **attributes: Any) -> None:
        """Unless the result would have more elements, or be larger, than a test can stand."""
        if result.size > MOST_ELEMENTS or result.ndim > 6 or np.abs(result).max() > LARGEST:
            return
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [name], **attributes))
        self.values[name] = result

    def add_input(self) -> None:
        shape = [1 + self.pick(5) for _ in range(self.pick(5))]
        name = f"x{len(self.inputs)}"
        self.inputs[name] = np.asarray(self.generator.uniform(-2, 2, shape).astype(np.float32))
        self.values[name] = self.inputs[name].astype(np.float64)


def add_unary(graph: Graph) -> None:
    op, x = list(UNARY)[graph.pick(len(UNARY))], graph.value()
    graph.add(op, [x], UNARY[op](graph.values[x]))


def add_binary(graph: Graph) -> None:
    """Of two values, or of one and a constant that broadcasts to it, or to which it broadcasts."""
    op, x, y = list(BINARY)[graph.pick(len(BINARY))], graph.value(), graph.value()
    try:
        np.broadcast_shapes(graph.values[x].shape, graph.values[y].shape)
    except ValueError:
        shape = [size if graph.pick(2) else 1 for size in graph.values[x].shape][graph.pick(3) :]
        array = np.asarray(graph.generator.uniform(-2, 2, shape).astype(np.float32))
        y, second = graph.constant(array), array.astype(np.float64)
    else:
        second = graph.values[y]
    graph.add(op, [x, y], BINARY[op](graph.values[x], second))


def add_product(graph: Graph) -> None:
    x = graph.value()
    if graph.values[x].ndim == 0:
        return
    w = np.asarray(graph.generator.uniform(-1, 1, (graph.values[x].shape[-1], 1 + graph.pick(5))).astype(np.float32))
    graph.add("MatMul", [x, graph.constant(w)], graph.values[x] @ w.astype(np.float64))


def add_attention(graph: Graph) -> None:
    """A tensor's product with itself, transposed."""
    x = graph.value()
    value = graph.values[x]
    if value.ndim < 2:
        return
    order = [*range(value.ndim - 2), value.ndim - 1, value.ndim - 2]
    turned = value.transpose(order)
    graph.add("Transpose", [x], turned, perm=order)
    if np.array_equal(graph.values[list(graph.values)[-1]], turned):
        graph.add("MatMul", [x, list(graph.values)[-1]], value @ turned)


def add_transpose(graph: Graph) -> None:
    x = graph.value()
    order = [int(i) for i in graph.draw(st.permutations(range(graph.values[x].ndim)))]
    if order:
        graph.add("Transpose", [x], graph.values[x].transpose(order), perm=order)


def add_reshape(graph: Graph) -> None:
    x = graph.value()
    value = graph.values[x]
    to = [(-1,), (value.size, 1), (1, *value.shape), (*value.shape[:-2], -1) if value.ndim > 1 else (-1,)][
        graph.pick(4)
    ]
    graph.add("Reshape", [x, graph.ints(*to)], value.reshape(to))


def add_slice(graph: Graph) -> None:
    x = graph.value()
    value = graph.values[x]
    if value.ndim == 0:
        return
    axis = graph.pick(value.ndim)
    start, step = graph.pick(value.shape[axis]), 1 + graph.pick(3)
    at = (np.s_[:],) * axis + (np.s_[start::step],)
    inputs = [graph.ints(start), graph.ints(2**62), graph.ints(axis), graph.ints(step)]
    graph.add("Slice", [x, *inputs], value[at])


def add_concat(graph: Graph) -> None:
    x = graph.value()
    value = graph.values[x]
    if value.ndim == 0:
        return
    axis = graph.pick(value.ndim)
    graph.add("Concat", [x, x], np.concatenate([value, value], axis), axis=axis)


def add_gather(graph: Graph) -> None:
    x = graph.value()
    value = graph.values[x]
    if value.ndim == 0:
        return
    axis = graph.pick(value.ndim)
    indices = [graph.pick(value.shape[axis]) for _ in range(1 + graph.pick(3))]
    graph.add("Gather", [x, graph.ints(*indices)], value.take(indices, axis), axis=axis)


def add_reduction(graph: Graph) -> None:
    op, x = list(REDUCED)[graph.pick(len(REDUCED))], graph.value()
    value = graph.values[x]
    axes = [axis for axis in range(value.ndim) if graph.pick(2)]
    if not axes:
        return
    keep = bool(graph.pick(2))
    made = np.asarray(REDUCED[op](value, axis=tuple(axes), keepdims=keep))
    graph.add(op, [x, graph.ints(*axes)], made, keepdims=int(keep))


def add_pad(graph: Graph) -> None:
    x = graph.value()
    value = graph.values[x]
    if value.ndim == 0:
        return
    pads = [(graph.pick(3), graph.pick(3)) for _ in value.shape]
    behind = [*(before for before, _ in pads), *(after for _, after in pads)]
    graph.add("Pad", [x, graph.ints(*behind)], np.pad(value, pads))


def add_choice(graph: Graph) -> None:
    """By an input of the graph, which no rounding touches."""
    x, name = graph.value(), list(graph.inputs)[graph.pick(len(graph.inputs))]
    try:
        np.broadcast_shapes(graph.values[x].shape, graph.inputs[name].shape)
    except ValueError:
        return
    bound = np.array(0.5, np.float32)
    condition = f"b{len(graph.nodes)}"
    graph.nodes.append(helper.make_node("Greater", [name, graph.constant(bound)], [condition]))
    made = np.where(graph.inputs[name] > bound, graph.values[x], 0.25)
    before = len(graph.nodes)
    graph.add("Where", [condition, x, graph.constant(np.array(0.25, np.float32))], made)
    if len(graph.nodes) == before:
        graph.nodes.pop()


def add_normalization(graph: Graph) -> None:
    """A chain."""
    x = graph.value()
    value = graph.values[x]
    if value.ndim == 0:
        return
    scale = np.asarray(graph.generator.uniform(-2, 2, value.shape[-1:]).astype(np.float32))
    centred = value - value.mean(-1, keepdims=True)
    made = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1) * scale.astype(np.float64)
    graph.add("LayerNormalization", [x, graph.constant(scale)], made, epsilon=1.0)


def add_softmax(graph: Graph) -> None:
    x = graph.value()
    value = graph.values[x]
    if value.ndim == 0:
        return
    powers = np.exp(value - value.max(-1, keepdims=True))
    graph.add("Softmax", [x], powers / powers.sum(-1, keepdims=True))


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
        STEPS[graph.pick(len(STEPS))](graph)
    return graph


def model_of(graph: Graph) -> onnx.ModelProto:
    """Its last values are outputs; dimensions of its inputs are open."""
    made = [name for name in graph.values if name not in graph.inputs][-3:]
    inputs = [
        harness.value_info(name, TensorProto.FLOAT, [f"{name}_{i}" for i in range(x.ndim)])
        for name, x in graph.inputs.items()
    ]
    outputs = [harness.value_info(name, TensorProto.FLOAT, [None] * graph.values[name].ndim) for name in made]
    proto = helper.make_graph(graph.nodes, "g", inputs, outputs, graph.constants)
    return helper.make_model(proto, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


@settings(suppress_health_check=list(HealthCheck), deadline=None, max_examples=150)
@given(data=st.data())
def test_random_islands(fake: dict[str, str], data: st.DataObject) -> None:
    graph = drawn(data)
    if not graph.nodes:
        return
    model = model_of(graph)
    session = harness.create_session(model, "ep", backend="directml", claim="all", **fake)
    for _ in range(2):  # compiled, and as it was compiled
        results = session.run(None, graph.inputs)
        for output, result in zip(model.graph.output, results, strict=True):
            expected = graph.values[output.name]
            assert result.shape == expected.shape
            np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-4 * (1 + np.abs(expected).max()))


@pytest.mark.parametrize("shape", [(0, 4), (3, 0)])
def test_no_elements(shape: tuple[int, ...], fake: dict[str, str]) -> None:
    """An error of the call that says so; the session goes on."""
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["": 20]>
        g (float[N, M] x) => (float[N, M] y) { n = Neg(x) t = Transpose(n) p = MatMul(n, t) y = MatMul(p, n) }""")
    session = harness.create_session(model, "ep", backend="directml", claim="all", **fake)
    with pytest.raises(Exception, match=r"a dimension of 0.*has no CPU path; use backend=cpu"):
        session.run(None, {"x": np.zeros(shape, np.float32)})
    x = np.random.default_rng(1).normal(size=(3, 4)).astype(np.float32)
    n = -x.astype(np.float64)
    np.testing.assert_allclose(session.run(None, {"x": x})[0], n @ n.T @ n, rtol=1e-5, atol=1e-5)


def test_nodes_that_nobody_reads(fake: dict[str, str]) -> None:
    """ONNX Runtime keeps them: alone they are no island, in one they are left out of the graph."""
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["": 20]>
        g (float[N, 4] x) => (float[N, 4] y) <float two = {2.0}> {
            n = Mul(x, two) dead = Sub(n, x) deader = Exp(dead) y = Add(n, x) alone = Div(two, x) }""")
    session = harness.create_session(model, "ep", backend="directml", claim="all", **fake)
    assert len(harness.ep_groups(session)) == 1
    x = np.random.default_rng(2).normal(size=(3, 4)).astype(np.float32)
    for _ in range(2):
        np.testing.assert_allclose(session.run(None, {"x": x})[0], 3 * x, rtol=1e-6)


def test_a_slice_of_a_turned_vector(fake: dict[str, str]) -> None:
    """Whose dimension of 1 has another stride than a packed tensor's."""
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["": 20]>
        g (float[N, M] x) => (float[M, K] y)
            <int64[1] from = {3}, int64[1] to = {9}, int64[1] one = {1}, int64[1] step = {3}> {
            n = Neg(x) t = Transpose(n) y = Slice(t, from, to, one, step) }""")
    session = harness.create_session(model, "ep", backend="directml", claim="all", **fake)
    x = np.random.default_rng(3).normal(size=(5, 1)).astype(np.float32)
    np.testing.assert_array_equal(session.run(None, {"x": x})[0], -x.T[:, 3:9:3])
