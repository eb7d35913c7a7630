"""Float64 NumPy reference of the operators in domain ai.normfuse, and how far a result may be from it.

Written from ep/spec/operators.toml and activations.toml alone: neither onnx.reference nor ONNX Runtime is asked.

``evaluate(op, inputs, attributes)`` gives an ``Expected`` per output: the exact value and an interval around it, both
in float64. The interval holds what a float32 computation may do to the value (the accuracy that the documentation
promises), then passes through the same monotone rounding to the output's type as the value itself. A result is right
when it lies in between: so float16 is rounded once, and a quantised output is off by one step only near a tie.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import programs
from onnx import TensorProto
from programs import ACTIVATIONS, COMBINATIONS

#: Of a case, in the notation of `programs`.
ATTRIBUTE_DEFAULTS = {**programs.DEFAULTS, "spec_version": 1}

FLOAT8 = (TensorProto.FLOAT8E4M3FN, TensorProto.FLOAT8E4M3FNUZ, TensorProto.FLOAT8E5M2, TensorProto.FLOAT8E5M2FNUZ)
INTEGER_RANGE = {
    TensorProto.INT8: (-128, 127),
    TensorProto.UINT8: (0, 255),
    TensorProto.INT16: (-32768, 32767),
    TensorProto.UINT16: (0, 65535),
    TensorProto.INT4: (-8, 7),
    TensorProto.UINT4: (0, 15),
    TensorProto.INT2: (-2, 1),
    TensorProto.UINT2: (0, 3),
}
EPSILON32 = 2.0**-23
TINY32 = 2.0**-149
BYTES = (TensorProto.INT8, TensorProto.UINT8)
# Units in the last place that an activation by itself may be off: erf-GELU without tables, as on AVX2, rounds most.
OWN_UNITS = {"Gelu": 5.5}
# Below x = -4 these go to zero as a product of two small things: the promise there is relative to max(|value|, 2^-24).
TAILS = ("Gelu", "GeluTanh", "Swish", "Mish")
NO_ROUNDING = ("Identity", "Relu", "Clip", "ThresholdedRelu")

Array = np.ndarray[Any, Any]


def dtype_code(array: Array) -> int:
    """onnx.TensorProto.DataType of an array (ml_dtypes types included)."""
    return int(onnx.helper.np_dtype_to_tensor_dtype(array.dtype))


def dtype_of(code: int) -> np.dtype[Any]:
    """NumPy (or ml_dtypes) type of an onnx.TensorProto.DataType."""
    return np.dtype(onnx.helper.tensor_dtype_to_np_dtype(code))


def ulp32(value: Array) -> Array:
    """Distance from |value| to the next larger float32, as float64; infinite and NaN values give 0."""
    finite = np.where(np.isfinite(value), np.abs(value), 0.0)
    _, exponent = np.frexp(np.minimum(finite, 3.4028234663852886e38))
    return np.maximum(np.ldexp(1.0, np.maximum(exponent - 24, -149)), TINY32)


# --- quantisation --------------------------------------------------------------------------------------------------


def expand_parameter(parameter: Array, shape: Sequence[int], axis: int, block_size: int) -> Array:
    """A scale or zero point for every element of a tensor of ``shape``: per tensor, per axis, blocked or broadcast."""
    parameter = np.asarray(parameter)
    if parameter.size == 1:
        return np.broadcast_to(parameter.reshape(()), shape)
    rank = len(shape)
    axis = axis + rank if axis < 0 else axis
    if parameter.ndim == rank and block_size > 0:
        return np.take(parameter, np.arange(shape[axis]) // block_size, axis=axis)
    if parameter.ndim == 1 and rank != 1:
        return np.broadcast_to(parameter.reshape([-1 if d == axis else 1 for d in range(rank)]), shape)
    return np.broadcast_to(parameter, shape)


def dequantize(x: Array, scale: Array, zero_point: Array | None, axis: int = 1, block_size: int = 0) -> Array:
    """(x - zero_point) * scale in float64, of x's shape."""
    value = x.astype(np.float64)
    if zero_point is not None:
        value = value - expand_parameter(zero_point.astype(np.float64), x.shape, axis, block_size)
    return value * expand_parameter(scale.astype(np.float64), x.shape, axis, block_size)


def dequantize_error(x: Array, scale: Array, zero_point: Array | None, axis: int = 1, block_size: int = 0) -> Array:
    """What float32 may add: one rounding of the product and, beyond 24 bits, of the integers."""
    value = np.abs(dequantize(x, scale, zero_point, axis, block_size))
    error = 0.5 * ulp32(value)
    if x.dtype.itemsize == 4:
        magnitude = np.abs(x.astype(np.float64))
        if zero_point is not None:
            magnitude = magnitude + np.abs(expand_parameter(zero_point.astype(np.float64), x.shape, axis, block_size))
        step = np.abs(expand_parameter(scale.astype(np.float64), x.shape, axis, block_size))
        error = error + 1.5 * EPSILON32 * magnitude * step
    return error


def saturate_integer(value: Array, zero_point: Array | float, code: int) -> Array:
    """Round half to even, add the zero point, saturate; NaN becomes the type's minimum. Float64 in and out."""
    low, high = INTEGER_RANGE[code]
    rounded = np.rint(value) + zero_point
    return np.where(np.isnan(rounded), float(low), np.clip(rounded, low, high))


def round_float8(value: Array, code: int, saturate: bool) -> Array:
    """Nearest float8 (ties to even) as float64. Out of range: the largest finite value, or NaN / infinity."""
    dtype = dtype_of(code)
    info = ml_dtypes.finfo(dtype)
    largest = float(info.max)
    mantissa = info.nmant
    lowest_exponent = int(np.log2(float(info.smallest_normal)))
    magnitude = np.where(np.isfinite(value), np.abs(value), 1.0)
    _, exponent = np.frexp(magnitude)
    step = np.ldexp(1.0, np.maximum(exponent - 1, lowest_exponent) - mantissa)
    rounded = np.copysign(np.rint(magnitude / step) * step, value)
    beyond = np.where(code == TensorProto.FLOAT8E5M2, np.copysign(np.inf, value), np.nan)
    out_of_range = ~np.isfinite(value) | (np.abs(rounded) > largest)
    rounded = np.where(out_of_range, np.copysign(largest, value) if saturate else beyond, rounded)
    return np.where(np.isnan(value), np.nan, rounded)


def round_to_type(value: Array, code: int, *, zero_point: Array | float = 0.0, saturate: bool = True) -> Array:
    """What storing ``value`` in type ``code`` makes of it, as float64. Monotone in value but for NaN."""
    if code in INTEGER_RANGE:
        return saturate_integer(value, zero_point, code)
    if code in FLOAT8:
        return round_float8(value, code, saturate)
    if code == TensorProto.BFLOAT16:
        return round_bfloat16(value)
    with np.errstate(over="ignore"):
        return value.astype(dtype_of(code)).astype(np.float64)


def round_bfloat16(value: Array) -> Array:
    """Nearest bfloat16 in one rounding (ml_dtypes goes through float32, which rounds twice)."""
    magnitude = np.where(np.isfinite(value), np.abs(value), 1.0)
    _, exponent = np.frexp(magnitude)
    step = np.ldexp(1.0, np.maximum(exponent - 8, -133))
    rounded = np.rint(magnitude / step) * step
    rounded = np.copysign(np.where(rounded > float(ml_dtypes.finfo(ml_dtypes.bfloat16).max), np.inf, rounded), value)
    return np.where(np.isfinite(value), rounded, value)


def quantize(
    value: Array, scale: Array, zero_point: Array | None, code: int, axis: int = 1, block_size: int = 0
) -> Array:
    """QuantizeLinear of exact values, in the type itself: what a test feeds as quantised input."""
    offset = (
        0.0 if zero_point is None else expand_parameter(zero_point.astype(np.float64), value.shape, axis, block_size)
    )
    steps = value / expand_parameter(scale.astype(np.float64), value.shape, axis, block_size)
    return round_to_type(steps, code, zero_point=offset).astype(dtype_of(code))


# --- activations ---------------------------------------------------------------------------------------------------


def erfc(x: Array) -> Array:
    """Complementary error function; NumPy has none."""
    return np.asarray(np.frompyfunc(math.erfc, 1, 1)(x)).astype(np.float64)


def erf(x: Array) -> Array:
    """Error function; NumPy has none."""
    return np.asarray(np.frompyfunc(math.erf, 1, 1)(x)).astype(np.float64)


def sigmoid(x: Array) -> Array:
    return np.exp(-np.logaddexp(0.0, -x))


def hard_sigmoid(x: Array, alpha: float, beta: float) -> Array:
    return np.maximum(0.0, np.minimum(1.0, alpha * x + beta))


def exponential_unit(x: Array, alpha: float) -> Array:
    return np.where(x < 0, alpha * np.expm1(np.minimum(x, 0.0)), x)


def gelu_tanh(x: Array) -> Array:
    # 0.5 x (1 + tanh u) = x sigmoid(2u), which does not cancel for negative u.
    return x * sigmoid(2.0 * math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3))


def shrink(x: Array, bias: float, lambd: float) -> Array:
    return np.where(x < -lambd, x + bias, np.where(x > lambd, x - bias, 0.0))


FORMULAS: dict[str, Callable[..., Array]] = {
    "Identity": lambda x: x,
    "Relu": lambda x: np.maximum(x, 0.0),
    "LeakyRelu": lambda x, alpha: np.where(x < 0, alpha * x, x),
    "Elu": exponential_unit,
    "Celu": lambda x, alpha: np.maximum(0.0, x) + np.minimum(0.0, alpha * np.expm1(np.minimum(x / alpha, 700.0))),
    "Selu": lambda x, alpha, gamma: np.where(x > 0, gamma * x, gamma * alpha * np.expm1(np.minimum(x, 0.0))),
    "Gelu": lambda x: 0.5 * x * erfc(-x / math.sqrt(2.0)),
    "GeluTanh": gelu_tanh,
    "Swish": lambda x, alpha: x * sigmoid(alpha * x),
    "HardSwish": lambda x, alpha, beta: x * hard_sigmoid(x, alpha, beta),
    "HardSigmoid": hard_sigmoid,
    "Sigmoid": sigmoid,
    "Tanh": np.tanh,
    "Erf": erf,
    "Exp": np.exp,
    "Sin": np.sin,
    "SinSquared": lambda x: np.sin(x) ** 2,
    "ScaledTanh": lambda x, alpha, beta: alpha * np.tanh(beta * x),
    "Softplus": lambda x, steepness: np.logaddexp(0.0, steepness * x) / steepness,
    "ParametricSoftplus": lambda x, alpha, beta: alpha * np.logaddexp(0.0, beta * x),
    "Softsign": lambda x: x / (1.0 + np.abs(x)),
    "ThresholdedRelu": lambda x, alpha: np.where(x > alpha, x, 0.0),
    "Shrink": shrink,
    "Mish": lambda x: x * np.tanh(np.logaddexp(0.0, x)),
    "Clip": lambda x, low, high: np.minimum(np.maximum(x, low), high),
    "Linear": lambda x, alpha, beta: alpha * x + beta,
}


def activation_parameters(name: str, given: Sequence[float] = ()) -> list[float]:
    """The parameters as the library sees them: attributes are float32."""
    values = list(given) or [row["default"] for row in ACTIVATIONS[name].get("params", [])]
    return [float(np.float32(float(value))) for value in values]


def activate(name: str, x: Array, params: Sequence[float] = (), slope: Array | None = None) -> Array:
    """activation(x) in float64."""
    with np.errstate(all="ignore"):
        if name == "PRelu":
            assert slope is not None
            return np.where(x < 0, slope.astype(np.float64) * x, x)
        return FORMULAS[name](x.astype(np.float64), *activation_parameters(name, params))


def lipschitz(name: str, z: Array, params: Sequence[float] = (), slope: Array | None = None) -> Array | float:
    """The table's bound of |f'|, or |f'| at z."""
    row = ACTIVATIONS[name]
    scope: dict[str, Any] = dict(
        zip([p["name"] for p in row.get("params", [])], activation_parameters(name, params), strict=True)
    )
    scope.update(abs=abs, max=max, exp=np.exp, x=z)
    if name == "PRelu":
        assert slope is not None
        return np.maximum(1.0, np.abs(slope.astype(np.float64)))
    return np.asarray(eval(row["lipschitz"], {"__builtins__": {}}, scope), np.float64)


def activation_interval(
    name: str, z: Array, error: Array, params: Sequence[float] = (), slope: Array | None = None
) -> tuple[Array, Array, Array]:
    """activation(z), and the interval it may lie in when z is known to within ``error``.

    Steps (ThresholdedRelu, Shrink) may go either way within ``error`` of the threshold; everywhere else the bound of
    the derivative holds, plus four units in the last place of the function itself (GELU: 5.5, see OWN_UNITS).
    """
    with np.errstate(all="ignore"):
        value = activate(name, z, params, slope)
        reach = np.broadcast_to(lipschitz(name, z, params, slope) * error, value.shape)
        candidates = [value - reach, value + reach]
        candidates += [np.where(error > 0, activate(name, z + sign * error, params, slope), value) for sign in (-1, 1)]
        size = np.abs(value)
        if name in TAILS:
            argument = z * activation_parameters(name, params)[0] if name == "Swish" else z
            size = np.where(argument < -4, np.maximum(size, 2.0**-24), size)
        units = OWN_UNITS.get(name, 4.0)
        own = np.zeros_like(size) if name in NO_ROUNDING else units * ulp32(size) + intermediate(name, z, params)
        low = np.fmin.reduce(candidates) - own
        high = np.fmax.reduce(candidates) + own
    settled = ~np.isfinite(value)
    return value, np.where(settled, value, low), np.where(settled, value, high)


def intermediate(name: str, z: Array, params: Sequence[float]) -> Array | float:
    """Rounding of the terms of a formula that cancel: there the result is no more accurate than they are."""
    values = activation_parameters(name, params)
    if name == "Shrink":
        return ulp32(np.abs(z) + abs(values[0]))
    if name in ("Linear", "HardSigmoid"):
        return ulp32(np.abs(values[0] * z) + abs(values[1]))
    if name == "HardSwish":
        # The clamped factor is rounded at the size of its terms, then multiplied by x.
        factor = np.abs(values[0] * z) + abs(values[1])
        return np.where(hard_sigmoid(z, *values) > 0, np.abs(z) * ulp32(np.minimum(factor, 4.0)), 0.0)
    return 0.0


# --- results -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Expected:
    """An output: exact value and allowed interval in float64, before they are stored in type ``code``."""

    exact: Array
    low: Array
    high: Array
    code: int
    zero_point: Array | float = 0.0
    saturate: bool = True

    def stored(self, value: Array | None = None) -> Array:
        value = self.exact if value is None else value
        return round_to_type(value, self.code, zero_point=self.zero_point, saturate=self.saturate)

    def array(self) -> Array:
        """The exact value in the output's own type."""
        return self.stored().astype(dtype_of(self.code))

    def widened(self, amount: Array | float) -> Expected:
        """The same with an interval that is ``amount`` wider on both sides."""
        return Expected(self.exact, self.low - amount, self.high + amount, self.code, self.zero_point, self.saturate)

    def allows(self, got: Array) -> Array:
        """Element by element: is ``got`` right?"""
        got = got.astype(np.float64)
        low, high, exact = self.stored(self.low), self.stored(self.high), self.stored()
        # Beyond the range, float8 without saturation gives NaN: allowed when either end of the interval does.
        nan_allowed = np.isnan(low) | np.isnan(high) | np.isnan(exact)
        low = np.where(np.isnan(low), np.where(np.isnan(exact), high, exact), low)
        high = np.where(np.isnan(high), np.where(np.isnan(exact), low, exact), high)
        inside = (got >= np.minimum(low, high)) & (got <= np.maximum(low, high))
        return np.where(np.isnan(got), nan_allowed, inside & ~np.isnan(self.exact) | self._integer_nan(got))

    def _integer_nan(self, got: Array) -> Array:
        if self.code not in INTEGER_RANGE:
            return np.zeros(got.shape, dtype=bool)
        return np.isnan(self.exact) & (got == INTEGER_RANGE[self.code][0])

    def check(self, got: Array, what: str = "") -> None:
        """Assert shape, type and every element of ``got``."""
        assert got.shape == self.exact.shape, f"{what}: shape {got.shape}, expected {self.exact.shape}"
        assert dtype_code(got) == self.code, f"{what}: type {got.dtype}, expected {dtype_of(self.code)}"
        right = self.allows(got)
        if right.all():
            return
        index = tuple(int(i) for i in np.argwhere(~right)[0])
        raise AssertionError(
            f"{what}: {int((~right).sum())} of {right.size} elements are wrong; first at {index}: got "
            f"{got[index]!r}, exact {self.exact[index]!r} stored as {self.stored()[index]!r}, allowed "
            f"[{self.stored(self.low)[index]!r}, {self.stored(self.high)[index]!r}]"
        )


@dataclass(frozen=True)
class _Value:
    """A float64 array and a bound of its error in a float32 computation."""

    value: Array
    error: Array


Inputs = Mapping[str, Array | None]


def with_defaults(attributes: Mapping[str, Any]) -> dict[str, Any]:
    unknown = set(attributes) - set(ATTRIBUTE_DEFAULTS)
    if unknown:
        raise ValueError(f"unknown attributes {sorted(unknown)}")
    return {**ATTRIBUTE_DEFAULTS, **attributes}


def _operand(inputs: Inputs, name: str, attributes: Mapping[str, Any], prefix: str) -> _Value | None:
    x = inputs.get(name)
    if x is None:
        return None
    scale = inputs.get(f"{prefix}_scale")
    if scale is None:
        with np.errstate(invalid="ignore"):  # a signalling NaN
            return _Value(x.astype(np.float64), np.zeros(x.shape))
    how = (scale, inputs.get(f"{prefix}_zero_point"), attributes[f"{prefix}_axis"])
    block = attributes.get(f"{prefix}_block_size", 0)
    return _Value(dequantize(x, *how, block), dequantize_error(x, *how, block))


def _float_code(inputs: Inputs) -> int:
    """Type of d where the node does not say: X's, or x_scale's when X is quantised."""
    x, scale = inputs["X"], inputs.get("x_scale")
    assert x is not None
    return dtype_code(x if scale is None else scale)


def _y_code(inputs: Inputs, attributes: Mapping[str, Any]) -> int:
    if attributes["y_dtype"]:
        return int(attributes["y_dtype"])
    zero_point = inputs.get("y_zero_point")
    if zero_point is not None:
        return dtype_code(zero_point)
    return int(TensorProto.UINT8) if inputs.get("y_scale") is not None else _float_code(inputs)


def _aligned(parameter: _Value, shape: Sequence[int], align: str, groups: int) -> _Value:
    """scale or bias for every element of X."""

    def expand(value: Array) -> Array:
        if align == "trailing":
            return np.broadcast_to(value, shape)
        along = value.reshape(-1)
        if align == "group":
            along = np.repeat(along, shape[1] // groups)
        return np.broadcast_to(along.reshape([-1 if d == 1 else 1 for d in range(len(shape))]), shape)

    return _Value(expand(parameter.value), expand(parameter.error))


def _widened(z: _Value, inputs: Inputs, align: str) -> _Value:
    """z over the shape that scale and bias give it where no normalisation stands before them."""
    shape = z.value.shape
    for name in ("scale", "bias"):
        parameter = inputs.get(name)
        if parameter is None:
            continue
        own = parameter.shape
        if align == "channel" and len(shape) > 1:
            own = (parameter.size, *[1] * (len(shape) - 2))
        shape = np.broadcast_shapes(shape, own)
    return _Value(np.broadcast_to(z.value, shape), np.broadcast_to(z.error, shape))


def _affine(
    z: _Value, inputs: Inputs, attributes: Mapping[str, Any], *, normalized: bool, unit: Array | float = 1.0
) -> _Value:
    """scale * z + bias; after a norm with four units in the last place of max(|scale * n|, |bias|, unit).

    ``unit`` is n's own size, its standard deviation: 1, unless the norm does not divide by it. A softmax has none.
    """
    quantized = "scale_axis" in attributes and normalized
    if not normalized:
        z = _widened(z, inputs, attributes["affine_align"])
    shape, groups, align = z.value.shape, attributes["num_groups"], attributes["affine_align"]
    parts: dict[str, _Value | None] = {}
    for name in ("scale", "bias"):
        plain = inputs.get(name)
        operand = _operand(inputs, name, attributes, name) if quantized else None
        if operand is None and plain is not None:
            operand = _Value(plain.astype(np.float64), np.zeros(plain.shape))
        parts[name] = None if operand is None else _aligned(operand, shape, align, groups)
    scale, bias = parts["scale"], parts["bias"]
    product, error = z.value, z.error
    if scale is not None:
        with np.errstate(invalid="ignore"):  # 0 times infinity
            product = scale.value * z.value
            error = np.abs(scale.value) * z.error + scale.error * np.abs(z.value)
    value = product if bias is None else product + bias.value
    if bias is not None:
        error = error + bias.error
    if normalized:
        size = np.maximum(np.abs(product), unit)
        if bias is not None:
            size = np.maximum(size, np.abs(bias.value))
        error = error + 4.0 * ulp32(size)
    elif scale is not None or bias is not None:
        error = error + ulp32(product) + ulp32(value)
    return _Value(value, error)


def _flushed(attributes: Mapping[str, Any]) -> float:
    """How small a denormal result of any step may be 0: in a chain with a softmax all are."""
    return 0.0 if attributes.get("method", "standard") == "standard" else float(np.finfo(np.float32).tiny)


Interval = tuple[Array, Array, Array]
_COMBINED: Mapping[str, Callable[[Array, Array], Array]] = {"Mul": np.multiply, "Add": np.add, "Div": np.divide}


def _stepped(d: Interval, which: str, inputs: Inputs, attributes: Mapping[str, Any]) -> Interval:
    """steps_before or steps_behind on a value with its interval: operands combined with it, and activations."""
    value, low, high = d
    taken = sum(word in COMBINATIONS for word in attributes["steps_before"].split()) if which != "steps_before" else 0
    numbers = iter(attributes["step_params"])
    for word in attributes[which].split():
        if word not in COMBINATIONS:
            given = [next(numbers) for _ in ACTIVATIONS[word].get("params", [])]
            with np.errstate(invalid="ignore"):
                error = np.maximum(high - value, value - low)
            value, low, high = activation_interval(word, value, np.where(np.isfinite(error), error, 0.0), given)
            continue
        stored = inputs[f"operand_{taken}"]
        assert stored is not None
        operand = stored.astype(np.float64)
        taken += 1
        with np.errstate(divide="ignore", invalid="ignore"):
            ends = [_COMBINED[word](end, operand) for end in (value, low, high)]
        value, (low, high) = ends[0], (np.minimum(ends[1], ends[2]), np.maximum(ends[1], ends[2]))
        own = 0.5 * ulp32(value) + _flushed(attributes)
        settled = ~np.isfinite(value)
        low, high = np.where(settled, value, low - own), np.where(settled, value, high + own)
    return value, low, high


def _finish(z: _Value, inputs: Inputs, attributes: Mapping[str, Any]) -> Expected:
    """Activation, then quantisation or storing in a float type."""
    slope = inputs.get("slope")
    if slope is not None:
        shape = np.broadcast_shapes(z.value.shape, slope.shape)
        z = _Value(np.broadcast_to(z.value, shape), np.broadcast_to(z.error, shape))
        slope = np.broadcast_to(slope.astype(np.float64), shape)
    value, low, high = activation_interval(
        attributes["activation"], z.value, z.error, attributes["activation_params"], slope
    )
    value, low, high = _stepped((value, low, high), "steps_behind", inputs, attributes)
    code = _y_code(inputs, attributes)
    scale = inputs.get("y_scale")
    if scale is None:
        return Expected(value, low, high, code)
    how = (value.shape, attributes["y_axis"], attributes["y_block_size"])
    step = expand_parameter(scale.astype(np.float64), *how)
    zero_point = inputs.get("y_zero_point")
    offset = 0.0 if zero_point is None else expand_parameter(zero_point.astype(np.float64), *how)
    with np.errstate(all="ignore"):
        steps = [v / step for v in (value, low, high)]
        # The division is rounded to float32; a quotient that is a float32 is a tie or none, and is quantised exactly.
        representable = steps[0].astype(np.float32).astype(np.float64) == steps[0]
        widen = np.where(low < high, 1.5, np.where(representable, 0.0, 0.5)) * ulp32(steps[0])
        if attributes["activation"] == "Gelu" and "epsilon" in attributes and code in BYTES:
            # Behind a normalisation, without AVX-512: 5e-6, where steps are at least 2^-7.
            widen = widen + np.where(np.abs(step) >= 2.0**-7, 5e-6 / np.abs(step), 0.0)
    low, high = np.minimum(steps[1], steps[2]) - widen, np.maximum(steps[1], steps[2]) + widen
    return Expected(steps[0], low, high, code, offset, bool(attributes["y_saturate"]))


def _statistics(d: _Value, axes: tuple[int, ...], attributes: Mapping[str, Any]) -> tuple[Array, Array, _Value]:
    """Mean, 1 / denominator (both with the reduced dimensions kept) and n, of d over ``axes``."""
    epsilon = float(np.float32(attributes["epsilon"]))
    with np.errstate(all="ignore"):
        mean = _mean(d.value, axes)
        # A NaN or infinity makes the row NaN.
        centred = d.value - (np.where(np.isfinite(mean), mean, np.nan) if attributes["use_mean"] else 0.0)
        variance = _mean(centred**2, axes)
        root = np.sqrt(variance + epsilon) if attributes["epsilon_on"] == "variance" else np.sqrt(variance) + epsilon
        inverse, divides = 1.0 / root, attributes["normalize_variance"]
        n = centred / root if divides else centred
        # An error of d moves the value itself, the mean and the deviation: at most so much.
        worst = np.max(d.error, axis=axes, keepdims=True, initial=0.0) if axes else d.error
        error = np.where(worst > 0, worst * (inverse if divides else 1.0) * (2.0 + np.abs(n)), 0.0)
    return mean, inverse, _Value(n, np.where(np.isfinite(error), error, 0.0))


def _softmax(d: _Value, axes: tuple[int, ...], method: str) -> _Value:
    """exp(d) / sum(exp(d)) over ``axes``, or its logarithm, with what an error of d makes of it.

    What is below the smallest normal number may be 0.
    """
    with np.errstate(all="ignore"):
        most = d.value.max(axis=axes, keepdims=True, initial=-np.inf)
        below = d.value - most
        powers = np.exp(below)
        total = powers.sum(axis=axes, keepdims=True)
        worst = np.max(d.error, axis=axes, keepdims=True, initial=0.0) + d.error
        if method == "log_softmax":
            value = below - np.log(total)
            size = np.maximum(np.maximum(np.abs(d.value), np.abs(value)), 1.0)
            error = worst + 4.0 * ulp32(size)
        else:
            value = powers / total
            error = value * np.expm1(worst) + float(np.finfo(np.float32).tiny)
    return _Value(value, np.where(np.isfinite(error) & np.isfinite(value), error, 0.0))


def _mean(values: Array, axes: tuple[int, ...]) -> Array:
    if any(values.shape[a] == 0 for a in axes):
        return np.full([1 if i in axes else s for i, s in enumerate(values.shape)], np.nan)
    return values.mean(axis=axes, keepdims=True)


def _sum(d: _Value, inputs: Inputs, attributes: Mapping[str, Any]) -> tuple[_Value, Expected]:
    """The output sum, and what is normalised: d itself, or with sum_scale d quantised and dequantised again.

    Where rounding of d may turn a tie, the value to normalise is known to within a step only.
    """
    scale, zero_point = inputs.get("sum_scale"), inputs.get("sum_zero_point")
    low, high = d.value - d.error, d.value + d.error
    if scale is None:
        return d, Expected(d.value, low, high, int(attributes["sum_dtype"]) or _float_code(inputs))
    code = int(attributes["sum_dtype"]) or (TensorProto.UINT8 if zero_point is None else dtype_code(zero_point))
    step = float(scale.astype(np.float64).reshape(()))
    offset = 0.0 if zero_point is None else float(zero_point.astype(np.float64).reshape(()))
    steps = d.value / step
    widen = np.where(steps.astype(np.float32).astype(np.float64) == steps, 0.0, 0.5) * ulp32(steps)
    total = Expected(steps, low / step - widen, high / step + widen, int(code), offset)
    value = (total.stored() - offset) * step
    turned = np.abs(total.stored(total.high) - total.stored(total.low)) * step
    return _Value(value, turned + 0.5 * ulp32(value)), total


def fused_normalization(inputs: Inputs, attributes: Mapping[str, Any]) -> dict[str, Expected]:
    """Y, sum, mean and inv_std_dev of FusedNormalization."""
    at = with_defaults(attributes)
    d = _operand(inputs, "X", at, "x")
    assert d is not None
    residual = _operand(inputs, "residual", at, "residual")
    with np.errstate(all="ignore"):
        value, low, high = _stepped((d.value, d.value - d.error, d.value + d.error), "steps_before", inputs, at)
        d = _Value(value, np.where(np.isfinite(value), np.maximum(high - value, value - low), 0.0))
        if residual is not None:
            value = d.value + residual.value
            d = _Value(value, d.error + residual.error + 0.5 * ulp32(value))
        bias = inputs.get("residual_bias")
        if bias is not None:
            partial, value = d.value, d.value + bias.astype(np.float64)
            d = _Value(value, d.error + 0.5 * ulp32(partial) + 0.5 * ulp32(value))
    d = _Value(d.value, d.error + _flushed(at))
    d, total = _sum(d, inputs, at)
    shape, groups = d.value.shape, at["num_groups"]
    view = (shape[0], groups, shape[1] // groups, *shape[2:]) if groups else shape
    axes = range(2, len(view)) if groups else at["axes"]
    axes = tuple(sorted(a + len(view) if a < 0 else a for a in axes))
    viewed = _Value(d.value.reshape(view), d.error.reshape(view))
    if at["method"] != "standard":
        z = _affine(_softmax(viewed, axes, at["method"]), inputs, at, normalized=True, unit=0.0)
        return {"Y": _finish(_Value(z.value, z.error + _flushed(at)), inputs, at), "sum": total}
    mean, inverse, n = _statistics(viewed, axes, at)
    n = _Value(n.value.reshape(shape), n.error.reshape(shape))
    with np.errstate(all="ignore"):
        size = 1.0 if at["normalize_variance"] else float(np.nan_to_num(n.value).std()) if n.value.size else 1.0
        size = max(size, 1.0)
    outputs = {"Y": _finish(_affine(n, inputs, at, normalized=True, unit=size), inputs, at), "sum": total}
    with np.errstate(all="ignore"):
        spread = np.max(np.abs(viewed.value - mean), axis=axes, keepdims=True, initial=0.0)
        worst = np.max(viewed.error, axis=axes, keepdims=True, initial=0.0)
        slack = 4.0 * ulp32(np.abs(mean)) + 2.0 * ulp32(spread) + worst
        outputs["mean"] = _statistic(mean, slack, shape)
        slack = 4.0 * ulp32(inverse) + 2.0 * np.where(worst > 0, worst * inverse * inverse, 0.0)
        outputs["inv_std_dev"] = _statistic(inverse, slack, shape)
    return outputs


def _statistic(value: Array, slack: Array, shape: tuple[int, ...]) -> Expected:
    """Of X's rank: one of groups has a dimension more in the view that it is taken of."""
    own = value.shape[: len(shape)]
    exact, slack = value.reshape(own), slack.reshape(own)
    return Expected(exact, exact - slack, exact + slack, int(TensorProto.FLOAT))


def fused_activation(inputs: Inputs, attributes: Mapping[str, Any]) -> dict[str, Expected]:
    """Y of FusedActivation."""
    at = with_defaults(attributes)
    d = _operand(inputs, "X", at, "x")
    assert d is not None
    with np.errstate(all="ignore"):
        return {"Y": _finish(_affine(d, inputs, at, normalized=False), inputs, at)}


def fused_dequantize_linear(inputs: Inputs, attributes: Mapping[str, Any]) -> dict[str, Expected]:
    """Y of FusedDequantizeLinear."""
    at = with_defaults(attributes)
    d = _operand(inputs, "X", at, "x")
    assert d is not None
    return {"Y": _finish(d, inputs, at)}


EVALUATORS = {
    "FusedNormalization": fused_normalization,
    "FusedActivation": fused_activation,
    "FusedDequantizeLinear": fused_dequantize_linear,
}


def evaluate(op: str, inputs: Inputs, attributes: Mapping[str, Any]) -> dict[str, Expected]:
    """What operator ``op`` gives: one Expected per output name of operators.toml."""
    known = programs.INPUTS[op]
    unknown = [name for name in inputs if name not in known]
    if unknown:
        raise ValueError(f"{op} has no inputs {unknown}")
    return EVALUATORS[op](inputs, attributes)
