"""What all rules share: a pattern, a check that declines with a reason, and a rewrite into an ai.normfuse node."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import onnx_ir as ir

from normfuse.graph_rewrites.engine.element_types import FLOAT_TYPES
from normfuse.graph_rewrites.engine.facts import Facts, label
from normfuse.graph_rewrites.engine.fused import Fused
from normfuse.graph_rewrites.engine.matching import ChainMatcher
from normfuse.graph_rewrites.engine.pattern import (
    GraphPattern,
    Match,
    Matcher,
    Mismatch,
    Variable,
    any_of,
    graph_pattern,
    node_of,
)
from normfuse.graph_rewrites.engine.sites import Declined
from normfuse.spec import OPERATOR_DOMAIN


@dataclasses.dataclass(frozen=True)
class Replacement:
    """What a rule puts in the place of a match."""

    match: Match
    outputs: Sequence[ir.Value]
    """For each output of the match."""
    nodes: Sequence[ir.Node]
    initializers: Sequence[ir.Value]


class FusionRule:
    """Base class of all rules.

    A subclass has a docstring with a Before/After sketch, and two methods:

    * ``pattern(op, x, ...)`` writes what is looked for (see `pattern.OpBuilder`); its further parameters are variables;
    * ``check(root, x, ...)`` is given the last node and what the match bound. It returns the new node's configuration,
      or declines by raising `Declined`. The node's first outputs stand for those of the pattern, or what ``results``
      returns.
    """

    #: Spellings of one rule that end in different operators: a pattern has one root. ``self.spelling`` tells
    #: ``pattern`` which one to write.
    spellings: ClassVar[Sequence[str]] = ("",)

    #: The last nodes of a graph are tried first: a match may be part of a larger one.
    outermost_first: ClassVar[bool] = False

    pattern: Callable[..., Any]
    check: Callable[..., Fused]

    def __init__(self, facts: Facts, spelling: str = "", through_quantization: bool = False) -> None:
        self.name = type(self).__name__
        self.facts = facts
        self.spelling = spelling
        self.through_quantization = through_quantization
        self.graph_pattern = pattern_of(type(self), spelling)  # type: ignore[arg-type] # a class has a hash
        self._matcher = self.matcher()

    def matcher(self) -> Matcher:
        """Return what matches the rule."""
        return ChainMatcher(self.graph_pattern, self.facts, self.through_quantization)

    def match(self, root: ir.Node) -> Match:
        """Match the nodes that end in `root`, and check what was found."""
        match = self._matcher.match(root)
        if match:
            match.bindings = dict.fromkeys(self.graph_pattern.variables) | match.bindings
            try:
                match.found = self.check(root, **match.bindings)
            except Mismatch as mismatch:
                match.fail(mismatch.reason, *mismatch.at)
        return match

    def replacement(self, match: Match) -> Replacement | None:
        """Return what takes the place of a match; None, and a failed match, if the rule finds that it cannot."""
        tape = ir.tape.Tape()
        try:
            outputs = self.results(match.found.emit(tape))
        except Mismatch as mismatch:
            match.fail(mismatch.reason, *mismatch.at)
            return None
        return Replacement(match, outputs, tuple(tape.nodes), tuple(tape.initializers))

    def results(self, made: Sequence[ir.Value]) -> Sequence[ir.Value]:
        """Return what stands for the outputs of the pattern, of all outputs of a node that `check` returned."""
        return made[: len(self.graph_pattern.outputs)]

    # What checks have in common

    def counted_from_end(self, axes: Sequence[int], value: ir.Value) -> tuple[int, ...]:
        """Return those axes of `value` that can be counted from the end, as -1, -2 ..."""
        rank = self.facts.rank(value)
        return tuple(axis if axis < 0 or rank is None else axis - rank for axis in axes)

    def require_float(self, value: ir.Value, what: str = "a fused node") -> ir.DataType:
        """Return the element type of `value`, one of the operators' float types, or decline."""
        dtype = self.facts.dtype(value)
        if dtype is None:
            raise Declined("unknown_type_or_rank", tensor=label(value))
        if dtype not in FLOAT_TYPES:
            raise Declined("unsupported_type", tensor=label(value), type=dtype, what=what)
        return dtype

    def require_one_type(self, x: ir.Value, operand: ir.Value, op_type: str) -> None:
        """Decline unless both operands of an `op_type` have the same float type."""
        if self.require_float(x) != self.require_float(operand):
            raise Declined(
                "unsupported_type",
                tensor=label(operand),
                type=self.facts.dtype(operand),
                what=f"{op_type} with an operand of another type",
            )

    def require_scalar(self, value: ir.Value, parameter: str, node: ir.Node) -> float:
        """Return the value of a constant of one element, or decline."""
        scalar = self.facts.scalar(value)
        if scalar is None:
            if self.facts.constant(value) is not None:
                raise Declined(
                    "different_formula",
                    node=label(node),
                    kind="a part of the chain",
                    detail=f"its {parameter} {label(value)} is not a single number",
                )
            raise Declined("parameter_not_constant", parameter=f"{parameter} {label(value)}", node=label(node))
        return scalar

    def reduced_axes(
        self, name: str, source: ir.Value, bindings: Mapping[str, Any], *, keepdims: bool = True
    ) -> tuple[int, ...]:
        """Return the axes of a mean of `source`, which a pattern of `mean_of` bound to `name`, in canonical form.

        Axes are sorted; negative when they are the last ones, otherwise counted from the front where the rank is known.

        Raises:
            Declined: keepdims is 0 (and that makes a difference to the caller), the axes are not constant, or the sum
                is not divided by their number.
        """
        node = bindings[name].producer()
        assert node is not None
        if keepdims and node.attributes.get_int("keepdims", 1) != 1:
            raise Declined("attribute_value", attribute="keepdims", node=label(node), value=0, supported="1")
        axes = axes_of(self.facts, node, source)
        divisor, factor = bindings.get(f"{name}_divisor"), bindings.get(f"{name}_factor")
        if divisor is not None:
            self._require_count(node, divisor, self._count(source, axes), "divided")
        if factor is not None:
            self._require_count(node, factor, 1 / self._count(source, axes), "multiplied")
        return axes

    def _count(self, source: ir.Value, axes: Sequence[int]) -> int:
        """Return how many elements of `source` a mean over `axes` is taken of."""
        shape = self.facts.shape(source)
        sizes = [] if shape is None else [size for axis in axes if isinstance(size := shape[axis], int)]
        if shape is None or len(sizes) < len(axes) or 0 in sizes:
            raise Declined("unknown_type_or_rank", tensor=label(source))
        return math.prod(sizes)

    def _require_count(self, node: ir.Node, given: ir.Value, wanted: float, what: str) -> None:
        """Decline unless a sum is divided, or multiplied, by what makes it a mean."""
        number = self.require_scalar(given, "divisor", node)
        if not self.facts.equals(given, wanted):
            detail = f"the sum is {what} by {number:g} and not by {wanted:g}"
            raise Declined("different_formula", node=label(node), kind="a mean", detail=detail)


def axes_of(facts: Facts, node: ir.Node, source: ir.Value) -> tuple[int, ...]:
    """Return the axes that a node such as ReduceMean or Unsqueeze names, in canonical form for the rank of `source`.

    Raises:
        Declined: they are not constant.
    """
    rank = facts.rank(source)
    attribute = node.attributes.get("axes")
    axes: Sequence[int] | None = None
    if attribute is not None:
        axes = attribute.as_ints() if not attribute.is_ref() else None
    elif len(node.inputs) > 1 and node.inputs[1] is not None:
        array = facts.constant(node.inputs[1])
        axes = None if array is None else [int(axis) for axis in array.ravel()]
        if axes is None:
            raise Declined("parameter_not_constant", parameter=f"axes {label(node.inputs[1])}", node=label(node))
    else:
        axes = []
    if axes is None:
        raise Declined("parameter_not_constant", parameter="attribute axes", node=label(node))
    if not axes:
        if node.attributes.get_int("noop_with_empty_axes", 0):
            raise Declined("different_formula", node=label(node), kind="a mean", detail="without axes it does nothing")
        if rank is None:
            raise Declined("unknown_type_or_rank", tensor=label(source))
        axes = range(rank)
    return canonical_axes(axes, rank, source)


def canonical_axes(axes: Sequence[int], rank: int | None, source: ir.Value) -> tuple[int, ...]:
    """Return sorted axes without duplicates: negative if they are the last ones, else non-negative if possible."""
    if rank is None:
        if len({axis < 0 for axis in axes}) > 1:
            raise Declined("unknown_type_or_rank", tensor=label(source))
        return tuple(sorted(set(axes)))
    if any(not -rank <= axis < rank for axis in axes):
        raise Declined("shape_mismatch", tensor=f"axes {list(axes)}", shape=f"rank {rank}", x_shape=label(source))
    positive = sorted({axis % rank for axis in axes})
    if positive == list(range(rank - len(positive), rank)):
        return tuple(range(-len(positive), 0))
    return tuple(positive)


@functools.cache
def pattern_of(rule_type: type[FusionRule], spelling: str) -> GraphPattern:
    """Return the rule's pattern, built once: it says nothing about a model."""
    rule = rule_type.__new__(rule_type)
    rule.spelling = spelling
    return graph_pattern(rule.pattern)


# Building blocks of patterns


def quantize_linear(op: Any, x: Any) -> Any:
    """Return the pattern of a QuantizeLinear, ONNX's or, for types that ONNX had later, ONNX Runtime's own."""
    node = node_of(("", "com.microsoft"), ("QuantizeLinear",))
    return node(x, _allow_other_inputs=True, _outputs=["quantized"])


def dequantize_linear(op: Any, x: Any) -> Any:
    """Return the pattern of a DequantizeLinear, likewise."""
    node = node_of(("", "com.microsoft"), ("DequantizeLinear",))
    return node(x, _allow_other_inputs=True, _outputs=["dequantized"])


def clipped_or_not(op: Any, x: Any) -> Any:
    """Return the pattern of integers, and of a Clip of them."""
    return any_of(x, op.Clip(x, _allow_other_inputs=True, _outputs=["clipped"]))


def fused_of(op: Any, operator: str, *inputs: Any, **tensors: Any) -> Any:
    """Return the pattern of a node of that operator of ours that was fused already: X, and other tensors by label."""
    build = fused_normalization if operator == "FusedNormalization" else fused_activation
    return build(op, *inputs, output="inner", **tensors)


def fused_normalization(op: Any, *inputs: Any, output: str = "normalized", **tensors: Any) -> Any:
    """Return the pattern of a normalisation that was fused already: X, and other tensors by label."""
    return op.FusedNormalization(
        *inputs, _domain=OPERATOR_DOMAIN, _allow_other_inputs=True, _outputs=[output], _tensors=tensors
    )


def fused_activation(op: Any, *inputs: Any, output: str = "activated", **tensors: Any) -> Any:
    """Return the pattern of an activation that was fused already, likewise."""
    return op.FusedActivation(
        *inputs, _domain=OPERATOR_DOMAIN, _allow_other_inputs=True, _outputs=[output], _tensors=tensors
    )


def require_groups(facts: Facts, x: ir.Value, groups: int, node: ir.Node) -> int:
    """Return the number of groups that the channels of x are normalised in by `node`, or decline."""
    shape = facts.shape(x)
    if shape is None or len(shape) < 2:
        raise Declined("unknown_type_or_rank", tensor=label(x))
    channels = shape[1]
    if groups <= 0 or (isinstance(channels, int) and channels % groups):
        name = "groups" if "groups" in node.attributes else "num_groups"
        supported = f"a divisor of {channels}"
        raise Declined("attribute_value", attribute=name, node=label(node), value=groups, supported=supported)
    return groups


def require_restored(
    facts: Facts, root: ir.Node, kind: str, x: ir.Value, reshaped: ir.Value, restoring: ir.Value
) -> None:
    """Decline unless `root`, a Reshape to `restoring` of a tensor shaped as `reshaped`, gives x's shape back."""
    node = _shape_behind(restoring)
    if node is not None and facts.same(node.inputs[0], x):
        return
    shape, target, inferred = facts.shape(x), facts.constant(restoring), facts.shape(root.outputs[0])
    if shape is None:
        raise Declined("unknown_type_or_rank", tensor=label(x))
    if target is not None and len(target) == len(shape) and int((target == -1).sum()) <= 1:
        repeated = _repeated(facts, x, reshaped)
        given = zip(target, shape, strict=True)
        if all(size == -1 or size == dim or (size == 0 and i in repeated) for i, (size, dim) in enumerate(given)):
            return
    if target is None and inferred is not None and len(inferred) == len(shape):
        known = zip(inferred, shape, strict=True)
        if all(size == dim and is_known(size) for size, dim in known):
            return
    raise Declined(
        "different_formula",
        node=label(root),
        kind=kind,
        detail="the last Reshape does not certainly give back the shape before the first",
    )


def _repeated(facts: Facts, x: ir.Value, reshaped: ir.Value) -> set[int]:
    """Return the dimensions that are the same in x and in what x is reshaped to: a 0 in a shape stands for them."""
    before, after, node = facts.shape(x), facts.shape(reshaped), reshaped.producer()
    target = facts.constant(node.inputs[1]) if node is not None and len(node.inputs) > 1 else None
    same = set() if target is None else {index for index, size in enumerate(target) if size == 0}
    if before is not None and after is not None:
        same |= {i for i, (p, q) in enumerate(zip(before, after, strict=False)) if p == q and is_known(p)}
    return same


def _shape_behind(value: ir.Value) -> ir.Node | None:
    """Return the Shape that gives the value, unless it leaves dimensions off; TensorFlow casts it there and back."""
    node = value.producer()
    while (
        node is not None and node.op_type in ("Cast", "Identity") and node.domain == "" and node.inputs[0] is not None
    ):
        node = node.inputs[0].producer()
    if node is None or node.op_type != "Shape" or node.domain != "" or "end" in node.attributes:
        return None
    return node if node.attributes.get_int("start", 0) == 0 else None


def is_known(dim: int | ir.SymbolicDim) -> bool:
    """True for a dimension that is a number, or has a name."""
    return isinstance(dim, int) or dim.value is not None


def square_of(op: Any, x: Any) -> Any:
    """Return the pattern of x squared."""
    return any_of(op.Pow(x, 2), op.Mul(x, x))


def _mean(op: Any, reduce_mean: Any, reduce_sum: Any, x: Any, name: str) -> Any:
    divisor = Variable(f"{name}_divisor")
    factor = Variable(f"{name}_factor")
    total = reduce_sum(x, _allow_other_inputs=True, _outputs=[name])
    forms = [op.Div(total, divisor), op.Mul(total, factor)]
    if reduce_mean is not None:
        forms.insert(0, reduce_mean(x, _allow_other_inputs=True, _outputs=[name]))
    return any_of(*forms)


def mean_of(op: Any, x: Any, name: str) -> Any:
    """Return the pattern of a mean of x; binds `name`, and for a sum `name`_divisor or `name`_factor."""
    return _mean(op, op.ReduceMean, op.ReduceSum, x, name)


def mean_square_of(op: Any, x: Any, name: str) -> Any:
    """Return the pattern of the mean of x squared over some axes; binds as `mean_of`."""
    return any_of(mean_of(op, square_of(op, x), name), _mean(op, None, op.ReduceSumSquare, x, name))
