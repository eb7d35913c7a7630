"""Layer and RMS normalisation written out in elementary operators, in any spelling: see `row_algebra`."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import numpy as np
import onnx_ir as ir

from normfuse.graph_rewrites.engine.facts import Facts, label
from normfuse.graph_rewrites.engine.fused import Fused, new_constant
from normfuse.graph_rewrites.engine.matching import USED_DEVIATION, is_used_outside, require_closed, require_width
from normfuse.graph_rewrites.engine.pattern import Match, Matcher, node_of
from normfuse.graph_rewrites.engine.rule import FusionRule, axes_of
from normfuse.graph_rewrites.engine.sites import Declined, Reason
from normfuse.graph_rewrites.spellings.row_algebra import (
    MEAN,
    REDUCTIONS,
    SQUARE,
    STEPS,
    VARIANCE,
    Array,
    Layout,
    RowSteps,
    Term,
    close,
)

# What a normalisation can end in.
_ROOTS = ("Add", "Div", "Mul", "Sub", "Sum")
# What makes a mean of a sum, or gives it another shape, and how much of it there may be.
_SCALED = ("Div", "Mul", "Neg", "Sub")
_SHAPED = ("Cast", "Expand", "Identity", "Reshape", "Squeeze", "Unsqueeze")
_MOST_AFTER = 8
# How far before the square x is looked for: signs, factors and the subtraction of the mean.
_MOST_FACTORS = 5
# How far behind a mean square the end of the normalisation can be.
_MOST_BEHIND = 48
# More than the rounding of any float type.
_ROUNDING = 1e-2


@dataclasses.dataclass(frozen=True)
class _Formula:
    """scale * (x - mean) / (factor * deviation) + bias, with the mean or without it."""

    use_mean: bool
    epsilon: float
    epsilon_on: str
    scale: ir.Value | None
    bias: ir.Value | None
    factor: float = 1.0


@dataclasses.dataclass(frozen=True)
class _Found:
    """A normalisation in the graph."""

    steps: RowSteps
    formula: _Formula
    x: ir.Value
    nodes: tuple[ir.Node, ...]


class _Decomposed(FusionRule):
    """Base of the three rules below."""

    use_mean: ClassVar[bool | None] = True
    """With the mean subtracted, or not; None: either, divided by a multiple of the deviation."""

    def pattern(self, op: Any) -> Any:
        return node_of(("",), _ROOTS)(_allow_other_inputs=True, _outputs=["normalized"])

    def matcher(self) -> Matcher:
        return _RowMatcher(self.facts, self.use_mean, self.through_quantization)

    def check(self, root: ir.Node, x: ir.Value, found: _Found, **_: Any) -> Fused:
        self.require_float(x)
        formula, axes = found.formula, found.steps.axes
        if not formula.use_mean and _is_centred(self.facts, x):
            detail = "its input is centred before: it is a LayerNormalization that could not be fused as a whole"
            raise Declined("different_formula", node=label(root), kind="RMSNormalization", detail=detail)
        for what, parameter in (("scale", formula.scale), ("bias", formula.bias)):
            if parameter is not None:
                self.require_float(parameter)
                self.facts.require_fits(parameter, x, what, self.counted_from_end(axes, x))
        fused = Fused("FusedNormalization", {"X": x})
        fused.normalize(
            axes=axes,
            epsilon=formula.epsilon,
            epsilon_on=formula.epsilon_on,
            use_mean=int(formula.use_mean),
        )
        fused.put_affine(self._scale(found), formula.bias)
        return fused

    def _scale(self, found: _Found) -> ir.Value | None:
        return found.formula.scale


class DecomposedLayerNormalization(_Decomposed):
    """A layer normalisation (or instance normalisation, or MVN with an epsilon) spelled out in elementary operators.

    Before::

        mean = ReduceMean(x)
        d = Sub(x, mean)
        Y = Div(d, Sqrt(Add(ReduceMean(Pow(d, 2)), epsilon)))

    After::

        Y = FusedNormalization(x, steps="Normalize axes=... epsilon=...")
    """


class DecomposedRMSNormalization(_Decomposed):
    """RMS normalisation as T5, Llama and torch.rsqrt leave it.

    Before::

        Y = Mul(x, Reciprocal(Sqrt(Add(ReduceMean(Pow(x, 2)), epsilon))))

    After::

        Y = FusedNormalization(x, steps="Normalize axes=... epsilon=... use_mean=0")
    """

    use_mean = False


class MultipleOfNormalization(_Decomposed):
    """Layer and RMS normalisation by a multiple of the deviation, which goes into the scale.

    torch.std divides the sum of squares by n - 1, and a Euclidean norm by nothing. Tried behind the two above: what is
    one of theirs once a number behind it is counted in has no such scale. The largest match is taken, for one scale.

    Before::

        variance = Div(Mul(ReduceMean(Mul(d, d)), n), n - 1)
        Y = Div(Mul(d, scale), Add(Sqrt(variance), epsilon))

    After::

        Y = FusedNormalization(x, sqrt((n - 1) / n) * scale, steps="Normalize axes=... epsilon=... epsilon_on=stddev")
    """

    use_mean = None
    outermost_first = True

    def check(self, root: ir.Node, x: ir.Value, found: _Found, **others: Any) -> Fused:
        fused = super().check(root, x, found, **others)
        for parameter in (found.formula.scale, found.formula.bias):
            # One that is given at run time may be the next residual connection.
            if parameter is not None and self.facts.constant(parameter) is None:
                raise Declined("parameter_not_constant", parameter=label(parameter), node=label(root))
        if root.graph in self.facts.function_bodies:
            raise Declined("unsupported_operator", op_type=root.op_type, where="inside a function")
        exact, stored = self._product(found)
        if not np.isclose(stored.astype(np.float64), exact, rtol=_ROUNDING, atol=0).all():
            detail = f"its scale would be too large or too small for {stored.dtype}"
            raise Declined("different_formula", node=label(root), kind="a normalisation", detail=detail)
        return fused

    def _scale(self, found: _Found) -> ir.Value:
        return new_constant(self._product(found)[1], f"{found.nodes[0].outputs[0].name}.scale")

    def _product(self, found: _Found) -> tuple[Array, np.ndarray[Any, Any]]:
        """Return the scale divided by the factor, exactly and as it is stored."""
        scale, dtype = self.facts.constant(found.formula.scale), self.facts.dtype(found.x)
        if scale is None:
            assert dtype is not None
            scale = np.ones((), dtype.numpy())
        with np.errstate(all="ignore"):
            exact = np.asarray(scale.astype(np.float64) / found.formula.factor)
            return exact, exact.astype(scale.dtype)


class _RowMatcher:
    """Matches the nodes that end in a given node by what they compute."""

    def __init__(self, facts: Facts, use_mean: bool | None, through_quantization: bool) -> None:
        self._facts = facts
        self._use_mean = use_mean
        self._through = through_quantization
        self._graph: ir.Graph | None = None
        self._means: dict[ir.Node, list[ir.Node]] = {}
        self._steps: dict[tuple[ir.Value, tuple[int, ...]], RowSteps] = {}

    def match(self, root: ir.Node) -> Match:
        """Match the nodes ending in `root`; the result carries a `Reason` when a match was refused."""
        result = Match.none()
        if root.graph is not self._graph:
            self._graph = root.graph
            self._means, self._steps = _behind_mean_squares(self._facts, root.graph), {}
        for reduction in self._means.get(root, ()):
            for steps in self._of(reduction):
                found = self._match(steps, root)
                if found:
                    return found
                result = result if result.reason else found
        return result

    def _of(self, reduction: ir.Node) -> Iterator[RowSteps]:
        """Yield what a mean square may belong to: what is squared, and what that is the deviation of."""
        for x in _bases(self._facts, reduction):
            try:
                axes = axes_of(self._facts, reduction, x)
            except Declined:
                continue
            key = (x, axes)
            if key not in self._steps:
                assert reduction.graph is not None
                self._steps[key] = RowSteps(self._facts, reduction.graph, x, axes, self._through)
            yield self._steps[key]

    def _match(self, steps: RowSteps, root: ir.Node) -> Match:
        result = Match()
        nodes, leaves = _closure(steps, root)
        if steps.normalised & set(nodes[1:]) or len(nodes) > _MOST_BEHIND:
            return Match.none()  # something behind it
        result.add(*nodes)
        formula = self._formula(steps, root, nodes, leaves)
        if not isinstance(formula, _Formula):
            return result.fail(formula, root) if formula else Match.none()
        found = _Found(steps, formula, _one_of(self._facts, leaves, steps), tuple(nodes))
        kept = _used_statistics(self._facts, found, result)
        try:
            require_closed(result.nodes, [root.outputs[0], *kept.values()])
            require_width(self._facts, found.x, result.nodes, _constant_rank(self._facts, steps, nodes))
        except Declined as declined:
            return result.fail(declined.reason, root)
        result.bindings |= {"x": found.x, "found": found, "normalized": root.outputs[0], **kept}
        result.outputs.append(root.outputs[0])
        return result

    def _formula(
        self, steps: RowSteps, root: ir.Node, nodes: Sequence[ir.Node], leaves: Sequence[ir.Value]
    ) -> _Formula | Reason | None:
        """Return what the root computes, or in which way it is no normalisation; None: it does not look like one."""
        term = steps.term(root.outputs[0])
        if any(steps.term(value) is None for node in nodes for value in steps.operands(node)):
            term = None
        if term is None:
            failed = [steps.failures[node] for node in nodes if node in steps.failures]
            return failed[0] if failed and _takes_root(nodes) else None
        parameters = list(dict.fromkeys(leaf for leaf in leaves if steps.is_parameter(leaf)))
        if not term.squares or term.layout != Layout.FULL:
            return None
        kind = "LayerNormalization" if term.centred else "RMSNormalization"
        others = [parameter for parameter in parameters if not self._facts.is_constant(parameter)]
        if term.degree == 0 and others and root.op_type in ("Div", "Mul"):
            detail = f"it scales {label(others[0])}, which is not computed from {label(steps.x)}"
            return Reason("different_formula", node=label(root), kind=kind, detail=detail)
        if term.degree != 1:
            return None
        formula = _read(steps, term, parameters, multiple=self._use_mean is None)
        if isinstance(formula, _Formula):
            steps.normalised.add(root)
            return formula if self._use_mean in (None, formula.use_mean) else None
        if self._use_mean is None or isinstance(_read(steps, term, parameters, multiple=True), _Formula):
            return None  # left to the rule before, or to the one behind
        if others:
            return Reason("parameter_not_constant", parameter=f"epsilon {label(others[0])}", node=label(root))
        return Reason("different_formula", node=label(root), kind=kind, detail=formula)


def _read(steps: RowSteps, term: Term, parameters: Sequence[ir.Value], *, multiple: bool) -> _Formula | str:
    """Return the formula of a term that is linear in x, or in which way it is another one.

    `multiple`: for the one that divides by a multiple of the deviation.
    """
    c0, c1, _ = term.coefficients
    detail = "it is no (x - mean) / sqrt(variance + epsilon), nor x / sqrt(mean square + epsilon)"
    for scale in (None, *parameters):
        slope = c1 if scale is None else c1 / steps.parameter(scale)
        for bias in (None, *parameters):
            offset = c0 - (0 if bias is None else steps.parameter(bias))
            if len({scale, bias} - {None}) < len(parameters):
                continue
            if close(offset, -MEAN * c1, np.abs(c0)):
                use_mean, spread = True, VARIANCE
            elif close(offset, np.zeros_like(offset), np.abs(c0)):
                use_mean, spread = False, SQUARE
            else:
                continue
            factor = _factor(1 / slope, spread) if multiple else 1.0
            epsilon = _epsilon(1 / (slope * factor), spread)
            if isinstance(epsilon, tuple):
                return _Formula(use_mean, *epsilon, scale, bias, factor)
            detail = epsilon
    return detail


def _factor(deviation: Any, spread: Any) -> float:
    """Return how many times the standard deviation a deviation may be, an epsilon in it or beside it left out."""
    beside = float((deviation[-1] - deviation[0]) / (np.sqrt(spread[-1]) - np.sqrt(spread[0])))
    inside = float((deviation[-1] ** 2 - deviation[0] ** 2) / (spread[-1] - spread[0]))
    if beside > 0 and isinstance(_epsilon(deviation / beside, spread), tuple):
        return beside
    return math.sqrt(inside) if inside > 0 else 1.0


def _epsilon(deviation: Any, spread: Any) -> tuple[float, str] | str:
    """Return epsilon and where it is added in a standard deviation, or in which way that is something else."""
    if not (deviation > 0).all():
        return "its sign is turned round"
    inside = deviation[0] ** 2 - spread[0]
    beside = deviation[0] - np.sqrt(spread[0])
    if abs(inside) <= 1e-3 * spread[0]:
        inside = beside = 0.0
    if inside >= 0 and close(deviation**2, spread + inside):
        return _rounded(inside), "variance"
    if beside >= 0 and close(deviation, np.sqrt(spread) + beside):
        return _rounded(beside), "stddev"
    if close(deviation, np.maximum(np.sqrt(spread), deviation[0])) or close(
        deviation**2, np.maximum(spread, deviation[0] ** 2)
    ):
        return f"its deviation is held above {deviation[0]:g} by a maximum, which is no epsilon that is added"
    ratio = deviation[-1] / np.sqrt(spread[-1])
    return f"it does not divide by the standard deviation, but in a wide row by {ratio:g} times it"


def _rounded(epsilon: float) -> float:
    return float(np.float32(epsilon))


def _closure(steps: RowSteps, root: ir.Node) -> tuple[list[ir.Node], list[ir.Value]]:
    """Return the nodes between x and the root, the root first, and what they read: x and parameters."""
    nodes, leaves, open_nodes = [root], [], [root]
    while open_nodes and len(nodes) <= _MOST_BEHIND:
        for value in steps.operands(open_nodes.pop()):
            steps.term(value)
            producer = value.producer()
            if steps.is_x(value) or steps.is_parameter(value):
                leaves.append(value)
            elif producer is not None and producer not in nodes and steps.follows(producer):
                nodes.append(producer)
                open_nodes.append(producer)
    return nodes, leaves


def _one_of(facts: Facts, leaves: Sequence[ir.Value], steps: RowSteps) -> ir.Value:
    """Return what x is for all that reads it: where one place reads a wider copy, the tensor itself."""
    read = list(dict.fromkeys(leaf for leaf in leaves if steps.is_x(leaf)))
    if len(read) == 1 or len({facts.strip(value) for value in read}) > 1:
        return read[0]
    return facts.strip(read[0])


def _constant_rank(facts: Facts, steps: RowSteps, nodes: Sequence[ir.Node]) -> int:
    operands = [value for node in nodes for value in steps.operands(node)]
    arrays = [facts.constant(value) for value in operands if facts.scalar(value) is not None]
    return max((array.ndim for array in arrays if array is not None), default=0)


def _takes_root(nodes: Sequence[ir.Node]) -> bool:
    """True if a root, or a power, is among the steps."""
    return any(node.op_type in ("Sqrt", "Pow", "Exp", "ReduceL2") for node in nodes)


def _is_centred(facts: Facts, x: ir.Value) -> bool:
    """True for the deviations from a mean, of these or other rows, and multiples of them."""
    for part in _made_of(facts, x):
        node = _behind_copies(facts, part)
        if node is None or node.domain != "" or node.op_type not in ("Add", "Sub", "Sum"):
            continue
        averaged = [_averaged(facts, operand) for operand in node.inputs]
        if any(of is not None and any(facts.same(of, other) for other in node.inputs) for of in averaged):
            return True
    return False


def _averaged(facts: Facts, value: ir.Value | None) -> ir.Value | None:
    """Return what a value is the mean or sum of, but for a factor and its shape; None: it is no such."""
    for _ in range(_MOST_AFTER):
        node = value.producer() if value is not None else None
        if node is None or node.domain != "" or not node.inputs:
            return None
        if node.op_type in REDUCTIONS:
            return node.inputs[0]
        operands = _not_numbers(facts, node)
        if node.op_type not in _SHAPED and (node.op_type not in _SCALED or len(operands) != 1):
            return None
        value = operands[0]
    return None


def _used_statistics(facts: Facts, found: _Found, result: Match) -> dict[str, ir.Value]:
    """Return the statistics that others use, as `matching` names them.

    A Reciprocal behind the standard deviation that stands outside is taken into the match.
    """
    formula, steps = found.formula, found.steps
    spread = VARIANCE if formula.use_mean else SQUARE
    inside = (
        np.sqrt(spread + formula.epsilon) if formula.epsilon_on == "variance" else np.sqrt(spread) + formula.epsilon
    )
    statistics: dict[str, ir.Value] = {}
    for node in found.nodes[1:]:
        value, term = node.outputs[0], steps.term(node.outputs[0])
        if term is None or term.layout != Layout.ROW or facts.dtype(value) != ir.DataType.FLOAT:
            continue
        numbers = term.coefficients[0]
        for name, wanted in (("used_mean", MEAN), ("used_inverse", 1 / inside), (USED_DEVIATION, inside)):
            if not close(numbers, wanted):
                continue
            inverse = _reciprocal_behind(value, result) if name == USED_DEVIATION else None
            if inverse is not None:
                statistics.setdefault("used_inverse", inverse)
            if name not in statistics and is_used_outside(value, set(result.nodes)):
                statistics[name] = value
    return statistics


def _reciprocal_behind(root: ir.Value, result: Match) -> ir.Value | None:
    """Return what a Reciprocal of the root outside of the match gives, which joins the match."""
    for consumer in root.consumers():
        here = consumer.graph is root.graph and consumer not in result.nodes
        if here and consumer.op_type == "Reciprocal" and consumer.domain == "":
            result.add(consumer)
            return consumer.outputs[0]
    return None


# Where to look


def _bases(facts: Facts, reduction: ir.Node) -> list[ir.Value]:
    """Return what a mean of squares may be a statistic of: what is squared, or what that is made of (see below)."""
    summed = reduction.inputs[0]
    squared = _squared(facts, summed) if reduction.op_type in ("ReduceMean", "ReduceSum") else [summed]
    found: dict[ir.Value, None] = {}
    for value in squared:
        found.update(dict.fromkeys(_made_of(facts, value)))
    return list(found)


def _squared(facts: Facts, value: ir.Value | None, depth: int = _MOST_FACTORS) -> list[ir.Value]:
    """Return what is multiplied in a square, or in a sum of such."""
    node = _behind_copies(facts, value)
    if node is None or node.domain != "" or depth == 0:
        return []
    operands = _not_numbers(facts, node)
    if node.op_type == "Pow":
        return operands[:1]
    if node.op_type == "Mul" and len(operands) > 1:
        return operands
    if node.op_type in ("Add", "Div", "Mul", "Neg", "Sub", "Sum"):
        return [squared for operand in operands for squared in _squared(facts, operand, depth - 1)]
    return []


def _made_of(facts: Facts, value: ir.Value | None, depth: int = _MOST_FACTORS) -> list[ir.Value]:
    """Return what a value may be the deviation of, or a multiple, and last the value itself."""
    node = _behind_copies(facts, value)
    found = [] if value is None or _averaged(facts, value) is not None else [value]
    if node is None or node.domain != "" or depth == 0:
        return found
    operands = [operand for operand in _not_numbers(facts, node) if _averaged(facts, operand) is None]
    alone = len(operands) == 1 and node.op_type in ("Abs", "Add", "Div", "Mul", "Neg", "Sum")
    if alone or node.op_type == "Sub":
        return [*(base for operand in operands for base in _made_of(facts, operand, depth - 1)), *found]
    return found


def _not_numbers(facts: Facts, node: ir.Node) -> list[ir.Value]:
    return [value for value in node.inputs if value is not None and facts.scalar(value) is None]


def _behind_copies(facts: Facts, value: ir.Value | None) -> ir.Node | None:
    """Return the node that a value comes from, seen through copies and what only rounds it."""
    node = value.producer() if value is not None else None
    while node is not None and (facts.transparent(node) or node.op_type in ("QuantizeLinear", "DequantizeLinear")):
        node = node.inputs[0].producer() if node.inputs[0] is not None else None
    return node


def _behind_mean_squares(facts: Facts, graph: ir.Graph | None) -> dict[ir.Node, list[ir.Node]]:
    """Return the nodes that a normalisation may end in, each with the mean squares before it."""
    found: dict[ir.Node, list[ir.Node]] = {}
    for reduction in graph or ():
        if reduction.op_type in REDUCTIONS and reduction.domain == "" and _bases(facts, reduction):
            for node in _consumers(reduction):
                if node.op_type in _ROOTS:
                    found.setdefault(node, []).append(reduction)
    return found


def _consumers(first: ir.Node) -> list[ir.Node]:
    """Return the nodes behind the first one that can be steps of the same formula."""
    found = [first]
    for node in found:
        for consumer in dict.fromkeys(consumer for value in node.outputs for consumer in value.consumers()):
            step = consumer.domain == "" and consumer.op_type in STEPS and consumer.graph is first.graph
            if step and consumer not in found and len(found) < _MOST_BEHIND:
                found.append(consumer)
    return found
