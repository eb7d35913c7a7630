"""What a chain means, on cases computed by hand: everything else leans on it."""

from __future__ import annotations

import math
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto

from normfuse import meaning
from normfuse.meaning import evaluate
from normfuse.spec import ACTIVATIONS, ARGUMENTS, STEPS

F32 = np.float32
GROUPS = "Normalize num_groups=2 epsilon=0"
CHANNELS = np.array([1, 3, 10, 30], F32).reshape(1, 4, 1)


def array(*values: float, dtype: object = F32) -> np.ndarray:
    return np.array(values, dtype=dtype)


def test_covers_the_whole_specification() -> None:
    """A new activation, step or argument without a meaning is an error here."""
    source = Path(meaning.__file__).read_text("utf-8")
    for name in [*(name for name, step in STEPS.items() if not step.output), *ARGUMENTS]:
        assert f'"{name}"' in source, name
    for name, row in ACTIVATIONS.items():
        slope = np.full(3, 0.5) if row.has_slope else None
        assert np.isfinite(meaning.activate(name, np.array([-1.0, 0.0, 2.0]), slope=slope)).all(), name


@pytest.mark.parametrize(
    ("name", "params", "x", "expected"),
    [
        ("Relu", (), -2.0, 0.0),
        ("LeakyRelu", (0.25,), -2.0, -0.5),
        ("Elu", (2.0,), -math.log(2.0), -1.0),
        ("Celu", (2.0,), -2.0 * math.log(2.0), -1.0),
        ("Selu", (2.0, 3.0), -math.log(2.0), -3.0),
        ("Gelu", (), 1.0, 0.8413447460685429),  # the normal distribution function at 1
        ("Gelu", (), -10.0, -7.619853024160527e-23),
        ("GeluTanh", (), 1.0, 0.5 * (1 + math.tanh(math.sqrt(2 / math.pi) * 1.044715))),
        ("Swish", (1.0,), math.log(3.0), math.log(3.0) * 0.75),
        ("HardSwish", (), 1.5, 1.5 * 0.75),
        ("HardSigmoid", (), 1.0, 0.7),
        ("Sigmoid", (), -math.log(3.0), 0.25),
        ("Tanh", (), math.log(2.0), 0.6),
        ("Erf", (), 1.0, 0.8427007929497149),
        ("Exp", (), math.log(3.0), 3.0),
        ("Sin", (), math.pi / 6, 0.5),
        ("SinSquared", (), math.pi / 6, 0.25),
        ("ScaledTanh", (2.0, 0.5), 2.0 * math.log(2.0), 1.2),
        ("Softplus", (2.0,), 0.0, math.log(2.0) / 2),
        ("ParametricSoftplus", (3.0, 2.0), 0.0, 3 * math.log(2.0)),
        ("Softsign", (), -3.0, -0.75),
        ("ThresholdedRelu", (1.0,), 1.0, 0.0),
        ("Shrink", (1.0, 0.5), -2.0, -1.0),
        ("Mish", (), 0.0, 0.0),
        ("Mish", (), math.log(math.sqrt(3.0) - 1.0), 0.5 * math.log(math.sqrt(3.0) - 1.0)),
        ("Clip", (-1.0, 1.0), 7.0, 1.0),
        ("Clip", (2.0, 1.0), 0.0, 1.0),  # min above max: max wins
        ("Linear", (2.0, 1.0), 3.0, 7.0),
    ],
)
def test_activation_by_hand(name: str, params: tuple[float, ...], x: float, expected: float) -> None:
    assert meaning.activate(name, np.array([x]), params)[0] == pytest.approx(expected, rel=1e-7, abs=1e-15)


def test_activation_of_nan_and_infinity() -> None:
    odd = np.array([np.nan, -np.inf])
    for name in ("Relu", "LeakyRelu", "Elu", "Clip", "Sigmoid", "HardSigmoid", "Tanh", "Celu", "Selu"):
        assert np.isnan(meaning.activate(name, odd)[0]), name
    for name in ("Gelu", "GeluTanh", "Swish", "HardSwish", "Softsign", "Mish", "Sin", "SinSquared"):
        assert np.isnan(meaning.activate(name, odd)).all(), name
    for name in ("ThresholdedRelu", "Shrink"):
        assert meaning.activate(name, odd)[0] == 0, name


def test_rounding_is_half_to_even_before_the_zero_point() -> None:
    scale, x = array(1.0), np.array([0.5, 1.5, 2.5, -0.5, -1.5, 127.5, 300.0, np.inf, -np.inf, np.nan])
    u8 = meaning.quantize(x, scale, array(1, dtype=np.uint8), TensorProto.UINT8)
    assert u8.tolist() == [1, 3, 3, 1, 0, 129, 255, 255, 0, 0]
    i8 = meaning.quantize(x, scale, None, TensorProto.INT8)
    assert i8.tolist() == [0, 2, 2, 0, -2, 127, 127, 127, -128, -128]
    i4 = meaning.quantize(x, scale, None, TensorProto.INT4)
    assert i4.astype(int).tolist() == [0, 2, 2, 0, -2, 7, 7, 7, -8, -8]
    u2 = meaning.quantize(x, scale, None, TensorProto.UINT2)
    assert u2.astype(int).tolist() == [0, 2, 2, 0, 0, 3, 3, 3, 0, 0]


@pytest.mark.parametrize("code", meaning.FLOAT8)
def test_float8_rounding_is_that_of_the_type(code: int) -> None:
    dtype = meaning.dtype_of(code)
    every = np.arange(256, dtype=np.uint8).view(dtype)
    finite = np.unique(every.astype(np.float64)[np.isfinite(every.astype(np.float64))])
    assert (meaning.round_to_type(finite, code) == finite).all()
    middle = (finite[:-1] + finite[1:]) / 2
    for x in (middle, np.nextafter(middle, -np.inf), np.nextafter(middle, np.inf)):
        rounded = meaning.round_to_type(x, code)
        assert (np.abs(rounded - x) <= (finite[1:] - finite[:-1]) / 2).all()
    # Ties go to the neighbour with an even mantissa.
    tie = meaning.round_to_type(middle, code).astype(dtype).view(np.uint8)
    assert (tie % 2 == 0).all()
    beyond = np.array([1e6, -1e6, np.inf])
    largest = float(ml_dtypes.finfo(dtype).max)
    assert meaning.round_to_type(beyond, code).tolist() == [largest, -largest, largest]
    unsaturated = meaning.round_to_type(beyond, code, saturate=False)
    if code == TensorProto.FLOAT8E5M2:
        assert unsaturated.tolist() == [np.inf, -np.inf, np.inf]
    else:
        assert np.isnan(unsaturated).all()
    assert np.isnan(meaning.round_to_type(np.array([np.nan]), code)).all()


def test_bfloat16_is_rounded_once() -> None:
    # Just above the middle of two bfloat16: by way of float32 it would become the tie, then the even neighbour below.
    x = np.array([1.0 + 2.0**-8 + 2.0**-30, 1.0 + 2.0**-8, 1.0 + 3 * 2.0**-8, np.inf, 4e38])
    assert meaning.round_to_type(x, TensorProto.BFLOAT16).tolist() == [1 + 2.0**-7, 1.0, 1 + 2.0**-6, np.inf, np.inf]


def test_granularities() -> None:
    x = np.arange(12, dtype=np.int8).reshape(2, 6)
    two, six = array(1.0, 10.0), np.arange(1, 7, dtype=F32)
    assert meaning.dequantize(x, array(2.0), array(1, dtype=np.int8))[0].tolist() == [-2, 0, 2, 4, 6, 8]
    assert meaning.dequantize(x, two, None, axis=0)[1].tolist() == [60, 70, 80, 90, 100, 110]
    assert meaning.dequantize(x, six, None, axis=-1)[0].tolist() == [0, 2, 6, 12, 20, 30]
    blocked = np.array([[1.0, 10.0], [2.0, 20.0]], dtype=F32)  # blocks of 4: the second one has only 2
    assert meaning.dequantize(x, blocked, None, axis=1, block_size=4).tolist() == [
        [0, 1, 2, 3, 40, 50],
        [12, 14, 16, 18, 200, 220],
    ]
    rows = np.array([[1.0], [2.0]], dtype=F32)
    assert meaning.dequantize(x, rows, None)[1].tolist() == [12, 14, 16, 18, 20, 22]


NAN, INF = np.nan, np.inf
# 0.025 / 0.01 is a little above 2.5, which it is in float32.
UNEVEN, STEP = F32(0.025), F32(0.01)


@pytest.mark.parametrize(
    ("steps", "tensors", "expected"),
    [
        ("Normalize axes=1 use_mean=0 epsilon=0", {"X": [[3, 4]]}, [[3 / math.sqrt(12.5), 4 / math.sqrt(12.5)]]),
        ("Normalize axes=1 normalize_variance=0", {"X": [[3, 4]]}, [[-0.5, 0.5]]),
        ("Normalize axes=1 epsilon_on=stddev epsilon=0.5", {"X": [[3, 4]]}, [[-0.5, 0.5]]),
        ("Normalize axes=1 epsilon_on=stddev epsilon=0", {"X": [[3, 4]]}, [[-1, 1]]),
        ("Normalize axes=0 epsilon_on=stddev epsilon=1e-09", {"X": [5, 5]}, [0, 0]),
        ("Normalize axes=-1 epsilon=0", {"X": [[INF, 1], [1, 3]]}, [[NAN, NAN], [-1, 1]]),
        ("Normalize axes=-1 use_mean=0", {"X": [INF, 1]}, [NAN, 0]),
        ("Normalize axes=-1 normalize_variance=0", {"X": [INF, 1]}, [NAN, NAN]),
        # Groups {1, 3} and {10, 30}; scale and bias of channels, of groups, and of X's own shape.
        (f"{GROUPS}; Mul s align=channel", {"X": CHANNELS, "s": [1, 2, 3, 4]}, [[[-1], [2], [-3], [4]]]),
        (f"{GROUPS}; Add b align=group", {"X": CHANNELS, "b": [5, 7]}, [[[4], [6], [6], [8]]]),
        (f"{GROUPS}; Mul s; Add b", {"X": CHANNELS, "s": [[1], [2], [3], [4]], "b": [5]}, [[[4], [7], [2], [9]]]),
        ("Softmax axes=-1", {"X": [0, math.log(3)]}, [0.25, 0.75]),
        ("Softmax axes=-1", {"X": [[1000, 1000], [-INF, 0], [-INF, -INF]]}, [[0.5, 0.5], [0, 1], [NAN, NAN]]),
        ("Add mask; Softmax axes=-1", {"X": [[5, 1, 1]], "mask": [-INF, 0, 0]}, [[0, 0.5, 0.5]]),
        ("LogSoftmax axes=-1", {"X": [3, 3]}, [-math.log(2), -math.log(2)]),
        ("Mul a; Div b; Add c", {"X": [3], "a": [4], "b": [[2], [3]], "c": [1]}, [[7], [5]]),
        ("PRelu slope", {"X": [[-2, 4]], "slope": [[0.25], [0.5]]}, [[-0.5, 4], [-1, 4]]),
        ("LeakyRelu alpha=0.25; Relu", {"X": [-2, 4]}, [0, 4]),
        ("LeakyRelu alpha=0.25", {"X": [-2, 4]}, [-0.5, 4]),
        ("Add r scale=s zero_point=z", {"X": [1.0], "r": np.int8([9]), "s": 0.5, "z": np.int8(1)}, [5]),
        ("FakeQuantize scale=s zero_point=z", {"X": [0.5, 999, -INF, NAN], "s": 1, "z": np.uint8(1)}, [0, 254, -1, -1]),
        ("FakeQuantize scale=s axis=0", {"X": [[2], [2]], "s": [1, 4]}, [[2], [0]]),
        ("FakeQuantize scale=s type=float8e4m3fn saturate=0", {"X": [1.0625, 999], "s": 1.0}, [1, NAN]),
        ("FakeQuantize scale=s", {"X": [UNEVEN], "s": STEP}, [float(F32(2) * STEP)]),
    ],
)  # fmt: skip
def test_steps_by_hand(steps: str, tensors: dict[str, object], expected: list[object]) -> None:
    arrays = {name: x if isinstance(x, np.ndarray | np.integer) else np.array(x, F32) for name, x in tensors.items()}
    y = evaluate(steps, {name: np.asarray(x) for name, x in arrays.items()})["Y"]
    np.testing.assert_allclose(y.exact, np.array(expected), rtol=1e-7)
    y.check(y.exact.astype(F32))


def test_outputs_by_hand() -> None:
    x = array(1.0, 3.0).reshape(1, 2)  # mean 2, variance 1; 1 / sqrt(1 + 3) = 0.5
    steps = "Normalize axes=-1 epsilon=3; Mul scale; Add bias"
    out = evaluate(steps, {"X": x, "scale": array(2.0, 4.0), "bias": array(0.5, 0.25)})
    assert out["Y"].exact.tolist() == [[-0.5, 2.25]]
    assert out["mean"].exact.tolist() == [[2.0]]
    assert out["inv_std_dev"].exact.tolist() == [[0.5]]
    assert out["sum"].exact.tolist() == [[1.0, 3.0]]
    assert out["sum"].code == TensorProto.FLOAT
    halves = evaluate(f"Emit type=float16; {steps.partition(';')[0]}; Store type=bfloat16", {"X": x})
    assert (halves["sum"].code, halves["Y"].code) == (TensorProto.FLOAT16, TensorProto.BFLOAT16)


def test_residual_bias_and_sum() -> None:
    tensors = {
        "X": np.array([[10, 20]], dtype=np.uint8),
        "scale": array(0.5),
        "zero_point": array(10, dtype=np.uint8),
        "residual": array(1.0, 2.0).reshape(1, 2),
        "residual_bias": array(0.0, 3.0),
    }
    steps = "Dequantize scale=scale zero_point=zero_point; Add residual; Add residual_bias; Normalize axes=1"
    out = evaluate(f"{steps} normalize_variance=0", tensors)
    assert out["sum"].exact.tolist() == [[1.0, 10.0]]
    assert out["Y"].exact.tolist() == [[-4.5, 4.5]]
    assert out["sum"].code == TensorProto.FLOAT


def test_sum_that_is_quantised_before_it_is_normalised() -> None:
    tensors = {"X": array(0.2, 1.4), "residual": array(0.2, 1.5), "s": array(1.0), "z": np.array(1, dtype=np.uint8)}
    out = evaluate("Add residual; Requantize scale=s zero_point=z; Normalize axes=0 normalize_variance=0", tensors)
    assert out["sum"].array().tolist() == [1, 4]  # round(0.4) + 1, round(2.9) + 1
    assert out["Y"].exact.tolist() == [-1.5, 1.5]
    assert out["Y"].high[0] - out["Y"].low[0] < 1e-5


def test_quantised_output_allows_a_step_only_near_a_tie() -> None:
    quantize = "Quantize scale=s zero_point=z"
    given = {"s": array(1.0), "z": array(0, dtype=np.int8)}
    exact = evaluate(quantize, {"X": array(0.49, 0.5, 0.51), **given})["Y"]
    exact.check(np.array([0, 0, 1], dtype=np.int8))
    for wrong in ([1, 0, 1], [0, 1, 1], [0, 0, 0]):
        with pytest.raises(AssertionError, match="1 of 3 elements"):
            exact.check(np.array(wrong, dtype=np.int8))
    # Through Sigmoid(0) = 0.5 the value carries an error, so that either side of the tie is right; and so is it where
    # only the quotient is rounded to it.
    sigmoid = evaluate(f"Sigmoid; {quantize}", {"X": array(0.0), **given})["Y"]
    quotient = evaluate(quantize, {"X": array(UNEVEN), "s": array(STEP), "z": given["z"]})["Y"]
    for either, right in ((sigmoid, (0, 1)), (quotient, (2, 3))):
        for value in right:
            either.check(np.array([value], dtype=np.int8))
        with pytest.raises(AssertionError):
            either.check(np.array([right[1] + 1], dtype=np.int8))


def test_fake_quantisation_has_the_bits_of_float32() -> None:
    y = evaluate("FakeQuantize scale=s", {"X": array(UNEVEN, 0.074), "s": array(STEP)})["Y"]
    assert y.low.tolist() == y.high.tolist() == [float(F32(2) * STEP), float(F32(7) * STEP)]


def test_each_step_is_rounded_where_that_is_asked_for() -> None:
    tensors = {"X": array(1.0), "a": array(2.0**-30), "b": array(-1.0)}
    y = evaluate("Add a; Add b", tensors, each_rounded=True)["Y"]
    assert y.low.tolist() == y.exact.tolist() == y.high.tolist() == [0.0]
    assert evaluate("Add a; Add b", tensors)["Y"].exact.tolist() == [2.0**-30]


def test_small_results_of_softmax_may_be_zero() -> None:
    expected = evaluate("Softmax axes=0", {"X": array(0.0, -90.0)})["Y"]
    assert 0 < expected.exact[1] < np.finfo(F32).tiny
    expected.check(array(1.0, 0.0))
    with pytest.raises(AssertionError):
        evaluate("Softmax axes=0", {"X": array(0.0, -80.0)})["Y"].check(array(1.0, 0.0))


def test_tolerance_is_four_units_and_no_more() -> None:
    expected = evaluate("Normalize axes=0 epsilon=0", {"X": array(1.0, 3.0)})["Y"]
    good = array(-1.0, 1.0)
    expected.check(good)
    expected.check(good + F32(4 * 2.0**-23))
    with pytest.raises(AssertionError, match="exact"):
        expected.check(good + F32(6 * 2.0**-23))


def test_float16_output_is_rounded_once() -> None:
    expected = evaluate("Normalize axes=0", {"X": array(1.0, 2.0, 4.0, dtype=np.float16)})["Y"]
    expected.check(expected.array())
    with pytest.raises(AssertionError):
        expected.check(np.nextafter(expected.array(), np.float16(9)))


def test_step_functions_may_go_either_way_only_at_the_threshold() -> None:
    # n = -1, 1; the threshold lies at 1.
    expected = evaluate("Normalize axes=0 epsilon=0; ThresholdedRelu", {"X": array(1.0, 3.0)})["Y"]
    expected.check(array(0.0, 0.0))
    expected.check(array(0.0, 1.0))
    with pytest.raises(AssertionError):
        expected.check(array(-1.0, 1.0))


def test_nan_and_wrong_types_are_not_let_through() -> None:
    expected = evaluate("Relu", {"X": array(1.0, NAN, INF)})["Y"]
    expected.check(array(1.0, NAN, INF))
    for wrong in (array(1.0, 0.0, INF), array(NAN, NAN, INF), array(1.0, NAN, 3e38)):
        with pytest.raises(AssertionError):
            expected.check(wrong)
    with pytest.raises(AssertionError, match="type"):
        expected.check(np.array([1, 0, 3], dtype=np.float64))
    with pytest.raises(AssertionError, match="shape"):
        expected.check(array(1.0))


def test_tensors_that_are_not_the_programs_are_refused() -> None:
    for tensors in ({"X": array(1.0)}, {"X": array(1.0), "a": array(1.0), "b": array(1.0)}):
        with pytest.raises(ValueError, match="Add a"):
            evaluate("Add a", tensors)


def test_empty_tensors() -> None:
    out = evaluate("Normalize axes=1", {"X": np.zeros((2, 0), dtype=F32)})
    assert out["Y"].exact.shape == (2, 0)
    assert np.isnan(out["mean"].exact).all()
    assert evaluate("Normalize axes=1", {"X": np.zeros((0, 3), dtype=F32)})["Y"].exact.shape == (0, 3)
