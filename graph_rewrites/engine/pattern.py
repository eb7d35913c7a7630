"""The pattern language of the rules, and what a match is.

A pattern is a small graph of expected nodes, written as the ONNX nodes are: ``op.Mul(x, op.Sigmoid(x))``. What it means
is up to the matcher (`matching`): here is only its form.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Protocol, TypeAlias

import onnx_ir as ir


@dataclasses.dataclass(frozen=True, eq=False)
class AnyValue:
    """Any value, or none."""


@dataclasses.dataclass(frozen=True, eq=False)
class Variable:
    """Any value, which is bound to a name; the same value wherever the name stands."""

    name: str


@dataclasses.dataclass(frozen=True, eq=False)
class Constant:
    """A constant of one element with this value."""

    value: float


@dataclasses.dataclass(frozen=True, eq=False)
class NodePattern:
    """A node of any of some operators in any of some domains."""

    domains: tuple[str, ...]
    op_types: tuple[str, ...]
    inputs: tuple[ValuePattern | None, ...]
    attributes: Mapping[str, Any]
    """Values that attributes must have, lists as tuples; others may have any."""
    allow_other_inputs: bool
    """The node may have more inputs than these."""
    outputs: tuple[str | None, ...]
    """Names that its outputs are bound to."""
    tensors: Mapping[str, ValuePattern]
    """Tensors of a node of our own domain by label, where that and not the position is what matters."""

    def __str__(self) -> str:
        """Return the operators, as messages name them."""
        return "|".join(self.op_types)


@dataclasses.dataclass(frozen=True, eq=False)
class Output:
    """One output of a node."""

    node: NodePattern
    index: int = 0


@dataclasses.dataclass(frozen=True, eq=False)
class AnyOf:
    """One of several patterns, tried in this order; where it stands in two places, both are the same value."""

    alternatives: tuple[ValuePattern, ...]


ValuePattern: TypeAlias = AnyValue | Variable | Constant | Output | AnyOf
ANY = AnyValue()


@dataclasses.dataclass(frozen=True)
class GraphPattern:
    """A pattern as a whole: it ends in the node that gives the first output."""

    variables: tuple[str, ...]
    outputs: tuple[Output, ...]

    @property
    def root(self) -> NodePattern:
        """The last node."""
        return self.outputs[0].node


class OpBuilder:
    """Makes node patterns: ``op.Mul(x, 2, _outputs=["doubled"])``.

    Operands are value patterns, numbers (a constant of one element) or None (no input). ``_domain`` is ONNX's own
    unless given; ``_tensors`` are inputs of a node of our own domain by label; ``_outputs`` names the outputs
    (otherwise there is one, without a name); ``_allow_other_inputs`` lets the node have more inputs; further keywords
    are attributes with the values that they must have. Returns the output, or a tuple of several.
    """

    def __getattr__(self, op_type: str) -> Callable[..., Any]:
        """Return what makes patterns of one operator."""
        return functools.partial(_node, ("",), (op_type,))


def node_of(domains: Sequence[str], op_types: Sequence[str]) -> Callable[..., Any]:
    """Return what makes patterns of a node of any of the operators in any of the domains, as `OpBuilder` does."""
    return functools.partial(_node, tuple(domains), tuple(op_types))


def any_of(*alternatives: ValuePattern) -> AnyOf:
    """Return a pattern that matches any of the alternatives, tried in this order."""
    return AnyOf(alternatives)


def _node(
    domains: tuple[str, ...],
    op_types: tuple[str, ...],
    *inputs: ValuePattern | float | None,
    _domain: str | None = None,
    _outputs: Sequence[str | None] = (None,),
    _allow_other_inputs: bool = False,
    _tensors: Mapping[str, ValuePattern] = MappingProxyType({}),
    **attributes: Any,
) -> Output | tuple[Output, ...]:
    operands = tuple(Constant(operand) if isinstance(operand, int | float) else operand for operand in inputs)
    domains = domains if _domain is None else (_domain,)
    node = NodePattern(domains, op_types, operands, attributes, _allow_other_inputs, tuple(_outputs), _tensors)
    outputs = tuple(Output(node, index) for index in range(len(node.outputs)))
    return outputs[0] if len(outputs) == 1 else outputs


def graph_pattern(written: Callable[..., Any]) -> GraphPattern:
    """Return the pattern that a function of an `OpBuilder` and of variables, named as its parameters, writes."""
    names = tuple(inspect.signature(written).parameters)[1:]
    outputs = written(OpBuilder(), *map(Variable, names))
    return GraphPattern(names, (outputs,) if isinstance(outputs, Output) else tuple(outputs))


class Mismatch(Exception):  # noqa: N818 - the normal way for a rule to say no
    """Raised by a rule's ``check``, or by what it calls, where a match is none."""

    def __init__(self, reason: str, *at: ir.Node) -> None:
        super().__init__(reason)
        self.reason = reason
        self.at = at


class Match:
    """What a matcher found: false if it is no match, with the reason."""

    def __init__(self) -> None:
        self.nodes: list[ir.Node] = []
        """The matched nodes; of a failed match, those that it came to."""
        self.bindings: dict[str, Any] = {}
        self.outputs: list[ir.Value | None] = []
        """For each output of the pattern; None: an optional output that is not there."""
        self.found: Any = None
        """What the rule's check returned, for its rewrite."""
        self.reason: str | None = None
        """Why it is none."""

    def __bool__(self) -> bool:
        """True for a match."""
        return self.reason is None

    def add(self, *nodes: ir.Node) -> None:
        """Take further nodes in."""
        self.nodes += (node for node in nodes if node not in self.nodes)

    def fail(self, reason: str, *at: ir.Node) -> Match:
        """Make it a failed match, which nodes `at` are left for as well, and return it."""
        self.reason = reason
        self.add(*at)
        return self

    @classmethod
    def none(cls) -> Match:
        """Return a failed match without a reason: nothing there looks like the pattern."""
        return cls().fail("")


class Matcher(Protocol):
    """Finds the nodes that a rule is about."""

    def match(self, root: ir.Node) -> Match:
        """Match the nodes that end in `root`."""
