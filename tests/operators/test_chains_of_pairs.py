"""Chains among quantised tensors: pairs of QuantizeLinear and DequantizeLinear, and what stands between them.

ONNX Runtime with all optimisations off runs the nodes as they are written: it says what the bits are.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import harness
import instruction_sets
import numpy as np
import onnx
import onnxruntime
import pytest
from checking import session_and_report
from onnx import parser

F32 = np.float32
SHAPE = (2, 8, 5, 6)
TENSOR = "float[2,8,5,6]"
TYPES = ("uint8", "int8", "uint16", "int16")


def numbers(*shape: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 1, shape).astype(F32)


def constants(stored: str) -> dict[str, np.ndarray]:
    kind = np.dtype(stored)
    middle = (np.iinfo(kind).max + np.iinfo(kind).min + 1) // 2
    step = 8 / 2 ** np.iinfo(kind).bits
    scales = {f"s{i}": np.array(step * (1 + 0.3 * i), F32) for i in range(5)}
    zeros = {f"z{i}": np.array(middle + 3 * i, kind) for i in range(5)}
    along = {"sc": np.linspace(step, 2 * step, SHAPE[1], dtype=F32), "zc": np.arange(middle, middle + 8).astype(kind)}
    integers = np.random.default_rng(9).integers(np.iinfo(kind).min, np.iinfo(kind).max, SHAPE[-1])
    channels = np.arange(middle, middle + 8).astype(kind).reshape(8, 1, 1)
    others = {
        "b": integers.astype(kind),
        "w": channels,
        "six": np.array(6, F32),
        "one": np.array(1, F32),
        "w3": np.array(middle + 40, kind),
    }
    floats = {"half": np.array(0.5, F32), "f": numbers(SHAPE[-1], seed=3), "k": numbers(1, 1, seed=4)}
    return {**scales, **zeros, **along, **others, **floats}


def model(graph: str, stored: str, **more: np.ndarray) -> onnx.ModelProto:
    text = f'<ir_version: 10, opset_import: ["": 21, "com.microsoft": 1]> g {graph.replace("STORED", stored)}'
    proto = parser.parse_model(text)
    named = {name for node in proto.graph.node for name in node.input} - {i.name for i in proto.graph.input}
    for name, array in {**constants(stored), **more}.items():
        if name in named:
            proto.graph.initializer.append(harness.initializer(name, array))
    return proto


def feeds_for(proto: onnx.ModelProto) -> dict[str, np.ndarray]:
    generator, feeds = np.random.default_rng(1), {}
    for each in proto.graph.input:
        kind = onnx.helper.tensor_dtype_to_np_dtype(each.type.tensor_type.elem_type)
        dims = each.type.tensor_type.shape.dim
        shape = [dim.dim_value for dim in dims]
        if kind == F32:
            feeds[each.name] = (2 * generator.standard_normal(shape)).astype(F32)
        else:
            feeds[each.name] = generator.integers(np.iinfo(kind).min, np.iinfo(kind).max, shape, endpoint=True).astype(
                kind
            )
    return feeds


def node_by_node(proto: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    options = harness.session_options("cpu")
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    return harness.run(harness.create_session(proto, options=options), feeds)


def pair(x: str, y: str, index: int = 1, attributes: str = "") -> str:
    return (
        f"{y}q = QuantizeLinear{attributes}({x}, s{index}, z{index})  "
        f"{y} = DequantizeLinear{attributes}({y}q, s{index}, z{index})\n"
    )


def read(quantised: str, y: str, index: int = 0) -> str:
    return f"{y} = DequantizeLinear({quantised}, s{index}, z{index})\n"


FLOAT, STORED = f"({TENSOR} X) => ({TENSOR} Y)", "(STORED[2,8,5,6] X) => (STORED[2,8,5,6] Y)"
TWO = "(STORED[2,8,5,6] X, STORED[2,8,5,6] R) => (STORED[2,8,5,6] Y)"
# graph with the nodes that become one
CHAINS: dict[str, str] = {
    "a pair alone": f"{FLOAT} {{ {pair('X', 'Y')} }}",
    "two pairs": f"{FLOAT} {{ {pair('X', 'a')} {pair('a', 'Y', 2)} }}",
    "a pair before an activation": f"{FLOAT} {{ {pair('X', 'a')} Y = Relu(a) }}",
    "a pair behind an activation": f"{FLOAT} {{ a = Relu(X) {pair('a', 'Y')} }}",
    "pairs around an activation": f"{FLOAT} {{ {pair('X', 'a')} h = LeakyRelu(a) {pair('h', 'Y', 2)} }}",
    "a sum of two": f"{TWO} {{ {read('X', 'd')} {read('R', 'e', 1)} s = Add(d, e) Y = QuantizeLinear(s, s2, z2) }}",
    "a product of two": f"{TWO} {{ {read('X', 'd')} {read('R', 'e', 1)} s = Mul(d, e) Y = QuantizeLinear(s, s2, z2) }}",
    "a quotient of two": f"{TWO} {{ {read('X', 'd')} {read('R', 'e', 1)} "
    "s = Div(d, e) Y = QuantizeLinear(s, s2, z2) }",
    "a sum of two, to floats": f"{TWO.replace('(STORED[2,8,5,6] Y)', f'({TENSOR} Y)')} "
    f"{{ {read('X', 'd')} {read('R', 'e', 1)} s = Add(d, e) {pair('s', 'Y', 2)} }}",
    "a residual, then a gate": f"{TWO} {{ {read('X', 'd')} {read('R', 'e', 1)} s = Add(d, e) {pair('s', 'p', 2)}"
    f" h = Relu(p) {pair('h', 'r', 3)} m = Mul(r, k) Y = QuantizeLinear(m, s4, z4) }}",
    "a bias of integers": f"{FLOAT} {{ {pair('X', 'a')} {read('b', 'c', 3)} s = Add(c, a) {pair('s', 'Y', 2)} }}",
    "a bias of integers, to integers": f"({TENSOR} X) => (STORED[2,8,5,6] Y) "
    f"{{ {pair('X', 'a')} {read('b', 'c', 3)} s = Add(c, a) Y = QuantizeLinear(s, s2, z2) }}",
    "a bias behind a sum": f"{FLOAT} {{ {pair('X', 'a')} s = Add(f, a) {pair('s', 't', 2)} "
    f"u = Mul(t, f) {pair('u', 'Y', 3)} }}",
    "a tensor and a pair": f"({TENSOR} X, {TENSOR} R) => ({TENSOR} Y) "
    f"{{ {pair('X', 'a')} s = Add(R, a) {pair('s', 'Y', 2)} }}",
    "integers and a pair": f"({TENSOR} X, STORED[2,8,5,6] R) => ({TENSOR} Y) "
    f"{{ {pair('X', 'a')} {read('R', 'e', 3)} s = Mul(e, a) {pair('s', 'Y', 2)} }}",
    "a factor for each channel": f"{FLOAT} {{ {pair('X', 'a')} {read('w', 'c', 3)} "
    f"s = Mul(a, c) {pair('s', 'Y', 2)} }}",
    "HardSwish, written out": f"{STORED} {{ {read('X', 'd')} {read('X', 'e')} {read('w3', 'c', 3)} s = Add(d, c)"
    f" {pair('s', 'p', 1)} m = Mul(e, p) {pair('m', 'r', 2)} v = Div(r, six) Y = QuantizeLinear(v, s4, z4) }}",
    "HardSwish of floats that are quantised once and read twice": f"({TENSOR} X) => (STORED[2,8,5,6] Y) "
    f"{{ q = QuantizeLinear(X, s0, z0) {read('q', 'd')} {read('q', 'e')} {read('w3', 'c', 3)} s = Add(d, c)"
    f" {pair('s', 'p', 1)} m = Mul(e, p) {pair('m', 'r', 2)} v = Div(r, six) Y = QuantizeLinear(v, s4, z4) }}",
    "floats that are quantised once and read twice, an activation between": f"{FLOAT} {{ q = QuantizeLinear(X, s0, z0)"
    f" {read('q', 'd')} {read('q', 'e')} h = LeakyRelu(d) {pair('h', 'p', 1)} Y = Mul(e, p) }}",
    "steps between floats": f"({TENSOR} X, {TENSOR} R) => ({TENSOR} Y) {{ s = Add(X, R) {pair('s', 'p')} m = Mul(p, X) "
    f"{pair('m', 'Y', 2)} }}",
    "a gate of one number for each channel": f"(STORED[2,8,5,6] X, {TENSOR.replace('5,6', '1,1')} G) => ({TENSOR} Y) "
    f"{{ {read('X', 'd')} s = Mul(d, G) {pair('s', 'Y', 2)} }}",
    "along an axis": f"{FLOAT} {{ q = QuantizeLinear<axis = 1>(X, sc, zc)  d = DequantizeLinear<axis = 1>(q, sc, zc) "
    f" Y = Relu(d) }}",
    "parameters known at run time": f"({TENSOR} X, float s) => ({TENSOR} Y) {{ q = QuantizeLinear(X, s, z1) "
    " d = DequantizeLinear(q, s, z1)  Y = Relu(d) }",
    "of ONNX Runtime's own domain": f"{FLOAT} {{ q = com.microsoft.QuantizeLinear(X, s1, z1) "
    " Y = com.microsoft.DequantizeLinear(q, s1, z1) }",
}
pytestmark = [pytest.mark.every_isa, pytest.mark.without_vnni]


@pytest.mark.parametrize("stored", TYPES)
@pytest.mark.parametrize("chain", CHAINS)
def test_one_chain_of_the_same_bits(chain: str, stored: str) -> None:
    proto = model(CHAINS[chain], stored)
    session = harness.create_session(proto, "ep")
    assert len(harness.ep_groups(session)) == 1, harness.fused_types(session)
    assert harness.cpu_types(session) == []
    feeds = feeds_for(proto)
    if "s" in feeds:
        feeds["s"] = np.array(0.03, F32)
    expected, got = node_by_node(proto, feeds), harness.run(session, feeds)
    np.testing.assert_array_equal(got["Y"], expected["Y"])


# Whole vectors, several of them together, and what is left of each; blocks of 1,024 and the beginning of the next one.
@pytest.mark.parametrize("length", [1, 5, 8, 15, 31, 32, 33, 97, 1023, 1024, 1063])
@pytest.mark.parametrize("stored", TYPES)
def test_steps_at_once_of_every_length(stored: str, length: int) -> None:
    tensors = f"STORED[{length}] X, STORED[{length}] R, float[{length}] F"
    steps = f"{read('X', 'd')} v = Div(d, w) {pair('v', 'p')} {read('R', 'e', 3)} s = Add(p, e) {pair('s', 't', 2)}"
    graph = f"({tensors}) => (STORED[{length}] Y) {{ {steps} m = Mul(t, F) Y = QuantizeLinear(m, s4, z4) }}"
    proto = model(graph, stored, w=np.array(0.37, F32))
    session, feeds = harness.create_session(proto, "ep"), feeds_for(proto)
    unusual = np.resize(np.array([0, -0.0, 1, -1, 1e30, -1e30, np.inf, -np.inf, 1e-40, 0.5, 2.5], F32), length)
    assert len(harness.ep_groups(session)) == 1
    for factors in (feeds["F"], unusual):
        feeds["F"] = np.where(feeds["X"] == feeds["X"].max(), F32(1), factors)  # 0 times infinity is NaN: not here
        finite = np.isfinite(feeds["F"])
        expected, got = node_by_node(proto, feeds)["Y"], harness.run(session, feeds)["Y"]
        np.testing.assert_array_equal(got[finite], expected[finite])


@pytest.mark.parametrize("begins_with_floats", [False, True])
@pytest.mark.parametrize("stored", TYPES)
def test_gelu_as_quantisers_leave_it(stored: str, begins_with_floats: bool) -> None:
    """Erf begins no chain, and goes on with one where a pair is behind it. ONNX Runtime's differs in last bits."""
    x = "q" if begins_with_floats else "X"
    quantised = "q = QuantizeLinear(X, s0, z0)" if begins_with_floats else ""
    read_twice = f"{quantised} {read(x, 'd')} {read(x, 'e')}"
    steps = f"{read_twice} v = Div(d, six) h = Erf(v) {pair('h', 'p', 1)} t = Add(p, one)"
    rest = f"{pair('t', 'r', 2)} m = Mul(e, r) {pair('m', 'u', 3)} y = Mul(u, half) Y = QuantizeLinear(y, s4, z4)"
    tensors = STORED.replace("STORED[2,8,5,6] X", f"{TENSOR} X") if begins_with_floats else STORED
    proto = model(f"{tensors} {{ {steps} {rest} }}", stored)
    session, feeds = harness.create_session(proto, "ep"), feeds_for(proto)
    assert len(harness.ep_groups(session)) == 1, harness.fused_types(session)
    assert harness.cpu_types(session) == []
    expected, got = node_by_node(proto, feeds)["Y"].astype(int), harness.run(session, feeds)["Y"].astype(int)
    assert np.abs(got - expected).max() <= 1
    assert np.mean(got != expected) <= 0.01


@pytest.mark.parametrize("length", [1, 7, 33, 1025, 3000])
def test_what_is_read_twice_is_kept(length: int) -> None:
    steps = f"q = QuantizeLinear(X, s0, z0) {read('q', 'd')} {read('q', 'e')} v = Div(d, six) {pair('v', 'p', 1)}"
    proto = model(
        f"(float[{length}] X) => (float[{length}] Y) {{ {steps} m = Mul(p, e) {pair('m', 'Y', 2)} }}", "uint16"
    )
    session, feeds = harness.create_session(proto, "ep"), feeds_for(proto)
    assert len(harness.ep_groups(session)) == 1
    np.testing.assert_array_equal(harness.run(session, feeds)["Y"], node_by_node(proto, feeds)["Y"])


@pytest.mark.parametrize("case", ["one number", "a scale for each column", "a scale known at run time"])
def test_a_product_and_a_sum_are_two_roundings(case: str) -> None:
    """Joined they are one, which moves values across ties: here each row is one, over more than a block."""
    generator, width = np.random.default_rng(0), 1025
    q = generator.integers(0, 256, 1_000_000).astype(np.uint8)
    x, c = generator.standard_normal((2, q.size)).astype(F32)
    scale, step = F32(0.01), F32(2e-4)
    product = q.astype(F32) * scale
    apart, joined = product * x + c, (product.astype(float) * x + c).astype(F32)
    chosen = np.flatnonzero((np.rint(apart / step) != np.rint(joined / step)) & (np.abs(apart) < 6))[:8]
    assert chosen.size == 8
    feeds = {name: np.repeat(each[chosen, None], width, 1) for name, each in (("X", q), ("x", x), ("c", c))}
    scales = np.where(np.arange(width) == 5, F32(0.02), scale).astype(F32)
    by_column = case == "a scale for each column"
    parameters = {"s": scales if by_column else scale, "z": np.zeros(width if by_column else (), np.uint8)}
    known = {} if case == "a scale known at run time" else {"t": np.array(step)}
    shape = f"[8,{width}]"
    inputs = f"uint8{shape} X, float{shape} x, float{shape} c{'' if known else ', float t'}"
    nodes = "d = DequantizeLinear<axis = 1>(X, s, z) m = Mul(d, x) p = Add(m, c) u = QuantizeLinear(p, t, n)"
    graph = f"({inputs}) => (float{shape} Y) {{ {nodes} Y = DequantizeLinear(u, t, n) }}"
    proto = model(graph, "uint8", **parameters, **known, n=np.array(0, np.int16))
    session = harness.create_session(proto, "ep")
    assert len(harness.ep_groups(session)) == 1
    feeds |= {} if known else {"t": np.array(step)}
    np.testing.assert_array_equal(harness.run(session, feeds)["Y"], node_by_node(proto, feeds)["Y"])


# By a factor that makes ties of all, at both ends of the type and beyond.
@pytest.mark.parametrize("stored", TYPES)
def test_ties_and_ends(stored: str) -> None:
    kind = np.iinfo(stored)
    proto = model(
        f"(float[4096] X) => (float[4096] Y) {{ {pair('X', 'a')} h = Mul(a, half) {pair('h', 'Y', 1)} }}", stored
    )
    scale, zero = constants(stored)["s1"], int(constants(stored)["z1"])
    steps = np.linspace(kind.min - zero - 3, kind.max - zero + 3, 4096)
    session = harness.create_session(proto, "ep")
    for x in (
        np.round(steps) * scale,
        (np.floor(steps) + 0.5) * scale,
        np.nextafter((np.floor(steps) + 0.5) * scale, 0),
    ):
        feeds = {"X": x.astype(F32)}
        np.testing.assert_array_equal(harness.run(session, feeds)["Y"], node_by_node(proto, feeds)["Y"])


BYTES = "uint8[2,8,5,6]"
# graph -> the steps of which no chain may make a pair, as groups of what runs together
NO_PAIRS = {
    "another scale": (
        f"({TENSOR} X) => ({TENSOR} Y) {{ q = QuantizeLinear(X, s1, z1)  Y = DequantizeLinear(q, s2, z1) }}",
        [["DequantizeLinear"], ["QuantizeLinear"]],
    ),
    "another zero point": (
        f"({TENSOR} X) => ({TENSOR} Y) {{ q = QuantizeLinear(X, s1, z1)  Y = DequantizeLinear(q, s1, z2) }}",
        [["DequantizeLinear"], ["QuantizeLinear"]],
    ),
    "another axis": (
        "(float[2,8,8] X) => (float[2,8,8] Y) { q = QuantizeLinear<axis = 1>(X, sc, zc) "
        " Y = DequantizeLinear<axis = 2>(q, sc, zc) }",
        [["DequantizeLinear"], ["QuantizeLinear"]],
    ),
    "the integers are an output as well": (
        f"({TENSOR} X) => ({TENSOR} Y, {BYTES} q) {{ a = Relu(X) q = QuantizeLinear(a, s1, z1) "
        " d = DequantizeLinear(q, s1, z1)  Y = Relu(d) }",
        [["DequantizeLinear", "Relu"], ["QuantizeLinear", "Relu"]],
    ),
    "the integers have two readers": (
        f"({TENSOR} X) => ({TENSOR} Y, {TENSOR} Z) {{ a = Relu(X) q = QuantizeLinear(a, s1, z1) "
        " d = DequantizeLinear(q, s1, z1)  Y = Relu(d)  Z = LeakyRelu(d) }",
        [["DequantizeLinear", "LeakyRelu"], ["DequantizeLinear", "Relu"], ["QuantizeLinear", "Relu"]],
    ),
    "the value between is an output as well": (
        f"({TENSOR} X) => ({TENSOR} Y, {TENSOR} a) {{ a = Relu(X) q = QuantizeLinear(a, s1, z1) "
        " Y = DequantizeLinear(q, s1, z1) }",
        [["DequantizeLinear", "QuantizeLinear"], ["Relu"]],
    ),
}


@pytest.mark.parametrize("case", NO_PAIRS)
def test_what_only_looks_like_a_pair(case: str) -> None:
    graph, groups = NO_PAIRS[case]
    proto = model(graph, "uint8")
    session = harness.create_session(proto, "ep")
    assert harness.fused_types(session) == groups
    feeds = feeds_for(proto)
    expected, got = node_by_node(proto, feeds), harness.run(session, feeds)
    for name, array in expected.items():
        np.testing.assert_array_equal(got[name], array)


def test_an_axis_stays_that_of_the_tensor() -> None:
    """The pair stands along dimension 1 of three; the sum has four."""
    graph = (
        f"(float[8,5,6] X, {TENSOR} R) => ({TENSOR} Y) {{ q = QuantizeLinear<axis = 0>(X, sc, zc) "
        f" d = DequantizeLinear<axis = 0>(q, sc, zc)  Y = Add(d, R) }}"
    )
    proto = model(graph, "uint8")
    session, feeds = harness.create_session(proto, "ep"), feeds_for(proto)
    assert any("QuantizeLinear" in types for types in harness.fused_types(session))
    np.testing.assert_array_equal(harness.run(session, feeds)["Y"], node_by_node(proto, feeds)["Y"])


# --- beside convolutions ---------------------------------------------------------------------------------------------


def network(activations: str, size: int = 32) -> onnx.ModelProto:
    """Convolutions with SiLU between them, all quantised to `activations`, weights to int8."""
    kind = np.dtype(activations)
    image = f"float[1,16,{size},{size}]"
    zero = {"z": np.array(0 if kind.kind == "i" else 2 ** (8 * kind.itemsize - 1), kind), "w0": np.array(0, np.int8)}
    weights = np.random.default_rng(2).integers(-40, 41, (16, 16, 3, 3)).astype(np.int8)
    values = {**zero, "s": np.array(12 / 2 ** (8 * kind.itemsize), F32), "ws": np.array(0.006, F32), "w": weights}

    def quantised(x: str, y: str) -> str:
        return f"{y}q = QuantizeLinear({x}, s, z)  {y} = DequantizeLinear({y}q, s, z)\n"

    def convolution(x: str, y: str) -> str:
        weight = f"{y}w = DequantizeLinear(w, ws, w0)\n"
        return f"{weight} {y}c = Conv<pads = [1, 1, 1, 1]>({x}, {y}w)\n {quantised(f'{y}c', y)}"

    silu = f"g = Sigmoid(a)\n {quantised('g', 'gd')} m = Mul(a, gd)\n {quantised('m', 'md')}"
    text = f"{quantised('X', 'x')} {convolution('x', 'a')} {silu} {convolution('md', 'b')} Y = Add(b, X)"
    proto = parser.parse_model(f'<ir_version: 10, opset_import: ["": 21]> g ({image} X) => ({image} Y) {{ {text} }}')
    proto.graph.initializer.extend(harness.initializer(name, array) for name, array in values.items())
    return proto


@pytest.mark.parametrize("activations", TYPES)
def test_chains_beside_convolutions(activations: str, tmp_path: Path) -> None:
    """Of 16 bits ONNX Runtime runs none in integers, and what is between them is claimed; of 8 bits it keeps its own.

    The weights are small: without VNNI its sums of products saturate.
    """
    proto = network(activations)
    feeds = {"X": numbers(1, 16, 32, 32, seed=6)}
    session, report = session_and_report(proto, tmp_path, claim="profitable")
    kernels = kernels_of(proto, tmp_path, feeds, ours=True), kernels_of(proto, tmp_path, feeds, ours=False)
    assert kernels[0]["QLinearConv"] == kernels[1]["QLinearConv"], report
    claimed = [line["description"] for line in report if line["claimed"]]
    if activations in ("uint16", "int16") and instruction_sets.IN_USE != "baseline":
        silu = "DequantizeLinear, DequantizeLinear, DequantizeLinear, Mul, QuantizeLinear, QuantizeLinear, Sigmoid"
        assert any(", ".join(sorted(text.split(" -> ")[:7])) == silu for text in claimed), report
        assert kernels[1]["QLinearConv"] == 0
    # ONNX Runtime's Sigmoid differs in the last bit, which may move a value across a tie.
    expected, got = node_by_node(proto, feeds)["Y"], harness.run(session, feeds)["Y"]
    step = 12 / 2 ** (8 * np.dtype(activations).itemsize)
    assert np.abs(got - expected).max() <= 4 * step


def test_chains_between_convolutions_of_bytes_are_left(tmp_path: Path) -> None:
    """ONNX Runtime keeps what is around its QLinearConv in a layout of its own."""
    _, report = session_and_report(network("uint8"), tmp_path, claim="profitable")
    places = [line["group"] for line in report if not line["claimed"] and "Sigmoid" in line["description"]]
    assert places, report
    assert all(place.endswith("among quantised convolutions") for place in places), places


def kernels_of(proto: onnx.ModelProto, folder: Path, feeds: dict[str, Any], *, ours: bool) -> Counter[str]:
    options = harness.session_options("ep", claim="profitable") if ours else harness.session_options("cpu")
    options.enable_profiling = True
    options.profile_file_prefix = str(folder / f"profile{ours}")
    session = harness.create_session(proto, options=options)
    harness.run(session, feeds)
    events = json.loads(Path(session.end_profiling()).read_text("utf-8"))
    return Counter(event["args"]["op_name"] for event in events if event["name"].endswith("kernel_time"))


# 65,536 values of 16 bits are made only for tensors that large.
@pytest.mark.parametrize("length", [65_535, 65_536, 70_001])
@pytest.mark.parametrize("begins_with", ["STORED", "float", "a bias"])
@pytest.mark.parametrize("stored", TYPES)
def test_a_table_holds_the_bits_of_the_steps(
    stored: str, begins_with: str, length: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x_type = "STORED" if begins_with == "STORED" else "float"
    quantised = "X" if begins_with == "STORED" else "q"
    before = {"STORED": "", "float": "q = QuantizeLinear(X, s0, z0)"}.get(
        begins_with, f"{pair('X', 'i')} a = Add(i, B) q = QuantizeLinear(a, s0, z0)"
    )
    inputs = f"{x_type}[{length}] X" + (f", float[{length}] B" if begins_with == "a bias" else "")
    again = read(quantised, "e") if begins_with != "a bias" else "e = Identity(six)"
    steps = f"{before} {read(quantised, 'd')} {again} v = Div(d, six) h = Erf(v) {pair('h', 'p', 1)}"
    rest = f"t = Add(p, one) {pair('t', 'r', 2)} m = Mul(e, r) {pair('m', 'u', 3)} g = Mul(u, half) {pair('g', 'Y', 4)}"
    proto = model(f"({inputs}) => (float[{length}] Y) {{ {steps} {rest} }}", stored)
    session, report = session_and_report(proto, tmp_path, claim="all")
    assert len(harness.ep_groups(session)) == 1, harness.fused_types(session)
    has_table = stored.endswith("8") or length >= 65_536
    if instruction_sets.IN_USE == "baseline":  # whose kernels do one step at a time
        has_table = has_table and begins_with == "STORED"
    by_table = any("by a table" in line.get("path", "") for line in report)
    if begins_with != "a bias":  # whose path depends on the shape of B
        # Where steps are as fast as a table, as AVX-512's may be, there is none.
        assert by_table == has_table or (not by_table and instruction_sets.IN_USE in ("avx512", "neon"))
    feeds = feeds_for(proto)
    if x_type == "float":
        unusual = np.array([np.nan, np.inf, -np.inf, 0, -0.0, 1e30, -1e30, 1e-40, 1e-45], F32)
        feeds["X"][: 9 * 11] = np.tile(unusual, 11)
    else:
        limits = np.iinfo(stored)
        feeds["X"] = np.resize(np.arange(limits.min, limits.max + 1), length).astype(stored)
    got = [harness.run(session, feeds)["Y"] for _ in range(2)]
    monkeypatch.setenv("NORMFUSE_PATH", "blocks")
    expected = harness.run(harness.create_session(proto, "ep", claim="all"), feeds)["Y"]
    for y in got:
        np.testing.assert_array_equal(y.view(np.uint32), expected.view(np.uint32))


# What stands between two pairs, and the scale of the second: the same integers, one of them another, or most of them.
BETWEEN = {
    "the same integers": ("v = Div(p, six)", 1 / 6, 0),
    "the same integers, by a product": ("v = Mul(p, half)", 1 / 2, 0),
    "the next zero point": ("v = Div(p, six)", 1 / 6, 1),
    "nearly the same scale": ("v = Div(p, six)", 1.0001 / 6, 0),
    "half of the range": ("r = Relu(p) v = Div(r, six)", 1 / 6, 0),
    "by the integers before": ("o = Add(p, a) v = Div(o, six)", 1 / 6, 0),
}


@pytest.mark.parametrize("between", BETWEEN)
@pytest.mark.parametrize("stored", TYPES)
def test_a_pair_behind_a_pair(stored: str, between: str) -> None:
    """Pairs are joined where each integer of the first becomes itself, as in HardSwish written out, and no others."""
    steps, factor, further = BETWEEN[between]
    graph = f"(float[70001] X) => (float[70001] Y) {{ {pair('X', 'a')} m = Mul(a, half) {pair('m', 'p', 2)}"
    values = constants(stored)
    more = {"s3": F32(values["s2"] * factor), "z3": values["z2"] + values["z2"].dtype.type(further)}
    proto = model(f"{graph} {steps} {pair('v', 'u', 3)} t = Mul(u, a) {pair('t', 'Y', 4)} }}", stored, **more)
    feeds = feeds_for(proto)
    feeds["X"][:9] = [np.nan, np.inf, -np.inf, 0, -0.0, 1e30, -1e30, 1e-40, 1e-45]
    session = harness.create_session(proto, "ep", claim="all")
    assert any("Div" in types or "Mul" in types for types in harness.fused_types(session))
    expected, got = node_by_node(proto, feeds)["Y"], harness.run(session, feeds)["Y"]
    np.testing.assert_array_equal(got.view(np.uint32), expected.view(np.uint32))


NORMALISATIONS = {
    "layer normalisation": "n = LayerNormalization<epsilon = 0.001>(h, f, f)",
    "softmax": "n = Softmax(h)",
    "log softmax": "n = LogSoftmax(h)",
}


# Rows in tiles, rows of several blocks, and rows that no tile holds; an infinite and a large value in one row each.
@pytest.mark.parametrize("length", [1, 7, 64, 129, 1024, 2050, 9000])
@pytest.mark.parametrize("normalisation", NORMALISATIONS)
@pytest.mark.parametrize("stored", ["uint8", "int16", "uint16"])
def test_steps_around_a_normalisation_have_the_bits_of_single_ones(
    stored: str, normalisation: str, length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensors = f"STORED[19,{length}] X, STORED[19,{length}] R, float[19,1] F"
    steps = f"{read('X', 'd')} {read('R', 'e', 3)} a = Add(d, e) m = Mul(a, F) {pair('m', 'h', 2)}"
    graph = f"({tensors}) => (STORED[19,{length}] Y) {{ {steps} {NORMALISATIONS[normalisation]}"
    proto = model(f"{graph} Y = QuantizeLinear(n, s4, z4) }}", stored, f=numbers(length, seed=5))
    feeds = feeds_for(proto)
    feeds["F"][5], feeds["F"][11] = 1e30, 0
    session = harness.create_session(proto, "ep", claim="all")
    got = harness.run(session, feeds)["Y"]
    monkeypatch.setenv("NORMFUSE_PATH", "blocks")
    expected = harness.run(harness.create_session(proto, "ep", claim="all"), feeds)["Y"]
    np.testing.assert_array_equal(got, expected)
    exact = node_by_node(proto, feeds)["Y"].astype(int)
    assert np.abs(got.astype(int) - exact).max() <= 1
    assert np.mean(got != exact) <= 0.01


# Over the last dimension ONNX Runtime's kernel of short rows is as fast, so that the pairs stay around it.
@pytest.mark.parametrize(("axis", "nodes"), [(1, 5), (2, 5), (3, 3)])
@pytest.mark.parametrize("stored", ["int16", "uint16"])
def test_pairs_around_a_softmax(stored: str, axis: int, nodes: int, tmp_path: Path) -> None:
    """As in the head of a YOLOv8, where 16 channels are the bins of a distance."""
    steps = f"{pair('X', 'd')} n = Softmax<axis = {axis}>(d) {pair('n', 'Y', 4)}"
    graph = f"(float[2,16,33,70] X) => (float[2,16,33,70] Y) {{ {steps} }}"
    step = F32(2.0**-16)
    proto = model(graph, stored, s4=step, z4=np.array(np.iinfo(stored).min, stored))
    feeds = feeds_for(proto)
    session, report = session_and_report(proto, tmp_path, claim="all")
    (softmax,) = [line for line in report if "Softmax" in line["description"]]
    assert len(softmax["nodes"]) == nodes
    got, expected = harness.run(session, feeds)["Y"], node_by_node(proto, feeds)["Y"]
    assert np.abs(got - expected).max() <= step
    assert np.mean(got != expected) <= 0.01


ONE_NUMBER = {
    "a gate": "m = Mul(d, e)",
    "a sum": "m = Add(d, e)",
    "a gate, then a sum": "t = Mul(d, e) m = Add(t, half)",
    "a sum, then a gate": "t = Add(d, half) m = Mul(t, e)",
    "an activation": "t = Add(d, e) m = Relu(t)",
}


# What is done with one number is rounded as often as by ONNX's operators, the scale of X included.
@pytest.mark.parametrize("path", ["", "blocks", "input"])
@pytest.mark.parametrize("to", ["STORED", "float"])
@pytest.mark.parametrize("chain", ONE_NUMBER)
@pytest.mark.parametrize("stored", TYPES)
def test_quantised_tensors_and_one_number(
    stored: str, chain: str, to: str, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = "(STORED[2,8,30,40] X, STORED[2,8,1,1] G)"
    end = "Y = QuantizeLinear(m, s2, z2)" if to == "STORED" else "Y = Identity(m)"
    steps = f"{read('X', 'd')} {read('G', 'e', 1)} {ONE_NUMBER[chain]}"
    proto = model(f"{inputs} => ({to}[2,8,30,40] Y) {{ {steps} {end} }}", stored, s2=np.array(0.00173, F32))
    monkeypatch.setenv("NORMFUSE_PATH", path)
    feeds = feeds_for(proto)
    got = harness.run(harness.create_session(proto, "ep", claim="all"), feeds)["Y"]
    np.testing.assert_array_equal(got, node_by_node(proto, feeds)["Y"])
