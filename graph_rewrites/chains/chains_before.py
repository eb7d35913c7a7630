"""What joins a fused node from the front: dequantisation, the residual Add, and the bias Add."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from normfuse.graph_rewrites.engine.dequantization import dequantization_of, dequantize
from normfuse.graph_rewrites.engine.element_types import integers_of
from normfuse.graph_rewrites.engine.facts import label
from normfuse.graph_rewrites.engine.fused import Fused
from normfuse.graph_rewrites.engine.host_fusions import require_no_gemm
from normfuse.graph_rewrites.engine.labels import is_further
from normfuse.graph_rewrites.engine.matching import is_used_outside
from normfuse.graph_rewrites.engine.rule import FusionRule, fused_normalization, fused_of
from normfuse.graph_rewrites.engine.sites import Declined
from normfuse.spec import ProgramStep


class ResidualAdd(FusionRule):
    """The residual connection in front of a normalisation; its sum stays available as the second output.

    Before::

        sum = Add(x, residual)
        Y = FusedNormalization(sum, ...)

    After::

        Y, sum = FusedNormalization(x, ..., residual)
    """

    def pattern(self, op: Any, a: Any, b: Any) -> Any:
        total = op.Add(a, b, _outputs=["total"])
        return fused_normalization(op, total), total

    def check(self, root: ir.Node, a: ir.Value, b: ir.Value, total: ir.Value, normalized: ir.Value, **_: Any) -> Fused:
        fused = Fused.of(normalized)
        if fused.first is not None or fused.joined:
            raise Declined("unsupported_operator", op_type="Add", where=f"twice in front of {label(root)}")
        if fused.pairs_before and is_used_outside(total, [root]):
            # The output sum is what is normalised.
            first = label(total.producer() or root)
            raise Declined("has_other_consumers", value=total.name, first=first, second=label(root))
        x, other, operand = self._roles(a, b, total)
        self.require_one_type(x, other, "Add")
        fused.inputs["X"] = x
        fused.put("Add", operand, other, 0, before=True)
        return fused

    def _roles(self, a: ir.Value, b: ir.Value, total: ir.Value) -> tuple[ir.Value, ir.Value, str]:
        """Return X, the other operand and its label: X has the sum's rank; a constant vector is a bias."""
        require_no_gemm(self.facts, a, b)
        for x, other in ((a, b), (b, a)):
            if self.facts.is_constant(x):
                continue
            rank, rank_other = self.facts.rank(x), self.facts.rank(other)
            if self.facts.is_constant(other) and rank_other is not None and rank_other <= 1:
                self.facts.require_fits(other, x, "residual_bias", (-1,))
                return x, other, "residual_bias"
            if rank is not None and rank_other is not None and rank >= rank_other:
                return x, other, "residual"
        raise Declined("unknown_type_or_rank", tensor=label(total))


class RequantizedSum(ResidualAdd):
    """The residual connection as quantisers write it: its sum is quantised, and dequantised for the normalisation.

    A sum of bytes, or one that the next residual connection reads too, is faster as a chain of its own.

    Before::

        sum = QuantizeLinear(Add(x, residual), sum_scale, sum_zero_point)
        Y = FusedNormalization(sum, ..., x_scale=sum_scale, x_zero_point=sum_zero_point)

    After::

        Y = FusedNormalization(x, ..., residual, ..., sum_scale, sum_zero_point)
    """

    spellings = ("zero_point", "no_zero_point")

    def pattern(self, op: Any, a: Any, b: Any, sum_scale: Any, sum_zero_point: Any) -> Any:
        total = op.Add(a, b, _outputs=["total"])
        parameters = [sum_scale, sum_zero_point] if self.spelling == "zero_point" else [sum_scale]
        quantized = op.QuantizeLinear(total, *parameters, _outputs=["quantized"])
        return fused_normalization(op, quantized)

    def check(
        self, root: ir.Node, a: ir.Value, b: ir.Value, total: ir.Value, normalized: ir.Value, **named: Any
    ) -> Fused:
        fused = Fused.of(normalized)
        if self.facts.dtype(named["quantized"]) in integers_of(8):
            detail = "a sum of bytes is faster as a chain of its own"
            raise Declined("not_profitable", node=label(total.producer() or root), detail=detail)
        zero_point = named.get("sum_zero_point")
        if fused.first is None or fused.joined or fused.pairs_before or fused.has("sum_scale"):
            raise Declined("unsupported_operator", op_type="QuantizeLinear", where=f"in front of {label(root)}")
        for name, written, read in (
            ("scale", named["sum_scale"], fused.inputs["x_scale"]),
            ("zero point", zero_point, fused.inputs.get("x_zero_point")),
        ):
            if written is None and read is None:
                continue
            if self.facts.scalar(written) is None or not self.facts.same(written, read):
                detail = f"the {name} of its sum is not the same constant before and behind"
                raise Declined("different_formula", node=label(root), kind="a requantised sum", detail=detail)
        if any(value is not None and value.graph is not root.graph for value in (fused.inputs["x_scale"], zero_point)):
            # Before 1.31 ONNX Runtime shows a node in a subgraph no constants of the graph around it.
            raise Declined("parameter_not_constant", parameter="a scale from the graph around it", node=label(root))
        x, other, operand = self._roles(a, b, total)
        if operand != "residual" or self.require_float(x) != self.require_float(other):
            raise Declined("unsupported_operator", op_type="Add", where=f"of a bias in front of {label(root)}")
        scale = fused.inputs.pop("x_scale")
        fused.inputs.pop("x_zero_point", None)
        fused.first = None
        fused.inputs["X"] = x
        fused.before.clear()  # at most the type of a sum that was not quantised
        fused.put("Add", operand, other, 0, before=True)
        fused.requantize((scale, zero_point))
        return fused


class ResidualBias(FusionRule):
    """A bias that is added to one operand of the residual Add, as a linear layer in front of it leaves behind.

    Before::

        Y, sum = FusedNormalization(Add(x, bias), ..., residual)

    After::

        Y, sum = FusedNormalization(x, ..., residual, bias)
    """

    spellings = ("X", "residual")

    def pattern(self, op: Any, x: Any, bias: Any) -> Any:
        added = op.Add(x, bias, _outputs=["added"])
        if self.spelling == "X":
            return fused_normalization(op, added)
        return fused_normalization(op, residual=added)

    def check(self, root: ir.Node, x: ir.Value, bias: ir.Value, normalized: ir.Value, **_: Any) -> Fused:
        x, bias = self.facts.constant_last(x, bias)
        fused, tensor = Fused.of(normalized), self.spelling
        stepped = tensor == "X" and any(is_further(step.operand) for step in fused.joined)
        stepped = stepped or fused.pairs_before
        if not fused.has("residual") or fused.has("residual_bias", f"{tensor.lower()}_scale") or stepped:
            raise Declined("unsupported_operator", op_type="Add", where=f"twice in front of {label(root)}")
        if not self.facts.is_constant(bias) or (self.facts.rank(bias) or 0) > 1 or self.facts.is_constant(x):
            raise Declined("parameter_not_constant", parameter=label(bias), node=label(root))
        self.require_one_type(x, bias, "Add")
        require_no_gemm(self.facts, x, bias)
        self.facts.require_fits(bias, x, "residual_bias", (-1,))
        fused.inputs[tensor] = x
        fused.put("Add", "residual_bias", bias, len(fused.joined), before=True)
        return fused


class DequantizeTensor(FusionRule):
    """Dequantisation of the input, or of what a step reads.

    That is the residual, a gate, or scale and bias, which quantisers store as int8 and int32.

    Before::

        Y = FusedNormalization(DequantizeLinear(x, x_scale, x_zero_point), ...)

    After::

        Y = FusedNormalization(x, ..., x_scale, x_zero_point)
    """

    spellings = (
        *("FusedNormalization X", "FusedActivation X", "FusedNormalization residual"),
        *("FusedNormalization scale", "FusedNormalization bias"),
        *(
            f"{operator} operand_{index}"
            for operator in ("FusedNormalization", "FusedActivation")
            for index in range(4)
        ),
    )

    def pattern(self, op: Any, dequantized: Any) -> Any:
        operator, tensor = self.spelling.split()
        return fused_of(op, operator, **{tensor: dequantized})

    def check(self, root: ir.Node, dequantized: ir.Value, inner: ir.Value) -> Fused:
        fused, tensor = Fused.of(inner), self.spelling.split()[1]
        node = dequantization_of(dequantized)
        if tensor == "X" and fused.first is not None:
            raise Declined("unsupported_operator", op_type="DequantizeLinear", where=f"twice in front of {label(node)}")
        if tensor in ("scale", "bias") and not self.facts.is_constant(node.inputs[0]):
            raise Declined("parameter_not_constant", at=node, parameter=label(dequantized), node=label(node))
        if is_further(tensor):
            self._require_step(fused.step(tensor), node, root)
            if self.facts.rank(inner) is None:
                raise Declined("unknown_type_or_rank", tensor=label(inner))
        dequantize(self.facts, fused, node, tensor)
        return fused

    def _require_step(self, step: ProgramStep | None, node: ir.Node, root: ir.Node) -> None:
        if step is None or step.is_activation or self.facts.dtype(node.inputs[0]) in integers_of(8):
            # Sums and products of bytes have kernels of their own in ONNX Runtime.
            raise Declined("unsupported_operator", op_type=node.op_type, where=f"in front of {label(root)}")
