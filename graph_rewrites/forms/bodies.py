"""Activations written in standard operators, by the expressions of the activation table (key ``body``)."""

from __future__ import annotations

import ast
import functools
import math
import operator
from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeAlias

import onnx_ir as ir

from normfuse.graph_rewrites.engine.fused import Activation
from normfuse.spec import ACTIVATIONS, ActivationBody

_Operand: TypeAlias = ir.Value | float

# Arithmetic: of tensors an ONNX operator, of numbers the number.
_ARITHMETIC: Mapping[type[ast.operator], tuple[str, Callable[[float, float], float]]] = {
    ast.Add: ("Add", operator.add),
    ast.Sub: ("Sub", operator.sub),
    ast.Mult: ("Mul", operator.mul),
    ast.Div: ("Div", operator.truediv),
    ast.Pow: ("Pow", operator.pow),
}


class Writer(Protocol):
    """Writes the nodes of an expression."""

    def node(self, op_type: str, *inputs: ir.Value, **attributes: Any) -> ir.Value:
        """Return the result of a new node."""

    def number(self, value: float) -> ir.Value:
        """Return a constant."""


def body_of(activation: Activation, opset: int) -> ActivationBody | None:
    """Return the first body in the table that holds; None where the table leaves it to the operator's own node."""
    standard = activation.parameters == Activation.of(activation.name).parameters
    for body in ACTIVATIONS[activation.name].bodies:
        if opset >= body.since and (standard or not body.defaults):
            return body
    return None


@functools.cache
def _parsed(expression: str) -> ast.expr:
    return ast.parse(expression, mode="eval").body


def write_expression(expression: str, names: Mapping[str, _Operand], writer: Writer) -> ir.Value:
    """Write the nodes of an expression over ``names`` and return their result."""
    result = _written(_parsed(expression), {"pi": math.pi, **names}, writer)
    return writer.number(result) if isinstance(result, float) else result


def _written(node: ast.expr, names: Mapping[str, _Operand], writer: Writer) -> _Operand:
    match node:
        case ast.Constant(value=int() | float() as value):
            return float(value)
        case ast.Name(id=name):
            return names[name]
        case ast.BinOp(left=left, op=kind, right=right):
            op_type, of_numbers = _ARITHMETIC[type(kind)]
            operands = _written(left, names, writer), _written(right, names, writer)
            if isinstance(operands[0], float) and isinstance(operands[1], float):
                return of_numbers(operands[0], operands[1])
            return writer.node(op_type, *(_tensor(each, writer) for each in operands))
        case ast.Call(func=ast.Name(id="sqrt"), args=[argument]):
            number = _written(argument, names, writer)
            assert isinstance(number, float)
            return math.sqrt(number)
        case ast.Call(func=ast.Name(id=op_type), args=arguments, keywords=keywords):
            inputs = [_tensor(_written(each, names, writer), writer) for each in arguments]
            return writer.node(op_type, *inputs, **{str(k.arg): _attribute(k.value, names) for k in keywords})
    raise ValueError(f"'{ast.unparse(node)}' is nothing that a body may hold")


def _tensor(operand: _Operand, writer: Writer) -> ir.Value:
    return writer.number(operand) if isinstance(operand, float) else operand


def _attribute(node: ast.expr, names: Mapping[str, _Operand]) -> Any:
    return node.value if isinstance(node, ast.Constant) else names[ast.unparse(node)]
