"""The internal form of a site: the configuration of one ai.normfuse node.

While the pass works, every site is one node of the custom-op form (operators.toml): positional inputs and attributes.
The target stage turns it into a call of a model-local function, or into standard operators.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import onnx_ir as ir

from normfuse.spec import ACTIVATIONS, ATTRIBUTES, OPERATOR_DOMAIN, OPERATORS, SPEC_VERSION

from .sites import Declined

__all__ = ["Activation", "Fused", "is_fused", "operator_of"]

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


@dataclasses.dataclass
class Fused:
    """One ai.normfuse node as data.

    `inputs` has the present inputs by name; `attributes` those that differ from the specification's default.
    """

    op_type: str
    inputs: dict[str, ir.Value] = dataclasses.field(default_factory=dict)
    attributes: dict[str, Any] = dataclasses.field(default_factory=dict)

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

    def node_inputs(self) -> list[ir.Value | None]:
        """Return the positional inputs, without absent ones at the end."""
        inputs = [self.inputs.get(name) for name in OPERATORS[self.op_type].inputs]
        while inputs and inputs[-1] is None:
            inputs.pop()
        return inputs

    def node_attributes(self) -> dict[str, ir.Attr]:
        """Return the attributes as they are written on the node, in the specification's order."""
        result = {}
        for name, attribute in ATTRIBUTES.items():
            if self.op_type not in attribute.operators:
                continue
            # Exactly one of axes and num_groups, always.
            always = name in _ALWAYS and name != ("axes" if self["num_groups"] else "num_groups")
            if always or name in self.attributes:
                result[name] = ir.Attr(name, ir.AttributeType[attribute.type.upper()], self[name])
        return result

    def emit(self, tape: ir.tape.Tape) -> list[ir.Value]:
        """Create the node with all outputs of its operator and return them; unused ones are dropped later."""
        count = len(OPERATORS[self.op_type].outputs)
        attributes = self.node_attributes()
        outputs = tape.op_multi_out(
            self.op_type, self.node_inputs(), attributes, domain=OPERATOR_DOMAIN, num_outputs=count
        )
        return list(outputs)

    def copy(self) -> Fused:
        """Return an independent copy."""
        return Fused(self.op_type, dict(self.inputs), dict(self.attributes))
