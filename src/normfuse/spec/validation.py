"""What the library takes of a program that has the right form: what its steps, and their values, mean together.

``ep/chain/operator_node.cc`` and ``ep/chain/validate.cc`` refuse the same, and beyond that what depends on the types
and shapes of tensors.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from .activations import ACTIVATIONS
from .element_types import types_stored_by
from .operators import MOST_DIMENSIONS, MOST_STEP_TENSORS, MOST_TENSORS, STEPS, TENSORS_OF_QUANTIZED
from .program import ProgramError, ProgramStep, labels_of


class TooManyTensorsError(ProgramError):
    """Raised for a program that reads more tensors than the library takes in one node."""

    def __init__(self, what: str, count: int, most: int) -> None:
        super().__init__(f"{what} {count} tensors; at most {most} are supported")


def check_program(operator: str, steps: Sequence[ProgramStep], parameters_of_d: int = 0) -> None:
    """Refuse what no node of that operator can be.

    `parameters_of_d`: how many of its FakeQuantize have more than one number as their scale, which takes more to read.

    Raises:
        TooManyTensorsError: The steps read too many tensors.
        ProgramError: The program means nothing; the message says where and why.
    """
    core = next((step for step in steps if _is_core(step)), None)
    if (core is not None) != (operator == "FusedNormalization"):
        raise ProgramError(
            "its steps have no normalisation (Normalize with axes, or a softmax)"
            if core is None
            else "its steps have a normalisation, which belongs to FusedNormalization"
        )
    if operator == "FusedDequantizeLinear" and not (steps and steps[0].name == "Dequantize"):
        raise ProgramError("its steps have no Dequantize, with x_scale")
    in_groups = core is not None and core["num_groups"] > 0
    before = steps[: steps.index(core)] if core is not None else ()
    _check_sum(before)
    for step in before:
        if step.operand and step["align"] != "trailing":
            raise ProgramError(f"{step.name}: align is of steps behind the normalisation")
    for step in steps:
        _check_values(step)
        if step.operand and not step.is_activation and step["align"] == "group" and not in_groups:
            raise ProgramError(f"{step.operand} has align=group, but num_groups is 0")
    if core is not None:
        _check_core(core)
    _check_size(steps, parameters_of_d)


def _is_core(step: ProgramStep) -> bool:
    return not step.is_activation and STEPS[step.name].place == "core"


def _check_sum(before: Sequence[ProgramStep]) -> None:
    """What makes the output sum stands once, and last."""
    makers = [index for index, step in enumerate(before) if STEPS[step.name].output]
    if len(makers) > 1:
        raise ProgramError(f"the output sum has several steps, {' and '.join(before[index].name for index in makers)}")
    if makers and makers[0] < len(before) - 1:
        raise ProgramError(f"{before[makers[0] + 1].name} stands behind the step that makes the output sum")


def _check_values(step: ProgramStep) -> None:
    if step.is_activation:
        for name, parameter in ACTIVATIONS[step.name].drawn.items():
            if math.isnan(step[name]):
                raise ProgramError(f"{step.name}: {name} is NaN")
            if parameter.nonzero and step[name] == 0:
                raise ProgramError(f"{step.name}: {name} is 0, by which it divides")
        return
    quantized = STEPS[step.name].quantized
    prefix = quantized or step.operand
    if "scale" not in step.arguments and ("zero_point" in step.arguments or quantized):
        given = f", but {prefix}_zero_point is given" if "zero_point" in step.arguments else ""
        raise ProgramError(f"{step.name}: its scale, {prefix}_scale, is missing{given}")
    if step.arguments.get("block_size", 0) < 0:
        raise ProgramError(f"{step.name}: {prefix}_block_size is negative")
    stored = step.arguments.get("type", "")
    possible = types_stored_by(step.name)
    if stored and stored not in possible:
        raise ProgramError(f"{step.name}: it does not store {stored}; {', '.join(possible)} are supported")


def _check_core(core: ProgramStep) -> None:
    axes, groups = core["axes"], core["num_groups"]
    if groups < 0:
        raise ProgramError("num_groups is negative")
    if math.isnan(core["epsilon"]):
        raise ProgramError("epsilon is NaN")
    if bool(axes) == bool(groups):
        raise ProgramError("axes and num_groups exclude each other" if axes else "axes is missing")
    if len(set(axes)) < len(axes):
        raise ProgramError(f"axes {list(axes)} has a dimension twice")
    if any(not -MOST_DIMENSIONS <= axis < MOST_DIMENSIONS for axis in axes):
        raise ProgramError(f"axes {list(axes)} has one out of range")


def _check_size(steps: Sequence[ProgramStep], parameters_of_d: int) -> None:
    labels = len(labels_of(steps))
    if labels > MOST_TENSORS:
        raise TooManyTensorsError("its steps name", labels, MOST_TENSORS)
    read = sum(TENSORS_OF_QUANTIZED if "scale" in step.arguments else 1 for step in steps if step.operand)
    read += parameters_of_d * (TENSORS_OF_QUANTIZED - 1)
    if read > MOST_STEP_TENSORS:
        raise TooManyTensorsError("its steps read (a quantised one counts as four)", read, MOST_STEP_TENSORS)
