"""The cases of the self-test: operators with deterministic inputs, and how far from normfuse.meaning they may be."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import Any

import ml_dtypes
import numpy as np
from onnx import TensorProto

from normfuse.meaning import INTEGER_RANGE, Array, Expected, dtype_code
from normfuse.spec import ACTIVATIONS, ProgramStep, find_normalization

# Allowed error: |got - exact| / (1 + |exact|) of a float output, steps beyond the rounding itself of a quantised one.
TOLERANCE: dict[int, float] = {TensorProto.FLOAT: 2e-5, TensorProto.FLOAT16: 1.5e-3, TensorProto.BFLOAT16: 1e-2}
QUANTISED_TOLERANCE = 2e-3
# DirectML subtracts a mean that it has rounded to float32: up to this much for each standard deviation between the mean
# and 0. The CPU path keeps the rest of the mean.
DIRECTML_MEAN_ROUNDING = 2.0**-23


@dataclasses.dataclass(frozen=True)
class Case:
    """One node: its inputs by label (``runtime`` arrive at run time, the others are constants) and its program."""

    name: str
    op_type: str
    inputs: Mapping[str, Array]
    steps: str
    outputs: tuple[str, ...] = ("Y",)
    runtime: tuple[str, ...] = ("X",)
    offset: float = 0.0
    """How many standard deviations lie between the mean and 0, where it matters."""


def error_of(expected: Expected, got: Array) -> float:
    """How far ``got`` is away, in the unit of `limit_of`; infinite where a NaN or a shape is wrong."""
    value = expected.exact + expected.zero_point
    if got.shape != value.shape:
        return math.inf
    real = got.astype(np.float64)
    if expected.code in INTEGER_RANGE:
        distance = np.maximum(np.abs(real - np.clip(value, *INTEGER_RANGE[expected.code])) - 0.5, 0.0)
    else:
        distance = np.abs(real - value) / (1.0 + np.abs(value))
    same = (real == value) | (np.isnan(real) & np.isnan(value))
    return float(np.max(np.where(same, 0.0, np.where(np.isnan(distance), math.inf, distance)), initial=0.0))


def limit_of(expected: Expected) -> float:
    """A limit for errors that holds on every GPU: the intervals that normfuse.meaning gives are the CPU path's."""
    return TOLERANCE.get(expected.code, QUANTISED_TOLERANCE)


# --- inputs ----------------------------------------------------------------------------------------------------------


def _reals(*shape: int, low: float = -3.0, high: float = 5.0, dtype: Any = np.float32, seed: int = 0) -> Array:
    """Numbers without a pattern, the same everywhere."""
    at = np.arange(math.prod(shape), dtype=np.float64) + 17.0 * seed
    return (low + (high - low) * np.modf(at * 0.6180339887498949 + 0.3)[0]).reshape(shape).astype(dtype)


def _integers(dtype: Any, *shape: int, seed: int = 0) -> Array:
    low, high = INTEGER_RANGE.get(
        dtype_code(np.zeros(0, dtype)), (-2000, 2000) if np.dtype(dtype).kind == "i" else (0, 4000)
    )
    return np.floor(_reals(*shape, low=low, high=high + 1, dtype=np.float64, seed=seed)).astype(dtype)


NORMALIZE = "Normalize axes=-1"


def _layer_norm(name: str, x: Array, before: str = "", behind: str = "", /, **more: Array) -> Case:
    """LayerNormalization over the last dimension with scale and bias, between other steps."""
    size = x.shape[-1]
    inputs = {"X": x, "scale": _reals(size, low=0.5, high=1.5, seed=1), "bias": _reals(size, low=-1, high=1, seed=2)}
    program = "; ".join(filter(None, (before, NORMALIZE, "Mul scale; Add bias", behind)))
    return Case(name, "FusedNormalization", {**inputs, **more}, program)


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
        drawn = {key: each.low + 0.375 * (each.high - each.low) for key, each in activation.drawn.items()}
        by_name = ProgramStep(name, "".join(slope))
        step = ProgramStep(name, "".join(slope), drawn)
        # Infinite defaults leave nothing to compute.
        usual = all(map(math.isfinite, activation.parameters.values()))
        yield _layer_norm(f"LayerNorm -> {name}", _reals(6, 24), "", str(by_name if usual else step), **slope)
        yield Case(name, "FusedActivation", {"X": _reals(3, 5, 24, low=-6, high=6), **slope}, str(step))


def _quantisation_cases() -> Iterator[Case]:
    read, write = (f"{step} scale={x}_scale" for step, x in (("Dequantize", "x"), ("Quantize", "y")))
    from_zero, to_zero = f"{read} zero_point=x_zero_point", f"{write} zero_point=y_zero_point"
    for name, dtype in QUANTISED_TYPES.items():
        zero = np.array(3, dtype=dtype)
        step = np.array(0.5 if "4" in name else 0.05, dtype=np.float32)
        x = _integers(dtype, 6, 24)
        yield _layer_norm(f"{name} -> LayerNorm", x, from_zero, x_scale=step, x_zero_point=zero)
        yield _layer_norm(f"LayerNorm -> {name}", _reals(6, 24), "", to_zero, y_scale=step, y_zero_point=zero)
        by_axis = {"x_scale": _reals(24, low=0.02, high=0.08), "x_zero_point": _integers(dtype, 24, seed=5)}
        yield _layer_norm(f"{name} per axis -> LayerNorm", x, f"{from_zero} axis=-1", **by_axis)
        blocks = {"x_scale": _reals(6, 3, low=0.02, high=0.08), "x_zero_point": _integers(dtype, 6, 3, seed=6)}
        yield Case(f"{name} blocked", "FusedDequantizeLinear", {"X": x, **blocks}, f"{from_zero} block_size=8")
    for name, wide in (("int32", np.int32), ("uint32", np.uint32)):
        yield _layer_norm(f"{name} -> LayerNorm", _integers(wide, 6, 24), read, x_scale=np.array([0.01], np.float32))
    both: dict[str, Array] = {
        "x_scale": np.array([0.05], np.float32),
        "y_scale": np.array([0.04], np.float32),
        "y_zero_point": np.array(128, np.uint8),
    }
    yield _layer_norm("int8 -> LayerNorm -> Gelu -> uint8", _integers(np.int8, 8, 64), read, f"Gelu; {to_zero}", **both)
    by_axis = {"y_scale": _reals(24, low=0.02, high=0.08), "y_zero_point": _integers(np.int8, 24, seed=5)}
    yield _layer_norm("LayerNorm -> int8 per axis", _reals(6, 24), "", f"{to_zero} axis=-1", **by_axis)


def _pair_cases() -> Iterator[Case]:
    """Steps and operands are powers of two, so that no rounding error decides which integer a value becomes."""
    pair = "FakeQuantize scale=scale zero_point=zero_point"
    for name, dtype in QUANTISED_TYPES.items():
        parameters = {"scale": np.array(0.5 if "4" in name else 2.0**-5, np.float32), "zero_point": np.array(3, dtype)}
        yield Case(f"pair of {name}", "FusedActivation", {"X": _reals(6, 24), **parameters}, pair)
    by_block = np.tile(np.float32(2.0) ** -np.arange(3, 7, dtype=np.float32), (6, 1))
    by = np.array([[0.5], [1], [2], [4], [0.25], [8]], np.float32)
    steps = "; ".join(f"FakeQuantize scale={label} axis=1 block_size=6" for label in ("first", "second"))
    steps = steps.replace("; ", "; Div by; Relu; ")
    more = {"first": by_block, "by": by, "second": by_block / 2}
    yield Case("pairs of blocks around Div", "FusedActivation", {"X": _reals(6, 24), **more}, steps)


def _normalization_cases() -> Iterator[Case]:
    x = _reals(2, 6, 4, 5)

    def normalization(name: str, steps: str, **inputs: Array) -> Case:
        return Case(name, "FusedNormalization", {"X": x, **inputs}, steps)

    for axes in ([1, 2, 3], [0, 2, 3], [2, 3], [0], [1, 3], [-1, -3], [0, 1, 2, 3]):
        core = str(ProgramStep("Normalize", "", {"axes": tuple(axes)}))
        yield normalization(f"axes {axes}", core)
        yield normalization(f"RMS axes {axes}", f"{core} use_mean=0; Mul scale", scale=_reals(5, seed=1))
    for rank in range(1, 9):
        yield _layer_norm(f"rank {rank}", _reals(*[2, 3, 2, 2, 3, 2, 2, 6][-rank:]))
    channel = {"scale": _reals(6, seed=1), "bias": _reals(6, seed=2)}
    affine = "Mul scale align=channel; Add bias align=channel"
    yield normalization("InstanceNorm", f"Normalize axes=2,3; {affine}", **channel)
    yield normalization("GroupNorm", f"Normalize num_groups=3; {affine}; Swish", **channel)
    group = {"scale": _reals(3, seed=1), "bias": _reals(3, seed=2)}
    affine = affine.replace("channel", "group")
    yield normalization("GroupNorm per group", f"Normalize num_groups=3; {affine}", **group)
    yield normalization("scale only", f"{NORMALIZE}; Mul scale", scale=_reals(5, seed=1))
    yield normalization("bias only", f"{NORMALIZE}; Add bias", bias=_reals(5, seed=1))
    yield normalization("mean only", f"{NORMALIZE} normalize_variance=0")
    row = find_normalization("", "MeanVarianceNormalization", 13)
    assert row is not None
    mvn = {"axes": tuple(row.axes.default), "epsilon": row.epsilon, "epsilon_on": row.epsilon_on}
    yield normalization("MeanVarianceNormalization", str(ProgramStep("Normalize", "", mvn)))
    rows = {"X": np.full((3, 8), 2.5, np.float32)}
    yield normalization("constant rows", str(ProgramStep("Normalize", "", {**mvn, "axes": (1,)})), **rows)
    yield normalization("large epsilon on stddev", f"{NORMALIZE} epsilon=0.25 epsilon_on=stddev")
    far = _reals(6, 24, low=999, high=1003)
    offset = float(np.mean(far) / np.min(np.std(far, axis=-1)))
    yield dataclasses.replace(_layer_norm("offset 1000", far), offset=offset)


def _residual_cases() -> Iterator[Case]:
    residual, bias = _reals(2, 6, 32, low=-1, high=1, seed=4), _reals(32, low=-0.5, high=0.5, seed=5)
    before = "Add residual; Add residual_bias"
    base = _layer_norm("SkipLayerNorm", _reals(2, 6, 32), before, residual=residual, residual_bias=bias)
    runtime = ("X", "residual")
    yield dataclasses.replace(base, outputs=("Y", "sum"), runtime=runtime)
    yield dataclasses.replace(base, name="statistics", outputs=("Y", "sum", "mean", "inv_std_dev"), runtime=runtime)
    broadcast = {**base.inputs, "residual": _reals(6, 1, low=-1, high=1, seed=4)}
    yield dataclasses.replace(base, name="residual broadcast", inputs=broadcast, runtime=runtime)
    quantised = {"residual": _integers(np.int8, 2, 6, 32, seed=4), "residual_scale": np.array([0.02], np.float32)}
    steps = base.steps.replace("Add residual;", "Add residual scale=residual_scale;")
    yield dataclasses.replace(
        base, name="int8 residual", inputs={**base.inputs, **quantised}, steps=steps, runtime=runtime
    )
    yield dataclasses.replace(base, name="parameters at run time", runtime=("X", "residual", "scale", "bias"))


def _step_cases() -> Iterator[Case]:
    x = _reals(2, 6, 32)
    modulation = {"by": _reals(2, 1, 32, low=0, high=2, seed=6), "shift": _reals(2, 1, 32, seed=7)}
    modulated = _layer_norm("modulation", x, "", "Mul by; Add shift", **modulation)
    yield dataclasses.replace(modulated, runtime=("X", *modulation))
    gated = {"residual": _reals(2, 6, 32, seed=4), "gate": _reals(2, 1, 32, low=-1, high=1, seed=6)}
    gate = _layer_norm("gated residual", x, "Mul gate; Add residual", **gated)
    yield dataclasses.replace(gate, outputs=("Y", "sum"), runtime=("X", *gated))
    affine = {name: np.array(value, np.float32) for name, value in (("scale", 1.5), ("bias", -0.25))}
    around = {**affine, "by": np.array([1.25], np.float32), "shift": np.array([0.5], np.float32)}
    steps = "Mul scale; Add bias; HardSwish; Mul by; Add shift"
    yield Case("affine around HardSwish", "FusedActivation", {"X": x, **around}, steps)
    product = {"X": x, "up": _reals(2, 6, 32, seed=8)}
    yield Case("SwiGLU", "FusedActivation", product, "Swish; Mul up", runtime=tuple(product))


def _structured_cases() -> Iterator[Case]:
    """Rows unlike noise: their first values say little of the mean, or nothing deviates from it."""
    shape, at, row = (8, 1024), np.linspace(0, 1, 1024), np.arange(1.0, 9.0)[:, None]
    usual = _reals(*shape, low=-1, high=1, dtype=np.float64)
    edges = at == at[[0, 1, 7, 8, 15, 31, -2, -1], None]
    kinds = {
        "ramps": at * row,
        "steps": np.where(at < row / 9, -1.0, 1.0),
        "padding in front": np.where(at < row / 9, 0.0, usual + 2),
        "padding behind": np.where(at < row / 9, usual + 2, 0.0),
        "equal numbers": row + 0 * at,
        "an outlier at an edge": np.where(edges, 100.0, 0.1 * usual),
        "one ramp among others": np.where(row == 3, at, usual),
    }
    parameters: dict[str, Array] = {
        "x_scale": np.array(2.0**-4, np.float32),
        "residual_scale": np.array(2.0**-5, np.float32),
        "y_scale": np.array(2.0**-6, np.float32),
        "y_zero_point": np.array(-3, np.int8),
    }
    integers = {"residual": np.broadcast_to(_integers(np.int8, 8, 1), shape).copy(), **parameters}
    steps = "Dequantize scale=x_scale", "Add residual scale=residual_scale"
    for name, values in kinds.items():
        by = {"by": (row / 4).astype(np.float32)}
        added = _layer_norm(f"{name} -> Add -> LayerNorm", values.astype(np.float32), "Add by", **by)
        yield dataclasses.replace(added, runtime=("X", "by"))
        codes = np.clip(np.rint(values * 16), -128, 127).astype(np.int8)
        program = f"{'; '.join(steps)}; {NORMALIZE}; Quantize scale=y_scale zero_point=y_zero_point"
        inputs = {"X": codes, **integers}
        yield Case(f"{name}, int8", "FusedNormalization", inputs, program, runtime=("X", "residual"))


def _float_type_cases() -> Iterator[Case]:
    for name, dtype in (("float16", np.float16), ("bfloat16", ml_dtypes.bfloat16)):
        half = {"scale": _reals(24, seed=1, dtype=dtype), "bias": _reals(24, seed=2, dtype=dtype)}
        yield _layer_norm(f"{name} LayerNorm -> Gelu", _reals(6, 24, dtype=dtype), "", "Gelu", **half)
    wide = _reals(6, 24, low=-30000, high=30000, dtype=np.float16)
    yield Case("float16 of a large range", "FusedNormalization", {"X": wide}, NORMALIZE)
    x, half_scale = _integers(np.int8, 6, 24), np.array([0.05], np.float16)
    steps = "Dequantize scale=x_scale"
    yield Case("int8, float16 scale", "FusedDequantizeLinear", {"X": x, "x_scale": half_scale}, steps)


def cases() -> list[Case]:
    """All cases, in the order of the printed table."""
    groups = (
        _normalization_cases,
        _residual_cases,
        _step_cases,
        _structured_cases,
        _float_type_cases,
        _activation_cases,
        _quantisation_cases,
        _pair_cases,
    )
    return [case for group in groups for case in group()]
