"""The internal form of a site: the configuration of one ai.normfuse node.

While the pass works, every site is one node of the custom-op form (operators.toml): its program, and the tensors that
this names. Rules do not read programs: they know the slots of a chain (`slots`). The target stage turns the node into
a call of a model-local function, or into standard operators.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from normfuse.spec import (
    ACTIVATIONS,
    ATTRIBUTES,
    OPERATOR_DOMAIN,
    OPERATORS,
    SPEC_VERSION,
    ProgramError,
    ProgramStep,
    UnknownStepError,
    labels_of,
    spec_version_of,
    write_program,
)

from .sites import Declined
from .slots import DEFAULTS, FURTHER_OPERANDS, Slots, read_slots, steps_of

__all__ = ["Activation", "Fused", "Step", "is_fused", "operator_of", "tensors_of"]


def operator_of(node: ir.Node) -> str | None:
    """Return the operator that a node (or a call of a model-local function) of our domain means, or None."""
    if node.domain != OPERATOR_DOMAIN:
        return None
    name = node.op_type.split("_", 1)[0]
    return name if name in OPERATORS else None


def tensors_of(node: ir.Node) -> Mapping[str, ir.Value]:
    """Return the tensors of a node of our domain by slot; none of one that the pass does not know."""
    operator = operator_of(node)
    assert operator is not None
    slots = read_slots(operator, _program_of(node))
    if not isinstance(slots, Slots):
        return {}
    return {name: value for name, value in zip(slots.names, node.inputs, strict=False) if value is not None}


def _program_of(node: ir.Node) -> str:
    steps = node.attributes.get("steps")
    is_text = steps is not None and steps.type == ir.AttributeType.STRING and not steps.is_ref()
    return steps.as_string() if steps is not None and is_text else ""


def is_fused(node: ir.Node | None) -> bool:
    """True for a node of our domain."""
    return node is not None and operator_of(node) is not None


@dataclasses.dataclass(frozen=True)
class Activation:
    """An activation of the table with the values of its parameters."""

    name: str = "Identity"
    parameters: tuple[float, ...] = ()
    slope: ir.Value | None = None

    @classmethod
    def of(cls, name: str, slope: ir.Value | None = None, **parameters: float) -> Activation:
        """Return the activation `name`; parameters left out have the table's defaults."""
        defaults = ACTIVATIONS[name].parameters
        # Rounded as the attribute stores them, so that a node reads back as what was written.
        values = (float(np.float32(parameters.get(key, default))) for key, default in defaults.items())
        return cls(name, tuple(values), slope)


@dataclasses.dataclass(frozen=True)
class Step:
    """One step of ``steps_before`` or ``steps_behind``: Mul or Add with its operand, or an activation."""

    operator: str
    operand: ir.Value | None = None
    parameters: tuple[float, ...] = ()

    @classmethod
    def of(cls, activation: Activation) -> Step:
        """Return the step that an activation without a slope is."""
        assert activation.slope is None
        return cls(activation.name, None, activation.parameters)

    @property
    def activation(self) -> Activation:
        """The activation, of a step that is one."""
        return Activation(self.operator, self.parameters)


@dataclasses.dataclass
class Fused:
    """One ai.normfuse node as data.

    `inputs` has the tensors by slot; `attributes` what differs from the defaults (`slots.DEFAULTS`).
    """

    op_type: str
    inputs: dict[str, ir.Value] = dataclasses.field(default_factory=dict)
    attributes: dict[str, Any] = dataclasses.field(default_factory=dict)

    @classmethod
    def of(cls, value: ir.Value) -> Fused:
        """Return the configuration of the node of our domain that gives `value`, as `read` does."""
        node = value.producer()
        assert node is not None
        return cls.read(node)

    @classmethod
    def read(cls, node: ir.Node) -> Fused:
        """Return the configuration of a node of our domain.

        Raises:
            Declined: the node was written for a newer specification, has an attribute or a step that is unknown here,
                or more than the slots hold.
        """
        op_type = operator_of(node)
        assert op_type is not None
        what = f"{node.op_type} '{node.name}'"
        _check_attributes(node, what)
        slots = read_slots(op_type, _program_of(node))
        if isinstance(slots, UnknownStepError):
            raise Declined("unknown_step", node=what, step=slots.step)
        detail = str(slots) if isinstance(slots, ProgramError) else None
        if isinstance(slots, Slots):
            inputs = {name: value for name, value in zip(slots.names, node.inputs, strict=False) if value is not None}
            fused = cls(op_type, inputs, dict(slots.attributes))
            detail = _wrong_inputs(node, slots) or fused._contradiction()
            if detail is None:
                return fused
        raise Declined("invalid_configuration", node=what, detail=detail)

    def __getitem__(self, attribute: str) -> Any:
        """Return an attribute's value, or its default."""
        return self.attributes.get(attribute, DEFAULTS[attribute])

    def set(self, **attributes: Any) -> None:
        """Set attributes; one that has its default is not stored."""
        for name, value in attributes.items():
            if value == DEFAULTS[name]:
                self.attributes.pop(name, None)
            else:
                self.attributes[name] = value

    def has(self, *inputs: str) -> bool:
        """True if any of the inputs is present."""
        return any(name in self.inputs for name in inputs)

    @property
    def activation(self) -> Activation:
        """The activation with all its parameters."""
        name = self["activation"]
        given = dict(zip(ACTIVATIONS[name].parameters, self["activation_params"], strict=False))
        return Activation.of(name, self.inputs.get("slope"), **given)

    @activation.setter
    def activation(self, activation: Activation) -> None:
        self.set(activation=activation.name, activation_params=activation.parameters)
        if activation.slope is not None:
            self.inputs["slope"] = activation.slope

    @property
    def before(self) -> list[Step]:
        """What is done with X before the residual is added."""
        return self._steps()[0]

    @before.setter
    def before(self, steps: Sequence[Step]) -> None:
        self._set_steps(steps, self.behind)

    @property
    def behind(self) -> list[Step]:
        """What follows the activation."""
        return self._steps()[1]

    @behind.setter
    def behind(self, steps: Sequence[Step]) -> None:
        self._set_steps(self.before, steps)

    def has_room(self, operands: int = 1) -> bool:
        """True if so many more steps with an operand fit."""
        return sum(name in self.inputs for name in FURTHER_OPERANDS) + operands <= len(FURTHER_OPERANDS)

    def _contradiction(self) -> str | None:
        """Say what is wrong with the values of attributes, as the library does; None if nothing is."""
        if self["num_groups"] < 0:
            return "num_groups is negative"
        if np.isnan([self["epsilon"], *self["activation_params"], *self["step_params"]]).any():
            return "one of its numbers is NaN"
        if self["affine_align"] == "group" and not self["num_groups"]:
            return "one of its operands has align=group, but num_groups is 0"
        if self.op_type != "FusedNormalization":
            return None
        axes = self["axes"]
        if bool(axes) == bool(self["num_groups"]):
            return "axes and num_groups exclude each other" if axes else "axes is missing"
        if len(set(axes)) < len(axes):
            return f"axes {list(axes)} has a dimension twice"
        return None

    def _steps(self) -> tuple[list[Step], list[Step]]:
        operands = (self.inputs.get(name) for name in FURTHER_OPERANDS)
        numbers = iter(self["step_params"])
        before, behind = (
            [
                Step(word, None, tuple(itertools.islice(numbers, len(ACTIVATIONS[word].parameters))))
                if word in ACTIVATIONS
                else Step(word, next(operands, None))
                for word in self[attribute].split()
            ]
            for attribute in ("steps_before", "steps_behind")
        )
        return before, behind

    def _set_steps(self, before: Sequence[Step], behind: Sequence[Step]) -> None:
        for name in FURTHER_OPERANDS:
            self.inputs.pop(name, None)
        steps = (*before, *behind)
        operands = [step.operand for step in steps if step.operand is not None]
        self.inputs.update(zip(FURTHER_OPERANDS, operands, strict=False))
        self.set(
            steps_before=" ".join(step.operator for step in before),
            steps_behind=" ".join(step.operator for step in behind),
            step_params=tuple(number for step in steps for number in step.parameters),
        )

    def program(self) -> list[ProgramStep]:
        """Return the program that stands for the configuration."""
        return steps_of(self.op_type, self.inputs, self.attributes)

    def input_names(self) -> list[str]:
        """Return the slots of the node's inputs, in order."""
        names = ["X", *labels_of(self.program())]
        unknown = set(self.inputs).difference(names)
        assert not unknown, f"{self.op_type} has no inputs {unknown}"
        return names

    def node_inputs(self) -> list[ir.Value]:
        """Return the inputs of the node."""
        return [self.inputs[name] for name in self.input_names()]

    def node_attributes(self) -> dict[str, ir.Attr]:
        """Return the attributes as they are written on the node."""
        steps = self.program()
        return {
            "spec_version": ir.AttrInt64("spec_version", spec_version_of(steps)),
            "steps": ir.AttrString("steps", write_program(steps)),
        }

    def write(self, node: ir.Node) -> None:
        """Give an existing node of this operator the inputs and attributes of the configuration."""
        inputs = self.node_inputs()
        node.resize_inputs(len(inputs))
        for index, value in enumerate(inputs):
            if node.inputs[index] is not value:
                node.replace_input_with(index, value)
        node.attributes.clear()
        for attribute in self.node_attributes().values():
            node.attributes.add(attribute)

    def emit(self, tape: ir.tape.Tape) -> list[ir.Value]:
        """Create the node with all outputs of its operator and return them; unused ones are dropped later.

        Raises:
            Declined: a number of the configuration is NaN, which no kernel takes.
        """
        for name in ("epsilon", "activation_params", "step_params"):
            if name in self.attributes and np.isnan(self[name]).any():
                raise Declined("attribute_value", attribute=name, node=self.op_type, value="NaN", supported="a number")
        count = len(OPERATORS[self.op_type].outputs)
        attributes = self.node_attributes()
        outputs = tape.op_multi_out(
            self.op_type, self.node_inputs(), attributes, domain=OPERATOR_DOMAIN, num_outputs=count
        )
        return list(outputs)

    def copy(self) -> Fused:
        """Return an independent copy."""
        return Fused(self.op_type, dict(self.inputs), dict(self.attributes))


def _check_attributes(node: ir.Node, what: str) -> None:
    """Decline a node with attributes that are unknown here, or of another kind, or of a newer specification."""
    operator = operator_of(node)
    assert operator is not None
    for name, attribute in node.attributes.items():
        if name not in ATTRIBUTES:
            raise Declined("unknown_attribute", node=what, attribute=name)
        kind = ATTRIBUTES[name].type
        if attribute.is_ref() or attribute.type.name.lower() != kind:
            raise Declined("invalid_configuration", node=what, detail=f"attribute {name} is not of type {kind}")
    version = node.attributes.get_int("spec_version", 1)
    if version > SPEC_VERSION:
        raise Declined("newer_spec_version", node=what, version=version, known=SPEC_VERSION)
    if version < 1:
        detail = f"its spec_version is {version}; the first one is 1"
        raise Declined("invalid_configuration", node=what, detail=detail)
    if "steps" not in node.attributes:
        raise Declined("invalid_configuration", node=what, detail="its attribute steps is missing")
    if len(node.outputs) > len(OPERATORS[operator].outputs):
        raise Declined("invalid_configuration", node=what, detail="it has more outputs than the operator")


def _wrong_inputs(node: ir.Node, slots: Slots) -> str | None:
    """Say which input is missing, or one too many; None if nothing is."""
    given = [value is not None for value in node.inputs]
    for index, name in enumerate(slots.names):
        if index >= len(given) or not given[index]:
            return f"{name} is missing, input {index} of the node"
    if any(given[len(slots.names) :]):
        return f"it has more inputs than the {len(slots.names)} that X and its steps are"
    return None
