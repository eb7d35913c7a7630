"""The expressions of the activation table as C++."""

import ast
from collections.abc import Mapping, Sequence

_OPERATORS: Mapping[type, str] = {ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/"}
_COMPARISONS: Mapping[type, str] = {ast.Lt: "<", ast.Gt: ">"}
# Function -> its C++ name, and how many arguments it has.
_FUNCTIONS: Mapping[str, tuple[str, int]] = {
    "abs": ("std::fabs", 1),
    "erf": ("std::erf", 1),
    "erfc": ("std::erfc", 1),
    "exp": ("std::exp", 1),
    "expm1": ("std::expm1", 1),
    "log": ("std::log", 1),
    "max": ("formula::Max", 2),
    "min": ("formula::Min", 2),
    "sin": ("std::sin", 1),
    "softplus": ("formula::Softplus", 1),
    "sqrt": ("std::sqrt", 1),
    "tanh": ("std::tanh", 1),
}


def _parsed(expression: str) -> ast.expr:
    try:
        return ast.parse(expression, mode="eval").body
    except SyntaxError as error:
        raise ValueError(f"'{expression}' is not an expression: {error.msg}") from None


def names_in(expression: str) -> set[str]:
    """Return the names that an expression reads, functions left out."""
    tree = _parsed(expression)
    functions = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and id(node) not in functions}


def to_cpp(expression: str, names: Mapping[str, str]) -> str:
    """Return an expression over ``names`` (each with what stands for it) in C++, in float64.

    Raises:
        ValueError: It holds something that the table's expressions do not have.
    """
    return _cpp(_parsed(expression), names)


def _cpp(node: ast.expr, names: Mapping[str, str]) -> str:
    match node:
        case ast.Constant(value=int() | float() as value):
            return repr(float(value))
        case ast.Name(id=name) if name in names:
            return names[name]
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return f"(-{_cpp(operand, names)})"
        case ast.BinOp(left=left, op=ast.Pow(), right=ast.Constant(value=int() as power)):
            return "(" + " * ".join([_cpp(left, names)] * power) + ")"
        case ast.BinOp(left=left, op=operator, right=right) if type(operator) in _OPERATORS:
            return f"({_cpp(left, names)} {_OPERATORS[type(operator)]} {_cpp(right, names)})"
        case ast.Compare(left=left, ops=[operator], comparators=[right]) if type(operator) in _COMPARISONS:
            return f"{_cpp(left, names)} {_COMPARISONS[type(operator)]} {_cpp(right, names)}"
        case ast.Call(func=ast.Name(id="where"), args=[condition, then, otherwise], keywords=[]):
            return f"({_cpp(condition, names)} ? {_cpp(then, names)} : {_cpp(otherwise, names)})"
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]) if name in _FUNCTIONS:
            return _call(name, [_cpp(argument, names) for argument in arguments])
    raise ValueError(f"'{ast.unparse(node)}' is nothing that an expression may hold")


def _call(name: str, arguments: Sequence[str]) -> str:
    function, count = _FUNCTIONS[name]
    if len(arguments) != count:
        raise ValueError(f"{name} takes {count} arguments, not {len(arguments)}")
    return f"{function}({', '.join(arguments)})"
