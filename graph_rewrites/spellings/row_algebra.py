"""What the steps of a normalisation that is written out compute, whatever their order.

Each step is a polynomial in x whose coefficients depend on nothing but the mean and the mean square of x's row: so a
variance may be the mean of squared deviations or E[x^2] - E[x]^2, and 1 / sqrt(v) may be exp(-0.5 * log(v)). The
coefficients are held as numbers, for some means and variances at once; a formula is recognised by comparing them.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir

from normfuse.graph_rewrites.engine.facts import Facts, label
from normfuse.graph_rewrites.engine.matching import only_rounds
from normfuse.graph_rewrites.engine.rule import axes_of
from normfuse.graph_rewrites.engine.sites import Declined, Reason
from normfuse.graph_rewrites.spellings.clamps import unseen_bound

Array: TypeAlias = "np.ndarray[Any, np.dtype[np.float64]]"

# The rows that formulas are compared on. The smallest variance comes first, next to which every epsilon is large. There
# is one near every bound that a deviation may be held above, however small, lest a row of zeros become 0 / 0, and large
# ones beyond what anything may be held below. No two means are as far from 0 in deviations: see `clamps`.
VARIANCE: Array = np.concatenate(
    [10.0 ** np.arange(-80, -8, 4), [1e-7, 1e-5, 1e-4, 1e-2, 0.1, 1, 7, 1e2, 1e4], 10.0 ** np.arange(8, 40, 4)]
)
_MEANS_IN_DEVIATIONS = np.array([0.7, -1.1, 1.3, -0.4, 1.7, 0.6, -0.9, 1.2, 0.5, -1.4, 0.8, 1.6])
MEAN: Array = np.sqrt(VARIANCE) * np.resize(_MEANS_IN_DEVIATIONS, VARIANCE.shape) * np.linspace(1, 1.07, len(VARIANCE))
SQUARE: Array = VARIANCE + MEAN**2
_ROWS = len(VARIANCE)
_NONE: Array = np.zeros(_ROWS)
# Numbers in float32 are rounded by half of this.
_TOLERANCE = 1e-6
# Enough for any spelling; what follows a normalisation is not its formula.
_MOST_STEPS = 64
_MOST_BETWEEN = 200


def close(a: Array, b: Array, size: Array | float = 0.0) -> bool:
    """True if the numbers are equal for all rows but for the rounding of constants; `size`: of their terms."""
    return bool((np.abs(a - b) <= _TOLERANCE * np.maximum(np.maximum(np.abs(a), np.abs(b)), size)).all())


class Layout(enum.Enum):
    """The shape of a step."""

    NUMBER = "one number"
    ROW = "as x, 1 where it is normalised"
    DROPPED = "as x, without the dimensions that are normalised"
    FULL = "as x"


@dataclasses.dataclass(frozen=True)
class Term:
    """One step: c0 + c1 * x + c2 * x^2."""

    coefficients: tuple[Array, Array, Array]
    layout: Layout
    depends: bool = False
    """It is computed from x."""
    varies: bool = False
    """A parameter is in it that may differ within a row."""
    absolute: bool = False
    """It is the absolute value of the polynomial."""
    squares: bool = False
    """The mean square is in it."""
    centred: bool = False
    """The mean is in it."""

    @property
    def degree(self) -> int:
        """The highest power of x."""
        return max(power for power in range(3) if power == 0 or self.coefficients[power].any())


def _number(value: float) -> Term:
    return Term((np.full(_ROWS, value), _NONE, _NONE), Layout.NUMBER)


class RowSteps:
    """The steps that follow from one x, which is normalised over one choice of axes."""

    def __init__(
        self, facts: Facts, graph: ir.Graph, x: ir.Value, axes: Sequence[int], through_quantization: bool
    ) -> None:
        """`graph`: where the steps are; x may come from outside."""
        self.x = x
        self._graph = graph
        self.axes = tuple(axes)
        self._facts = facts
        self._through = through_quantization
        self._terms: dict[ir.Value, Term | None] = {}
        self._parameters: dict[ir.Value, Array] = {}
        self._is_x: dict[ir.Value, bool] = {}
        #: Steps that could not be followed, with the reason.
        self.failures: dict[ir.Node, Reason] = {}
        #: The roots that are normalisations, whether or not they could be taken.
        self.normalised: set[ir.Node] = set()

    # What is asked of it

    def term(self, value: ir.Value) -> Term | None:
        """Return what a value is; None: it is not known."""
        if value not in self._terms:
            if len(self._terms) > _MOST_STEPS:
                return None
            self._terms[value] = None
            with np.errstate(all="ignore"):
                self._terms[value] = self._evaluate(value)
        return self._terms[value]

    def is_parameter(self, value: ir.Value) -> bool:
        """True for a tensor that does not depend on x."""
        return value in self._parameters

    def parameter(self, value: ir.Value) -> Array:
        """Return the numbers that stand for a parameter."""
        return self._parameters[value]

    def is_x(self, value: ir.Value) -> bool:
        """True for x itself, a copy of it, or x computed once more."""
        if value not in self._is_x:
            self._is_x[value] = self._facts.same(value, self.x)
        return self._is_x[value]

    def operands(self, node: ir.Node) -> list[ir.Value]:
        """Return the inputs that are data: shapes and axes are not."""
        count = 1 if node.op_type in _FIRST_IS_DATA or self._facts.transparent(node) else len(node.inputs)
        return [value for value in node.inputs[:count] if value is not None]

    def follows(self, node: ir.Node) -> bool:
        """True for a node that can be a step and is no constant."""
        constant = all(self._facts.scalar(value) is not None for value in node.outputs)
        return not constant and node.graph is self._graph and self._step(node) is not None

    # Evaluation

    def _evaluate(self, value: ir.Value) -> Term | None:
        if self.is_x(value):
            return Term((_NONE, np.ones(_ROWS), _NONE), Layout.FULL, depends=True)
        scalar = self._facts.scalar(value)
        if scalar is not None:
            return _number(self._exact(value, scalar))
        node = value.producer()
        if node is None or node.graph is not self._graph or self._facts.is_constant(value):
            return self._parameter(value)
        step = self._step(node)
        operands = [self.term(operand) for operand in self.operands(node)] if step is not None else []
        if step is None or (None in operands and not any(term is not None and term.depends for term in operands)):
            return None if self._follows_x(value) else self._parameter(value)
        known = [term for term in operands if term is not None]
        if len(known) < len(operands):
            return None
        if not any(term.depends for term in known):
            return self._parameter(value)
        try:
            return step(node, known)
        except Declined as declined:
            self.failures[node] = declined.reason
            return None

    def _exact(self, value: ir.Value, scalar: float) -> float:
        """Return the number, and for what is a count of elements up to rounding, or one divided by it, just that."""
        count = self._count
        for exact in (count, 1 / count) if count else ():
            if self._facts.equals(value, exact):
                return float(exact)
        return scalar

    @functools.cached_property
    def _count(self) -> int | None:
        """Return how many elements a row has."""
        shape = self._facts.shape(self.x)
        if shape is None:
            return None
        sizes = [
            size for axis in self.axes if -len(shape) <= axis < len(shape) and isinstance(size := shape[axis], int)
        ]
        return math.prod(sizes) if len(sizes) == len(self.axes) else None

    def _parameter(self, value: ir.Value) -> Term:
        known = next((other for other in self._parameters if self._facts.same(other, value)), None)
        if known is not None:
            self._parameters[value] = self._parameters[known]
        else:
            self._parameters[value] = np.random.default_rng(len(self._parameters)).uniform(0.5, 2, _ROWS)
        return Term((self._parameters[value], _NONE, _NONE), Layout.FULL, varies=True)

    def _follows_x(self, value: ir.Value) -> bool:
        """True if a value may have been computed from x."""
        first = self._facts.before(self._graph, self.x)
        open_values, seen = [value], {value}
        while open_values:
            node = open_values.pop().producer()
            if node is None or node.graph is not self._graph or self._facts.order(node) <= first:
                continue
            for source in node.inputs:
                if source is self.x or len(seen) > _MOST_BETWEEN:
                    return True
                if source is not None and source not in seen:
                    seen.add(source)
                    open_values.append(source)
        return False

    def _step(self, node: ir.Node) -> Callable[[ir.Node, list[Term]], Term] | None:
        if node.domain != "":
            return None
        if self._facts.transparent(node):
            return _repeat
        if self._through and (node.op_type == "QuantizeLinear" or only_rounds(self._facts, node)):
            return _repeat
        if node.op_type in _ELEMENTWISE:
            return _ELEMENTWISE[node.op_type]
        return {
            "Abs": self._absolute,
            "Clip": self._clip,
            "Max": self._largest,
            "Min": self._smallest,
            "Relu": self._relu,
            "Pow": self._power,
            "ReduceMean": self._reduce,
            "ReduceSum": self._reduce,
            "ReduceSumSquare": self._reduce,
            "ReduceL2": self._reduce,
            "Expand": self._expand,
            "Reshape": self._reshape,
            "Squeeze": self._squeeze,
            "Unsqueeze": self._unsqueeze,
        }.get(node.op_type)

    def _power(self, node: ir.Node, terms: list[Term]) -> Term:
        base, exponent = terms
        power = self._facts.scalar(node.inputs[1])
        if power is None or exponent.layout != Layout.NUMBER:
            raise Declined("parameter_not_constant", parameter=f"exponent {label(_input(node, 1))}", node=label(node))
        if self._facts.equals(node.inputs[1], 2):
            return _multiply(node, [base, base])
        if base.degree == 0 and not base.absolute:
            return _of_row(lambda numbers: np.asarray(numbers**power))(node, [base])
        if power == 1:
            return base
        detail = f"its exponent {label(_input(node, 1))} is not the constant 2"
        raise Declined("different_formula", node=label(node), kind="a normalisation", detail=detail)

    def _clip(self, node: ir.Node, terms: list[Term]) -> Term:
        low, high = self._facts.clip_bounds(node)
        if low is None or high is None:
            bound = label(_input(node, 1 if low is None else 2))
            raise Declined("parameter_not_constant", parameter=f"bound {bound}", node=label(node))
        return _clamp(self._facts, node, terms, low, high)

    def _relu(self, node: ir.Node, terms: list[Term]) -> Term:
        return _clamp(self._facts, node, terms, 0.0, math.inf)

    def _absolute(self, node: ir.Node, terms: list[Term]) -> Term:
        if terms[0].degree > 0:
            return dataclasses.replace(terms[0], absolute=True)
        _clamp(self._facts, node, terms, 0.0, math.inf)
        return _of_row(np.abs)(node, terms)

    def _largest(self, node: ir.Node, terms: list[Term]) -> Term:
        return self._extremum(node, terms, -1.0)

    def _smallest(self, node: ir.Node, terms: list[Term]) -> Term:
        return self._extremum(node, terms, 1.0)

    def _extremum(self, node: ir.Node, terms: list[Term], sign: float) -> Term:
        """Return the smallest of the terms, or for a `sign` of -1 the largest."""
        _require_plain(node, terms)
        if any(term.degree > 0 for term in terms):
            raise _other(node, "it is no linear function of x")
        least = terms[0]
        for term in terms[1:]:
            a, b = (sign * one.coefficients[0] for one in (least, term))
            if Layout.NUMBER in (least.layout, term.layout):
                clamped, bound = (a, b) if term.layout == Layout.NUMBER else (b, a)
                _require_seen(self._facts, node, clamped, -math.inf, bound[0])
            elif (a <= b).all() or (b <= a).all():
                raise _other(node, "one of its inputs may be the smaller or the larger one in other rows only")
            least = Term((sign * np.minimum(a, b), _NONE, _NONE), **_joined(node, [least, term]))
        return least

    # Reductions and what puts the dimensions back

    def _reduce(self, node: ir.Node, terms: list[Term]) -> Term:
        (term,) = terms
        if term.layout != Layout.FULL or term.varies or term.absolute:
            raise _other(node, f"it reduces {label(_input(node, 0))}, which is no function of x alone")
        if self._axes_of(node) != self.axes:
            raise _other(node, "mean and variance are taken over different axes")
        if node.op_type in ("ReduceSumSquare", "ReduceL2"):
            term = _multiply(node, [term, term])
        c0, c1, c2 = term.coefficients
        mean = c0 + c1 * MEAN + c2 * SQUARE
        if node.op_type != "ReduceMean":
            count = self._count
            if count is None:
                raise Declined("unknown_type_or_rank", tensor=label(self.x))
            mean = mean * count
        if node.op_type == "ReduceL2":
            mean = np.sqrt(mean)
        layout = Layout.ROW if self._keeps_dimensions(node) else Layout.DROPPED
        squares = term.squares or bool(c2.any())
        centred = term.centred or not squares
        return Term((mean, _NONE, _NONE), layout, depends=True, squares=squares, centred=centred)

    def _axes_of(self, node: ir.Node) -> tuple[int, ...]:
        return axes_of(self._facts, node, self.x)

    def _keeps_dimensions(self, node: ir.Node) -> bool:
        """True if what is reduced meets x as it should: also where the first or all dimensions are gone."""
        rank = self._facts.rank(self.x)
        if node.attributes.get_int("keepdims", 1):
            return True
        axes = sorted(axis % rank for axis in self.axes) if rank else []
        return axes == list(range(len(axes))) and bool(axes)

    def _kept(self) -> list[Any] | None:
        """Return the shape of a mean with its dimensions kept."""
        shape = self._facts.dimensions(self.x)
        if shape is None:
            return None
        normalised = {axis % len(shape) for axis in self.axes}
        return [1 if axis in normalised else dim for axis, dim in enumerate(shape)]

    def _unsqueeze(self, node: ir.Node, terms: list[Term]) -> Term:
        (term,) = terms
        if term.layout != Layout.DROPPED or self._axes_of(node) != self.axes:
            raise _other(node, "it does not put the reduced dimensions back")
        return dataclasses.replace(term, layout=Layout.ROW)

    def _squeeze(self, node: ir.Node, terms: list[Term]) -> Term:
        (term,) = terms
        given = "axes" in node.attributes or len(node.inputs) > 1
        if term.layout != Layout.ROW or not given or self._axes_of(node) != self.axes:
            raise _other(node, "it drops other dimensions than the reduced ones")
        return dataclasses.replace(term, layout=Layout.DROPPED)

    def _reshape(self, node: ir.Node, terms: list[Term]) -> Term:
        (term,) = terms
        kept, target = self._kept(), self._facts.elements(node.inputs[1])
        if term.layout not in (Layout.ROW, Layout.DROPPED) or kept is None or target is None or target.ndim != 1:
            raise _other(node, "it gives a shape that is not known")
        first = min(axis % len(kept) for axis in self.axes)
        # The number of elements settles one dimension.
        fits, open_dims = len(target) == len(kept), 0
        for index, (size, dim) in enumerate(zip(target, kept, strict=False)):
            copied = size == 0 and (index < first or term.layout == Layout.ROW)
            if size == dim or copied:
                continue
            open_dims += 1
            differs = isinstance(size, int) and isinstance(dim, int) and size != -1
            fits = fits and not differs and open_dims <= 1
        if not fits:
            raise _other(node, "it does not certainly put the reduced dimensions back")
        return dataclasses.replace(term, layout=Layout.ROW)

    def _expand(self, node: ir.Node, terms: list[Term]) -> Term:
        (term,) = terms
        source = _input(node, 0).producer()
        if term.layout != Layout.ROW:
            raise _other(node, "it repeats what has no reduced dimensions")
        if source is not None and source.op_type == "Reshape" and self._facts.same(source.inputs[1], node.inputs[1]):
            return term  # it has that shape already
        shape, target = self._facts.dimensions(self.x), self._facts.elements(node.inputs[1])
        if shape is None or target is None or len(target) > len(shape):
            raise _other(node, "it gives a shape that is not known")
        for size, dim in zip(reversed(target), reversed(shape), strict=False):
            if size not in (1, dim):
                raise _other(node, "it does not certainly give the shape of x")
        return term


def _input(node: ir.Node, index: int) -> ir.Value:
    value = node.inputs[index]
    assert value is not None
    return value


def _other(node: ir.Node, detail: str) -> Declined:
    return Declined("different_formula", node=label(node), kind="a step of a normalisation", detail=detail)


def _joined(node: ir.Node, terms: Sequence[Term]) -> dict[str, Any]:
    """Return what the result of an element-wise step has from its operands; declines if their shapes do not meet."""
    layouts = {term.layout for term in terms} - {Layout.NUMBER}
    if Layout.DROPPED in layouts and len(layouts) > 1:
        raise Declined("attribute_value", attribute="keepdims", node=_reduction(node), value=0, supported="1")
    layout = next((kind for kind in (Layout.FULL, Layout.ROW, Layout.DROPPED) if kind in layouts), Layout.NUMBER)
    flags = {name: any(getattr(term, name) for term in terms) for name in ("depends", "varies", "squares", "centred")}
    return {"layout": layout, **flags}


def _reduction(node: ir.Node) -> str:
    """Return the name of the reduction behind which dimensions are missing, as far as it stands right before."""
    producers = [value.producer() for value in node.inputs if value is not None]
    found = [label(one) for one in producers if one is not None and one.op_type.startswith("Reduce")]
    return found[0] if found else f"the reduction in front of {label(node)}"


def _require_plain(node: ir.Node, terms: Sequence[Term]) -> None:
    if any(term.absolute for term in terms):
        raise _other(node, "it takes an absolute value further than its square")


def _repeat(node: ir.Node, terms: list[Term]) -> Term:
    return terms[0]


def _add(node: ir.Node, terms: list[Term]) -> Term:
    _require_plain(node, terms)
    sums = [np.sum([term.coefficients[power] for term in terms], axis=0) for power in range(3)]
    return Term((sums[0], sums[1], sums[2]), **_joined(node, terms))


def _negate(node: ir.Node, terms: list[Term]) -> Term:
    _require_plain(node, terms)
    c0, c1, c2 = terms[0].coefficients
    return dataclasses.replace(terms[0], coefficients=(-c0, -c1, -c2))


def _subtract(node: ir.Node, terms: list[Term]) -> Term:
    return _add(node, [terms[0], _negate(node, [terms[1]])])


def _multiply(node: ir.Node, terms: list[Term]) -> Term:
    a, b = terms
    if not (a.absolute and b.absolute and a.coefficients == b.coefficients):
        _require_plain(node, terms)
    if a.degree + b.degree > 2:
        raise _other(node, "x is raised to more than its square")
    product = [_NONE, _NONE, _NONE]
    for i, first in enumerate(a.coefficients):
        for j, second in enumerate(b.coefficients):
            if first.any() and second.any():  # 0 times infinity is 0 here
                product[i + j] = product[i + j] + first * second
    return Term((product[0], product[1], product[2]), **_joined(node, terms))


def _divide(node: ir.Node, terms: list[Term]) -> Term:
    if terms[1].degree > 0:
        raise _other(node, f"it divides by {label(_input(node, 1))}, which differs within a row")
    return _multiply(node, [terms[0], _of_row(np.reciprocal)(node, [terms[1]])])


def _of_row(function: Callable[[Array], Array]) -> Callable[[ir.Node, list[Term]], Term]:
    def step(node: ir.Node, terms: list[Term]) -> Term:
        (term,) = terms
        _require_plain(node, terms)
        if term.degree > 0:
            raise _other(node, "it is no linear function of x")
        return dataclasses.replace(term, coefficients=(np.asarray(function(term.coefficients[0])), _NONE, _NONE))

    return step


def _require_seen(facts: Facts, node: ir.Node, numbers: Array, low: float, high: float) -> None:
    """Decline where a clamp changes none of the rows that formulas are compared on, and may change others."""
    bound = unseen_bound(numbers, low, high, facts.dtype(node.outputs[0]))
    if bound is not None:
        raise _other(node, f"it holds a statistic within {abs(bound):g}, which a row may pass")


def _clamp(facts: Facts, node: ir.Node, terms: list[Term], low: float, high: float) -> Term:
    clamped = _of_row(lambda numbers: np.clip(numbers, low, high))(node, terms)
    _require_seen(facts, node, terms[0].coefficients[0], low, high)
    return clamped


_ELEMENTWISE: dict[str, Callable[[ir.Node, list[Term]], Term]] = {
    "Add": _add,
    "Div": _divide,
    "Exp": _of_row(np.exp),
    "Log": _of_row(np.log),
    "Mul": _multiply,
    "Neg": _negate,
    "Reciprocal": _of_row(np.reciprocal),
    "Sqrt": _of_row(np.sqrt),
    "Sub": _subtract,
    "Sum": _add,
}
#: Operators that take a mean, or what is one but for a factor.
REDUCTIONS = ("ReduceMean", "ReduceSum", "ReduceSumSquare", "ReduceL2")
_SHAPED = ("Expand", "Reshape", "Squeeze", "Unsqueeze")
_CLAMPS = ("Max", "Min", "Relu")
_FIRST_IS_DATA = (*REDUCTIONS, *_SHAPED, "Clip", "QuantizeLinear", "DequantizeLinear")
#: Every operator that can be a step.
STEPS = frozenset({*_ELEMENTWISE, *_FIRST_IS_DATA, *_CLAMPS, "Abs", "Pow", "Cast", "CastLike", "Identity", "Dropout"})
