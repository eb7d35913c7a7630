"""Operators in the QOperator format as Q/DQ pairs: the same numbers, and ONNX Runtime's same operators again.

What moves elements and what stays is in tests/corpus/qlinear.txt.

The oracle is the operator among float64, whose result is rounded to an integer here.
"""

from __future__ import annotations

import platform
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import harness
import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper, parser

import normfuse
from normfuse.files.model_files import load_model
from normfuse.graph_rewrites.quantization.qoperator_to_qdq import has_operators, write_pairs
from normfuse.host.integer_products import sums_saturate
from normfuse.meaning import Array
from normfuse.sessions.creation import Choices, session_model
from normfuse.sessions.session_model import in_pairs, makes_operators

pytestmark = pytest.mark.without_vnni

X86 = platform.machine().lower() in ("x86_64", "amd64")
on_x86 = pytest.mark.skipif(not X86, reason="on this processor QLinear operators stay as they are")
F32, F64 = np.float32, np.float64
KINDS = ("int8", "uint8")
LARGEST_WEIGHT = 64  # beyond it sums of uint8 x int8 may saturate
Numbers = dict[str, Array]


def parsed(text: str, held: Numbers, opset: int = 13) -> onnx.ModelProto:
    """A model of that graph, with those of the constants that it names."""
    model = parser.parse_model(f'<ir_version: 8, opset_import: ["": {opset}, "com.microsoft": 1]> {text}')
    named = set(re.findall(r"\w+", text))
    model.graph.initializer.extend(numpy_helper.from_array(held[name], name) for name in held if name in named)
    return model


def written(model: onnx.ModelProto) -> tuple[onnx.ModelProto, int]:
    changed = ir.from_proto(model)
    count = write_pairs(changed)
    made = ir.to_proto(changed)
    onnx.checker.check_model(made, full_check=True)
    return made, count


def operators(model: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in model.graph.node]


def results(model: onnx.ModelProto, feeds: Numbers, *, optimised: bool = False) -> list[Array]:
    """What ONNX Runtime's CPU provider computes by itself."""
    options = harness.session_options("cpu")
    if not optimised:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    data = model.SerializeToString()
    return list(onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"]).run(None, feeds))


# --- each operator ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """An operator that reads x, of that shape, and perhaps others, and what it is among numbers."""

    text: str
    shape: tuple[int, ...]
    exact: Callable[[Numbers], Array]
    """Of the numbers that x, w and the others stand for."""
    weights: tuple[int, ...] = ()
    channels: int | None = None
    """The dimension of the weights with a scale for each index; None: they have one scale."""
    bias: int = 0
    others: dict[str, str] = field(default_factory=dict)
    """Further inputs of the graph, with their types."""
    result: str = "quantised"


def convolved(n: Numbers) -> Array:
    padded = np.pad(n["x"], ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))
    return np.einsum("bchwij,ocij->bohw", windows, n["w"]) + n.get("b", np.zeros(1))[:, None, None]


def pooled(n: Numbers) -> Array:
    x = n["x"]
    return x.reshape(*x.shape[:2], x.shape[2] // 2, 2, x.shape[3] // 2, 2).mean((3, 5))


def product(n: Numbers) -> Array:
    return n["x"] @ n["w"] + n.get("b", 0)


CONV = "QLinearConv<pads = [1, 1, 1, 1]>(x, xs, xz, w, ws, wz, ys, yz"
GEMM = "com.microsoft.QGemm"
IMAGE, ROWS, SEQUENCE = (1, 3, 6, 8), (5, 8), (2, 5, 8)
CASES = {
    "conv": Case(f"{CONV})", IMAGE, convolved, (4, 3, 3, 3)),
    "conv, bias": Case(f"{CONV}, b)", IMAGE, convolved, (4, 3, 3, 3), bias=4),
    "conv, channels": Case(f"{CONV}, b)", IMAGE, convolved, (4, 3, 3, 3), channels=0, bias=4),
    "matmul": Case("QLinearMatMul(x, xs, xz, w, ws, wz, ys, yz)", SEQUENCE, product, (8, 6)),
    "matmul, columns": Case("QLinearMatMul(x, xs, xz, w, ws, wz, ys, yz)", SEQUENCE, product, (8, 6), channels=1),
    "matmul of activations": Case(
        "QLinearMatMul(x, xs, xz, v, vs, vz, ys, yz)",
        SEQUENCE,
        lambda n: n["x"] @ n["v"],
        others={"v": "KIND[2, 8, 5]"},
    ),
    "gemm": Case(f"{GEMM}(x, xs, xz, w, ws, wz, b, ys, yz)", ROWS, product, (8, 6), bias=6),
    "gemm, columns": Case(
        f"{GEMM}<transB = 1>(x, xs, xz, w, ws, wz, b, ys, yz)",
        ROWS,
        lambda n: n["x"] @ n["w"].T + n["b"],
        (6, 8),
        channels=0,
        bias=6,
    ),
    "gemm without bias": Case(f"{GEMM}(x, xs, xz, w, ws, wz, , ys, yz)", ROWS, product, (8, 6), channels=1),
    "gemm to floats": Case(f"{GEMM}(x, xs, xz, w, ws, wz, b)", ROWS, product, (8, 6), bias=6, result="float"),
    "add": Case(
        "com.microsoft.QLinearAdd(x, xs, xz, v, vs, vz, ys, yz)",
        SEQUENCE,
        lambda n: n["x"] + n["v"],
        others={"v": "KIND[5, 8]"},
    ),
    "add without zero points": Case(
        "com.microsoft.QLinearAdd(x, xs, , v, vs, , ys)",
        SEQUENCE,
        lambda n: n["x"] + n["v"],
        others={"v": "KIND[8]"},
    ),
    "mul": Case(
        "com.microsoft.QLinearMul(x, xs, xz, v, vs, vz, ys, yz)",
        SEQUENCE,
        lambda n: n["x"] * n["v"],
        others={"v": "KIND[2, 5, 1]"},
    ),
    "sigmoid": Case(
        "com.microsoft.QLinearSigmoid(x, xs, xz, ys, yz)", SEQUENCE, lambda n: 1.0 / (1.0 + np.exp(-n["x"]))
    ),
    "leaky relu": Case(
        "com.microsoft.QLinearLeakyRelu<alpha = 0.25>(x, xs, xz, ys, yz)",
        SEQUENCE,
        lambda n: np.where(n["x"] < 0, 0.25 * n["x"], n["x"]),
    ),
    "average pool": Case(
        "com.microsoft.QLinearAveragePool<kernel_shape = [2, 2], strides = [2, 2]>(x, xs, xz, ys, yz)", IMAGE, pooled
    ),
    "global average pool": Case(
        "com.microsoft.QLinearGlobalAveragePool<channels_last = 0>(x, xs, xz, ys, yz)",
        IMAGE,
        lambda n: n["x"].mean((2, 3), keepdims=True),
    ),
    "concat": Case(
        "com.microsoft.QLinearConcat<axis = 1>(ys, yz, x, xs, xz, v, vs, vz)",
        SEQUENCE,
        lambda n: np.concatenate([n["x"], n["v"]], 1),
        others={"v": "KIND[2, 3, 8]"},
    ),
    "where": Case(
        "com.microsoft.QLinearWhere(c, x, xs, xz, v, vs, vz, ys, yz)",
        SEQUENCE,
        lambda n: np.where(n["c"], n["x"], n["v"]),
        others={"v": "KIND[5, 8]", "c": "bool[2, 5, 1]"},
    ),
}


@dataclass
class Drawn:
    """A case with numbers."""

    model: onnx.ModelProto
    feeds: Numbers
    expected: Array
    """Of integers before they are rounded; of floats the result."""


def drawn(case: Case, kind: str, seed: int, opset: int = 13) -> Drawn:
    generator = np.random.default_rng(seed)
    low, high = np.iinfo(kind).min, np.iinfo(kind).max

    def integers(shape: tuple[int, ...]) -> Array:
        return generator.integers(low, high + 1, shape).astype(kind)

    held = {f"{name}s": np.array(generator.uniform(0.005, 0.05), F32) for name in "xv"}
    held |= {f"{name}z": integers(()) for name in "xvy"}
    extent = () if case.channels is None else (case.weights[case.channels],)
    held["w"] = generator.integers(-LARGEST_WEIGHT, LARGEST_WEIGHT + 1, case.weights).astype(np.int8)
    held["ws"] = generator.uniform(0.005, 0.05, extent).astype(F32)
    held["wz"] = np.zeros(extent, np.int8)
    held["b"] = generator.integers(-2000, 2000, case.bias).astype(np.int32)
    feeds = {"x": integers(case.shape)}
    for name, declared in case.others.items():
        shape = tuple(map(int, re.findall(r"\d+", declared.partition("[")[2])))
        feeds[name] = generator.random(shape) < 0.5 if declared.startswith("bool") else integers(shape)
    numbers = numbers_of(case, held | feeds)
    exact = case.exact(numbers)
    held["ys"] = np.array(max(float(np.abs(exact).max()), 1e-3) / 100, F32)
    given = ", ".join(f"{kind_} {name}" for name, kind_ in {"x": f"KIND{list(case.shape)}", **case.others}.items())
    dims = ["n"] * exact.ndim if case.result == "float" else list(exact.shape)
    of_result = "float" if case.result == "float" else "KIND"
    text = f"g ({given}) => ({of_result}[{', '.join(map(str, dims))}] Y) {{ Y = {case.text} }}".replace("KIND", kind)
    if case.result != "float":
        zero = float(held["yz"]) if "yz" in case.text else 0.0
        exact = np.clip(exact / F64(held["ys"]) + zero, low, high)
    return Drawn(parsed(text, held, opset), feeds, exact)


def numbers_of(case: Case, held: Numbers) -> Numbers:
    """What the integers stand for."""

    def number(name: str) -> Array:
        scale, zero = held[f"{name}s"].astype(F64), held[f"{name}z"].astype(F64)
        zero = zero if re.search(rf"\b{name}z\b", case.text) else np.zeros(())
        if scale.ndim:
            at = [1] * len(case.weights)
            at[case.channels or 0] = -1
            scale, zero = scale.reshape(at), zero.reshape(at)
        return (held[name].astype(F64) - zero) * scale

    found = {name: number(name) for name in ("x", "v", "w") if name in held}
    if case.bias:
        found["b"] = held["b"] * held["xs"].astype(F64) * held["ws"].astype(F64)
    return found | {name: held[name] for name in ("c",) if name in held}


def assert_near(got: Array, case: Case, expected: Array) -> None:
    if case.result == "float":
        assert got.dtype == F32
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max())
    else:
        assert np.abs(got.astype(F64) - expected).max() <= 0.5 + 1e-3


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", CASES)
@given(seed=st.integers(0, 2**32 - 1))
def test_the_numbers_of_the_operator(name: str, kind: str, seed: int) -> None:
    case = CASES[name]
    one = drawn(case, kind, seed)
    made, count = written(one.model)
    assert count == 1
    names = [each.name for each in made.graph.output]
    assert names == ["Y"]
    assert Counter(operators(made))["QuantizeLinear"] == (case.result == "quantised")
    assert not has_operators(ir.from_proto(made).graph)
    (got,) = results(made, one.feeds)
    assert got.dtype == (F32 if case.result == "float" else np.dtype(kind))
    assert_near(got, case, one.expected)


@on_x86
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", CASES)
def test_the_numbers_of_a_session(name: str, kind: str) -> None:
    for seed in range(3):
        one = drawn(CASES[name], kind, seed)
        session = normfuse.InferenceSession(one.model, harness.session_options("cpu"))
        assert_near(session.run(None, one.feeds)[0], CASES[name], one.expected)


@pytest.mark.parametrize("opset", [11, 12, 13, 17, 19, 21, 22])
@pytest.mark.parametrize("name", CASES)
def test_the_host_makes_the_same_operator_of_the_pairs(name: str, opset: int, tmp_path: object) -> None:
    one = drawn(CASES[name], "uint8", 1, opset)
    made, count = written(one.model)
    assert count == 1
    options = harness.session_options("cpu")
    options.optimized_model_filepath = f"{tmp_path}/optimised.onnx"
    onnxruntime.InferenceSession(made.SerializeToString(), options, providers=["CPUExecutionProvider"])
    found = [each for each in operators(onnx.load(options.optimized_model_filepath)) if each != "Transpose"]
    assert found == operators(one.model)


@pytest.mark.parametrize("opset", [11, 13])
def test_weights_with_a_scale_for_each_channel(opset: int) -> None:
    one = drawn(CASES["conv, channels"], "int8", 2, opset)
    # One zero point for all channels, and a model that imports none of com.microsoft's operators.
    (zero,) = (each for each in one.model.graph.initializer if each.name == "wz")
    zero.CopyFrom(numpy_helper.from_array(np.zeros((), np.int8), "wz"))
    del one.model.opset_import[1:]
    made, _ = written(one.model)
    assert {(each.domain, each.op_type) for each in made.graph.node} >= {
        ("" if opset >= 13 else "com.microsoft", "DequantizeLinear"),
        ("", "Conv"),
    }
    assert_near(results(made, one.feeds)[0], CASES["conv, channels"], one.expected)


def test_a_scale_of_one_element_is_a_scalar() -> None:
    one = drawn(CASES["conv, bias"], "int8", 3)
    for each in one.model.graph.initializer:
        if each.name in ("xs", "xz", "ws", "wz", "ys", "yz"):
            each.dims[:] = [1]
    made, _ = written(one.model)
    scales = {each.name: list(each.dims) for each in made.graph.initializer}
    pairs = [node for node in made.graph.node if node.op_type in ("QuantizeLinear", "DequantizeLinear")]
    assert [scales[name] for node in pairs for name in node.input[1:]] == [[]] * 8
    assert not {"xs", "xz", "ws", "wz", "ys", "yz"} & set(scales)  # what nothing reads is not kept
    assert_near(results(made, one.feeds)[0], CASES["conv, bias"], one.expected)


# --- what is around them ---------------------------------------------------------------------------------------------

SIGMOID = "g (int8[4] x) => (int8[4] Y) { Y = com.microsoft.QLinearSigmoid(x, xs, xz, ys, yz) }"
PLAIN = {
    "xs": np.array(0.1, F32),
    "xz": np.array(3, np.int8),
    "ys": np.array(0.01, F32),
    "yz": np.array(-9, np.int8),
}


def test_subgraphs_are_written_and_functions_are_not() -> None:
    model = parsed(SIGMOID, PLAIN)
    body = parser.parse_graph("t () => (int8[4] B) { B = com.microsoft.QLinearSigmoid(x, xs, xz, ys, yz) }")
    other = parser.parse_graph("e () => (int8[4] C) { C = Identity(x) }")
    model.graph.node.append(helper.make_node("If", ["condition"], ["Z"], then_branch=body, else_branch=other))
    model.graph.input.append(helper.make_tensor_value_info("condition", TensorProto.BOOL, []))
    model.graph.output.append(helper.make_tensor_value_info("Z", TensorProto.INT8, [4]))
    made, count = written(model)
    assert count == 2
    assert [each.name for each in made.graph.output] == ["Y", "Z"]
    x = np.array([-128, -3, 40, 127], np.int8)
    y, z = results(made, {"x": x, "condition": np.array(True)})
    np.testing.assert_array_equal(y, z)
    function = helper.make_function(
        "own",
        "Same",
        ["x", "xs", "xz", "ys", "yz"],
        ["y"],
        [helper.make_node("QLinearSigmoid", ["x", "xs", "xz", "ys", "yz"], ["y"], domain="com.microsoft")],
        [helper.make_opsetid("", 13), helper.make_opsetid("com.microsoft", 1)],
    )
    call = parsed(SIGMOID.replace("com.microsoft.QLinearSigmoid", "own.Same"), PLAIN)
    call.functions.append(function)
    call.opset_import.append(helper.make_opsetid("own", 1))
    assert written(call)[1] == 0


# --- sessions --------------------------------------------------------------------------------------------------------


STEP = 0.2071


def network(kind: str = "int8") -> tuple[onnx.ModelProto, Numbers]:
    """Two products with an addition of what one node more reads, between floats."""
    generator = np.random.default_rng(6)
    held = {"xs": np.array(0.0513, F32), "ps": np.array(STEP, F32), "ws": np.array(0.0197, F32)}
    held |= {"z": np.array(5, kind), "wz": np.array(0, np.int8)}
    held |= {f"w{i}": generator.integers(-100, 101, (64, 64)).astype(np.int8) for i in range(2)}
    text = """g (float[16, 64] x) => (float[16, 64] Y) {
      q = QuantizeLinear(x, xs, z) p = QLinearMatMul(q, xs, z, w0, ws, wz, ps, z)
      a = com.microsoft.QLinearAdd(p, ps, z, q, xs, z, ps, z) r = QLinearMatMul(a, ps, z, w1, ws, wz, ps, z)
      b = com.microsoft.QLinearAdd(r, ps, z, a, ps, z, ps, z) Y = DequantizeLinear(b, ps, z) }"""
    return parsed(text, held), {"x": generator.normal(0, 3, (16, 64)).astype(F32)}


def products(session_of: Callable[..., object], model: onnx.ModelProto, path: str) -> Counter[tuple[str, int]]:
    """Operator of each product in integers, with the element type of its activations."""
    options = harness.session_options("cpu")
    options.optimized_model_filepath = path
    session_of(model.SerializeToString(), options)
    graph = onnx.load(path).graph
    types = {each.name: each.data_type for each in graph.initializer}
    return Counter((node.op_type, types[node.input[2]]) for node in graph.node if node.op_type == "QLinearMatMul")


@on_x86
@pytest.mark.parametrize("kind", KINDS)
def test_a_session_multiplies_uint8(kind: str, tmp_path: object) -> None:
    model, feeds = network(kind)
    found = products(normfuse.InferenceSession, model, f"{tmp_path}/optimised.onnx")
    assert found == {("QLinearMatMul", TensorProto.UINT8): 2}
    (expected,) = results(written(model)[0], feeds)
    (got,) = normfuse.InferenceSession(model, harness.session_options("cpu")).run(None, feeds)
    if kind == "uint8" and sums_saturate():
        (expected,) = results(model, feeds)  # as ONNX Runtime is wrong with the file
    assert np.abs(got - expected).max() <= 1.01 * STEP
    assert np.mean(got != expected) <= 0.01


def unlike(options: onnxruntime.SessionOptions) -> Iterator[onnxruntime.SessionOptions]:
    levels = onnxruntime.GraphOptimizationLevel
    for level in (levels.ORT_DISABLE_ALL, levels.ORT_ENABLE_BASIC):
        options.graph_optimization_level = level
        yield options
    options.graph_optimization_level = levels.ORT_ENABLE_EXTENDED
    options.add_session_config_entry("session.disable_quant_qdq", "1")
    yield options
    options.add_session_config_entry("session.disable_quant_qdq", "0")
    options.add_session_config_entry("optimization.disable_specified_optimizers", "QDQSelectorActionTransformer")
    yield options


def test_where_the_host_makes_no_operators_of_pairs_they_stay() -> None:
    source = load_model(network()[0])
    assert makes_operators(onnxruntime.SessionOptions())
    count = 0
    for options in unlike(onnxruntime.SessionOptions()):
        assert not makes_operators(options)
        nodes = [node.op_type for node in session_model(source, options, Choices()).model.graph]
        assert nodes.count("QLinearMatMul") == 2
        count += 1
    assert count == 4


def test_operators_stay_where_products_are_not_to_be_chosen() -> None:
    source = load_model(network()[0])
    made = session_model(source, onnxruntime.SessionOptions(), Choices(choose_products=False))
    assert [node.op_type for node in made.model.graph].count("QLinearMatMul") == 2


def test_a_model_is_written_once_and_stays_itself() -> None:
    source = load_model(network()[0])
    before = ir.to_proto(source.model)
    made = in_pairs(source)
    assert made is in_pairs(source)
    assert made is not source
    assert ir.to_proto(source.model) == before
    plain = load_model(parsed("g (float[2] x) => (float[2] Y) { Y = Relu(x) }", {}))
    assert in_pairs(plain) is plain


def test_its_quantisation_is_removed() -> None:
    model, feeds = network()
    held = {each.name: numpy_helper.to_array(each).astype(F64) for each in model.graph.initializer}
    session = normfuse.InferenceSession(model, harness.session_options("cpu"), remove_quantization=True)
    (got,) = session.run(None, feeds)
    steps = got / STEP
    assert np.mean(np.abs(steps - np.round(steps)) > 0.01) > 0.3

    def within(value: Array, scale: str) -> Array:
        return np.clip(value, (-128 - 5) * held[scale], (127 - 5) * held[scale])

    x = within(feeds["x"].astype(F64), "xs")
    a = within(within(x @ held["w0"] * held["ws"], "ps") + x, "ps")
    expected = within(within(a @ held["w1"] * held["ws"], "ps") + a, "ps")
    np.testing.assert_allclose(got, expected, atol=1e-4)


# --- softmax ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("dims", "axis"),
    [("2,3,40", -1), ("2,3,40", 2), ("7", 0), ("1,1,1,1", 3), ("0,5", 1), ("2,16,4,30", 1), ("5,3,40", -3)],
)
def test_a_softmax_is_exact_to_a_step_in_one_chain(kind: str, dims: str, axis: int) -> None:
    """More than ONNX Runtime's, whose table has seven bits."""
    shape, info = tuple(map(int, dims.split(","))), np.iinfo(kind)
    held = {"xs": np.array(0.06, F32), "xz": np.array(info.min + 100, kind), "ys": np.array(1 / 256, F32)}
    held["yz"] = np.array(info.min, kind)
    text = f"g ({kind}[{dims}] x) => ({kind}[{dims}] Y)"
    text += f"{{ Y = com.microsoft.QLinearSoftmax<axis = {axis}, opset = 13>(x, xs, xz, ys, yz) }}"
    x = np.random.default_rng(3).integers(info.min, info.max, shape, endpoint=True).astype(kind)
    session = normfuse.InferenceSession(parsed(text, held), harness.session_options("cpu"))
    (got,) = session.run(None, {"x": x})
    powers = np.exp((x.astype(F64) - F64(held["xz"])) * F64(held["xs"]))
    exact = np.clip(powers / powers.sum(axis, keepdims=True) * 256 + info.min, info.min, info.max)
    assert (got.dtype, got.shape) == (np.dtype(kind), shape)
    assert np.all(np.abs(got - exact) <= 0.5 + 1e-4)
    if shape[0] == 2:
        assert harness.fused_types(session) in ([], [["DequantizeLinear", "QuantizeLinear", "Softmax"]])
