"""Concat in front of a chain and Split behind it at random, and what does not fit; tests/corpus/provider has cases.

ONNX Runtime with all fusions off runs the nodes as they are written: it says what the bits are.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import harness
import numpy as np
import onnx
import onnxruntime
import pytest
from checking import node_by_node
from hypothesis import given, settings
from hypothesis import strategies as st
from parsed_models import parse

from normfuse.meaning import Array

pytestmark = [pytest.mark.every_isa, pytest.mark.without_vnni]
EXAMPLES = settings().max_examples
F32 = np.float32
INTEGERS = ("uint8", "int8", "uint16", "int16")
Shape = tuple[int, ...]


def dequantized(x: str, y: str, index: int = 0) -> str:
    return f"{y} = DequantizeLinear({x}, s{index}, z) "


def pair(x: str, y: str, index: int = 0) -> str:
    return f"{y}q = QuantizeLinear({x}, s{index}, z) {dequantized(f'{y}q', y, index)}"


# Chains behind c, the Concat, to y.
CHAINS = {
    "a pair": pair("c", "y"),
    "a pair, an activation and a pair": f"{pair('c', 'd')} h = Relu(d) {pair('h', 'y', 1)}",
    "what is kept": f"q = QuantizeLinear(c, s0, z) {dequantized('q', 'd')} {dequantized('q', 'e')} f = Mul(d, one) "
    f"{pair('f', 'h', 1)} m = Mul(e, h) y = QuantizeLinear(m, s1, z)",
    "from integers": f"{dequantized('c', 'd')} f = Mul(d, one) y = QuantizeLinear(f, s1, z)",
}


@dataclass(frozen=True)
class Case:
    """Parts that differ along the axis, or one tensor; the chain behind them; the sizes of the parts of its result."""

    shapes: tuple[Shape, ...]
    axis: int
    chain: str
    stored: str
    sizes: tuple[int, ...] = ()

    @property
    def taken(self) -> set[str]:
        return ({"Concat"} if len(self.shapes) > 1 else set()) | ({"Split"} if self.sizes else set())

    @property
    def feeds(self) -> dict[str, Array]:
        generator, ends = np.random.default_rng(len(self.shapes)), np.iinfo(self.stored)
        names = [f"x{i}" for i in range(len(self.shapes))] if len(self.shapes) > 1 else ["c"]
        if self.chain != "from integers":
            return {n: generator.normal(0, 2, shape).astype(F32) for n, shape in zip(names, self.shapes, strict=True)}
        return {
            name: generator.integers(ends.min, ends.max, shape, endpoint=True).astype(self.stored)
            for name, shape in zip(names, self.shapes, strict=True)
        }

    def model(self, **more: Array) -> onnx.ModelProto:
        """c, which may be a Concat, the chain behind it to y, and the Split of that; what `more` has is constant."""
        ends = np.iinfo(self.stored)
        step, zero = 8 / 2**ends.bits, np.array((ends.max + ends.min + 1) // 2 + 3, self.stored)
        numbers = {"s0": np.array(step, F32), "s1": np.array(1.3 * step, F32), "z": zero, "one": np.array(1.1, F32)}
        types = {"from integers": (self.stored, self.stored), "what is kept": ("float", self.stored)}
        read, written = types.get(self.chain, ("float", "float"))
        inputs = ", ".join(f"{read}{list(x.shape)} {name}" for name, x in self.feeds.items() if name not in more)
        parts = ", ".join(f"y{i}" for i in range(len(self.sizes))) or "y"
        axis = f"<axis = {self.axis}>"
        nodes = f"c = Concat {axis} ({', '.join(self.feeds)}) " if len(self.shapes) > 1 else ""
        nodes += CHAINS[self.chain] + (f"{parts} = Split {axis} (y, sizes)" if self.sizes else "")
        outputs = ", ".join(f"{written} {name}" for name in parts.split(", "))
        constants = {**numbers, "sizes": np.array(self.sizes, np.int64), **more}
        return parse(f"g ({inputs}) => ({outputs}) {{ {nodes} }}", **constants)


def with_unknown_lengths(proto: onnx.ModelProto, axis: int) -> onnx.ModelProto:
    """The model that does not say how long its inputs are along the axis."""
    for each in proto.graph.input:
        each.type.tensor_type.shape.dim[axis].dim_param = f"n_{each.name}"
    return proto


def check(proto: onnx.ModelProto, feeds: dict[str, Array], taken: set[str]) -> None:
    """The bits of the nodes; which of Concat and Split are in the only group."""
    session = harness.create_session(proto, "ep")
    groups = harness.fused_types(session)
    assert len(groups) == 1
    assert {"Concat", "Split"} & set(groups[0]) == taken
    assert not taken & set(harness.cpu_types(session))
    expected, got = harness.run(node_by_node(proto), feeds), harness.run(session, feeds)
    for name, value in expected.items():
        np.testing.assert_array_equal(got[name], value)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    rank = draw(st.integers(1, 5))
    axis = draw(st.integers(-rank, rank - 1))
    shape = [draw(st.sampled_from([1, 1, 2, 3, 7])) for _ in range(rank)]
    lengths = draw(st.lists(st.sampled_from([1, 2, 5, 33]), min_size=1, max_size=4))
    cuts = draw(st.lists(st.integers(0, sum(lengths)), min_size=1 if len(lengths) == 1 else 0, max_size=3))
    ends = [0, *sorted(cuts), sum(lengths)]
    sizes = tuple(end - begin for begin, end in pairwise(ends)) if cuts else ()
    shapes = tuple(tuple(n if i == axis % rank else dim for i, dim in enumerate(shape)) for n in lengths)
    return Case(shapes, axis, draw(st.sampled_from(sorted(CHAINS))), draw(st.sampled_from(INTEGERS)), sizes)


@settings(max_examples=4 * EXAMPLES)
@given(case=cases(), knows_lengths=st.booleans())
def test_bits_of_the_nodes(case: Case, knows_lengths: bool) -> None:
    proto = case.model()
    check(proto if knows_lengths else with_unknown_lengths(proto, case.axis), case.feeds, case.taken)


def test_parts_without_elements() -> None:
    case = Case(((1, 4, 3), (1, 0, 3), (1, 2, 3)), 1, "a pair", "uint16")
    proto = with_unknown_lengths(case.model(), 1)
    check(proto, case.feeds, {"Concat"})
    empty = {name: value[:, :0] for name, value in case.feeds.items()}
    assert harness.run(harness.create_session(proto, "ep"), empty)["y"].shape == (1, 0, 3)


@pytest.mark.parametrize("empty", [(1, 0, 5), (0, 0, 0), (0, 0, 5)])
@pytest.mark.parametrize("first", [True, False])
def test_parts_of_length_0_need_not_fit(empty: Shape, first: bool) -> None:
    """As in ONNX Runtime: what a loop has gathered before its first turn."""
    case = Case(((1, 4, 3), (1, 4, 3)), 1, "a pair", "uint16")
    proto = case.model()
    for each in proto.graph.input:
        for k, dim in enumerate(each.type.tensor_type.shape.dim):
            dim.dim_param = f"{each.name}{k}"
    feeds = {**case.feeds, "x0" if first else "x1": np.zeros(empty, F32)}
    check(proto, feeds, {"Concat"})
    check(proto, {"x0": np.zeros(empty, F32), "x1": np.zeros((0, 0, 0), F32)}, {"Concat"})


def test_a_chain_of_constants() -> None:
    """It has neither parts nor a tensor that could have some."""
    case = Case(((1, 4, 3),), 1, "a pair", "uint16", (2, 2))
    proto = case.model(c=case.feeds["c"])
    options = harness.session_options("ep")
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = harness.create_session(proto, "ep", options=options)
    got, expected = harness.run(session, {}), harness.run(node_by_node(proto), {})
    for name, value in expected.items():
        np.testing.assert_array_equal(got[name], value)


def test_parts_that_do_not_fit() -> None:
    """An error that says so, as from ONNX Runtime's Concat."""
    case = Case(((1, 4, 3), (1, 4, 3)), 1, "a pair", "uint16")
    proto = with_unknown_lengths(case.model(), 2)
    session = harness.create_session(proto, "ep")
    assert "Concat" in harness.fused_types(session)[0]
    wrong = {"x0": np.zeros((1, 4, 3), F32), "x1": np.zeros((1, 4, 2), F32)}
    with pytest.raises(onnxruntime.capi.onnxruntime_pybind11_state.InvalidArgument, match=r"of Concat, \[1, 4, 2\]"):
        session.run(None, wrong)
    harness.run(session, case.feeds)


def test_sizes_that_do_not_fit() -> None:
    case = Case(((1, 6, 3),), 1, "a pair", "uint16", (2, 4))
    session = harness.create_session(with_unknown_lengths(case.model(), 1), "ep")
    assert "Split" in harness.fused_types(session)[0]
    with pytest.raises(onnxruntime.capi.onnxruntime_pybind11_state.InvalidArgument, match="of 6 of a dimension of 5"):
        session.run(None, {"c": np.zeros((1, 5, 3), F32)})
    harness.run(session, case.feeds)
