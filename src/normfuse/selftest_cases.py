"""The cases of the self-test: operators with deterministic inputs, and what each must give, in float64."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx import TensorProto

from normfuse.spec import ACTIVATIONS, find_normalization

__all__ = ["Case", "Expected", "cases", "expected"]

Array = np.ndarray[Any, Any]

INTEGER_RANGE: dict[int, tuple[int, int]] = {
    TensorProto.INT8: (-128, 127),
    TensorProto.UINT8: (0, 255),
    TensorProto.INT16: (-32768, 32767),
    TensorProto.UINT16: (0, 65535),
    TensorProto.INT4: (-8, 7),
    TensorProto.UINT4: (0, 15),
}
# Allowed error: |got - exact| / (1 + |exact|) of a float output, steps beyond the rounding itself of a quantised one.
TOLERANCE: dict[int, float] = {TensorProto.FLOAT: 2e-5, TensorProto.FLOAT16: 1.5e-3, TensorProto.BFLOAT16: 1e-2}
QUANTISED_TOLERANCE = 2e-3
# DirectML subtracts a mean that it has rounded to float32: up to this much for each standard deviation between the mean
# and 0. The CPU path keeps the rest of the mean.
DIRECTML_MEAN_ROUNDING = 2.0**-23


@dataclasses.dataclass(frozen=True)
class Case:
    """One node: its inputs (``runtime`` arrive at run time, the others are constants) and attributes, by slot."""

    name: str
    op_type: str
    inputs: Mapping[str, Array]
    attributes: Mapping[str, Any]
    outputs: tuple[str, ...] = ("Y",)
    runtime: tuple[str, ...] = ("X",)
    offset: float = 0.0
    """How many standard deviations lie between the mean and 0, where it matters."""


@dataclasses.dataclass(frozen=True)
class Expected:
    """An output in float64: real numbers, or what is rounded to an integer of a quantised type (zero point added)."""

    value: Array
    code: int

    def error(self, got: Array) -> float:
        """How far ``got`` is away, in the unit of :attr:`allowed`; infinite where a NaN or a shape is wrong."""
        if got.shape != self.value.shape:
            return math.inf
        real = got.astype(np.float64)
        if self.code in INTEGER_RANGE:
            distance = np.maximum(np.abs(real - np.clip(self.value, *INTEGER_RANGE[self.code])) - 0.5, 0.0)
        else:
            distance = np.abs(real - self.value) / (1.0 + np.abs(self.value))
        same = (real == self.value) | (np.isnan(real) & np.isnan(self.value))
        return float(np.max(np.where(same, 0.0, np.where(np.isnan(distance), math.inf, distance)), initial=0.0))

    @property
    def allowed(self) -> float:
        return TOLERANCE.get(self.code, QUANTISED_TOLERANCE)


# --- what the operators mean -----------------------------------------------------------------------------------------


def _activate(case: Case, x: Array) -> Array:
    activation = ACTIVATIONS[case.attributes.get("activation", "Identity")]
    given = case.attributes.get("activation_params")
    values = given if given is not None else list(activation.parameters.values())
    slope = case.inputs["slope"].astype(np.float64) if activation.has_slope else None
    return np.asarray(activation(x, [float(np.float32(value)) for value in values], slope))


def _spread(parameter: Array, shape: tuple[int, ...], axis: int, block: int) -> Array:
    """A scale or zero point for each element of a tensor."""
    values = parameter.astype(np.float64)
    if values.size == 1:
        return np.broadcast_to(values.reshape(()), shape)
    if values.ndim == 1 and len(shape) != 1:
        return np.broadcast_to(values.reshape([-1 if i == axis % len(shape) else 1 for i in range(len(shape))]), shape)
    return np.repeat(values, block, axis=axis) if block else np.broadcast_to(values, shape)


def _load(case: Case, name: str, prefix: str) -> Array:
    x, scale = case.inputs[name], case.inputs.get(f"{prefix}_scale")
    value = x.astype(np.float64)
    if scale is None:
        return value
    how = x.shape, case.attributes.get(f"{prefix}_axis", 1), case.attributes.get(f"{prefix}_block_size", 0)
    zero_point = case.inputs.get(f"{prefix}_zero_point")
    return (value - (0.0 if zero_point is None else _spread(zero_point, *how))) * _spread(scale, *how)


def _code(array: Array) -> int:
    return int(onnx.helper.np_dtype_to_tensor_dtype(array.dtype))


def _affine(case: Case, x: Array) -> Array:
    groups, align = case.attributes.get("num_groups", 0), case.attributes.get("affine_align", "trailing")
    for name, combine in (("scale", np.multiply), ("bias", np.add)):
        if name not in case.inputs:
            continue
        parameter = case.inputs[name].astype(np.float64)
        if align == "group":
            parameter = np.repeat(parameter, x.shape[1] // groups)
        if align != "trailing":
            parameter = parameter.reshape(-1, *[1] * (x.ndim - 2))
        x = combine(x, parameter)
    return x


def _stepped(case: Case, which: str, x: Array) -> Array:
    """steps_before or steps_behind; the cases have Mul and Add only."""
    before = case.attributes.get("steps_before", "").split()
    first = 0 if which == "steps_before" else len(before)
    for index, step in enumerate(case.attributes.get(which, "").split(), first):
        operand = case.inputs[f"operand_{index}"].astype(np.float64)
        x = x * operand if step == "Mul" else x + operand
    return x


def _store(case: Case, value: Array) -> Expected:
    """Activation, further steps, and the division of a quantised output."""
    activated = _stepped(case, "steps_behind", _activate(case, value))
    scale, zero_point = case.inputs.get("y_scale"), case.inputs.get("y_zero_point")
    default = case.inputs.get("x_scale", case.inputs["X"])
    if scale is None:
        return Expected(activated, int(case.attributes.get("y_dtype", 0)) or _code(default))
    how = value.shape, case.attributes.get("y_axis", 1), case.attributes.get("y_block_size", 0)
    offset = 0.0 if zero_point is None else _spread(zero_point, *how)
    code = int(TensorProto.UINT8) if zero_point is None else _code(zero_point)
    return Expected(activated / _spread(scale, *how) + offset, code)


def _normalization(case: Case) -> dict[str, Expected]:
    d = _stepped(case, "steps_before", _load(case, "X", "x"))
    if "residual" in case.inputs:
        d = d + _load(case, "residual", "residual")
    if "residual_bias" in case.inputs:
        d = d + case.inputs["residual_bias"].astype(np.float64)
    groups = case.attributes.get("num_groups", 0)
    view = d.reshape(d.shape[0], groups, d.shape[1] // groups, *d.shape[2:]) if groups else d
    axes = tuple(range(2, view.ndim)) if groups else tuple(case.attributes["axes"])
    mean = view.mean(axis=axes, keepdims=True) if case.attributes.get("use_mean", 1) else np.zeros(())
    variance = np.mean((view - mean) ** 2, axis=axes, keepdims=True)
    epsilon = float(np.float32(case.attributes.get("epsilon", 1e-5)))
    on_deviation = case.attributes.get("epsilon_on", "variance") == "stddev"
    deviation = np.sqrt(variance) + epsilon if on_deviation else np.sqrt(variance + epsilon)
    n = (view - mean) / deviation if case.attributes.get("normalize_variance", 1) else view - mean
    return {
        "Y": _store(case, _affine(case, n.reshape(d.shape))),
        "sum": Expected(d, _code(case.inputs.get("x_scale", case.inputs["X"]))),
        "mean": Expected(np.broadcast_to(mean, variance.shape), int(TensorProto.FLOAT)),
        "inv_std_dev": Expected(1.0 / deviation, int(TensorProto.FLOAT)),
    }


def expected(case: Case) -> dict[str, Expected]:
    """The case's outputs in float64, by name."""
    if case.op_type == "FusedNormalization":
        return _normalization(case)
    d = _load(case, "X", "x")
    return {"Y": _store(case, _affine(case, d) if case.op_type == "FusedActivation" else d)}


# --- inputs ----------------------------------------------------------------------------------------------------------


def _reals(*shape: int, low: float = -3.0, high: float = 5.0, dtype: Any = np.float32, seed: int = 0) -> Array:
    """Numbers without a pattern, the same everywhere."""
    at = np.arange(math.prod(shape), dtype=np.float64) + 17.0 * seed
    return (low + (high - low) * np.modf(at * 0.6180339887498949 + 0.3)[0]).reshape(shape).astype(dtype)


def _integers(dtype: Any, *shape: int, seed: int = 0) -> Array:
    code = int(onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))
    low, high = INTEGER_RANGE.get(code, (-2000, 2000) if np.dtype(dtype).kind == "i" else (0, 4000))
    return np.floor(_reals(*shape, low=low, high=high + 1, dtype=np.float64, seed=seed)).astype(dtype)


def _layer_norm(name: str, x: Array, *, more: Mapping[str, Array] | None = None, **attributes: Any) -> Case:
    """LayerNormalization over the last dimension with scale and bias."""
    size = x.shape[-1]
    inputs = {"X": x, "scale": _reals(size, low=0.5, high=1.5, seed=1), "bias": _reals(size, low=-1, high=1, seed=2)}
    return Case(name, "FusedNormalization", {**inputs, **(more or {})}, {"axes": [-1], **attributes})


QUANTISED_TYPES: dict[str, Any] = {
    "uint8": np.uint8,
    "int8": np.int8,
    "uint16": np.uint16,
    "int16": np.int16,
    "uint4": ml_dtypes.uint4,
    "int4": ml_dtypes.int4,
}


def _activation_cases() -> Iterator[Case]:
    for name, activation in ACTIVATIONS.items():
        slope = {"slope": _reals(24, low=-0.5, high=0.5, seed=3)} if activation.has_slope else {}
        drawn = [each.low + 0.375 * (each.high - each.low) for each in activation.drawn.values()]
        attributes: dict[str, Any] = {"activation": name, **({"activation_params": drawn} if drawn else {})}
        # Infinite defaults leave nothing to compute.
        usual = all(map(math.isfinite, activation.parameters.values()))
        by_default = {"activation": name} if usual else attributes
        yield _layer_norm(f"LayerNorm -> {name}", _reals(6, 24), more=slope, **by_default)
        yield Case(name, "FusedActivation", {"X": _reals(3, 5, 24, low=-6, high=6), **slope}, attributes)


def _quantisation_cases() -> Iterator[Case]:
    for name, dtype in QUANTISED_TYPES.items():
        zero = np.array(3, dtype=dtype)
        step = np.array(0.5 if "4" in name else 0.05, dtype=np.float32)
        per_tensor = {"x_scale": step, "x_zero_point": zero}
        yield _layer_norm(f"{name} -> LayerNorm", _integers(dtype, 6, 24), more=per_tensor)
        yield _layer_norm(f"LayerNorm -> {name}", _reals(6, 24), more={"y_scale": step, "y_zero_point": zero})
        by_axis = {"x_scale": _reals(24, low=0.02, high=0.08), "x_zero_point": _integers(dtype, 24, seed=5)}
        yield _layer_norm(f"{name} per axis -> LayerNorm", _integers(dtype, 6, 24), more=by_axis, x_axis=-1)
        blocks = {"x_scale": _reals(6, 3, low=0.02, high=0.08), "x_zero_point": _integers(dtype, 6, 3, seed=6)}
        how = {"x_axis": 1, "x_block_size": 8}
        yield Case(f"{name} blocked", "FusedDequantizeLinear", {"X": _integers(dtype, 6, 24), **blocks}, how)
    for name, wide in (("int32", np.int32), ("uint32", np.uint32)):
        yield _layer_norm(
            f"{name} -> LayerNorm", _integers(wide, 6, 24), more={"x_scale": np.array([0.01], np.float32)}
        )
    both: dict[str, Array] = {
        "x_scale": np.array([0.05], np.float32),
        "y_scale": np.array([0.04], np.float32),
        "y_zero_point": np.array(128, np.uint8),
    }
    yield _layer_norm("int8 -> LayerNorm -> Gelu -> uint8", _integers(np.int8, 8, 64), more=both, activation="Gelu")
    by_axis = {"y_scale": _reals(24, low=0.02, high=0.08), "y_zero_point": _integers(np.int8, 24, seed=5)}
    yield _layer_norm("LayerNorm -> int8 per axis", _reals(6, 24), more=by_axis, y_axis=-1)


def _normalization_cases() -> Iterator[Case]:
    x = _reals(2, 6, 4, 5)
    for axes in ([1, 2, 3], [0, 2, 3], [2, 3], [0], [1, 3], [-1, -3], [0, 1, 2, 3]):
        yield Case(f"axes {axes}", "FusedNormalization", {"X": x}, {"axes": axes})
        rms = {"axes": axes, "use_mean": 0}
        yield Case(f"RMS axes {axes}", "FusedNormalization", {"X": x, "scale": _reals(5, seed=1)}, rms)
    for rank in range(1, 9):
        yield _layer_norm(f"rank {rank}", _reals(*[2, 3, 2, 2, 3, 2, 2, 6][-rank:]))
    channel = {"scale": _reals(6, seed=1), "bias": _reals(6, seed=2)}
    yield Case("InstanceNorm", "FusedNormalization", {"X": x, **channel}, {"axes": [2, 3], "affine_align": "channel"})
    groups = {"num_groups": 3, "affine_align": "channel", "activation": "Swish"}
    yield Case("GroupNorm", "FusedNormalization", {"X": x, **channel}, groups)
    group = {"scale": _reals(3, seed=1), "bias": _reals(3, seed=2)}
    yield Case(
        "GroupNorm per group", "FusedNormalization", {"X": x, **group}, {"num_groups": 3, "affine_align": "group"}
    )
    yield Case("scale only", "FusedNormalization", {"X": x, "scale": _reals(5, seed=1)}, {"axes": [-1]})
    yield Case("bias only", "FusedNormalization", {"X": x, "bias": _reals(5, seed=1)}, {"axes": [-1]})
    yield Case("mean only", "FusedNormalization", {"X": x}, {"axes": [-1], "normalize_variance": 0})
    row = find_normalization("", "MeanVarianceNormalization", 13)
    assert row is not None
    stddev: dict[str, Any] = {"axes": list(row.axes.default), "epsilon": row.epsilon, "epsilon_on": row.epsilon_on}
    yield Case("MeanVarianceNormalization", "FusedNormalization", {"X": x}, stddev)
    yield Case("constant rows", "FusedNormalization", {"X": np.full((3, 8), 2.5, np.float32)}, {**stddev, "axes": [1]})
    large = {"axes": [-1], "epsilon": 0.25, "epsilon_on": "stddev"}
    yield Case("large epsilon on stddev", "FusedNormalization", {"X": x}, large)
    far = _reals(6, 24, low=999, high=1003)
    offset = float(np.mean(far) / np.min(np.std(far, axis=-1)))
    yield dataclasses.replace(_layer_norm("offset 1000", far), offset=offset)


def _residual_cases() -> Iterator[Case]:
    residual, bias = _reals(2, 6, 32, low=-1, high=1, seed=4), _reals(32, low=-0.5, high=0.5, seed=5)
    base = _layer_norm("SkipLayerNorm", _reals(2, 6, 32), more={"residual": residual, "residual_bias": bias})
    runtime = ("X", "residual")
    yield dataclasses.replace(base, outputs=("Y", "sum"), runtime=runtime)
    yield dataclasses.replace(base, name="statistics", outputs=("Y", "sum", "mean", "inv_std_dev"), runtime=runtime)
    broadcast = {**base.inputs, "residual": _reals(6, 1, low=-1, high=1, seed=4)}
    yield dataclasses.replace(base, name="residual broadcast", inputs=broadcast, runtime=runtime)
    quantised = {"residual": _integers(np.int8, 2, 6, 32, seed=4), "residual_scale": np.array([0.02], np.float32)}
    yield dataclasses.replace(base, name="int8 residual", inputs={**base.inputs, **quantised}, runtime=runtime)
    yield dataclasses.replace(base, name="parameters at run time", runtime=("X", "residual", "scale", "bias"))


def _step_cases() -> Iterator[Case]:
    x = _reals(2, 6, 32)
    modulation = {"operand_0": _reals(2, 1, 32, low=0, high=2, seed=6), "operand_1": _reals(2, 1, 32, seed=7)}
    behind = {"steps_behind": "Mul Add"}
    yield dataclasses.replace(_layer_norm("modulation", x, more=modulation, **behind), runtime=("X", *modulation))
    gated = {"residual": _reals(2, 6, 32, seed=4), "operand_0": _reals(2, 1, 32, low=-1, high=1, seed=6)}
    gate = _layer_norm("gated residual", x, more=gated, steps_before="Mul")
    yield dataclasses.replace(gate, outputs=("Y", "sum"), runtime=("X", *gated))
    affine = {name: np.array(value, np.float32) for name, value in (("scale", 1.5), ("bias", -0.25))}
    around = {**affine, "operand_0": np.array([1.25], np.float32), "operand_1": np.array([0.5], np.float32)}
    yield Case("affine around HardSwish", "FusedActivation", {"X": x, **around}, {"activation": "HardSwish", **behind})
    product = {"X": x, "operand_0": _reals(2, 6, 32, seed=8)}
    silu = {"activation": "Swish", "steps_behind": "Mul"}
    yield Case("SwiGLU", "FusedActivation", product, silu, runtime=tuple(product))


def _float_type_cases() -> Iterator[Case]:
    for name, dtype in (("float16", np.float16), ("bfloat16", ml_dtypes.bfloat16)):
        half = {"scale": _reals(24, seed=1, dtype=dtype), "bias": _reals(24, seed=2, dtype=dtype)}
        yield _layer_norm(f"{name} LayerNorm -> Gelu", _reals(6, 24, dtype=dtype), more=half, activation="Gelu")
    wide = _reals(6, 24, low=-30000, high=30000, dtype=np.float16)
    yield Case("float16 of a large range", "FusedNormalization", {"X": wide}, {"axes": [-1]})
    half_scale = {"x_scale": np.array([0.05], np.float16)}
    yield Case("int8, float16 scale", "FusedDequantizeLinear", {"X": _integers(np.int8, 6, 24), **half_scale}, {})


def cases() -> list[Case]:
    """All cases, in the order of the printed table."""
    groups = (
        _normalization_cases,
        _residual_cases,
        _step_cases,
        _float_type_cases,
        _activation_cases,
        _quantisation_cases,
    )
    return [case for group in groups for case in group()]
