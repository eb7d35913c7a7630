"""The table of element types: as ONNX has them, and what steps store is the same in C++ and in Python."""

from __future__ import annotations

import harness
import numpy as np
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

from normfuse.spec import ELEMENT_TYPES, STEPS, ProgramError, check_program, read_program, types_stored_by

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
