"""Group normalisation: instance normalisation of a reshaped tensor, and ONNX Runtime's own operators."""

from __future__ import annotations

import math
from typing import Any

import onnx_ir as ir

from normfuse.graph_rewrites.engine.dequantization import dequantize
from normfuse.graph_rewrites.engine.facts import label
from normfuse.graph_rewrites.engine.fused import Activation, Fused
from normfuse.graph_rewrites.engine.pattern import node_of
from normfuse.graph_rewrites.engine.rule import FusionRule, is_known, require_groups, require_restored
from normfuse.graph_rewrites.engine.sites import Declined

_TO_CHANNELS_LAST = (0, 2, 3, 1)
_TO_CHANNELS_FIRST = (0, 3, 1, 2)


class ReshapedGroupNormalization(FusionRule):
    """PyTorch's GroupNorm: every group becomes one channel of an InstanceNormalization.

    Before::

        grouped = Reshape(x, [0, num_groups, -1])
        Y = Reshape(InstanceNormalization(grouped, ones, zeros), Shape(x))

    After::

        Y = FusedNormalization(x, steps="Normalize num_groups=...")

    A dequantisation per tensor may stand behind the first Reshape, and the normalisation may be a LayerNormalization
    with a scale of ones, as in the function bodies that this pass writes.
    """

    spellings = ("float", "quantized")

    def pattern(self, op: Any, x: Any, grouping: Any, scale: Any, restoring: Any) -> Any:
        grouped = op.Reshape(x, grouping, _outputs=["grouped"])
        if self.spelling == "quantized":
            dequantize_linear = node_of(("", "com.microsoft"), ("DequantizeLinear",))
            grouped = dequantize_linear(grouped, _allow_other_inputs=True, _outputs=["dequantized"])
        normalization = node_of(("",), ("InstanceNormalization", "LayerNormalization"))
        normalized = normalization(grouped, scale, _allow_other_inputs=True, _outputs=["normalized"])
        return op.Reshape(normalized, restoring)

    def check(
        self, root: ir.Node, x: ir.Value, scale: ir.Value, dequantized: ir.Value | None = None, **values: Any
    ) -> Fused:
        fused = self._input(x, dequantized)
        groups = self._groups(root, x, values["grouping"], values["grouped"])
        require_restored(self.facts, root, "GroupNormalization", x, values["grouped"], values["restoring"])
        node = values["normalized"].producer()
        bias = node.inputs[2] if len(node.inputs) > 2 else None
        fused.normalize(num_groups=groups, epsilon=node.attributes.get_float("epsilon", 1e-5))
        if node.op_type == "LayerNormalization":
            is_along_rows = node.attributes.get_int("axis", -1) in (-1, 2)
            if not (is_along_rows and self.facts.all_equal(scale, 1) and bias is None):
                detail = "its LayerNormalization is not of the groups alone"
                raise Declined("different_formula", node=label(root), kind="GroupNormalization", detail=detail)
            return fused  # ones for rows of a length that is not known are no constant
        for name, parameter in (("scale", scale), ("bias", bias)):
            if parameter is not None and not self.facts.is_constant(parameter):
                raise Declined("parameter_not_constant", parameter=f"{name} {label(parameter)}", node=label(root))
        if bias is not None and not (self.facts.all_equal(scale, 1) and self.facts.all_equal(bias, 0)):
            fused.put_affine(scale, bias, "group")
        return fused

    def _input(self, x: ir.Value, dequantized: ir.Value | None) -> Fused:
        """Return a node of x, dequantised as what x was reshaped to; or decline."""
        fused = Fused("FusedNormalization")
        if dequantized is None:
            self.require_float(x)
        else:
            node = dequantized.producer()
            assert node is not None
            if self.facts.static_shape(node.inputs[1]) not in ((), (1,)):
                detail = "it is dequantised with more than one scale between the Reshape and the normalisation"
                raise Declined("different_formula", node=label(node), kind="GroupNormalization", detail=detail)
            dequantize(self.facts, fused, node, "X")
        fused.inputs["X"] = x
        return fused

    def _groups(self, root: ir.Node, x: ir.Value, grouping: ir.Value, grouped: ir.Value) -> int:
        """Return the number of groups of a Reshape to [N, groups, rest], or decline."""
        shape, target = self.facts.shape(x), self.facts.constant(grouping)
        if shape is None or len(shape) < 2 or not isinstance(shape[1], int):
            raise Declined("unknown_type_or_rank", tensor=f"the number of channels of {label(x)}")
        if target is None or target.size != 3:
            inferred = self.facts.shape(grouped)
            if inferred is None or len(inferred) != 3:
                raise Declined("parameter_not_constant", parameter=f"shape {label(grouping)}", node=label(root))
            batch, groups, keeps = inferred[0], inferred[1], inferred[0] == shape[0] and is_known(inferred[0])
        else:
            batch, groups, rest = (int(size) for size in target)
            keeps = batch in (0, shape[0])
            if batch == -1 and rest > 0:
                sizes = shape[1:]
                keeps = all(isinstance(size, int) for size in sizes) and math.prod(sizes) == groups * rest
        if not keeps:
            raise Declined(
                "different_formula",
                node=label(root),
                kind="GroupNormalization",
                detail="the Reshape changes the batch dimension",
            )
        if not isinstance(groups, int) or groups <= 0 or shape[1] % groups:
            raise Declined(
                "different_formula",
                node=label(root),
                kind="GroupNormalization",
                detail=f"{shape[1]} channels do not make {groups} equal groups",
            )
        return groups


class NodeGroupNormalization(FusionRule):
    """GroupNorm and SkipGroupNorm of com.microsoft, as ONNX Runtime's optimiser of diffusion models writes them.

    They are read where their tensors have the channels in front (channels_last = 0), and where the Transposes to
    channels last and back stand around a GroupNorm. ONNX Runtime's CPU provider has no kernel for either.

    Before::

        Y = GroupNorm(x, gamma, beta, groups=32, activation=1, channels_last=0)

    After::

        steps = "Normalize num_groups=32; Mul gamma align=channel; Add beta align=channel; Swish"
        Y = FusedNormalization(x, gamma, beta, steps=steps)
    """

    spellings = ("channels last", "GroupNorm", "SkipGroupNorm")

    def pattern(self, op: Any, x: Any) -> Any:
        if self.spelling == "channels last":
            moved = op.Transpose(x, perm=_TO_CHANNELS_LAST)
            group_norm = op.GroupNorm(moved, _domain="com.microsoft", _allow_other_inputs=True, _outputs=["normalized"])
            return op.Transpose(group_norm, perm=_TO_CHANNELS_FIRST)
        outputs = ["normalized"] if self.spelling == "GroupNorm" else ["normalized", "total"]
        node = getattr(op, self.spelling)
        return node(x, _domain="com.microsoft", _allow_other_inputs=True, _outputs=outputs)

    def check(self, root: ir.Node, x: ir.Value, normalized: ir.Value, **_: Any) -> Fused:
        self.require_float(x, "FusedNormalization")
        node = normalized.producer()
        assert node is not None
        channels_last = node.attributes.get_int("channels_last", 1)
        if channels_last != (self.spelling == "channels last"):
            raise Declined(
                "attribute_value",
                attribute="channels_last",
                node=label(node),
                value=channels_last,
                supported="0, or 1 with Transposes around the node,",
            )
        return self._configuration(x, node)

    def _configuration(self, x: ir.Value, node: ir.Node) -> Fused:
        groups, activation = node.attributes.get_int("groups", 0), node.attributes.get_int("activation", 0)
        if activation not in (0, 1):
            raise Declined(
                "attribute_value", attribute="activation", node=label(node), value=activation, supported="0 or 1"
            )
        fused = Fused("FusedNormalization", {"X": x})
        fused.normalize(
            num_groups=require_groups(self.facts, x, groups, node),
            epsilon=node.attributes.get_float("epsilon", 1e-5),
        )
        scale, bias = (node.inputs[index] if len(node.inputs) > index else None for index in (1, 2))
        fused.put_affine(scale, bias, "channel")
        if activation:
            fused.activate(Activation.of("Swish"))
        if self.spelling == "SkipGroupNorm":
            self._add_residual(fused, node)
        return fused

    def _add_residual(self, fused: Fused, node: ir.Node) -> None:
        skip, bias = (node.inputs[index] if len(node.inputs) > index else None for index in (3, 4))
        if skip is None or bias is not None:
            raise Declined("unsupported_operator", op_type=f"{node.op_type} with a bias of its own", where="here")
        shape, x_shape = self.facts.shape(skip), self.facts.shape(fused.inputs["X"])
        if shape is None or x_shape is None or shape != x_shape or not all(map(is_known, shape)):
            # Of two shapes [N, C] and [N, C, 1, 1], ONNX broadcasts only one.
            raise Declined("shape_mismatch", tensor=label(skip), shape=shape, x_shape=x_shape)
        fused.put("Add", "residual", skip, 0, before=True)
