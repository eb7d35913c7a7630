"""The target "portable": one model-local function for each configuration, its body in standard operators.

A body uses the spelling that ONNX Runtime itself fuses (Pow and Div; LayerNormalization, Gelu ... where the model's
opset has them), so that without normfuse the model is as fast as it was.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir

from normfuse.graph_rewrites.engine.describe import chain_of
from normfuse.graph_rewrites.engine.element_types import FLOAT8_TYPES, integers_of
from normfuse.graph_rewrites.engine.facts import Facts
from normfuse.graph_rewrites.engine.fused import Activation, Fused
from normfuse.graph_rewrites.engine.labels import dtype_of, is_further, is_pair, step_of
from normfuse.graph_rewrites.forms.bodies import body_of, write_expression
from normfuse.spec import ACTIVATIONS, OPERATOR_DOMAIN, OPERATORS, ActivationSpelling, ProgramStep

# Quantised types that ONNX has from opset 21 on, and ONNX Runtime before, as those of 4 bits.
_16_BIT = integers_of(16)

_FLOAT = ir.DataType.FLOAT
# Quantised types that ONNX Runtime has no Reshape of: 2 and 4 bits at any opset, float8 before this one.
_2_BIT = integers_of(2)
_4_BIT = integers_of(4)
_FLOAT8_RESHAPE = 21
# The opset from which scales of a quantisation may be float16.
_FLOAT16_SCALES = 19

# Operators and what they are applied with, such as ("Mul", scale).
_Parameters: TypeAlias = Sequence[tuple[str, ir.Value]]


class NoStandardForm(Exception):  # noqa: N818 - like Declined, a way to say no
    """Raised where a configuration cannot be written in the standard operators of an opset."""


@dataclasses.dataclass(frozen=True)
class Types:
    """The element types and the rank that a body is written for."""

    inputs: Mapping[str, ir.DataType]
    y: ir.DataType | None
    rank: int | None
    per_channel: bool
    """Scale and bias have one element for each index of dimension 1 of X."""
    per_element: frozenset[str]
    """Those of scale and bias that have several elements and differ along the normalised dimensions only."""
    at_run_time: frozenset[str]
    """Those of scale and bias that are no finite constants."""
    row: tuple[int, ...] | None
    """The sizes of the normalised dimensions, where they are the last ones and known."""
    per_tensor: frozenset[str]
    """The tensors that are quantised with one scale: "x", "sum" ..."""

    @classmethod
    def of(cls, fused: Fused, y: ir.Value, facts: Facts) -> Types:
        """Return the types of a fused node whose first output is `y`.

        Raises:
            NoStandardForm: An operand has more dimensions than what is normalised, or a scale more than one.
        """
        known = {name: facts.dtype(value) for name, value in fused.inputs.items()}
        inputs = {name: dtype for name, dtype in known.items() if dtype is not None}
        rank = facts.rank(y)
        _require_dimensions(fused, facts)
        _require_granularity(fused, facts)
        affine = {name: fused.inputs[name] for name in ("scale", "bias") if fused.has(name)}
        shapes = {name: facts.shape(value) for name, value in affine.items()}
        return cls(
            inputs,
            facts.dtype(y),
            rank,
            per_channel=rank is not None and all(_one_for_each_channel(shape, rank) for shape in shapes.values()),
            per_element=frozenset(
                name for name, shape in shapes.items() if _runs_along(shape, fused["axes"]) and not _is_single(shape)
            ),
            at_run_time=frozenset(name for name, value in affine.items() if not _is_finite(facts.constant(value))),
            row=_row(fused, facts),
            per_tensor=frozenset(
                name.removesuffix("_scale")
                for name, value in fused.inputs.items()
                if name.endswith("_scale") and facts.static_shape(value) in ((), (1,))
            ),
        )

    @property
    def x_float(self) -> ir.DataType:
        """The float type that X has, after dequantisation: Y and the sum have it too unless they say otherwise."""
        return self.float_of("X")

    def float_of(self, name: str) -> ir.DataType:
        """Return the float type that an input has, after dequantisation; that of X where it is not known."""
        own = self.inputs.get(f"{name.lower()}_scale", self.inputs.get(name))
        return own if own is not None else _FLOAT if name == "X" else self.x_float


def _require_dimensions(fused: Fused, facts: Facts) -> None:
    """Refuse operands that would give Y more dimensions than what is normalised has."""
    if fused.op_type != "FusedNormalization":
        return
    ranks = [facts.rank(fused.inputs[name]) for name in ("X", *(step.operand for step in fused.joined))]
    known = [rank for rank in ranks if rank is not None]
    if len(known) < len(ranks):
        return
    rank = max(known)
    for step in fused.behind:
        own = facts.rank(fused.inputs[step.operand]) if step.operand else None
        if own is not None and own > rank:
            name = f"the operand of {step.name}" if is_further(step.operand) else step.operand
            raise NoStandardForm(f"{name} has {own} dimensions, but what is normalised has {rank}")


def _require_granularity(fused: Fused, facts: Facts) -> None:
    """Refuse scales and zero points that broadcast in several dimensions, as those of the operator may."""
    for step in fused.steps:
        for name in step.labels:
            rank = facts.rank(fused.inputs[name])
            if name != step.operand and not step["block_size"] and rank is not None and rank > 1:
                raise NoStandardForm(f"{name} has {rank} dimensions and is not blocked")


def _one_for_each_channel(shape: ir.Shape | None, rank: int) -> bool:
    """True if a parameter has an element for each index of dimension 1 of X, as InstanceNormalization asks for."""
    if shape is None or rank < 3 or len(shape) < rank - 1:
        return False
    return _runs_along(shape, (1 - rank,)) and shape[1 - rank] != 1


def _runs_along(shape: ir.Shape | None, axes: Sequence[int]) -> bool:
    """True if all dimensions of a parameter are 1 but those at `axes`, counted from the end."""
    return shape is not None and all(dim == 1 for index, dim in enumerate(shape, -len(shape)) if index not in axes)


def _is_single(shape: ir.Shape | None) -> bool:
    """True if a parameter has one element, which ONNX Runtime's fusions of a scale do not take."""
    return shape is not None and all(dim == 1 for dim in shape)


def _is_finite(array: np.ndarray[Any, Any] | None) -> bool:
    return array is not None and bool(np.isfinite(array.astype(np.float64)).all())


def _row(fused: Fused, facts: Facts) -> tuple[int, ...] | None:
    if not _is_over_last_dimensions(fused):
        return None
    shape = facts.shape(fused.inputs["X"])
    sizes = [] if shape is None else [dim for dim in shape[-len(fused["axes"]) :] if isinstance(dim, int)]
    return tuple(sizes) if len(sizes) == len(fused["axes"]) else None


def _is_over_last_dimensions(fused: Fused) -> bool:
    """Whether what is normalised are the last dimensions, all of them counted from the end."""
    if fused.op_type != "FusedNormalization" or fused["num_groups"]:
        return False
    return bool(fused["axes"] == tuple(range(-len(fused["axes"]), 0)))


class FunctionLibrary:
    """The functions that the fused nodes of one model call."""

    def __init__(self, model: ir.Model, facts: Facts) -> None:
        self._model = model
        self._facts = facts
        self._names: dict[Any, str] = {}
        self._bodies: dict[bytes, str] = {}

    def call(self, node: ir.Node, opset: int) -> None:
        """Turn a fused node into a call of its function, which is added to the model if it is new."""
        fused = Fused.read(node)
        types = Types.of(fused, node.outputs[0], self._facts)
        key = configuration(fused, types, len(node.outputs), opset)
        name = self._names.get(key)
        if name is None:
            name = self._names[key] = self._define(fused, types, len(node.outputs), opset)
        node.op_type = name

    def _define(self, fused: Fused, types: Types, outputs: int, opset: int) -> str:
        """Return the name of a function for the configuration, new or one with the very same body."""
        function = function_of(fused, types, outputs, opset)
        body = ir.to_proto(function).SerializeToString(deterministic=True)
        if body not in self._bodies:
            self._bodies[body] = function.name = self._new_name(fused)
            self._model.functions[OPERATOR_DOMAIN, function.name, ""] = function
        return self._bodies[body]

    def _new_name(self, fused: Fused) -> str:
        # A function with the custom operator's own name would be taken for it.
        base = "_".join([fused.op_type, *(chain_of(fused, activation="Activation") or ["Steps"])])
        taken = {name for domain, name, _ in self._model.functions if domain == OPERATOR_DOMAIN}
        name, number = base, 1
        while name in taken:
            number += 1
            name = f"{base}_{number}"
        return name


def configuration(fused: Fused, types: Types, outputs: int, opset: int) -> tuple[Any, ...]:
    """Return all that the body of a fused node depends on."""
    attributes = tuple((name, attribute.value) for name, attribute in fused.attributes().items())
    return (fused.op_type, attributes, outputs, _hashable(types), opset)


def _hashable(types: Types) -> tuple[Any, ...]:
    given = tuple(sorted(types.inputs.items()))
    known = (types.per_channel, types.per_element, types.at_run_time, types.row, types.per_tensor)
    return (given, types.y, types.rank, *known)


def function_of(fused: Fused, types: Types, outputs: int, opset: int) -> ir.Function:
    """Return a function for a configuration, which has no name yet.

    Raises:
        NoStandardForm: The opset has no operators for it.
    """
    formal = {name: ir.Value(name=name) for name in fused.program()[1]}
    body = Body(dataclasses.replace(fused, inputs=formal), types, opset)
    results = body.write(outputs)
    for value, output_name in zip(results, OPERATORS[fused.op_type].outputs, strict=False):
        value.name = output_name
    imports = {domain: opset if domain == "" else 1 for domain in sorted(body.domains)}
    graph = ir.Graph(list(formal.values()), results, nodes=body.nodes, opset_imports=imports)
    return ir.Function(OPERATOR_DOMAIN, "", "", graph=graph, attributes=_formal_attributes(fused))


def _is_given(types: Types, name: str) -> bool:
    return name in types.inputs or f"{name}_scale" in types.inputs


def _common(given: Collection[ir.DataType]) -> ir.DataType:
    """Return the type to compute in on operands of the given types."""
    return next(iter(given)) if len(given) == 1 and ir.DataType.BFLOAT16 not in given else _FLOAT


def _is_plain(fused: Fused) -> bool:
    """True if ONNX has an operator for the formula."""
    return bool(fused["use_mean"] and fused["normalize_variance"]) and fused["epsilon_on"] == "variance"


def _formal_attributes(fused: Fused) -> list[ir.Attr]:
    """Return the attributes of a call, without values: defaults need a newer IR version than functions themselves."""
    return [ir.Attr(name, attribute.type, None) for name, attribute in fused.attributes().items()]


class Body:
    """Writes a configuration in standard operators of one opset."""

    def __init__(self, fused: Fused, types: Types, opset: int) -> None:
        self._fused, self._types, self._opset = fused, types, opset
        self._tape = ir.tape.Tape()
        # The float types of the sum before a normalisation, and of all that follows.
        self._sum_type = self._work = _FLOAT
        #: Domains of the operators written so far.
        self.domains = {""}

    @property
    def nodes(self) -> Sequence[ir.Node]:
        """The nodes written so far."""
        return self._tape.nodes

    def node(self, op_type: str, *inputs: ir.Value | None, **attributes: Any) -> ir.Value:
        """Write a node and return its first result."""
        return self._tape.op(
            op_type, list(inputs), {name: value for name, value in attributes.items() if value is not None}
        )

    def number(self, value: float, dtype: ir.DataType | None = None) -> ir.Value:
        """Write a constant, in the type that activations are computed in where none is given."""
        return self._tensor(np.array(value, (dtype or self._work).numpy()))

    def _tensor(self, array: np.ndarray[Any, Any]) -> ir.Value:
        return self.node("Constant", value=ir.tensor(array))

    def _cast(self, value: ir.Value, source: ir.DataType, target: ir.DataType) -> ir.Value:
        return value if source == target else self.node("Cast", value, to=int(target))

    def _choose_types(self) -> None:
        """Compute in the type that all operands have, and otherwise in float32, as the kernels of ONNX Runtime ask for.

        Its CPU provider has none for bfloat16.
        """
        in_front = ("X", *(step.operand for step in self._fused.joined), "sum")
        before = {self._float_type(name) for name in in_front if _is_given(self._types, name)}
        before |= {_FLOAT for step in self._fused.before if is_pair(step)}
        behind = before | {self._float_type(step.operand) for step in self._fused.behind if step.operand}
        behind |= {_FLOAT for step in self._fused.behind if is_pair(step)}
        self._sum_type, self._work = _common(before), _common(behind)

    def _float_type(self, name: str) -> ir.DataType:
        """Return the float type that `_dequantized` gives an input."""
        quantized = f"{name.lower()}_scale" in self._types.inputs
        return _FLOAT if quantized and self._widens(self._types.float_of(name)) else self._types.float_of(name)

    def _widens(self, scale: ir.DataType) -> bool:
        """True for a scale of a type that the quantisation of the opset, or of ONNX Runtime, does not take."""
        return scale == ir.DataType.BFLOAT16 or (scale == ir.DataType.FLOAT16 and self._opset < _FLOAT16_SCALES)

    def _reduce(self, op_type: str, value: ir.Value, axes: Sequence[int]) -> ir.Value:
        since = 13 if op_type == "ReduceSum" else 18
        if self._opset >= since:
            return self.node(op_type, value, self._tensor(np.array(axes, np.int64)), keepdims=1)
        return self.node(op_type, value, axes=list(axes), keepdims=1)

    # The operators of the domain

    def write(self, outputs: int) -> list[ir.Value]:
        """Write the node and return its first `outputs` outputs: Y, sum, mean and inverse standard deviation."""
        self._choose_types()
        # First, so that a second run on what is written here finds them where they are.
        aligned = self._parameters() if self._fused["num_groups"] else None
        stored, prefix = self._summed()
        further: list[ir.Value] = []
        if self._fused["num_groups"]:
            y = self._grouped(stored, prefix, aligned or ())
            if outputs > 1:
                further = [self._sum_output(stored, prefix)]
        else:
            d = self._dequantized(stored, prefix)
            wide = self._cast(d, self._stored_type(prefix), self._work)
            if self._fused.op_type == "FusedNormalization":
                y, statistics = self._normalized(wide, outputs > 2)
                if outputs > 1:
                    further = [self._sum_output(stored, prefix, d), *statistics]
            else:
                y = self._affine(wide)
        y = self._stepped(y, self._fused.behind[len(self._fused.affine) :], self._work)
        y = self._quantized(y)
        if y is self._fused.inputs["X"]:
            y = self.node("Identity", y)
        return [y, *further][:outputs]

    def _summed(self) -> tuple[ir.Value, str]:
        """Write what is normalised, and return it as it is stored, with the name of its quantisation if it has one."""
        d = self._fused.inputs["X"]
        steps = self._fused.summed
        if not self._fused.has("sum_scale") and not steps:
            return d, "x"
        d = self._float("X", self._sum_type)
        if not any(map(is_pair, steps)):
            # The bias before the residual, as the linear layer adds it.
            steps.sort(key=lambda step: step.operand == "residual")
        d = self._stepped(d, steps, self._sum_type)
        if not self._fused.has("sum_scale"):
            return d, ""
        return self._quantize(d, "sum", self._types.inputs.get("sum_zero_point")), "sum"

    def _stepped(self, d: ir.Value, steps: Sequence[ProgramStep], dtype: ir.DataType) -> ir.Value:
        """Write steps on a value of type `dtype`."""
        for step in steps:
            if step.is_activation:
                slope = self._float(step.operand, dtype) if step.operand else None
                d = self._activated(self._fused.activation_of(step), d, slope)
                continue
            if is_pair(step):
                d = self._cast(self._rounded(step, self._cast(d, dtype, _FLOAT)), _FLOAT, dtype)
                continue
            if step["align"] == "group":
                raise NoStandardForm(f"{step.operand}, for each group, stands behind other steps than scale and bias")
            operand = self._float(step.operand, dtype)
            d = self.node(step.name, d, self._aligned(operand, step["align"], self._types.rank))
        return d

    def _rounded(self, step: ProgramStep, d: ir.Value) -> ir.Value:
        """Write a Q/DQ pair on a float32 value."""
        arguments = step.arguments
        scale, zero_point = arguments["scale"], arguments.get("zero_point")
        code = dtype_of(step) if zero_point is None else self._types.inputs.get(zero_point)
        parameters = [
            self._cast(self._fused.inputs[scale], self._types.inputs.get(scale, _FLOAT), _FLOAT),
            None if zero_point is None else self._fused.inputs[zero_point],
        ]
        layout = self._layout(step)
        quantized = self._quantization_op(
            "QuantizeLinear",
            [d, *parameters],
            code,
            **layout,
            output_dtype=int(code) if code is not None and zero_point is None else None,
            saturate=arguments.get("saturate"),
        )
        return self._quantization_op("DequantizeLinear", [quantized, *parameters], code, **layout)

    def _stored_type(self, prefix: str) -> ir.DataType:
        """Return the float type of what `_summed` returns, once it is dequantised."""
        return self._float_type("X") if prefix == "x" else self._sum_type

    def _sum_output(self, stored: ir.Value, prefix: str, d: ir.Value | None = None) -> ir.Value:
        """Return the second output: the sum, quantised if it is, or else X, dequantised to `d` if that is written."""
        if prefix == "sum":
            return stored
        d = d or self._dequantized(stored, prefix)
        target = dtype_of(self._fused.total) or self._types.x_float
        d = self._cast(d, self._stored_type(prefix), target)
        return self.node("Identity", d) if d is self._fused.inputs["X"] else d

    def _float(self, name: str, target: ir.DataType) -> ir.Value:
        """Write an input, dequantised and in the float type `target`."""
        value = self._dequantized(self._fused.inputs[name], name.lower())
        return self._cast(value, self._float_type(name), target)

    def _dequantized(self, value: ir.Value, prefix: str) -> ir.Value:
        """Dequantise a value with the scale and zero point of that name; without such, return it as it is."""
        if not self._fused.has(f"{prefix}_scale"):
            return value
        step = self._fused.quantization(prefix)
        assert step is not None
        return self._quantization_op(
            "DequantizeLinear",
            [value, self._scale_of(prefix), self._fused.inputs.get(f"{prefix}_zero_point")],
            self._code_type(prefix),
            **self._layout(step),
        )

    def _layout(self, step: ProgramStep) -> dict[str, Any]:
        """Return along which dimension, and in blocks of which size, a step has parameters."""
        axis = step.arguments.get("axis") if self._opset >= 13 else None
        return {"axis": axis, "block_size": step.arguments.get("block_size")}

    def _code_type(self, prefix: str) -> ir.DataType | None:
        """Return the quantised type of an input or of the sum; None where it is not known (a sum of uint8)."""
        return self._types.inputs.get({"x": "X", "sum": "sum_zero_point"}.get(prefix, prefix))

    def _scale_of(self, prefix: str) -> ir.Value:
        """Return the scale of a quantisation, in a type that the operators take."""
        dtype = self._types.inputs.get(f"{prefix}_scale", _FLOAT)
        wanted = self._sum_type if prefix == "sum" else _FLOAT if self._widens(dtype) else dtype
        return self._cast(self._fused.inputs[f"{prefix}_scale"], dtype, wanted)

    def _quantize(self, value: ir.Value, prefix: str, dtype: ir.DataType | None, **attributes: Any) -> ir.Value:
        """Quantise a value of the type that scales of that name have in the operator."""
        parameters = [self._scale_of(prefix), self._fused.inputs.get(f"{prefix}_zero_point")]
        return self._quantization_op("QuantizeLinear", [value, *parameters], dtype, **attributes)

    def _quantization_op(
        self, op_type: str, inputs: Sequence[ir.Value | None], dtype: ir.DataType | None, **attributes: Any
    ) -> ir.Value:
        """Write a (de)quantisation, with ONNX Runtime's own operator where the opset does not have the type yet."""
        domain = "com.microsoft" if dtype in (*_16_BIT, *_4_BIT) and self._opset < 21 else ""
        self.domains |= {domain}
        while inputs[-1] is None:
            inputs = inputs[:-1]
        given = {name: value for name, value in attributes.items() if value is not None}
        return self._tape.op(op_type, inputs, given, domain=domain)

    def _quantized(self, y: ir.Value) -> ir.Value:
        if self._fused.last is None or not self._fused.quantizes:
            return self._cast(y, self._work, self._fused.y_type or self._types.x_float)
        scale = self._types.inputs.get("y_scale", _FLOAT)
        y = self._cast(y, self._work, _FLOAT if self._widens(scale) else scale)
        no_zero_point = not self._fused.has("y_zero_point")
        return self._quantize(
            y,
            "y",
            self._types.y,
            **self._layout(self._fused.last),
            output_dtype=int(self._fused.y_type) if self._fused.y_type and no_zero_point else None,
            saturate=self._fused.last.arguments.get("saturate"),
        )

    # Normalisations return the result, its type, and if asked for mean and inverse standard deviation

    def _normalized(self, d: ir.Value, statistics: bool) -> tuple[ir.Value, Sequence[ir.Value]]:
        if self._fused.core is not None and self._fused.core.name != "Normalize":
            return self._affine(self._softmax(d)), ()
        if _is_plain(self._fused):
            if not statistics and self._is_instance_normalization():
                return self._instance_normalization(d), ()
            if self._opset >= 17 and _is_over_last_dimensions(self._fused):
                return self._layer_normalization(d, statistics)
        y, further = self._elementary(self._fused, d, statistics)
        return self._affine(y), further

    def _softmax(self, d: ir.Value) -> ir.Value:
        axes = self._fused["axes"]
        is_log = self._fused.core is not None and self._fused.core.name == "LogSoftmax"
        if len(axes) == 1 and self._opset >= 13:
            return self.node("LogSoftmax" if is_log else "Softmax", d, axis=axes[0])
        below = self.node("Sub", d, self._reduce("ReduceMax", d, axes))
        powers = self.node("Exp", below)
        total = self._reduce("ReduceSum", powers, axes)
        return self.node("Sub", below, self.node("Log", total)) if is_log else self.node("Div", powers, total)

    def _layer_normalization(self, d: ir.Value, statistics: bool) -> tuple[ir.Value, Sequence[ir.Value]]:
        """Write the operator with the scale and bias that it takes, and the rest after it.

        Written out, a row of equal numbers would not become exactly 0, as the operator makes it.
        """
        taken = [] if self._fused.align != "trailing" else [step.operand for step in self._fused.affine]
        if not {"scale"} <= self._types.per_element & set(taken):
            taken = []
        elif "bias" not in self._types.per_element:
            taken = ["scale"]
        parameters = [self._float(name, self._work) for name in taken] or [
            self._unit_scale(self._types.row, d, len(self._fused["axes"]))
        ]
        y, *others = self._tape.op_multi_out(
            "LayerNormalization",
            [d, *parameters],
            {"axis": -len(self._fused["axes"]), "epsilon": self._fused["epsilon"]},
            num_outputs=3 if statistics else 1,
        )
        return self._scaled(y, self._parameters(but=taken)), others

    def _unit_scale(self, row: tuple[int, ...] | None, d: ir.Value, dimensions: int) -> ir.Value:
        """Write a scale of ones for LayerNormalization, which asks for one, of the last dimensions of `d`."""
        if row is not None:
            return self._tensor(np.ones(row, self._work.numpy()))
        ends = (np.array([end], np.int64) for end in (-dimensions, np.iinfo(np.int64).max))
        return self._filled(self.node("Slice", self.node("Shape", d), *map(self._tensor, ends)), 1)

    def _filled(self, shape: ir.Value, number: float) -> ir.Value:
        return self.node("ConstantOfShape", shape, value=ir.tensor(np.array([number], self._work.numpy())))

    def _is_instance_normalization(self) -> bool:
        rank = self._types.rank
        if rank is None or rank < 3 or self._fused["axes"] != tuple(range(2 - rank, 0)) or not self._fused.has("scale"):
            return False
        # From opset 17 on, one in NumPy's form may have been a gate after a LayerNormalization.
        return self._fused.align == "channel" or (
            self._fused.align == "trailing" and self._types.per_channel and self._opset < 17
        )

    def _instance_normalization(self, d: ir.Value) -> ir.Value:
        scale, bias = (self._float(name, self._work) if self._fused.has(name) else None for name in ("scale", "bias"))
        assert scale is not None
        if self._fused.align == "trailing":
            flat = self._tensor(np.array([-1], np.int64))
            scale = self.node("Reshape", scale, flat)
            bias = bias and self.node("Reshape", bias, flat)
        if self._fused.align == "trailing" and self._types.at_run_time:
            # ONNX Runtime adds bias - mean * inverse * scale, which is no number where a factor is infinite.
            sizes = self.node("Shape", scale)
            ones, zeros = self._filled(sizes, 1), self._filled(sizes, 0)
            y = self.node("InstanceNormalization", d, ones, zeros, epsilon=self._fused["epsilon"])
            return self._scaled(y, self._parameters())
        bias = bias or self._filled(self.node("Shape", scale), 0)
        return self.node("InstanceNormalization", d, scale, bias, epsilon=self._fused["epsilon"])

    def _grouped(self, stored: ir.Value, prefix: str, aligned: _Parameters) -> ir.Value:
        """Normalise the groups, as PyTorch's exporters write it: one channel of an InstanceNormalization each.

        From opset 17 on one row of a LayerNormalization each: a group of equal numbers, far from 0, does not become
        exactly 0 in ONNX Runtime's InstanceNormalization, nor in GroupNormalization, whose variance cancels there.
        """
        groups, dtype = self._fused["num_groups"], self._stored_type(prefix)
        grouping = self._tensor(np.array([0, groups, -1], np.int64))
        code = self._code_type(prefix)
        float8_before_reshape = code in FLOAT8_TYPES and self._opset < _FLOAT8_RESHAPE
        if prefix in self._types.per_tensor and code not in (*_2_BIT, *_4_BIT) and not float8_before_reshape:
            # ONNX Runtime quantises again after DequantizeLinear and Reshape, and 1.31 does it wrong for int8: without
            # a zero point as uint8, and with one, from opset 21 on, in a way that it then rejects.
            d = stored
            grouped = self._dequantized(self.node("Reshape", d, grouping), prefix)
        else:
            d = self._dequantized(stored, prefix)
            # The Max of one tensor keeps ONNX Runtime from quantising again: 2 bits, for which it has no Reshape, and
            # float8 as uint8, which gives other numbers.
            kept = self.node("Max", d) if code in _2_BIT or float8_before_reshape else d
            grouped = self.node("Reshape", kept, grouping)
        grouped = self._cast(grouped, dtype, self._work)
        if _is_plain(self._fused) and self._opset >= 17:
            scale = self._unit_scale(None, grouped, 1)
            y = self.node("LayerNormalization", grouped, scale, axis=-1, epsilon=self._fused["epsilon"])
        elif _is_plain(self._fused):
            ones, zeros = np.ones(groups, self._work.numpy()), np.zeros(groups, self._work.numpy())
            scale, bias = self._tensor(ones), self._tensor(zeros)
            y = self.node("InstanceNormalization", grouped, scale, bias, epsilon=self._fused["epsilon"])
        else:
            assert self._fused.core is not None
            core = step_of("Normalize", **{**self._fused.core.arguments, "axes": (-1,), "num_groups": 0})
            ungrouped = dataclasses.replace(self._fused, inputs={}, core=core)
            y, _ = self._elementary(ungrouped, grouped, False)
        if self._fused.align == "group":
            return self.node("Reshape", self._scaled(y, aligned), self.node("Shape", d))
        return self._scaled(self.node("Reshape", y, self.node("Shape", d)), aligned)

    def _elementary(self, fused: Fused, d: ir.Value, statistics: bool) -> tuple[ir.Value, Sequence[ir.Value]]:
        """Write every operator: ONNX Runtime's MeanVarianceNormalization lacks the epsilon, and gives NaN for 0 / 0."""
        x = self._cast(d, self._work, _FLOAT)
        axes = fused["axes"]
        mean = self._reduce("ReduceMean", x, axes) if fused["use_mean"] or statistics else None
        deviation = self.node("Sub", x, mean) if fused["use_mean"] else x
        variance = self._reduce("ReduceMean", self.node("Pow", deviation, self.number(2, _FLOAT)), axes)
        epsilon = self.number(fused["epsilon"], _FLOAT)
        if fused["epsilon_on"] == "variance":
            root = self.node("Sqrt", self.node("Add", variance, epsilon))
        else:
            root = self.node("Add", self.node("Sqrt", variance), epsilon)
        y = self._divided(fused, deviation, root) if fused["normalize_variance"] else deviation
        further = (mean, self.node("Reciprocal", root)) if mean is not None and statistics else ()
        return self._cast(y, _FLOAT, self._work), further

    def _divided(self, fused: Fused, deviation: ir.Value, root: ir.Value) -> ir.Value:
        # With a Div, ONNX Runtime would fuse all of it: with a Cast before it, for bfloat16, into an operator without a
        # kernel; with a Mul after it that is no scale of a last dimension, into one that breaks the graph.
        scaled = fused.has("scale") or any(step.name == "Mul" for step in fused.further[:1])
        vectors = {name for name in ("scale", "bias") if fused.has(name)}
        is_scale = fused.has("scale") and vectors <= self._types.per_element and self._types.rank != 1
        if self._float_type("X") == ir.DataType.BFLOAT16 or (scaled and not is_scale):
            return self.node("Mul", deviation, self.node("Reciprocal", root))
        return self.node("Div", deviation, root)

    def _affine(self, y: ir.Value) -> ir.Value:
        """Write scale and bias, where present."""
        align = self._fused.align
        if (
            self._fused.op_type == "FusedActivation"
            and align == "channel"
            and self._fused.has("scale")
            and self._fused.has("bias")
        ):
            # One pass over memory instead of two.
            scale, bias = (self._float(name, self._work) for name in ("scale", "bias"))
            zeros = self.node("Sub", scale, scale)
            ones = self.node("Add", zeros, self.number(1))
            return self.node("BatchNormalization", y, scale, bias, zeros, ones, epsilon=0.0)
        return self._scaled(y, self._parameters())

    def _parameters(self, but: Collection[str] = ()) -> _Parameters:
        """Write scale and bias, where present, dequantised and in the shape that X asks for."""
        return [
            (step.name, self._aligned(self._float(step.operand, self._work), step["align"], self._types.rank))
            for step in self._fused.affine
            if step.operand not in but
        ]

    def _scaled(self, y: ir.Value, parameters: _Parameters) -> ir.Value:
        for op_type, value in parameters:
            y = self.node(op_type, y, value)
        return y

    def _aligned(self, parameter: ir.Value, align: str, rank: int | None) -> ir.Value:
        """Give a parameter along dimension 1 the shape that NumPy broadcasting asks for."""
        if align == "trailing":
            return parameter
        # Of X as [N, num_groups, rest] or as it is.
        rank = 3 if align == "group" else rank
        if rank is None:
            raise NoStandardForm("a parameter for each channel needs a tensor of known rank")
        return self.node("Reshape", parameter, self._tensor(np.array([-1] + [1] * (rank - 2), np.int64)))

    # Activations

    def _activated(self, activation: Activation, x: ir.Value, slope: ir.Value | None) -> ir.Value:
        parameters = dict(zip(ACTIVATIONS[activation.name].parameters, activation.parameters, strict=True))
        body = body_of(activation, self._opset)
        if body is not None:
            return write_expression(body.nodes, {"x": x, **parameters}, self)
        spelling = self._spelling(activation)
        inputs = [self.number(parameters[name]) for name in spelling.inputs]
        attributes = {attribute: parameters[name] for attribute, name in spelling.attributes.items()}
        if slope is not None:
            inputs = [slope]
        return self.node(spelling.op_type, x, *inputs, **attributes)

    def _spelling(self, activation: Activation) -> ActivationSpelling:
        for spelling in ACTIVATIONS[activation.name].spellings:
            if spelling.domain == "" and spelling.since <= self._opset <= (spelling.until or self._opset):
                return spelling
        raise NoStandardForm(f"opset {self._opset} has no operator for the activation {activation.name}")
