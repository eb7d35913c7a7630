"""The text of a node's attribute ``steps``, read and written by the table of steps (operators.toml).

    Dequantize scale=x_scale; Add residual; Normalize axes=-1 epsilon=1e-05; Mul scale; Add bias; Gelu

What is read here is the form, and the values of arguments: names, places, which arguments there are. What they mean
together, `validation` checks.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from .activations import ACTIVATIONS
from .element_types import ELEMENT_TYPES
from .operators import ARGUMENTS, STEPS

SPEC_VERSION: int = max(row.since for table in (STEPS, ARGUMENTS, ACTIVATIONS) for row in table.values())
"""The newest version of the specification that this package knows."""

_PLACES = ("first", "before", "core", "behind", "last")
_BLANK = re.compile(r"[ \t\r\n]+")
_LABEL = re.compile(r"[A-Za-z0-9_]+")
_INT = re.compile(r"-?[0-9]{1,19}")
_FLOAT = re.compile(r"-?([0-9]+(\.[0-9]+)?(e[+-]?[0-9]+)?|inf)|nan")
_INTS = re.compile(rf"{_INT.pattern}(,{_INT.pattern})*")
_KINDS = {
    "tensor": "the label of a tensor",
    "int": "a whole number",
    "ints": "a list of whole numbers",
    "float": "a number",
    "flag": "0 or 1",
    "type": "an element type that normfuse writes",
}
_TYPES = frozenset(name for name, each in ELEMENT_TYPES.items() if each.is_taken)
# C++ reads them into 64 bits.
_INT_RANGE = range(-(2**63), 2**63)


class ProgramError(ValueError):
    """Raised where a text is no program."""


class UnknownStepError(ProgramError):
    """Raised where a program has a step that no row of the tables names."""

    def __init__(self, step: str) -> None:
        super().__init__(f"the step '{step}' is unknown")
        self.step = step


@dataclasses.dataclass(frozen=True, slots=True)
class ProgramStep:
    """One step: a row of the table of steps, or an activation."""

    name: str
    operand: str = ""
    """Label; "": it has none."""
    arguments: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Those that are given, in order: labels and words as str, numbers as int or float, lists as tuple of int."""

    @property
    def is_activation(self) -> bool:
        """True for a row of the table of activations."""
        return self.name not in STEPS

    def __getitem__(self, argument: str) -> Any:
        """Return the value of an argument, or the default of the tables."""
        if argument in self.arguments:
            return self.arguments[argument]
        return ACTIVATIONS[self.name].parameters[argument] if self.is_activation else ARGUMENTS[argument].default

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels of its tensors, in order."""
        given = (str(value) for name, value in self.arguments.items() if _type_of(self.name, name) == "tensor")
        return (*([self.operand] if self.operand else ()), *given)

    def __str__(self) -> str:
        """Return its text."""
        given = (f"{name}={_written(value)}" for name, value in self.arguments.items())
        return " ".join((self.name, *([self.operand] if self.operand else ()), *given))


def labels_of(steps: Iterable[ProgramStep]) -> tuple[str, ...]:
    """Return the labels of all tensors, in the order of the node's inputs behind X."""
    return tuple(label for step in steps for label in step.labels)


def write_program(steps: Iterable[ProgramStep]) -> str:
    """Return the text of a program."""
    return "; ".join(map(str, steps))


def spec_version_of(steps: Iterable[ProgramStep]) -> int:
    """Return the least version of the specification that has all of the steps and their arguments."""
    versions = [1]
    for step in steps:
        versions.append(ACTIVATIONS[step.name].since if step.is_activation else STEPS[step.name].since)
        versions += [ARGUMENTS[name].since for name in step.arguments if not step.is_activation]
    return max(versions)


def read_program(text: str) -> tuple[ProgramStep, ...]:
    """Return the steps that a text holds.

    Raises:
        UnknownStepError: A step is in no table.
        ProgramError: The text is no program; the message says where and why.
    """
    steps = tuple(_read_step(number, _words(part)) for number, part in enumerate(text.split(";"), 1))
    _check_places(steps)
    labels: set[str] = set()
    for number, step in enumerate(steps, 1):
        for label in step.labels:
            if label in labels:
                raise ProgramError(f"{_where(number, step.name)}: the label {label} stands twice")
            labels.add(label)
    return steps


def _written(value: Any) -> str:
    if isinstance(value, bool):
        value = int(value)
    if isinstance(value, float | np.floating):
        return str(np.float32(value)).removesuffix(".0")
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _where(number: int, name: str) -> str:
    return f"step {number} ({name})"


def _type_of(step: str, argument: str) -> str:
    """Return the type of an argument; "": the step takes no such."""
    if step in STEPS:
        return ARGUMENTS[argument].type if argument in STEPS[step].arguments else ""
    return "float" if argument in ACTIVATIONS[step].parameters else ""


def _words(text: str) -> list[str]:
    return [word for word in _BLANK.split(text) if word]


def _read_step(number: int, words: Sequence[str]) -> ProgramStep:
    if not words:
        raise ProgramError(f"attribute steps: step {number} is empty")
    name = words[0]
    if name not in STEPS and name not in ACTIVATIONS:
        raise UnknownStepError(name)
    where, operand = _where(number, name), ""
    arguments: dict[str, Any] = {}
    for index, word in enumerate(words[1:]):
        key, equals, value = word.partition("=")
        if not equals:
            if index or not _LABEL.fullmatch(word):
                raise ProgramError(f"{where}: '{word}' is no argument, key=value")
            operand = word
            continue
        kind = _type_of(name, key)
        if not kind:
            raise ProgramError(f"{where} takes no argument {key}")
        if key in arguments:
            raise ProgramError(f"{where}: {key} is given twice")
        arguments[key] = _read_value(where, key, kind, value)
    has_operand = STEPS[name].has_operand if name in STEPS else ACTIVATIONS[name].has_slope
    kind = "" if name in STEPS else ", a slope"
    if has_operand and not operand:
        raise ProgramError(f"{where} has no operand{kind and ', its slope'}")
    if operand and not has_operand:
        raise ProgramError(f"{where} has the operand {operand}{kind}, but takes none")
    return ProgramStep(name, operand, arguments)


def _read_value(where: str, key: str, kind: str, text: str) -> Any:
    """Return the value of an argument, of the type that the tables give it."""
    if kind == "tensor" and _LABEL.fullmatch(text):
        return text
    if kind == "int" and _INT.fullmatch(text) and int(text) in _INT_RANGE:
        return int(text)
    if kind == "ints" and _INTS.fullmatch(text) and all(int(part) in _INT_RANGE for part in text.split(",")):
        return tuple(map(int, text.split(",")))
    if kind == "float" and _FLOAT.fullmatch(text):
        with np.errstate(over="ignore"):
            number = float(np.float32(text))
        # One too large for a float32 is refused, as in C++.
        if np.isfinite(number) or not text[-1].isdigit():
            return number
    if kind == "flag" and text in ("0", "1"):
        return int(text)
    if (kind == "word" and text in ARGUMENTS[key].values) or (kind == "type" and text in _TYPES):
        return text
    known = ARGUMENTS[key].values if kind == "word" else ()
    wanted = " or ".join((", ".join(known[:-1]), known[-1])) if known else _KINDS[kind]
    raise ProgramError(f"{where}: {key} is '{text}', which is not {wanted}")


def _check_places(steps: Sequence[ProgramStep]) -> None:
    """Refuse an order that the table does not allow: what stands beside a core is before it or behind it."""
    core = next((index for index, step in enumerate(steps) if _place_of(step) == "core"), None)
    reached = _PLACES[0]
    for index, step in enumerate(steps):
        place = _place_of(step)
        if place == "beside":
            place = "before" if core is not None and index < core else "behind"
        once = place in ("first", "core", "last")
        if _PLACES.index(place) < _PLACES.index(reached) or (index and once and place == reached):
            before = steps[index - 1]
            raise ProgramError(f"{_where(index + 1, step.name)} cannot stand behind {_where(index, before.name)}")
        if place == "before" and (core is None or index > core):
            raise ProgramError(f"{_where(index + 1, step.name)} stands before no normalisation")
        reached = place


def _place_of(step: ProgramStep) -> str:
    return "behind" if step.is_activation else STEPS[step.name].place
