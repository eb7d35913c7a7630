"""Programs as the rules see them: one text for one meaning, and labels that say what a tensor is.

The operands of a chain are named by their positions: ``residual`` and ``residual_bias`` are added last before the
normalisation, ``scale``, ``bias`` and the ``slope`` of an activation follow it in this order, with no Q/DQ pair between
them; all others are ``operand_0``, ``operand_1`` ... Parameters of a quantised tensor begin with its name, those of the
Q/DQ pairs of a chain with ``pair_0``, ``pair_1`` ... Programs that others wrote are renamed to these labels.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from normfuse.graph_rewrites.engine.element_types import type_of
from normfuse.spec import (
    ACTIVATIONS,
    ARGUMENTS,
    STEPS,
    ProgramError,
    ProgramStep,
    check_program,
    labels_of,
    read_program,
)

_FURTHER = "operand_"
_PAIR = "pair_"
# What is written even where it is the default: people look for it.
_ALWAYS = ("epsilon",)


def dtype_of(step: ProgramStep | None) -> ir.DataType | None:
    """Return the element type that a step stores; None: it names none."""
    return type_of(step["type"]) if step is not None and step["type"] else None


def is_further(label: str) -> bool:
    """True for the label of an operand that has no name of its own."""
    return label.startswith(_FURTHER)


def step_of(name: str, operand: str = "", /, **given: Any) -> ProgramStep:
    """Return a step as it is written: arguments in the table's order, without those that have their defaults.

    An activation has all of its parameters or, where none is given, none.
    """
    if name in ACTIVATIONS:
        defaults = ACTIVATIONS[name].parameters if given else {}
        numbers = {key: float(np.float32(given.get(key, default))) for key, default in defaults.items()}
        return ProgramStep(name, operand, numbers)
    arguments: dict[str, Any] = {}
    for key in STEPS[name].arguments:
        default: Any = ARGUMENTS[key].default
        value = given.get(key, default)
        if value != default or key in _ALWAYS:
            arguments[key] = tuple(value) if ARGUMENTS[key].type == "ints" else value
    return ProgramStep(name, operand, arguments)


@dataclasses.dataclass(frozen=True, slots=True)
class CanonicalProgram:
    """A program as the rules see it."""

    steps: tuple[ProgramStep, ...]
    tensors: tuple[str, ...]
    """The labels of the node's inputs behind X, in the order of the program that was read."""


@functools.lru_cache(maxsize=4096)
def read_canonical(op_type: str, text: str) -> CanonicalProgram | ProgramError:
    """Return what the program of a node of that operator says, or why the library does not run it."""
    try:
        given = read_program(text)
        check_program(op_type, given)
    except ProgramError as error:
        return error
    kept = [step for step in given if not _changes_nothing(step)]
    steps, names = relabelled(kept, _names(kept))
    canonical = tuple(step_of(step.name, step.operand, **step.arguments) for step in steps)
    return CanonicalProgram(canonical, tuple(names[label] for label in labels_of(given)))


def relabelled(
    steps: Sequence[ProgramStep], names: Iterable[str] | None = None
) -> tuple[list[ProgramStep], dict[str, str]]:
    """Return steps with other labels, and the new one of each old one.

    Args:
        steps: The steps of a program, in order.
        names: What the operand of each step is called; "": the next of the further ones. None: further ones are
            numbered again, all others keep theirs.
    """
    if names is None:
        names = ("" if is_further(step.operand) else step.operand for step in steps)
    found: list[ProgramStep] = []
    new_of: dict[str, str] = {}
    count = pairs = 0
    for step, name in zip(steps, names, strict=True):
        operand = step.operand and (name or f"{_FURTHER}{count}")
        count += bool(operand) and not name
        prefix = operand if step.is_activation else STEPS[step.name].quantized or operand
        if is_pair(step):
            prefix = f"{_PAIR}{pairs}"
            pairs += 1
        tensors = {key: f"{prefix}_{key}" for key in ("scale", "zero_point") if key in step.arguments}
        new_of |= {step.arguments[key]: label for key, label in tensors.items()}
        if operand:
            new_of[step.operand] = operand
        found.append(ProgramStep(step.name, operand, {**step.arguments, **tensors}))
    return found, new_of


def _changes_nothing(step: ProgramStep) -> bool:
    if step.is_activation:
        return step.name == "Identity"
    return STEPS[step.name].arguments == ("type",) and not step["type"]


def _names(steps: Sequence[ProgramStep]) -> list[str]:
    """Return what the operand of each step is called by its place; "": it is a further one, or there is none."""
    core = next((index for index, step in enumerate(steps) if is_core(step)), None)
    before = steps[: core or 0]
    return [*_names_before(before), *_names_behind(steps[len(before) :])]


def is_core(step: ProgramStep) -> bool:
    """True for a normalisation or a softmax."""
    return not step.is_activation and STEPS[step.name].place == "core"


def is_pair(step: ProgramStep) -> bool:
    """True for a QuantizeLinear and DequantizeLinear in one."""
    return step.name == "FakeQuantize"


def _names_before(steps: Sequence[ProgramStep]) -> list[str]:
    names = [""] * len(steps)
    # Those with no pair between them, the last ones.
    count = next((index for index in range(len(steps), 0, -1) if steps[index - 1].operand), 0)
    begin = next((index for index in range(count, 0, -1) if is_pair(steps[index - 1])), 0)
    operations = [index for index in range(begin, count) if steps[index].operand]
    for name in ("residual_bias", "residual"):
        last = steps[operations[-1]] if operations else None
        if last is None or last.name != "Add" or is_further(last.operand):
            continue
        if name == "residual" or last.operand == name:  # of two that are added, the last one but for its label
            names[operations.pop()] = name
    return names


def _names_behind(steps: Sequence[ProgramStep]) -> list[str]:
    """Scale, bias and activation, as far as they stand in this order; the first two meet X in the same way."""
    order: Sequence[str] = ("scale", "bias", "slope")
    names: list[str] = []
    align = None
    for step in steps:
        name = "slope" if step.is_activation else {"Mul": "scale", "Add": "bias"}.get(step.name, "")
        if not step.is_activation and not step.operand:  # the core, a pair, or what reads or stores
            names.append("")
            order = () if is_pair(step) else order
            continue
        fits = name in order and not is_further(step.operand)
        if fits and not step.is_activation:
            fits, align = align in (None, step["align"]), step["align"]
        order = order[order.index(name) + 1 :] if fits else ()
        names.append(name if fits and step.operand else "")
    return names
