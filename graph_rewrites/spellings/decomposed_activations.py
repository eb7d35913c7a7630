"""Activations written out in elementary operators, recognised by what they compute.

The nodes between one tensor x and a candidate are run in float64 on some thousand numbers and compared with formulas of
the activation table: so the order of the products does not matter, nor which identity an exporter used. What is within
3e-7 of max(1, |y|), two units in the last place of float32, is the same. Before that, numbers that GELU and HardSwish
are written with (such as sqrt(2 / pi) or 1/6) are made exact where they were rounded, to six digits or a 16-bit type.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, TypeAlias

import numpy as np
import onnx_ir as ir

from normfuse.graph_rewrites.engine.facts import Facts, label
from normfuse.graph_rewrites.engine.fused import Activation, Fused
from normfuse.graph_rewrites.engine.matching import only_rounds, require_closed, require_width
from normfuse.graph_rewrites.engine.pattern import Match, Matcher, node_of
from normfuse.graph_rewrites.engine.rule import FusionRule
from normfuse.graph_rewrites.engine.sites import Declined, Reason
from normfuse.graph_rewrites.spellings.clamps import unseen_bound
from normfuse.spec import ACTIVATIONS

Array: TypeAlias = "np.ndarray[Any, np.dtype[np.float64]]"

_ROOTS = ("Add", "Div", "Log", "Max", "Mul", "Neg", "Pow", "Sub", "Sum", "Where")
# Without one of these there is nothing but a polynomial.
_CORES = frozenset(
    {"Clip", "Cos", "Erf", "Exp", "HardSigmoid", "Log", "Max", "Min", "Relu", "Sigmoid", "Sin", "Softplus", "Tanh"}
    | {"Where"}
)
_MOST_NODES = 32
_MOST_BEHIND = 24
_TOLERANCE = 3e-7
# Beyond this an exponential may overflow: that of the cubic in GELU does at 10 in float32.
_FINITE_WITHIN = 10.0
# As near as this to an activation, in relation to max(1, |y|), something else is reported as looking like it.
_SIMILAR = 0.25

_SWISH_POINTS = (1.0, 1 / 16, 1 / 256, 4.0, 16.0)
_STEP = 1 / 64
# Beyond this nothing is a number of float32.
_LARGEST = 3.4e38
_COARSE: Array = np.array(
    [-29.0, -7.5, -4.0, -2.9, -2.0, -1.0, -0.3, -_STEP, 0.0, _STEP, 0.2, *_SWISH_POINTS, 1.7, 2.5, 3.1, 4.5, 8.0, 29.0]
)
_FINE: Array = np.concatenate([np.linspace(-32, 32, 1025), np.geomspace(1e-6, 1e4, 150), -np.geomspace(1e-6, 1e4, 150)])

# Numbers that exporters round, and how far from them a number may be by its type.
_CONSTANTS = (math.sqrt(2), math.sqrt(2 / math.pi), 0.044715, 0.044715 * math.sqrt(2 / math.pi), 1 / 3)
_ROUNDED = tuple(constant * factor for constant in _CONSTANTS for factor in (0.25, 0.5, 1, 2, 4))
_ROUNDING = {"float16": 1e-3, "bfloat16": 8e-3}
_SIX_DIGITS = 5e-6


def _sigmoid(x: Array) -> Array:
    # Not by tanh, which loses small results: their logarithm is taken too.
    return np.asarray(np.exp(np.minimum(x, 0)) / (1 + np.exp(-np.abs(x))))


def _softplus(x: Array) -> Array:
    return np.asarray(np.logaddexp(0.0, x))


_erf = np.vectorize(math.erf, otypes=[np.float64])


# What nodes compute


def _clip(node: ir.Node, inputs: Sequence[Any], facts: Facts) -> Array:
    low, high = (inputs[i] if len(inputs) > i and inputs[i] is not None else None for i in (1, 2))
    low = node.attributes.get_float("min", -math.inf) if low is None else low
    high = node.attributes.get_float("max", math.inf) if high is None else high
    return np.asarray(np.minimum(np.maximum(inputs[0], low), high))


def _hard_sigmoid(node: ir.Node, inputs: Sequence[Any], facts: Facts) -> Array:
    alpha, beta = (
        _exact(node.attributes.get_float(name, default), _SIX_DIGITS)
        for name, default in (("alpha", 0.2), ("beta", 0.5))
    )
    return np.asarray(np.clip(alpha * inputs[0] + beta, 0, 1))


def _plain(function: Callable[..., Any]) -> Callable[[ir.Node, Sequence[Any], Facts], Array]:
    return lambda node, inputs, facts: np.asarray(function(*inputs))


_FUNCTIONS: dict[str, Callable[[ir.Node, Sequence[Any], Facts], Array]] = {
    "Abs": _plain(np.abs),
    "Add": _plain(np.add),
    "Clip": _clip,
    "Cos": _plain(np.cos),
    "Div": _plain(np.divide),
    "Erf": _plain(_erf),
    "Exp": _plain(np.exp),
    "Greater": _plain(np.greater),
    "GreaterOrEqual": _plain(np.greater_equal),
    "HardSigmoid": _hard_sigmoid,
    "Less": _plain(np.less),
    "LessOrEqual": _plain(np.less_equal),
    "Log": _plain(np.log),
    "Max": lambda node, inputs, facts: np.asarray(np.maximum.reduce(np.broadcast_arrays(*inputs))),
    "Min": lambda node, inputs, facts: np.asarray(np.minimum.reduce(np.broadcast_arrays(*inputs))),
    "Mul": _plain(np.multiply),
    "Neg": _plain(np.negative),
    "Pow": _plain(np.power),
    "Reciprocal": _plain(np.reciprocal),
    "Relu": _plain(lambda x: np.maximum(x, 0)),
    "Sigmoid": _plain(_sigmoid),
    "Sin": _plain(np.sin),
    "Softplus": _plain(_softplus),
    "Sqrt": _plain(np.sqrt),
    "Sub": _plain(np.subtract),
    "Sum": lambda node, inputs, facts: np.asarray(sum(inputs)),
    "Tanh": _plain(np.tanh),
    "Where": _plain(np.where),
}


# What takes one of its inputs, or says which is larger. That a tensor is always on one side of a number is as good as a
# clamp there.
_COMPARING = ("Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Max", "Min")


def _exact(number: float, tolerance: float) -> float:
    """Return the number that an exporter rounded, or the number itself."""
    for exact in _ROUNDED:
        if math.isclose(abs(number), exact, rel_tol=tolerance):
            return math.copysign(exact, number)
    return number


@dataclasses.dataclass(frozen=True)
class _Region:
    """The nodes between x and a root, in graph order."""

    x: tuple[ir.Value, ...]
    """x, and what is the same tensor computed once more; or tensors that are not the same."""
    nodes: tuple[ir.Node, ...]
    facts: Facts
    through: bool
    results: dict[bool, Array] = dataclasses.field(default_factory=dict)

    def run(self, samples: Array, *, exact: bool) -> Array:
        """Return what the root gives for x; `exact`: with rounded constants made exact."""
        root = self._values(samples, exact)[self.nodes[-1].outputs[0]]
        return np.broadcast_to(np.asarray(root, np.float64), samples.shape)

    def _values(self, samples: Array, exact: bool) -> dict[ir.Value, Any]:
        known: dict[ir.Value, Any] = dict.fromkeys(self.x, samples)
        with np.errstate(all="ignore"):
            for node in self.nodes:
                inputs = [None if v is None else self._value(v, known, exact) for v in node.inputs]
                if _repeats(self.facts, node, self.through):
                    known[node.outputs[0]] = inputs[0]
                else:
                    known[node.outputs[0]] = _FUNCTIONS[node.op_type](node, inputs, self.facts)
        return known

    def has_unseen_bound(self, samples: Array) -> bool:
        """Whether a clamp or a comparison has one outcome for all samples, and might have another for others."""
        known = self._values(samples, exact=False)
        for node in self.nodes:
            inputs = [None if v is None else self._value(v, known, exact=False) for v in node.inputs]
            for values, low, high in _clamped(node, inputs, self.facts):
                if unseen_bound(values, low, high, self.facts.dtype(node.inputs[0])) is not None:
                    return True
        return False

    def coarse(self, exact: bool) -> Array:
        """Return what the root gives for the numbers of `_COARSE`."""
        if exact not in self.results:
            self.results[exact] = self.run(_COARSE, exact=exact)
        return self.results[exact]

    def _value(self, value: ir.Value, known: dict[ir.Value, Any], exact: bool) -> Any:
        if value in known:
            return known[value]
        number = self.facts.scalar(value)
        if number is None:  # the same as another one
            return next((found for other, found in known.items() if self.facts.same(other, value)), math.nan)
        array = self.facts.constant(value)
        return (
            _exact(number, _ROUNDING.get(str(array.dtype), _SIX_DIGITS) if array is not None else 0)
            if exact
            else number
        )

    def constants(self) -> list[float]:
        """Return the numbers among the nodes' inputs and attributes."""
        numbers = [self.facts.scalar(value) for node in self.nodes for value in node.inputs if value is not None]
        attributes = (
            node.attributes.get_float(name, 0.0)
            for node in self.nodes
            for name in ("min", "max")
            if name in node.attributes
        )
        found = {abs(number) for number in (*numbers, *attributes) if number is not None}
        return sorted(number for number in found if 0 < number < _LARGEST)

    def samples(self) -> Array:
        """Return numbers to compare on: everywhere, and around each place where the nodes may have a kink."""
        found = self.constants()
        constants = [number for number in found if number < 1e6]
        kinks = {a / b for a in constants for b in (1.0, *constants)} | {a * b for a in constants for b in constants}
        # What is clamped by a large number may be a multiple of x.
        far = np.multiply.outer(found[len(constants) :], np.geomspace(1e-4, 1e4, 33)).ravel()
        near = np.array([*sorted(kinks)[:200], *far])
        around = [sign * near * factor for sign in (1, -1) for factor in (0.999, 1.001, 1.03)]
        return np.concatenate([_FINE, *around])


def _clamped(node: ir.Node, inputs: Sequence[Any], facts: Facts) -> Iterator[tuple[Array, float, float]]:
    """Yield what a node clamps or compares, and the bounds where something else begins."""
    if node.op_type == "Relu":
        yield inputs[0], 0.0, math.inf
    elif node.op_type == "HardSigmoid":
        yield node.attributes.get_float("alpha", 0.2) * inputs[0] + node.attributes.get_float("beta", 0.5), 0.0, 1.0
    elif node.op_type == "Clip":
        low, high = (float(_clip(node, [end, *inputs[1:]], facts)) for end in (-math.inf, math.inf))
        yield inputs[0], low, high
    elif node.op_type in _COMPARING:
        first, *others = sorted(inputs, key=np.ndim, reverse=True)
        for other in others:
            # Of two tensors the difference; both its signs must have been seen.
            yield (first, float(other), float(other)) if not np.ndim(other) else (np.cbrt(first - other) + 1, 1.0, 1.0)


def _repeats(facts: Facts, node: ir.Node, through: bool) -> bool:
    if facts.transparent(node):
        return True
    return through and (node.op_type == "QuantizeLinear" or only_rounds(facts, node))


def _regions(facts: Facts, root: ir.Node, through: bool) -> Iterator[_Region]:
    """Yield what lies between the root and each single tensor that all of it is computed from, the nearest first.

    The last one has several tensors in place of x where the nodes have no such tensor in common.
    """
    nodes: list[ir.Node] = []
    open_values: list[ir.Value] = []
    again: dict[ir.Value, ir.Value] = {}  # what is computed once more
    node: ir.Node | None = root
    while node is not None and len(nodes) < _MOST_NODES:
        nodes.append(node)
        count = 1 if _repeats(facts, node, through) else len(node.inputs)
        for value in node.inputs[:count]:
            if value is None or facts.scalar(value) is not None or value in open_values:
                continue
            if facts.is_constant(value):
                return
            twin = next((other for other in open_values if facts.same(value, other)), None)
            if twin is None:
                open_values.append(value)
            else:
                again[value] = twin
        ordered = tuple(sorted(nodes, key=facts.order))
        leaves = (*open_values, *(value for value, twin in again.items() if twin in open_values))
        if len(open_values) == 1 and any(part.op_type in _CORES for part in nodes):
            yield _Region(leaves, ordered, facts, through)
        if not open_values:
            return
        latest = max(open_values, key=lambda value: facts.before(root.graph, value))  # type: ignore[arg-type]
        node = latest.producer()
        if node is None or node.graph is not root.graph or not _expandable(facts, node, through):
            if len(open_values) > 1:
                yield _Region(leaves, ordered, facts, through)
            return
        open_values.remove(latest)


def _expandable(facts: Facts, node: ir.Node, through: bool) -> bool:
    return (node.domain == "" and node.op_type in _FUNCTIONS) or _repeats(facts, node, through)


# Activations with their parameters, read off a few results


@dataclasses.dataclass(frozen=True)
class _Template:
    name: str
    fit: Callable[[Callable[[float], float]], tuple[float, ...] | None]
    """Takes the result for each number of `_COARSE`; the parameters that give the same, None: there are none."""
    rounded: bool = False
    """Its constants are made exact first."""
    usual: tuple[float, float] = (0.0, math.inf)
    """Where its first parameter lies in models: with others, what only resembles it is nothing of the kind."""


_At: TypeAlias = Callable[[float], float]


def _without(at: _At) -> tuple[float, ...]:
    return ()


def _fit_swish(at: _At) -> tuple[float, ...] | None:
    for x in _SWISH_POINTS:
        gate = at(x) / x
        if 0.02 < gate < 0.98 and gate != 0.5:
            return (math.log(gate / (1 - gate)) / x,)
    return None


def _fit_hard_swish(at: _At) -> tuple[float, ...] | None:
    above, below = at(_STEP) / _STEP, at(-_STEP) / -_STEP
    alpha, beta = (above - below) / (2 * _STEP), (above + below) / 2
    alpha = 1 / 6 if math.isclose(alpha, 1 / 6, rel_tol=1e-6) else alpha
    return (alpha, beta) if alpha > 0 and 0 < beta < 1 else None


def _fit_softplus(at: _At) -> tuple[float, ...] | None:
    return (math.log(2) / at(0.0),) if 0 < at(0.0) < math.inf else None


def _fit_leaky_relu(at: _At) -> tuple[float, ...] | None:
    return (-at(-1.0),) if 0 < -at(-1.0) < 1 else None


_ACTIVATIONS = (
    _Template("Gelu", _without, rounded=True),
    _Template("GeluTanh", _without, rounded=True),
    _Template("Mish", _without),
    _Template("HardSwish", _fit_hard_swish, rounded=True, usual=(0.1, 0.5)),
    _Template("Swish", _fit_swish, usual=(0.5, 4.0)),
    _Template("LeakyRelu", _fit_leaky_relu),
    _Template("SinSquared", _without),
)
_SOFTPLUS = (_Template("Softplus", _fit_softplus),)


@dataclasses.dataclass(frozen=True)
class _Reading:
    """How near a region is to a template."""

    template: _Template
    activation: Activation | None = None
    """The activation that it is."""
    worst: float = math.inf
    """Otherwise the largest difference, for which x, and what the two give there."""
    place: float = 0.0
    got: float = 0.0
    wanted: float = 0.0


def _read(region: _Region, template: _Template) -> _Reading:
    reading = _Reading(template)
    for exact in (False, True) if template.rounded else (False,):
        coarse = region.coarse(exact)
        parameters = template.fit(dict(zip(_COARSE.tolist(), coarse.tolist(), strict=True)).__getitem__)
        if parameters is None or not all(math.isfinite(parameter) for parameter in parameters):
            continue
        found = _compare(template, parameters, _COARSE, coarse)
        if found.worst <= _TOLERANCE:
            samples = region.samples()
            if region.has_unseen_bound(samples):
                continue
            found = _compare(template, parameters, samples, region.run(samples, exact=exact))
        if found.worst <= _TOLERANCE:
            names = ACTIVATIONS[template.name].parameters
            activation = Activation.of(template.name, None, **dict(zip(names, parameters, strict=False)))
            return _Reading(template, activation, worst=0.0)
        if not parameters or template.usual[0] <= parameters[0] <= template.usual[1]:
            reading = min(reading, found, key=lambda one: one.worst)
    return reading


def _compare(template: _Template, parameters: Sequence[float], samples: Array, got: Array) -> _Reading:
    with np.errstate(all="ignore"):
        wanted = ACTIVATIONS[template.name](samples, parameters)
        difference = np.abs(got - wanted) / np.maximum(1, np.abs(wanted))
    # Where it is no number, it must be one: an exponential may overflow far out only.
    no_number = np.where(np.abs(samples) <= _FINITE_WITHIN, math.inf, 0.0)
    difference = np.where(np.isfinite(got), difference, no_number)
    at = int(difference.argmax())
    return _Reading(template, None, float(difference[at]), float(samples[at]), float(got[at]), float(wanted[at]))


class DecomposedActivation(FusionRule):
    """GELU, its tanh approximation, SiLU and Swish, HardSwish, Mish, LeakyRelu, squared sines, in any algebraic form.

    Before::

        e = Erf(Div(x, 1.4142135))
        Y = Mul(Mul(x, Add(e, 1)), 0.5)

    After::

        Y = FusedActivation(x, steps="Gelu")
    """

    templates: ClassVar[Sequence[_Template]] = _ACTIVATIONS

    def pattern(self, op: Any) -> Any:
        return node_of(("",), _ROOTS)(_allow_other_inputs=True, _outputs=["activated"])

    def matcher(self) -> Matcher:
        return _FormulaMatcher(self.facts, self.templates, self.through_quantization)

    def check(self, root: ir.Node, x: ir.Value, activation: Activation, **_: Any) -> Fused:
        self.require_float(x)
        fused = Fused("FusedActivation", {"X": x})
        fused.activate(activation)
        return fused


class DecomposedSoftplus(DecomposedActivation):
    """Softplus by logarithm and exponential, with a steepness, or with a threshold where it is x but for rounding.

    Tried behind the others, of which it is a part.

    Before::

        Y = Div(Log(Add(Exp(Mul(x, beta)), 1)), beta)

    After::

        Y = FusedActivation(x, steps="Softplus steepness=...")
    """

    templates = _SOFTPLUS
    outermost_first = True


class _FormulaMatcher:
    """Matches the nodes that end in a given node by what they compute."""

    def __init__(self, facts: Facts, templates: Sequence[_Template], through_quantization: bool) -> None:
        self._facts = facts
        self._templates = templates
        self._through = through_quantization
        self._graph: ir.Graph | None = None
        self._roots: set[ir.Node] = set()

    def match(self, root: ir.Node) -> Match:
        """Match the nodes ending in `root`; the result carries a `Reason` when a match was refused."""
        result = Match.none()
        if root.graph is not self._graph:
            self._graph = root.graph
            self._roots = _behind_cores(root.graph)
        if root not in self._roots:
            return result
        for region in _regions(self._facts, root, self._through):
            found = self._match(region)
            if found or (found.reason and not result.reason):
                result = found
            if found:
                break
        return result

    def _match(self, region: _Region) -> Match:
        result = Match()
        result.add(*region.nodes)
        root, x = region.nodes[-1], region.x[0]
        operators = {node.op_type for node in region.nodes}
        readings = [_read(region, one) for one in self._templates if operators & _OWN_CORES[one.name]]
        activation = next((reading.activation for reading in readings if reading.activation is not None), None)
        several = [value for value in region.x[1:] if not self._facts.same(value, x)]
        if activation is None or several:
            reason = self._reason(region, readings, activation, several)
            return result.fail(reason, root) if reason is not None else Match.none()
        try:
            require_closed(result.nodes, root.outputs)
            ranks = [array.ndim for array in self._constants(region) if array is not None]
            require_width(self._facts, x, region.nodes, max(ranks, default=0))
        except Declined as declined:
            return result.fail(declined.reason, root)
        result.bindings |= {"x": x, "activation": activation, "activated": root.outputs[0]}
        result.outputs.append(root.outputs[0])
        return result

    def _constants(self, region: _Region) -> Iterator[Any]:
        for node in region.nodes:
            for value in node.inputs:
                if value is not None and self._facts.scalar(value) is not None:
                    yield self._facts.constant(value)

    def _reason(
        self,
        region: _Region,
        readings: Sequence[_Reading],
        activation: Activation | None,
        several: Sequence[ir.Value],
    ) -> Reason | None:
        """Return in which way the region is not the activation that it looks like; None: it looks like none."""
        root = region.nodes[-1]
        if several:
            # A gate, or another product of two tensors; only these are known for nothing else.
            if activation is None or activation.name not in ("Gelu", "GeluTanh", "Mish"):
                return None
            detail = f"it takes {label(several[0])} in one place and {label(region.x[0])} in another"
            return Reason("different_formula", node=label(root), kind=activation.name, detail=detail)
        nearest = min(readings, key=lambda reading: reading.worst, default=None)
        if nearest is None or nearest.worst > _SIMILAR:
            return None
        name = nearest.template.name
        detail = f"for x = {nearest.place:g} it gives {nearest.got:.7g}, and {name} {nearest.wanted:.7g}"
        return Reason("different_formula", node=label(root), kind=name, detail=detail)


# An activation is written with one of these at least.
_OWN_CORES = {
    "Gelu": {"Erf"},
    "GeluTanh": {"Tanh", "Sigmoid", "Exp"},
    "Mish": {"Softplus", "Log", "Exp"},
    "HardSwish": {"Clip", "HardSigmoid", "Min", "Max", "Relu"},
    "Swish": {"Sigmoid", "Exp", "Tanh"},
    "LeakyRelu": {"Max", "Where", "Relu"},
    "SinSquared": {"Sin", "Cos"},
    "Softplus": {"Softplus", "Log"},
}


def _behind_cores(graph: ir.Graph | None) -> set[ir.Node]:
    """Return the nodes that an activation may end in."""
    found: set[ir.Node] = set()
    for core in graph or ():
        if core.op_type not in _CORES or core.domain != "":
            continue
        behind = [core]
        for node in behind:
            for consumer in dict.fromkeys(consumer for value in node.outputs for consumer in value.consumers()):
                known = consumer.domain == "" and (consumer.op_type in _FUNCTIONS or consumer.op_type in _COPIES)
                if known and consumer not in behind and len(behind) < _MOST_BEHIND and consumer.graph is graph:
                    behind.append(consumer)
        found.update(node for node in behind if node.op_type in _ROOTS)
    return found


_COPIES = ("Cast", "CastLike", "Dropout", "Identity", "QuantizeLinear", "DequantizeLinear")
