"""Q/DQ pairs that are steps, beside tests/corpus/pairs.txt: every bit, and what others say of them."""

from __future__ import annotations

import dataclasses
from typing import Any

import harness
import ml_dtypes
import numpy as np
import onnx
import pytest
from corpus_reader import case_of, model_of
from exact_programs import Program
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper
from rewrite_harness import fused_nodes, optimize, run
from spelling import SpellingBuilder
from strategies import Numbers, Parameters, quantizations

import normfuse
from normfuse import meaning
from normfuse.files.model_files import load_model
from normfuse.inspection.quantization import quantization_of
from normfuse.meaning import Array
from normfuse.spec import labels_of, read_program

F32 = np.float32


def steps_of(proto: onnx.ModelProto) -> list[str]:
    """The names of the steps of each fused node."""
    programs = [
        attribute.s.decode() for node in fused_nodes(proto) for attribute in node.attribute if attribute.name == "steps"
    ]
    return [" ".join(step.split()[0] for step in program.split("; ")) for program in programs]


def of_corpus(name: str) -> onnx.ModelProto:
    return case_of(f"pairs/{name}").build(SpellingBuilder(21))


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
    code = meaning.dtype_code(np.zeros(1, stored))
    program = Program(x)
    program.fake_quantize(pairs[0], code)
    program.relu()
    program.fake_quantize(pairs[1], code)
    portable, _ = optimize(proto)
    # ONNX Runtime drops the Relu in front of 4 bits, whose range need not end at the zero point.
    theirs = [(portable, "cpu"), (proto, "cpu")] if np.dtype(stored).kind in "iu" else []
    for each, provider in ((custom, "custom"), (portable, "ep"), *theirs):
        got = harness.run(harness.create_session(each, provider), {"X": x})["Y"]
        np.testing.assert_array_equal(got, program.value, provider)


def with_zero_point(p: Parameters, stored: Any) -> Parameters:
    return p if p.zero_point is not None else dataclasses.replace(p, zero_point=np.zeros(p.scale.shape, stored))


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


X = np.random.default_rng(8).standard_normal((2, 5, 16)).astype(F32)


def clipped(x: str, y: str, scale: str, low: str, high: str) -> list[onnx.NodeProto]:
    return [
        helper.make_node("QuantizeLinear", [x, scale, "z"], [f"{y}_q"]),
        helper.make_node("Clip", [f"{y}_q", low, high], [f"{y}_c"]),
        helper.make_node("DequantizeLinear", [f"{y}_c", scale, "z"], [y]),
    ]


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
    nodes = [
        *clipped("X", "a", "s0", *bounds),
        helper.make_node("Relu", ["a"], ["r"]),
        *clipped("r", "Y", "s1", *bounds),
    ]
    fixed = {"z": zero, "s0": scales[0], "s1": scales[1]} | {
        name: array for name, array in (("low", low), ("high", high)) if name in bounds
    }
    proto = harness.build_model(nodes, {"X": X}, {"Y": TensorProto.FLOAT}, fixed, opset=21)
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


# --- what is said ---


@pytest.mark.parametrize(("case", "count"), [("between", 6), ("cut-0", 2)])
def test_inspect_says_that_both_nodes_are_fused(case: str, count: int) -> None:
    said = quantization_of(load_model(of_corpus(case)), with_pairs=True)
    assert said is not None
    (group,) = said.pairs
    assert (group.becomes, len(group.nodes)) == ("fused", count)


@pytest.mark.parametrize(("case", "step"), [("shares", "FakeQuantize"), ("cut-5", "Clip"), ("cut-6", "Clip")])
def test_verification_notices_a_step_that_is_missing(case: str, step: str) -> None:
    """However little it changes, and where another step of the node reads the same scale."""
    proto = of_corpus(case)
    for target in ("custom-op", "portable"):
        whole, _ = optimize(proto, target=target)
        assert normfuse.verify(proto, whole).result == "agree"
    damaged, _ = optimize(proto, target="custom-op")
    (node,) = fused_nodes(damaged)
    (program,) = [each for each in node.attribute if each.name == "steps"]
    steps = program.s.decode().split("; ")
    at = [index for index, each in enumerate(steps) if each.startswith(step)][-1 if step == "Clip" else 1]
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
    pair = "DequantizeLinear(QuantizeLinear(x, float32(0.01), uint16(30000)), float32(0.01), uint16(30000))"
    model = model_of(f"Conv(Relu({pair}), float32(full([1, 2, 1, 1], 0.5)))", x="1,2,3,4", opset=21)
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.ClearField("shape")
    x = np.random.default_rng(0).normal(size=(1, 2, 3, 4)).astype(F32)
    (expected,) = harness.create_session(model, "cpu").run(None, {"x": x})
    written, _ = optimize(model, target=target)
    (got,) = harness.create_session(written, "ep").run(None, {"x": x})
    np.testing.assert_array_equal(got, expected)
