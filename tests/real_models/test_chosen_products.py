"""Products of 8-bit tensors in the form that a session runs fastest: the same numbers, and no product lost.

What they are is compared with ONNX Runtime's result without any optimisation, which multiplies what the integers stand
for in float.
"""

from __future__ import annotations

import copy
import platform
import re
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import harness
import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper
from parsed_models import parse, results
from quantizer_styles import picture, products_of_integers

import normfuse
from normfuse.files.model_files import external_tensors, load_model
from normfuse.graph_rewrites import Treatment, rewrite
from normfuse.graph_rewrites.quantization.int8_products import INT8_AS_UINT8, activation_types
from normfuse.graph_rewrites.quantization.product_times import are_faster_in_float
from normfuse.graph_rewrites.quantization.qlinear_elementwise import write_elementwise
from normfuse.host.config_entries import disable_optimizer, disabled_optimizers
from normfuse.host.integer_products import sums_saturate
from normfuse.meaning import Array
from normfuse.sessions import creation as sessions
from normfuse.sessions import host_optimization
from normfuse.sessions import session_model as session_models
from normfuse.sessions.creation import Choices, session_model
from normfuse.spec import ProgramStep, write_program

pytestmark = pytest.mark.without_vnni

X86 = platform.machine().lower() in ("x86_64", "amd64")
on_x86 = pytest.mark.skipif(not X86, reason="int8 is what integer kernels take on this processor")
F32 = np.float32


def rewritten(model: onnx.ModelProto, products: str) -> tuple[onnx.ModelProto, dict[str, int]]:
    made = ir.from_proto(model)
    treatment = Treatment(fold_weights="session", products=products)  # type: ignore[arg-type]
    counts = rewrite(made, target="standard", treatment=treatment).counts
    return ir.to_proto(made), counts


def element_types(model: onnx.ModelProto) -> dict[str, np.dtype]:
    """Of the integers of each QuantizeLinear and DequantizeLinear, by the zero point."""
    held = {each.name: onnx.numpy_helper.to_array(each).dtype for each in model.graph.initializer}
    return {
        node.name: held[node.input[2]]
        for node in model.graph.node
        if node.op_type in ("QuantizeLinear", "DequantizeLinear") and node.input[2] in held
    }


# --- int8 as uint8 ---------------------------------------------------------------------------------------------------

READ_TWICE = """g (float[4,8] x) => (float[4,8] y) {
  [q] xq = QuantizeLinear(x, xs, xz) [d1] xd = DequantizeLinear(xq, xs, xz) [d2] xe = DequantizeLinear(xq, xs, xz)
  [w] wd = DequantizeLinear(W, ws, wz) p = MatMul(xd, wd)
  [pq] pq = QuantizeLinear(p, ps, pz) [pd] pd = DequantizeLinear(pq, ps, pz)
  [b] bd = DequantizeLinear(B, bs, bz) s = Add(pd, bd) a = Add(s, xe)
  [yq] yq = QuantizeLinear(a, ys, yz) [yd] y = DequantizeLinear(yq, ys, yz) }"""


def tensors(generator: np.random.Generator, largest: int = 127) -> dict[str, Array]:
    def zero() -> Array:
        return np.array(generator.integers(-128, 128), np.int8)

    def scale() -> Array:
        return np.array(generator.uniform(0.01, 0.2), F32)

    weights = generator.integers(-largest, largest + 1, (8, 8)).astype(np.int8)
    bias = generator.integers(-128, 128, 8).astype(np.int8)
    parameters = {f"{name}s": scale() for name in ("x", "w", "p", "b", "y")} | {f"{name}z": zero() for name in "xpby"}
    return parameters | {"W": weights, "B": bias, "wz": np.array(0, np.int8)}


@on_x86
@given(seed=st.integers(0, 2**32 - 1), products=st.sampled_from(["integer", "exact integer"]))
def test_the_same_numbers_in_uint8(seed: int, products: str) -> None:
    generator = np.random.default_rng(seed)
    held = tensors(generator)
    held["W"][0, 0] = 127  # so that it is beyond what never saturates
    model = parse(READ_TWICE, **held)
    after, counts = rewritten(model, products)
    assert counts[INT8_AS_UINT8] == 3
    kinds = element_types(after)
    assert kinds.pop("w") == (np.uint8 if products == "exact integer" else np.int8)
    assert set(kinds.values()) == {np.dtype(np.uint8)}
    x = generator.normal(0, 4, (4, 8)).astype(F32)
    x[0, :3] = np.inf, -np.inf, np.nan
    np.testing.assert_array_equal(results(after, {"x": x})["y"], results(model, {"x": x})["y"])
    names = [each.name for each in after.graph.initializer]
    assert not set(names) & {"xz", "pz", "yz", "bz", "B"}  # what nothing reads is not kept


@on_x86
@pytest.mark.parametrize("largest", [64, 65])
def test_weights_that_cannot_saturate_stay(largest: int) -> None:
    held = tensors(np.random.default_rng(1), 64)
    held["W"][3, 3] = -largest
    kinds = element_types(rewritten(parse(READ_TWICE, **held), "exact integer")[0])
    assert kinds["w"] == (np.int8 if largest == 64 else np.uint8)


@on_x86
def test_a_session_multiplies_in_integers() -> None:
    generator = np.random.default_rng(7)
    model, x = parse(READ_TWICE, **tensors(generator)), {"x": generator.normal(0, 2, (4, 8)).astype(F32)}
    expected, step = results(model, x)["y"], float(onnx.numpy_helper.to_array(model.graph.initializer[4]))
    data = model.SerializeToString()
    for choose in (True, False):
        session = normfuse.InferenceSession(data, choose_products=choose)
        counts = products_of_integers(
            lambda given, options, choose=choose: normfuse.InferenceSession(given, options, choose_products=choose),
            data,
            x,
        )
        assert counts == ({"QLinearMatMul": 1} if choose else {})
        assert np.abs(session.run(None, x)[0] - expected).max() <= 1.01 * step


# Weights, and the product of integers that the session makes of uint8 and these as uint8; None: it runs in float, or
# where no sum saturates as QLinearMatMul.
WEIGHTS = {
    "zero point": ("wd = DequantizeLinear(W, ws, wz) p = MatMul(xd, wd)", "QLinearMatMul"),
    "no zero point": ("wd = DequantizeLinear(W, ws) p = MatMul(xd, wd)", "QLinearMatMul"),
    "transposed": (
        "wd = DequantizeLinear(W, ws, wz) wt = Transpose<perm = [1, 0]>(wd) p = MatMul(xd, wt)",
        "QLinearMatMul",
    ),
    "no zero point for each channel": ("wd = DequantizeLinear<axis = 1>(W, wc) p = MatMul(xd, wd)", "QLinearMatMul"),
    "quantised here": (
        "Wq = QuantizeLinear(WF, ws, wz) wd = DequantizeLinear(Wq, ws, wz) p = MatMul(xd, wd)",
        "QLinearMatMul",
    ),
    "computed": ("Wi = Identity(W) wd = DequantizeLinear(Wi, ws, wz) p = MatMul(xd, wd)", None),
    "of the caller": ("wd = DequantizeLinear(V, ws, wz) p = MatMul(xd, wd)", None),
    "of the caller's scale": ("wd = DequantizeLinear(W, vs) p = MatMul(xd, wd)", None),
    "read by others": (
        "wd = DequantizeLinear(W, ws, wz) q = MatMul(xd, wd) n = ReduceMax<keepdims = 0>(wd) p = Max(q, n)",
        "MatMulIntegerToFloat",
    ),
}


def with_weights(text: str) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """A model of int8 with such weights, whose sums are large, and its feeds."""
    generator = np.random.default_rng(9)
    weights = generator.integers(100, 128, (64, 64)).astype(np.int8)
    held = {"W": weights, "WF": weights * F32(0.02), "ws": np.array(0.02, F32), "wc": np.full(64, 0.02, F32)}
    held |= {"wz": np.array(0, np.int8), "low": np.array(-128, np.int8)}
    held |= {"xs": np.array(0.02, F32), "ys": np.array(20.01, F32)}
    nodes = f"""{{ xq = QuantizeLinear(x, xs, low) xd = DequantizeLinear(xq, xs, low) xe = DequantizeLinear(xq, xs, low)
      {text} pq = QuantizeLinear(p, ys, low) pd = DequantizeLinear(pq, ys, low) a = Add(pd, xe)
      yq = QuantizeLinear(a, ys, low) y = DequantizeLinear(yq, ys, low) }}"""
    x = {"x": np.abs(generator.normal(0, 3, (4, 64))).astype(F32)}
    given = {"V": ("int8[64,64]", weights), "vs": ("float", held["ws"])}
    named = {name: each for name, each in given.items() if re.search(rf"\b{name}\b", text)}
    inputs = "".join(f", {kind} {name}" for name, (kind, _) in named.items())
    model = parse(f"g (float[4,64] x{inputs}) => (float[4,64] y) {nodes}", **held)
    return model, x | {name: array for name, (_, array) in named.items()}


def products_of_session(model: onnx.ModelProto, feeds: dict[str, Array]) -> dict[str, int]:
    return products_of_integers(
        lambda held, options: normfuse.InferenceSession(held, options), model.SerializeToString(), feeds
    )


@on_x86
@pytest.mark.parametrize(
    ("text", "product"), [*WEIGHTS.values(), ("p = MatMul(xd, WF)", None)], ids=[*WEIGHTS, "float"]
)
def test_no_sum_saturates_that_did_not(text: str, product: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """ONNX Runtime multiplies in float here, where two nodes read the activations, and sums u8 x s8 in 16 bits."""
    monkeypatch.setattr(session_models, "sums_saturate", lambda: True)
    model, feeds = with_weights(text)
    data, expected = model.SerializeToString(), results(model, feeds)["y"]
    assert expected.max() > 300
    assert np.abs(normfuse.InferenceSession(data).run(None, feeds)[0] - expected).max() <= 1.01 * 20.01
    assert np.mean(normfuse.InferenceSession(data).run(None, feeds)[0] != expected) <= 0.02
    assert products_of_session(model, feeds) == ({} if product is None else {product: 1})


@on_x86
@pytest.mark.parametrize(("text", "product"), WEIGHTS.values(), ids=WEIGHTS)
def test_where_no_sum_saturates(text: str, product: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then weights may be what they are, also where they cannot become uint8 beforehand."""
    exact = not sums_saturate()
    monkeypatch.setattr(session_models, "sums_saturate", lambda: False)
    model, feeds = with_weights(text)
    assert products_of_session(model, feeds) == {product or "QLinearMatMul": 1}
    if exact:
        got, expected = normfuse.InferenceSession(model).run(None, feeds)[0], results(model, feeds)["y"]
        assert np.abs(got - expected).max() <= 1.01 * 20.01
        assert np.mean(got != expected) <= 0.02


@on_x86
@pytest.mark.parametrize("weights", ["DequantizeLinear(V, ws, wz)", "Identity(WF)"])
def test_no_sum_of_uint8_saturates_because_its_result_is_uint8(weights: str) -> None:
    """ONNX Runtime multiplies in float where the result is int8, and read twice, and the activations are not."""
    generator = np.random.default_rng(14)
    integers = generator.integers(100, 128, (32, 32, 1)).astype(np.int8)
    held = {"xs": np.array(0.02, F32), "ys": np.array(10.01, F32), "low": np.array(-128, np.int8)}
    held |= {"zero": np.array(0, np.uint8), "WF": integers * F32(0.02), "ws": np.array(0.02, F32)}
    held |= {"wz": np.array(0, np.int8)}
    text = f"""g (float[1,32,9] x, int8[32,32,1] V) => (float[1,32,9] y) {{
      xq = QuantizeLinear(x, xs, zero) xd = DequantizeLinear(xq, xs, zero) wd = {weights} p = Conv(xd, wd)
      pq = QuantizeLinear(p, ys, low) pd = DequantizeLinear(pq, ys, low) pe = DequantizeLinear(pq, ys, low)
      a = Add(pd, pe) yq = QuantizeLinear(a, ys, low) y = DequantizeLinear(yq, ys, low) }}"""
    model = parse(text, **held)
    feeds = {"x": np.abs(generator.normal(0, 3, (1, 32, 9))).astype(F32), "V": integers}
    expected = results(model, feeds)["y"]
    assert expected.max() > 300
    got = normfuse.InferenceSession(model.SerializeToString()).run(None, feeds)[0]
    assert np.abs(got - expected).max() <= 2.01 * 10.01
    assert np.mean(got != expected) <= 0.02


@on_x86
def test_a_type_that_is_also_an_attribute() -> None:
    text = READ_TWICE.replace("QuantizeLinear(x,", "QuantizeLinear<output_dtype = 3>(x,")
    model = parse(text, **tensors(np.random.default_rng(10)))
    x = {"x": np.random.default_rng(11).normal(0, 2, (4, 8)).astype(F32)}
    after, counts = rewritten(model, "integer")
    assert counts[INT8_AS_UINT8] == 3
    np.testing.assert_array_equal(results(after, x)["y"], results(model, x)["y"])


LEFT = {
    "is an output": ("=> (float[4,8] y)", "=> (float[4,8] y, int8[4,8] xq)"),
    "is read by others": (
        "g (float[4,8] x) => (float[4,8] y) {",
        "g (float[4,8] x) => (float[4,8] y, int8[8,4] t) { t = Transpose<perm = [1, 0]>(xq)",
    ),
    "has a scale of the caller's": (
        "g (float[4,8] x) => (float[4,8] y) {",
        "g (float[4,8] x, float t) => (float[4,8] y) { ",
    ),
    "has a zero point of the caller's": ("g (float[4,8] x)", "g (float[4,8] x, int8 xz)"),
}


@on_x86
@pytest.mark.parametrize("change", LEFT.values(), ids=LEFT)
def test_what_is_seen_stays_int8(change: tuple[str, str]) -> None:
    held = tensors(np.random.default_rng(2))
    text = READ_TWICE.replace(*change)
    given = {"x": np.random.default_rng(3).normal(0, 2, (4, 8)).astype(F32)}
    if "int8 xz" in text:
        given["xz"] = held.pop("xz")
    if "Transpose" in text:  # behind the QuantizeLinear
        head, _, rest = text.partition(" t = Transpose<perm = [1, 0]>(xq)")
        text = head + rest.replace("[d1]", "t = Transpose<perm = [1, 0]>(xq) [d1]")
    if "float t)" in text:
        text, given["t"] = text.replace("(x, xs,", "(x, t,"), held["xs"]
    model = parse(text, **held)
    after, _ = rewritten(model, "integer")
    kinds = element_types(after)
    assert kinds.get("q", np.int8) == kinds.get("d1", np.int8) == np.int8
    assert kinds["pq"] == kinds["pd"] == np.uint8  # the others do
    for name, value in results(model, given).items():
        np.testing.assert_array_equal(results(after, given)[name], value, err_msg=name)


@on_x86
@pytest.mark.parametrize("size", [1, 8])
def test_scales_that_are_no_scalars_stay_int8(size: int) -> None:
    """ONNX Runtime has no operators of uint8 for these, and says so, some only in a run."""
    held = tensors(np.random.default_rng(12))
    held |= {"xs": np.linspace(0.1, 0.2, size, dtype=F32), "xz": np.zeros(size, np.int8)}
    model = parse(READ_TWICE, **held)
    after, _ = rewritten(model, "integer")
    assert element_types(after)["q"] == element_types(after)["d1"] == np.int8
    x = {"x": np.random.default_rng(13).normal(0, 2, (4, 8)).astype(F32)}
    step = float(held["ys"])
    got = normfuse.InferenceSession(model.SerializeToString()).run(None, x)[0]
    assert np.abs(got - results(model, x)["y"]).max() <= 1.01 * step


def test_what_runs_in_integers_anyhow_stays() -> None:
    text = READ_TWICE.replace("a = Add(s, xe)", "a = Identity(s)").replace("[d2] xe = DequantizeLinear(xq, xs, xz)", "")
    model = parse(text, **tensors(np.random.default_rng(4)))
    after, counts = rewritten(model, "exact integer")
    assert INT8_AS_UINT8 not in counts
    assert set(element_types(after).values()) == {np.dtype(np.int8)}


GEMM = """g (float[4,8] x) => (float[4,8] y) {
  q = QuantizeLinear(x, s, z) a = DequantizeLinear(q, s, z) b = DequantizeLinear(q, s, z)
  w = DequantizeLinear<axis = 0>(W, ws) g = Gemm<transB = 1>(a, w)
  gq = QuantizeLinear(g, s, z) h = DequantizeLinear(gq, s, z) i = Add(h, b)
  yq = QuantizeLinear(i, s, z) y = DequantizeLinear(yq, s, z) }"""


@on_x86
def test_weights_of_each_channel_without_zero_points() -> None:
    """ONNX Runtime 1.24's QGemm takes a zero point that is not there for one number, and fails in a run."""
    generator = np.random.default_rng(4)
    weights = generator.integers(-60, 61, (8, 8)).astype(np.int8)
    scales = generator.uniform(0.01, 0.02, 8).astype(F32)
    model = parse(GEMM, W=weights, ws=scales, s=np.array(0.05, F32), z=np.array(3, np.int8))
    feeds = {"x": generator.normal(0, 2, (4, 8)).astype(F32)}
    session = normfuse.InferenceSession(model.SerializeToString())
    (got,) = session.run(None, feeds)
    assert np.abs(got - results(model, feeds)["y"]).max() <= 0.05 * 1.001  # a step, where a sum is next to a tie


def test_reads_of_a_subgraph() -> None:
    text = """g (float[4,8] x, bool c) => (float[4,8] y) {
      [q] xq = QuantizeLinear(x, xs, xz) [d1] xd = DequantizeLinear(xq, xs, xz)
      [w] wd = DequantizeLinear(W, ws, wz) p = MatMul(xd, wd)
      y = If(c) <then_branch = t () => (float[4,8] a) { xe = DequantizeLinear(xq, xs, xz) a = Add(p, xe) },
                 else_branch = e () => (float[4,8] b) { b = Identity(p) }> }"""
    model = parse(
        text, **{k: v for k, v in tensors(np.random.default_rng(5)).items() if k in ("xs", "xz", "W", "ws", "wz")}
    )
    after, counts = rewritten(model, "exact integer")
    assert counts.get(INT8_AS_UINT8, 0) == X86
    x = np.random.default_rng(6).normal(0, 2, (4, 8)).astype(F32)
    for branch in (True, False):
        given = {"x": x, "c": np.array(branch)}
        np.testing.assert_array_equal(results(after, given)["y"], results(model, given)["y"])


# --- networks --------------------------------------------------------------------------------------------------------


STEP = 0.0297431  # as odd as the other scales, so that few sums are ties


@dataclass
class Network:
    """A convolution network in QDQ form with quantised weights; `name` is its last float."""

    stored: type = np.uint8
    seed: int = 0
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    held: dict[str, Array] = field(default_factory=dict)
    name: str = "x"

    def __post_init__(self) -> None:
        self.generator = np.random.default_rng(self.seed)
        low = np.iinfo(self.stored).min
        self.held |= {"s": np.array(STEP, F32), "z": np.array(low + 128, self.stored), "ws": np.array(0.0051377, F32)}
        self.held |= {"wz": np.array(0, np.int8), "g": np.array(1 / 251.3, F32), "low": np.array(low, self.stored)}

    def add(self, op_type: str, *inputs: str, **attributes: object) -> str:
        output = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op_type, list(inputs), [output], f"{op_type}.{output}", **attributes))
        return output

    def pair(self, value: str, scale: str = "s", zero_point: str = "z") -> Network:
        quantized = self.add("QuantizeLinear", value, scale, zero_point)
        self.name = self.add("DequantizeLinear", quantized, scale, zero_point)
        return self

    def weights(self, *shape: int) -> str:
        name = f"W{len(self.held)}"
        self.held[name] = self.generator.integers(-60, 61, shape).astype(np.int8)
        return self.add("DequantizeLinear", name, "ws", "wz")

    def conv(self, *weights: int, group: int = 1) -> Network:
        pads = [weights[2] // 2] * 4
        return self.pair(self.add("Conv", self.name, self.weights(*weights), group=group, pads=pads))

    def product(self, operator: str, *weights: int, **attributes: int) -> Network:
        return self.pair(self.add(operator, self.name, self.weights(*weights), **attributes))

    def silu(self) -> Network:
        x = self.name
        gate = self.pair(self.add("Sigmoid", x), "g", "low").name
        return self.pair(self.add("Mul", x, gate))

    def residual(self, before: str) -> Network:
        return self.pair(self.add("Add", self.name, before))

    def model(self, shape: tuple[int, ...], opset: int = 17) -> onnx.ModelProto:
        nodes = [*self.nodes, helper.make_node("Identity", [self.name], ["y"])]
        return harness.build_model(nodes, {"x": np.zeros(shape, F32)}, {"y": TensorProto.FLOAT}, self.held, opset=opset)


def dense(stored: type = np.uint8) -> onnx.ModelProto:
    """Convolutions that sum 32 channels, with SiLU and a residual between them."""
    net = Network(stored).pair("x").conv(32, 16, 3, 3).silu()
    before = net.name
    return net.conv(32, 32, 3, 3).silu().residual(before).conv(32, 32, 1, 1).silu().model((1, 16, 24, 24))


def mainly_depthwise(stored: type = np.uint8) -> Network:
    """Convolutions of each channel by itself, of low images, and one that is none: behind it is [2, 16, 2, 96]."""
    net = Network(stored).pair("x")
    for _ in range(3):
        net.conv(32, 1, 5, 5, group=32).silu()
    return net.conv(16, 32, 1, 1)


def depthwise(stored: type = np.uint8) -> onnx.ModelProto:
    return mainly_depthwise(stored).model((2, 32, 2, 96))


def matrices(columns: int) -> onnx.ModelProto:
    """The same, with two products of matrices behind it."""
    net = mainly_depthwise().product("MatMul", 96, columns).product("MatMul", columns, 96)
    return net.model((2, 32, 2, 96))


def classifier(columns: int, **attributes: int) -> onnx.ModelProto:
    """The same, with one product with many weights behind it, as many networks for images have."""
    net = mainly_depthwise()
    net.pair(net.add("Flatten", net.name))
    net.product("Gemm", *((columns, 3072) if attributes else (3072, columns)), **attributes)
    return net.model((2, 32, 2, 96))


def image(model: onnx.ModelProto) -> dict[str, Array]:
    shape = [each.dim_value for each in model.graph.input[0].type.tensor_type.shape.dim]
    return {"x": picture(np.random.default_rng(8), shape)}


@pytest.mark.parametrize("stored", [np.uint8, np.int8])
def test_the_estimate(stored: type) -> None:
    assert are_faster_in_float(ir.from_proto(depthwise(stored)))
    assert not are_faster_in_float(ir.from_proto(dense(stored)))
    assert not are_faster_in_float(ir.from_proto(depthwise(np.uint16)))  # runs in float anyhow
    assert activation_types(ir.from_proto(dense(stored))) == {ir.DataType.from_numpy(np.dtype(stored))}


@pytest.mark.parametrize(
    "model", [matrices(1024), classifier(1000), classifier(1000, transB=1)], ids=["MatMul", "Gemm", "Gemm, transposed"]
)
@pytest.mark.parametrize("known", [True, False])
def test_the_estimate_counts_products_of_matrices(model: onnx.ModelProto, known: bool) -> None:
    """Which take half the time in integers, and more than the convolutions here."""
    given = copy.deepcopy(model)
    if not known:
        given.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "batch"
    assert not are_faster_in_float(ir.from_proto(given))


@pytest.mark.parametrize("model", [matrices(64), classifier(4)], ids=["MatMul", "Gemm"])
def test_small_products_of_matrices_are_no_reason_for_integers(model: onnx.ModelProto) -> None:
    assert are_faster_in_float(ir.from_proto(model))


def test_sequences_of_unknown_length_are_taken_for_the_pixels_of_the_image() -> None:
    """As in a network that makes tokens of the parts of an image."""
    net = mainly_depthwise()
    net.held["shape"] = np.array([0, 0, -1], np.int64)
    net.name = net.add("Transpose", net.add("Reshape", net.name, "shape"), perm=[0, 2, 1])
    few, many = (copy.deepcopy(net).product("MatMul", 16, columns).model((2, 32, 2, 96)) for columns in (8, 4096))
    for model, in_float in ((few, True), (many, False)):
        model.graph.input[0].type.tensor_type.shape.dim[3].dim_param = "width"
        assert are_faster_in_float(ir.from_proto(model)) == in_float


def test_only_matrices_of_bytes_count() -> None:
    """Another product runs in float in either form."""
    net = mainly_depthwise()
    net.held["F"] = np.ones((96, 4096), F32)
    net.pair(net.add("MatMul", net.name, "F"))
    assert are_faster_in_float(ir.from_proto(net.model((2, 32, 2, 96))))


def ways(model: onnx.ModelProto, **chosen: bool) -> dict[str, int]:
    def create(data: bytes, options: onnxruntime.SessionOptions) -> onnxruntime.InferenceSession:
        return normfuse.InferenceSession(data, options, **chosen)

    return products_of_integers(create, model.SerializeToString(), image(model))


def steps_off(model: onnx.ModelProto, **chosen: bool) -> tuple[int, float]:
    """By how many steps a session's result is off at most, and the share of elements that are."""
    x = image(model)
    session = normfuse.InferenceSession(model.SerializeToString(), **chosen)
    off = np.abs(session.run(None, x)[0] - results(model, x)["y"]) / STEP
    return round(float(off.max())), float(np.mean(off > 0.5))


@on_x86
@pytest.mark.parametrize("stored", [np.uint8, np.int8])
@pytest.mark.parametrize("network", [dense, depthwise])
def test_networks_run_in_the_faster_form(network: Callable[[type], onnx.ModelProto], stored: type) -> None:
    model = network(stored)
    convolutions = sum(node.op_type == "Conv" for node in model.graph.node)
    assert ways(model) == ({"QLinearConv": convolutions} if network is dense else {})
    for chosen in ({}, {"choose_products": False}, {"blocked_layout": False}, {"fold_weights": False}):
        most, share = steps_off(model, **chosen)
        # A tie that goes the other way moves what follows it by a step or two.
        assert most <= 2, chosen
        assert share <= 0.01, chosen


def wide(net: Network, channels: int) -> Network:
    """A convolution between pairs of 16 bits, with a scale for each channel."""
    net.held |= {"s16": np.array(STEP / 256, F32), "z16": np.array(32768, np.uint16)}
    net.held |= {"V": net.generator.integers(-60, 61, (channels, channels, 3, 3)).astype(np.int8)}
    net.held |= {"vs": net.generator.uniform(0.001, 0.01, channels).astype(F32), "vz": np.zeros(channels, np.int8)}
    net.pair(net.name, "s16", "z16")
    weights = net.add("DequantizeLinear", "V", "vs", "vz", axis=0)
    return net.pair(net.add("Conv", net.name, weights, pads=[1] * 4), "s16", "z16").pair(net.name)


@on_x86
def test_weights_of_products_in_float_are_not_quantised_again() -> None:
    """Where others run in integers; by one scale for all channels, these would be off by 40 steps."""
    model = wide(Network().pair("x").conv(32, 16, 3, 3).silu(), 32).silu().conv(32, 32, 1, 1).silu()
    network = model.model((1, 16, 24, 24), opset=21)
    assert ways(network) == {"QLinearConv": 2}
    most, share = steps_off(network)
    assert most <= 2
    assert share <= 0.01


@on_x86
def test_the_users_word_on_integers_holds() -> None:
    model = dense()

    def create(data: bytes, given: onnxruntime.SessionOptions) -> onnxruntime.InferenceSession:
        given.add_session_config_entry("session.disable_quant_qdq", "1")
        return normfuse.InferenceSession(data, given)

    assert products_of_integers(create, model.SerializeToString(), image(model)) == {}


@on_x86
def test_options_that_served_a_network_in_float() -> None:
    """What that session needed, which is to leave pairs, is not taken for the user's word."""

    def create(data: bytes, given: onnxruntime.SessionOptions) -> onnxruntime.InferenceSession:
        first = normfuse.InferenceSession(depthwise().SerializeToString(), given)
        assert first.get_session_options().get_session_config_entry("session.disable_quant_qdq") == "1"
        return normfuse.InferenceSession(data, given)

    model = dense()
    convolutions = sum(node.op_type == "Conv" for node in model.graph.node)
    assert products_of_integers(create, model.SerializeToString(), image(model)) == {"QLinearConv": convolutions}


@on_x86
def test_elementwise_operators_of_integers_become_chains() -> None:
    made = session_model(load_model(dense()), onnxruntime.SessionOptions(), Choices()).model
    operators = Counter(node.op_type for node in made.graph)
    assert operators["QLinearConv"] == operators["Sigmoid"] == 3
    assert not set(operators) & {"QLinearSigmoid", "QLinearMul", "QLinearAdd"}
    assert operators["Transpose"] <= 2  # the channels are last from the first convolution to the last one


@on_x86
def test_a_softmax_between_pairs_is_a_chain_of_ours() -> None:
    """ONNX Runtime's operator of integers takes ten times as long, and is off by many steps in long rows."""
    net = Network().pair("x").conv(32, 16, 3, 3).silu().conv(32, 32, 3, 3).silu()
    net.pair(net.add("Softmax", net.name, axis=-1), "g", "low")
    source = load_model(net.model((1, 16, 24, 24)))
    made = session_model(source, onnxruntime.SessionOptions(), Choices()).model
    operators = Counter(node.op_type for node in made.graph)
    assert operators["QLinearConv"] == 2
    assert operators["Softmax"] == 1
    assert "QLinearSoftmax" not in operators


OPERATORS = {
    "QLinearAdd": ("Add", 2, {}),
    "QLinearLeakyRelu": ("LeakyRelu", 1, {"alpha": 0.3}),
    "QLinearMul": ("Mul", 2, {}),
    "QLinearSigmoid": ("Sigmoid", 1, {}),
}
FORMULAS: dict[str, Callable[..., Array]] = {
    "Add": np.add,
    "LeakyRelu": lambda x: np.where(x < 0, np.float64(F32(0.3)) * x, x),
    "Mul": np.multiply,
    "Sigmoid": lambda x: 1 / (1 + np.exp(-x)),
}


def of_integers(operator: str, held: dict[str, Array], dtype: type = np.uint8) -> onnx.ModelProto:
    _, operands, attributes = OPERATORS[operator]
    inputs = [each for i in range(operands) for each in (f"x{i}", f"s{i}", f"z{i}")] + ["ys", "yz"]
    node = helper.make_node(operator, inputs, ["y"], "node", domain="com.microsoft", **attributes)
    shapes = [(3, 5), (1, 5)][:operands]
    given = {f"x{i}": np.zeros(shape, dtype) for i, shape in enumerate(shapes)}
    made = harness.build_model([node], given, {"y": helper.np_dtype_to_tensor_dtype(np.dtype(dtype))}, held, opset=17)
    made.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    return made


@given(seed=st.integers(0, 2**32 - 1))
@pytest.mark.parametrize("operator", OPERATORS)
def test_operators_of_integers_written_out(operator: str, seed: int) -> None:
    generator = np.random.default_rng(seed)
    name, operands, _ = OPERATORS[operator]
    labels = [*map(str, range(operands)), "y"]
    scales = {label: F32(generator.uniform(0.005, 0.1)) for label in labels}
    zeros = {label: np.uint8(generator.integers(0, 256)) for label in labels}
    held = {"ys": np.array(scales["y"]), "yz": np.array(zeros["y"])}
    for i in range(operands):
        held |= {f"s{i}": np.array(scales[str(i)]), f"z{i}": np.array(zeros[str(i)])}
    model = of_integers(operator, held)
    after = ir.from_proto(model)
    assert write_elementwise(after.graph) == 1
    assert [node.op_type for node in after.graph] == ["DequantizeLinear"] * operands + [name, "QuantizeLinear"]
    feeds = {f"x{i}": generator.integers(0, 256, shape).astype(np.uint8) for i, shape in enumerate([(3, 5), (1, 5)])}
    feeds = {key: feeds[key] for key in sorted(feeds)[:operands]}
    got = results(ir.to_proto(after), feeds)["y"].astype(np.float64)
    real = [(feeds[f"x{i}"].astype(float) - zeros[str(i)]) * np.float64(scales[str(i)]) for i in range(operands)]
    unrounded = FORMULAS[name](*real) / np.float64(scales["y"]) + zeros["y"]
    assert np.abs(got - np.clip(unrounded, 0, 255)).max() <= 0.5 + 1e-3
    original = results(model, feeds)["y"].astype(np.float64)
    assert np.abs(got - original).max() <= 1  # ONNX Runtime's kernels of integers may be beside the nearest


@pytest.mark.parametrize("operator", OPERATORS)
def test_operators_of_int8_and_of_unknown_parameters_stay(operator: str) -> None:
    labels = [*map(str, range(OPERATORS[operator][1])), "y"]
    scales = {f"{'y' if each == 'y' else ''}s{'' if each == 'y' else each}": np.array(0.1, F32) for each in labels}
    zeros = {f"{'y' if each == 'y' else ''}z{'' if each == 'y' else each}": np.array(0, np.int8) for each in labels}
    assert write_elementwise(ir.from_proto(of_integers(operator, scales | zeros, np.int8)).graph) == 0
    unsigned = {key: value.astype(np.uint8) for key, value in zeros.items()}
    model = of_integers(operator, scales | unsigned)
    assert write_elementwise(ir.from_proto(model).graph) == 1
    del model.graph.initializer[-1]
    model.graph.input.append(helper.make_tensor_value_info("yz", TensorProto.UINT8, []))
    assert write_elementwise(ir.from_proto(model).graph) == 0


@on_x86
def test_int8_around_a_softmax_stays() -> None:
    """ONNX Runtime's QLinearSoftmax of uint8 is wrong for some types of the result and some dimensions."""
    text = READ_TWICE.replace("s = Add(pd, bd)", "sm = Softmax<axis = 0>(pd) s = Add(sm, bd)")
    model = parse(text, **tensors(np.random.default_rng(31)))
    after, _ = rewritten(model, "integer")
    kinds = element_types(after)
    assert kinds["pq"] == kinds["pd"] == np.int8
    assert kinds["q"] == kinds["yq"] == np.uint8


@on_x86
def test_float_weights_beside_a_pair_of_int8_stay_in_float() -> None:
    """ONNX Runtime makes uint8 of the pair, and would make int8 of the weights once the result is uint8."""
    text = """g (float[4,8] x) => (float[4,8] y) {
      [q] xq = QuantizeLinear(x, xs, xz) [d1] xd = DequantizeLinear(xq, xs, xz) p = MatMul(xd, WF)
      [pq] pq = QuantizeLinear(p, ps, pz) [pd] pd = DequantizeLinear(pq, ps, pz) [pe] pe = DequantizeLinear(pq, ps, pz)
      t = Neg(pe) a = Add(pd, t) [yq] yq = QuantizeLinear(a, ys, yz) [yd] y = DequantizeLinear(yq, ys, yz) }"""
    held = tensors(np.random.default_rng(32))
    used = ("xs", "xz", "ps", "pz", "ys", "yz")
    model = parse(text, WF=held["W"].astype(F32) / 64, **{name: held[name] for name in used})
    after, _ = rewritten(model, "exact integer")
    assert element_types(after).get("pq", np.int8) == np.int8


@on_x86
@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("refused", [1, 2, 3])
def test_a_model_that_onnxruntime_takes_only_as_it_is(refused: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where its operators of uint8 refuse parameters that those of float tensors take, or where it makes them only
    of a rewritten model: a warning says so, once. Where results are to change, the model as it is given is not what was
    asked for.
    """
    model, x = parse(READ_TWICE, **tensors(np.random.default_rng(33))), np.ones((4, 8), F32)
    create, tried = sessions._create, []

    def refusing(made: list[ir.Model], *arguments: object, **named: object) -> onnxruntime.InferenceSession:
        tried.append([node.op_type for node in made[0].graph])
        if len(tried) <= refused:
            raise normfuse.InvalidModelError("it has another word for it")
        return create(made, *arguments, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(sessions, "_create", refusing)
    if refused < 3:
        with pytest.warns(UserWarning, match="another word") as told:
            (got,) = normfuse.InferenceSession(model).run(None, {"x": x})
        (warning,) = told
        assert warning.filename == __file__
        assert ("not rewritten" in str(warning.message)) == (refused == 2)
        assert ("choose_products=False" in str(warning.message)) == (refused == 1)
        step = float(next(onnx.numpy_helper.to_array(each) for each in model.graph.initializer if each.name == "ys"))
        assert np.abs(got - results(model, {"x": x})["y"]).max() <= 1.01 * step
    else:
        with pytest.raises(normfuse.InvalidModelError, match="another word"):
            normfuse.InferenceSession(model)
    assert len(tried) == min(refused + 1, 3)
    assert len(tried) < 3 or tried[-1] == [node.op_type for node in model.graph.node]
    tried.clear()
    warned, fails = pytest.warns(UserWarning, match="blocked_layout=False"), pytest.raises(normfuse.InvalidModelError)
    with warned if refused == 1 else fails:
        normfuse.InferenceSession(model, remove_quantization=True)
    assert len(tried) == 2


# --- how a model is given, and options used again --------------------------------------------------------------------


def saved_with_data_outside(model: onnx.ModelProto, folder: Path) -> Path:
    folder.mkdir()
    copy, path = onnx.ModelProto(), folder / "model.onnx"
    copy.CopyFrom(model)
    onnx.save(copy, path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    return path


@on_x86
@pytest.mark.parametrize(("network", "products"), [(dense, {"QLinearConv": 3}), (depthwise, {})])
def test_weights_in_a_file_of_their_own(
    network: Callable[[type], onnx.ModelProto],
    products: dict[str, int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """ONNX Runtime leaves them there when it writes the optimised model into a temporary folder."""
    model = network(np.int8)
    x = image(model)
    table = np.ones_like(results(model, x)["y"])  # nothing is made of it
    model.graph.initializer.append(harness.initializer("table", table))
    model.graph.node[-1].CopyFrom(helper.make_node("Add", [*model.graph.node[-1].input, "table"], ["y"]))
    path = saved_with_data_outside(model, tmp_path / "model")
    made = session_model(load_model(path), onnxruntime.SessionOptions(), Choices()).model
    assert not any("temporary" in tensor.path for tensor in external_tensors(made))
    assert any(True for _ in external_tensors(made))
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    created = []

    def counted(*arguments: object, **named: object) -> onnxruntime.InferenceSession:
        created.append(arguments)
        return create(*arguments, **named)  # type: ignore[arg-type]

    create = sessions._create
    monkeypatch.setattr(sessions, "_create", counted)
    (got,) = normfuse.InferenceSession(path).run(None, x)
    assert len(created) == 1  # not once more, with the model as it was
    assert not list((tmp_path / "temporary").iterdir())
    assert np.abs(got - results(model, x)["y"]).max() <= 1.01 * STEP
    assert products_of_integers(lambda _, options: normfuse.InferenceSession(path, options), b"", x) == products


def test_bytes_whose_weights_are_where_the_options_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, key = dense(), "session.model_external_initializers_file_folder_path"
    path, other = (saved_with_data_outside(model, tmp_path / name) for name in ("one", "other"))
    monkeypatch.chdir(tmp_path)
    x, expected = image(model), results(model, image(model))["y"]
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry(key, str(path.parent))
    for form in (path.read_bytes(), str(other.relative_to(tmp_path)), path.read_bytes()):
        (got,) = normfuse.InferenceSession(form, options).run(None, x)
        assert np.abs(got - expected).max() <= 1.01 * STEP
        assert options.get_session_config_entry(key) == str(path.parent)  # the user's word
    ours = onnxruntime.SessionOptions()
    normfuse.InferenceSession(path, ours)
    with pytest.raises(normfuse.InvalidModelError, match="missing"):  # what that session needed is not the user's word
        normfuse.InferenceSession(path.read_bytes(), ours)


def with_float_weights() -> onnx.ModelProto:
    """Of which ONNX Runtime itself makes int8, so that the convolutions run in integers."""
    net = Network().pair("x")
    for i in range(3):
        net.held[f"F{i}"] = net.generator.normal(0, 0.05, (16, 16, 3, 3)).astype(F32)
        net.pair(net.add("Conv", net.name, f"F{i}", pads=[1] * 4)).silu()
    return net.model((1, 16, 24, 24))


@on_x86
@pytest.mark.parametrize("fold", [True, False])
def test_products_that_onnxruntime_makes_integers_of_stay(fold: bool) -> None:
    """In float they take 1.5 times as long, also on the blocked layout."""
    assert ways(with_float_weights(), fold_weights=fold) == {"QLinearConv": 3}


@on_x86
def test_options_that_served_a_network_with_folded_weights() -> None:
    """That session left ONNX Runtime's quantiser of float weights out; the user did not."""
    model = with_float_weights()
    first = wide(Network().pair("x"), 16).model((1, 16, 24, 24), opset=21).SerializeToString()

    def create(data: bytes, given: onnxruntime.SessionOptions) -> onnxruntime.InferenceSession:
        disable_optimizer(given, "GeluFusionL2")
        before = normfuse.InferenceSession(first, given)
        assert disabled_optimizers(before.get_session_options()) == ["GeluFusionL2", "WeightBiasQuantization"]
        session = normfuse.InferenceSession(data, given)
        assert disabled_optimizers(session.get_session_options()) == ["GeluFusionL2"]
        assert disabled_optimizers(given) == ["GeluFusionL2"]
        return session

    data = model.SerializeToString()
    assert products_of_integers(create, data, image(model)) == {"QLinearConv": 3}
    users = onnxruntime.SessionOptions()
    disable_optimizer(users, "WeightBiasQuantization")
    for each in (first, data, data):
        normfuse.InferenceSession(each, users)
        assert disabled_optimizers(users) == ["WeightBiasQuantization"]


@on_x86
def test_options_used_again_bring_no_warning(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """ONNX Runtime warns of an entry that is set again, and did so of three for each further session."""

    def overwritten(model: bytes | Path) -> list[str]:
        normfuse.InferenceSession(model, options)
        return re.findall(r"Config with key \[(.*?)\] already exists", capfd.readouterr().err)

    networks = {
        "integers": dense().SerializeToString(),
        "float": depthwise().SerializeToString(),
        "outside": saved_with_data_outside(depthwise(), tmp_path / "model"),
    }
    for network in networks.values():
        options = onnxruntime.SessionOptions()
        assert [overwritten(network) for _ in range(3)] == [[], [], []]
    # Where the next one needs other entries, each is set once. Options with providers are not copied.
    options = normfuse.session_options()
    assert overwritten(networks["float"]) == []
    changed = overwritten(networks["integers"])
    assert "session.disable_quant_qdq" in changed
    assert len(changed) == len(set(changed))


@pytest.mark.parametrize("shared", [True, False])
def test_options_serve_one_session_after_the_other(shared: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each sets entries that it needs, such as where its weights are. Sessions with other options do not wait."""
    at_once, most = 0, 0
    created, all_there = sessions.created, threading.Barrier(4, timeout=60)

    def slowly(*arguments: object) -> onnxruntime.InferenceSession:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        if shared:
            time.sleep(0.1)  # for a second one to come, if it may
        else:
            all_there.wait()
        at_once -= 1
        return created(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(sessions, "created", slowly)
    data, options = dense().SerializeToString(), [normfuse.session_options() for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        made = [pool.submit(normfuse.InferenceSession, data, options[0 if shared else i]) for i in range(4)]
    assert len({id(each.result()) for each in made}) == 4
    assert (most == 1) == shared


@on_x86
def test_operators_of_a_library_of_the_users(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Options do not say which libraries they know, so ONNX Runtime cannot optimise it by itself: a line says so."""
    library = tmp_path / "library.so"
    library.write_bytes(Path(normfuse.get_library_path()).read_bytes().replace(b"ai.normfuse", b"my.normfuse"))
    model = depthwise()
    x, expected = image(model), np.maximum(results(model, image(model))["y"], 0)
    program = write_program([ProgramStep("Relu")])
    model.graph.node.append(helper.make_node("FusedActivation", ["y"], ["r"], domain="my.normfuse", steps=program))
    model.opset_import.append(helper.make_opsetid("my.normfuse", 1))
    model.graph.output[0].name = "r"
    options = onnxruntime.SessionOptions()
    options.register_custom_ops_library(str(library))
    host_optimization._say_once.cache_clear()
    with caplog.at_level("INFO", logger="normfuse"):
        for _ in range(2):
            (got,) = normfuse.InferenceSession(model, options).run(None, x)
            assert np.abs(got - expected).max() <= 1.01 * STEP
    (line,) = (record for record in caplog.records if "session plan" not in record.getMessage())
    assert "my.normfuse" in line.getMessage()


# --- functions of the model's own ------------------------------------------------------------------------------------

OWN = """
  <domain: "own", opset_import: ["": 21]> pair (v, s, z) => (r) {
    q = QuantizeLinear(v, s, z) r = DequantizeLinear(q, s, z) }
  <domain: "own", opset_import: ["": 21]> quantize (v, s, z) => (q) { q = QuantizeLinear(v, s, z) }
  <domain: "own", opset_import: ["": 21]> dequantize (q, s, z) => (r) { r = DequantizeLinear(q, s, z) }"""
FIRST, LAST = "xq = QuantizeLinear(x, xs, xz)", "y = DequantizeLinear(yq, ys, yz)"
PAIRS = {
    "the pairs": ("d = own.pair(x, xs, xz)", "y = own.pair(p, ys, yz)"),
    "the first pair": ("d = own.pair(x, xs, xz)", f"yq = QuantizeLinear(p, ys, yz) {LAST}"),
    "the last pair": (f"{FIRST} d = DequantizeLinear(xq, xs, xz)", "y = own.pair(p, ys, yz)"),
    "a part of each": (f"{FIRST} d = own.dequantize(xq, xs, xz)", f"yq = own.quantize(p, ys, yz) {LAST}"),
}


@on_x86
@pytest.mark.parametrize("stored", [np.uint8, np.uint16])
@pytest.mark.parametrize("product", ["Gemm<transB = 1>(d, w)", "MatMul(d, w)"], ids=["Gemm", "MatMul"])
@pytest.mark.parametrize("pairs", PAIRS.values(), ids=PAIRS)
def test_pairs_in_functions(pairs: tuple[str, str], product: str, stored: type) -> None:
    """ONNX Runtime writes functions out, and then runs the product in integers, or makes int8 of its float weights."""
    generator = np.random.default_rng(40)
    step = F32(0.03 if stored is np.uint8 else 0.0003)
    zero = np.array(np.iinfo(stored).max // 2 + 1, stored)
    held = {"xs": np.array(step), "xz": zero, "ys": np.array(8 * step), "yz": zero}
    weights = generator.integers(-60, 61, (64, 32)).astype(np.int8)
    axis = int(product.startswith("MatMul"))
    held |= {"W": weights if axis else weights.T.copy(), "wz": np.zeros(32, np.int8)}
    held |= {"ws": np.geomspace(0.001, 0.02, 32).astype(F32)}
    before, behind = pairs
    text = f"""g (float[20,64] x) => (float[20,32] y) {{
      {before} w = DequantizeLinear<axis = {axis}>(W, ws, wz) p = {product} {behind} }} {OWN}"""
    model = parse(text, **held)
    model.opset_import.append(helper.make_opsetid("own", 1))
    data, x = model.SerializeToString(), {"x": generator.normal(0, 1, (20, 64)).astype(F32)}
    off, products = {}, {}
    for name, create in (("plain", onnxruntime.InferenceSession), ("normfuse", normfuse.InferenceSession)):
        products[name] = products_of_integers(lambda data, options, create=create: create(data, options), data, x)
        off[name] = np.abs(create(data).run(None, x)[0] - results(model, x)["y"]).max() / (8 * step)
    assert products["normfuse"] == products["plain"]
    if axis and stored is np.uint8:
        assert products["normfuse"] == {"QLinearMatMul": 1}
    assert off["normfuse"] <= max(off["plain"], 1.01)  # a MatMulNBits rounds to 8 bits
