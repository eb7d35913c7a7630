"""What the pass knows a chain by, its slots, and the program of a node that they stand for.

A program (`normfuse.spec.program`) may have any steps beside the normalisation; the rules fill places in a chain: the
residual, its bias, scale, bias, the activation, and further steps around these. Each tensor has the name of its slot,
which is also its label in programs that are written here: "x_scale", "residual", "scale", "operand_0" ... In programs
of others the place of a step decides.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Collection, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx_ir as ir

from normfuse.spec import (
    ACTIVATIONS,
    ARGUMENTS,
    MOST_TENSORS,
    STEPS,
    ProgramError,
    ProgramStep,
    labels_of,
    read_program,
)

__all__ = ["DEFAULTS", "FURTHER_OPERANDS", "Slots", "read_slots", "steps_of"]

#: Operands of further steps, in order.
FURTHER_OPERANDS = tuple(f"operand_{index}" for index in range(6))

_NORMALIZE = ("axes", "num_groups", "epsilon", "epsilon_on", "use_mean", "normalize_variance")
_SOFTMAX = {"softmax": "Softmax", "log_softmax": "LogSoftmax"}
_QUANTIZED = ("x", "residual", "scale", "bias", "y")

#: What a configuration says beside its tensors, and the value of each where it says nothing. "..._axis" and
#: "..._block_size" are of the quantisation of a tensor, "..._dtype" numbers of onnx.TensorProto.DataType (0: none).
DEFAULTS: Mapping[str, Any] = MappingProxyType(
    {
        **{name: ARGUMENTS[name].default for name in _NORMALIZE},
        "method": "standard",
        "affine_align": ARGUMENTS["align"].default,
        "activation": "Identity",
        "activation_params": (),
        "steps_before": "",
        "steps_behind": "",
        "step_params": (),
        **{f"{prefix}_{name}": ARGUMENTS[name].default for prefix in _QUANTIZED for name in ("axis", "block_size")},
        "y_saturate": ARGUMENTS["saturate"].default,
        "y_dtype": 0,
        "sum_dtype": 0,
    }
)

_TYPE_NAMES = {"FLOAT": "float32", "DOUBLE": "float64"}
_NAME_OF = {int(dtype): _TYPE_NAMES.get(dtype.name, dtype.name.lower()) for dtype in ir.DataType}
_DTYPE_OF = {name: dtype for dtype, name in _NAME_OF.items()}


class NoSlotError(ProgramError):
    """Raised for a program that the library runs, and that has more than the slots of the pass hold."""


@dataclasses.dataclass(frozen=True, slots=True)
class Slots:
    """What a program says: the slot of each input, X first, and what differs from the defaults."""

    names: tuple[str, ...]
    attributes: Mapping[str, Any]


@functools.lru_cache(maxsize=4096)
def read_slots(op_type: str, program: str) -> Slots | ProgramError:
    """Return what the program of a node of that operator says, or why it says nothing that the pass can work on."""
    try:
        steps = read_program(program)
        reader = _Reader(op_type)
        reader.read(steps)
    except ProgramError as error:
        return error
    given = {name: value for name, value in reader.attributes.items() if value != DEFAULTS[name]}
    return Slots(tuple(reader.names), MappingProxyType(given))


class _Reader:
    """Finds the slot of each step."""

    def __init__(self, op_type: str) -> None:
        self._op_type = op_type
        self._operands = iter(FURTHER_OPERANDS)
        self._further: dict[str, list[str]] = {"steps_before": [], "steps_behind": []}
        self._numbers: list[float] = []
        self.names = ["X"]
        self.attributes: dict[str, Any] = {}

    def read(self, steps: Sequence[ProgramStep]) -> None:
        """Read a program, in order.

        Raises:
            ProgramError: It is none of this operator, or has more than the slots hold.
        """
        if len(labels_of(steps)) > MOST_TENSORS:
            raise ProgramError(f"its steps name {len(labels_of(steps))} tensors; at most {MOST_TENSORS} are supported")
        core = next((index for index, step in enumerate(steps) if step.name in _CORES), None)
        if (core is not None) != (self._op_type == "FusedNormalization"):
            raise ProgramError(
                "its steps have no normalisation (Normalize with axes, or a softmax)"
                if core is None
                else "its steps have a normalisation, which belongs to FusedNormalization"
            )
        if self._op_type == "FusedDequantizeLinear" and not (steps and steps[0].name == "Dequantize"):
            raise ProgramError("its steps have no Dequantize, with x_scale")
        before = steps[: core or 0]
        for step, slot in zip(before, _slots_before(before), strict=True):
            self._before(step, slot)
        if core is not None:
            self._core(steps[core])
            steps = steps[core + 1 :]
        for step, slot in zip(steps, _slots_behind(steps, self._op_type), strict=True):
            self._behind(step, slot)
        self.attributes |= {name: " ".join(words) for name, words in self._further.items()}
        self.attributes["step_params"] = tuple(self._numbers)

    def _before(self, step: ProgramStep, slot: str) -> None:
        if step.name == "Dequantize":
            self._quantization(step, "x")
        elif step.name == "Requantize":
            self._quantization(step, "sum")
            self.attributes["sum_dtype"] = _dtype(step)
        elif step.name == "Emit":
            self.attributes["sum_dtype"] = _dtype(step)
        elif step["align"] != DEFAULTS["affine_align"]:
            raise ProgramError(f"{step.name}: align is of steps behind the normalisation")
        elif slot == "residual":
            self._tensor(step, slot)
        else:
            self._plain(step, slot or self._further_operand("steps_before", step))

    def _core(self, step: ProgramStep) -> None:
        if step.name != "Normalize":
            self.attributes["method"] = next(method for method, name in _SOFTMAX.items() if name == step.name)
        self.attributes |= step.arguments

    def _behind(self, step: ProgramStep, slot: str) -> None:
        if step.name == "Dequantize":
            self._quantization(step, "x")
        elif step.name == "Store":
            self.attributes["y_dtype"] = _dtype(step)
        elif step.name == "Quantize":
            self._quantization(step, "y")
            self.attributes |= {"y_dtype": _dtype(step), "y_saturate": step["saturate"]}
        elif slot in ("scale", "bias"):
            self.attributes["affine_align"] = step["align"]
            if self._op_type == "FusedNormalization":
                self._tensor(step, slot)
            else:
                self._plain(step, slot)
        elif slot == "activation":
            self.attributes |= {
                "activation": step.name,
                "activation_params": _parameters(step) if step.arguments else (),
            }
            self.names += ["slope"] if step.operand else []
        elif step.is_activation and step.operand:
            raise NoSlotError(f"it has {step.name} behind further steps")
        elif step.is_activation:
            self._further["steps_behind"].append(step.name)
            self._numbers += _parameters(step)
        else:
            if step["align"] != DEFAULTS["affine_align"]:
                raise NoSlotError(f"it has {step.name} with align={step['align']} among further steps")
            self._plain(step, self._further_operand("steps_behind", step))

    def _further_operand(self, which: str, step: ProgramStep) -> str:
        self._further[which].append(step.name)
        name = next(self._operands, None)
        if name is None:
            raise NoSlotError(f"it has more than {len(FURTHER_OPERANDS)} further operands")
        return name

    def _plain(self, step: ProgramStep, slot: str) -> None:
        """An operand that has no quantisation."""
        if any(name in step.arguments for name in ("scale", "zero_point", "block_size")):
            raise NoSlotError(f"it has {step.name} with a quantised operand")
        self.names.append(slot)

    def _tensor(self, step: ProgramStep, slot: str) -> None:
        """An operand that may have a quantisation."""
        self.names.append(slot)
        self._quantization(step, slot)

    def _quantization(self, step: ProgramStep, prefix: str) -> None:
        given = [name for name in step.arguments if name in ("scale", "zero_point")]
        if "scale" not in given and (given or prefix not in ("residual", "scale", "bias")):
            what = f"is missing, but {prefix}_zero_point is given" if given else "is missing"
            raise ProgramError(f"{step.name}: its scale, {prefix}_scale, {what}")
        self.names += (f"{prefix}_{name}" for name in given)
        if prefix == "sum":
            return
        if step["block_size"] < 0:
            raise ProgramError(f"{step.name}: {prefix}_block_size is negative")
        self.attributes |= {f"{prefix}_{name}": step[name] for name in ("axis", "block_size")}


_CORES = ("Normalize", *_SOFTMAX.values())


def _is_further(step: ProgramStep) -> bool:
    """True for a label that is written for further steps only."""
    return step.operand in FURTHER_OPERANDS


def _slots_before(steps: Sequence[ProgramStep]) -> list[str]:
    """Return the slot of each step in front of a normalisation, "" for further ones: the last Add is the residual."""
    slots = [""] * len(steps)
    operations = [index for index, step in enumerate(steps) if STEPS[step.name].has_operand]
    for slot in ("residual_bias", "residual"):
        if not operations:
            break
        last = steps[operations[-1]]
        if last.name != "Add" or _is_further(last) or (slot == "residual_bias" and last.operand != slot):
            continue
        slots[operations.pop()] = slot
    return slots


def _slots_behind(steps: Sequence[ProgramStep], op_type: str) -> list[str]:
    """Return the slot of each step that is no store: scale, bias and activation as far as they stand in this order."""
    order: Sequence[str] = ("scale", "bias", "activation")
    if op_type == "FusedDequantizeLinear":
        order = order[2:]
    slots: list[str] = []
    align = None
    for step in steps:
        if step.name in ("Dequantize", "Store", "Quantize"):
            slots.append("")
            continue
        slot = "activation" if step.is_activation else {"Mul": "scale", "Add": "bias"}.get(step.name, "")
        if slot in order and not _is_further(step) and (slot == "activation" or align in (None, step["align"])):
            order = order[order.index(slot) + 1 :]
            align = align if slot == "activation" else step["align"]
        else:
            order, slot = (), ""
        slots.append(slot)
    return slots


def _parameters(step: ProgramStep) -> tuple[float, ...]:
    return tuple(float(np.float32(step[name])) for name in ACTIVATIONS[step.name].parameters)


def _dtype(step: ProgramStep) -> int:
    return _DTYPE_OF[step["type"]] if step["type"] else 0


# Writing


def steps_of(op_type: str, tensors: Collection[str], attributes: Mapping[str, Any]) -> list[ProgramStep]:
    """Return the program of a configuration: which slots have a tensor, and what differs from the defaults."""
    return list(_Writer(tensors, attributes).steps(op_type)) or [ProgramStep("Identity")]


class _Writer:
    """Writes the step of each slot that has something."""

    def __init__(self, tensors: Collection[str], attributes: Mapping[str, Any]) -> None:
        self._tensors = tensors
        self._attributes = attributes
        self._operands = iter(FURTHER_OPERANDS)
        self._numbers = iter(self["step_params"])

    def __getitem__(self, name: str) -> Any:
        return self._attributes.get(name, DEFAULTS[name])

    def steps(self, op_type: str) -> Iterator[ProgramStep]:
        """Yield the steps of a node of that operator, in order."""
        if "x_scale" in self._tensors:
            yield ProgramStep("Dequantize", "", self._quantization("x"))
        if op_type == "FusedNormalization":
            yield from self._further("steps_before")
            for slot in ("residual", "residual_bias"):
                yield from self._operation("Add", slot)
            yield from self._sum()
            yield self._core()
        for slot, name in (("scale", "Mul"), ("bias", "Add")):
            yield from self._operation(name, slot, self._align())
        if self["activation"] != DEFAULTS["activation"]:
            slope = "slope" if "slope" in self._tensors else ""
            names = ACTIVATIONS[self["activation"]].parameters
            parameters = map(float, self["activation_params"])
            yield ProgramStep(self["activation"], slope, dict(zip(names, parameters, strict=False)))
        yield from self._further("steps_behind")
        yield from self._store()

    def _further(self, which: str) -> Iterator[ProgramStep]:
        for name in self[which].split():
            if name in ACTIVATIONS:
                yield ProgramStep(name, "", {key: float(next(self._numbers)) for key in ACTIVATIONS[name].parameters})
            else:
                yield ProgramStep(name, next(self._operands))

    def _operation(self, name: str, slot: str, more: Mapping[str, Any] | None = None) -> Iterator[ProgramStep]:
        if slot in self._tensors:
            yield ProgramStep(name, slot, {**self._quantization(slot), **(more or {})})

    def _quantization(self, prefix: str) -> dict[str, Any]:
        given = {name: f"{prefix}_{name}" for name in ("scale", "zero_point") if f"{prefix}_{name}" in self._tensors}
        if not given or prefix == "sum":
            return given
        numbers = {name: self[f"{prefix}_{name}"] for name in ("axis", "block_size")}
        return given | {name: value for name, value in numbers.items() if value != ARGUMENTS[name].default}

    def _align(self) -> dict[str, Any]:
        align = self["affine_align"]
        return {} if align == DEFAULTS["affine_align"] else {"align": align}

    def _sum(self) -> Iterator[ProgramStep]:
        if "sum_scale" in self._tensors:
            yield ProgramStep("Requantize", "", {**self._quantization("sum"), **self._type("sum_dtype")})
        elif self["sum_dtype"]:
            yield ProgramStep("Emit", "", self._type("sum_dtype"))

    def _type(self, name: str) -> dict[str, Any]:
        return {"type": _NAME_OF[self[name]]} if self[name] else {}

    def _core(self) -> ProgramStep:
        """Axes or groups, and the epsilon, whatever their values; what else differs from the defaults."""
        if self["method"] != DEFAULTS["method"]:
            return ProgramStep(_SOFTMAX[self["method"]], "", {"axes": tuple(self["axes"])})
        always = ("num_groups" if self["num_groups"] else "axes", "epsilon")
        given = {name: self[name] for name in _NORMALIZE if name in always or self[name] != DEFAULTS[name]}
        if "axes" in given:
            given["axes"] = tuple(given["axes"])
        return ProgramStep("Normalize", "", given)

    def _store(self) -> Iterator[ProgramStep]:
        if "y_scale" in self._tensors:
            saturate = {} if self["y_saturate"] else {"saturate": 0}
            yield ProgramStep("Quantize", "", {**self._quantization("y"), **self._type("y_dtype"), **saturate})
        elif self["y_dtype"]:
            yield ProgramStep("Store", "", self._type("y_dtype"))
