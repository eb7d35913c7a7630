"""Pairs of a quantisation and a dequantisation on DirectML, bit by bit, wherever they stand in a chain.

The oracle is the formula in float32, operation by operation (tests/exact_programs.py).
"""

from __future__ import annotations

import harness
import ml_dtypes
import numpy as np
import onnx
import pytest
from directml_libraries import counted
from exact_programs import F32, INTEGERS, Program, nasty
from hypothesis import given
from hypothesis import strategies as st
from strategies import Numbers, Parameters, broadcast_shapes, quantizations, shapes

from normfuse import meaning
from normfuse.inspection.lowering import LoweredSite, lower
from normfuse.meaning import Array

FOUR_BIT = (ml_dtypes.uint4, ml_dtypes.int4)


def check(program: Program, x: Array, fake: dict[str, str], *, constants: bool, on_gpu: bool = True) -> None:
    """That the node gives the very numbers, and that the GPU computes them."""
    session = harness.create_session(program.model(x, constants=constants), "ep", backend="directml", **fake)
    before = counted(fake["directml_library"], "dispatches")
    program.check(x, session)
    assert (counted(fake["directml_library"], "dispatches") > before) == on_gpu


def code_of(dtype: type) -> int:
    return meaning.dtype_code(np.zeros(1, dtype))


def runs(p: Parameters, shape: tuple[int, ...]) -> bool:
    """Whether there are elements, and blocks of one size."""
    return 0 not in shape and (not p.block_size or p.scale.shape[p.axis] == 1 or shape[p.axis] % p.block_size == 0)


@given(data=st.data())
def test_a_pair_has_the_bits_of_the_formula(data: st.DataObject, fake: dict[str, str]) -> None:
    numbers = Numbers(data.draw(st.integers(0, 2**32 - 1)))
    shape = data.draw(shapes(max_rank=4))
    dtype = data.draw(st.sampled_from(INTEGERS))
    x = nasty(numbers, shape)
    typical = data.draw(st.sampled_from([0.05, 0.05, 1e-38, 1e-42, 1e30]))
    p = data.draw(quantizations(numbers, shape, dtype, F32, typical=typical))
    program = Program(x)
    program.fake_quantize(p, code_of(dtype))
    # Below 6_3 a tensor of 4 bits may not arrive at run time.
    constants = dtype in FOUR_BIT or data.draw(st.booleans())
    check(program, x, fake, constants=constants, on_gpu=runs(p, shape))


@given(data=st.data())
def test_pairs_stand_anywhere_between_steps(data: st.DataObject, fake: dict[str, str]) -> None:
    numbers = Numbers(data.draw(st.integers(0, 2**32 - 1)))
    shape = data.draw(shapes(max_rank=4))
    x = numbers.normal(shape, F32, 0.0, 1.0)
    program = Program(x)
    pairs = 0
    even = 0 not in shape
    for _ in range(data.draw(st.integers(1, 6))):
        kind = data.draw(st.sampled_from(["pair", "pair", "Add", "Mul", "Div", "Relu"]))
        if kind == "pair" and pairs < 3:
            pairs += 1
            dtype = data.draw(st.sampled_from(INTEGERS))
            p = data.draw(quantizations(numbers, shape, dtype, F32))
            program.fake_quantize(p, code_of(dtype))
            even = even and runs(p, shape)
        elif kind in ("Add", "Mul", "Div"):
            program.combine(kind, numbers.positive(data.draw(broadcast_shapes(shape)), F32, 0.5, 2.0))
        else:
            program.relu()
    check(program, x, fake, constants=True, on_gpu=even)


@pytest.mark.parametrize("constants", [True, False])
def test_a_pair_is_of_d_as_it_leaves_the_chain(constants: bool, fake: dict[str, str]) -> None:
    """X has one row; the scale has one for each row of the result."""
    x = np.random.default_rng(7).normal(0, 1, (1, 5)).astype(F32)
    whole = np.broadcast_to(x, (3, 5))
    program = Program(whole)
    program.fake_quantize(
        Parameters(np.array([0.05, 0.3, 2], F32), np.array([1, 2, 3], np.int8), 0, 0), code_of(np.int8)
    )
    program.combine("Add", np.array([[1], [2], [3]], F32))
    check(program, x, fake, constants=constants)


@pytest.mark.parametrize("dtype", [np.uint8, np.int16])
def test_float16_is_rounded_once(dtype: type, fake: dict[str, str]) -> None:
    x = np.random.default_rng(3).normal(0, 1, (5, 67)).astype(np.float16)
    program = Program(x.astype(F32))
    program.fake_quantize(Parameters(np.array(0.03, np.float16), np.array(7, dtype), 1, 0), code_of(dtype))
    check(program, x, fake, constants=True)


# --- what becomes of one ----------------------------------------------------------------------------------------------

BYTES = ["ELEMENT_WISE_QUANTIZE_LINEAR", "ELEMENT_WISE_DEQUANTIZE_LINEAR"]
ROUND = ["ELEMENT_WISE_DIVIDE", "ELEMENT_WISE_ROUND"]
SATURATE = ["ELEMENT_WISE_CLIP", "ELEMENT_WISE_IS_NAN", "ELEMENT_WISE_IF"]
ELEMENT_WISE = [
    *ROUND,
    "ELEMENT_WISE_ADD",
    *SATURATE,
    "ELEMENT_WISE_SUBTRACT",
    "ELEMENT_WISE_MULTIPLY",
]
SYMMETRIC = [*ROUND, *SATURATE, "ELEMENT_WISE_MULTIPLY"]


def lowered(program: Program, x: Array, level: str, *, constants: bool = True) -> LoweredSite:
    (site,) = lower(program.model(x, constants=constants), level=level).sites
    return site


@pytest.mark.parametrize(
    ("dtype", "zero_point", "level", "operators"),
    [
        (np.uint8, 128, "2_1", BYTES),
        (np.int8, None, "6_4", BYTES),
        (np.uint16, 32768, "6_4", ELEMENT_WISE),
        (np.int16, 0, "6_4", SYMMETRIC),
        (ml_dtypes.int4, 1, "6_3", ["QUANTIZE", "DEQUANTIZE"]),
        (ml_dtypes.int4, 1, "6_2", ELEMENT_WISE),
        (ml_dtypes.uint2, None, "6_4", SYMMETRIC),
    ],
)
def test_its_operators(dtype: type, zero_point: int | None, level: str, operators: list[str]) -> None:
    x = np.zeros((2, 3), F32)
    program = Program(x)
    zero = None if zero_point is None else np.array(zero_point, dtype)
    program.fake_quantize(Parameters(np.array(0.1, F32), zero, 1, 0), code_of(dtype))
    assert list(lowered(program, x, level).operators) == operators


@pytest.mark.parametrize(
    ("dtype", "level", "constants", "what"),
    [
        (ml_dtypes.float8_e4m3fn, "6_4", True, "quantisation to float8e4m3fn"),
        (ml_dtypes.int4, "6_2", False, "a tensor of type int4 (d_scale) needs DirectML feature level 6_3"),
    ],
)
def test_types_that_are_refused(dtype: type, level: str, constants: bool, what: str) -> None:
    x = np.zeros((2, 3), F32)
    program = Program(x)
    program.fake_quantize(Parameters(np.array(0.1, F32), np.array(1, dtype), 1, 0), code_of(dtype))
    site = lowered(program, x, level, constants=constants)
    assert site.reason in ("directml_unsupported", "directml_level")
    assert what in site.message


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
def test_blocks_that_do_not_divide_are_refused(dtype: type) -> None:
    x = np.zeros((2, 7), F32)
    program = Program(x)
    program.fake_quantize(Parameters(np.ones((2, 2), F32), None, 1, 4), code_of(dtype))
    site = lowered(program, x, "6_4")
    assert site.reason == "directml_unsupported"
    assert "blocks that do not divide the dimension" in site.message


# --- as nodes of a model ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["uint8", "int8", "uint16", "int16"])
@pytest.mark.parametrize("constant", [True, False])
def test_two_nodes_in_an_island(kind: str, constant: bool, fake: dict[str, str]) -> None:
    """Between operators of ONNX, with what stands among pairs: one node."""
    parameters = "float s, " + f"{kind} z"
    given, kept = ("", f"<float s = {{0.05}}, {kind} z = {{3}}>") if constant else (f", {parameters}", "")
    model = onnx.parser.parse_model(f"""<ir_version: 10, opset_import: ["": 21]>
        g (float[3, 8] x, float[3, 8] r{given}) => (float[3, 8] y) {kept} {{
            a = Abs(x) q = QuantizeLinear(a, s, z) d = DequantizeLinear(q, s, z) sum = Add(d, r)
            p = QuantizeLinear(sum, s, z) e = DequantizeLinear(p, s, z) y = Neg(e) }}""")
    session = harness.create_session(model, "ep", backend="directml", claim="all", **fake)
    assert not harness.cpu_types(session)
    assert len(harness.ep_groups(session)) == 1
    numbers = np.random.default_rng(5)
    x, r = (numbers.normal(0, 3, (3, 8)).astype(F32) for _ in range(2))
    p = Parameters(np.array(0.05, F32), np.array(3, kind), 1, 0)
    program = Program(np.abs(x))
    program.fake_quantize(p, code_of(p.zero_point.dtype.type))
    program.combine("Add", r)
    program.fake_quantize(p, code_of(p.zero_point.dtype.type))
    feeds = {"x": x, "r": r, "s": p.scale, "z": p.zero_point}
    wanted = {each.name for each in session.get_inputs()}
    (y,) = session.run(None, {name: value for name, value in feeds.items() if name in wanted})
    np.testing.assert_array_equal(y, -program.value)


@pytest.mark.parametrize("kind", ["uint16", "uint8"])
def test_what_no_island_takes_is_found_as_without_a_gpu(kind: str, fake: dict[str, str]) -> None:
    """Copies to the GPU take longer than a small network: its pairs run on the CPU path, but for those of a product
    that ONNX Runtime runs in integers."""
    model = onnx.parser.parse_model(f"""<ir_version: 10, opset_import: ["": 21]>
        g (float[64, 768] x, float[64, 768] r) => (float[64, 8] y) <float s = {{0.05}}, {kind} z = {{128}}> {{
            o = QuantizeLinear(x, s, z) a = DequantizeLinear(o, s, z) sum = Add(a, r)
            q = QuantizeLinear(sum, s, z) d = DequantizeLinear(q, s, z) h = HardSigmoid(d)
            p = QuantizeLinear(h, s, z) e = DequantizeLinear(p, s, z) v = DequantizeLinear(w, s, z) m = MatMul(e, v)
            t = QuantizeLinear(m, s, z) y = DequantizeLinear(t, s, z) }}""")
    weights = np.random.default_rng(9).integers(100, 150, (768, 8)).astype(kind)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    on_gpu, on_cpu = (
        harness.fused_types(harness.create_session(model, "ep", claim="profitable", **options))
        for options in ({"backend": "directml", **fake}, {"backend": "cpu"})
    )
    assert on_cpu
    assert on_gpu == on_cpu
