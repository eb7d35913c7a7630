"""Group normalisation as exporters write it: instance normalisation of a reshaped tensor."""

from __future__ import annotations

import math
from typing import Any

import onnx_ir as ir

from .facts import label
from .fused import Fused
from .rule import FusionRule
from .sites import Declined

__all__ = ["ReshapedGroupNormalization"]


class ReshapedGroupNormalization(FusionRule):
    """PyTorch's GroupNorm: every group becomes one channel of an InstanceNormalization.

    Before::

        grouped = Reshape(x, [0, num_groups, -1])
        Y = Reshape(InstanceNormalization(grouped, ones, zeros), Shape(x))

    After::

        Y = FusedNormalization(x, num_groups=...)
    """

    def pattern(self, op: Any, x: Any, grouping: Any, scale: Any, bias: Any, restoring: Any) -> Any:
        grouped = op.Reshape(x, grouping, _outputs=["grouped"])
        normalized = op.InstanceNormalization(grouped, scale, bias, _outputs=["normalized"])
        return op.Reshape(normalized, restoring)

    def check(
        self,
        context: Any,
        x: ir.Value,
        grouping: ir.Value,
        grouped: ir.Value,
        scale: ir.Value,
        bias: ir.Value,
        restoring: ir.Value,
        **_: Any,
    ) -> bool:
        self.require_float(x)
        self._groups(context.root, x, grouping, grouped)
        self._require_restored(context.root, x, restoring, context.output_values[0])
        for name, parameter in (("scale", scale), ("bias", bias)):
            if not self.facts.is_constant(parameter):
                raise Declined(
                    "parameter_not_constant", parameter=f"{name} {label(parameter)}", node=label(context.root)
                )
        return True

    def _groups(self, root: ir.Node, x: ir.Value, grouping: ir.Value, grouped: ir.Value) -> int:
        """Return the number of groups of a Reshape to [N, groups, rest], or decline."""
        shape, target = self.facts.shape(x), self.facts.constant(grouping)
        if shape is None or len(shape) < 2 or not isinstance(shape[1], int):
            raise Declined("unknown_type_or_rank", tensor=f"the number of channels of {label(x)}")
        if target is None or target.size != 3:
            inferred = self.facts.shape(grouped)
            if inferred is None or len(inferred) != 3:
                raise Declined("parameter_not_constant", parameter=f"shape {label(grouping)}", node=label(root))
            batch, groups, keeps = inferred[0], inferred[1], inferred[0] == shape[0] and _is_known(inferred[0])
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

    def _require_restored(self, root: ir.Node, x: ir.Value, restoring: ir.Value, result: ir.Value) -> None:
        """Decline unless the last Reshape gives x's shape back."""
        node = restoring.producer()
        if node is not None and _is_whole_shape(node) and self.facts.same(node.inputs[0], x):
            return
        shape, target, inferred = self.facts.shape(x), self.facts.constant(restoring), self.facts.shape(result)
        assert shape is not None
        if target is not None and len(target) == len(shape):
            wildcard = int((target == -1).sum()) <= 1
            if wildcard and all(size in (0, -1) or size == dim for size, dim in zip(target, shape, strict=True)):
                return
        if target is None and inferred is not None and len(inferred) == len(shape):
            known = zip(inferred, shape, strict=True)
            if all(size == dim and _is_known(size) for size, dim in known):
                return
        raise Declined(
            "different_formula",
            node=label(root),
            kind="GroupNormalization",
            detail="the last Reshape does not certainly give back the shape before the first",
        )

    def rewrite(
        self,
        op: Any,
        x: ir.Value,
        grouping: ir.Value,
        grouped: ir.Value,
        normalized: ir.Value,
        scale: ir.Value,
        bias: ir.Value,
        **_: Any,
    ) -> ir.Value:
        node = normalized.producer()
        assert node is not None
        fused = Fused("FusedNormalization", {"X": x})
        groups = self._groups(node, x, grouping, grouped)
        fused.set(num_groups=groups, epsilon=node.attributes.get_float("epsilon", 1e-5))
        if not (self.facts.all_equal(scale, 1) and self.facts.all_equal(bias, 0)):
            fused.set(affine_align="group")
            fused.inputs.update(scale=scale, bias=bias)
        return fused.emit(op)[0]


def _is_whole_shape(node: ir.Node) -> bool:
    start = node.attributes.get("start")
    return node.op_type == "Shape" and (start is None or start.value == 0) and "end" not in node.attributes


def _is_known(dim: int | ir.SymbolicDim) -> bool:
    return isinstance(dim, int) or dim.value is not None
