"""FakeQuantize: the numbers of QuantizeLinear and DequantizeLinear, bit by bit, wherever the step stands in a chain.

The oracle is the formula in float32, operation by operation, which the two nodes are defined by; ONNX Runtime's own
nodes are compared with where it has kernels for the type.
"""

from __future__ import annotations

import harness
import ml_dtypes
import numpy as np
import pytest
from checking import PROVIDERS
from exact_programs import F32, INTEGERS, Program, nasty
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper
from strategies import Numbers, Parameters, broadcast_shapes, quantizations, shapes

from normfuse import meaning
from normfuse.meaning import Array, evaluate

FLOAT8 = (
    ml_dtypes.float8_e4m3fn,
    ml_dtypes.float8_e4m3fnuz,
    ml_dtypes.float8_e5m2,
    ml_dtypes.float8_e5m2fnuz,
)
pytestmark = pytest.mark.every_isa


def check(program: Program, x: Array, provider: str, *, constants: bool) -> None:
    program.check(x, harness.create_session(program.model(x, constants=constants), provider))


@given(data=st.data())
@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_pair_has_the_bits_of_the_formula(provider: str, data: st.DataObject) -> None:
    numbers = Numbers(data.draw(st.integers(0, 2**32 - 1)))
    shape = data.draw(shapes())
    dtype = data.draw(st.sampled_from(INTEGERS + FLOAT8))
    x = nasty(numbers, shape)
    typical = data.draw(st.sampled_from([0.05, 0.05, 1e-38, 1e-42, 1e30]))
    p = data.draw(quantizations(numbers, shape, dtype, F32, typical=typical))
    program = Program(x)
    program.fake_quantize(p, meaning.dtype_code(np.zeros(1, dtype)), saturate=data.draw(st.booleans()))
    check(program, x, provider, constants=data.draw(st.booleans()))


@given(data=st.data())
@pytest.mark.parametrize("provider", PROVIDERS)
def test_pairs_stand_anywhere_between_steps(provider: str, data: st.DataObject) -> None:
    """Sums and Relu are exact in every order of their arithmetic, so that all of the chain is."""
    numbers = Numbers(data.draw(st.integers(0, 2**32 - 1)))
    shape = data.draw(shapes())
    x = numbers.normal(shape, F32, 0.0, 1.0)
    program = Program(x)
    pairs = 0
    for _ in range(data.draw(st.integers(1, 6))):
        kind = data.draw(st.sampled_from(["pair", "pair", "Add", "Relu"]))
        if kind == "pair" and pairs < 3:
            pairs += 1
            dtype = data.draw(st.sampled_from(INTEGERS))
            p = data.draw(quantizations(numbers, shape, dtype, F32))
            program.fake_quantize(p, meaning.dtype_code(np.zeros(1, dtype)))
        elif kind == "Add":
            program.combine("Add", numbers.normal(data.draw(broadcast_shapes(shape)), F32, 0.0, 1.0))
        else:
            program.relu()
    check(program, x, provider, constants=data.draw(st.booleans()))


@given(data=st.data())
@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_clip_behind_a_pair(provider: str, data: st.DataObject) -> None:
    """Of numbers that integers stand for, or a little beside these, within the range of the type or not."""
    numbers = Numbers(data.draw(st.integers(0, 2**32 - 1)))
    shape = data.draw(shapes())
    dtype = data.draw(st.sampled_from([*INTEGERS, FLOAT8[0]]))
    x = nasty(numbers, shape)
    typical = data.draw(st.sampled_from([0.05, 0.05, 1e-38, 1e-42, 1e30]))
    p = data.draw(quantizations(numbers, shape, dtype, F32, typical=typical))
    program = Program(x)
    program.fake_quantize(p, meaning.dtype_code(np.zeros(1, dtype)))
    ends = [F32(data.draw(st.integers(-300, 300)) * p.scale.max(initial=0.0)) for _ in range(2)]
    beside = data.draw(st.sampled_from([0, 0, 0, 1, 2]))
    ends = [np.nextafter(end, F32(np.inf if beside == 1 else -np.inf)) if beside else end for end in ends]
    program.clip(*(sorted(ends) if data.draw(st.booleans()) else ends))
    program.relu()
    check(program, x, provider, constants=data.draw(st.booleans()))


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_16_bit_floats_are_rounded_once(provider: str, dtype: type) -> None:
    x = np.random.default_rng(3).normal(0, 1, (5, 67)).astype(dtype)
    program = Program(x.astype(F32))
    program.fake_quantize(Parameters(np.array(0.03, F32), np.array(7, np.uint8), 1, 0), TensorProto.UINT8)
    check(program, x, provider, constants=True)


@pytest.mark.parametrize("size", [1, 7, 1024, 1025, 3 * 2**20])
def test_any_size_and_address(size: int) -> None:
    """Large results bypass the caches, which asks for whole lines."""
    x = np.random.default_rng(size).normal(0, 1, size + 3).astype(F32)
    for begin in (0, 1, 3):
        part = x[begin : begin + size]
        program = Program(part)
        program.fake_quantize(Parameters(np.array(0.01, F32), np.array(-5, np.int8), 1, 0), TensorProto.INT8)
        check(program, part, "ep", constants=True)


@pytest.mark.parametrize("form", ["tensor", "axis", "blocked"])
@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.uint16, np.int16])
def test_the_bits_of_onnx_runtimes_two_nodes(dtype: type, form: str) -> None:
    numbers = np.random.default_rng(11)
    x = numbers.normal(0, 2, (3, 64, 37)).astype(F32)
    # ONNX Runtime's blocked kernel makes the lowest value of what is beyond 32-bit integers.
    x[0, 0, :4] = [1e-40, -np.inf, *((50, 0) if form == "blocked" else (np.inf, 3e38))]
    shape = {"tensor": (), "axis": (64,), "blocked": (3, 4, 37)}[form]
    block = 16 if form == "blocked" else 0
    scale = numbers.uniform(0.001, 0.02, shape).astype(F32)
    zero = numbers.integers(0, 100, shape).astype(dtype)
    program = Program(x)
    program.fake_quantize(Parameters(scale, zero, 1, block), meaning.dtype_code(zero))
    nodes = [
        helper.make_node("QuantizeLinear", ["X", "s", "z"], ["q"], axis=1, block_size=block),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["Y"], axis=1, block_size=block),
    ]
    model = harness.build_model(nodes, {"X": x}, {"Y": TensorProto.FLOAT}, {"s": scale, "z": zero}, opset=21)
    theirs = harness.run(harness.create_session(model, "cpu"), {"X": x})["Y"]
    np.testing.assert_array_equal(program.value, theirs)
    check(program, x, "ep", constants=True)


@pytest.mark.parametrize("provider", PROVIDERS)
def test_before_and_behind_a_normalization(provider: str) -> None:
    """The pair behind is of what the normalisation gives without it; the one before is exact."""
    x = np.random.default_rng(5).normal(0, 1, (4, 96)).astype(F32)
    before = Parameters(np.array(0.04, F32), np.array(120, np.uint8), 1, 0)
    behind = Parameters(np.array(2**-5, F32), np.array(-3, np.int16), 1, 0)
    steps = (
        "FakeQuantize scale=s zero_point=z; Normalize axes=-1 epsilon=1e-05; FakeQuantize scale=u zero_point=v; Relu"
    )
    tensors = {"s": before.scale, "z": before.zero_point, "u": behind.scale, "v": behind.zero_point}
    attributes = {"steps": steps, "spec_version": 2}
    inputs = {"X": x, **tensors}
    model = harness.operator_model(
        "FusedNormalization", inputs, attributes, {"Y": TensorProto.FLOAT}, constants=list(tensors), opset=25
    )
    got = harness.run(harness.create_session(model, provider), inputs)["Y"]
    evaluate(steps, inputs)["Y"].check(got)
