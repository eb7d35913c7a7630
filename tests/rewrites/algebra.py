"""Writes a formula in its algebraically equal forms: a generator in place of a list of spellings.

A formula is a tree: "x" or another tensor's name, a number, or (operator, operand ...). `Speller` turns one into a tree
of ONNX operators, each of which has one way to be written, choosing among identities at every step; `value` computes
such a tree in float64, and `Emitter` writes it as nodes. So a tree can be changed in one place in between.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from rewrite_harness import SpellingBuilder

from normfuse.models.graph_builder import Dim

Tree = Any
Draw = Callable[[int], int]
"""Takes how many choices there are, and gives one of them; 0 is the plainest."""

REDUCTIONS = ("ReduceMean", "ReduceSum", "ReduceSumSquare", "ReduceL2")
WEIGHTS = ("scale", "bias")
# The last two only where all dimensions are numbers.
RESTORED = ("Unsqueeze", "Reshape at run time", "Expand at run time", "Reshape", "Expand")
#: With more nodes than this a form is not a spelling any more that somebody would write.
MOST_NODES = 30


def negative(a: Tree) -> Tree:
    """-a, without a sign that only takes another one back."""
    if isinstance(a, float):
        return -a
    if isinstance(a, tuple) and a[0] == "neg":
        return a[1]
    if isinstance(a, tuple) and a[0] == "*" and isinstance(a[1], float):
        return ("*", -a[1], *a[2:])
    return ("neg", a)


def square(a: Tree) -> Tree:
    return ("square", a)


def _exp(a: Tree) -> Tree:
    return ("Exp", a)


def _over(a: Tree) -> Tree:
    return ("inverse", a)


#: What each function may be written as; the first one is the operator itself. Operands are formulas again.
IDENTITIES: dict[str, list[Callable[..., Tree]]] = {
    "sigmoid": [
        lambda a: ("Sigmoid", a),
        lambda a: _over(("+", 1.0, _exp(negative(a)))),
        lambda a: ("*", _exp(a), _over(("+", 1.0, _exp(a)))),
        lambda a: ("+", 0.5, ("*", 0.5, ("Tanh", ("*", 0.5, a)))),
        lambda a: ("+", 1.0, negative(("Sigmoid", negative(a)))),
        lambda a: ("^", ("+", 1.0, _exp(negative(a))), -1.0),
    ],
    "tanh": [
        lambda a: ("Tanh", a),
        lambda a: negative(("Tanh", negative(a))),
        lambda a: ("+", ("*", 2.0, ("Sigmoid", ("*", 2.0, a))), -1.0),
        lambda a: ("+", 1.0, ("*", -2.0, _over(("+", 1.0, _exp(("*", 2.0, a)))))),
        lambda a: (
            "*",
            ("+", 1.0, negative(_exp(("*", -2.0, a)))),
            _over(("+", 1.0, _exp(("*", -2.0, a)))),
        ),
    ],
    "erf": [lambda a: ("Erf", a), lambda a: negative(("Erf", negative(a)))],
    "softplus": [
        lambda a: ("Softplus", a),
        lambda a: ("Log", ("+", 1.0, _exp(a))),
        lambda a: ("+", ("Max", a, 0.0), ("Log", ("+", 1.0, _exp(negative(("Abs", a)))))),
        lambda a: negative(("Log", ("sigmoid", negative(a)))),
        lambda a: ("+", a, ("Softplus", negative(a))),
    ],
    # Held between 0 and b.
    "held": [
        lambda a, b: ("Clip", a, 0.0, b),
        lambda a, b: ("Max", ("Min", a, b), 0.0),
        lambda a, b: ("Min", ("Max", 0.0, a), b),
        lambda a, b: ("Min", b, ("Relu", a)),
        lambda a, b: ("+", ("Relu", a), negative(("Relu", ("+", a, negative(b))))),
        lambda a, b: ("Relu", ("Min", a, b)),
    ],
    "square": [
        lambda a: ("^", a, 2.0),
        lambda a: ("*", a, a),
        lambda a: ("^", ("Abs", a), 2.0),
        lambda a: ("^", negative(a), 2.0),
        lambda a: ("*", ("Abs", a), ("Abs", a)),
    ],
    "cube": [
        lambda a: ("*", a, a, a),
        lambda a: ("^", a, 3.0),
        lambda a: ("*", ("^", a, 2.0), a),
    ],
    "root": [lambda v: ("Sqrt", v), lambda v: ("^", v, 0.5), lambda v: _over(("inverse root", v))],
    "inverse root": [
        lambda v: _over(("Sqrt", v)),
        lambda v: ("Sqrt", _over(v)),
        lambda v: ("^", v, -0.5),
        lambda v: _over(("^", v, 0.5)),
        lambda v: _exp(("*", -0.5, ("Log", v))),
        lambda v: ("^", _over(v), 0.5),
    ],
    "mean": [
        lambda a: ("ReduceMean", a),
        lambda a: ("*", ("ReduceSum", a), "1/n"),
        lambda a: ("ReduceSum", ("*", a, "1/n")),
        lambda a: ("ReduceMean dropped", a),
        lambda a: ("*", ("ReduceSum dropped", a), "1/n"),
    ],
    "mean square": [
        lambda a: ("mean", square(a)),
        lambda a: ("*", ("ReduceSumSquare", a), "1/n"),
        lambda a: square(("*", ("ReduceL2", a), "1/root n")),
        lambda a: ("*", ("ReduceSumSquare dropped", a), "1/n"),
    ],
    "variance": [
        lambda a: ("mean square", ("deviation", a)),
        lambda a: ("+", ("mean square", a), negative(square(("mean", a)))),
        lambda a: ("mean", ("*", a, ("deviation", a))),
        lambda a: ("Max", 0.0, ("+", ("mean square", a), negative(square(("mean", a))))),
        lambda a: ("Clip", ("+", ("mean square", a), negative(square(("mean", a)))), 0.0),
        lambda a: ("Relu", ("+", ("mean square", a), negative(square(("mean", a))))),
        lambda a: ("Abs", ("mean square", ("deviation", a))),
    ],
    "deviation": [
        lambda a: ("+", a, negative(("mean", a))),
        lambda a: negative(("+", ("mean", a), negative(a))),
    ],
}


class Speller:
    """Turns a formula into a tree of ONNX operators, one of those that compute the same."""

    def __init__(self, draw: Draw, count: int = 1) -> None:
        """`count`: how many elements a row has."""
        self._draw = draw
        self._numbers = {"1/n": 1 / count, "1/root n": count**-0.5}
        self._known: dict[Tree, Tree] = {}

    def spell(self, formula: Tree) -> Tree:
        """Return a tree of operators; the same formula mostly as before, as programs name what they use twice."""
        if formula in self._numbers:
            return self._numbers[formula]
        if isinstance(formula, str | float):
            return formula
        if formula not in self._known or self._draw(8) == 7:
            self._known[formula] = self._spelt(formula)
        return self._known[formula]

    def _spelt(self, formula: Tree) -> Tree:
        operator, *operands = formula
        if operator in IDENTITIES:
            forms = IDENTITIES[operator]
            return self.spell(forms[self._draw(len(forms))](*operands))
        if operator in ("+", "*"):
            return self._joined(operator, operands)
        if operator == "neg":
            return self._negative(operands[0])
        if operator == "inverse":
            value = self.spell(operands[0])
            return (("Reciprocal", value), ("Div", 1.0, value), ("Pow", value, -1.0))[self._draw(3)]
        if operator == "^":
            return ("Pow", *(self.spell(operand) for operand in operands))
        inner = [self.spell(operand) for operand in operands]
        if operator in ("Max", "Min") and self._draw(2):
            inner.reverse()
        return (operator, *inner)

    def _negative(self, formula: Tree) -> Tree:
        value = self.spell(formula)
        return (("Neg", value), ("Mul", value, -1.0), ("Sub", 0.0, value), ("Mul", -1.0, value))[self._draw(4)]

    def _joined(self, operator: str, operands: Sequence[Tree]) -> Tree:
        """Write a sum or a product, two of its operands at a time."""
        if operator == "*" and self._draw(4) == 3:
            distributed = _distributed(operands)
            if distributed is not None:
                return self.spell(distributed)
        rest = list(operands)
        while len(rest) > 1:
            first = rest.pop(self._draw(len(rest)))
            second = rest.pop(self._draw(len(rest)))
            rest.append(("spelt", self._pair(operator, first, second)))
        return self._part(rest[0])

    def _part(self, operand: Tree) -> Tree:
        """An operand, which may be a pair that is joined already."""
        if isinstance(operand, tuple) and operand[0] == "spelt":
            return operand[1]
        return self.spell(operand)

    def _pair(self, operator: str, first: Tree, second: Tree) -> Tree:
        return self._sum(first, second) if operator == "+" else self._product(first, second)

    def _sum(self, first: Tree, second: Tree) -> Tree:
        if isinstance(first, float) and isinstance(second, float):
            return first + second
        if _is_negative(first) and not _is_negative(second):
            first, second = second, first
        if _is_negative(second) and self._draw(3) < 2:
            return ("Sub", self._part(first), self.spell(second[1]))
        a, b = self._part(first), self._part(second)
        if isinstance(b, float) and self._draw(2):
            return ("Sub", a, -b)
        if self._draw(6) == 5 and not (_keeps_its_sign(a) or _keeps_its_sign(b)):
            return ("Sub", a, ("Neg", b))
        return ("Sum", a, b) if self._draw(8) == 7 else ("Add", a, b)

    def _product(self, first: Tree, second: Tree) -> Tree:
        if _is_inverse(first) and not _is_inverse(second):
            first, second = second, first
        if _is_inverse(second) and self._draw(3) < 2:
            return ("Div", self._part(first), self.spell(second[1]))
        a, b = self._part(first), self._part(second)
        if isinstance(a, float) and isinstance(b, float):
            return a * b
        if isinstance(b, float) and self._draw(2):
            return ("Div", a, 1 / b)
        if self._draw(8) == 7 and not (_keeps_its_sign(a) or _keeps_its_sign(b)):
            return ("Mul", ("Neg", a), ("Neg", b))
        return ("Mul", a, b)


def _keeps_its_sign(tree: Tree) -> bool:
    """True for a weight, which would be stored with the other sign, and what was just made positive."""
    return tree in WEIGHTS or (isinstance(tree, tuple) and tree[0] == "Abs")


def _is_negative(formula: Tree) -> bool:
    return isinstance(formula, tuple) and formula[0] == "neg"


def _is_inverse(formula: Tree) -> bool:
    return isinstance(formula, tuple) and formula[0] == "inverse"


def _distributed(operands: Sequence[Tree]) -> Tree:
    """a * (b + c) as a * b + a * c; None where there is no sum."""
    for index, operand in enumerate(operands):
        if isinstance(operand, tuple) and operand[0] == "+":
            others = [*operands[:index], *operands[index + 1 :]]
            return ("+", *(("*", *others, term) for term in operand[1:]))
    return None


# The same in float64

_erf = np.vectorize(math.erf, otypes=[np.float64])
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "Abs": np.abs,
    "Add": np.add,
    "Clip": lambda a, low, high=np.inf: np.minimum(np.maximum(a, low), high),
    "Div": np.divide,
    "Erf": _erf,
    "Exp": np.exp,
    "Log": np.log,
    "Max": np.maximum,
    "Min": np.minimum,
    "Mul": np.multiply,
    "Neg": np.negative,
    "Pow": np.power,
    "Reciprocal": lambda a: 1 / a,
    "ReduceL2": lambda a, axis: np.sqrt((a * a).sum(axis, keepdims=True)),
    "ReduceMean": lambda a, axis: a.mean(axis, keepdims=True),
    "ReduceSum": lambda a, axis: a.sum(axis, keepdims=True),
    "ReduceSumSquare": lambda a, axis: (a * a).sum(axis, keepdims=True),
    "Relu": lambda a: np.maximum(a, 0),
    "Sigmoid": lambda a: 0.5 + 0.5 * np.tanh(0.5 * a),
    "Softplus": lambda a: np.logaddexp(0, a),
    "Sqrt": np.sqrt,
    "Sub": np.subtract,
    "Sum": np.add,
    "Tanh": np.tanh,
}


def value(tree: Tree, tensors: Mapping[str, Any], axis: int = -1) -> Any:
    """What a tree of operators gives, in float64; reductions are taken along one axis."""
    known: dict[Tree, Any] = {name: np.asarray(array, np.float64) for name, array in tensors.items()}

    def of(part: Tree) -> Any:
        if isinstance(part, float):
            return part
        if part not in known:
            operator, *operands = part
            operator, _, other = operator.partition(" ")
            along = (int(other.removeprefix("axis ")) if other.startswith("axis") else axis,)
            extra = along if operator in REDUCTIONS else ()
            known[part] = _FUNCTIONS[operator](*map(of, operands), *extra)
        return known[part]

    with np.errstate(all="ignore"):
        return of(tree)


# As nodes


class Emitter:
    """Writes a tree of operators as nodes of a graph, equal parts of it once."""

    def __init__(self, g: SpellingBuilder, draw: Draw, shape: Sequence[Dim], axis: int = -1) -> None:
        """`shape`: x's, with names for open dimensions; `axis`: the one that is reduced."""
        self._g = g
        self._draw = draw
        self._shape = tuple(shape)
        self._axis = axis % len(shape)
        self._names: dict[Tree, tuple[Any, str]] = {}

    def emit(self, tree: Tree) -> str:
        """Return the name of what the tree computes."""
        return str(self._whole(tree))

    def _whole(self, tree: Tree) -> Any:
        name, layout = self._emit(tree)
        return self._restored(name) if layout == "dropped" else name

    def _emit(self, tree: Tree) -> tuple[Any, str]:
        """Return a value, and the dimensions that it has: "number", "dropped", "row" or "full"."""
        if isinstance(tree, float):
            return tree, "number"
        if isinstance(tree, str):
            return tree, "full"
        if tree not in self._names:
            self._names[tree] = self._written(tree)
        return self._names[tree]

    def _written(self, tree: Tree) -> tuple[Any, str]:
        operator, *operands = tree
        operator, _, kind = operator.partition(" ")
        parts = [self._emit(operand) for operand in operands]
        layouts = {layout for _, layout in parts} - {"number"}
        if len(layouts) > 1 and "dropped" in layouts:
            parts = [(self._whole(operand), layout) for operand, (_, layout) in zip(operands, parts, strict=True)]
            layouts = layouts - {"dropped"} | {"row"}
        names = [name for name, _ in parts]
        if operator in REDUCTIONS:
            axis = int(kind.removeprefix("axis ")) if kind.startswith("axis") else self._axis
            return self._reduced(operator, names[0], axis, dropped=kind == "dropped")
        if operator == "Clip":
            names = [names[0], *(np.float32(bound) for bound in names[1:])]
        layout = next((one for one in ("full", "row", "dropped") if one in layouts), "number")
        return self._g.add(operator, *names), layout

    def _reduced(self, operator: str, name: str, axis: int, *, dropped: bool) -> tuple[str, str]:
        reduced = self._g.reduce(operator, name, [axis - len(self._shape) if self._draw(2) else axis], int(not dropped))
        return reduced, "dropped" if dropped else "row"

    def _restored(self, name: str) -> str:
        """Put the dimension back that a reduction dropped."""
        fixed = all(isinstance(size, int) for size in self._shape)
        how = RESTORED[self._draw(len(RESTORED) if fixed else len(RESTORED) - 2)]
        if how == "Unsqueeze":
            return self._g.add("Unsqueeze", name, np.array([self._axis], np.int64))
        target: Any = self._row_shape() if how.endswith("at run time") else np.array(self._sizes(), np.int64)
        back = self._g.add("Reshape", name, target)
        return self._g.add("Expand", back, target) if how.startswith("Expand") else back

    def _sizes(self) -> list[Any]:
        return [1 if at == self._axis else size for at, size in enumerate(self._shape)]

    def _row_shape(self) -> str:
        """The shape of a mean, taken from x's own."""
        sizes = self._g.add("Shape", "x")
        parts = [
            np.array([1], np.int64)
            if size == 1
            else self._g.add("Slice", sizes, np.array([at], np.int64), np.array([at + 1], np.int64))
            for at, size in enumerate(self._sizes())
        ]
        return self._g.add("Concat", *parts, axis=0)


# A tree that is changed in one place


def places(tree: Tree, path: tuple[int, ...] = ()) -> Iterator[tuple[tuple[int, ...], Tree]]:
    """Yield every part of a tree with the way to it."""
    yield path, tree
    if isinstance(tree, tuple):
        for index, part in enumerate(tree[1:], 1):
            yield from places(part, (*path, index))


def changed(tree: Tree, path: Sequence[int], part: Tree) -> Tree:
    """The tree with another part in one place."""
    if not path:
        return part
    first, *rest = path
    return (*tree[:first], changed(tree[first], rest, part), *tree[first + 1 :])


def operators(tree: Tree) -> int:
    """How many different operators a tree has as nodes."""
    return len({part for _, part in places(tree) if isinstance(part, tuple)})
