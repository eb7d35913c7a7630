"""Pairs of QuantizeLinear and DequantizeLinear: ties, joined roundings, tables, convolutions beside them, and Clips.

ONNX Runtime with all fusions off says what the bits are. Chains of pairs are cases of tests/corpus/provider.
"""

from __future__ import annotations

import random
from pathlib import Path

import harness
import instruction_sets
import numpy as np
import onnx
import pytest
from checking import node_by_node, operators_run, session_and_report
from exact_programs import nasty
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper
from parsed_models import parse
from strategies import Numbers

from normfuse.meaning import Array

F32 = np.float32
TYPES = ("uint8", "int8", "uint16", "int16")
ODD = np.array([np.nan, np.inf, -np.inf, 0, -0.0, 1e30, -1e30, 1e-40, 1e-45], F32)
pytestmark = [pytest.mark.every_isa, pytest.mark.without_vnni]


def constants(stored: str) -> dict[str, Array]:
    """Scales s0 to s4 and zero points z0 to z4 that suit values of size 1."""
    kind = np.iinfo(stored)
    step = 8 / 2**kind.bits
    scales = {f"s{i}": np.array(step * (1 + 0.3 * i), F32) for i in range(5)}
    return scales | {f"z{i}": np.array((kind.max + kind.min + 1) // 2 + 3 * i, stored) for i in range(5)}


def pair(x: str, y: str, index: int = 1) -> str:
    return f"{y}q = QuantizeLinear({x}, s{index}, z{index})  {y} = DequantizeLinear({y}q, s{index}, z{index})\n"


def check(proto: onnx.ModelProto, *every: dict[str, Array]) -> None:
    """One group, and the bits of its nodes."""
    session, reference = harness.create_session(proto), node_by_node(proto)
    assert len(harness.ep_groups(session)) == 1, harness.fused_types(session)
    assert harness.cpu_types(session) == []
    for feeds in every:
        got, expected = harness.run(session, feeds)["Y"], harness.run(reference, feeds)["Y"]
        np.testing.assert_array_equal(got.view(np.uint32), expected.view(np.uint32))


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
    by_column = case == "a scale for each column"
    scales = np.where(np.arange(width) == 5, F32(0.02), scale).astype(F32)
    parameters = {"s": scales if by_column else np.array(scale), "z": np.zeros(width if by_column else (), np.uint8)}
    known = {"t": np.array(step)}
    at_run_time = case == "a scale known at run time"
    inputs = f"uint8[8,{width}] X, float[8,{width}] x, float[8,{width}] c{', float t' if at_run_time else ''}"
    nodes = "d = DequantizeLinear<axis = 1>(X, s, z) m = Mul(d, x) p = Add(m, c) u = QuantizeLinear(p, t, n)"
    graph = f"g ({inputs}) => (float[8,{width}] Y) {{ {nodes} Y = DequantizeLinear(u, t, n) }}"
    proto = parse(graph, **parameters, **({} if at_run_time else known), n=np.array(0, np.int16))
    check(proto, feeds | (known if at_run_time else {}))


@pytest.mark.parametrize("stored", TYPES)
def test_ties_and_ends(stored: str) -> None:
    """By a factor that makes ties of all, at both ends of the type and beyond."""
    kind, values = np.iinfo(stored), constants(stored)
    graph = f"g (float[4096] X) => (float[4096] Y) {{ {pair('X', 'a')} h = Mul(a, half) {pair('h', 'Y')} }}"
    zero = int(values["z1"])
    steps = np.linspace(kind.min - zero - 3, kind.max - zero + 3, 4096)
    ties = (np.floor(steps) + 0.5) * values["s1"]
    x = (np.round(steps) * values["s1"], ties, np.nextafter(ties, 0))
    check(parse(graph, half=np.array(0.5, F32), **values), *({"X": each.astype(F32)} for each in x))


@pytest.mark.parametrize("stored", TYPES)
def test_every_tie_of_any_scale(stored: str) -> None:
    """Two floats on both sides of each tie, where a product with the reciprocal could differ from a quotient."""
    limits, generator = np.iinfo(stored), np.random.default_rng(5)
    for scale in [F32(0.25), *np.exp2(generator.uniform(-28, 20, 40 if limits.bits == 8 else 8)).astype(F32)]:
        zero = generator.integers(limits.min, limits.max, endpoint=True)
        ties = (np.arange(limits.min, limits.max) - zero + 0.5).astype(F32) * scale
        x = np.concatenate([ODD, (ties.view(np.int32)[:, None] + np.arange(-2, 3, dtype=np.int32)).view(F32).ravel()])
        quotients = np.nan_to_num(np.rint(x / scale), nan=-np.inf)
        expected = np.clip(quotients + F32(zero), limits.min, limits.max)
        parameters = {"s1": np.array(scale), "z1": np.array(zero, stored)}
        of_x = f"g (float[{x.size}] X) => "
        integers = harness.create_session(
            parse(f"{of_x} ({stored}[{x.size}] Y) {{ Y = QuantizeLinear(X, s1, z1) }}", **parameters)
        )
        np.testing.assert_array_equal(harness.run(integers, {"X": x})["Y"], expected)
        floats = harness.create_session(parse(f"{of_x} (float[{x.size}] Y) {{ {pair('X', 'Y')} }}", **parameters))
        np.testing.assert_array_equal(harness.run(floats, {"X": x})["Y"], (expected - F32(zero)) * scale)


def assert_bits_of_blocks(proto: onnx.ModelProto, feeds: dict[str, Array]) -> None:
    """Twice: what a first call makes for later ones is used by the second."""
    session = harness.create_session(proto)
    assert len(harness.ep_groups(session)) == 1, harness.fused_types(session)
    got = [harness.run(session, feeds)["Y"] for _ in range(2)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NORMFUSE_PATH", "blocks")
        expected = harness.run(harness.create_session(proto), feeds)["Y"]
    for y in got:
        np.testing.assert_array_equal(y.view(np.uint32), expected.view(np.uint32))


@pytest.mark.parametrize("begins_with", ["floats", "integers", "large integers"])
@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("stored", TYPES)
def test_gates_of_calibrated_ranges(stored: str, seed: int, begins_with: str) -> None:
    """No clamp is left out that an integer of the first pair reaches: a calibration may have seen less than comes."""
    draw, limits, values = random.Random(f"{stored} {seed}"), np.iinfo(stored), dict[str, Array]()

    def calibrated(x: str, y: str, low: float, high: float) -> str:
        seen, index = draw.choice([1.0, 1.0, 1.1, 0.999, 0.8, 0.3]), len(values) // 2
        scale = seen * (high - low) / (limits.max - limits.min)
        zero = np.clip(np.rint(limits.min - seen * low / scale), limits.min, limits.max)
        values.update({f"s{index}": np.array(scale, F32), f"z{index}": np.array(zero, stored)})
        return pair(x, y, index)

    widest = draw.choice([4.0, 8.0, 30.0, 300.0])
    gate, low, high = draw.choice(
        [("Sigmoid(h)", 0, 1), ("HardSigmoid(h)", 0, 1), ("Clip(h, low, top)", -1.25, 2.5), ("Relu(h)", 0, widest)]
    )
    least = -0.4 if high == 1 else -high * widest
    nodes = calibrated("X", "a", -widest, widest * draw.uniform(0.5, 1))
    if begins_with != "floats":
        nodes = "a = DequantizeLinear(X, s0, z0)"
    nodes += (
        f" b = Add(a, by) {calibrated('b', 'h', -widest - 1, widest + 1)}"
        if draw.random() < 0.5
        else " h = Identity(a)"
    )
    nodes += (
        f" g = {gate} {calibrated('g', 'gd', low, high)} m = Mul(a, gd) {calibrated('m', 'n', least, high * widest)}"
    )
    nodes += f" o = Div(n, six) {calibrated('o', 'p', least / 4, high * widest / 3)} Y = Add(p, B)"
    every = np.arange(limits.min, limits.max + 1)
    x = np.append(ODD, (np.arange(limits.min - 3, limits.max + 4) - values["z0"].astype(int)) * values["s0"]).astype(
        F32
    )
    if begins_with != "floats":
        x = every.astype(stored)
    if begins_with == "large integers":  # numbers that leave float32: infinite ones, and their differences
        values["s0"], values["z0"] = np.array(2e37, F32), np.array(3, stored)
    numbers = {"by": draw.uniform(-1, 1), "six": 6, "low": -1.25, "top": 2.5}
    kind = "float" if begins_with == "floats" else stored
    for dims in (x.size, 1):  # one number no kernel reads with its steps
        text = f"g ({kind}[{x.size}] X, float[{dims}] B) => (float[{x.size}] Y) {{ {nodes} }}"
        proto = parse(text, **values, **{name: np.array(value, F32) for name, value in numbers.items()})
        assert_bits_of_blocks(proto, {"X": x, "B": np.zeros(dims, F32)})


# 65,536 values of 16 bits are made only for tensors that large.
@pytest.mark.parametrize("length", [65_535, 65_536, 70_001])
@pytest.mark.parametrize("begins_with", ["integers", "floats", "a bias"])
@pytest.mark.parametrize("stored", TYPES)
def test_a_table_holds_the_bits_of_the_steps(stored: str, begins_with: str, length: int, tmp_path: Path) -> None:
    inputs, q = (f"{stored}[{length}] X", "X") if begins_with == "integers" else (f"float[{length}] X", "q")
    read = [f"{y} = DequantizeLinear({q}, s0, z0)" for y in "de"]
    before = {"integers": "", "floats": "q = QuantizeLinear(X, s0, z0)"}.get(begins_with, "")
    if begins_with == "a bias":
        inputs, read[1] = f"{inputs}, float[{length}] B", "e = Identity(six)"
        before = f"{pair('X', 'i')} a = Add(i, B) q = QuantizeLinear(a, s0, z0)"
    steps = f"{before} {read[0]} {read[1]} v = Div(d, six) h = Erf(v) {pair('h', 'p', 1)} t = Add(p, one)"
    rest = f"{pair('t', 'r', 2)} m = Mul(e, r) {pair('m', 'u', 3)} g = Mul(u, half) {pair('g', 'Y', 4)}"
    floats = {"six": np.array(6, F32), "one": np.array(1, F32), "half": np.array(0.5, F32)}
    proto = parse(f"g ({inputs}) => (float[{length}] Y) {{ {steps} {rest} }}", **floats, **constants(stored))
    _, report = session_and_report(proto, tmp_path)
    has_table = stored.endswith("8") or length >= 65_536
    if instruction_sets.IN_USE == "baseline":  # whose kernels do one step at a time
        has_table = has_table and begins_with == "integers"
    by_table = any("by a table" in line.get("path", "") for line in report)
    if begins_with != "a bias":  # whose path depends on the shape of B
        # Where steps are as fast as a table, as AVX-512's may be, there is none.
        assert by_table == has_table or (not by_table and instruction_sets.IN_USE in ("avx512", "neon"))
    x, b = (2 * np.random.default_rng(1).standard_normal((2, length))).astype(F32)
    x[: 9 * 11] = np.tile(ODD, 11)
    limits = np.iinfo(stored)
    if begins_with == "integers":
        x = np.resize(np.arange(limits.min, limits.max + 1), length).astype(stored)
    assert_bits_of_blocks(proto, {"X": x, "B": b})


# --- beside convolutions ---------------------------------------------------------------------------------------------


def network(activations: str) -> onnx.ModelProto:
    """Convolutions with SiLU between them, all quantised to `activations`, weights to int8."""
    kind = np.iinfo(activations)
    weights = np.random.default_rng(2).integers(-40, 41, (16, 16, 3, 3)).astype(np.int8)
    zero = np.array(0 if kind.kind == "i" else 2 ** (kind.bits - 1), activations)
    values = {"z1": zero, "s1": np.array(12 / 2**kind.bits, F32), "ws": np.array(0.006, F32)}
    weight = {"w": weights, "w0": np.array(0, np.int8)}

    def convolution(x: str, y: str) -> str:
        return f"{y}w = DequantizeLinear(w, ws, w0) {y}c = Conv<pads = [1, 1, 1, 1]>({x}, {y}w) {pair(f'{y}c', y)}"

    silu = f"g = Sigmoid(a) {pair('g', 'gd')} m = Mul(a, gd) {pair('m', 'md')}"
    text = f"{pair('X', 'x')} {convolution('x', 'a')} {silu} {convolution('md', 'b')} Y = Add(b, X)"
    return parse(f"g (float[1,16,32,32] X) => (float[1,16,32,32] Y) {{ {text} }}", **values, **weight)


@pytest.mark.parametrize("activations", TYPES)
def test_chains_beside_convolutions(activations: str, tmp_path: Path) -> None:
    """Of 16 bits ONNX Runtime runs none in integers, and what is between them is claimed; of 8 bits it keeps its own.

    The weights are small: without VNNI its sums of products saturate.
    """
    proto, feeds = network(activations), {"X": np.random.default_rng(6).normal(0, 1, (1, 16, 32, 32)).astype(F32)}
    session, report = session_and_report(proto, tmp_path, claim="profitable")
    options = (harness.session_options("ep", claim="profitable"), harness.session_options("cpu"))
    kernels = [operators_run(proto, each, feeds, tmp_path) for each in options]
    assert kernels[0]["QLinearConv"] == kernels[1]["QLinearConv"], report
    claimed = [line["description"] for line in report if line["claimed"]]
    if activations in ("uint16", "int16") and instruction_sets.IN_USE != "baseline":
        silu = "DequantizeLinear, DequantizeLinear, DequantizeLinear, Mul, QuantizeLinear, QuantizeLinear, Sigmoid"
        assert any(", ".join(sorted(text.split(" -> ")[:7])) == silu for text in claimed), report
        assert kernels[1]["QLinearConv"] == 0
    if activations == "uint8":  # ONNX Runtime keeps what is around its QLinearConv in a layout of its own
        places = [line["group"] for line in report if not line["claimed"] and "Sigmoid" in line["description"]]
        assert places, report
        assert all(place.endswith("among quantised convolutions") for place in places), places
    # ONNX Runtime's Sigmoid differs in the last bit, which may move a value across a tie.
    expected, got = harness.run(node_by_node(proto), feeds)["Y"], harness.run(session, feeds)["Y"]
    assert np.abs(got - expected).max() <= 4 * 12 / 2 ** np.iinfo(activations).bits


# --- with a Clip of the integers between the two ---------------------------------------------------------------------

BOUNDS = ("low", "high")


def clipped(x: Array, values: dict[str, Array], bounds: tuple[str, str] = BOUNDS) -> onnx.ModelProto:
    nodes = [
        helper.make_node("QuantizeLinear", ["X", "s", "z"], ["q"]),
        helper.make_node("Clip", ["q", *bounds], ["c"]),
        helper.make_node("DequantizeLinear", ["c", "s", "z"], ["Y"]),
    ]
    used = {name: values[name] for name in ("s", "z", *bounds) if name}
    return harness.build_model(nodes, {"X": x}, {"Y": TensorProto.FLOAT}, used)


def in_float64(x: Array, values: dict[str, Array], bounds: tuple[str, str]) -> Array:
    """What the three nodes mean; NaN becomes the least number of the type."""
    scale, zero, limits = float(values["s"]), int(values["z"]), np.iinfo(values["z"].dtype)
    with np.errstate(over="ignore", invalid="ignore"):
        quotient = (x / values["s"]).astype(np.float64)  # which ONNX defines in float32
    codes = np.clip(np.where(np.isnan(quotient), -np.inf, np.rint(quotient)) + zero, limits.min, limits.max)
    low, high = (int(values[name]) if name else end for name, end in zip(bounds, (limits.min, limits.max), strict=True))
    return (np.minimum(np.maximum(codes, low), high) - zero) * scale


@given(st.data())
def test_the_bits_of_the_three_nodes(data: st.DataObject) -> None:
    draw, numbers = data.draw, Numbers(data.draw(st.integers(0, 2**32 - 1)))
    dtype = draw(st.sampled_from([np.int8, np.uint8]))
    limits = np.iinfo(dtype)
    integers = st.one_of(st.integers(limits.min, limits.max), st.sampled_from([limits.min, limits.max, 0]))
    scale = draw(st.sampled_from([0.05, 0.007, 1.0, 1e-38, 1e-42, 1e30])) * draw(st.floats(0.5, 2))
    values = {"s": np.array(scale, F32), **{name: np.array(draw(integers), dtype) for name in ("z", "low", "high")}}
    x = nasty(numbers, tuple(draw(st.lists(st.integers(1, 40), min_size=1, max_size=3))))
    if draw(st.booleans()):  # of the size of the range, and ties
        steps = numbers.generator.integers(-600, 600, x.shape) / 2
        with np.errstate(over="ignore"):
            chosen = numbers.generator.integers(0, 2, x.shape).astype(bool)
            x = np.where(chosen, x, steps * values["s"]).astype(F32)
    bounds = draw(st.sampled_from([BOUNDS, ("low", ""), ("", "high"), ("", "")]))
    proto = clipped(x, values, bounds)
    check(proto, {"X": x})
    got = harness.run(harness.create_session(proto), {"X": x})["Y"]
    np.testing.assert_allclose(got, in_float64(x, values, bounds), rtol=1e-6, atol=1e-44)


@pytest.mark.parametrize("name", ["low", "high", "s", "z"])
def test_only_of_constants(name: str) -> None:
    """The caller may override an initializer that is an input as well."""
    x = (np.random.default_rng(2).standard_normal((3, 5, 4)) / 2).astype(F32)
    integers = {"z": np.array(3, np.int8), "low": np.array(-5, np.int8), "high": np.array(8, np.int8)}
    values = {"s": np.array(0.04, F32), **integers}
    proto = clipped(x, values)
    proto.graph.input.append(harness.value_info(name, TensorProto.FLOAT if name == "s" else TensorProto.INT8, []))
    session, reference = harness.create_session(proto), node_by_node(proto)
    assert "Clip" in harness.cpu_types(session)
    for feeds in ({"X": x}, {"X": x, name: np.asarray(values[name] * 2)}):
        np.testing.assert_array_equal(session.run(None, feeds)[0], reference.run(None, feeds)[0])
