"""The text of attribute steps: read and written in one place, and held against the tests' own writer."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import programs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import Case, cases

from normfuse.graph_rewrites.slots import DEFAULTS, FURTHER_OPERANDS, Slots, read_slots, steps_of
from normfuse.spec import (
    ACTIVATIONS,
    ProgramError,
    ProgramStep,
    UnknownStepError,
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
    with pytest.raises(UnknownStepError):  # what is a blank elsewhere is none here
        read_program("Mul\u2003a; Gelu")


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


@pytest.mark.parametrize("text", ["+1", ".5", "1.", "0x1", "1e", "1E5", "1_0", "Infinity", "-nan", "1,5", "", "\u0661"])
def test_what_is_no_number_is_refused(text: str) -> None:
    with pytest.raises(ProgramError, match="which is not a number"):
        read_program(f"LeakyRelu alpha={text}")


@pytest.mark.parametrize("text", ["", "  ", "Gelu;", ";Gelu", "Gelu;;Relu"])
def test_a_step_of_nothing_is_refused(text: str) -> None:
    with pytest.raises(ProgramError, match="is empty"):
        read_program(text)


def test_an_unknown_step_is_told_apart() -> None:
    with pytest.raises(UnknownStepError) as raised:
        read_program("Normalize axes=-1; Squash")
    assert raised.value.step == "Squash"


@given(st.text(alphabet="aG =;,.-01\n\x00\u2003") | st.text())
def test_any_text_is_a_program_or_refused(text: str) -> None:
    try:
        steps = read_program(text)
    except ProgramError:
        return
    assert read_program(write_program(steps)) == steps


@settings(max_examples=200)
@given(cases())
def test_slots_are_those_of_the_case(case: Case) -> None:
    """What the tests write is what the pass reads, and it writes the same program again."""
    text, tensors = programs.write(case.op, case.inputs, case.attributes)
    slots = read_slots(case.op, text)
    assert isinstance(slots, Slots), slots
    assert list(slots.names) == tensors
    written = steps_of(case.op, slots.names, slots.attributes)
    assert ("X", *labels_of(written)) == slots.names
    again = read_slots(case.op, write_program(written))
    assert again == slots
    given = {**case.attributes, "activation_params": None, "y_axis": None}
    for name in ("method", "num_groups", "use_mean", "steps_before", "steps_behind", "activation", "y_dtype"):
        assert slots.attributes.get(name, DEFAULTS[name]) == given.get(name, DEFAULTS[name]), name


FOREIGN: list[tuple[str, str, tuple[str, ...], dict[str, Any]]] = [
    ("FusedNormalization", "Normalize axes=-1; Mul g; Add b; Gelu", ("scale", "bias"), {"activation": "Gelu"}),
    ("FusedNormalization", "Add r; Normalize axes=-1; Add b", ("residual", "bias"), {}),
    ("FusedNormalization", "Mul g; Add r; Normalize axes=-1", ("operand_0", "residual"), {"steps_before": "Mul"}),
    ("FusedNormalization", "Add a; Mul g; Normalize axes=-1", ("operand_0", "operand_1"), {"steps_before": "Add Mul"}),
    ("FusedNormalization", "Normalize axes=-1; Add b; Mul g", ("bias", "operand_0"), {"steps_behind": "Mul"}),
    ("FusedActivation", "Gelu; Mul g", ("operand_0",), {"activation": "Gelu", "steps_behind": "Mul"}),
    (
        "FusedActivation",
        "Mul g align=channel; Add b; Relu",
        ("scale", "operand_0"),
        {"affine_align": "channel", "steps_behind": "Add Relu"},
    ),
    ("FusedActivation", "Identity", (), {}),
]


@pytest.mark.parametrize(("op", "text", "names", "attributes"), FOREIGN, ids=[row[1] for row in FOREIGN])
def test_in_programs_of_others_the_place_of_a_step_decides(
    op: str, text: str, names: tuple[str, ...], attributes: dict[str, Any]
) -> None:
    slots = read_slots(op, text)
    assert isinstance(slots, Slots), slots
    assert slots.names == ("X", *names)
    given = dict(slots.attributes)
    given.pop("axes", None)
    assert given == attributes
    # Only labels change: no step is lost, and none moves.
    written = steps_of(op, slots.names, slots.attributes)
    kinds = [(step.name, bool(step.operand), step["align"] if step.operand else "") for step in read_program(text)]
    assert [(step.name, bool(step.operand), step["align"] if step.operand else "") for step in written] == kinds


def test_what_has_no_slot_is_said() -> None:
    many = "; ".join(f"Mul {name}x" for name in (*FURTHER_OPERANDS, "one", "two"))
    for text in (many, "Gelu; Mul a align=channel", "Gelu; Add a scale=s", "Gelu; PRelu a"):
        error = read_slots("FusedActivation", text)
        assert isinstance(error, ProgramError)
        assert str(error).startswith("it has ")
