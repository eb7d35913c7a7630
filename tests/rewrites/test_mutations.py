"""A spelling with one thing changed is another function, or the same in another way: what is fused computes the same.

Each mutant of a spelling has one constant, one operator or one wire changed, and is run before and after the rewrite.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import onnx.shape_inference
import pytest
from corpus_reader import cases
from hypothesis import settings
from onnx import numpy_helper
from rewrite_harness import SpellingBuilder, fused_nodes, optimize, run

#: What an operator is mistaken for.
OTHERS = {
    "Add": ("Sub", "Mul"),
    "Sub": ("Add", "Div"),
    "Mul": ("Div", "Add"),
    "Div": ("Mul", "Sub"),
    "Pow": ("Mul",),
    "Max": ("Min",),
    "Greater": ("Less",),
    "Tanh": ("Sigmoid", "Erf"),
    "Erf": ("Tanh",),
    "Sigmoid": ("Tanh", "HardSigmoid"),
    "Softplus": ("Relu",),
    "Sqrt": ("Reciprocal", "Abs"),
    "Reciprocal": ("Sqrt", "Neg"),
    "Neg": ("Abs",),
    "Exp": ("Abs",),
    "ReduceMean": ("ReduceMax", "ReduceL2"),
    "ReduceSum": ("ReduceMean",),
}
FACTORS = (0.5, -1.0, 8.0, 1.01)
#: Every so many mutants are tried; all of them in the thorough profile.
STEP = max(1, 600 // settings().max_examples)


#: The spellings of exporters.
SPELLINGS = {
    case.name: case
    for case in cases()
    if ("within" in case.options or case.options["x"] == "batch:2,length:5,8")
    and case.expected.startswith("[")
    and "output" not in case.formula
    and "Shape" not in case.formula
    and "dtype" not in case.options
    and 13 in case.opsets
}


def mutants(model: onnx.ModelProto) -> Iterator[tuple[str, onnx.ModelProto]]:
    """Every model that differs from the given one in one constant, one operator or one wire."""
    constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    for index, node in enumerate(model.graph.node):
        for other in OTHERS.get(node.op_type, ()):
            changed = onnx.ModelProto.FromString(model.SerializeToString())
            changed.graph.node[index].op_type = other
            del changed.graph.node[index].input[_operands(other, len(node.input)) :]
            yield f"{node.name} becomes {other}", changed
        before = ["x", *(output for earlier in model.graph.node[:index] for output in earlier.output)]
        for position, name in enumerate(node.input):
            if name in constants and constants[name].dtype.kind == "f":
                for factor in FACTORS:
                    yield f"{name} of {node.name} times {factor}", _with_constant(model, index, position, factor)
            for other in before if name not in constants else ():
                if other != name:
                    changed = onnx.ModelProto.FromString(model.SerializeToString())
                    changed.graph.node[index].input[position] = other
                    yield f"{node.name} reads {other} for {name}", changed


def _operands(op_type: str, given: int) -> int:
    """How many inputs an operator of the table above takes, at most `given`."""
    schema = onnx.defs.get_schema(op_type, 13)
    return min(given, schema.max_input)


def _with_constant(model: onnx.ModelProto, index: int, position: int, factor: float) -> onnx.ModelProto:
    """The model with one use of a constant multiplied."""
    changed = onnx.ModelProto.FromString(model.SerializeToString())
    name = changed.graph.node[index].input[position]
    (tensor,) = (tensor for tensor in model.graph.initializer if tensor.name == name)
    array = numpy_helper.to_array(tensor)
    changed.graph.initializer.append(numpy_helper.from_array((array * factor).astype(array.dtype), "mutated"))
    changed.graph.node[index].input[position] = "mutated"
    return changed


def check(what: str, mutant: onnx.ModelProto) -> None:
    """Assert that a mutant computes the same once it is rewritten, unless it is no model at all."""
    shape = [dim.dim_value for dim in mutant.graph.input[0].type.tensor_type.shape.dim]
    feeds = {"x": np.linspace(-8, 24, math.prod(shape)).reshape(shape).astype(np.float32)}
    mutant.graph.output[0].type.tensor_type.ClearField("shape")
    try:
        onnx.shape_inference.infer_shapes(mutant, check_type=True, strict_mode=True)
    except onnx.shape_inference.InferenceError:
        return  # a wire of another type
    expected = _first(run(mutant, feeds, optimized=False))
    optimized, _ = optimize(mutant)
    if not fused_nodes(optimized):
        return
    got = _first(run(optimized, feeds))
    assert got.shape == expected.shape, what
    finite = np.isfinite(expected)
    size = 1 + np.abs(expected[finite]).max(initial=0.0)
    np.testing.assert_allclose(got[finite], expected[finite], rtol=2e-3, atol=1e-4 * size, err_msg=what)


def _first(outputs: dict[str, Any]) -> Any:
    return next(iter(outputs.values()))


@pytest.mark.parametrize("name", SPELLINGS)
def test_what_is_fused_of_a_changed_spelling_computes_the_same(name: str) -> None:
    for what, mutant in itertools.islice(mutants(SPELLINGS[name].build(SpellingBuilder(13))), 0, None, STEP):
        check(what, mutant)
