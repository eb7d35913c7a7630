"""The cases of tests/corpus: models written as formulas, and what is expected of them.

    # a comment
    let LN = Normalize axes=-1 epsilon=1e-05            words of later lines, also of what is expected
    let Mean(x) = ReduceMean(x, axes=[-1])              a macro (it hides an operator of its name)
    at x=batch:2,5,8 opset=9-25                         what holds for the cases behind it
    name (opset=13): d = x - Mean(x); d / {Sqrt(Mean(d * d))|Pow(Mean(d * d), 0.5)} -> [LN]

A case is one formula or several for each choice of alternatives in braces; braces that begin with the same ``tag:``
choose together; with ``covering=2`` each two of all choices meet in a case, in fewer than all. It goes on in lines that
are indented.

In a formula, operators have ONNX's names (those of other domains begin with ``microsoft.``, ``normfuse.`` or
``own.``), keyword arguments are attributes, numbers have the model's type unless they say another (``int64(2)``), lists
are of int64, ``full([8], 0.5)``, ``linspace(0, 1, 8)``, ``integers(-9, 9, [2, 8])``, ``signs(127, [2, 8])`` and
``normal(0.1, [2, 8])`` are arrays, ``scale[8]``, ``bias[8]`` and ``weight[6, 6]``
are weights, and a name that is given nowhere is an input like x or, as ``shift[2, 1, 8]``, of that shape; both may have
a type, ``int8.weight[6, 6]``. ``output(d)`` makes a value one more output, ``tensor(int64(2))`` is one constant for
several nodes, ``default(0.5)`` one that a caller can override. ``If(c, a, b)`` computes a or b, and ``Loop(3, x, F)``
takes the macro F of x so often; what stands in their brackets is part of the subgraph, but not the names that are used
there. ``own.F(x)`` calls the macro F as a function of the model.

Expected are the operators of the rewritten graph, fused ones as their steps in brackets, those of a subgraph behind its
node, and perhaps ``says "words"``, a fused site's message. ``left reason Kind "words"`` behind them, or alone where the
model stays as it is, is a site that is left. ``runs`` and operators at the end say
what ONNX Runtime makes of the rewritten model by itself. With ``as=way`` the model is rewritten in another way (WAYS in
test_corpus.py), which may say why something stays. The cases of the folder sessions say what becomes of a model in a
session: see tests/rewrites/test_session_corpus.py.
"""

import ast
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from covering import covering
from families import Array, Family, fill
from onnx import TensorProto
from spelling import SpellingBuilder

FOLDER = Path(__file__).resolve().parent / "corpus"
BINARY = {ast.Add: "Add", ast.Sub: "Sub", ast.Mult: "Mul", ast.Div: "Div", ast.Pow: "Pow", ast.MatMult: "MatMul"}
TYPES = ("float16", "float32", "float64", "bfloat16", "float8_e4m3fn", "int4", "uint4", "int8", "uint8", "int16")
TYPES += ("uint16", "int32", "int64", "bool_")
DOMAINS = {"microsoft": "com.microsoft", "normfuse": "ai.normfuse", "own": "own"}
ARRAYS: dict[str, Callable[..., Any]] = {
    "full": np.full,
    "linspace": lambda low, high, n: np.linspace(low, high, int(n)),
    "integers": lambda low, high, shape: np.random.default_rng(9).integers(int(low), int(high), shape),
    "signs": lambda size, shape: np.random.default_rng(0).choice([-size, size], shape),
    "normal": lambda deviation, shape: np.random.default_rng(len(shape) + sum(shape)).normal(0, deviation, shape),
}
WEIGHTS = {"scale": 1.0, "bias": 0.0, "weight": 0.0}
#: First version of ai.onnx that takes as inputs what were attributes.
INPUTS_SINCE = {"Squeeze": (13, ["axes"]), "Unsqueeze": (13, ["axes"]), "Clip": (11, ["min", "max"])}


@dataclass(frozen=True)
class Macro:
    parameters: list[str]
    body: list[ast.stmt]


@dataclass(frozen=True)
class Case:
    """One formula, where it stands, what holds for it, the macros before it and what is expected."""

    name: str
    formula: str
    expected: str
    options: Mapping[str, str]
    macros: Mapping[str, Macro] = field(repr=False)

    @property
    def opsets(self) -> list[int]:
        first, _, last = self.options.get("opset", "13-25").partition("-")
        return [v for v in (*range(7, 26), int(first)) if int(first) <= v <= int(last or first)]

    def dims(self, dynamic: bool, name: str = "x") -> list[int | str | None]:
        """The dimensions of an input; ``batch:2`` and ``:2`` are 2 or, where they are dynamic, any."""
        parts = [dim.split(":") for dim in self.options[name].split(",") if dim]
        return [(part[0] or None) if dynamic and len(part) > 1 else int(part[-1]) for part in parts]

    def dtype(self, name: str) -> str | None:
        return self.options.get(f"{name}.type")

    def build(self, g: SpellingBuilder, dynamic: bool = False, front: bool = False) -> onnx.ModelProto:
        """The model, with the freedoms of the builder; ``front`` adds a bias to x."""
        reader = _Formula(self, g, dynamic)
        if front:
            x = reader.value(ast.parse("x", mode="eval").body, {})
            reader.inputs["x"] = g.add("Add", x, g.weight(self.dims(False)[-1]))
        reader.outputs.insert(0, reader.run(_statements(self.formula), {}))
        return reader.model()


def feeds_of(model: onnx.ModelProto, case: Case, family: Family, turn: int = 0) -> dict[str, Array]:
    """Inputs of a case's model; `deviation` and `within` of its options say how large floats are.

    In every other turn a condition is true.
    """
    rng = np.random.default_rng(7)
    feeds = {}
    fixed = {tensor.name for tensor in model.graph.initializer}
    for given in (each for each in model.graph.input if each.name not in fixed):
        tensor = given.type.tensor_type
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
        shape = [dim.dim_value for dim in tensor.shape.dim]
        if 0 in shape:
            shape = [int(size or 0) for size in case.dims(False, given.name if given.name in case.options else "x")]
        deviation = float(case.options.get("deviation", 2))
        if dtype.kind == "b":
            feeds[given.name] = np.asarray(rng.random(shape) < 0.5 if shape else turn % 2 == 0)
            continue
        data = fill(family, rng, shape, dtype, mean=0.25, deviation=deviation)
        limit = float(case.options.get("within", "inf"))
        feeds[given.name] = np.clip(data, -limit, limit) if dtype.kind == "f" else data
    return feeds


def cases(folder: Path = FOLDER) -> Iterator[Case]:
    """All cases of all files of a folder."""
    for file in sorted(folder.glob("*.txt")):
        yield from read(file.read_text(encoding="utf-8"), f"{file.stem}/")


def read(text: str, prefix: str = "") -> Iterator[Case]:
    """The cases of a file's text."""
    words: dict[str, str] = {}
    macros: dict[str, Macro] = {}
    general: dict[str, str] = {}
    for line in _lines(text):
        line = _replaced(line, words)
        if match := re.fullmatch(r"let (\w+)(?:\((.*?)\))? = (.*)", line):
            if match[2] is None:
                words[match[1]] = match[3]
            else:
                macros[match[1]] = Macro(match[2].split(", "), _statements(match[3]))
        elif line.startswith("at "):
            general = _options(line[3:])
        else:
            yield from _cases(prefix, line, general, dict(macros))


def case_of(name: str, folder: Path = FOLDER) -> Case:
    """The case of that name."""
    return next(case for case in cases(folder) if case.name == name)


def model_of(formula: str, macros: str = "", **options: Any) -> onnx.ModelProto:
    """The model of one formula, x of shape [2, 5, 8] and opset 17 unless the options say another."""
    options = {"x": "2,5,8", "opset": 17, **options}
    given = " ".join(f"{name.replace('_type', '.type')}={value}" for name, value in options.items())
    (case,) = read(f"{macros}\nformula ({given}): {formula} -> left")
    return case.build(SpellingBuilder(case.opsets[0], case.options.get("dtype", "float32")), "dynamic" in options)


def _lines(text: str) -> Iterator[str]:
    """Lines with what continues them, without comments."""
    kept = "\n".join(line for line in text.splitlines() if line.strip() and not line.startswith("#"))
    yield from re.sub(r"\n\s+", " ", re.sub(r"\n\s+\|", "|", kept)).splitlines()


def _statements(text: str) -> list[ast.stmt]:
    return ast.parse(re.sub(r"; (?=([^']*'[^']*')*[^']*$)", "\n", text)).body


def _replaced(line: str, words: Mapping[str, str]) -> str:
    return re.sub(r"\w+", lambda match: words.get(match[0], match[0]), line)


def _options(text: str) -> dict[str, str]:
    return dict(option.partition("=")[::2] for option in text.split())


def _cases(prefix: str, line: str, general: dict[str, str], macros: dict[str, Macro]) -> Iterator[Case]:
    found = []
    for choice, text in _alternatives(line):
        match = re.fullmatch(r"([^:(]+?)(?: \((.*?)\))?: (.*) -> (.*)", text)
        assert match, f"{prefix}: no case: {text}"
        name = prefix + match[1] + "".join(f"-{index}" for index in choice)
        found.append((choice, Case(name, match[3], match[4], general | _options(match[2] or ""), macros)))
    strength = int(found[0][1].options.get("covering", 0))
    chosen = covering([choice for choice, _ in found], strength) if strength else range(len(found))
    yield from (found[index][1] for index in chosen)


def _alternatives(line: str) -> Iterator[tuple[tuple[int, ...], str]]:
    """The text for each choice in its braces, which may lie in each other."""
    groups: dict[str, list[list[str]]] = {}

    def mark(match: re.Match[str]) -> str:
        tag, values = match[1] or f"{len(groups)}", match[2].split("|")
        groups.setdefault(tag, []).append(values)
        return f"<{tag}@{len(groups[tag]) - 1}>"

    while (marked := re.sub(r"\{(?:(\w+):)?([^{}]*)\}", mark, line)) != line:
        line = marked
    for choice in product(*(range(len(values[0])) for values in groups.values())):
        index, text = dict(zip(groups, choice, strict=True)), line
        while (chosen := re.sub(r"<(\w+)@(\d+)>", lambda m: groups[m[1]][int(m[2])][index[m[1]]], text)) != text:  # noqa: B023
            text = chosen
        yield choice, text


@dataclass
class _Later:
    """What a name stands for, whose nodes are added when it is first used."""

    expression: ast.expr
    names: dict[str, Any]
    value: Any = None


class _Formula:
    """Adds a formula's nodes to a builder."""

    def __init__(self, case: Case, g: SpellingBuilder, dynamic: bool) -> None:
        self._case, self._g, self._dynamic = case, g, dynamic
        self.inputs: dict[str, str] = {}
        self.outputs: list[str] = []
        self.functions: dict[str, onnx.FunctionProto] = {}

    def run(self, statements: list[ast.stmt], names: dict[str, Any]) -> Any:
        """Take in statements; the value of the last one, whose nodes come last."""
        value: Any = None
        for statement in statements:
            if isinstance(statement, ast.Assign) and isinstance(target := statement.targets[0], ast.Tuple):
                wanted = [name.id for name in target.elts if isinstance(name, ast.Name)]
                value = self.value(statement.value, names)
                own = f".{self._g.node_count}"
                more = ["" if name == "_" else name + own * (name in names) for name in wanted[1:]]
                self._g.more_outputs(more)
                names |= dict(zip(wanted, [value, *more], strict=True))
            elif isinstance(statement, ast.Assign) and isinstance(target, ast.Name):
                value = names[target.id] = _Later(statement.value, dict(names))
            elif isinstance(statement, ast.Expr):
                value = self.value(statement.value, names)
        return value

    def value(self, node: ast.expr, names: dict[str, Any]) -> Any:
        """A name of the graph, a number or a list."""
        match node:
            case ast.Constant() | ast.List() | ast.UnaryOp(operand=ast.Constant()):
                value = ast.literal_eval(node)
                return float(value) if isinstance(value, int) and not isinstance(value, bool) else value
            case ast.Name(id=name) if name in TensorProto.DataType.keys():  # noqa: SIM118 (no mapping)
                return TensorProto.DataType.Value(name)
            case ast.Name(id=name):
                if isinstance(later := names.get(name), _Later):
                    later.value = self.value(later.expression, later.names) if later.value is None else later.value
                    return later.value
                return names[name] if name in names else self._input(name, None)
            case ast.Subscript(value=ast.Name(id=name), slice=index):
                shape = ast.literal_eval(index)
                shape = shape if isinstance(shape, tuple) else (shape,)
                return self._g.weight(*shape, mean=WEIGHTS[name]) if name in WEIGHTS else self._input(name, shape)
            case ast.Subscript(value=ast.Attribute(value=ast.Name(id=kind), attr=name), slice=index):
                shape = ast.literal_eval(index)
                shape = shape if isinstance(shape, tuple) else (shape,)
                return self._integers(kind, shape) if name in WEIGHTS else self._input(name, shape, kind)
            case ast.BinOp(left=left, op=operator, right=right):
                return self._g.add(BINARY[type(operator)], self.value(left, names), self.value(right, names))
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return self._g.add("Neg", self.value(operand, names))
            case ast.Call(func=ast.Name(id="If"), args=[condition, *branches]):
                chosen = self.value(condition, names)
                return self._nested("If", [chosen], names, then_branch=branches[0], else_branch=branches[1])
            case ast.Call(func=ast.Name(id="Loop"), args=[count, carried, ast.Name(id=macro)]):
                given = [np.asarray(ast.literal_eval(count)), np.asarray(True), self.value(carried, names)]
                return self._nested("Loop", given, names, body=macro)
            case ast.Call(func=function, args=arguments, keywords=keywords):
                given = [self.value(argument, names) for argument in arguments]
                attributes = {str(word.arg): self._attribute(word.value, names) for word in keywords}
                return self._call(function, given, attributes)
        raise ValueError(f"{self._case.name}: {ast.unparse(node)}")

    def _attribute(self, node: ast.expr, names: dict[str, Any]) -> Any:
        try:
            return np.nan if ast.unparse(node) == "nan" else ast.literal_eval(node)
        except ValueError:
            return self.value(node, names)

    def _input(self, name: str, shape: Any, kind: str | None = None) -> str:
        if name not in self.inputs:
            own = name if name in self._case.options else "x"
            dims = self._case.dims(self._dynamic, own) if shape is None else shape
            self.inputs[name] = self._g.input(name, dims, kind or self._case.dtype(name))
        return self.inputs[name]

    def _integers(self, kind: str, shape: tuple[int, ...]) -> Any:
        """Weights: on x86 without VNNI sums of larger products of uint8 and int8 may be wrong."""
        size = {"int4": 8, "uint4": 8, "int32": 2000}.get(kind, 64)
        middle = {"uint4": 8, "uint8": 128, "uint16": 32768}.get(kind, 0)
        numbers = np.random.default_rng(len(shape) + sum(shape))
        return numbers.integers(middle - size, middle + size, shape).astype(np.dtype(kind))

    def _nested(self, op_type: str, given: list[Any], names: dict[str, Any], **graphs: Any) -> str:
        g, attributes = self._g, {}
        for graph in graphs.values():  # what is computed outside
            for part in ast.walk(graph) if isinstance(graph, ast.expr) else ():
                if isinstance(part, ast.Name) and isinstance(names.get(part.id), _Later):
                    self.value(part, names)
        for attribute, graph in graphs.items():
            kind, inputs, outputs = g.onnx_type(self._case.dtype("y") or g.dtype), [], []
            with g.nested() as nodes:
                if isinstance(graph, str):
                    macro, (i, keep, carried) = self._case.macros[graph], (f"{name} {graph}" for name in "ikx")
                    scalars = ((i, TensorProto.INT64), (keep, TensorProto.BOOL))
                    inputs = [onnx.helper.make_tensor_value_info(name, code, []) for name, code in scalars]
                    inputs.append(onnx.helper.make_tensor_value_info(carried, kind, self._case.dims(self._dynamic)))
                    outputs = [onnx.helper.make_tensor_value_info(g.add("Identity", keep), TensorProto.BOOL, [])]
                    value = self.run(macro.body, dict(zip(macro.parameters, [carried], strict=True)))
                else:
                    value = self.value(graph, names)
                if not any(value in node.output for node in nodes):
                    value = g.add("Identity", value)
            outputs.append(onnx.helper.make_tensor_value_info(value, kind, None))
            attributes[attribute] = onnx.helper.make_graph(nodes, attribute, inputs, outputs)
        return g.add(op_type, *given, **attributes)

    def _call(self, function: ast.expr, given: list[Any], attributes: dict[str, Any]) -> Any:
        g, domain = self._g, ""
        if isinstance(function, ast.Attribute):
            name, domain = function.attr, DOMAINS[ast.unparse(function.value)]
        else:
            name = ast.unparse(function)
        if name == "output":
            self.outputs.append(given[0])
            return None
        if domain == "own" and name in self._case.macros:
            self._function(name)
            return g.add(name, *given, domain=domain)
        if name in ("tensor", "default"):
            return g.constant(given[0]) if name == "tensor" else g.default(given[0])
        if name in ARRAYS:
            return ARRAYS[name](*given)
        if name in TYPES:
            return np.asarray(given[0]).astype(np.dtype(name))
        if name in self._case.macros:
            macro = self._case.macros[name]
            return self.run(macro.body, dict(zip(macro.parameters, given, strict=True)))
        if name.startswith("Reduce") and "axes" in attributes:
            return g.reduce(name, *given, **attributes)
        since, moved = INPUTS_SINCE.get(name, (0, []))
        if name == "Clip":  # no vectors of one element
            given = [np.asarray(value, g.dtype) if isinstance(value, float) else value for value in given]
        if g.opset < since:
            values = [value.tolist() if isinstance(value, np.ndarray) else value for value in given[1:]]
            given, attributes = given[:1], attributes | dict(zip(moved, values, strict=False))
        return g.add(name, *given, domain=domain, **attributes)

    def _function(self, name: str) -> None:
        """A macro as a function of the model, which holds its constants as nodes."""
        if name in self.functions:
            return
        macro = self._case.macros[name]
        with self._g.function() as nodes:
            result = self.run(macro.body, {each: each for each in macro.parameters})
        versions = {node.domain: 1 for node in nodes} | {"": self._g.opset}
        opsets = [onnx.helper.make_opsetid(domain, version) for domain, version in versions.items()]
        made = onnx.helper.make_function("own", name, macro.parameters, [result], nodes, opsets)
        self.functions[name] = made

    def model(self) -> onnx.ModelProto:
        """The model, its outputs typed as ONNX infers it and, where it does not, like x."""
        model = self._g.untyped(self.outputs)
        model.functions.extend(self.functions.values())
        inferred = {v.name: v.type.tensor_type for v in _inferred(model)}
        x = self._case.dims(self._dynamic)
        for index, output in enumerate(model.graph.output):
            kind = inferred.get(output.name, onnx.TypeProto.Tensor())
            known: Any = [dim.dim_value or None for dim in kind.shape.dim] if kind.HasField("shape") else None
            if index == 0 and "untyped" not in self._case.options and (known is None or len(known) == len(x)):
                known = [mine or own for mine, own in zip(known or x, x, strict=True)]
            if index == 0 and "y" in self._case.options:
                known = self._case.dims(True, "y")
            given = self._case.dtype("y") if index == 0 else None
            element = kind.elem_type or self._g.onnx_type(given or self._g.dtype)
            output.CopyFrom(onnx.helper.make_tensor_value_info(output.name, element, known))
        return model


def _inferred(model: onnx.ModelProto) -> list[onnx.ValueInfoProto]:
    graph = onnx.shape_inference.infer_shapes(model, data_prop=True).graph
    return [*graph.output, *graph.value_info]
