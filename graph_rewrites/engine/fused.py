"""The internal form of a site: the configuration of one ai.normfuse node.

While the pass works, every site is one node of the custom-op form (operators.toml): its program, and the tensors that
this names. Rules add steps to it, in front of the others or behind them. The target stage turns the node into a call of
a model-local function, or into standard operators.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from normfuse.graph_rewrites.engine.element_types import type_name
from normfuse.graph_rewrites.engine.facts import is_float, label
from normfuse.graph_rewrites.engine.labels import (
    CanonicalProgram,
    dtype_of,
    is_core,
    is_pair,
    read_canonical,
    relabelled,
    step_of,
)
from normfuse.graph_rewrites.engine.sites import Declined
from normfuse.spec import (
    ACTIVATIONS,
    ARGUMENTS,
    ATTRIBUTES,
    OPERATOR_DOMAIN,
    OPERATORS,
    SPEC_VERSION,
    STEPS,
    ProgramError,
    ProgramStep,
    TooManyTensorsError,
    UnknownStepError,
    check_program,
    labels_of,
    read_program,
    spec_version_of,
    write_program,
)


def operator_of(node: ir.Node) -> str | None:
    """Return the operator that a node (or a call of a model-local function) of our domain means, or None."""
    if node.domain != OPERATOR_DOMAIN:
        return None
    name = node.op_type.split("_", 1)[0]
    return name if name in OPERATORS else None


def tensors_of(node: ir.Node) -> Mapping[str, ir.Value]:
    """Return the tensors of a node of our domain by label; none of one that the pass does not know."""
    operator = operator_of(node)
    assert operator is not None
    program = read_canonical(operator, _program_of(node))
    return _by_label(program, node) if isinstance(program, CanonicalProgram) else {}


def _by_label(program: CanonicalProgram, node: ir.Node) -> dict[str, ir.Value]:
    pairs = zip(("X", *program.tensors), node.inputs, strict=False)
    return {name: value for name, value in pairs if value is not None}


def _program_of(node: ir.Node) -> str:
    steps = node.attributes.get("steps")
    is_text = steps is not None and steps.type == ir.AttributeType.STRING and not steps.is_ref()
    return steps.as_string() if steps is not None and is_text else ""


def new_constant(array: np.ndarray[Any, Any], name: str) -> ir.Value:
    """Return a constant that is in no graph yet; it becomes an initialiser with the node that reads it."""
    return ir.Value(name=name, const_value=ir.tensor(array, name=name))


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
    """One ai.normfuse node as data: its program in parts, whose labels are those of `labels`, and the tensors.

    `inputs` has the tensors by label, X among them.
    """

    op_type: str
    inputs: dict[str, ir.Value] = dataclasses.field(default_factory=dict)
    first: ProgramStep | None = None
    """Dequantize; None: X is a float tensor."""
    before: list[ProgramStep] = dataclasses.field(default_factory=list)
    core: ProgramStep | None = None
    """None: nothing is normalised."""
    behind: list[ProgramStep] = dataclasses.field(default_factory=list)
    last: ProgramStep | None = None
    """Quantize or Store; None: Y has the float type of X."""

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
            Declined: The library does not run the node: it was written for a newer specification, has an attribute or a
                step that is unknown, means nothing or reads too many tensors.
        """
        op_type = operator_of(node)
        assert op_type is not None
        what = f"{node.op_type} '{node.name}'"
        _check_attributes(node, what)
        program = read_canonical(op_type, _program_of(node))
        if isinstance(program, ProgramError):
            raise _refusal(what, program)
        fused = cls(op_type, _by_label(program, node))
        if not len(program.tensors) + 1 == len(fused.inputs) == sum(value is not None for value in node.inputs):
            raise Declined("invalid_configuration", node=what, detail=_wrong_inputs(node))
        fused._take(program.steps)
        fused._require_quantized()
        return fused

    def _take(self, steps: Sequence[ProgramStep]) -> None:
        in_front = any(map(is_core, steps))
        for step in steps:
            if is_core(step):
                self.core, in_front = step, False
            elif step.name == "Dequantize":
                self.first = step
            elif step.name in ("Store", "Quantize"):
                self.last = step
            else:
                (self.before if in_front else self.behind).append(step)

    def _require_quantized(self) -> None:
        """Decline where a tensor is dequantised that is known to be a float one."""
        for step in self.steps:
            if "scale" not in step.arguments or not (step.operand or step is self.first):
                continue
            tensor = self.inputs[step.operand or "X"]
            if is_float(tensor.dtype):
                what = f"{step.name} with a scale"
                raise Declined("unsupported_type", tensor=label(tensor), type=tensor.dtype, what=what)

    @property
    def steps(self) -> list[ProgramStep]:
        """All steps, in order."""
        every = (self.first, *self.before, self.core, *self.behind, self.last)
        return [step for step in every if step is not None]

    # What rules ask

    def __getitem__(self, argument: str) -> Any:
        """Return the value of an argument of the normalisation, or the default."""
        return ARGUMENTS[argument].default if self.core is None else self.core[argument]

    def has(self, *inputs: str) -> bool:
        """True if any of the inputs is present."""
        return any(name in self.inputs for name in inputs)

    def step(self, operand: str) -> ProgramStep | None:
        """Return the step of the operand with that label."""
        return next((step for step in (*self.before, *self.behind) if step.operand == operand), None)

    @property
    def joined(self) -> list[ProgramStep]:
        """What X is combined with in front of the normalisation."""
        return [step for step in self.before if step.operand]

    @property
    def summed(self) -> list[ProgramStep]:
        """What is done in front of the normalisation but for storing the output sum."""
        return [step for step in self.before if step is not self.total]

    @property
    def pairs_before(self) -> bool:
        """True if there is a pair of QuantizeLinear and DequantizeLinear in front of the normalisation."""
        return any(map(is_pair, self.before))

    @property
    def total(self) -> ProgramStep | None:
        """The step that stores the output sum; None: it is what is normalised, of the float type of X."""
        last = self.before[-1] if self.before else None
        return last if last is not None and STEPS[last.name].output else None

    @property
    def affine(self) -> list[ProgramStep]:
        """Scale and bias, as far as they are right behind the normalisation, or behind X."""
        return [step for step in self.behind[:2] if step.operand in ("scale", "bias")]

    @property
    def align(self) -> str:
        """How scale and bias meet X."""
        return str(self.affine[0]["align"]) if self.affine else str(ARGUMENTS["align"].default)

    @property
    def activation(self) -> Activation:
        """The activation right behind scale and bias; Identity if there is none."""
        rest = self.behind[len(self.affine) :]
        return self.activation_of(rest[0]) if rest and rest[0].is_activation else Activation()

    @property
    def further(self) -> list[ProgramStep]:
        """What follows the activation, or where there is none scale and bias."""
        rest = self.behind[len(self.affine) :]
        return rest[1:] if rest and rest[0].is_activation else rest

    def quantization(self, prefix: str) -> ProgramStep | None:
        """Return the step that quantises or dequantises "x", "sum", "y" or the operand of that label."""
        return {"x": self.first, "sum": self.total, "y": self.last}.get(prefix) or self.step(prefix)

    def activation_of(self, step: ProgramStep) -> Activation:
        """Return the activation that a step is, with all its parameters."""
        slope = self.inputs[step.operand] if step.operand else None
        return Activation.of(step.name, slope, **step.arguments)

    @property
    def quantizes(self) -> bool:
        """True if Y is quantised."""
        return self.last is not None and self.last.name == "Quantize"

    @property
    def y_type(self) -> ir.DataType | None:
        """The element type that Y is said to have; None: the one that follows from the other tensors."""
        return dtype_of(self.last)

    @y_type.setter
    def y_type(self, dtype: ir.DataType | None) -> None:
        name = "" if dtype is None else type_name(dtype)
        if self.last is not None and self.quantizes:
            self.last = step_of("Quantize", **{**self.last.arguments, "type": name})
        else:
            self.last = step_of("Store", type=name) if name else None

    # What rules write

    def normalize(self, **arguments: Any) -> None:
        """Set arguments of the normalisation."""
        given = self.core.arguments if self.core is not None else {}
        self.core = step_of("Normalize", **{**given, **arguments})

    def put(self, name: str, operand: str, value: ir.Value, at: int, *, before: bool = False, **arguments: Any) -> None:
        """Insert a step with its tensor among those behind the normalisation, or before it.

        `operand`: what the tensor is called; "": nothing special.
        """
        operand = operand or self._free_label()
        self.inputs[operand] = value
        (self.before if before else self.behind).insert(at, step_of(name, operand, **arguments))

    def _free_label(self) -> str:
        return next(label for label in map("operand_{}".format, range(len(self.inputs))) if not self.has(label))

    def pair(
        self,
        parameters: Sequence[ir.Value | None],
        *,
        before: bool,
        bounds: tuple[float, float] | None = None,
        **arguments: Any,
    ) -> None:
        """Let d be quantised and dequantised behind the other steps, or in front of those before the normalisation.

        `bounds`: what d is kept within then.
        """
        taken = sum(map(is_pair, self.steps))
        made = [step_of("FakeQuantize", **self._quantization(f"pair_{taken}", parameters), **arguments)]
        if bounds is not None:
            made.append(step_of("Clip", min=bounds[0], max=bounds[1]))
        steps = self.before if before and self.core is not None else self.behind
        at = 0 if before else len(steps)
        steps[at:at] = made

    def append(self, step: ProgramStep, inputs: Mapping[str, ir.Value]) -> None:
        """Append a step of another node, which has these inputs."""
        if is_pair(step):
            parameters = [inputs.get(str(step.arguments.get(key))) for key in ("scale", "zero_point")]
            others = {key: value for key, value in step.arguments.items() if key not in ("scale", "zero_point")}
            self.pair(parameters, before=False, **others)
            return
        operand = self._free_label() if step.operand else ""
        (moved,), names = relabelled([step], [operand])
        self.inputs |= {names[label]: inputs[label] for label in step.labels}
        self.behind.append(moved)

    def store(self, last: ProgramStep, inputs: Mapping[str, ir.Value]) -> None:
        """Store Y as another node does, which has these inputs."""
        self.inputs |= {label: inputs[label] for label in last.labels}
        self.last = last

    def drop(self, operand: str) -> None:
        """Remove the step of an operand, if it is there, with all its tensors."""
        step = self.step(operand)
        if step is not None:
            (self.before if step in self.before else self.behind).remove(step)
            for label in step.labels:
                del self.inputs[label]

    def put_affine(self, scale: ir.Value | None, bias: ir.Value | None, align: str = "trailing") -> None:
        """Insert a scale and a bias, as far as there are, right behind the normalisation, or behind X."""
        for name, operand, value in (("Add", "bias", bias), ("Mul", "scale", scale)):
            if value is not None:
                self.put(name, operand, value, 0, align=align)

    def activate(self, activation: Activation) -> None:
        """Append an activation."""
        if activation.name == "Identity":
            return
        names = ACTIVATIONS[activation.name].parameters
        parameters: dict[str, Any] = dict(zip(names, activation.parameters, strict=True))
        if activation.slope is not None:
            operand = "" if self.further or self.activation.name != "Identity" else "slope"
            self.put(activation.name, operand, activation.slope, len(self.behind), **parameters)
        else:
            self.behind.append(step_of(activation.name, **parameters))

    def dequantize(self, tensor: str, parameters: Sequence[ir.Value | None], **numbers: int) -> None:
        """Let an input be dequantised with a scale and a zero point, which may be None.

        `numbers`: axis and block_size.
        """
        names = self._quantization("x" if tensor == "X" else tensor, parameters)
        if tensor == "X":
            self.first = step_of("Dequantize", **names, **numbers)
            return
        for steps in (self.before, self.behind):
            for index, step in enumerate(steps):
                if step.operand == tensor:
                    steps[index] = step_of(step.name, tensor, **{**step.arguments, **names, **numbers})

    def requantize(self, parameters: Sequence[ir.Value | None]) -> None:
        """Let the sum be quantised, and dequantised for the normalisation."""
        self.before.append(step_of("Requantize", **self._quantization("sum", parameters)))

    def quantize(self, parameters: Sequence[ir.Value | None], **arguments: Any) -> None:
        """Let Y be quantised with a scale and a zero point, which may be None."""
        self.last = step_of("Quantize", **self._quantization("y", parameters), **arguments)

    def _quantization(self, prefix: str, parameters: Sequence[ir.Value | None]) -> dict[str, str]:
        names = {}
        for key, value in zip(("scale", "zero_point"), parameters, strict=True):
            if value is not None:
                names[key] = f"{prefix}_{key}"
                self.inputs[names[key]] = value
        return names

    # The node

    def program(self) -> tuple[list[ProgramStep], dict[str, ir.Value]]:
        """Return the steps as they are written, with further operands numbered in order, and the inputs in order."""
        steps, names = relabelled(self.steps)
        inputs = {names.get(label, label): value for label, value in self.inputs.items()}
        labels = labels_of(steps)
        assert {"X", *labels} == set(inputs), f"{write_program(steps)} has the inputs {sorted(inputs)}"
        return steps or [ProgramStep("Identity")], {label: inputs[label] for label in ("X", *labels)}

    def attributes(self) -> dict[str, ir.Attr]:
        """Return the attributes of the node."""
        return _attributes(self.program()[0])

    def write(self, node: ir.Node) -> None:
        """Give an existing node of this operator the inputs and attributes of the configuration."""
        steps, inputs = self.program()
        node.resize_inputs(len(inputs))
        for index, value in enumerate(inputs.values()):
            if node.inputs[index] is not value:
                node.replace_input_with(index, value)
        node.attributes.clear()
        for attribute in _attributes(steps).values():
            node.attributes.add(attribute)

    def emit(self, tape: ir.tape.Tape) -> list[ir.Value]:
        """Create the node with all outputs of its operator and return them; unused ones are dropped later.

        Raises:
            Declined: The library does not run it: a number is NaN, or there are too many tensors.
        """
        steps, inputs = self.program()
        for step in steps:
            for name, value in step.arguments.items():
                if isinstance(value, float) and math.isnan(value):
                    raise Declined("attribute_value", attribute=name, node=step.name, value="NaN", supported="a number")
        try:
            scales = [inputs[step.arguments["scale"]] for step in steps if is_pair(step)]
            check_program(self.op_type, steps, sum(not _is_number(scale) for scale in scales))
        except ProgramError as error:
            raise _refusal(f"the {self.op_type} of all of them", error) from error
        count = len(OPERATORS[self.op_type].outputs)
        values = [_placed(tape, value) for value in inputs.values()]
        outputs = tape.op_multi_out(self.op_type, values, _attributes(steps), domain=OPERATOR_DOMAIN, num_outputs=count)
        return list(outputs)


def _attributes(steps: Sequence[ProgramStep]) -> dict[str, ir.Attr]:
    return {
        "spec_version": ir.AttrInt64("spec_version", spec_version_of(steps)),
        "steps": ir.AttrString("steps", write_program(steps)),
    }


def _is_number(value: ir.Value) -> bool:
    if value.const_value is not None:
        return value.const_value.size == 1
    return value.shape is not None and value.shape.is_static() and math.prod(value.shape.numpy()) == 1


def _placed(tape: ir.tape.Tape, value: ir.Value) -> ir.Value:
    """Return the value, or the initialiser that a `new_constant` becomes."""
    tensor = value.const_value
    is_new = tensor is not None and value.graph is None and value.producer() is None
    return tape.initializer(tensor, name=value.name) if tensor is not None and is_new else value


def _refusal(what: str, error: ProgramError) -> Declined:
    if isinstance(error, UnknownStepError):
        return Declined("unknown_step", node=what, step=error.step)
    if isinstance(error, TooManyTensorsError):
        return Declined("too_many_tensors", node=what, detail=error)
    return Declined("invalid_configuration", node=what, detail=error)


_KINDS = {name: ir.AttributeType[attribute.type.upper()] for name, attribute in ATTRIBUTES.items()}


def _check_attributes(node: ir.Node, what: str) -> None:
    """Decline a node with attributes that are unknown here, or of another kind, or of a newer specification."""
    operator = operator_of(node)
    assert operator is not None
    for name, attribute in node.attributes.data.items():
        kind = _KINDS.get(name)
        if kind is None:
            raise Declined("unknown_attribute", node=what, attribute=name)
        if attribute.type != kind or attribute.is_ref():
            detail = f"attribute {name} is not of type {kind.name.lower()}"
            raise Declined("invalid_configuration", node=what, detail=detail)
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


def _wrong_inputs(node: ir.Node) -> str:
    """Say which input is missing, or else that there are too many."""
    given = [value is not None for value in node.inputs]
    names = ("X", *labels_of(read_program(_program_of(node))))
    for index, name in enumerate(names):
        if index >= len(given) or not given[index]:
            return f"{name} is missing, input {index} of the node"
    return f"it has more inputs than the {len(names)} that X and its steps are"
