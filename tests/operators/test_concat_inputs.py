"""A Concat in front of a chain: the chain reads its parts where they lie, and gives the bits of the nodes.

ONNX Runtime with all optimisations off runs the nodes as they are written: it says what the bits are.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import harness
import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper
from test_chains_of_pairs import node_by_node
from test_claims import session_and_report

pytestmark = [pytest.mark.every_isa, pytest.mark.without_vnni]
EXAMPLES = settings().max_examples
F32 = np.float32
INTEGERS = ("uint8", "int8", "uint16", "int16")
Shape = tuple[int, ...]

# Chains behind c, the Concat, to y: nodes as (operator, inputs, output).
PAIR = [("QuantizeLinear", "c s0 z", "q"), ("DequantizeLinear", "q s0 z", "y")]
CHAINS: dict[str, list[tuple[str, str, str]]] = {
    "a pair": PAIR,
    "a pair, an activation and a pair": [
        ("QuantizeLinear", "c s0 z", "q"),
        ("DequantizeLinear", "q s0 z", "d"),
        ("Relu", "d", "h"),
        ("QuantizeLinear", "h s1 z", "r"),
        ("DequantizeLinear", "r s1 z", "y"),
    ],
    "what is kept": [
        ("QuantizeLinear", "c s0 z", "q"),
        ("DequantizeLinear", "q s0 z", "d"),
        ("DequantizeLinear", "q s0 z", "e"),
        ("Mul", "d one", "f"),
        ("QuantizeLinear", "f s1 z", "g"),
        ("DequantizeLinear", "g s1 z", "h"),
        ("Mul", "e h", "m"),
        ("QuantizeLinear", "m s1 z", "y"),
    ],
    "from integers": [
        ("DequantizeLinear", "c s0 z", "d"),
        ("Mul", "d one", "f"),
        ("QuantizeLinear", "f s1 z", "y"),
    ],
}


@dataclass(frozen=True)
class Case:
    """Parts that differ along the axis, and the chain behind them."""

    shapes: tuple[Shape, ...]
    axis: int
    chain: str
    stored: str

    @property
    def feeds(self) -> dict[str, np.ndarray[Any, Any]]:
        generator, kind = np.random.default_rng(len(self.shapes)), np.dtype(self.stored)
        if self.chain != "from integers":
            return {f"x{i}": generator.normal(0, 2, shape).astype(F32) for i, shape in enumerate(self.shapes)}
        ends = np.iinfo(kind)
        return {
            f"x{i}": generator.integers(ends.min, ends.max, shape, endpoint=True).astype(kind)
            for i, shape in enumerate(self.shapes)
        }

    def model(self) -> onnx.ModelProto:
        return concat_model(self, CHAINS[self.chain])


def constants(stored: str) -> dict[str, np.ndarray[Any, Any]]:
    kind = np.dtype(stored)
    middle, step = (np.iinfo(kind).max + np.iinfo(kind).min + 1) // 2, 8 / 2 ** np.iinfo(kind).bits
    numbers = {"s0": np.array(step, F32), "s1": np.array(1.3 * step, F32), "z": np.array(middle + 3, kind)}
    return {**numbers, "one": np.array(1.1, F32), "part": np.ones((1, 1, 1, 4), F32)}


def concat_model(
    case: Case, chain: list[tuple[str, str, str]], outputs: tuple[str, ...] = ("y",), **more: np.ndarray[Any, Any]
) -> onnx.ModelProto:
    """The parts' Concat, c, and the chain behind it."""
    nodes = [helper.make_node("Concat", [f"x{i}" for i in range(len(case.shapes))], ["c"], name="c", axis=case.axis)]
    nodes += [helper.make_node(op, inputs.split(), [output], name=output) for op, inputs, output in chain]
    read = {name for each in nodes for name in each.input}
    infos = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(each.dtype), each.shape)
        for name, each in case.feeds.items()
        if name not in more
    ]
    floats = chain[-1][0] != "QuantizeLinear"
    code = TensorProto.FLOAT if floats else helper.np_dtype_to_tensor_dtype(np.dtype(case.stored))
    results = [helper.make_tensor_value_info(name, code, None) for name in outputs]
    known = {**constants(case.stored), **more}
    initializers = [harness.initializer(name, value) for name, value in known.items() if name in read]
    graph = helper.make_graph(nodes, "g", infos, results, initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def with_unknown_lengths(proto: onnx.ModelProto, axis: int) -> onnx.ModelProto:
    """The model that does not say how long its inputs are along the axis."""
    for each in proto.graph.input:
        each.type.tensor_type.shape.dim[axis].dim_param = f"n_{each.name}"
    return proto


def check(proto: onnx.ModelProto, feeds: dict[str, np.ndarray[Any, Any]], *, taken: bool) -> None:
    """The bits of the nodes; whether the Concat is in the only group."""
    session = harness.create_session(proto, "ep")
    groups = harness.fused_types(session)
    assert len(groups) == 1
    assert ("Concat" in groups[0]) == taken
    assert ("Concat" in harness.cpu_types(session)) != taken
    expected, got = node_by_node(proto, feeds), harness.run(session, feeds)
    for name, value in expected.items():
        np.testing.assert_array_equal(got[name], value)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    rank = draw(st.integers(1, 5))
    axis = draw(st.integers(-rank, rank - 1))
    shape = [draw(st.sampled_from([1, 1, 2, 3, 7])) for _ in range(rank)]
    lengths = draw(st.lists(st.sampled_from([1, 2, 5, 33]), min_size=2, max_size=4))
    shapes = tuple(tuple(n if i == axis % rank else dim for i, dim in enumerate(shape)) for n in lengths)
    return Case(shapes, axis, draw(st.sampled_from(sorted(CHAINS))), draw(st.sampled_from(INTEGERS)))


@settings(max_examples=4 * EXAMPLES)
@given(case=cases(), knows_lengths=st.booleans())
def test_bits_of_the_nodes(case: Case, knows_lengths: bool) -> None:
    proto = case.model()
    check(proto if knows_lengths else with_unknown_lengths(proto, case.axis), case.feeds, taken=True)


def test_parts_without_elements() -> None:
    case = Case(((1, 4, 3), (1, 0, 3), (1, 2, 3)), 1, "a pair", "uint16")
    proto = with_unknown_lengths(case.model(), 1)
    check(proto, case.feeds, taken=True)
    empty = {name: value[:, :0] for name, value in case.feeds.items()}
    assert harness.run(harness.create_session(proto, "ep"), empty)["y"].shape == (1, 0, 3)


@pytest.mark.parametrize("threads", [1, 2])
def test_large_parts(threads: int) -> None:
    """Two images each, on several threads; parts begin anywhere in a line of the cache."""
    case = Case(((2, 3, 101, 103), (2, 5, 101, 103)), 1, "a pair, an activation and a pair", "uint16")
    options = harness.session_options("ep")
    options.intra_op_num_threads = threads
    session = harness.create_session(case.model(), "ep", options=options)
    assert "Concat" in harness.fused_types(session)[0]
    got = harness.run(session, case.feeds)["y"]
    np.testing.assert_array_equal(got, node_by_node(case.model(), case.feeds)["y"])


def test_one_tensor_twice() -> None:
    case = Case(((1, 4, 3), (1, 4, 3)), 1, "a pair", "int8")
    proto = case.model()
    proto.graph.node[0].input[1] = "x0"
    del proto.graph.input[1]
    check(proto, {"x0": case.feeds["x0"]}, taken=True)


FOUR = ((1, 4, 3, 4), (1, 2, 3, 4))
ALONE = Case(FOUR, 1, "a pair", "uint16")
MULTIPLIED = [
    ("QuantizeLinear", "c s0 z", "q"),
    ("DequantizeLinear", "q s0 z", "d"),
    ("Mul", "d part", "m"),
    ("QuantizeLinear", "m s1 z", "y"),
]
OF_CHANNELS = [("QuantizeLinear", "c sc zc", "q"), ("DequantizeLinear", "q sc zc", "y")]
CHANNELS = {"sc": np.linspace(1e-4, 2e-4, 6, dtype=F32), "zc": np.full(6, 32000, np.uint16)}
LEFT: dict[str, onnx.ModelProto] = {
    "another reader": concat_model(ALONE, [("Abs", "c", "a"), *PAIR], ("y", "a")),
    "a graph output": concat_model(ALONE, PAIR, ("y", "c")),
    "a constant part": concat_model(ALONE, PAIR, x1=ALONE.feeds["x1"]),
    "a scale for each channel": concat_model(ALONE, OF_CHANNELS, **CHANNELS),
    "an operand that varies": concat_model(ALONE, MULTIPLIED),
}


@pytest.mark.parametrize("why", LEFT)
def test_left_alone(why: str) -> None:
    inputs = {each.name for each in LEFT[why].graph.input}
    check(LEFT[why], {name: value for name, value in ALONE.feeds.items() if name in inputs}, taken=False)


@pytest.mark.parametrize(
    ("shapes", "axis", "taken"),
    [
        (((1, 32, 40, 40),) * 2, 1, True),
        (((4, 32, 40, 40),) * 2, 1, True),
        (((1, 64, 2, 400),) * 8, 1, True),
        (((64, 40, 40, 20),) * 2, 3, False),
        (((1, 1, 1024),) * 64, 1, False),
    ],
)
def test_taken_where_it_gains(shapes: tuple[Shape, ...], axis: int, taken: bool, tmp_path: Path) -> None:
    """Parts that take turns often are joined by ONNX Runtime, which costs less than a call for each."""
    case = Case(shapes, axis, "a pair, an activation and a pair", "uint16")
    session, report = session_and_report(case.model(), tmp_path, claim="profitable")
    assert ("Concat" in harness.fused_types(session)[0]) == taken
    claimed = [line for line in report if line["claimed"]]
    assert len(claimed) == 1
    assert claimed[0]["description"].startswith("Concat -> Quantize") == taken
    assert ("c" in claimed[0]["nodes"]) == taken


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
