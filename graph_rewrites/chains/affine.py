"""Scales, biases and gates beside a fused node: steps of their own, wherever they are no scale or bias of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir

from normfuse.graph_rewrites.engine.facts import label
from normfuse.graph_rewrites.engine.fused import Fused, new_constant
from normfuse.graph_rewrites.engine.host_fusions import require_no_gemm
from normfuse.graph_rewrites.engine.pattern import node_of
from normfuse.graph_rewrites.engine.rule import FusionRule, fused_activation, fused_normalization
from normfuse.graph_rewrites.engine.sites import Declined

# ONNX Runtime takes the factor of an operand into these.
_PRODUCTS = ("MatMul", "Gemm")
# What an operation with a constant is where it is no Add or Mul.
_INVERSES = {"Sub": "Add", "Div": "Mul"}
# What mixes elements, so that a last bit no longer decides on one rounding, and how far a quantisation is looked for.
_MANY = (*_PRODUCTS, "Conv", "ConvTranspose")
_MOST_BEHIND = 32
# Smaller numbers have lost digits; of float32 and bfloat16 where there is no other.
_SMALLEST_NORMAL = {"float16": 2.0**-14}
_SMALLEST_OTHER = 2.0**-126


class StepBehind(FusionRule):
    """A scale, a bias or a gate behind what is fused: layer scale, modulation, the product of SwiGLU, the affine
    operations around an activation.

    Before::

        Y = Mul(FusedNormalization(...), operand)

    After::

        Y = FusedNormalization(..., operand, steps="...; Mul operand")

    A constant that is subtracted or divided by is added or multiplied with; where a QuantizeLinear follows, one that is
    divided by only if its inverse is exact, as ties would be rounded the other way.
    """

    spellings = tuple(
        f"{operator} {kind}"
        for operator in ("FusedNormalization", "FusedActivation")
        for kind in ("Mul", "Add", "Sub", "Div")
    )

    def pattern(self, op: Any, operand: Any) -> Any:
        build = fused_normalization if self.spelling.startswith("FusedNormalization") else fused_activation
        return node_of(("",), (self._kind,))(build(op, output="inner"), operand, _outputs=["stepped"])

    @property
    def _kind(self) -> str:
        return self.spelling.split()[1]

    def check(self, root: ir.Node, inner: ir.Value, operand: ir.Value, stepped: ir.Value) -> Fused:
        fused = Fused.of(inner)
        if fused.quantizes:
            raise Declined("unsupported_operator", op_type=root.op_type, where=f"behind {label(root)}")
        self.require_one_type(inner, operand, root.op_type)
        # An open dimension of what is normalised is taken for the parameter's.
        axes = self.counted_from_end(fused["axes"], inner) if fused.op_type == "FusedNormalization" else ()
        self.facts.require_fits(operand, inner, "operand", axes)
        self._require_profit(root, inner, operand)
        if self._kind in _INVERSES:
            operand = new_constant(self._inverse(root, operand), f"{stepped.name}.operand")
        fused.put(_INVERSES.get(self._kind, self._kind), "", operand, len(fused.behind))
        return fused

    def _require_profit(self, root: ir.Node, inner: ir.Value, operand: ir.Value) -> None:
        """Decline where another chain, or ONNX Runtime, makes more of the node."""
        fused = Fused.of(inner)
        around = fused.op_type == "FusedActivation" and fused.inputs["X"] is operand  # Snake
        if self._kind == "Add" and not around and not self.facts.is_constant(operand):
            shape, whole = self.facts.shape(operand), self.facts.shape(inner)
            if shape is not None and whole is not None and list(shape) == list(whole):
                detail = "it is a residual connection, which belongs to what is behind it"
                raise Declined("not_profitable", node=label(root), detail=detail)
        consumers = root.outputs[0].consumers()
        is_factor = self._kind in ("Mul", "Div") and self.facts.scalar(operand) is not None
        if is_factor and consumers and all(node.op_type in _PRODUCTS for node in consumers):
            detail = "the factor becomes part of the product behind it"
            raise Declined("not_profitable", node=label(root), detail=detail)

    def _inverse(self, root: ir.Node, operand: ir.Value) -> np.ndarray[Any, Any]:
        """Return what is added or multiplied with instead of a constant that is subtracted or divided by."""
        array = self.facts.constant(operand)
        if array is None or root.graph in self.facts.function_bodies:
            raise Declined("parameter_not_constant", parameter=label(operand), node=label(root))
        if self._kind == "Sub":
            return np.asarray(-array)
        with np.errstate(all="ignore"):
            inverse = np.asarray(1 / array.astype(np.float64)).astype(array.dtype)
        size = np.abs(inverse.astype(np.float64))
        if not np.all(np.isfinite(size) & (size >= _SMALLEST_NORMAL.get(str(array.dtype), _SMALLEST_OTHER))):
            raise Declined("different_formula", node=label(root), kind="a scale", detail="its divisor has no inverse")
        is_exact = np.all(np.frexp(size)[0] == 0.5)
        if not is_exact and _is_quantized_behind(root):
            detail = "its quotient is quantised, and a product with the inverse of the divisor may be on another step"
            raise Declined("different_formula", node=label(root), kind="a scale", detail=detail)
        return inverse


def _is_quantized_behind(root: ir.Node) -> bool:
    """Whether a QuantizeLinear may read what the node gives, or what is made of it element by element."""
    behind = [root]
    for node in behind:
        for consumer in dict.fromkeys(consumer for value in node.outputs for consumer in value.consumers()):
            if consumer.op_type in ("QuantizeLinear", "DynamicQuantizeLinear"):
                return True
            if consumer not in behind and consumer.op_type not in _MANY and len(behind) < _MOST_BEHIND:
                behind.append(consumer)
    return False


class ActivationOperand(FusionRule):
    """A bias in front of a decomposed activation, as a linear layer leaves behind, or a scale in front of that.

    Before::

        Y = FusedActivation(Mul(x, scale), bias, steps="Add bias")

    After::

        Y = FusedActivation(x, scale, bias, steps="Mul scale; Add bias")
    """

    spellings = ("Add bias", "Mul scale")

    def pattern(self, op: Any, x: Any, operand: Any) -> Any:
        return fused_activation(op, getattr(op, self.spelling.split()[0])(x, operand))

    def check(self, root: ir.Node, x: ir.Value, operand: ir.Value, activated: ir.Value) -> Fused:
        op_type, name = self.spelling.split()
        x, operand = self.facts.constant_last(x, operand)
        fused = Fused.of(activated)
        if fused.has(name, "scale", "x_scale") or fused.align != "trailing":
            raise Declined("unsupported_operator", op_type=op_type, where=f"twice in front of {label(root)}")
        if not self.facts.is_constant(operand) or self.facts.is_constant(x):
            raise Declined("parameter_not_constant", parameter=label(operand), node=label(root))
        self.require_one_type(x, operand, op_type)
        producer = x.producer()
        if producer is not None:
            self._require_no_host_fusion(op_type, producer, x, operand)
        self.facts.require_fits(operand, x, name)
        fused.inputs["X"] = x
        fused.put(op_type, name, operand, 0)
        return fused

    def _require_no_host_fusion(self, op_type: str, producer: ir.Node, x: ir.Value, operand: ir.Value) -> None:
        """Decline where ONNX Runtime makes one node of the operator and the one in front of it, which is faster."""
        if op_type == "Add":
            require_no_gemm(self.facts, x, operand)
        takes = _PRODUCTS if op_type == "Mul" and self.facts.scalar(operand) is not None else ("Conv",)
        if producer.op_type in takes:
            detail = f"the {op_type} becomes part of its {producer.op_type}"
            raise Declined("not_profitable", node=label(producer), detail=detail)
