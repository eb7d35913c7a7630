"""FakeQuantize: the numbers of QuantizeLinear and DequantizeLinear, bit by bit, wherever the step stands in a chain.

The oracle is the formula in float32, operation by operation, which the two nodes are defined by. ONNX Runtime's own
nodes are compared with by the cases of tests/corpus/provider/pairs.txt.
"""

from __future__ import annotations

from collections.abc import Sequence

import harness
import ml_dtypes
import numpy as np
import pytest
from checking import PROVIDERS
from exact_programs import F32, INTEGERS, Program, nasty
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto
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


def drawn(data: st.DataObject, types: Sequence[type], *, saturate: bool = True) -> tuple[Program, Parameters]:
    """A pair of one of the types, of odd values."""
    numbers, shape = Numbers(data.draw(st.integers(0, 2**32 - 1))), data.draw(shapes())
    dtype = data.draw(st.sampled_from(types))
    typical = data.draw(st.sampled_from([0.05, 0.05, 1e-38, 1e-42, 1e30]))
    program = Program(nasty(numbers, shape))
    p = data.draw(quantizations(numbers, shape, dtype, F32, typical=typical))
    program.fake_quantize(p, meaning.dtype_code(np.zeros(1, dtype)), saturate=saturate)
    return program, p


@given(data=st.data())
@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_pair_has_the_bits_of_the_formula(provider: str, data: st.DataObject) -> None:
    program, _ = drawn(data, INTEGERS + FLOAT8, saturate=data.draw(st.booleans()))
    check(program, program.x, provider, constants=data.draw(st.booleans()))


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
    check(program, program.x, provider, constants=data.draw(st.booleans()))


@given(data=st.data())
@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_clip_behind_a_pair(provider: str, data: st.DataObject) -> None:
    """Of numbers that integers stand for, or a little beside these, within the range of the type or not."""
    program, p = drawn(data, [*INTEGERS, FLOAT8[0]])
    ends = [F32(data.draw(st.integers(-300, 300)) * p.scale.max(initial=0.0)) for _ in range(2)]
    beside = data.draw(st.sampled_from([0, 0, 0, 1, 2]))
    ends = [np.nextafter(end, F32(np.inf if beside == 1 else -np.inf)) if beside else end for end in ends]
    program.clip(*(sorted(ends) if data.draw(st.booleans()) else ends))
    program.relu()
    check(program, program.x, provider, constants=data.draw(st.booleans()))


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


@pytest.mark.parametrize("provider", PROVIDERS)
def test_before_and_behind_a_normalization(provider: str) -> None:
    """The pair behind is of what the normalisation gives without it; the one before is exact."""
    steps = "FakeQuantize scale=s zero_point=z; Normalize axes=-1; FakeQuantize scale=u zero_point=v; Relu"
    tensors = {"s": F32(0.04), "z": np.uint8(120), "u": F32(2**-5), "v": np.int16(-3)}
    inputs = {"X": np.random.default_rng(5).normal(0, 1, (4, 96)).astype(F32)}
    inputs |= {name: np.asarray(value) for name, value in tensors.items()}
    attributes, types = {"steps": steps, "spec_version": 2}, {"Y": TensorProto.FLOAT}
    model = harness.operator_model("FusedNormalization", inputs, attributes, types, constants=tensors, opset=25)
    evaluate(steps, inputs)["Y"].check(harness.run(harness.create_session(model, provider), inputs)["Y"])
