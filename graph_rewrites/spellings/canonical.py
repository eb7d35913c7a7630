"""Normalisations that are one node already: each becomes a FusedNormalization that its neighbours can join."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx_ir as ir

from normfuse.graph_rewrites.engine.facts import label
from normfuse.graph_rewrites.engine.fused import Fused
from normfuse.graph_rewrites.engine.rule import FusionRule, canonical_axes, require_groups
from normfuse.graph_rewrites.engine.sites import Declined
from normfuse.spec import NORMALIZATIONS, OPERATORS, Normalization, find_normalization


class CanonicalNormalization(FusionRule):
    """An operator of the table of normalisations: ONNX's own, and those of ONNX Runtime.

    Before::

        Y, mean, inv_std_dev = LayerNormalization(x, scale, bias, axis=-1, epsilon=1e-5)

    After::

        Y, _, mean, inv_std_dev = FusedNormalization(x, scale, bias, steps="Normalize axes=-1 epsilon=1e-05; ...")
    """

    #: Operator and domain.
    spellings = tuple(
        dict.fromkeys(f"{row.op_type}@{row.domain}" for row in NORMALIZATIONS if row.method == "standard")
    )

    def pattern(self, op: Any) -> Any:
        op_type, domain = self.spelling.split("@")
        build = getattr(op, op_type)
        return build(_domain=domain, _allow_other_inputs=True, _outputs=["normalized", *self._outputs[1:]])

    @property
    def _outputs(self) -> Sequence[str]:
        return next(row.outputs for row in NORMALIZATIONS if f"{row.op_type}@{row.domain}" == self.spelling)

    def check(self, root: ir.Node, **_: Any) -> Fused:
        if not root.inputs or root.inputs[0] is None:
            raise Declined("invalid_configuration", node=label(root), detail="it has no input")
        self.require_float(root.inputs[0], "FusedNormalization")
        return self._configuration(root)

    def results(self, made: Sequence[ir.Value]) -> list[ir.Value]:
        by_name = dict(zip(OPERATORS["FusedNormalization"].outputs, made, strict=True))
        return [by_name[name] for name in self._outputs]

    def _configuration(self, node: ir.Node) -> Fused:
        """Return the node's configuration, or decline."""
        row = self._row(node)
        stash = node.attributes.get_int("stash_type", 1)
        if stash != 1:
            raise Declined(
                "attribute_value", attribute="stash_type", node=label(node), value=stash, supported="1 (float32)"
            )
        inputs = {name: value for name, value in zip(row.inputs, node.inputs, strict=False) if value is not None}
        assert row.epsilon is not None
        epsilon = node.attributes.get_float("epsilon", row.epsilon) if row.epsilon_is_attribute else row.epsilon
        fused = Fused("FusedNormalization", {"X": inputs["X"]})
        fused.normalize(epsilon=epsilon, epsilon_on=row.epsilon_on, use_mean=int(row.use_mean))
        fused.normalize(**self._normalised(row, node, inputs["X"]))
        for name in ("residual", "residual_bias"):
            if name in inputs:
                fused.put("Add", name, inputs[name], len(fused.before), before=True)
        fused.put_affine(inputs.get("scale"), inputs.get("bias"), row.affine_align)
        if row.affine_align == "trailing":
            self._require_fits(row, fused)
        return fused

    def _row(self, node: ir.Node) -> Normalization:
        version = self.facts.opsets.get(node.domain, 1)
        row = find_normalization(node.domain, node.op_type, version)
        if row is None:
            known = min(each.since for each in NORMALIZATIONS if each.op_type == node.op_type)
            raise Declined("unsupported_operator", op_type=f"{node.op_type} before opset {known}", where="here")
        return row

    def _normalised(self, row: Normalization, node: ir.Node, x: ir.Value) -> dict[str, Any]:
        """Return the axes, or the number of groups."""
        axes = row.axes
        if axes.in_groups:
            return {"num_groups": require_groups(self.facts, x, node.attributes.get_int(axes.attribute, 0), node)}
        if axes.first is None:
            given = tuple(node.attributes.get_ints(axes.attribute, axes.default))
            return {"axes": canonical_axes(given, self._rank(x, 1), x)}
        first = node.attributes.get_int(axes.attribute, axes.first) if axes.attribute else axes.first
        if first < 0:
            return {"axes": tuple(range(first, 0))}
        rank = self._rank(x, 1 if axes.attribute else first + 1)
        return {"axes": canonical_axes(range(first, rank), rank, x)}

    def _require_fits(self, row: Normalization, fused: Fused) -> None:
        """Decline where a parameter does not broadcast to x along what is normalised."""
        # Operators with a residual ask by themselves for vectors of x's last dimension.
        vectors = "residual" in row.inputs
        for name in row.inputs:
            if name in ("X", "residual") or not fused.has(name):
                continue
            if not vectors or self.facts.rank(fused.inputs[name]) not in (None, 1):
                self.facts.require_fits(fused.inputs[name], fused.inputs["X"], name, fused["axes"])

    def _rank(self, x: ir.Value, least: int) -> int:
        """Return the rank of x, at least `least`, or decline."""
        rank = self.facts.rank(x)
        if rank is None:
            raise Declined("unknown_type_or_rank", tensor=label(x))
        if rank < least:
            raise Declined(
                "unsupported_rank", tensor=label(x), rank=rank, what="this normalisation", supported=f"{least} or more"
            )
        return rank
