"""What the operators do at the edges of their domain; each point is written down in the operator reference."""

from __future__ import annotations

import platform
from collections.abc import Callable
from itertools import product
from typing import Any

import harness
import ml_dtypes
import numpy as np
import pytest
from checking import PROVIDERS, activation, check, dequantization, normalization, session_of
from onnx import TensorProto

from normfuse import meaning
from normfuse.spec import ACTIVATIONS, EDGES

F32 = np.float32
pytestmark = [pytest.mark.every_isa, pytest.mark.parametrize("provider", PROVIDERS)]
# Edges that other files are about: all of test_properties.py and test_oracle.py, test_accuracy.py, test_matrix.py,
# test_cases.py, test_fake_quantization.py.
TESTED_ELSEWHERE = {
    "formula",
    "long rows",
    "granularity",
    "many tensors",
    "fake quantisation",
    "axes",
    "scale and bias",
}


TESTED: set[str] = set()


def edge(*names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Says which edges of operators.toml a test is about."""
    TESTED.update(names)
    return lambda test: test


def f32(*values: float) -> np.ndarray:
    return np.array(values, dtype=F32)


def rows(count: int = 3, width: int = 37, mean: float = 0.0, deviation: float = 1.0) -> np.ndarray:
    return np.random.default_rng(7).normal(mean, deviation, (count, width)).astype(F32)


@edge("epsilon")
def test_epsilon_stands_inside_or_beside_the_root(provider: str) -> None:
    x = rows(deviation=1e-3)
    inside = check(normalization(x, {"axes": [-1], "epsilon": 1e-3}), provider)["Y"]
    beside = check(normalization(x, {"axes": [-1], "epsilon": 1e-3, "epsilon_on": "stddev"}), provider)["Y"]
    assert np.abs(inside).max() < 0.2 < 0.5 < np.abs(beside).max()


@edge("epsilon")
@pytest.mark.parametrize("where", ["variance", "stddev"])
@pytest.mark.parametrize("epsilon", [0.0, -0.25, -100.0, np.inf, 1e30])
def test_any_epsilon(provider: str, epsilon: float, where: str) -> None:
    x = rows()
    case = normalization(
        x, {"axes": [-1], "epsilon": epsilon, "epsilon_on": where}, ("Y", "inv_std_dev"), bias=rows(1)[0]
    )
    got = check(case, provider)["Y"]
    assert np.isnan(got).all() == (epsilon == -100.0 and where == "variance")


@edge("constant row", "epsilon")
def test_a_constant_row_without_epsilon_is_nan(provider: str) -> None:
    got = check(normalization(np.full((2, 16), 3.0, F32), {"axes": [-1], "epsilon": 0.0}), provider)["Y"]
    assert np.isnan(got).all()


@edge("constant row")
@pytest.mark.parametrize("value", [0.0, 0.1, 1e4, -3e6, -3.7e8, 1e-30, 1e-40, 3e38])
@pytest.mark.parametrize("width", [1, 3, 16, 37, 1000, 9000])
def test_a_constant_row_gives_zero(provider: str, value: float, width: int) -> None:
    for axis, shape in ((-1, (2, width)), (0, (width, 2))):
        for how in ({"epsilon": 1e-5}, {"epsilon": 1e-12}, {"epsilon": 1e-9, "epsilon_on": "stddev"}):
            got = check(normalization(np.full(shape, value, F32), {"axes": [axis], **how}), provider)["Y"]
            assert np.all(got == 0), (axis, how)


@edge("NaN or infinity in a row")
@pytest.mark.parametrize("odd", [np.nan, np.inf, -np.inf])
def test_nan_and_infinity_stay_in_their_row(provider: str, odd: float) -> None:
    x = rows(4)
    x[1, 5] = odd
    got = check(normalization(x, {"axes": [-1]}, scale=rows(1)[0], bias=rows(1)[0]), provider)["Y"]
    assert np.isnan(got[1]).all()
    assert np.isfinite(got[[0, 2, 3]]).all()


@edge("NaN or infinity in a row")
@pytest.mark.parametrize("attributes", [{}, {"normalize_variance": 0}, {"epsilon_on": "stddev"}], ids=str)
@pytest.mark.parametrize("axis", [0, -1])
@pytest.mark.parametrize("width", [3, 40, 1100])
def test_the_mean_of_a_row_with_an_infinity(width: int, axis: int, attributes: dict[str, Any], provider: str) -> None:
    """It is infinite, or NaN where there are two of them or a NaN, as ReduceMean's is; the row is NaN."""
    x = np.random.default_rng(0).normal(size=(6, width)).astype(F32)
    for row, odd in enumerate([[np.inf], [-np.inf], [np.inf, -np.inf], [np.inf, np.nan], [3e38, 3e38, 3e38]]):
        x[row, : len(odd)] = odd
    case = normalization(np.moveaxis(x, -1, axis).copy(), {"axes": [axis], **attributes}, ("Y", "mean"))
    got = check(case, provider)
    means = np.moveaxis(got["mean"], axis, -1)[:, 0]
    assert means[:2].tolist() == [np.inf, -np.inf]
    assert np.isnan(np.moveaxis(got["Y"], axis, -1)[:4]).all()


@edge("NaN or infinity in a row")
def test_infinity_in_an_rms_row(provider: str) -> None:
    x = rows(2)
    x[0, 3] = np.inf
    got = check(normalization(x, {"axes": [-1], "use_mean": 0}), provider)["Y"]
    assert np.isnan(got[0, 3])
    assert (got[0, :3] == 0).all()


@edge("softmax of odd rows")
@pytest.mark.parametrize("across", [False, True], ids=["rows", "columns"])
@pytest.mark.parametrize("method", ["softmax", "log_softmax"])
def test_softmax_of_odd_rows(provider: str, method: str, across: bool) -> None:
    x = rows(7)
    x[0] = -np.inf
    x[1, 3], x[2, 4] = np.inf, np.nan
    x[3, 5:] = -np.inf
    x[4] *= F32(1e30)
    x[5] = F32(-3e38)
    case = normalization(x.T.copy() if across else x, {"axes": [0 if across else 1], "method": method})
    got = check(case, provider)["Y"]
    got = got.T if across else got
    assert np.isnan(got[:3]).all()
    assert not np.isnan(got[3:]).any()
    assert (got[3, 5:] == (0 if method == "softmax" else -np.inf)).all()


@edge("small results of softmax")
@pytest.mark.parametrize("dtype", [F32, np.float16])
@pytest.mark.parametrize("method", ["softmax", "log_softmax"])
def test_small_results_of_softmax(provider: str, method: str, dtype: type[np.generic]) -> None:
    # Down to 0, and closely above 2^-126 = exp(-87.34) beside the largest values of each way to take exponentials.
    ends = [(-120, 0), (0, 95), (-300, -210), *((most - 87.3, most) for most in (-22, 40, -255, 255, 300))]
    x = np.stack([np.linspace(least, most, 500) for least, most in ends]).astype(dtype)
    got = check(normalization(x, {"axes": [-1], "method": method}), provider)["Y"]
    if method == "softmax" and dtype is F32:
        powers = np.exp(x.astype(np.float64) - x.max(axis=-1, keepdims=True))
        exact = powers / powers.sum(axis=-1, keepdims=True)
        is_normal = exact > 1.2e-38
        np.testing.assert_allclose(got[is_normal], exact[is_normal], rtol=8e-7)


@edge("denormals")
def test_denormals_are_kept(provider: str) -> None:
    tiny = f32(1e-40, -3e-42, 1.4e-45, 0.0, -0.0)
    got = check(activation(tiny, {"activation": "LeakyRelu", "activation_params": [0.5]}), provider)["Y"]
    assert got[0] == tiny[0]
    check(activation(tiny, {"activation": "Relu"}), provider)
    check(normalization(tiny.reshape(1, -1), {"axes": [1], "normalize_variance": 0}), provider)


@edge("denormals")
@pytest.mark.parametrize("across", [False, True])
def test_denormals_of_softmax_are_zero(provider: str, across: bool) -> None:
    x = np.zeros((40, 37), F32)
    x[:, 5:] = np.linspace(-103, -89, 32)  # exponentials from 2e-45 to 2e-39
    x = x.T.copy() if across else x
    got = check(normalization(x, {"axes": [0 if across else 1], "method": "softmax"}), provider)["Y"]
    if platform.machine() in ("x86_64", "AMD64"):
        assert ((got == 0) == (x < -1)).all()


@edge("denormals")
@pytest.mark.parametrize("behind", ["Mul", "Mul Mul", ""])
@pytest.mark.parametrize("dtype", [F32, ml_dtypes.bfloat16])
def test_denormals_behind_a_softmax_are_zero(provider: str, dtype: Any, behind: str) -> None:
    """A probability of 2.7e-38, which is kept, times a factor."""
    x = f32(0.0, -86.5, -86.0, -3.0).astype(dtype)[None]
    operands = {f"operand_{i}": f32(0.2 * 25**i).astype(dtype) for i in range(behind.count("Mul"))}
    parameters = {} if behind else {"scale": f32(0.2).astype(dtype)}
    attributes = {"axes": [-1], "method": "softmax", **({"steps_behind": behind} if behind else {})}
    check(normalization(x, attributes, **parameters, **operands), provider)


@edge("denormals")
def test_factors_whose_product_is_denormal_are_taken_one_by_one(provider: str) -> None:
    factors = {f"operand_{i}": np.full(70, factor, F32) for i, factor in enumerate((1e-25, 1e-18, 1e30))}
    expected = check(normalization(rows(2, 70), {"axes": [1]}), provider)["Y"]
    for factor in factors.values():
        expected = expected * factor
    case = normalization(rows(2, 70), {"axes": [1], "steps_behind": "Mul Mul Mul"}, **factors)
    np.testing.assert_array_equal(harness.run(session_of(case, provider), case.inputs)["Y"], expected)


@edge("minus zero")
def test_minus_zero_compares_equal_to_zero(provider: str) -> None:
    for name in ("Relu", "Identity", "Tanh", "Gelu", "HardSwish"):
        got = check(activation(f32(-0.0, 0.0), {"activation": name}), provider)["Y"]
        assert (got == 0).all()


@edge("empty tensors")
@pytest.mark.parametrize("shape", [(0,), (0, 5), (5, 0), (2, 0, 3), (2, 3, 0), (0, 0)])
@pytest.mark.parametrize("axes", [[-1], [0]])
def test_empty_tensors(provider: str, shape: tuple[int, ...], axes: list[int]) -> None:
    x = np.zeros(shape, F32)
    assert check(normalization(x, {"axes": axes}), provider)["Y"].shape == shape
    assert check(activation(x, {"activation": "Gelu"}), provider)["Y"].shape == shape
    quantized = dequantization(x.astype(np.int8), {}, x_scale=np.array(0.5, F32))
    assert check(quantized, provider)["Y"].shape == shape
    if shape[axes[0]] == 0:
        means = check(normalization(x, {"axes": axes}, ("Y", "mean")), provider)["mean"]
        assert np.isnan(means).all()


@edge("one element")
@pytest.mark.parametrize("rank", range(1, 9))
def test_one_element(provider: str, rank: int) -> None:
    x = np.full((1,) * rank, 3.0, F32)
    got = check(normalization(x, {"axes": list(range(rank))}, bias=f32(0.25)), provider)["Y"]
    assert got.reshape(()) == 0.25


@edge("one element")
def test_scalar_through_an_activation(provider: str) -> None:
    check(activation(np.array(-1.0, F32), {"activation": "Gelu"}), provider)
    check(dequantization(np.array(7, np.int8), {}, x_scale=np.array(0.5, F32)), provider)


@edge("16-bit floats")
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_statistics_of_16_bit_floats_are_float32(provider: str, dtype: Any) -> None:
    """300^2 does not fit into float16; ORT's own float16 stages give 0 here."""
    x = (rows() * 300).astype(dtype)
    for use_mean in (0, 1):
        got = check(normalization(x, {"axes": [-1], "use_mean": use_mean}), provider)["Y"]
        assert np.abs(got.astype(F32)).max() > 1.5


@edge("16-bit floats")
@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_every_16_bit_value_as_a_parameter(provider: str, dtype: Any) -> None:
    bias = np.arange(65536, dtype=np.uint16).view(dtype)
    bias = bias[np.isfinite(bias.astype(F32))]
    case = activation(np.zeros(bias.size, F32), {}, bias=bias)
    np.testing.assert_array_equal(harness.run(session_of(case, provider), case.inputs)["Y"], bias.astype(F32))


@edge("rounding", "infinities and NaN to integers")
@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.uint16, ml_dtypes.int4, ml_dtypes.uint4])
def test_rounding_saturation_and_odd_values_of_quantisation(provider: str, dtype: Any) -> None:
    """Half to even before the zero point; saturation; NaN to the minimum; infinity to the ends."""
    x = f32(0.5, 1.5, 2.5, -0.5, -1.5, 3.5, 127.5, 1e9, -1e9, 3e38, -3e38, np.inf, -np.inf, np.nan, -0.0, 0.49999997)
    zero_point = np.array(3, dtype)
    case = activation(x, {}, y_scale=np.array(1.0, F32), y_zero_point=zero_point)
    got = check(case, provider)["Y"].astype(int)
    low, high = meaning.INTEGER_RANGE[meaning.dtype_code(zero_point)]
    expected = np.clip([3, 5, 5, 3, 1, 7, 131], low, high)
    assert got[:7].tolist() == expected.tolist()
    assert got[7:].tolist() == [high, low, high, low, high, low, low, 3, 3]


@edge("infinities and NaN to integers")
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("scale", [0.5, -0.5, 1e-42, -1e-42])
def test_nan_becomes_the_lowest_integer(provider: str, scale: float, axis: int) -> None:
    """With a negative scale as well, and behind a normalisation."""
    x = rows(40, 40)
    x[1, 3] = np.nan
    for dtype, name, affine in product((np.int8, np.uint8, np.int16), ("Identity", "Gelu"), (False, True)):
        y = {"y_scale": np.array(scale, F32), "y_zero_point": np.zeros((), dtype)}
        parameters = {"scale": rows(1, 40)[0], **y} if affine else y
        check(activation(x, {"activation": name}, **parameters), provider)
        check(normalization(x, {"axes": [axis], "activation": name}, **parameters), provider)


@edge("scale and bias")
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("use_mean", [0, 1])
@pytest.mark.parametrize(
    ("size", "factor", "epsilon"),
    [(0, 2e36, 1e-5), (1, 2e36, 1e-5), (1e-30, 1e30, 0), (1e25, 1e-25, 0), (1e-40, 1, 0), (1e35, 1e-30, 1e-5)],
)
def test_factors_may_be_beyond_float(
    provider: str, size: float, factor: float, epsilon: float, use_mean: int, axis: int
) -> None:
    """Their product may leave the range of float32 where what it is multiplied with brings it back."""
    x, attributes = rows(6, 6) * F32(size), {"axes": [axis], "epsilon": float(epsilon), "use_mean": use_mean}
    stored = {"y_scale": np.array(0.125, F32), "y_zero_point": np.zeros((), np.int8)}
    for scale, y in product((np.ones(6, F32), f32(1, 1, 1, 0.5, 1, 1)), ({}, stored)):
        case = normalization(x, attributes, scale=scale * F32(factor), bias=f32(0.25), **y)
        error = 2.0**-22 * factor / (0.125 if y else 1.0)  # four units of a normalised value of 1
        case.expected()["Y"].widened(error).check(harness.run(session_of(case, provider), case.inputs)["Y"])


@edge("scale and bias")
@pytest.mark.parametrize("count", [1, 40])
@pytest.mark.parametrize("axis", [0, 1])
def test_a_factor_beyond_float_with_the_reciprocal_of_y_scale(provider: str, axis: int, count: int) -> None:
    """Infinity, which times 0 is NaN."""
    x, scale = np.resize(f32(1e-32, 0, -1e-32, 0), (2, 40)), np.ones((1, count), F32)
    scale[0, 0] = 2
    case = normalization(
        x if axis == 1 else x.T.copy(),
        {"axes": [axis], "epsilon": 0.0},
        scale=scale if axis == 1 else scale.T.copy(),
        y_scale=np.array(2e-9, F32),
        y_zero_point=np.zeros((), np.int8),
    )
    got = harness.run(session_of(case, provider), case.inputs)["Y"]
    np.testing.assert_array_equal(got if axis == 1 else got.T, np.clip(np.sign(x) * 200, -128, 127))


@edge("output scale 0")
def test_output_scale_zero(provider: str) -> None:
    """As ORT: x / 0 is an infinity, or NaN for 0."""
    case = activation(f32(0, 1, -1), {}, y_scale=np.array(0.0, F32), y_zero_point=np.array(3, np.uint8))
    assert check(case, provider)["Y"].tolist() == [0, 255, 0]


@edge("input scale 0")
def test_input_scale_zero(provider: str) -> None:
    x = np.arange(-4, 4, dtype=np.int8).reshape(2, 4)
    check(normalization(x, {"axes": [1]}, x_scale=np.array(0.0, F32)), provider)
    check(dequantization(x, {}, x_scale=np.array(0.0, F32)), provider)


@edge("quantised rows")
@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
@pytest.mark.parametrize("width", [1, 5, 64, 1000, 70000])
def test_extreme_rows_of_8_bit_integers(provider: str, dtype: Any, width: int) -> None:
    """Sums of squares beyond 32 bits: 66,052 elements of 255 are the first that overflow."""
    info = np.iinfo(dtype)
    x = np.full((3, width), info.max, dtype)
    x[1] = info.min
    x[2, ::2] = info.min
    zero_point = np.array(info.min, dtype)
    for point in (None, zero_point):
        case = normalization(x, {"axes": [-1]}, x_scale=np.array(0.02, F32), x_zero_point=point)
        got = check(case, provider)["Y"]
        assert np.abs(got[:2]).max() < 1e-5


@edge("quantised rows")
@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16])
@pytest.mark.parametrize("width", [3, 7, 49, 100])
def test_stored_integers_take_any_scale(provider: str, width: int, dtype: Any) -> None:
    """Equal ones as well, whose mean is one of them; five rows have each a scale and a zero point, or one together."""
    x = (np.arange(5 * width) * 37 % 120).astype(dtype).reshape(5, width)
    each = np.arange(5 if width != 7 else 1)
    outputs = ("Y", "mean", "inv_std_dev") if width > 7 else ("Y",)
    for codes, x_scale, scale in product((x, np.full_like(x, 100)), (1e-38, 1e-33, 1.0, 1e32), (1.0, 2e36, 1e-30)):
        quantized = {"x_scale": F32(x_scale) * (each + 1).astype(F32), "x_zero_point": (100 - 7 * each).astype(dtype)}
        affine = {"scale": f32(scale), "bias": f32(0.25)}
        check(normalization(codes, {"axes": [1], "x_axis": 0}, outputs, **quantized, **affine), provider)
        check(activation(codes, {"x_axis": 0}, **quantized, **affine), provider)


@edge("32-bit integers")
@pytest.mark.parametrize("dtype", [np.int32, np.uint32])
def test_integers_beyond_24_bits(provider: str, dtype: Any) -> None:
    x = np.array([2**24 + 1, 2**24 + 3, 2**31 - 1, 5], dtype)
    check(dequantization(x, {}, x_scale=np.array(1.0, F32)), provider)
    check(dequantization(x, {}, x_scale=np.array(0.5, F32), x_zero_point=np.array(3, dtype)), provider)


@edge("32-bit integers")
@pytest.mark.parametrize("dtype", [np.int32, np.uint32])
@pytest.mark.parametrize(
    ("shape", "axis", "block"), [((), 0, 0), ((3,), 0, 0), ((70,), 1, 0), ((3, 7), 1, 10), ((1, 70), 0, 3)]
)
def test_differences_of_wide_integers_are_exact(
    provider: str, shape: tuple[int, ...], axis: int, block: int, dtype: Any
) -> None:
    """float32 does not hold the integers themselves."""
    x = (0x7F000000 + np.arange(210) * 37 % 101).astype(dtype).reshape(3, 70)
    zero = (0x7F000000 + 16 * np.arange(np.prod(shape, dtype=int))).astype(dtype).reshape(shape)
    attributes = {"x_axis": axis, "x_block_size": block}
    check(dequantization(x, attributes, x_scale=np.full(shape, 0.5, F32), x_zero_point=zero), provider)


@edge("float8")
@pytest.mark.parametrize("code", meaning.FLOAT8)
@pytest.mark.parametrize("saturate", [0, 1])
def test_every_float16_into_float8(provider: str, code: int, saturate: int) -> None:
    x = np.arange(65536, dtype=np.uint16).view(np.float16)
    case = activation(
        x,
        {"y_saturate": saturate},
        y_scale=np.array(1.0, np.float16),
        y_zero_point=np.zeros((), meaning.dtype_of(code)),
    )
    check(case, provider)


@edge("float8")
@pytest.mark.parametrize("code", meaning.FLOAT8)
@pytest.mark.parametrize("saturate", [0, 1])
def test_float8_on_both_sides_of_every_tie(provider: str, code: int, saturate: int) -> None:
    """The last tie is that of the largest value and of what would follow it at the same distance."""
    zero = np.zeros((), meaning.dtype_of(code))
    every = np.arange(256, dtype=np.uint8).view(zero.dtype).astype(F32)
    every = np.unique(every[np.isfinite(every)])
    ties = (np.append(every, 2 * every[-1] - every[-2]) + np.append(2 * every[0] - every[1], every)) / 2
    x = np.concatenate([every, *(np.nextafter(ties, towards) for towards in (ties, -F32(np.inf), F32(np.inf)))])
    case = activation(x, {"y_saturate": saturate}, y_scale=np.array(1.0, F32), y_zero_point=zero)
    check(case, provider)


@edge("float8")
@pytest.mark.parametrize("code", meaning.FLOAT8)
def test_every_float8_value(provider: str, code: int) -> None:
    x = np.arange(256, dtype=np.uint8).view(meaning.dtype_of(code))
    check(dequantization(x, {}, x_scale=np.array(0.5, F32)), provider)


@edge("packed types")
@pytest.mark.parametrize("dtype", [ml_dtypes.int4, ml_dtypes.uint4])
@pytest.mark.parametrize("count", [1, 2, 3, 7, 16, 33, 257])
def test_packed_types_of_every_length(provider: str, dtype: Any, count: int) -> None:
    """An odd number of elements leaves a part of the last byte unused, rows begin in the middle of a byte."""
    low, high = meaning.INTEGER_RANGE[meaning.dtype_code(np.zeros(1, dtype))]
    x = np.random.default_rng(count).integers(low, high + 1, (3, count)).astype(dtype)
    check(dequantization(x, {}, x_scale=np.array(0.5, F32)), provider)
    check(normalization(x, {"axes": [1]}, x_scale=np.array(0.5, F32)), provider)
    case = activation(
        x, {"x_axis": 0}, x_scale=f32(0.5, 1, 2), y_scale=np.array(0.7, F32), y_zero_point=np.array(1, dtype)
    )
    check(case, provider)


@edge("activation of infinities and NaN")
def test_clip_with_min_above_max_gives_max(provider: str) -> None:
    got = check(activation(f32(-5, 0, 5), {"activation": "Clip", "activation_params": [2.0, 1.0]}), provider)["Y"]
    assert got.tolist() == [1, 1, 1]


@edge("activation of infinities and NaN")
@pytest.mark.parametrize("name", sorted(ACTIVATIONS))
def test_activations_of_odd_values(provider: str, name: str) -> None:
    x = f32(np.nan, np.inf, -np.inf, 0.0, -0.0, 3e38, -3e38, 1e-45, -1e-45, 88.9, -88.9, 104.0, -104.0)
    slope = f32(0.25) if ACTIVATIONS[name].has_slope else None
    check(activation(x, {"activation": name}, slope=slope), provider)


@edge("activation of infinities and NaN")
@pytest.mark.parametrize(
    ("name", "params"),
    [
        *(("Swish", [beta]) for beta in (3e38, -3e38, 1e-40)),
        *(("Selu", [alpha, 2.0]) for alpha in (3e38, -3e38)),
        *(("Softplus", [steepness]) for steepness in (3e38, -3e38)),
        *(("ParametricSoftplus", [1.0, beta]) for beta in (3e38, -3e38)),
    ],
)
def test_parameters_at_the_ends_of_float32(provider: str, name: str, params: list[float]) -> None:
    """Products and quotients of them are no floats."""
    x = f32(0.0, 1.0, -1.0, 0.25, -0.25, 100.0, -1e-3)
    check(activation(x, {"activation": name, "activation_params": params}), provider)


@edge("NaN or infinity in a row")
def test_nan_in_a_parameter_reaches_only_its_elements(provider: str) -> None:
    scale = np.ones(37, F32)
    scale[4] = np.nan
    got = check(normalization(rows(), {"axes": [-1]}, scale=scale), provider)["Y"]
    assert np.isnan(got[:, 4]).all()
    assert np.isnan(got).sum() == 3


@edge("float8")
def test_float8_without_saturation(provider: str) -> None:
    x = f32(500.0, -500.0, 448.0, 465.0, np.inf, np.nan)
    case = activation(
        x,
        {"y_saturate": 0, "y_dtype": int(TensorProto.FLOAT8E4M3FN)},
        y_scale=np.array(1.0, F32),
        y_zero_point=np.zeros((), ml_dtypes.float8_e4m3fn),
    )
    got = check(case, provider)["Y"].astype(F32)
    assert np.isnan(got).tolist() == [True, True, False, True, True, True]


def test_every_edge_of_the_reference_is_tested(provider: str) -> None:
    assert set(EDGES) == TESTED | TESTED_ELSEWHERE
