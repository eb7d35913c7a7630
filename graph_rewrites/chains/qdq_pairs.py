"""Pairs of QuantizeLinear and DequantizeLinear beside a fused node: one step of it, with the bits of both nodes.

A chain that reads the integers of a QuantizeLinear of the same parameters begins with the pair, and one whose integers
a DequantizeLinear reads ends with it, so that it can go on.

Between the two there may be a Clip of the integers, as Brevitas writes one for fewer bits than it stores. As
dequantised numbers are in the order of the integers, it becomes a Clip of these.

Pairs of 8 bits without a Clip stay two nodes. Chains from and to bytes, which sum integers and look results up in
tables, are faster than chains with a pair, and what is around them may be run in integers by ONNX Runtime. Of other
integers it runs in integers only what moves elements.

What stands between pairs of such integers without a normalisation is better left to the execution provider, which makes
one chain of any number of sums, products and activations: see `require_no_chain_before`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from normfuse.graph_rewrites.chains.chains_behind import require_float32
from normfuse.graph_rewrites.engine.element_types import integers_of, type_name
from normfuse.graph_rewrites.engine.facts import label
from normfuse.graph_rewrites.engine.fused import Fused
from normfuse.graph_rewrites.engine.host_fusions import (
    require_no_bytes_before,
    require_no_bytes_behind,
    require_no_chain_before,
    require_no_integers_before,
    require_no_integers_behind,
)
from normfuse.graph_rewrites.engine.rule import FusionRule, clipped_or_not, dequantize_linear, fused_of, quantize_linear
from normfuse.graph_rewrites.engine.sites import Declined
from normfuse.spec import ProgramStep

# float8 is left: whoever has kernels for it wants the two nodes.
_TAKEN = frozenset({*integers_of(2), *integers_of(4), *integers_of(16)})
_CLIPPED = frozenset({*integers_of(8), *integers_of(16)})
_Parameters = Sequence[ir.Value | None]
_OTHER = "the node at the other end has other parameters"


class _Pair(FusionRule):
    """What both rules ask of a pair, one of whose nodes is a step of the fused node already."""

    spellings = ("FusedNormalization", "FusedActivation")

    def take(
        self,
        fused: Fused,
        step: ProgramStep,
        node: ir.Node,
        ends: tuple[ir.Value, ir.Value],
        integers: tuple[ir.Value, ir.Value | None],
    ) -> None:
        """Make a pair of the first or last step and of the node at the other end, or decline.

        `ends`: what is quantised and what is dequantised, or in the place of one that is a step what has its shape.
        `integers`: what lies between, and the Clip of it, where there is one.
        """
        quantized, clipped = integers
        dtype = self.facts.dtype(quantized)
        parameters = (*node.inputs[1:3], None)[:2]
        self._require_same(fused, step, node, parameters)
        self._require_one_step(parameters[0], ends)
        bounds = None if clipped is None else self._bounds(clipped, dtype, parameters)
        if dtype is None or (bounds is None and dtype not in _TAKEN):
            detail = f"a pair of {type_name(dtype) if dtype else 'an unknown type'} is faster as two nodes"
            raise Declined("not_profitable", node=label(node), detail=detail)
        layout = {name: step[name] for name in ("axis", "block_size")}
        if parameters[1] is None:
            layout["type"] = type_name(dtype)
        before = step is fused.first
        for name in step.labels:
            del fused.inputs[name]
        if before:
            fused.first = None
        else:
            layout["saturate"] = step["saturate"]
            fused.last = None
        if node.op_type == "QuantizeLinear":
            layout["saturate"] = node.attributes.get_int("saturate", 1)
        fused.pair(parameters, before=before, bounds=bounds, **layout)

    def _bounds(self, clipped: ir.Value, dtype: ir.DataType | None, parameters: _Parameters) -> tuple[float, float]:
        """Return what the bounds of a Clip of integers stand for."""
        clip = clipped.producer()
        assert clip is not None
        if dtype is None or dtype not in _CLIPPED:
            raise Declined("unsupported_type", tensor=label(clipped), type=dtype, what="a Clip in a pair")
        scale = self.facts.scalar(parameters[0])
        zero = 0.0 if parameters[1] is None else self.facts.scalar(parameters[1])
        if scale is None or zero is None or not scale > 0:
            detail = "between the two is a Clip, and the scale is not one positive number"
            raise Declined("different_formula", node=label(clip), kind="part of a pair", detail=detail)
        ends = [float(dtype.min), float(dtype.max)]
        for index, value in enumerate(clip.inputs[1:3]):
            bound = None if value is None else self.facts.scalar(value)
            if value is not None and bound is None:
                raise Declined("parameter_not_constant", parameter=label(value), node=label(clip))
            ends[index] = ends[index] if bound is None else bound
        with np.errstate(over="ignore"):
            low, high = (float(np.float32(end - zero) * np.float32(scale)) for end in ends)
        if not np.isfinite(low) or not np.isfinite(high):
            detail = "what its bounds stand for overflows"
            raise Declined("different_formula", node=label(clip), kind="part of a pair", detail=detail)
        return low, high

    def _require_same(self, fused: Fused, step: ProgramStep, node: ir.Node, parameters: _Parameters) -> None:
        own = [fused.inputs.get(str(step.arguments.get(name, ""))) for name in ("scale", "zero_point")]
        layout = (node.attributes.get_int("axis", 1), node.attributes.get_int("block_size", 0))
        if self.facts.static_shape(parameters[0]) in ((), (1,)):
            layout = (1, layout[1])
        same = all(self.facts.same(value, other) for value, other in zip(own, parameters, strict=True))
        if not same or layout != (step["axis"], step["block_size"]):
            raise Declined("different_formula", node=label(node), kind="one end of a pair", detail=_OTHER)
        for value in parameters:
            if value is not None and not self.facts.is_constant(value):
                raise Declined("parameter_not_constant", parameter=label(value), node=label(node))

    def _require_one_step(self, scale: ir.Value | None, ends: tuple[ir.Value, ir.Value]) -> None:
        for value in ends:
            # Between 16-bit floats two nodes round more often than one step.
            if self.require_float(value) != ir.DataType.FLOAT:
                what = "a pair of QuantizeLinear and DequantizeLinear"
                raise Declined("unsupported_type", tensor=label(value), type=self.facts.dtype(value), what=what)
        if self.facts.static_shape(scale) in ((), (1,)):
            return
        # Its axis, and blocks, are of d as it leaves the chain.
        shape, whole = map(self.facts.shape, ends)
        if shape is None or whole is None:
            raise Declined("unknown_type_or_rank", tensor=label(ends[shape is not None]))
        if list(shape) != list(whole):
            raise Declined("shape_mismatch", tensor=label(ends[0]), shape=shape, x_shape=whole)


class PairBehind(_Pair):
    """The dequantisation of a result that is quantised with the same parameters.

    Before::

        Y = DequantizeLinear(FusedNormalization(..., y_scale, y_zero_point), y_scale, y_zero_point)

    After::

        Y = FusedNormalization(..., y_scale, y_zero_point, steps="...; FakeQuantize ...")
    """

    def pattern(self, op: Any) -> Any:
        return dequantize_linear(op, clipped_or_not(op, fused_of(op, self.spelling)))

    def check(self, root: ir.Node, inner: ir.Value, dequantized: ir.Value, clipped: ir.Value | None = None) -> Fused:
        fused = Fused.of(inner)
        if fused.last is None or not fused.quantizes:
            raise Declined("unsupported_operator", op_type=root.op_type, where=f"behind {label(root)}")
        if self.facts.rank(dequantized) is None:
            # ONNX Runtime takes a custom operator's result of another type than its last input for a tensor without
            # dimensions where its shape is not known.
            raise Declined("unknown_type_or_rank", tensor=label(dequantized))
        require_no_integers_behind(self.facts, dequantized)
        if clipped is not None:
            require_no_bytes_behind(dequantized)
        self.take(fused, fused.last, root, (dequantized, dequantized), (inner, clipped))
        return fused


class PairInFront(_Pair):
    """The quantisation of what a chain dequantises with the same parameters.

    Before::

        Y = FusedNormalization(QuantizeLinear(x, x_scale, x_zero_point), x_scale, x_zero_point, ...)

    After::

        Y = FusedNormalization(x, x_scale, x_zero_point, ..., steps="FakeQuantize ...; ...")
    """

    def pattern(self, op: Any, x: Any) -> Any:
        return fused_of(op, self.spelling, clipped_or_not(op, quantize_linear(op, x)))

    def check(
        self, root: ir.Node, x: ir.Value, inner: ir.Value, quantized: ir.Value, clipped: ir.Value | None = None
    ) -> Fused:
        fused, node = Fused.of(inner), quantized.producer()
        assert node is not None
        read = quantized if clipped is None else clipped
        if fused.first is None or sum(value is read for value in root.inputs) > 1:
            # Read twice, they are better kept by the execution provider than written and read.
            raise Declined("unsupported_operator", op_type=node.op_type, where=f"in front of {label(root)}")
        require_float32(node)
        require_no_integers_before(self.facts, x)
        require_no_chain_before(x, node)
        if clipped is not None:
            if fused.core is not None:  # activations stand behind it
                raise Declined("unsupported_operator", op_type="Clip", where=f"in front of {label(root)}")
            require_no_bytes_before(x)
        self.take(fused, fused.first, node, (x, inner), (quantized, clipped))
        fused.inputs["X"] = x
        return fused
