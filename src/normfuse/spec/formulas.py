"""The expressions of the activation table: evaluated in float64, on numbers or on arrays."""

from __future__ import annotations

import ast
import functools
import math
from collections.abc import Callable, Mapping
from types import CodeType
from typing import Any

import numpy as np

_erf = np.vectorize(math.erf, otypes=[np.float64])
_erfc = np.vectorize(math.erfc, otypes=[np.float64])

#: What an expression may call.
FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "abs": np.abs,
    "erf": _erf,
    "erfc": _erfc,
    "exp": np.exp,
    "expm1": np.expm1,
    "log": np.log,
    "max": np.maximum,
    "min": np.minimum,
    "sin": np.sin,
    "softplus": lambda v: np.logaddexp(0.0, v),
    "sqrt": np.sqrt,
    "tanh": np.tanh,
    "where": np.where,
}
_SCOPE = {"__builtins__": {}, "pi": math.pi, **{f"_{name}": function for name, function in FUNCTIONS.items()}}


class _Calls(ast.NodeTransformer):
    """Gives functions names of their own: Clip has parameters ``min`` and ``max``."""

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if not isinstance(node.func, ast.Name) or node.func.id not in FUNCTIONS:
            raise ValueError(f"'{ast.unparse(node.func)}' is not a function of the activation table")
        node.func.id = f"_{node.func.id}"
        return node


@functools.cache
def _compiled(expression: str) -> CodeType:
    tree = ast.parse(expression, mode="eval")
    return compile(ast.fix_missing_locations(_Calls().visit(tree)), f"<{expression}>", "eval")


def evaluate(expression: str, values: Mapping[str, Any]) -> Any:
    """Return the value of an expression of the table; what overflows or has no value is infinite or NaN."""
    with np.errstate(all="ignore"):
        return eval(_compiled(expression), _SCOPE, dict(values))
