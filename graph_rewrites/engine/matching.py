"""The matcher of patterns, with the freedom that exporters' spellings need.

A pattern is matched

* with the operands of commutative operators in either order, by backtracking (not by 2^n copies of the pattern),
* with constants seen through Cast, Reshape, Expand ... and compared within the rounding of their own type,
* with equal nodes taken as one value (`Facts.same`),
* through Identity, Dropout and float casts, as long as no cast narrows what the pattern's `x` has,
* and, if asked for, through a QuantizeLinear -> DequantizeLinear pair inside the chain.

A match is refused, with its reason, when a value inside it is used elsewhere or is a graph output.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any, TypeAlias

import onnx_ir as ir

from normfuse.graph_rewrites.engine.facts import CASTS, Facts, label
from normfuse.graph_rewrites.engine.fused import tensors_of
from normfuse.graph_rewrites.engine.pattern import (
    AnyOf,
    AnyValue,
    Constant,
    GraphPattern,
    Match,
    NodePattern,
    Output,
    ValuePattern,
    Variable,
)
from normfuse.graph_rewrites.engine.sites import Declined
from normfuse.spec import OPERATOR_DOMAIN

#: What a match binds for the statistics that stay in use, and the outputs of FusedNormalization that replace them.
USED_STATISTICS = {"used_mean": 2, "used_inverse": 3}
#: The same for the standard deviation, which is one over the last of these outputs.
USED_DEVIATION = "used_deviation"

_COMMUTATIVE = frozenset({"Add", "Mul", "Max", "Min"})
_WIDTH = {ir.DataType.FLOAT16: 1, ir.DataType.BFLOAT16: 1, ir.DataType.FLOAT: 2, ir.DataType.DOUBLE: 3}

# QuantizeLinear -> DequantizeLinear pairs in a row that one step of a chain is looked for behind.
_MOST_PAIRS = 4

# What is still to be matched: a linked list, so that alternatives share their tail.
_Goals: TypeAlias = "tuple[ValuePattern | None, ir.Value | None, _Goals] | None"


class ChainMatcher:
    """Matches a pattern with one root against the nodes that end in a given node."""

    def __init__(self, pattern: GraphPattern, facts: Facts, through_quantization: bool = False) -> None:
        self._pattern = pattern
        self._facts = facts
        self._through_quantization = through_quantization

    def match(self, root: ir.Node) -> Match:
        """Match the nodes ending in `root`; the result carries a `Reason` when a match was refused."""
        attempt = _Attempt(self._facts, root, self._through_quantization)
        result = Match()
        if not attempt.solve_root(self._pattern.root):
            result.add(*attempt.best)
            return result.fail(attempt.best_failure, attempt.best[-1] if attempt.best else root)
        result.add(*attempt.nodes.values(), *attempt.extra)
        result.bindings.update(attempt.bindings)
        result.outputs = [_output(attempt.nodes, output) for output in self._pattern.outputs]
        try:
            require_closed(result.nodes, result.outputs)
            x = attempt.bindings.get("x")
            if isinstance(x, ir.Value):
                require_width(self._facts, x, attempt.extra, attempt.constant_rank)
        except Declined as declined:
            return result.fail(declined.reason, root)
        return result


def require_closed(nodes: Sequence[ir.Node], outputs: Sequence[ir.Value | None]) -> None:
    """Decline if a value that one of the nodes computes, and that is none of the outputs, is needed by others."""
    inside = set(nodes)
    kept = set(outputs)
    for node in nodes:
        # A fused node that grows keeps its further outputs: they are carried over.
        for value in node.outputs[:1] if node.domain == OPERATOR_DOMAIN else node.outputs:
            if value in kept:
                continue
            consumers = value.consumers()
            between: dict[str, Any] = {"value": value.name, "first": label(node)}
            second = next((label(consumer) for consumer in consumers if consumer in inside), "its consumer")
            if value.is_graph_output():
                raise Declined("is_graph_output", second=second, **between)
            outside = [consumer for consumer in consumers if consumer not in inside]
            if any(use.graph is not node.graph or vanishing(use, inside) is None for use in outside):
                raise Declined("has_other_consumers", second=second, **between)


def require_width(facts: Facts, x: ir.Value, nodes: Sequence[ir.Node], constant_rank: int) -> None:
    """Decline if the nodes compute in less than x has, or in float64, or if a constant adds dimensions.

    `constant_rank`: the most dimensions that a constant of one element among them has.
    """
    dtype = facts.dtype(x)
    for cast in nodes:
        target = facts.cast_target(cast) if cast.op_type in CASTS else None
        if target in _WIDTH and dtype in _WIDTH:
            if _WIDTH[target] < _WIDTH[dtype] or (target != dtype and _WIDTH[target] == _WIDTH[dtype]):
                raise Declined(
                    "different_formula",
                    node=label(cast),
                    kind="a part of the chain",
                    detail=f"it narrows the chain from {dtype} to {target}",
                )
            if target == ir.DataType.DOUBLE:
                raise Declined("unsupported_type", tensor=label(cast.outputs[0]), type=target, what="a fused chain")
    if constant_rank > 1:
        rank = facts.rank(x)
        if rank is None:
            raise Declined("unknown_type_or_rank", tensor=label(x))
        if rank < constant_rank:
            shape = [1] * constant_rank
            raise Declined("shape_mismatch", tensor="a constant of the chain", shape=shape, x_shape=facts.shape(x))


def is_used_outside(value: ir.Value, inside: Collection[ir.Node]) -> bool:
    """True if the value is needed by anything but the nodes inside."""
    outside = (consumer for consumer in value.consumers() if consumer not in inside)
    return value.is_graph_output() or any(
        consumer.graph is not value.graph or vanishing(consumer, inside) is None for consumer in outside
    )


def operator_name(node: ir.Node) -> str:
    """Return the operator that a node is for a pattern: a Sum of two is an Add."""
    return "Add" if node.op_type == "Sum" and node.domain == "" and len(node.inputs) == 2 else node.op_type


def is_dead(node: ir.Node) -> bool:
    """True for an ONNX node none of whose outputs is used: older exporters leave such behind."""
    return node.domain in ("", "com.microsoft") and all(
        not output.uses() and not output.is_graph_output() for output in node.outputs
    )


def vanishing(node: ir.Node, inside: Collection[ir.Node], depth: int = 4) -> list[ir.Node] | None:
    """Return the node and what follows from it if only nodes `inside` need any of it; None if anything else does.

    Such are CastLike nodes that give a constant of the chain its type, and Reciprocal nodes that nothing uses.
    """
    if (
        depth == 0
        or node.domain not in ("", "com.microsoft")
        or any(output.is_graph_output() for output in node.outputs)
    ):
        return None
    found = [node]
    for consumer in dict.fromkeys(consumer for output in node.outputs for consumer in output.consumers()):
        if consumer not in inside:
            further = vanishing(consumer, inside, depth - 1) if consumer.graph is node.graph else None
            if further is None:
                return None
            found += further
    return found


def _output(nodes: dict[NodePattern, ir.Node], output: Output) -> ir.Value | None:
    """Return the value of a pattern's output; None for an optional output that the node leaves off."""
    values = nodes[output.node].outputs
    return values[output.index] if output.index < len(values) else None


class _Attempt:
    """The state of one match: a depth-first search with an undo log."""

    def __init__(self, facts: Facts, root: ir.Node, through_quantization: bool) -> None:
        self._facts = facts
        self._root = root
        self._graph = root.graph
        self._through_quantization = through_quantization
        self.nodes: dict[NodePattern, ir.Node] = {}
        self.extra: list[ir.Node] = []
        self.bindings: dict[str, Any] = {}
        self.constant_rank = 0
        self._chosen: dict[AnyOf, ir.Value] = {}
        self._undo: list[tuple[dict[Any, Any] | list[ir.Node], Any, Any]] = []
        self.best: tuple[ir.Node, ...] = ()
        self.best_failure = ""

    # The undo log

    def _set(self, mapping: dict[Any, Any], key: Any, value: Any) -> None:
        self._undo.append((mapping, key, mapping.get(key, _Attempt)))
        mapping[key] = value

    def _push(self, node: ir.Node) -> None:
        self._undo.append((self.extra, None, None))
        self.extra.append(node)

    def _rollback(self, mark: int) -> None:
        while len(self._undo) > mark:
            container, key, value = self._undo.pop()
            if isinstance(container, list):
                container.pop()
            elif value is _Attempt:
                del container[key]
            else:
                container[key] = value

    def _fail(self, why: str) -> bool:
        depth = len(self.nodes) + len(self.extra)
        if depth > len(self.best):
            self.best = (*self.nodes.values(), *self.extra)
            self.best_failure = why
        return False

    # The search

    def solve_root(self, root: NodePattern) -> bool:
        """Match the pattern's last node against the root node and everything before it."""
        return self._node(root, self._root, None)

    def _solve(self, goals: _Goals) -> bool:
        if goals is None:
            return True
        expected, value, rest = goals
        if expected is None:
            return self._solve(rest) if value is None else self._fail(f"an input more than expected, {label(value)}")
        if isinstance(expected, AnyValue):
            return self._solve(rest)
        if isinstance(expected, AnyOf):
            return self._alternatives(expected, value, rest)
        if value is None:
            return self._fail("an input is missing")
        if isinstance(expected, Constant):
            return self._constant(expected, value, rest)
        if isinstance(expected, Output):
            return self._node_output(expected, value, rest)
        return self._bind(expected.name, value) and self._solve(rest)

    def _alternatives(self, expected: AnyOf, value: ir.Value | None, rest: _Goals) -> bool:
        chosen = self._chosen.get(expected)
        if chosen is not None and value is not None and not self._facts.same(chosen, value):
            # A pattern that stands in two places is one value: else a factor with a scale in one place and without it
            # in the other would do.
            return self._fail(f"{label(value)} where {label(chosen)} is expected")
        if chosen is None and value is not None:
            self._set(self._chosen, expected, value)
        for choice in expected.alternatives:
            mark = len(self._undo)
            if self._solve((choice, value, rest)):
                return True
            self._rollback(mark)
        return False

    def _constant(self, expected: Constant, value: ir.Value, rest: _Goals) -> bool:
        if not self._facts.equals(value, expected.value):
            return self._fail(f"{label(value)} is not the constant {expected.value}")
        array = self._facts.constant(value)
        assert array is not None
        before, self.constant_rank = self.constant_rank, max(self.constant_rank, array.ndim)
        if self._solve(rest):
            return True
        self.constant_rank = before
        return False

    def _bind(self, name: str | None, value: ir.Value) -> bool:
        if name is None:
            return True
        bound = self.bindings.get(name)
        if bound is None or bound is value:
            if bound is None:
                self._set(self.bindings, name, value)
            return True
        if not isinstance(bound, ir.Value) or not self._facts.same(bound, value):
            return self._fail(
                f"{label(value)} where {label(bound) if isinstance(bound, ir.Value) else bound} is expected"
            )
        if self._facts.strip(bound) is self._facts.strip(value):
            # One place reads the tensor itself, another a wider copy of it: the tensor itself is what x is.
            self._set(self.bindings, name, self._facts.strip(value))
        return True

    def _node_output(self, expected: Output, value: ir.Value, rest: _Goals) -> bool:
        mark = len(self._undo)
        pairs = 0
        while True:
            node = value.producer()
            if node is None or node.graph is not self._graph:
                self._rollback(mark)
                return self._fail(f"{label(value)} is not computed by {expected.node}")
            if value.index() == expected.index and self._produced(expected, node, value, rest):
                return True
            skipped, source = self._through(node)
            pairs += len(skipped) > 1
            if source is None or pairs > _MOST_PAIRS:
                self._rollback(mark)
                return False
            for repeater in skipped:
                if repeater not in self.extra:
                    self._push(repeater)
            value = source

    def _produced(self, expected: Output, node: ir.Node, value: ir.Value, rest: _Goals) -> bool:
        """Match the node itself, and then the rest; on failure everything is as before."""
        bound = self.nodes.get(expected.node)
        if bound is None:
            return self._node(expected.node, node, rest)
        if bound is not node and not self._facts.same(bound.outputs[expected.index], value):
            return False
        mark = len(self._undo)
        if bound is not node and node not in self.extra:
            self._push(node)
        if self._solve(rest):
            return True
        self._rollback(mark)
        return False

    def _through(self, node: ir.Node) -> tuple[Sequence[ir.Node], ir.Value | None]:
        """Return the nodes that may be skipped with this one as the last, and what they repeat; None: it may not."""
        source = node.inputs[0] if node.inputs else None
        if source is None:
            return (), None
        if self._facts.transparent(node):
            return (node,), source
        if self._through_quantization and node.op_type == "DequantizeLinear":
            quantize = source.producer()
            if (
                quantize is not None
                and quantize.op_type == "QuantizeLinear"
                and quantize.inputs[0] is not None
                and same_grid(quantize, node, self._facts)
            ):
                return (node, quantize), quantize.inputs[0]
        return (), None

    def _node(self, expected: NodePattern, node: ir.Node, rest: _Goals) -> bool:
        if operator_name(node) not in expected.op_types or node.domain not in expected.domains:
            return self._fail(f"{label(node)} where {expected} is expected")
        mark = len(self._undo)
        if not self._attributes(expected, node) or (
            len(node.inputs) > len(expected.inputs) and not expected.allow_other_inputs
        ):
            self._rollback(mark)
            return self._fail(f"{label(node)} has other inputs or attributes than {expected} of the chain")
        self._set(self.nodes, expected, node)
        for name, value in zip(expected.outputs, node.outputs, strict=False):
            if not self._bind(name, value):
                self._rollback(mark)
                return False
        tensors = tensors_of(node) if expected.tensors else {}
        for name, pattern in expected.tensors.items():
            rest = (pattern, tensors.get(name), rest)
        bound = len(self._undo)
        for operands in _orders(expected):
            goals = rest
            inputs: list[ir.Value | None] = [*node.inputs, *[None] * (len(operands) - len(node.inputs))]
            for operand, given in reversed(list(zip(operands, inputs, strict=False))):
                goals = (operand, given, goals)
            if self._solve(_structure_first(goals, len(operands), rest)):
                return True
            self._rollback(bound)
        self._rollback(mark)
        return False

    def _attributes(self, expected: NodePattern, node: ir.Node) -> bool:
        for name, wanted in expected.attributes.items():
            actual = node.attributes.get(name)
            if actual is None or actual.is_ref():
                return False
            value = tuple(actual.value) if isinstance(actual.value, list | tuple) else actual.value
            if value != wanted:
                return False
        return True


def _orders(expected: NodePattern) -> Iterator[list[ValuePattern | None]]:
    yield list(expected.inputs)
    if str(expected) in _COMMUTATIVE and len(expected.inputs) == 2 and expected.domains == ("",):
        yield list(reversed(expected.inputs))


def _structure_first(goals: _Goals, count: int, rest: _Goals) -> _Goals:
    """Reorder a node's goals: computed operands and constants before variables, which match anything."""
    operands = []
    for _ in range(count):
        assert goals is not None
        operands.append(goals[:2])
        goals = goals[2]
    operands.sort(key=lambda goal: isinstance(goal[0], Variable))
    result = rest
    for expected, value in reversed(operands):
        result = (expected, value, result)
    return result


def only_rounds(facts: Facts, node: ir.Node) -> bool:
    """True for a DequantizeLinear right behind the QuantizeLinear that it undoes."""
    source = node.inputs[0].producer() if node.op_type == "DequantizeLinear" and node.inputs[0] is not None else None
    return source is not None and source.op_type == "QuantizeLinear" and same_grid(source, node, facts)


def same_grid(quantize: ir.Node, dequantize: ir.Node, facts: Facts) -> bool:
    """True if the pair only rounds: both nodes have the same scale, zero point and granularity."""
    pairs = [(node.inputs[1], node.inputs[2] if len(node.inputs) > 2 else None) for node in (quantize, dequantize)]
    return facts.same(pairs[0][0], pairs[1][0]) and facts.same(pairs[0][1], pairs[1][1])
