"""Every row of the tables: each activation in each float type, each quantised type at each granularity."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import harness
import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import programs
import pytest
from checking import activation, check, dequantization, normalization
from covering import parametrize_spread
from onnx import TensorProto, helper
from strategies import FLOAT_TYPES, OUTPUT_TYPES, QUANTIZED_TYPES, TWO_BIT_TYPES, Numbers

from normfuse import meaning
from normfuse.meaning import Array
from normfuse.spec import ACTIVATIONS, ELEMENT_TYPES, STEPS, ProgramError, check_program, read_program, types_stored_by

F32 = np.float32
SHAPE = (2, 3, 5)
pytestmark = pytest.mark.every_isa

EVERY_ACTIVATION = pytest.mark.parametrize("name", sorted(ACTIVATIONS))


def slope_of(name: str, dtype: Any) -> Array | None:
    return np.array([0.3], dtype) if ACTIVATIONS[name].has_slope else None


# --- activations -----------------------------------------------------------------------------------------------------


@EVERY_ACTIVATION
@pytest.mark.parametrize("dtype", FLOAT_TYPES[1:], ids=lambda t: np.dtype(t).name)
def test_activation_of_every_16_bit_value(name: str, dtype: Any) -> None:
    """NaN, infinities and denormals included; float32 is swept in test_accuracy.py."""
    x = np.arange(65536, dtype=np.uint16).view(dtype)
    check(activation(x, {"activation": name}, slope=slope_of(name, dtype)), "custom")


@EVERY_ACTIVATION
@pytest.mark.parametrize("dtype", FLOAT_TYPES, ids=lambda t: np.dtype(t).name)
def test_activation_behind_a_norm(name: str, dtype: Any) -> None:
    numbers = Numbers(1)
    case = normalization(
        numbers.normal((3, 5, 37), dtype),
        {"axes": [-1], "activation": name},
        scale=numbers.normal((37,), dtype, 1.0),
        bias=numbers.normal((37,), dtype),
        slope=slope_of(name, dtype),
    )
    check(case, "custom")


# --- normalisations --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", FLOAT_TYPES, ids=lambda t: np.dtype(t).name)
@pytest.mark.parametrize("normalize_variance", [0, 1])
@pytest.mark.parametrize("use_mean", [0, 1])
def test_every_set_of_axes(dtype: Any, use_mean: int, normalize_variance: int) -> None:
    """Across channels and not, contiguous or not, in descending order."""
    x = Numbers(8).normal((2, 3, 4, 5), dtype, 1.0)
    flags = {"use_mean": use_mean, "normalize_variance": normalize_variance}
    for chosen in range(1, 16):
        axes = [axis for axis in (3, 2, 1, 0) if chosen >> axis & 1]
        check(normalization(x, {"axes": axes, **flags}), "custom")


def test_scale_and_bias_broadcast_in_every_dimension() -> None:
    numbers = Numbers(9)
    x = numbers.normal(SHAPE, F32)
    for scale, bias in product([None, (), *broadcasts()], repeat=2):
        inputs = {"scale": scale, "bias": bias}
        given = {name: numbers.normal(shape, F32) for name, shape in inputs.items() if shape is not None}
        check(normalization(x, {"axes": [1]}, **given), "custom")


@pytest.mark.parametrize("rank", range(1, 9))
def test_every_rank(rank: int) -> None:
    numbers = Numbers(10)
    shape = (3, 2, 4, 1, 2, 3, 2, 5)[-rank:]
    for axes in ([0], [-1], list(range(rank)), list(range(0, rank, 2))):
        scale = numbers.normal([1 if axis % 3 else size for axis, size in enumerate(shape)], F32)
        check(normalization(numbers.normal(shape, F32), {"axes": axes}, scale=scale), "custom")


# --- quantised types -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Granularity:
    """Shapes of scale and zero point, and the attributes that say how they lie."""

    name: str
    scale: tuple[int, ...]
    zero: tuple[int, ...] | None
    axis: int = 1
    block: int = 0

    def inputs(self, prefix: str, dtype: Any, scale_type: Any = F32) -> dict[str, Array]:
        numbers = Numbers(len(self.name))
        found = {f"{prefix}_scale": numbers.positive(self.scale, scale_type, 0.02, 0.2)}
        if self.zero is not None:
            found[f"{prefix}_zero_point"] = numbers.zero_point(self.zero, dtype)
        return found

    def attributes(self, prefix: str) -> dict[str, int]:
        return {f"{prefix}_axis": self.axis, f"{prefix}_block_size": self.block}


ONNX = [
    Granularity("tensor", (), None),
    Granularity("tensor with zero point", (), ()),
    Granularity("one element", (1,), ()),
    Granularity("first axis", (2,), (2,), 0),
    Granularity("middle axis", (3,), (3,), 1),
    Granularity("last axis", (5,), (5,), -1),
    Granularity("blocks", (1, 3, 5), (1, 3, 5), 0, 2),
    Granularity("blocks of one", (2, 3, 5), (2, 3, 5), 1, 1),
    Granularity("uneven blocks", (2, 3, 3), (2, 3, 3), 2, 2),
    Granularity("uneven blocks in the middle", (2, 2, 5), None, -2, 2),
]
GRANULARITIES = pytest.mark.parametrize("granularity", ONNX, ids=lambda granularity: granularity.name)


def types_and_granularities(types: list[Any], each: int) -> pytest.MarkDecorator:
    """A kernel reads (or writes) elements of a type in one place and finds their parameters in another."""
    return parametrize_spread(
        "dtype,granularity", types, ONNX, each=each, ids=lambda value: getattr(value, "name", None)
    )


def broadcasts() -> Iterator[tuple[int, ...]]:
    """SHAPE with each set of its dimensions made 1."""
    return product(*((1, size) for size in SHAPE))


def every_type(types: list[Any]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("dtype", types, ids=lambda t: np.dtype(t).name)


@types_and_granularities(QUANTIZED_TYPES, each=4)
def test_dequantise(dtype: Any, granularity: Granularity) -> None:
    x = Numbers(2).codes(SHAPE, dtype)
    for scale_type, name in ((F32, "Identity"), (np.float16, "Swish")):
        inputs = granularity.inputs("x", dtype, scale_type)
        check(dequantization(x, {"activation": name, **granularity.attributes("x")}, **inputs), "custom")


@every_type([np.int8, np.uint16, np.int32, ml_dtypes.int4])
def test_scale_and_zero_point_broadcast_in_every_dimension(dtype: Any) -> None:
    """Each for itself, as DirectML's strides let them."""
    x = Numbers(3).codes(SHAPE, dtype)
    for scale, zero in product(broadcasts(), [*broadcasts(), (), (3,)]):
        inputs = Granularity("broadcast", scale, zero).inputs("x", dtype)
        check(dequantization(x, {}, **inputs), "custom")


@every_type(TWO_BIT_TYPES)
@GRANULARITIES
def test_dequantise_2_bits(dtype: Any, granularity: Granularity) -> None:
    """ONNX Runtime has no custom operators of these types: as a standard node, run by the provider."""
    x = Numbers(2).codes(SHAPE, dtype)
    inputs = granularity.inputs("x", dtype)
    attributes = granularity.attributes("x")
    names = {"x_scale": "scale", "x_zero_point": "zero"}
    node = onnx.helper.make_node(
        "DequantizeLinear",
        ["X", *(names[key] for key in inputs)],
        ["Y"],
        axis=attributes["x_axis"],
        block_size=attributes["x_block_size"],
    )
    constants = {names[key]: array for key, array in inputs.items()}
    session = harness.create_session(harness.build_model([node], {"X": x}, {"Y": 1}, constants, opset=25), "ep")
    assert harness.fused_types(session) == [["DequantizeLinear"]]
    expected = programs.evaluate("FusedDequantizeLinear", {"X": x, **inputs}, attributes)["Y"]
    expected.check(harness.run(session, {"X": x})["Y"])


@pytest.mark.parametrize("activation_type", ["Identity", "Relu"])
@every_type(FLOAT_TYPES)
@pytest.mark.parametrize("scale_type", FLOAT_TYPES, ids=lambda t: f"scale {np.dtype(t).name}")
def test_dequantise_into_another_type(scale_type: Any, dtype: Any, activation_type: str) -> None:
    """The attribute output_dtype of DequantizeLinear, from opset 23 on."""
    x, scale = Numbers(2).codes(SHAPE, np.int8), np.array(0.1).astype(scale_type)
    code = meaning.dtype_code(np.zeros(0, dtype))
    nodes = [onnx.helper.make_node("DequantizeLinear", ["X", "scale"], ["d"], output_dtype=code)]
    if activation_type != "Identity":
        nodes.append(onnx.helper.make_node(activation_type, ["d"], ["Y"]))
    name = nodes[-1].output[0]
    session = harness.create_session(harness.build_model(nodes, {"X": x}, {name: code}, {"scale": scale}, opset=24))
    assert harness.fused_types(session) == [[node.op_type for node in nodes]]
    attributes = {"y_dtype": code, "activation": activation_type}
    expected = programs.evaluate("FusedDequantizeLinear", {"X": x, "x_scale": scale}, attributes)["Y"]
    expected.check(harness.run(session, {"X": x})[name])


@types_and_granularities(OUTPUT_TYPES, each=4)
def test_quantise(dtype: Any, granularity: Granularity) -> None:
    x = Numbers(4).normal(SHAPE, F32, 0.0, 3.0)
    code = meaning.dtype_code(np.zeros(0, dtype))
    for saturate in (0, 1) if code in meaning.FLOAT8 else (1,):
        attributes = {"y_dtype": code, "y_saturate": saturate, **granularity.attributes("y")}
        check(activation(x, attributes, **granularity.inputs("y", dtype)), "custom")
        check(normalization(x, {"axes": [1], **attributes}, **granularity.inputs("y", dtype)), "custom")


@types_and_granularities(QUANTIZED_TYPES, each=4)
def test_norm_of_a_quantised_input(dtype: Any, granularity: Granularity) -> None:
    """The parameters run along a normalised dimension, along a kept one, or both."""
    x = Numbers(5).codes(SHAPE, dtype)
    inputs = granularity.inputs("x", dtype)
    for axes in ([2], [0, 1], [0, 1, 2]):
        case = normalization(x, {"axes": axes, **granularity.attributes("x")}, ("Y", "mean", "inv_std_dev"), **inputs)
        check(case, "custom")


@types_and_granularities([np.int8, np.uint8, np.int32, ml_dtypes.uint4], each=5)
def test_norm_of_a_quantised_residual(dtype: Any, granularity: Granularity) -> None:
    numbers = Numbers(6)
    case = normalization(
        numbers.codes(SHAPE, np.int8),
        {"axes": [-1], **granularity.attributes("residual")},
        ("Y", "sum"),
        x_scale=np.array(0.05, F32),
        residual=numbers.codes(SHAPE, dtype),
        **granularity.inputs("residual", dtype),
    )
    check(case, "custom")


@every_type([np.int8, np.uint8, np.int16, np.int32])
@pytest.mark.parametrize("zero_shape", [None, (), (5,)])
@pytest.mark.parametrize("scale_shape", [(), (1,), (5,)])
def test_quantised_scale_and_bias(dtype: Any, scale_shape: tuple[int, ...], zero_shape: Any) -> None:
    numbers = Numbers(7)
    parameters: dict[str, Any] = {}
    for name in ("scale", "bias"):
        parameters[name] = numbers.codes((5,), dtype)
        parameters[f"{name}_scale"] = numbers.positive(scale_shape, F32, 0.01, 0.1)
        if zero_shape is not None:
            parameters[f"{name}_zero_point"] = numbers.zero_point(zero_shape, dtype)
    check(normalization(numbers.normal(SHAPE, F32), {"axes": [-1]}, **parameters), "custom")


# --- the table of element types, in C++ and in Python ---------------------------------------------------------------

# An operator with the step, its inputs behind X, and which output has the type.
PROGRAMS = {
    "Emit": ("FusedNormalization", "Emit type={}; Normalize axes=-1", (), 1),
    "Requantize": ("FusedNormalization", "Requantize scale=s type={}; Normalize axes=-1", ("s",), 1),
    "FakeQuantize": ("FusedActivation", "FakeQuantize scale=s type={}", ("s",), 0),
    "Store": ("FusedActivation", "Relu; Store type={}", (), 0),
    "Quantize": ("FusedActivation", "Relu; Quantize scale=s type={}", ("s",), 0),
}


def test_types_are_as_onnx_has_them() -> None:
    for name, each in ELEMENT_TYPES.items():
        dtype = ir.DataType(each.number)
        assert name.upper() in (dtype.name, f"{dtype.name}32", "FLOAT64" if dtype.name == "DOUBLE" else "")
        assert each.bits == (0 if name == "string" else dtype.bitwidth), name
    assert {*PROGRAMS} == {name for name, step in STEPS.items() if "type" in step.arguments}


def problem_of_the_library(op: str, program: str, further: tuple[str, ...], output: int) -> str:
    names = ["Y", "sum"][: output + 1]
    x = np.zeros((2, 8), np.float32)
    node = helper.make_node(op, ["X", *further], names, "n", domain=harness.DOMAIN, steps=program)
    model = harness.build_model(
        [node], {"X": x}, dict.fromkeys(names, TensorProto.FLOAT), {name: np.array(0.5, np.float32) for name in further}
    )
    for value in model.graph.output:
        value.CopyFrom(helper.make_empty_tensor_value_info(value.name))
    try:
        harness.create_session(model, "custom").run_with_ort_values(names, {"X": harness.to_ort(x)})
    except Exception as error:
        return str(error)
    return ""


def problem_of_python(op: str, program: str) -> str:
    try:
        check_program(op, read_program(program))
    except ProgramError as error:
        return str(error)
    return ""


# ONNX Runtime gives 2-bit types to no custom operator: those are tried as calls, by test_matrix.py.
@pytest.mark.parametrize("name", [name for name, each in ELEMENT_TYPES.items() if each.bits != 2])
@pytest.mark.parametrize("step", PROGRAMS)
def test_both_sides_agree_on_what_a_step_stores(step: str, name: str) -> None:
    op, text, further, output = PROGRAMS[step]
    program = text.format(name)
    problems = problem_of_python(op, program), problem_of_the_library(op, program, further, output)
    if name in types_stored_by(step):
        assert problems == ("", "")
    else:
        # With the types that it stores the program is taken: this one is refused for its type.
        assert all(problems), problems
