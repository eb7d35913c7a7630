"""A Clip of the integers inside of a pair, as Brevitas and PyTorch write it, is a Clip of what they stand for."""

from __future__ import annotations

import harness
import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper
from oracle import Array
from rewrite_harness import fused_nodes, optimize, run
from strategies import Numbers
from test_pairs import steps_of

import normfuse
from normfuse.files.model_files import load_model
from normfuse.inspection.quantization import quantization_of
from normfuse.spec import read_program, write_program

F32 = np.float32
X = np.random.default_rng(8).standard_normal((2, 5, 16)).astype(F32)
CONSTANTS: dict[str, Array] = {
    "s0": np.array(0.3, F32),
    "s1": np.array(0.25, F32),
    "s2": np.array(0.22, F32),
    "z": np.array(1, np.int8),
    "low": np.array(-3, np.int8),
    "high": np.array(4, np.int8),
    "wide": np.array(-300, np.int16),
    "g": np.linspace(0.5, 1.5, 16, dtype=F32),
    "b": np.linspace(-1, 1, 16, dtype=F32),
    "w": np.random.default_rng(9).standard_normal((16, 8)).astype(F32),
    "wq": np.random.default_rng(9).integers(-60, 60, (16, 8)).astype(np.int8),
    "ws": np.array(0.02, F32),
    "k": np.random.default_rng(3).standard_normal(16).astype(F32),
}


def pair(x: str, y: str, scale: str = "s0", low: str = "low", high: str = "high") -> list[onnx.NodeProto]:
    return [
        helper.make_node("QuantizeLinear", [x, scale, "z"], [f"{y}_q"], f"Q_{y}"),
        helper.make_node("Clip", [f"{y}_q", low, high], [f"{y}_c"], f"Clip_{y}"),
        helper.make_node("DequantizeLinear", [f"{y}_c", scale, "z"], [y], f"DQ_{y}"),
    ]


def unary(op_type: str, x: str, y: str) -> onnx.NodeProto:
    return helper.make_node(op_type, [x], [y], f"{op_type}_{y}")


def norm(x: str, y: str) -> onnx.NodeProto:
    return helper.make_node("LayerNormalization", [x, "g", "b"], [y], f"Norm_{y}", axis=-1)


def model(nodes: list[onnx.NodeProto], overridable: str = "", **more: Array) -> onnx.ModelProto:
    used = {name for node in nodes for name in node.input}
    fixed = {name: array for name, array in {**CONSTANTS, **more}.items() if name in used}
    proto = harness.build_model(nodes, {"X": X}, {"Y": TensorProto.FLOAT}, fixed, opset=21)
    for tensor in proto.graph.initializer:
        if tensor.name == overridable:
            proto.graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    return proto


TAKEN: dict[str, tuple[list[onnx.NodeProto], list[str]]] = {
    "behind a normalisation": ([norm("X", "n"), *pair("n", "Y")], ["Normalize Mul Add FakeQuantize Clip"]),
    "behind an activation": ([unary("Relu", "X", "r"), *pair("r", "Y")], ["Relu FakeQuantize Clip"]),
    "around an activation": (
        [*pair("X", "a"), unary("Relu", "a", "r"), *pair("r", "Y", "s1")],
        ["FakeQuantize Clip Relu FakeQuantize Clip"],
    ),
    "between a normalisation and an activation": (
        [norm("X", "n"), *pair("n", "a"), unary("Relu", "a", "r"), *pair("r", "Y", "s1", high="")],
        ["Normalize Mul Add FakeQuantize Clip Relu FakeQuantize Clip"],
    ),
    "before a product of floats": (
        [norm("X", "n"), *pair("n", "a"), helper.make_node("MatMul", ["a", "w"], ["Y"])],
        ["Normalize Mul Add FakeQuantize Clip"],
    ),
    "bounds that cross": (
        [unary("Relu", "X", "r"), *pair("r", "Y", low="high", high="low")],
        ["Relu FakeQuantize Clip"],
    ),
}


@pytest.mark.parametrize("case", TAKEN)
def test_it_becomes_a_step_behind_the_pair(case: str) -> None:
    nodes, wanted = TAKEN[case]
    proto = model(nodes)
    custom, _ = optimize(proto, target="custom-op")
    assert steps_of(custom) == wanted
    expected = run(proto, {"X": X}, optimized=False)["Y"]
    portable, _ = optimize(proto)
    standard, _ = optimize(proto, target="standard")
    for each, provider in ((custom, "custom"), (portable, "cpu"), (portable, "ep"), (standard, "cpu"), (proto, "ep")):
        got = harness.run(harness.create_session(each, provider), {"X": X})["Y"]
        np.testing.assert_allclose(got, expected, atol=1e-4, err_msg=provider)
    assert normfuse.verify(proto, portable).result == "agree"


@given(data=st.data())
def test_the_bits_of_the_three_nodes(data: st.DataObject) -> None:
    """Of any bounds, around Relu, which rounds nothing."""
    numbers = Numbers(data.draw(st.integers(0, 2**32 - 1)))
    dtype = data.draw(st.sampled_from([np.int8, np.uint8]))
    integers = st.integers(np.iinfo(dtype).min, np.iinfo(dtype).max)
    low, high, zero = (np.array(data.draw(integers), dtype) for _ in range(3))
    scales = [np.array(data.draw(st.floats(0.001, 0.5)), F32) for _ in range(2)]
    bounds = data.draw(st.sampled_from([("low", "high"), ("", "high"), ("low", "")]))
    x = numbers.normal(X.shape, F32, 0.0, 8.0)
    nodes = [*pair("X", "a", "s0", *bounds), unary("Relu", "a", "r"), *pair("r", "Y", "s1", *bounds)]
    proto = model(nodes, low=low, high=high, z=zero, s0=scales[0], s1=scales[1])
    custom, _ = optimize(proto, target="custom-op")
    assert steps_of(custom) == ["FakeQuantize Clip Relu FakeQuantize Clip"]
    portable, _ = optimize(proto)
    value = x.astype(np.float64)
    limits = np.iinfo(dtype)
    ends = [int(low) if bounds[0] else limits.min, int(high) if bounds[1] else limits.max]
    for scale in scales:
        codes = np.clip(np.rint((value.astype(F32) / scale).astype(np.float64)) + int(zero), limits.min, limits.max)
        value = (np.minimum(np.maximum(codes, ends[0]), ends[1]) - int(zero)) * float(scale)
        value = np.maximum(value, 0) if scale is scales[0] else value
    three = run(proto, {"X": x}, optimized=False)["Y"]
    for each, provider in ((custom, "custom"), (portable, "cpu"), (portable, "ep")):
        got = harness.run(harness.create_session(each, provider), {"X": x})["Y"]
        np.testing.assert_array_equal(got, three, provider)
    # A value that float32 rounds to a tie is a step away.
    apart = np.abs(three - value)
    assert apart.max() <= 1.01 * scales[1]
    assert np.mean(apart > 1e-5 * np.abs(value) + 1e-9) <= 0.01


_PRODUCT = helper.make_node("DequantizeLinear", ["wq", "ws"], ["wd"]), helper.make_node("MatMul", ["a", "wd"], ["Y"])
LEFT: dict[str, tuple[list[onnx.NodeProto], dict[str, Array], str, str]] = {
    "a product with quantised weights behind it": (
        [norm("X", "n"), *pair("n", "a"), *_PRODUCT], {}, "", "multiply by its quantised weights"
    ),
    "a sum of quantised tensors behind it": (
        [
            *(norm("X", "n"), *pair("n", "a"), *pair("X", "c", "s2"), helper.make_node("Add", ["a", "c"], ["t"])),
            *pair("t", "Y"),
        ],
        {}, "", "may run it on the integers",
    ),
    "bounds that may be overridden": (
        [unary("Relu", "X", "r"), *pair("r", "Y")], {}, "low", "is not a constant"
    ),
    "a scale that is not positive": (
        [unary("Relu", "X", "r"), *pair("r", "Y")], {"s0": np.array(-0.3, F32)}, "", "not one positive number"
    ),
    "a scale for each channel": (
        [unary("Relu", "X", "r"), *pair("r", "Y")],
        {"s0": np.full(5, 0.3, F32), "z": np.zeros(5, np.int8)}, "", "not one positive number",
    ),
    "numbers that overflow": (
        [unary("Relu", "X", "r"), *pair("r", "Y")],
        {"s0": np.array(3e38, F32)}, "", "stand for overflows",
    ),
    "another scale behind it": (
        [unary("Relu", "X", "r"), *pair("r", "Y")[:2], helper.make_node("DequantizeLinear", ["Y_c", "s1", "z"], ["Y"])],
        {}, "", "has other parameters",
    ),
    "in front of a normalisation": ([*pair("X", "a"), norm("a", "Y")], {}, "", "Clip is not an operator that is fused"),
}  # fmt: skip


@pytest.mark.parametrize("case", LEFT)
def test_left_with_its_reason(case: str) -> None:
    nodes, more, overridable, reason = LEFT[case]
    proto = model(nodes, overridable, **more)
    custom, result = optimize(proto, target="custom-op")
    assert "Clip" in [node.op_type for node in custom.graph.node]
    assert any(reason in site.message for site in result.sites), [site.message for site in result.sites]
    expected = run(proto, {"X": X}, optimized=False)["Y"]
    got = harness.run(harness.create_session(custom, "custom"), {"X": X})["Y"]
    np.testing.assert_allclose(got, expected, rtol=2e-2, atol=0.1)


@pytest.mark.parametrize(("low", "high"), [(-3, 4), (-127, 127)])
def test_verification_notices_a_clip_that_is_missing(low: int, high: int) -> None:
    scale = np.array(0.3 if low == -3 else 0.01, F32)
    bounds = {"low": np.array(low, np.int8), "high": np.array(high, np.int8), "s0": scale, "z": np.array(0, np.int8)}
    proto = model([norm("X", "n"), *pair("n", "a"), unary("Neg", "a", "Y")], **bounds)
    whole, _ = optimize(proto, target="custom-op")
    assert normfuse.verify(proto, whole).result == "agree"
    (node,) = fused_nodes(whole)
    (program,) = [each for each in node.attribute if each.name == "steps"]
    steps = [step for step in read_program(program.s.decode()) if step.name != "Clip"]
    program.s = write_program(steps).encode()
    assert normfuse.verify(proto, whole).result == "differ"


def test_inspect_says_that_both_nodes_are_fused() -> None:
    said = quantization_of(
        load_model(model([norm("X", "n"), *pair("n", "a"), unary("Neg", "a", "Y")])), with_pairs=True
    )
    assert said is not None
    (group,) = said.pairs
    assert (group.becomes, sorted(group.nodes)) == ("fused", ["DQ_a", "Q_a"])
