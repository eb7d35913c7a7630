"""The text of attribute steps: read and written in one place, and held against the tests' own writer."""

import dataclasses
import re

import numpy as np
import programs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import Case, cases

from normfuse.graph_rewrites.engine.labels import CanonicalProgram, read_canonical
from normfuse.spec import (
    ACTIVATIONS,
    ProgramError,
    ProgramStep,
    TooManyTensorsError,
    UnknownStepError,
    check_program,
    labels_of,
    program,
    read_program,
    spec_version_of,
    write_program,
)

WHOLE = (
    "Dequantize scale=x_scale zero_point=x_zero_point axis=-1; Mul gate; Add residual scale=r block_size=32 axis=2; "
    "Requantize scale=a zero_point=b type=uint8; Normalize axes=-1,-2 epsilon=1e-05 epsilon_on=stddev use_mean=0; "
    "Mul scale scale=c axis=0 align=channel; PRelu slope; Add d; HardSigmoid alpha=0.25 beta=0.5; "
    "Quantize zero_point=e scale=f axis=0 type=float8e4m3fn saturate=0"
)


def test_a_program_reads_as_it_is_written() -> None:
    steps = read_program(WHOLE)
    assert write_program(steps) == WHOLE
    # A zero point in front of its scale comes first among the inputs too.
    labels = "x_scale x_zero_point gate residual r a b scale c slope d e f"
    assert labels_of(steps) == tuple(labels.split())
    assert steps[4]["axes"] == (-1, -2)
    assert (steps[4]["normalize_variance"], steps[4]["epsilon_on"]) == (1, "stddev")
    assert steps[8]["beta"] == 0.5
    assert ProgramStep("LeakyRelu")["alpha"] == ACTIVATIONS["LeakyRelu"].parameters["alpha"]


def test_a_program_has_the_least_version_that_knows_its_names(monkeypatch: pytest.MonkeyPatch) -> None:
    steps = read_program(WHOLE)
    assert spec_version_of([]) == 1
    rows = (("STEPS", "Requantize", 7), ("ARGUMENTS", "align", 8), ("ACTIVATIONS", "HardSigmoid", 9))
    for table_name, name, since in rows:
        table = getattr(program, table_name)
        monkeypatch.setattr(program, table_name, {**table, name: dataclasses.replace(table[name], since=since)})
        assert spec_version_of(steps) == since
    assert spec_version_of(step for step in steps if step.name not in ("HardSigmoid", "Mul")) == 7


def test_blanks_do_not_count() -> None:
    assert read_program(" Mul\ta ;Gelu\n") == read_program("Mul a; Gelu")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        *(
            (f"LeakyRelu alpha={number}", "which is not a number")
            for number in ("+1", ".5", "1.", "0x1", "1e", "1E5", "1_0", "Infinity", "-nan", "1,5", "", "\u0661")
        ),
        *((text, "is empty") for text in ("", "  ", "Gelu;", ";Gelu", "Gelu;;Relu")),
        ("Normalize axes=-1; Squash", "Squash"),
        ("Mul\u2003a; Gelu", "Mul"),  # what is a blank elsewhere is none here
    ],
)
def test_what_is_no_program_is_refused(text: str, words: str) -> None:
    with pytest.raises(ProgramError, match=words) as raised:
        read_program(text)
    assert isinstance(raised.value, UnknownStepError) == (words[0].isupper())


@given(st.integers(0, 2**32 - 1))
def test_a_number_keeps_its_bits(bits: int) -> None:
    number = np.uint32(bits).view(np.float32)
    text = write_program([ProgramStep("LeakyRelu", "", {"alpha": float(number)})])
    (step,) = read_program(text)
    got = np.float32(step["alpha"])
    assert np.isnan(got) if np.isnan(number) else got.view(np.uint32) == bits


@pytest.mark.parametrize(
    ("value", "text"),
    [(1.0, "1"), (1e-5, "1e-05"), (1e20, "1e+20"), (-0.0, "-0"), (float("inf"), "inf"), (-float("inf"), "-inf")],
)
def test_a_number_is_short(value: float, text: str) -> None:
    assert write_program([ProgramStep("LeakyRelu", "", {"alpha": value})]) == f"LeakyRelu alpha={text}"


@given(st.text(alphabet="aG =;,.-01\n\x00\u2003") | st.text())
def test_any_text_is_a_program_or_refused(text: str) -> None:
    try:
        steps = read_program(text)
    except ProgramError:
        return
    assert read_program(write_program(steps)) == steps


@settings(max_examples=200)
@given(cases())
def test_programs_of_cases_are_those_of_the_pass(case: Case) -> None:
    """What the tests write is what the pass reads, and writes again, but for what changes nothing."""
    text, tensors = programs.write(case.op, case.inputs, case.attributes)
    program = read_canonical(case.op, text)
    assert isinstance(program, CanonicalProgram), program
    assert ["X", *program.tensors] == tensors
    assert sorted(labels_of(program.steps)) == sorted(program.tensors)
    written = write_program(program.steps or [ProgramStep("Identity")])
    assert read_canonical(case.op, written) == CanonicalProgram(program.steps, labels_of(program.steps))
    kept = [step for step in read_program(text) if step.name != "Identity"]
    assert [step.name for step in program.steps] == [step.name for step in kept]
    for step, said in zip(program.steps, kept, strict=True):
        for name in said.arguments:
            assert step[name] == said[name], (step, name)


NINE = "Mul {}; Mul {}; Mul {}; Mul {}; Mul {}; Mul {}; Mul {}; Mul {}; Mul {}"
# Written by others, after "<": their steps and what ours are.
FOREIGN = """
FusedNormalization < Normalize axes=-1; Mul g; Add b; Gelu > Normalize axes=-1 E; Mul scale; Add bias; Gelu
FusedNormalization < Add r; Normalize axes=-1; Add b > Add residual; Normalize axes=-1 E; Add bias
FusedNormalization < Mul g; Add r scale=q zero_point=z; Normalize axes=-1 epsilon=0.5
    > Mul operand_0; Add residual scale=residual_scale zero_point=residual_zero_point; Normalize axes=-1 epsilon=0.5
FusedNormalization < Add a; Mul g; Normalize axes=-1 > Add operand_0; Mul operand_1; Normalize axes=-1 E
FusedNormalization < Normalize axes=-1; Add b; Mul g > Normalize axes=-1 E; Add bias; Mul operand_0
FusedNormalization < Add a; Requantize zero_point=z scale=s; Softmax axes=-1
    > Add residual; Requantize scale=sum_scale zero_point=sum_zero_point; Softmax axes=-1
FusedActivation < Gelu; Mul g > Gelu; Mul operand_0
FusedActivation < Mul g align=channel; Add b; Relu > Mul scale align=channel; Add operand_0; Relu
FusedActivation < PRelu a; PRelu b; Mul c scale=d > PRelu slope; PRelu operand_0; Mul operand_1 scale=operand_1_scale
FusedActivation < HardSigmoid beta=0.25; Store > HardSigmoid alpha=0.2 beta=0.25
FusedActivation < Dequantize scale=a axis=1; Quantize scale=b saturate=1
    > Dequantize scale=x_scale; Quantize scale=y_scale
FusedActivation < Identity >
"""
ROWS = [
    tuple(part.strip() for part in re.split("[<>]", row))
    for row in FOREIGN.replace(" E", " epsilon=1e-05").replace("\n   ", "").strip().splitlines()
]
ROWS.append(("FusedActivation", NINE.format(*"abcdefghi"), NINE.format("scale", *(f"operand_{i}" for i in range(8)))))


@pytest.mark.parametrize(("op", "text", "canonical"), ROWS, ids=[row[1] for row in ROWS])
def test_in_programs_of_others_the_place_of_a_step_decides(op: str, text: str, canonical: str) -> None:
    program = read_canonical(op, text)
    assert isinstance(program, CanonicalProgram), program
    assert write_program(program.steps) == canonical
    # Inputs keep their order; a zero point may stand in front of its scale.
    assert len(program.tensors) == len(labels_of(read_program(text)))
    if "Requantize" in text:
        assert program.tensors == ("residual", "sum_zero_point", "sum_scale")


@pytest.mark.parametrize(
    ("steps", "words"),
    [
        ("; ".join(f"Mul t{index}" for index in range(16)), "16 tensors; at most 15"),
        ("; ".join(f"Add t{index} scale=s{index}" for index in range(4)), "16 tensors; at most 15"),
        ("; ".join(f"Add t{index} scale=s{index} zero_point=z{index}" for index in range(9)), "27 tensors; at most 24"),
    ],
)
def test_too_many_tensors_are_told_apart(steps: str, words: str) -> None:
    with pytest.raises(TooManyTensorsError, match=words):
        check_program("FusedActivation", read_program(steps))
    assert isinstance(read_canonical("FusedActivation", steps), TooManyTensorsError)
