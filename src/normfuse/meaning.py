"""What a chain means: its program, the text ``steps`` of a node, computed by NumPy in float64.

Written from ep/spec/operators.toml and the formulas of activations.toml alone: it shares nothing with the kernels, and
neither onnx.reference nor ONNX Runtime is asked.

:func:`evaluate` gives an :class:`Expected` per output: the exact value and an interval around it, both in float64. The
interval holds what a float32 computation may do to the value (the accuracy that the documentation promises), then
passes through the same monotone rounding to the output's type as the value itself. A result is right when it lies in
between: so float16 is rounded once, and a quantised output is off by one step only near a tie.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import ml_dtypes  # comes with onnx; NumPy itself has no such types
import numpy as np

from normfuse.spec import ACTIVATIONS, ELEMENT_TYPES, STEPS, ProgramStep, labels_of, read_program
from normfuse.spec.formulas import evaluate as evaluate_formula

Array = np.ndarray[Any, Any]
Tensors = Mapping[str, Array]

_NUMBERS = {name: each.number for name, each in ELEMENT_TYPES.items()}
_NAMES = {number: name for name, number in _NUMBERS.items()}
FLOAT8 = tuple(each.number for each in ELEMENT_TYPES.values() if each.kind == "float8")
#: Least and largest value of the integer types that are stored, by the number of the type.
INTEGER_RANGE: dict[int, tuple[int, int]] = {
    each.number: (0, 2**each.bits - 1) if name.startswith("u") else (-(2 ** (each.bits - 1)), 2 ** (each.bits - 1) - 1)
    for name, each in ELEMENT_TYPES.items()
    if each.kind == "integer" and each.bits < 32
}
# Of the float types that NumPy has not: bits of the mantissa, exponent of the smallest normal number, largest number,
# and what lies beyond.
_FORMATS = {
    "bfloat16": (7, -126, float.fromhex("0x1.fep127"), np.inf),
    "float8e4m3fn": (3, -6, 448.0, np.nan),
    "float8e4m3fnuz": (3, -7, 240.0, np.nan),
    "float8e5m2": (2, -14, 57344.0, np.inf),
    "float8e5m2fnuz": (2, -15, 57344.0, np.nan),
}
_EPSILON32 = 2.0**-23
_NORMAL32 = float(np.finfo(np.float32).tiny)
# Units in the last place that an activation by itself may be off: erf-GELU without tables, as on AVX2, rounds most.
_OWN_UNITS = {"Gelu": 5.5}
# Below x = -4 these go to zero as a product of two small things: the promise there is relative to max(|value|, 2^-24).
_TAILS = ("Gelu", "GeluTanh", "Swish", "Mish")
_NO_ROUNDING = ("Identity", "Relu", "Clip", "ThresholdedRelu")
_COMBINED: Mapping[str, Callable[[Array, Array], Array]] = {"Mul": np.multiply, "Add": np.add, "Div": np.divide}
_CORES = ("Normalize", "Softmax", "LogSoftmax")


def dtype_code(array: Array) -> int:
    """Return the number of an array's element type in onnx.TensorProto.DataType, ml_dtypes' types included."""
    return _NUMBERS[array.dtype.name.replace("_", "")]


def dtype_of(code: int) -> np.dtype[Any]:
    """Return the NumPy (or ml_dtypes) type of a number."""
    name = _NAMES[code].replace("float8e", "float8_e")
    return np.dtype(getattr(ml_dtypes, name, None) or name)


def ulp32(value: Array) -> Array:
    """Return the distance from |value| to the next larger float32; the smallest there is for infinity and NaN."""
    finite = np.where(np.isfinite(value), np.abs(value), 0.0)
    _, exponent = np.frexp(np.minimum(finite, float(np.finfo(np.float32).max)))
    return np.asarray(np.ldexp(1.0, np.maximum(exponent - 24, -149)))


# --- quantisation --------------------------------------------------------------------------------------------------


def expand_parameter(parameter: Array, shape: Sequence[int], axis: int, block_size: int) -> Array:
    """Return a scale or zero point for each element of a tensor: per tensor, per axis, blocked or broadcast."""
    parameter = np.asarray(parameter)
    if parameter.size == 1:
        return np.broadcast_to(parameter.reshape(()), shape)
    rank = len(shape)
    axis = axis + rank if axis < 0 else axis
    if parameter.ndim == rank and block_size > 0:
        return np.take(parameter, np.arange(shape[axis]) // block_size, axis=axis)
    if parameter.ndim == 1 and rank != 1:
        parameter = parameter.reshape([-1 if d == axis else 1 for d in range(rank)])
    return np.broadcast_to(parameter, shape)


def dequantize(x: Array, scale: Array, zero_point: Array | None, axis: int = 1, block_size: int = 0) -> Array:
    """Return (x - zero_point) * scale, of x's shape."""
    value = x.astype(np.float64)
    if zero_point is not None:
        value = value - expand_parameter(zero_point.astype(np.float64), x.shape, axis, block_size)
    return value * expand_parameter(scale.astype(np.float64), x.shape, axis, block_size)


def _dequantize_error(x: Array, scale: Array, zero_point: Array | None, axis: int, block_size: int) -> Array:
    """What float32 may add: one rounding of the product and, beyond 24 bits, of the integers."""
    error = 0.5 * ulp32(dequantize(x, scale, zero_point, axis, block_size))
    if x.dtype.itemsize == 4:
        magnitude = np.abs(x.astype(np.float64))
        if zero_point is not None:
            magnitude = magnitude + np.abs(expand_parameter(zero_point.astype(np.float64), x.shape, axis, block_size))
        step = np.abs(expand_parameter(scale.astype(np.float64), x.shape, axis, block_size))
        error = error + 1.5 * _EPSILON32 * magnitude * step
    return error


def round_to_type(value: Array, code: int, *, zero_point: Array | float = 0.0, saturate: bool = True) -> Array:
    """Return what storing a value in a type makes of it, as float64. Monotone in the value but for NaN."""
    if code in INTEGER_RANGE:
        # Half to even, then the zero point is added, then the sum saturates; NaN becomes the type's minimum.
        low, high = INTEGER_RANGE[code]
        rounded = np.rint(value) + zero_point
        return np.where(np.isnan(rounded), float(low), np.clip(rounded, low, high))
    name = _NAMES[code]
    if name not in _FORMATS:
        with np.errstate(over="ignore"):
            return value.astype(dtype_of(code)).astype(np.float64)
    # ml_dtypes would go through float32, which rounds twice.
    mantissa, lowest, largest, beyond = _FORMATS[name]
    magnitude = np.where(np.isfinite(value), np.abs(value), np.inf)
    _, exponent = np.frexp(np.where(np.isfinite(value), value, 1.0))
    step = np.ldexp(1.0, np.maximum(exponent - 1, lowest) - mantissa)
    rounded = np.rint(magnitude / step) * step
    end = largest if saturate and code in FLOAT8 else beyond
    return np.where(np.isnan(value), np.nan, np.copysign(np.where(rounded > largest, end, rounded), value))


def quantize(
    value: Array, scale: Array, zero_point: Array | None, code: int, axis: int = 1, block_size: int = 0
) -> Array:
    """Return QuantizeLinear of exact values, in the type itself."""
    how = (value.shape, axis, block_size)
    offset = 0.0 if zero_point is None else expand_parameter(zero_point.astype(np.float64), *how)
    steps = value / expand_parameter(scale.astype(np.float64), *how)
    return round_to_type(steps, code, zero_point=offset).astype(dtype_of(code))


# --- activations ---------------------------------------------------------------------------------------------------


def activation_parameters(name: str, given: Sequence[float] = ()) -> list[float]:
    """Return the parameters as the library sees them: attributes are float32."""
    return [float(np.float32(value)) for value in given or ACTIVATIONS[name].parameters.values()]


def activate(name: str, x: Array, params: Sequence[float] = (), slope: Array | None = None) -> Array:
    """Return activation(x)."""
    slope = None if slope is None else slope.astype(np.float64)
    return np.asarray(ACTIVATIONS[name](x.astype(np.float64), activation_parameters(name, params), slope))


def _activation_interval(
    name: str, z: Array, error: Array, params: Sequence[float], slope: Array | None
) -> tuple[Array, Array, Array]:
    """activation(z), and the interval it may lie in when z is known to within ``error``.

    Steps (ThresholdedRelu, Shrink) may go either way within ``error`` of the threshold; everywhere else the bound of
    the derivative holds, plus four units in the last place of the function itself (GELU: 5.5).
    """
    row, values = ACTIVATIONS[name], activation_parameters(name, params)
    value = activate(name, z, params, slope)
    bound = evaluate_formula(row.lipschitz, {"x": z, "slope": slope, **dict(zip(row.drawn, values, strict=True))})
    reach = np.broadcast_to(bound * error, value.shape)
    candidates = [value - reach, value + reach]
    candidates += [np.where(error > 0, activate(name, z + sign * error, params, slope), value) for sign in (-1, 1)]
    size = np.abs(value)
    if name in _TAILS:
        argument = z * values[0] if name == "Swish" else z
        size = np.where(argument < -4, np.maximum(size, 2.0**-24), size)
    own: Array | float = 0.0
    if name not in _NO_ROUNDING:
        own = _OWN_UNITS.get(name, 4.0) * ulp32(size) + _cancelled(name, z, values)
    settled = ~np.isfinite(value)
    low, high = np.fmin.reduce(candidates) - own, np.fmax.reduce(candidates) + own
    return value, np.where(settled, value, low), np.where(settled, value, high)


def _cancelled(name: str, z: Array, values: Sequence[float]) -> Array | float:
    """Rounding of the terms of a formula that cancel: there the result is no more accurate than they are."""
    if name == "Shrink":
        return ulp32(np.abs(z) + abs(values[0]))
    if name not in ("Linear", "HardSigmoid", "HardSwish"):
        return 0.0
    terms = np.abs(values[0] * z) + abs(values[1])
    if name != "HardSwish":
        return ulp32(terms)
    # The clamped factor is rounded at the size of its terms, then multiplied by x.
    return np.where(values[0] * z + values[1] > 0, np.abs(z) * ulp32(np.minimum(terms, 4.0)), 0.0)


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
        """Return what the exact value, or another, is as the output holds it, in float64."""
        value = self.exact if value is None else value
        return round_to_type(value, self.code, zero_point=self.zero_point, saturate=self.saturate)

    def array(self) -> Array:
        """Return the exact value in the output's own type."""
        return self.stored().astype(dtype_of(self.code))

    def widened(self, amount: Array | float) -> Expected:
        """Return the same with an interval that is ``amount`` wider on both sides."""
        return Expected(self.exact, self.low - amount, self.high + amount, self.code, self.zero_point, self.saturate)

    def allows(self, got: Array) -> Array:
        """Say for each element whether ``got`` is right."""
        got = got.astype(np.float64)
        low, high, exact = self.stored(self.low), self.stored(self.high), self.stored()
        # Beyond the range, float8 without saturation gives NaN: allowed when either end of the interval does.
        nan_allowed = np.isnan(low) | np.isnan(high) | np.isnan(exact)
        low = np.where(np.isnan(low), np.where(np.isnan(exact), high, exact), low)
        high = np.where(np.isnan(high), np.where(np.isnan(exact), low, exact), high)
        inside = (got >= np.minimum(low, high)) & (got <= np.maximum(low, high))
        return np.where(np.isnan(got), nan_allowed, inside)

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


# --- chains --------------------------------------------------------------------------------------------------------


def evaluate(
    steps: str | Sequence[ProgramStep], tensors: Tensors, *, each_rounded: bool = False
) -> dict[str, Expected]:
    """Return what a program gives, by the names of the operator's outputs.

    Args:
        steps: The program.
        tensors: X and those of the program, by their labels.
        each_rounded: Every step is rounded to float32 in turn, and nothing else is right. For steps that float32
            computes exactly rounded: all but normalisations and activations with functions.

    Raises:
        ValueError: The tensors are not those of the program.
    """
    program = read_program(steps) if isinstance(steps, str) else tuple(steps)
    if wrong := set(tensors) ^ {"X", *labels_of(program)}:
        raise ValueError(f"{sorted(wrong)}: tensors of '{steps}' only, or not there")
    with np.errstate(all="ignore"):
        return _Evaluation(program, tensors, each_rounded).outputs()


class _Value(NamedTuple):
    """Where a value lies in a float32 computation."""

    exact: Array
    low: Array
    high: Array

    @property
    def error(self) -> Array:
        error = np.maximum(self.high - self.exact, self.exact - self.low)
        return np.where(np.isfinite(error), error, 0.0)

    def reshaped(self, shape: Sequence[int]) -> _Value:
        return _Value(*(each.reshape(shape) for each in self))


def _within(exact: Array, error: Array | float) -> _Value:
    """What is infinite or NaN, is that."""
    error = np.where(np.isfinite(exact) & np.isfinite(error), error, 0.0)
    return _Value(exact, exact - error, exact + error)


def _float32(value: Array) -> Array:
    return value.astype(np.float32).astype(np.float64)


class _Evaluation:
    """One program and its tensors."""

    def __init__(self, program: Sequence[ProgramStep], tensors: Tensors, each_rounded: bool) -> None:
        self._program = program
        self._tensors = tensors
        self._each_rounded = each_rounded
        self._core = next((step for step in program if step.name in _CORES), None)
        # How small a denormal result of any step may be 0: in a chain with a softmax all are.
        self._flushed = _NORMAL32 if self._core is not None and self._core.name != "Normalize" else 0.0
        self._results: dict[str, Expected] = {}

    def outputs(self) -> dict[str, Expected]:
        steps = deque(self._program)
        d = self._load("X", steps.popleft() if steps[0].name == "Dequantize" else None)
        while steps:
            step = steps.popleft()
            if step is self._core:
                d = self._affine(*self._normalized(d, step), steps)
            elif step.name in ("Quantize", "Store"):
                break
            else:
                d = self._stepped(d, step)
            if self._each_rounded:
                d = _within(_float32(d.exact), 0.0)
        else:
            step = ProgramStep("Store")
        self._results["Y"] = self._quotient(d, step) if step.name == "Quantize" else Expected(*d, self._type(step))
        return self._results

    def _stepped(self, d: _Value, step: ProgramStep) -> _Value:
        if step.is_activation:
            slope = self._tensors[step.operand].astype(np.float64) if step.operand else None
            values = [step[name] for name in ACTIVATIONS[step.name].parameters]
            return _Value(*_activation_interval(step.name, d.exact, d.error, values, slope))
        if step.name == "FakeQuantize":
            return self._fake_quantized(d, step)
        if STEPS[step.name].output:
            return self._put_out(d, step, STEPS[step.name].output)
        # Behind a core, operands may be joined first: bias * m + a is rounded, and so is what it is added to.
        units = 1.5 if self._core and step.name == "Add" else 0.5
        return self._combined(d, step, lambda value: units * ulp32(value) + self._flushed)

    # --- operands ---

    def _load(self, label: str, step: ProgramStep | None) -> _Value:
        """A tensor, dequantised where the step has a scale."""
        x = self._tensors[label]
        if step is None or "scale" not in step.arguments:
            return _within(x.astype(np.float64), 0.0)
        zero_point = self._tensors.get(step["zero_point"] or "")
        how = (self._tensors[step["scale"]], zero_point, step["axis"], step["block_size"])
        return _within(dequantize(x, *how), _dequantize_error(x, *how))

    def _operand(self, step: ProgramStep, shape: Sequence[int]) -> _Value:
        """The operand of a step as it meets a value of this shape."""
        operand = self._load(step.operand, step)
        if step.is_activation or step["align"] == "trailing":
            return operand
        repeats = shape[1] // self._core["num_groups"] if self._core and step["align"] == "group" else 1
        along = [-1 if axis == 1 else 1 for axis in range(len(shape))]
        return _Value(*(np.repeat(each.reshape(-1), repeats).reshape(along) for each in operand))

    def _combined(self, d: _Value, step: ProgramStep, own: Callable[[Array], Array | float]) -> _Value:
        operand = self._operand(step, d.exact.shape)
        exact, *ends = (_COMBINED[step.name](each, operand.exact) for each in d)
        slope = {"Mul": d.exact, "Div": exact / operand.exact}.get(step.name, np.ones(()))
        more = np.abs(slope) * operand.error + own(exact)
        low, high = np.fmin(*ends) - more, np.fmax(*ends) + more
        settled = ~np.isfinite(exact)
        return _Value(exact, np.where(settled, exact, low), np.where(settled, exact, high))

    def _affine(self, d: _Value, unit: float, steps: deque[ProgramStep]) -> _Value:
        """Take Mul and Add, scale and bias, off the steps behind a core.

        They have together, and it has without them, four units in the last place of max(|scale * n|, |bias|, unit),
        where ``unit`` is n's own size.
        """
        size = np.asarray(unit)
        for name in ("Mul", "Add"):
            if name == "Add":
                size = np.maximum(np.abs(d.exact), size)
            if steps and steps[0].name == name:
                step = steps.popleft()
                if name == "Add":
                    size = np.maximum(size, np.abs(self._operand(step, d.exact.shape).exact))
                d = self._combined(d, step, np.zeros_like)
        return _within(d.exact, d.error + 4.0 * ulp32(size) + self._flushed)

    # --- quantisation ---

    def _type(self, step: ProgramStep) -> int:
        """The type that a step stores; without a word of it a quantised one's zero point's, a float's X's own."""
        if step["type"]:
            return _NUMBERS[step["type"]]
        if "scale" in step.arguments:
            return dtype_code(self._tensors[step["zero_point"]]) if step["zero_point"] else _NUMBERS["uint8"]
        first = self._program[0]
        return dtype_code(self._tensors[first["scale"] if first.name == "Dequantize" else "X"])

    def _grid(self, step: ProgramStep, shape: Sequence[int]) -> tuple[Array, Array]:
        """Scale and zero point of each element."""
        how = (shape, step["axis"], step["block_size"])
        scale = expand_parameter(self._tensors[step["scale"]].astype(np.float64), *how)
        zero_point = self._tensors[step["zero_point"]] if step["zero_point"] else np.zeros(())
        return scale, expand_parameter(zero_point.astype(np.float64), *how)

    def _quotient(self, d: _Value, step: ProgramStep) -> Expected:
        scale, zero_point = self._grid(step, d.exact.shape)
        code = self._type(step)
        exact, *ends = (each / scale for each in d)
        # The division is rounded to float32; a quotient that is a float32 is a tie or none, and is quantised exactly.
        widen = np.where(d.low < d.high, 1.5, np.where(_float32(exact) == exact, 0.0, 0.5)) * ulp32(exact)
        if ProgramStep("Gelu") in self._program and ELEMENT_TYPES[_NAMES[code]].bits == 8 and code in INTEGER_RANGE:
            # Without AVX-512: 5e-6, where steps are at least 2^-7.
            widen = widen + np.where(np.abs(scale) >= 2.0**-7, 5e-6 / np.abs(scale), 0.0)
        low, high = np.minimum(*ends) - widen, np.maximum(*ends) + widen
        return Expected(exact, low, high, code, zero_point, bool(step["saturate"]))

    def _put_out(self, d: _Value, step: ProgramStep, name: str) -> _Value:
        """An output, which goes on dequantised; where rounding may turn a tie, it is known to within a step."""
        if "scale" not in step.arguments:
            self._results[name] = Expected(*d, self._type(step))
            return d
        total = self._results[name] = self._quotient(d, step)
        scale, zero_point = self._grid(step, d.exact.shape)
        exact, low, high = ((total.stored(each) - zero_point) * scale for each in (total.exact, total.low, total.high))
        return _within(exact, np.abs(high - low) + 0.5 * ulp32(exact))

    def _fake_quantized(self, d: _Value, step: ProgramStep) -> _Value:
        """As two nodes compute it in float32, to the bit: each operation is monotone, so that ends become ends."""
        shape = self._tensors["X"].shape
        for each in self._program:
            if each.operand:
                shape = np.broadcast_shapes(shape, self._operand(each, shape).exact.shape)
        scale, zero_point = self._grid(step, shape)
        code, saturate = self._type(step), bool(step["saturate"])
        stored = [round_to_type(_float32(v / scale), code, zero_point=zero_point, saturate=saturate) for v in d]
        exact, *ends = (_float32((each - zero_point) * scale) for each in stored)
        return _Value(exact, np.fmin(*ends), np.fmax(*ends))

    # --- cores ---

    def _normalized(self, d: _Value, step: ProgramStep) -> tuple[_Value, float]:
        """n, and its own size: 1, unless it is not divided by its deviation; a softmax has none. Adds outputs."""
        d = _within(d.exact, d.error + self._flushed)
        shape, groups = d.exact.shape, step["num_groups"]
        self._results.setdefault("sum", Expected(*d, self._type(ProgramStep("Emit"))))
        view = (shape[0], groups, shape[1] // groups, *shape[2:]) if groups else shape
        axes = tuple(range(2, len(view)) if groups else (axis % len(view) for axis in step["axes"]))
        if step.name != "Normalize":
            return _softmax(d, axes, step.name), 0.0
        n = self._standardized(d.reshaped(view), axes, step).reshaped(shape)
        if step["normalize_variance"] or not n.exact.size:
            return n, 1.0
        return n, max(float(np.nan_to_num(n.exact).std()), 1.0)

    def _standardized(self, d: _Value, axes: tuple[int, ...], step: ProgramStep) -> _Value:
        """n; adds mean and 1 / denominator to the outputs."""
        epsilon = float(np.float32(step["epsilon"]))
        mean = _mean(d.exact, axes)
        # A NaN or infinity makes the row NaN.
        centred = d.exact - (np.where(np.isfinite(mean), mean, np.nan) if step["use_mean"] else 0.0)
        variance = _mean(centred**2, axes)
        root = np.sqrt(variance + epsilon) if step["epsilon_on"] == "variance" else np.sqrt(variance) + epsilon
        inverse = 1.0 / root
        n = centred / root if step["normalize_variance"] else centred
        # An error of d moves the value itself, the mean and the deviation: at most so much.
        worst = np.max(d.error, axis=axes, keepdims=True, initial=0.0)
        factor = inverse if step["normalize_variance"] else 1.0
        spread = np.max(np.abs(d.exact - mean), axis=axes, keepdims=True, initial=0.0)
        self._add_statistic("mean", mean, 4.0 * ulp32(np.abs(mean)) + 2.0 * ulp32(spread) + worst)
        slack = 4.0 * ulp32(inverse) + 2.0 * np.where(worst > 0, worst * inverse * inverse, 0.0)
        self._add_statistic("inv_std_dev", inverse, slack)
        return _within(n, np.where(worst > 0, worst * factor * (2.0 + np.abs(n)), 0.0))

    def _add_statistic(self, name: str, value: Array, slack: Array) -> None:
        """Of X's rank: one of groups has a dimension more in the view that it is taken of."""
        own = value.shape[: self._results["sum"].exact.ndim]
        value, slack = value.reshape(own), slack.reshape(own)
        self._results[name] = Expected(value, value - slack, value + slack, _NUMBERS["float32"])


def _mean(values: Array, axes: tuple[int, ...]) -> Array:
    if any(values.shape[a] == 0 for a in axes):
        return np.full([1 if i in axes else s for i, s in enumerate(values.shape)], np.nan)
    return np.asarray(values.mean(axis=axes, keepdims=True))


def _softmax(d: _Value, axes: tuple[int, ...], name: str) -> _Value:
    """exp(d) / sum(exp(d)), or its logarithm."""
    below = d.exact - d.exact.max(axis=axes, keepdims=True, initial=-np.inf)
    powers = np.exp(below)
    total = powers.sum(axis=axes, keepdims=True)
    worst = np.max(d.error, axis=axes, keepdims=True, initial=0.0) + d.error
    if name == "Softmax":
        value = powers / total
        return _within(value, value * np.expm1(worst))
    value = below - np.log(total)
    return _within(value, worst + 4.0 * ulp32(np.maximum(np.maximum(np.abs(d.exact), np.abs(value)), 1.0)))
