"""What joins a fused node from behind: scale, bias, activation and quantisation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx_ir as ir

from normfuse.graph_rewrites.engine.dequantization import dequantization_of, require_dequantization
from normfuse.graph_rewrites.engine.element_types import integers_of
from normfuse.graph_rewrites.engine.facts import Facts, label
from normfuse.graph_rewrites.engine.fused import Activation, Fused
from normfuse.graph_rewrites.engine.host_fusions import (
    quantizer_of,
    require_no_chain_before,
    require_no_chain_behind,
    require_no_quantized_product,
)
from normfuse.graph_rewrites.engine.rule import (
    FusionRule,
    fused_activation,
    fused_normalization,
    fused_of,
    quantize_linear,
)
from normfuse.graph_rewrites.engine.sites import Declined
from normfuse.graph_rewrites.spellings.activations import any_activation, may_go_on, read_activation


def _require_open(fused: Fused, root: ir.Node, *inputs: str) -> None:
    """Decline if the fused node has one of the inputs, an activation, further steps or a quantisation already."""
    if fused.has(*inputs) or len(fused.behind) > len(fused.affine) or fused.quantizes:
        raise Declined("unsupported_operator", op_type=root.op_type, where=f"at this place of the chain, {label(root)}")


class NormalizationScale(FusionRule):
    """The scale (gamma) of a normalisation.

    Before::

        Y = Mul(FusedNormalization(x), scale)

    After::

        Y = FusedNormalization(x, scale)
    """

    def pattern(self, op: Any, scale: Any) -> Any:
        return op.Mul(fused_normalization(op), scale)

    def check(self, root: ir.Node, normalized: ir.Value, scale: ir.Value) -> Fused:
        fused = Fused.of(normalized)
        if not self._unit_affine(fused):
            _require_open(fused, root, "scale", "bias")
        _require_open(fused, root)
        self.require_float(scale)
        self.facts.require_fits(scale, normalized, "scale", self.counted_from_end(fused["axes"], normalized))
        for unit in ("scale", "bias"):
            fused.drop(unit)
        fused.put("Mul", "scale", scale, 0)
        return fused

    def _unit_affine(self, fused: Fused) -> bool:
        """True if scale is all ones and bias all zeros, as exporters fill in what the operator requires."""
        scale, bias = fused.inputs.get("scale"), fused.inputs.get("bias")
        return scale is not None and self.facts.all_equal(scale, 1) and (bias is None or self.facts.all_equal(bias, 0))


class NormalizationBias(FusionRule):
    """The bias (beta) of a normalisation.

    Before::

        Y = Add(FusedNormalization(x, scale), bias)

    After::

        Y = FusedNormalization(x, scale, bias)
    """

    def pattern(self, op: Any, bias: Any) -> Any:
        return op.Add(fused_normalization(op), bias)

    def check(self, root: ir.Node, normalized: ir.Value, bias: ir.Value) -> Fused:
        fused = Fused.of(normalized)
        zeros = fused.has("bias") and self.facts.all_equal(fused.inputs["bias"], 0) and fused.align == "trailing"
        _require_open(fused, root, *(() if zeros else ("bias",)))
        if fused.align != "trailing":
            raise Declined("unsupported_operator", op_type="Add", where=f"behind a scale per channel, {label(root)}")
        self.require_float(bias)
        shape = self.facts.shape(bias)
        if not self.facts.is_constant(bias) and (shape is None or 1 not in shape[:-1]):
            # A tensor of the full shape is not a bias but the next residual connection.
            raise Declined("parameter_not_constant", parameter=f"bias {label(bias)}", node=label(root))
        self.facts.require_fits(bias, normalized, "bias", self.counted_from_end(fused["axes"], normalized))
        fused.drop("bias")  # zeros
        fused.put("Add", "bias", bias, len(fused.affine))
        return fused


class NormalizationActivation(FusionRule):
    """The activation behind a normalisation: one node, or one of the decomposed spellings that was fused before.

    Before::

        Y = Relu(FusedNormalization(x, scale, bias))

    After::

        Y = FusedNormalization(x, scale, bias, steps="...; Relu")
    """

    spellings = ("canonical", "decomposed")

    def pattern(self, op: Any) -> Any:
        normalized = fused_normalization(op)
        if self.spelling == "canonical":
            return any_activation(op, normalized, output="activated", parts=True)
        return fused_activation(op, normalized)

    def check(self, root: ir.Node, normalized: ir.Value, activated: ir.Value) -> Fused:
        if may_go_on(root):
            where = f"where a formula goes on behind it, {label(root)}"
            raise Declined("unsupported_operator", op_type=root.op_type, where=where)
        fused = Fused.of(normalized)
        if not fused.further:
            _require_open(fused, root)
        behind = self._behind(root) if self.spelling == "canonical" else Fused.of(activated)
        if behind.affine or behind.first is not None:
            where = f"between normalisation and activation, {label(root)}"
            raise Declined("unsupported_operator", op_type="Add", where=where)
        activation = behind.activation
        if fused.quantizes or (fused.further and activation.slope is not None):
            raise Declined("unsupported_operator", op_type=root.op_type, where=f"behind {label(root)}")
        require_constant_slope(
            self.facts, activation, normalized, root, self.counted_from_end(fused["axes"], normalized)
        )
        fused.activate(activation)
        for step in behind.further:
            fused.append(step, behind.inputs)
        if behind.last is not None:
            fused.store(behind.last, behind.inputs)
        return fused

    def _behind(self, root: ir.Node) -> Fused:
        activation, bias = read_activation(root, self.facts, self.facts.opsets)
        if bias is not None:
            raise Declined("unsupported_operator", op_type=root.op_type, where="behind a normalisation")
        fused = Fused("FusedActivation")
        fused.activate(activation)
        return fused


def require_constant_slope(
    facts: Facts, activation: Activation, x: ir.Value, node: ir.Node, axes: Sequence[int] = ()
) -> None:
    """Decline an activation whose slope is no constant that fits x."""
    if activation.slope is None:
        return
    if not facts.is_constant(activation.slope):
        raise Declined("parameter_not_constant", parameter=f"slope {label(activation.slope)}", node=label(node))
    facts.require_fits(activation.slope, x, "slope", axes)


class QuantizedActivation(FusionRule):
    """An activation between DequantizeLinear and QuantizeLinear, or with one of them.

    Before::

        Y = QuantizeLinear(Sigmoid(DequantizeLinear(x, x_scale, x_zero_point)), y_scale, y_zero_point)

    After::

        steps = "Dequantize ...; Sigmoid; Quantize ..."
        Y = FusedActivation(x, x_scale, x_zero_point, y_scale, y_zero_point, steps=steps)
    """

    spellings = ("dequantized", "quantized")

    def pattern(self, op: Any, x: Any) -> Any:
        if self.spelling == "dequantized":
            return any_activation(op, x, output="activated")
        return quantize_linear(op, any_activation(op, x, output="activated"))

    def check(self, root: ir.Node, x: ir.Value, activated: ir.Value, quantized: ir.Value | None = None) -> Fused:
        self.require_float(x)
        fused = self._configuration(x, activated, quantized)
        if quantized is not None and fused.activation.name in ("Relu", "Clip"):
            require_no_quantized_product(self.facts, x)
        if self.spelling == "dequantized":
            # It joins the node by a rule of its own.
            require_dequantization(self.facts, fused, dequantization_of(x), "X")
        self._require_no_chain(x, activated)
        return fused

    def _require_no_chain(self, x: ir.Value, activated: ir.Value) -> None:
        """Decline where the execution provider makes a longer chain among quantised tensors.

        So it does with a sum or product in front, or behind, of integers that are no bytes with all that is between
        pairs; and it keeps what is quantised in a chain and read twice there, as in SiLU and HardSwish.
        """
        node, root = x.producer(), activated.producer()
        assert root is not None
        require_no_chain_before(x, root)
        codes = node.inputs[0] if node is not None and node.op_type == "DequantizeLinear" else None
        quantize, is_clipped = quantizer_of(codes)
        if quantize is not None and quantize.inputs[0] is not None and codes is not None:
            require_no_chain_before(quantize.inputs[0], root)
            is_of_bytes = self.facts.dtype(codes) in integers_of(8) and not is_clipped
            if not is_of_bytes and max(len(x.consumers()), len(codes.consumers())) > 1:
                detail = "what it reads is read again in a chain among quantised tensors"
                raise Declined("not_profitable", node=label(root), detail=detail)
        for reader in activated.consumers():
            if reader.op_type != "QuantizeLinear":
                continue
            for dequantize in reader.outputs[0].consumers():
                behind = dequantize.outputs[0].consumers() if dequantize.op_type == "Clip" else [dequantize]
                for each in behind:
                    require_no_chain_behind(each.outputs[0], root)

    def _configuration(self, x: ir.Value, activated: ir.Value, quantized: ir.Value | None) -> Fused:
        node = activated.producer()
        assert node is not None
        activation, bias = read_activation(node, self.facts, self.facts.opsets)
        require_constant_slope(self.facts, activation, x, node)
        fused = Fused("FusedActivation", {"X": x})
        if bias is not None:
            self.facts.require_fits(bias, x, "bias")
            fused.put_affine(None, bias)
        fused.activate(activation)
        if quantized is not None:
            quantize(self.facts, fused, quantized.producer())
        return fused


def require_float32(quantize: ir.Node) -> None:
    """Decline a QuantizeLinear that divides in another type."""
    if quantize.attributes.get_int("precision", 0) not in (0, int(ir.DataType.FLOAT)):
        raise Declined(
            "attribute_value",
            attribute="precision",
            node=label(quantize),
            value=quantize.attributes["precision"].value,
            supported="0 or float32",
        )


def quantize(facts: Facts, fused: Fused, node: ir.Node | None) -> None:
    """Move a QuantizeLinear into the fused node.

    Raises:
        Declined: an attribute has a value that the operator does not take.
    """
    assert node is not None
    scale = node.inputs[1]
    assert scale is not None
    require_float32(node)
    facts.require_allowed(node.outputs[0], node)
    fused.quantize(
        (scale, node.inputs[2] if len(node.inputs) > 2 else None),
        axis=1 if facts.static_shape(scale) in ((), (1,)) else node.attributes.get_int("axis", 1),
        block_size=node.attributes.get_int("block_size", 0),
        saturate=node.attributes.get_int("saturate", 1),
    )


class QuantizeOutput(FusionRule):
    """Quantisation of the result.

    Before::

        Y = QuantizeLinear(FusedNormalization(...), y_scale, y_zero_point)

    After::

        Y = FusedNormalization(..., y_scale, y_zero_point)
    """

    spellings = ("FusedNormalization", "FusedActivation")

    def pattern(self, op: Any) -> Any:
        return quantize_linear(op, fused_of(op, self.spelling))

    def check(self, root: ir.Node, inner: ir.Value, quantized: ir.Value) -> Fused:
        fused = Fused.of(inner)
        if fused.quantizes:
            raise Declined("unsupported_operator", op_type="QuantizeLinear", where="twice")
        quantize(self.facts, fused, quantized.producer())
        return fused
