"""Hypothesis strategies that draw the operator specification of ep/spec/operators.toml at random.

Shapes, settings and the family of the data are drawn (and shrunk) by hypothesis; the numbers in the tensors come from
a seed that it draws.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import families
import ml_dtypes
import numpy as np
import programs
from families import Family
from hypothesis import strategies as st

from normfuse import meaning
from normfuse.meaning import Array
from normfuse.spec import ACTIVATIONS, OPERATORS

FLOAT_TYPES: list[Any] = [np.float32, np.float16, ml_dtypes.bfloat16]
QUANTIZED_TYPES: list[Any] = [
    np.int8,
    np.uint8,
    np.int16,
    np.uint16,
    np.int32,
    np.uint32,
    ml_dtypes.int4,
    ml_dtypes.uint4,
    ml_dtypes.float8_e4m3fn,
    ml_dtypes.float8_e4m3fnuz,
    ml_dtypes.float8_e5m2,
    ml_dtypes.float8_e5m2fnuz,
]
# ONNX Runtime does not let custom operators have these (1.31.1): they come in chains of standard nodes only.
TWO_BIT_TYPES: list[Any] = [ml_dtypes.int2, ml_dtypes.uint2]
# QuantizeLinear writes all of these but the 32-bit integers.
OUTPUT_TYPES = [t for t in QUANTIZED_TYPES if t not in (np.int32, np.uint32)]
MAX_ELEMENTS = 6000
NOISE = Family()


@dataclass(frozen=True)
class Case:
    """One node of our domain with everything it needs."""

    op: str
    inputs: dict[str, Array]
    attributes: dict[str, Any]
    outputs: tuple[str, ...] = ("Y",)
    constants: frozenset[str] = frozenset()
    family: Family | None = None
    """Of its data, where it was drawn."""

    def expected(self) -> dict[str, meaning.Expected]:
        return {name: self._every[name] for name in self.outputs}

    @cached_property
    def _every(self) -> dict[str, meaning.Expected]:
        """Kept: a model is made from its types, and results are held against its values."""
        return programs.evaluate(self.op, self.inputs, self.attributes)

    def __repr__(self) -> str:
        tensors = {k: f"{v.dtype}{list(v.shape)}" for k, v in self.inputs.items()}
        how = f"{self.attributes}, {self.outputs}, constant {sorted(self.constants)}, {self.family}"
        return f"Case({self.op}, {tensors}, {how})"


class Numbers:
    """Tensors from one seed; those that are data of one family, its rows along some axes."""

    def __init__(self, seed: int, family: Family = NOISE) -> None:
        self.generator = np.random.default_rng(seed)
        self.family = family

    def data(
        self, shape: Sequence[int], dtype: Any, mean: float = 0.0, deviation: float = 1.0, axes: Sequence[int] = (-1,)
    ) -> Array:
        """What a model is fed with; of a quantised type any value of it, of float8 none that is not finite."""
        if "float8" in np.dtype(dtype).name:
            mean, deviation = 0.0, 8.0
        return families.fill(self.family, self.generator, shape, dtype, axes, mean, deviation)

    def normal(self, shape: Sequence[int], dtype: Any, mean: float = 0.0, deviation: float = 1.0) -> Array:
        values = self.generator.normal(mean, deviation, shape)
        return np.asarray(values).astype(np.float32).astype(dtype)

    def positive(self, shape: Sequence[int], dtype: Any, low: float, high: float) -> Array:
        values = np.exp(self.generator.uniform(np.log(low), np.log(high), shape))
        return np.asarray(values).astype(np.float32).astype(dtype)

    def codes(self, shape: Sequence[int], dtype: Any) -> Array:
        """Any value of a quantised type; NaN and infinity of float8 left out, 32-bit integers kept to 24 bits or so."""
        dtype = np.dtype(dtype)
        if "float8" in dtype.name:
            values = np.asarray(self.generator.normal(0.0, 8.0, shape))
            return values.astype(np.float32).astype(dtype)
        bits = (
            20
            if dtype.itemsize == 4
            else {"int4": 4, "uint4": 4, "int2": 2, "uint2": 2}.get(dtype.name, 8 * dtype.itemsize)
        )
        low = 0 if dtype.name.startswith("u") else -(1 << (bits - 1))
        return np.asarray(self.generator.integers(low, low + (1 << bits), shape)).astype(dtype)

    def zero_point(self, shape: Sequence[int], dtype: Any) -> Array:
        """float8 zero points must be 0; those of wide integers stay where a float32 holds the difference."""
        dtype = np.dtype(dtype)
        return np.zeros(shape, dtype) if "float8" in dtype.name else self.codes(shape, dtype)


def is_float8(dtype: Any) -> bool:
    return "float8" in np.dtype(dtype).name


def data_families(names: Sequence[str] = tuple(families.TABLE)) -> st.SearchStrategy[Family]:
    """Every row of a family, or one that may lie in any tile and any thread's part; noise is what others shrink to."""
    return st.builds(Family, st.sampled_from(names), st.one_of(st.none(), st.integers(0, 70)))


@st.composite
def shapes(draw: st.DrawFn, min_rank: int = 1, max_rank: int = 8) -> tuple[int, ...]:
    """Dimensions mostly small, now and then one that spans several vectors with a tail, or 0 or 1."""
    rank = draw(st.integers(min_rank, max_rank))
    room, dims = MAX_ELEMENTS, []
    for _ in range(rank):
        dim = draw(st.one_of(st.integers(1, 5), st.sampled_from([0, 1, 7, 16, 17, 31, 64, 65, 130, 513, 1024])))
        dim = min(dim, max(room, 1))
        room //= max(dim, 1)
        dims.append(dim)
    return tuple(draw(st.permutations(dims)))


@st.composite
def broadcast_shapes(draw: st.DrawFn, shape: Sequence[int], *, full_rank: bool = False) -> tuple[int, ...]:
    """A shape that broadcasts to ``shape``: the last dimensions of it, some of them 1."""
    keep = len(shape) if full_rank else draw(st.integers(0, len(shape)))
    return tuple(1 if draw(st.booleans()) else dim for dim in tuple(shape)[len(shape) - keep :])


@st.composite
def narrowings(draw: st.DrawFn, shape: Sequence[int]) -> tuple[int, ...]:
    """Now and then a shape that another operand widens to ``shape``; () otherwise, and where that is all there is."""
    return draw(broadcast_shapes(shape)) if draw(st.integers(0, 3)) == 0 else ()


@dataclass(frozen=True)
class Parameters:
    """Scale, zero point and their attributes for one quantised tensor."""

    scale: Array
    zero_point: Array | None
    axis: int
    block_size: int


@st.composite
def quantizations(
    draw: st.DrawFn,
    numbers: Numbers,
    shape: Sequence[int],
    dtype: Any,
    scale_dtype: Any,
    *,
    typical: float = 0.05,
    broadcast: bool = True,
) -> Parameters:
    """Per tensor, per axis, blocked or broadcast in every dimension, with or without zero point."""
    rank = len(shape)
    kinds = ["tensor", "tensor1"]
    if rank >= 2:
        kinds += ["axis", "blocked"] + (["broadcast"] if broadcast else [])
    kind = draw(st.sampled_from(kinds))
    axis, block = draw(st.integers(-rank, rank - 1)) if rank else 1, 0
    if kind in ("tensor", "tensor1"):
        scale_shape: tuple[int, ...] = () if kind == "tensor" else (1,)
        axis = 1
    elif kind == "axis":
        scale_shape = (shape[axis],)
    elif kind == "blocked":
        block = draw(st.integers(1, max(1, shape[axis])))
        dims = list(shape)
        dims[axis] = -(-dims[axis] // block)
        scale_shape = tuple(dims)
    else:
        scale_shape = draw(broadcast_shapes(shape, full_rank=True))
    scale = numbers.positive(scale_shape, scale_dtype, typical / 3, typical * 3)
    zero_shape = scale_shape
    if broadcast and not block and draw(st.integers(0, 2)) == 0:
        # Of a shape of its own, as DirectML has it: none, one axis, or broadcast in every dimension.
        along = (shape[axis if rank > 1 else 0],) if rank else ()
        zero_shape = draw(st.sampled_from([(), along, scale_shape]))
        if rank >= 2 and draw(st.booleans()):
            zero_shape = draw(broadcast_shapes(shape, full_rank=True))
    zero_point = numbers.zero_point(zero_shape, dtype) if draw(st.booleans()) else None
    return Parameters(scale, zero_point, axis, block)


@st.composite
def activations(
    draw: st.DrawFn, numbers: Numbers, shape: Sequence[int], dtype: Any
) -> tuple[dict[str, Any], Array | None]:
    """Attributes of an activation of the table with parameters that make sense, and PRelu's slope."""
    name = draw(st.sampled_from(["Identity", *ACTIVATIONS]))
    attributes: dict[str, Any] = {} if name == "Identity" else {"activation": name}
    ranges = [(each.low, each.high) for each in ACTIVATIONS[name].drawn.values()]
    if ranges and draw(st.booleans()):
        # Of the type itself: a Clip's bounds are tensors of it in a model.
        attributes["activation_params"] = [float(dtype(draw(st.floats(*each, width=32)))) for each in ranges]
    slope = numbers.normal(draw(broadcast_shapes(shape)), dtype, 0.2, 0.3) if ACTIVATIONS[name].has_slope else None
    return attributes, slope


@st.composite
def constants(draw: st.DrawFn, inputs: Sequence[str]) -> frozenset[str]:
    """Which inputs are initialisers: mostly all parameters, now and then some."""
    always = frozenset(name for name in inputs if name.startswith("sum_"))
    others = [name for name in inputs if name not in ("X", "residual")]
    if not others or draw(st.integers(0, 3)):
        return frozenset(others)
    return always | frozenset(draw(st.lists(st.sampled_from(others), unique=True)))


class Builder:
    """Collects the inputs and attributes of one case."""

    def __init__(self, draw: st.DrawFn, op: str) -> None:
        self.draw, self.op = draw, op
        self.numbers = Numbers(draw(st.integers(0, 2**32 - 1)), draw(data_families()))
        self.inputs: dict[str, Array] = {}
        self.attributes: dict[str, Any] = {}
        self.float_type: Any = np.float32

    def quantization(self, prefix: str, shape: Sequence[int], dtype: Any, scale_dtype: Any, **how: Any) -> None:
        parameters = self.draw(quantizations(self.numbers, shape, dtype, scale_dtype, **how))
        self.inputs[f"{prefix}_scale"] = parameters.scale
        if parameters.zero_point is not None:
            self.inputs[f"{prefix}_zero_point"] = parameters.zero_point
        if parameters.axis != 1:
            self.attributes[f"{prefix}_axis"] = parameters.axis
        if parameters.block_size:
            self.attributes[f"{prefix}_block_size"] = parameters.block_size

    def row_axes(self, rank: int) -> Sequence[int]:
        """Where the rows of data of this rank lie: over what is normalised, as far as that is known."""
        return self.attributes.get("axes") or range(
            2 if rank > 2 and "num_groups" in self.attributes else rank - 1, rank
        )

    def x(self, shape: Sequence[int], *, quantized: bool) -> None:
        """X and, when quantised, its parameters; sets the type that floats have."""
        self.float_type = self.draw(st.sampled_from([np.float32, np.float32, *FLOAT_TYPES]))
        if not quantized:
            mean = self.draw(st.sampled_from([0.0, 0.0, 1.0, 100.0]))
            deviation = self.draw(st.sampled_from([1.0, 0.01, 20.0]))
            self.inputs["X"] = self.numbers.data(shape, self.float_type, mean, deviation, self.row_axes(len(shape)))
            return
        dtype = self.draw(st.sampled_from([np.int8, np.uint8, *QUANTIZED_TYPES]))
        scale_type = (
            self.draw(st.sampled_from([np.float32, np.float16])) if self.op != "FusedNormalization" else np.float32
        )
        self.float_type = scale_type
        self.inputs["X"] = self.numbers.data(shape, dtype, axes=self.row_axes(len(shape)))
        self.quantization("x", shape, dtype, scale_type)

    def y(self, shape: Sequence[int]) -> None:
        """Quantised output, or a float type that need not be the input's."""
        kind = self.draw(st.sampled_from(["same", "float", "quantized", "quantized"]))
        if kind == "float":
            self.attributes["y_dtype"] = meaning.dtype_code(np.zeros(0, self.draw(st.sampled_from(FLOAT_TYPES))))
        elif kind == "quantized":
            dtype = self.draw(st.sampled_from([np.int8, np.uint8, *OUTPUT_TYPES]))
            self.quantization("y", shape, dtype, self.float_type)
            if "y_zero_point" not in self.inputs or self.draw(st.booleans()):
                self.attributes["y_dtype"] = meaning.dtype_code(np.zeros(0, dtype))
            if is_float8(dtype) and self.draw(st.booleans()):
                self.attributes["y_saturate"] = 0

    def activation(self, shape: Sequence[int]) -> None:
        attributes, slope = self.draw(activations(self.numbers, shape, self.float_type))
        self.attributes |= attributes
        if slope is not None:
            self.inputs["slope"] = slope

    def steps_before(self, shape: Sequence[int]) -> None:
        """Mul and Add on X, with operands that broadcast to it."""
        self._steps("steps_before", self.draw(st.lists(st.sampled_from(["Mul", "Add"]), max_size=2)), shape)

    def steps_behind(self, shape: Sequence[int]) -> None:
        """Mul, Add and activations behind the activation, with operands that broadcast to Y."""
        without_slope = [name for name, row in ACTIVATIONS.items() if not row.has_slope]
        kinds = st.one_of(st.sampled_from(["Mul", "Add"]), st.sampled_from(without_slope))
        words = self.draw(st.lists(kinds, min_size=1, max_size=4))
        self._steps("steps_behind", words, shape)
        for word in words:
            drawn = ACTIVATIONS[word].drawn.values() if word in ACTIVATIONS else ()
            numbers = [float(np.float32(self.draw(st.floats(each.low, each.high, width=32)))) for each in drawn]
            if numbers:
                self.attributes["step_params"] = [*self.attributes.get("step_params", []), *numbers]

    def _steps(self, attribute: str, words: Sequence[str], shape: Sequence[int]) -> None:
        for word in words:
            if word in ("Mul", "Add"):
                name = f"operand_{sum(each.startswith('operand_') for each in self.inputs)}"
                dtype = self.draw(st.sampled_from([self.float_type, np.float32]))
                self.inputs[name] = self.numbers.normal(self.draw(broadcast_shapes(shape)), dtype, 1.0, 0.5)
        if words:
            self.attributes[attribute] = " ".join(words)

    def affine(self, shape: Sequence[int], *, groups: int = 0) -> None:
        """scale and bias, independent of each other in presence and shape."""
        align = self.draw(st.sampled_from(["trailing", "channel"])) if len(shape) >= 2 else "trailing"
        if groups:
            align = self.draw(st.sampled_from(["trailing", "channel", "group"]))
        if align != "trailing":
            self.attributes["affine_align"] = align
        for name in ("scale", "bias"):
            if not self.draw(st.booleans()):
                continue
            length = {"channel": shape[1:2], "group": (groups,)}.get(align)
            parameter = tuple(length) if length is not None else self.draw(broadcast_shapes(shape))
            if self.op == "FusedNormalization" and self.draw(st.integers(0, 4)) == 0:
                self.inputs[name] = self.numbers.codes(parameter, np.int8)
                along = parameter if len(parameter) == 1 and self.draw(st.booleans()) else ()
                self.inputs[f"{name}_scale"] = self.numbers.positive(along, np.float32, 0.005, 0.02)
                continue
            self.inputs[name] = self.numbers.normal(parameter, self.float_type, 1.0 if name == "scale" else 0.0, 0.5)

    def finish(self, outputs: tuple[str, ...] = ("Y",)) -> Case:
        order = programs.INPUTS[self.op]
        inputs = {name: self.inputs[name] for name in order if name in self.inputs}
        return Case(self.op, inputs, self.attributes, outputs, self.draw(constants(list(inputs))), self.numbers.family)


@st.composite
def normalizations(draw: st.DrawFn) -> Case:
    """Any FusedNormalization."""
    b = Builder(draw, "FusedNormalization")
    grouped = draw(st.integers(0, 4)) == 0
    if grouped:
        shape = draw(shapes(3, 5))
        groups = draw(st.integers(1, 4))
        shape = (shape[0], groups * draw(st.integers(1, 4)), *(min(d, 70) for d in shape[2:]))
        b.attributes["num_groups"] = groups
    else:
        shape, groups = draw(shapes(1, 8)), 0
        axes = draw(st.lists(st.integers(0, len(shape) - 1), min_size=1, unique=True))
        b.attributes["axes"] = [axis - len(shape) if draw(st.booleans()) else axis for axis in axes]
    # Groups keep their channels: any other dimension may be widened.
    narrow = () if grouped else draw(narrowings(shape))
    b.x(narrow or shape, quantized=draw(st.integers(0, 2)) == 0)
    if draw(st.integers(0, 3)) == 0:
        b.steps_before(narrow or shape)
    if not grouped and (narrow or draw(st.integers(0, 2)) == 0):
        _residual(b, shape, widens=bool(narrow))
    softmax = not grouped and draw(st.integers(0, 3)) == 0
    if softmax:
        b.attributes["method"] = draw(st.sampled_from(["softmax", "log_softmax"]))
    else:
        _standard_method(b)
    b.affine(shape, groups=groups)
    b.activation(shape)
    if draw(st.integers(0, 3)) == 0:
        b.steps_behind(shape)
    b.y(shape)
    further = ["sum"] if softmax else ["sum", "mean", "inv_std_dev"]
    outputs = ["Y", *draw(st.lists(st.sampled_from(further), unique=True))]
    return b.finish(tuple(name for name in OPERATORS[b.op].outputs if name in outputs))


def _standard_method(b: Builder) -> None:
    for name, value in (("use_mean", 0), ("normalize_variance", 0), ("epsilon_on", "stddev")):
        if b.draw(st.integers(0, 4)) == 0:
            b.attributes[name] = value
    b.attributes["epsilon"] = float(np.float32(b.draw(st.sampled_from([1e-5, 1e-5, 1e-12, 1e-3, 1.0]))))


def _residual(b: Builder, shape: tuple[int, ...], *, widens: bool) -> None:
    """residual and what belongs to it; where it `widens` X, it or its bias has the whole shape."""
    other = b.draw(broadcast_shapes(shape)) if b.draw(st.integers(0, 3)) == 0 else shape
    if b.draw(st.integers(0, 3)) == 0 and np.dtype(b.float_type) == np.float32:
        dtype = b.draw(st.sampled_from([np.int8, np.uint8, np.uint16]))
        b.inputs["residual"] = b.numbers.data(other, dtype, axes=b.row_axes(len(other)))
        b.quantization("residual", other, dtype, np.float32)
    else:
        b.inputs["residual"] = b.numbers.data(other, b.float_type, axes=b.row_axes(len(other)))
    if widens and other != shape:
        b.inputs["residual_bias"] = b.numbers.normal(shape, b.float_type)
    elif b.draw(st.booleans()):
        b.inputs["residual_bias"] = b.numbers.normal(b.draw(broadcast_shapes(shape)), b.float_type)
    if b.draw(st.integers(0, 3)) == 0 and np.dtype(b.float_type) == np.float32:
        dtype = b.draw(st.sampled_from([np.int8, np.uint8]))
        b.inputs["sum_scale"] = b.numbers.positive((), np.float32, 0.02, 0.2)
        b.inputs["sum_zero_point"] = b.numbers.codes((), dtype)


@st.composite
def element_wise(draw: st.DrawFn) -> Case:
    """Any FusedActivation."""
    b = Builder(draw, "FusedActivation")
    shape = draw(shapes(0, 8))
    b.x(draw(narrowings(shape)) or shape, quantized=draw(st.booleans()))
    if draw(st.booleans()):
        # Along dimension 1 of X, which is there.
        b.affine(shape if b.inputs["X"].ndim == len(shape) else shape[-1:])
    b.activation(shape)
    if draw(st.integers(0, 2)) == 0:
        b.steps_behind(programs.evaluate(b.op, b.inputs, b.attributes)["Y"].exact.shape)
    b.y(programs.evaluate(b.op, b.inputs, b.attributes)["Y"].exact.shape)
    return b.finish()


@st.composite
def dequantizations(draw: st.DrawFn) -> Case:
    """Any FusedDequantizeLinear."""
    b = Builder(draw, "FusedDequantizeLinear")
    shape = draw(shapes(0, 8))
    b.x(draw(narrowings(shape)) or shape, quantized=True)
    b.activation(shape)
    if draw(st.integers(0, 2)) == 0:
        b.attributes["y_dtype"] = meaning.dtype_code(np.zeros(0, draw(st.sampled_from(FLOAT_TYPES))))
    return b.finish()


def cases() -> st.SearchStrategy[Case]:
    """Any node of our domain."""
    return st.one_of(normalizations(), normalizations(), element_wise(), dequantizations())
