"""Pairs of QuantizeLinear and DequantizeLinear around normalisations and activations are steps of one fused node."""

from __future__ import annotations

import dataclasses
from typing import Any

import exact_programs
import harness
import ml_dtypes
import numpy as np
import onnx
import oracle
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, parser
from oracle import Array
from rewrite_harness import fused_nodes, optimize, run
from strategies import Numbers, Parameters, quantizations

import normfuse
from normfuse.files.model_files import load_model
from normfuse.inspection.quantization import quantization_of
from normfuse.spec import labels_of, read_program

F32 = np.float32
SHAPE = (2, 5, 16)
TENSOR = "float[2,5,16]"
NORM = "LayerNormalization<axis = -1>({}, g, b)"


def grids(stored: Any) -> dict[str, Array]:
    """Parameters of pairs, a little apart from each other."""
    kind = ml_dtypes.iinfo(stored) if np.dtype(stored).kind == "V" else np.iinfo(stored)
    middle, step = (int(kind.max) + int(kind.min) + 1) // 2, 8 / 2.0**kind.bits
    scales = {f"s{i}": np.array(step * (1 + 0.3 * i), F32) for i in range(5)}
    return scales | {f"z{i}": np.array(middle + i % 2).astype(stored) for i in range(5)}


def constants(stored: Any) -> dict[str, Array]:
    numbers = np.random.default_rng(4)
    return {
        **grids(stored),
        "g": numbers.normal(1, 0.1, SHAPE[-1]).astype(F32),
        "b": numbers.normal(0, 0.1, SHAPE[-1]).astype(F32),
        "w": numbers.normal(0, 0.3, (SHAPE[-1], SHAPE[-1])).astype(F32),
        "wq": numbers.integers(-99, 99, (SHAPE[-1], SHAPE[-1])).astype(np.int8),
        "ws": np.array(0.01, F32),
        "gq": np.arange(90, 90 + SHAPE[-1]).astype(np.int8),
        "bq": np.arange(SHAPE[-1]).astype(np.int32),
        "v": numbers.normal(0, 1, SHAPE[-1]).astype(F32),
        "shape": np.array([10, 16], np.int64),
        "yes": np.array(True),
    }


def pair(x: str, y: str, grid: int = 0, domain: str = "") -> str:
    prefix = f"{domain}." if domain else ""
    parameters = f"s{grid}, z{grid}"
    return f"{y}_q = {prefix}QuantizeLinear({x}, {parameters}) {y} = {prefix}DequantizeLinear({y}_q, {parameters})"


def model(
    graph: str, stored: Any = np.uint16, opset: int = 21, inputs: tuple[str, ...] = (), **more: Array
) -> onnx.ModelProto:
    """The graph as text, with the constants that it names; `inputs`: those that a caller can override."""
    text = f'<ir_version: 10, opset_import: ["": {opset}, "com.microsoft": 1]> g {graph}'
    proto = parser.parse_model(text)
    nodes = list(proto.graph.node)
    for node in proto.graph.node:
        nodes += [inner for attribute in node.attribute for inner in attribute.g.node]
    named = {name for node in nodes for name in node.input}
    for name, array in {**constants(stored), **more}.items():
        if name in named:
            proto.graph.initializer.append(harness.initializer(name, array))
            if name in inputs:
                code = proto.graph.initializer[-1].data_type
                proto.graph.input.append(harness.value_info(name, code, array.shape))
    return proto


def feeds_of(proto: onnx.ModelProto) -> dict[str, Array]:
    fixed = {tensor.name for tensor in proto.graph.initializer}
    numbers = np.random.default_rng(8)
    return {
        value.name: numbers.normal(0, 1, [dim.dim_value for dim in value.type.tensor_type.shape.dim]).astype(F32)
        for value in proto.graph.input
        if value.name not in fixed
    }


def steps_of(proto: onnx.ModelProto) -> list[str]:
    """The names of the steps of each fused node."""
    programs = [
        attribute.s.decode() for node in fused_nodes(proto) for attribute in node.attribute if attribute.name == "steps"
    ]
    return [" ".join(step.split()[0] for step in program.split("; ")) for program in programs]


def check(proto: onnx.ModelProto, wanted: list[str], *, one_off: bool = True, has_product: bool = False) -> None:
    """That a model becomes these chains, and that all targets give what the original's nodes give one by one.

    ``one_off``: a value next to a tie may be a step away, as sums of a normalisation have another order.
    ``has_product``: onnxruntime's optimised product of quantised weights (MatMulNBits, of 8 bits from 1.32 on) rounds
    the other factor as well, in the original, too; where the provider dequantises the weights there is no such product.
    """
    feeds = feeds_of(proto)
    expected = run(proto, feeds, optimized=False)
    custom, _ = optimize(proto, target="custom-op")
    assert steps_of(custom) == wanted
    portable, _ = optimize(proto)
    standard, _ = optimize(proto, target="standard")
    again, _ = optimize(portable)
    assert steps_of(again) == wanted, "a second run changes nothing"
    known = [expected, run(proto, feeds)] if has_product else [expected]
    results = [harness.run(harness.create_session(custom, "custom"), feeds)]
    results += [run(portable, feeds), harness.run(harness.create_session(portable, "ep"), feeds)]
    results += [run(standard, feeds, optimized=False)]
    for got in results:
        nearest = min(known, key=lambda each: max(np.abs(each[name] - got[name]).max() for name in each))
        for name, array in nearest.items():
            apart = np.abs(got[name].astype(np.float64) - array.astype(np.float64))
            if array.dtype.kind == "f":
                # A 16-bit step, or what a step in front of the normalisation moves.
                assert apart.max() <= (2e-3 if one_off else 0), name
                assert np.mean(apart > 1e-5) <= 0.05, name
            else:
                assert apart.max() <= one_off, name


# --- what is taken ---------------------------------------------------------------------------------------------------

X = f"({TENSOR} X) => ({TENSOR} Y)"
QUANTISED = f"({TENSOR} X) => (uint16[2,5,16] Y)"
CHAINS = {
    "behind a normalisation": (
        f"{X} {{ n = {NORM.format('X')} {pair('n', 'Y')} }}",
        ["Normalize Mul Add FakeQuantize"],
    ),
    "in front of one": (f"{X} {{ {pair('X', 'd')} Y = {NORM.format('d')} }}", ["FakeQuantize Normalize Mul Add"]),
    "between steps and at the end": (
        f"{X} {{ {pair('X', 'd')} n = {NORM.format('d')} {pair('n', 'm', 1)} a = Gelu(m) {pair('a', 'Y', 2)} }}",
        ["FakeQuantize Normalize Mul Add FakeQuantize Gelu FakeQuantize"],
    ),
    "with integers at the end": (
        f"{QUANTISED} {{ {pair('X', 'd')} n = {NORM.format('d')} {pair('n', 'm', 1)} a = Gelu(m) "
        "Y = QuantizeLinear(a, s2, z2) }",
        ["FakeQuantize Normalize Mul Add FakeQuantize Gelu Quantize"],
    ),
    "behind an activation": (f"{X} {{ a = Gelu(X) {pair('a', 'Y')} }}", ["Gelu FakeQuantize"]),
    "around an activation": (
        f"{X} {{ {pair('X', 'd')} a = Sigmoid(d) {pair('a', 'Y', 1)} }}",
        ["FakeQuantize Sigmoid FakeQuantize"],
    ),
    "a gate that is dequantised": (
        f"({TENSOR} X, {TENSOR} G) => ({TENSOR} Y) {{ {pair('X', 'd')} {pair('G', 'e', 3)} a = Sigmoid(d) "
        f"{pair('a', 'c', 1)} m = Mul(c, e) {pair('m', 'Y', 2)} }}",
        ["FakeQuantize Sigmoid FakeQuantize Mul FakeQuantize"],
    ),
    "a residual connection": (
        f"({TENSOR} X, {TENSOR} R) => ({TENSOR} Y) {{ {pair('X', 'd')} {pair('R', 'e', 3)} t = Add(d, e) "
        f"{pair('t', 'u', 1)} n = {NORM.format('u')} {pair('n', 'Y', 2)} }}",
        ["FakeQuantize Add Requantize Normalize Mul Add FakeQuantize"],
    ),
    "a linear layer's bias in front of it": (
        f"({TENSOR} X, {TENSOR} R) => ({TENSOR} Y) {{ {pair('X', 'c')} h = Add(c, v) {pair('h', 'd', 4)} "
        f"{pair('R', 'e', 3)} t = Add(d, e) {pair('t', 'u', 1)} n = {NORM.format('u')} {pair('n', 'Y', 2)} }}",
        ["Dequantize Add Requantize Normalize Mul Add FakeQuantize"],
    ),
    "scale and bias that are quantised, too": (
        f"({TENSOR} X, {TENSOR} R) => ({TENSOR} Y) {{ {pair('X', 'd')} {pair('R', 'e', 3)} t = Add(d, e) "
        f"{pair('t', 'u', 1)} gd = DequantizeLinear(gq, ws) bd = DequantizeLinear(bq, ws) "
        f"n = LayerNormalization<axis = -1>(u, gd, bd) {pair('n', 'Y', 2)} }}",
        ["FakeQuantize Add Requantize Normalize Mul Add FakeQuantize"],
    ),
    "the dequantised result has several readers": (
        f"({TENSOR} X) => ({TENSOR} Y, {TENSOR} Z) {{ n = {NORM.format('X')} {pair('n', 'd')} Y = Neg(d) Z = Abs(d) }}",
        ["Normalize Mul Add FakeQuantize"],
    ),
    "a float product behind it": (
        f"{X} {{ n = {NORM.format('X')} {pair('n', 'd')} Y = MatMul(d, w) }}",
        ["Normalize Mul Add FakeQuantize"],
    ),
    "a scale that other pairs share": (
        f"({TENSOR} X) => ({TENSOR} Y, {TENSOR} Z) {{ n = {NORM.format('X')} {pair('n', 'Y')} "
        f"a = Abs(X) {pair('a', 'Z')} }}",
        ["Normalize Mul Add FakeQuantize"],
    ),
}


@pytest.mark.parametrize("case", CHAINS)
def test_pairs_are_steps(case: str) -> None:
    check(model(CHAINS[case][0]), CHAINS[case][1])


@pytest.mark.parametrize("stored", [np.uint16, np.int16, ml_dtypes.uint4, ml_dtypes.int4])
@pytest.mark.parametrize("opset", [17, 20, 21, 23])
def test_types_and_opsets(stored: Any, opset: int) -> None:
    """Before opset 21 these types are ONNX Runtime's own, and its domain is that of the nodes."""
    domain = "" if opset >= 21 else "com.microsoft"
    steps = f"{pair('X', 'd', 0, domain)} n = {NORM.format('d')} {pair('n', 'm', 1, domain)} a = Relu(m)"
    proto = model(f"{X} {{ {steps} {pair('a', 'Y', 2, domain)} }}", stored, opset)
    custom, _ = optimize(proto, target="custom-op")
    assert steps_of(custom) == ["FakeQuantize Normalize Mul Add FakeQuantize Relu FakeQuantize"]
    feeds = feeds_of(proto)
    expected = run(proto, feeds, optimized=False)["Y"]
    portable, _ = optimize(proto)
    step = 1.6 * 8 / 2.0 ** (16 if np.dtype(stored).kind in "iu" else 4)
    # ONNX Runtime drops the Relu in front of 4 bits, where the quantisation does not do the same.
    for got in (harness.run(harness.create_session(custom, "custom"), feeds), run(portable, feeds, optimized=False)):
        apart = np.abs(got["Y"] - expected)
        assert apart.max() <= step * 1.01, "a tie"
        assert np.mean(apart > 1e-6) <= 0.01


@pytest.mark.parametrize("opset", [13, 17, 19, 21, 23])
def test_spelled_out_normalization(opset: int) -> None:
    domain = "" if opset >= 21 else "com.microsoft"
    reduce = "ReduceMean<axes = [-1]>({})" if opset < 18 else "ReduceMean({}, last)"
    norm = (
        f"m = {reduce.format('d')} c = Sub(d, m) p = Pow(c, two) v0 = {reduce.format('p')} v1 = Add(v0, e) r = Sqrt(v1)"
    )
    graph = f"{X} {{ {pair('X', 'd', 0, domain)} {norm} n = Div(c, r) {pair('n', 'Y', 1, domain)} }}"
    more = {"two": np.array(2, F32), "e": np.array(1e-5, F32), "last": np.array([-1], np.int64)}
    custom, _ = optimize(model(graph, np.int16, opset, **more), target="custom-op")
    assert steps_of(custom) == ["FakeQuantize Normalize FakeQuantize"]


@given(data=st.data())
def test_the_bits_of_the_two_nodes(data: st.DataObject) -> None:
    """Per tensor, per axis and in blocks, around Relu, which rounds nothing."""
    numbers = Numbers(data.draw(st.integers(0, 2**32 - 1)))
    stored = data.draw(st.sampled_from([np.uint16, np.int16, ml_dtypes.uint4, ml_dtypes.int4]))
    shape = tuple(data.draw(st.lists(st.integers(1, 9), min_size=2, max_size=4)))
    x = numbers.normal(shape, F32, 0.0, 1.0)
    pairs = [with_zero_point(data.draw(quantizations(numbers, shape, stored, F32, broadcast=False)), stored)]
    pairs.append(with_zero_point(data.draw(quantizations(numbers, shape, stored, F32, broadcast=False)), stored))
    proto = around_relu(x, *pairs)
    custom, _ = optimize(proto, target="custom-op")
    assert steps_of(custom) == ["FakeQuantize Relu FakeQuantize"]
    code = oracle.dtype_code(np.zeros(1, stored))
    value = exact_programs.fake_quantized(x, pairs[0], code)
    value = exact_programs.fake_quantized(np.maximum(value, F32(0)), pairs[1], code)
    portable, _ = optimize(proto)
    for each, provider in ((custom, "custom"), (portable, "cpu"), (portable, "ep"), (proto, "cpu")):
        got = harness.run(harness.create_session(each, provider), {"X": x})["Y"]
        np.testing.assert_array_equal(got, value, provider)
    exact = in_float64(np.maximum(in_float64(x.astype(np.float64), pairs[0], code), 0.0), pairs[1], code)
    step = float(pairs[1].scale.max()) * 1.01  # a tie
    assert np.abs(value - exact).max(initial=0) <= step
    assert np.mean(np.abs(value - exact) > 1e-5 * np.abs(exact) + 1e-9) <= 0.05


def with_zero_point(p: Parameters, stored: Any) -> Parameters:
    return p if p.zero_point is not None else dataclasses.replace(p, zero_point=np.zeros(p.scale.shape, stored))


def in_float64(x: Array, p: Parameters, code: int) -> Array:
    """What the two nodes are, without the rounding of float32."""
    scale, zero = (
        oracle.expand_parameter(each.astype(np.float64), x.shape, p.axis, p.block_size)
        for each in (p.scale, p.zero_point)
    )
    low, high = oracle.INTEGER_RANGE[code]
    return (np.clip(np.rint(x / scale) + zero, low, high) - zero) * scale


def around_relu(x: Array, *pairs: Parameters) -> onnx.ModelProto:
    nodes, value, fixed = [], "X", {}
    for index, p in enumerate(pairs):
        names = [f"s{index}", f"z{index}"]
        fixed |= dict(zip(names, (p.scale, p.zero_point), strict=True))
        layout = {"axis": p.axis, "block_size": p.block_size}
        nodes.append(helper.make_node("QuantizeLinear", [value, *names], [f"q{index}"], **layout))
        value = "Y" if index else "d"
        nodes.append(helper.make_node("DequantizeLinear", [f"q{index}", *names], [value], **layout))
        if not index:
            nodes.append(helper.make_node("Relu", ["d"], ["r"]))
            value = "r"
    return harness.build_model(nodes, {"X": x}, {"Y": TensorProto.FLOAT}, fixed, shapes={"Y": x.shape})


def test_no_zero_point() -> None:
    graph = f"{X} {{ n = {NORM.format('X')} q = QuantizeLinear<output_dtype = 4>(n, s0) Y = DequantizeLinear(q, s0) }}"
    custom, _ = optimize(model(graph), target="custom-op")
    assert steps_of(custom) == ["Normalize Mul Add FakeQuantize"]
    check(model(graph), ["Normalize Mul Add FakeQuantize"])


# --- what only looks like a pair -------------------------------------------------------------------------------------

NONE = "Normalize Mul Add Quantize"
LEFT: dict[str, tuple[str, list[str], str]] = {
    "another scale": (
        f"{X} {{ n = {NORM.format('X')} q = QuantizeLinear(n, s0, z0) Y = DequantizeLinear(q, s1, z0) }}",
        [NONE],
        "the node at the other end has other parameters",
    ),
    "another zero point": (
        f"{X} {{ n = {NORM.format('X')} q = QuantizeLinear(n, s0, z0) Y = DequantizeLinear(q, s0, z1) }}",
        [NONE],
        "the node at the other end has other parameters",
    ),
    "another zero point in front": (
        f"{X} {{ q = QuantizeLinear(X, s0, z0) d = DequantizeLinear(q, s0, z1) Y = {NORM.format('d')} }}",
        ["Dequantize Normalize Mul Add"],
        "the node at the other end has other parameters",
    ),
    "the integers are an output as well": (
        f"({TENSOR} X) => ({TENSOR} Y, uint16[2,5,16] n_q) {{ n = {NORM.format('X')} "
        "n_q = QuantizeLinear(n, s0, z0) d = DequantizeLinear(n_q, s0, z0) Y = Neg(d) }",
        [NONE],
        "is an output of the graph",
    ),
    "the integers have two readers": (
        f"({TENSOR} X) => ({TENSOR} Y, {TENSOR} Z) {{ n = {NORM.format('X')} q = QuantizeLinear(n, s0, z0) "
        "Y = DequantizeLinear(q, s0, z0) Z = DequantizeLinear(q, s1, z0) }",
        [NONE],
        "is used elsewhere as well",
    ),
    "what is quantised is an output as well": (
        f"({TENSOR} X) => ({TENSOR} Y, {TENSOR} n) {{ n = {NORM.format('X')} {pair('n', 'Y')} }}",
        ["Normalize Mul Add"],
        "is an output of the graph",
    ),
    "the dequantised input has another reader": (
        f"({TENSOR} X) => ({TENSOR} Y, {TENSOR} Z) {{ {pair('X', 'd')} Z = Neg(d) Y = {NORM.format('d')} }}",
        ["Dequantize Normalize Mul Add"],
        "is used elsewhere as well",
    ),
    "what moves the integers behind it": (
        f"({TENSOR} X) => (float[10,16] Y) {{ n = {NORM.format('X')} {pair('n', 'd')} r = Reshape(d, shape) "
        f"{pair('r', 'Y')} }}",
        [NONE],
        "ONNX Runtime runs it on the integers",
    ),
    "what moves the integers in front of it": (
        f"(float[10,16] X) => (float[10,16] Y) {{ {pair('X', 'd')} r = Reshape(d, shape) {pair('r', 'e')} "
        f"Y = {NORM.format('e')} }}",
        ["Dequantize Normalize Mul Add"],
        "ONNX Runtime runs it on the integers",
    ),
    "a product with quantised weights behind it": (
        f"{X} {{ n = {NORM.format('X')} {pair('n', 'd')} k = DequantizeLinear(wq, ws) Y = MatMul(d, k) }}",
        [NONE],
        "with another kernel",
    ),
    "a value that is read twice": (
        f"{X} {{ {pair('X', 'd')} a = Tanh(d) {pair('a', 'c', 1)} m = Mul(c, d) {pair('m', 'Y', 2)} }}",
        [],
        "is read again in a chain",
    ),
    "a sum behind an activation": (
        f"({TENSOR} X, {TENSOR} R) => ({TENSOR} Y) {{ {pair('X', 'd')} a = Sigmoid(d) {pair('a', 'c', 1)} "
        f"{pair('R', 'e', 3)} t = Add(c, e) {pair('t', 'Y', 2)} }}",
        [],
        "is part of a chain with Add",
    ),
    "a product in front of an activation": (
        f"({TENSOR} X, {TENSOR} R) => ({TENSOR} Y) {{ {pair('X', 'd')} {pair('R', 'e', 3)} t = Mul(d, e) "
        f"{pair('t', 'c', 1)} a = Sigmoid(c) {pair('a', 'Y', 2)} }}",
        [],
        "is the end of a chain with Mul",
    ),
}


@pytest.mark.parametrize("case", LEFT)
def test_left_with_its_reason(case: str) -> None:
    graph, wanted, reason = LEFT[case]
    proto = model(graph)
    check(proto, wanted, has_product="MatMul" in graph)
    _, result = optimize(proto)
    assert any(reason in site.message for site in result.sites), [site.message for site in result.sites]


def test_what_a_caller_can_override_is_never_a_pair() -> None:
    graph = f"{X} {{ n = {NORM.format('X')} {pair('n', 'Y')} }}"
    check(model(graph), ["Normalize Mul Add FakeQuantize"])
    for name in ("s0", "z0"):
        custom, result = optimize(model(graph, inputs=(name,)), target="custom-op")
        assert steps_of(custom) == [NONE]
        assert any(site.reason == "parameter_not_constant" for site in result.sites), name


@pytest.mark.parametrize("stored", [np.int8, np.uint8])
def test_pairs_of_bytes_stay(stored: Any) -> None:
    """Chains from and to bytes are faster, and what is around them may run in integers."""
    graph = f"{X} {{ {pair('X', 'd')} n = {NORM.format('d')} {pair('n', 'm', 1)} a = Gelu(m) {pair('a', 'Y', 2)} }}"
    proto = model(graph, stored)
    custom, result = optimize(proto, target="custom-op")
    assert steps_of(custom) == ["Dequantize Normalize Mul Add Quantize", "Dequantize Gelu Quantize"]
    name = np.dtype(stored).name
    assert any(f"a pair of {name} is faster as two nodes" in site.message for site in result.sites)


@pytest.mark.parametrize("dtype", [onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16])
def test_between_16_bit_floats_two_nodes_round_more_often(dtype: int) -> None:
    more = {"h": np.array(0.01, onnx.helper.tensor_dtype_to_np_dtype(dtype))}
    name = onnx.TensorProto.DataType.Name(dtype).lower()
    nodes = "a = Gelu(X) q = QuantizeLinear(a, h, z0) Y = DequantizeLinear(q, h, z0)"
    graph = f"({name}[2,5,16] X) => ({name}[2,5,16] Y) {{ {nodes} }}"
    custom, _ = optimize(model(graph, opset=22, **more), target="custom-op")
    assert steps_of(custom) == ["Gelu Quantize"]


@pytest.mark.parametrize("where", ["the pair is inside", "a pair across the branch"])
def test_branches(where: str) -> None:
    """A pair is one inside of a branch; with its QuantizeLinear outside it is none."""
    inside = where == "the pair is inside"
    taken = (
        f"n = {NORM.format('X')} {pair('n', 'A')}"
        if inside
        else f"d = DequantizeLinear(q, s0, z0) A = {NORM.format('d')}"
    )
    outside = "" if inside else "q = QuantizeLinear(X, s0, z0)"
    branches = f"then_branch = t () => ({TENSOR} A) {{ {taken} }}, else_branch = e () => ({TENSOR} B) {{ B = Neg(X) }}"
    graph = f"{X} {{ {outside} Y = If(yes)<{branches}> }}"
    proto = model(graph)
    custom, _ = optimize(proto, target="custom-op")
    (branch,) = [node for node in custom.graph.node if node.op_type == "If"]
    (body,) = [each.g for each in branch.attribute if each.name == "then_branch"]
    (node,) = [node for node in body.node if node.domain == "ai.normfuse"]
    text = next(each.s.decode() for each in node.attribute if each.name == "steps")
    assert ("FakeQuantize" in text) == inside
    feeds = feeds_of(proto)
    got = harness.run(harness.create_session(custom, "custom"), feeds)["Y"]
    apart = np.abs(got - run(proto, feeds, optimized=False)["Y"])
    assert apart.max() <= 2e-3
    assert np.mean(apart > 1e-5) <= 0.05


def test_too_many_scales_for_each_channel() -> None:
    """The library reads 15 tensors in one node at most, such a pair counted as three: here scale, bias and four."""
    fixed = {f"c{i}": np.linspace(1e-4, 2e-4, SHAPE[1]).astype(F32) for i in range(6)}
    fixed["zs"] = np.full(SHAPE[1], 32768, np.uint16)
    text = "n = " + NORM.format("X")
    for i, value in enumerate(["n", "d0", "d1", "d2", "d3", "d4"]):
        text += f" a{i} = Gelu({value}) q{i} = QuantizeLinear(a{i}, c{i}, zs) d{i} = DequantizeLinear(q{i}, c{i}, zs)"
    proto = model(f"{X} {{ {text} Y = Identity(d5) }}", **fixed)
    custom, _ = optimize(proto, target="custom-op")
    assert max(steps.count("FakeQuantize") for steps in steps_of(custom)) == 4
    feeds = feeds_of(proto)
    got = harness.run(harness.create_session(custom, "custom"), feeds)["Y"]
    assert np.abs(got - run(proto, feeds, optimized=False)["Y"]).max() <= 2e-3


# --- what is said ----------------------------------------------------------------------------------------------------


def test_inspect_says_that_both_nodes_are_fused() -> None:
    graph = f"{X} {{ {pair('X', 'd')} n = {NORM.format('d')} {pair('n', 'm', 1)} a = Gelu(m) {pair('a', 'Y', 2)} }}"
    proto = model(graph)
    for index, node in enumerate(proto.graph.node):
        node.name = f"{node.op_type}_{index}"
    said = quantization_of(load_model(proto), with_pairs=True)
    assert said is not None
    (group,) = said.pairs
    assert group.becomes == "fused"
    assert len(group.nodes) == 6


def test_verification_notices_a_pair_that_is_missing() -> None:
    """However little it changes, and where another step of the node reads the same scale."""
    graph = f"{X} {{ {pair('X', 'd')} n = {NORM.format('d')} {pair('n', 'm', 0)} a = Gelu(m) {pair('a', 'Y', 0)} }}"
    proto = model(graph)
    for target in ("custom-op", "portable"):
        whole, _ = optimize(proto, target=target)
        assert normfuse.verify(proto, whole).result == "agree"
    damaged, _ = optimize(proto, target="custom-op")
    (node,) = fused_nodes(damaged)
    (program,) = [each for each in node.attribute if each.name == "steps"]
    steps = program.s.decode().split("; ")
    at = [index for index, step in enumerate(steps) if step.startswith("FakeQuantize")][1]
    labels = labels_of(read_program(program.s.decode()))
    gone = labels_of(read_program(steps[at]))
    kept = [value for label, value in zip(("X", *labels), node.input, strict=True) if label not in gone]
    del node.input[:]
    node.input.extend(kept)
    program.s = "; ".join(steps[:at] + steps[at + 1 :]).encode()
    assert normfuse.verify(proto, damaged).result == "differ"


@pytest.mark.parametrize("target", ["portable", "custom-op"])
def test_of_a_rank_that_is_not_known(target: str) -> None:
    """ONNX Runtime would take the result of a custom operator for one number, and refuse the convolution behind it."""
    values = {"s": np.array(0.01, F32), "z": np.array(30000, np.uint16), "w": np.full((1, 2, 1, 1), 0.5, F32)}
    graph = helper.make_graph(
        [
            helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"], "quantize"),
            helper.make_node("DequantizeLinear", ["q", "s", "z"], ["d"], "dequantize"),
            helper.make_node("Relu", ["d"], ["r"], "relu"),
            helper.make_node("Conv", ["r", "w"], ["y"], "conv"),
        ],
        "unknown",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, None)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [onnx.numpy_helper.from_array(value, name) for name, value in values.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=harness.IR_VERSION)
    x = np.random.default_rng(0).normal(size=(1, 2, 3, 4)).astype(F32)
    (expected,) = harness.create_session(model, "cpu").run(None, {"x": x})
    written, _ = optimize(model, target=target)
    (got,) = harness.create_session(written, "ep").run(None, {"x": x})
    np.testing.assert_array_equal(got, expected)
