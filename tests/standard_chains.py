"""The same computation as a fused operator, spelled as a chain of canonical ONNX operators."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import programs
from harness import build_model
from hypothesis import strategies as st
from onnx import helper
from strategies import (
    OUTPUT_TYPES,
    QUANTIZED_TYPES,
    TWO_BIT_TYPES,
    Builder,
    Case,
    activations,
    broadcast_shapes,
    is_float8,
    narrowings,
    shapes,
)

from normfuse import meaning
from normfuse.meaning import Array, dtype_code
from normfuse.spec import ACTIVATIONS, ActivationSpelling

KINDS = {
    "LayerNormalization": 17,
    "RMSNormalization": 23,
    "MeanVarianceNormalization": 13,
    "InstanceNormalization": 6,
    "GroupNormalization": 21,
    "SkipLayerNormalization": 17,
    "SkipSimplifiedLayerNormalization": 17,
    "SimplifiedLayerNormalization": 17,
    "Activation": 13,
}
CONTRIB = ("SkipLayerNormalization", "SkipSimplifiedLayerNormalization")


@dataclass(frozen=True)
class Chain:
    """A case and the operator of ONNX in its middle."""

    kind: str
    opset: int
    case: Case
    # Inputs and dimensions of theirs that the model leaves open.
    symbolic: frozenset[tuple[str, int]] = frozenset()

    def shape_of(self, name: str, array: Array) -> list[int | str]:
        return [f"{name}{i}" if (name, i) in self.symbolic else dim for i, dim in enumerate(array.shape)]


class Nodes:
    """Appends nodes and names their outputs."""

    def __init__(self, inputs: dict[str, Array]) -> None:
        self.inputs = inputs
        self.extra: dict[str, Array] = {}
        self.nodes: list[onnx.NodeProto] = []

    def add(
        self, op_type: str, inputs: list[str], outputs: list[str] | None = None, domain: str = "", **attributes: Any
    ) -> str:
        outputs = outputs or [f"v{len(self.nodes)}"]
        while inputs and not inputs[-1]:
            inputs = inputs[:-1]
        name = f"{op_type}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(op_type, inputs, outputs, name=name, domain=domain, **attributes))
        return outputs[0]

    def constant(self, name: str, value: Array) -> str:
        self.extra[name] = value
        return name

    def optional(self, name: str) -> str:
        return name if name in self.inputs else ""

    def dequantized(self, name: str, prefix: str, attributes: dict[str, Any]) -> str:
        if f"{prefix}_scale" not in self.inputs:
            return name
        how = {"axis": attributes.get(f"{prefix}_axis", 1 if prefix in ("x", "residual") else 0)}
        if block := attributes.get(f"{prefix}_block_size", 0):
            how["block_size"] = block
        return self.add("DequantizeLinear", [name, f"{prefix}_scale", self.optional(f"{prefix}_zero_point")], **how)


def add_activation(nodes: Nodes, x: str, opset: int, attributes: dict[str, Any], dtype: Any) -> str:
    """The activation in the spelling of the table that this opset has; SiLU as Sigmoid and Mul."""
    name = attributes.get("activation", "Identity")
    if name == "Identity":
        return x
    row = ACTIVATIONS[name]
    values = dict(
        zip(row.drawn, meaning.activation_parameters(name, attributes.get("activation_params", ())), strict=True)
    )
    if name == "Swish" and values["alpha"] == 1 and opset < 24:
        return nodes.add("Mul", [x, nodes.add("Sigmoid", [x])])
    for spelling in row.spellings:
        if not in_opset(spelling, opset):
            continue
        inputs = [x] + ([nodes.optional("slope")] if row.has_slope else [])
        for parameter in spelling.inputs:
            inputs.append(
                nodes.constant(f"clip_{parameter}", np.asarray(values[parameter]).astype(np.float32).astype(dtype))
            )
        given = {attribute: values[p] for attribute, p in spelling.attributes.items()}
        return nodes.add(spelling.op_type, inputs, domain=spelling.domain, **given, **spelling.when)
    raise AssertionError(f"{name} has no spelling at opset {opset}")


def in_opset(spelling: ActivationSpelling, opset: int) -> bool:
    """Does the spelling hold in this opset of ONNX?"""
    return (spelling.domain != "" or spelling.since <= opset) and (spelling.until is None or opset <= spelling.until)


def spellable(attributes: dict[str, Any], opset: int) -> bool:
    """Does ONNX (or com.microsoft) have this activation with these parameters as an operator?

    Not where formulas are written with it (Erf, Exp, Sin): what follows decides whether it is taken, and it has tests
    of its own.
    """
    name = attributes.get("activation", "Identity")
    if name == "Identity":
        return True
    row = ACTIVATIONS[name]
    values = zip(row.parameters.items(), attributes.get("activation_params", ()), strict=False)
    given = {key for (key, default), value in values if value != np.float32(default)}
    return any(
        in_opset(each, opset) and given <= {*each.attributes.values(), *each.inputs}
        for each in row.spellings
        if not each.has_bias and not each.is_part
    )


def model_of(chain: Chain) -> onnx.ModelProto:
    """The chain as a model with the case's inputs and outputs."""
    case, at = chain.case, chain.case.attributes
    nodes = Nodes(case.inputs)
    x = nodes.dequantized("X", "x", at)
    names = {key: key if key in case.outputs else "" for key in ("mean", "inv_std_dev", "sum")}
    dtype = (case.inputs["x_scale"] if "x_scale" in case.inputs else case.inputs["X"]).dtype
    if chain.kind in CONTRIB:
        y = _skip_norm(nodes, chain, x, names)
    else:
        for name in ("residual_bias", "bias" if chain.kind == "Activation" else ""):
            if name in case.inputs:
                x = nodes.add("Add", [x, name])
        if "residual" in case.inputs:
            x = nodes.add("Add", [x, nodes.dequantized("residual", "residual", at)], outputs=["sum"])
        y = x if chain.kind == "Activation" else _norm(nodes, chain, x, names)
    y = add_activation(nodes, y, chain.opset, at, dtype)
    for index, word in enumerate(at.get("steps_behind", "").split()):
        operands = [y, f"operand_{index}"]
        y = nodes.add(word, operands[:: -1 if index % 2 else 1])
    if "y_scale" in case.inputs:
        how: dict[str, Any] = {"axis": at.get("y_axis", 1)}
        if block := at.get("y_block_size", 0):
            how["block_size"] = block
        if "y_zero_point" not in case.inputs and chain.opset >= 21:
            how["output_dtype"] = at.get("y_dtype", 0)
        if "y_saturate" in at:
            how["saturate"] = at["y_saturate"]
        y = nodes.add("QuantizeLinear", [y, "y_scale", nodes.optional("y_zero_point")], **how)
    nodes.nodes[-1].output[0] = "Y"
    expected = case.expected()
    return build_model(
        nodes.nodes,
        {key: a for key, a in case.inputs.items() if key not in case.constants},
        {key: expected[key].code for key in case.outputs},
        {key: a for key, a in case.inputs.items() if key in case.constants} | nodes.extra,
        opset=chain.opset,
        shapes={key: chain.shape_of(key, array) for key, array in case.inputs.items()}
        | ({} if chain.symbolic else {key: expected[key].exact.shape for key in case.outputs}),
    )


def _skip_norm(nodes: Nodes, chain: Chain, x: str, names: dict[str, str]) -> str:
    at = chain.case.attributes
    parameters = ["scale", nodes.optional("residual_bias")]
    if chain.kind == "SkipLayerNormalization":
        parameters.insert(1, nodes.optional("bias"))
    outputs = ["normalised", names["mean"], names["inv_std_dev"], names["sum"]]
    return nodes.add(chain.kind, [x, "residual", *parameters], outputs, "com.microsoft", epsilon=at["epsilon"])


def _norm(nodes: Nodes, chain: Chain, x: str, names: dict[str, str]) -> str:
    at, kind = chain.case.attributes, chain.kind
    y = "normalised"
    scale = nodes.dequantized("scale", "scale", at) if "scale" in nodes.inputs else ""
    bias = nodes.dequantized("bias", "bias", at) if "bias" in nodes.inputs else ""
    if kind == "MeanVarianceNormalization":
        return nodes.add(kind, [x], [y], axes=at["axes"])
    epsilon = {"epsilon": at["epsilon"]}
    if kind == "GroupNormalization":
        return nodes.add(kind, [x, scale, bias], [y], num_groups=at["num_groups"], **epsilon)
    if kind == "InstanceNormalization":
        return nodes.add(kind, [x, scale, bias], [y], **epsilon)
    axis = min(at["axes"])
    if kind == "LayerNormalization":
        outputs = [y, names["mean"], names["inv_std_dev"]]
        while not outputs[-1]:
            outputs.pop()
        return nodes.add(kind, [x, scale, bias], outputs, axis=axis, **epsilon)
    return nodes.add(kind, [x, scale], [y], axis=axis, **epsilon)


@st.composite
def chains(draw: st.DrawFn, kinds: tuple[str, ...] = tuple(KINDS), *, symbolic: bool = False) -> Chain:
    """Any chain that the EP promises to claim as one; with ``symbolic``, of any shapes that are left open."""
    kind = draw(st.sampled_from(kinds))
    b = Builder(draw, "FusedActivation" if kind == "Activation" else "FusedNormalization")
    opset = draw(st.integers(max(KINDS[kind], 21), 25))
    least = 3 if kind in ("InstanceNormalization", "GroupNormalization") or kind in CONTRIB else 1
    shape = draw(shapes(least, 3 if kind in CONTRIB else 5).filter(lambda s: 0 not in s))
    if kind == "GroupNormalization":
        b.attributes["num_groups"] = groups = draw(st.integers(1, 3))
        shape = (shape[0], groups * draw(st.integers(1, 3)), *(min(d, 40) for d in shape[2:]))
    _input(b, shape, kind, opset)
    outputs = ["Y"]
    if kind != "Activation":
        outputs += _normalization(b, shape, kind)
    half = np.dtype(b.float_type) == np.float16
    every = activations(b.numbers, shape, b.float_type)
    # Celu takes float32 only before opset 28.
    attributes, slope = draw(
        every.filter(lambda a: spellable(a[0], opset) and not (half and a[0].get("activation") == "Celu"))
    )
    b.attributes |= attributes
    if slope is not None:
        b.inputs["slope"] = slope
    if not symbolic and not outputs[1:] and draw(st.integers(0, 3)) == 0:
        # With operands that are certain to fit.
        words = draw(st.lists(st.sampled_from(["Mul", "Add"]), min_size=1, max_size=3))
        for index in range(len(words)):
            operand = draw(broadcast_shapes(shape))
            b.inputs[f"operand_{index}"] = b.numbers.normal(operand, b.float_type, 1.0, 0.3)
        b.attributes["steps_behind"] = " ".join(words)
    if draw(st.booleans()):
        dtype = draw(st.sampled_from([np.int8, np.uint8, *OUTPUT_TYPES, *(TWO_BIT_TYPES if opset >= 25 else [])]))
        b.quantization("y", shape, dtype, b.float_type, broadcast=False)
        if "y_zero_point" not in b.inputs:
            b.attributes["y_dtype"] = dtype_code(np.zeros(0, dtype))
        if is_float8(dtype) and draw(st.booleans()):
            b.attributes["y_saturate"] = 0
    alone = "y_scale" in b.inputs and "bias" not in b.inputs and "steps_behind" not in b.attributes
    if kind == "Activation" and "activation" not in b.attributes and not alone:
        b.attributes["activation"] = "Relu"
    order = programs.INPUTS[b.op]
    inputs = {name: b.inputs[name] for name in order if name in b.inputs}
    constant = frozenset(name for name in inputs if name not in ("X", "residual", "slope")) | {"slope"} & set(inputs)
    case = Case(b.op, inputs, b.attributes, tuple(outputs), constant, b.numbers.family)
    free = [(name, i) for name, array in inputs.items() if name not in constant for i in range(array.ndim)]
    opened = draw(st.lists(st.sampled_from(free), unique=True)) if symbolic and free else []
    return Chain(kind, opset, case, frozenset(opened))


def _input(b: Builder, whole: tuple[int, ...], kind: str, opset: int) -> None:
    """X and what is added to it, which widens it now and then: together they have the whole shape."""
    draw, rows = b.draw, range(2, len(whole)) if kind in ("InstanceNormalization", "GroupNormalization") else (-1,)
    shape, residual, bias = whole, whole, ()
    if kind == "Activation" and draw(st.integers(0, 2)) == 0:
        bias = whole[-1:]
        shape = (*whole[:-1], 1) if draw(st.booleans()) else whole
    adds = kind in ("LayerNormalization", "RMSNormalization") and draw(st.integers(0, 2)) == 0
    if adds:
        shape = draw(narrowings(whole)) or whole
        dims = [1] * (len(whole) - len(shape)) + list(shape)
        residual = tuple(
            1 if own == dim and draw(st.integers(0, 4)) == 0 else dim for own, dim in zip(dims, whole, strict=True)
        )
        bias = draw(st.sampled_from([(), whole[-1:]]))
    if draw(st.booleans()) and kind not in CONTRIB:
        # DequantizeLinear has no uint32.
        types = [t for t in QUANTIZED_TYPES if t is not np.uint32] + (TWO_BIT_TYPES if opset >= 25 else [])
        dtype = draw(st.sampled_from([np.int8, np.uint8, *types]))
        b.inputs["X"] = b.numbers.data(shape, dtype, axes=rows)
        b.quantization("x", shape, dtype, np.float32, broadcast=False)
    else:
        b.float_type = draw(st.sampled_from([np.float32, np.float32, np.float16]))
        b.inputs["X"] = b.numbers.data(shape, b.float_type, draw(st.sampled_from([0.0, 1.0])), axes=rows)
    if kind in CONTRIB or adds:
        b.inputs["residual"] = b.numbers.data(residual, b.float_type, axes=rows)
    if bias:
        b.inputs["bias" if kind == "Activation" else "residual_bias"] = b.numbers.normal(bias, b.float_type)


def _normalization(b: Builder, shape: tuple[int, ...], kind: str) -> list[str]:
    """Attributes and affine parameters of the norm; gives the further outputs."""
    draw, rank = b.draw, len(shape)
    b.attributes["epsilon"] = float(np.float32(draw(st.sampled_from([1e-5, 1e-6, 1e-3]))))
    if kind == "MeanVarianceNormalization":
        b.attributes["axes"] = draw(st.lists(st.integers(-rank, -1), min_size=1, unique=True))
        b.attributes |= {"epsilon": 1e-9, "epsilon_on": "stddev"}
        return []
    if kind in ("InstanceNormalization", "GroupNormalization"):
        b.attributes["affine_align"] = "channel"
        if kind == "InstanceNormalization":
            b.attributes["axes"] = list(range(2, rank))
        for name in ("scale", "bias"):
            b.inputs[name] = b.numbers.normal((shape[1],), b.float_type, 1.0 if name == "scale" else 0.0, 0.3)
        return []
    first = -1 if kind in CONTRIB else draw(st.integers(-rank, -1))
    b.attributes["axes"] = list(range(first, 0))
    b.inputs["scale"] = b.numbers.normal(shape[first:], b.float_type, 1.0, 0.3)
    if kind in ("LayerNormalization", "SkipLayerNormalization") and draw(st.integers(0, 3)):
        b.inputs["bias"] = b.numbers.normal(shape[first:], b.float_type, 0.0, 0.3)
    further = []
    if kind in CONTRIB and draw(st.booleans()):
        b.inputs["residual_bias"] = b.numbers.normal(shape[-1:], b.float_type)
    if "RMS" in kind or "Simplified" in kind:
        b.attributes["use_mean"] = 0
    elif draw(st.integers(0, 3)) == 0:
        further = ["mean", "inv_std_dev"]
    if "residual" in b.inputs and draw(st.booleans()):
        further.insert(0, "sum")
    return further
