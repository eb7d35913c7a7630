"""The internal form of a site: the configuration of one ai.normfuse node.

While the pass works, every site is one node of the custom-op form (operators.toml): positional inputs and attributes.
The target stage turns it into a call of a model-local function, or into standard operators.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from normfuse.spec import ACTIVATIONS, ATTRIBUTES, OPERATOR_DOMAIN, OPERATORS, SPEC_VERSION

from .sites import Declined

__all__ = ["Activation", "Fused", "Step", "is_fused", "operator_of"]

#: Inputs that steps take, in order.
FURTHER_OPERANDS = tuple(name for name in OPERATORS["FusedNormalization"].inputs if name.startswith("operand_"))

_FLAGS = ("use_mean", "normalize_variance", "y_saturate")
_NOT_NEGATIVE = ("num_groups", "x_block_size", "residual_block_size", "y_block_size")

# Written on every node, whatever its value, so that a node can be read without knowing the defaults.
_ALWAYS = ("spec_version", "axes", "num_groups", "epsilon", "activation")


def operator_of(node: ir.Node) -> str | None:
    """Return the operator that a node (or a call of a model-local function) of our domain means, or None."""
    if node.domain != OPERATOR_DOMAIN:
        return None
    name = node.op_type.split("_", 1)[0]
    return name if name in OPERATORS else None


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

    `inputs` has the present inputs by name; `attributes` those that differ from the specification's default.
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
            Declined: the node was written for a newer specification, or has an attribute or activation unknown here.
        """
        op_type = operator_of(node)
        assert op_type is not None
        fused = cls(op_type)
        what = f"{node.op_type} '{node.name}'"
        names = OPERATORS[op_type].inputs
        if len(node.inputs) > len(names) or len(node.outputs) > len(OPERATORS[op_type].outputs):
            raise Declined("invalid_configuration", node=what, detail="it has more inputs or outputs than the operator")
        fused.inputs = {name: value for name, value in zip(names, node.inputs, strict=False) if value is not None}
        for name, attribute in node.attributes.items():
            if name not in ATTRIBUTES or op_type not in ATTRIBUTES[name].operators:
                raise Declined("unknown_attribute", node=what, attribute=name)
            if attribute.is_ref() or attribute.type.name.lower() != ATTRIBUTES[name].type:
                raise Declined(
                    "invalid_configuration",
                    node=what,
                    detail=f"attribute {name} is not of type {ATTRIBUTES[name].type}",
                )
            value = attribute.value
            if name == "spec_version" and value > SPEC_VERSION:
                raise Declined("newer_spec_version", node=what, version=value, known=SPEC_VERSION)
            fused.set(**{name: tuple(value) if isinstance(value, list | tuple) else value})
        if fused["activation"] not in ACTIVATIONS:
            raise Declined("unknown_activation", node=what, activation=fused["activation"])
        fused._check_steps(what)
        detail = fused._contradiction()
        if detail is not None:
            raise Declined("invalid_configuration", node=what, detail=detail)
        return fused

    def __getitem__(self, attribute: str) -> Any:
        """Return an attribute's value, or the specification's default."""
        return self.attributes.get(attribute, ATTRIBUTES[attribute].default)

    def set(self, **attributes: Any) -> None:
        """Set attributes; one that has the specification's default is not stored."""
        for name, value in attributes.items():
            if value == ATTRIBUTES[name].default:
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
        for name, value in self.attributes.items():
            allowed: Sequence[Any] = (0, 1) if name in _FLAGS else ATTRIBUTES[name].values
            if allowed and value not in allowed:
                return f"its attribute {name} is {value}; it must be {' or '.join(map(str, allowed))}"
            if name in ("y_dtype", "sum_dtype") and value not in ir.DataType.__members__.values():
                return f"its attribute {name} is {value}, which is no element type (onnx.TensorProto.DataType)"
            if name in _NOT_NEGATIVE and value < 0:
                return f"its attribute {name} is negative"
        if self["spec_version"] < 1:
            return f"its spec_version is {self['spec_version']}; the first one is 1"
        return self._wrong_inputs() or self._wrong_activation() or self._wrong_normalization()

    def _wrong_inputs(self) -> str | None:
        for name in self.inputs:
            scale = name.removesuffix("_zero_point") + "_scale"
            if name.endswith("_zero_point") and scale not in self.inputs:
                return f"{name} is given without {scale}"
        if self.op_type == "FusedDequantizeLinear" and not self.has("x_scale"):
            return "its input x_scale is missing"
        return None

    def _wrong_activation(self) -> str | None:
        activation, given = ACTIVATIONS[self["activation"]], self["activation_params"]
        if len(given) not in (0, len(activation.parameters)):
            return f"activation_params has {len(given)} values; {activation.name} takes {len(activation.parameters)}"
        if activation.has_slope != self.has("slope"):
            return "the activation needs input slope" if activation.has_slope else "the activation takes no slope"
        if np.isnan([self["epsilon"], *given, *self["step_params"]]).any():
            return "one of its numbers is NaN"
        before, behind = self["steps_before"].split(), self["steps_behind"].split()
        steps = [word for word in (*before, *behind) if word in ACTIVATIONS]
        wrong = [word for word in steps if word in before or ACTIVATIONS[word].has_slope]
        return f"its steps have {wrong[0]}, which is none that can stand there" if wrong else None

    def _wrong_normalization(self) -> str | None:
        if self["affine_align"] == "group" and not self["num_groups"]:
            return "affine_align is group, but num_groups is 0"
        if self.op_type != "FusedNormalization":
            return None
        axes = self["axes"]
        if bool(axes) == bool(self["num_groups"]):
            return "it has both axes and num_groups" if axes else "its attribute axes is missing"
        if len(set(axes)) < len(axes):
            return f"axes {list(axes)} has a dimension twice"
        plain = self["use_mean"] and self["normalize_variance"] and not self["num_groups"]
        return None if plain or self["method"] == "standard" else "a softmax takes axes alone"

    def _check_steps(self, node: str) -> None:
        """Decline where steps, their operands and their numbers do not fit each other."""
        words = f"{self['steps_before']} {self['steps_behind']}".split()
        unknown = [word for word in words if word not in ("Mul", "Add") and word not in ACTIVATIONS]
        if unknown:
            raise Declined("unknown_activation", node=node, activation=unknown[0])
        given = [name for name in FURTHER_OPERANDS if name in self.inputs]
        wanted = sum(word in ("Mul", "Add") for word in words)
        numbers = sum(len(ACTIVATIONS[word].parameters) for word in words if word in ACTIVATIONS)
        if given != list(FURTHER_OPERANDS[:wanted]) or numbers != len(self["step_params"]):
            detail = "its steps, operands and step_params do not fit each other"
            raise Declined("invalid_configuration", node=node, detail=detail)

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

    def node_inputs(self) -> list[ir.Value | None]:
        """Return the positional inputs, without absent ones at the end."""
        names = OPERATORS[self.op_type].inputs
        unknown = set(self.inputs).difference(names)
        assert not unknown, f"{self.op_type} has no inputs {unknown}"
        inputs = [self.inputs.get(name) for name in names]
        while inputs and inputs[-1] is None:
            inputs.pop()
        return inputs

    def node_attributes(self) -> dict[str, ir.Attr]:
        """Return the attributes as they are written on the node, in the specification's order."""
        result = {}
        for name, attribute in ATTRIBUTES.items():
            if self.op_type not in attribute.operators:
                continue
            # Exactly one of axes and num_groups, always; a softmax has no epsilon.
            without = {"axes" if self["num_groups"] else "num_groups"}
            if self["method"] != "standard":
                without.add("epsilon")
            always = name in _ALWAYS and name not in without
            if always or name in self.attributes:
                result[name] = ir.Attr(name, ir.AttributeType[attribute.type.upper()], self[name])
        return result

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
