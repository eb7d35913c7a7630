"""Einsum as MatMul, beside tests/corpus/einsum.txt: any product, what breaks the schema, names and types."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from rewrite_harness import Array, close, optimize, run

from normfuse.graph_rewrites import rewrite

COUNT = "EinsumAsMatMul"
EXAMPLES = settings().max_examples
TYPES = {"float32": TensorProto.FLOAT, "float64": TensorProto.DOUBLE, "float16": TensorProto.FLOAT16}


def einsum(
    equation: str,
    shapes: Sequence[Sequence[int | str | None] | Sequence[int | str] | Sequence[int]],
    *,
    dtype: str = "float32",
    constant: Mapping[int, Array] | None = None,
) -> onnx.ModelProto:
    """One Einsum; operands are called a, b, ..., and its result is y."""
    constant = constant or {}
    names = "abc"[: len(shapes)]
    inputs = [
        helper.make_tensor_value_info(name, TYPES[dtype], shape)
        for index, (name, shape) in enumerate(zip(names, shapes, strict=True))
        if index not in constant
    ]
    node = helper.make_node("Einsum", list(names), ["y"], "sum", doc_string="from the paper", equation=equation)
    helper.set_metadata_props(node, {"layer": "7"})
    ranks = {"ij,jk": 2, "kj,ji": 2}  # of equations that do not say their result
    _, arrow, out = equation.partition("->")
    rank = len(out.replace(" ", "")) if arrow else ranks.get(equation)
    result = helper.make_tensor_value_info("y", TYPES[dtype], None if rank is None else [None] * rank)
    weights = [numpy_helper.from_array(array, names[index]) for index, array in constant.items()]
    graph = helper.make_graph([node], "g", inputs, [result], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)


def operators(model: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in model.graph.node]


def arrays(shapes: Sequence[Sequence[int]], dtype: str = "float32") -> dict[str, Array]:
    rng = np.random.default_rng(7)
    return {name: rng.standard_normal(shape).astype(dtype) for name, shape in zip("abc", shapes, strict=False)}


def exact(equation: str, operands: Mapping[str, Array]) -> Array:
    return np.asarray(np.einsum(equation.replace(" ", ""), *(array.astype(np.float64) for array in operands.values())))


# --- what is written as MatMul --------------------------------------------------------------------------------------


@pytest.mark.parametrize("equation", ["bct,bcs->bts", "bts,bcs->bct"])
def test_attention_of_a_unet_keeps_its_bits(equation: str) -> None:
    """The factors stay on their sides, so that the product is the one that ONNX Runtime's Einsum computes."""
    shapes = [(2, 32, 64), (2, 32, 64)] if equation == "bct,bcs->bts" else [(2, 64, 64), (2, 32, 64)]
    model = einsum(equation, shapes)
    optimized, _ = optimize(model)
    np.testing.assert_array_equal(run(optimized, arrays(shapes))["y"], run(model, arrays(shapes))["y"])


LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


@dataclasses.dataclass(frozen=True)
class Case:
    """An equation with the sizes of its labels, those of `open` not known to the model."""

    equation: str
    terms: tuple[str, str, str]
    sizes: Mapping[str, int]
    open: frozenset[str]
    constant: bool
    """Whether the right operand is one."""

    def shapes(self) -> list[list[int]]:
        return [[self.sizes[label] for label in term] for term in self.terms[:2]]

    def declared(self) -> list[list[int | str]]:
        return [[label if label in self.open else self.sizes[label] for label in term] for term in self.terms[:2]]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """A product of this kind, with its labels in any order, or in that of MatMul."""
    leading = draw(st.integers(0, 3))
    labels = draw(st.permutations(LETTERS))[: leading + 3]
    leads, (m, k, n) = labels[:leading], labels[leading:]
    terms: list[str] = []
    for term in ([*leads, m, k], [*(leads if draw(st.booleans()) else []), k, n], [*leads, m, n]):
        order = draw(st.sampled_from(["MatMul's", "MatMul's", "turned", "leads in order", "any"]))
        shuffled = {"MatMul's": term, "turned": [*term[:-2], *term[:-3:-1]]}.get(order) or draw(st.permutations(term))
        in_order = iter([label for label in term if label in leads])
        terms.append("".join(next(in_order) if x in leads and order != "any" else x for x in shuffled))
    blank = st.sampled_from(["", " "])
    left, right, out = ("".join(label + draw(blank) for label in term) for term in terms)
    sizes = {label: draw(st.sampled_from([2, 3, 1, 0])) for label in leads}
    sizes |= {label: draw(st.sampled_from([64, 64, 64, 8, 9, 2, 1, 0])) for label in (m, k, n)}
    unknown = frozenset(draw(st.sets(st.sampled_from(labels)))) if draw(st.booleans()) else frozenset()
    return Case(f"{left},{right}->{out}", (terms[0], terms[1], terms[2]), sizes, unknown, draw(st.booleans()))


@settings(max_examples=4 * EXAMPLES)
@given(cases(), st.sampled_from(["float32", "float32", "float64"]))
def test_any_product(case: Case, dtype: str) -> None:
    """Whether or not it is written as MatMul, the model computes what the equation says, for sizes of 0 and 1, too."""
    operands = arrays(case.shapes(), dtype)
    constant = {1: operands["b"]} if case.constant else {}
    model = einsum(case.equation, case.declared(), dtype=dtype, constant=constant)
    optimized, result = optimize(model)
    written = result.counts.get(COUNT, 0)
    assert Counter(operators(optimized))["Einsum"] == 1 - written
    if not written and 0 in case.sizes.values():
        return  # ONNX Runtime's Einsum divides by sizes, which ends the process
    feeds = {"a": operands["a"]} if case.constant else operands
    close(run(optimized, feeds)["y"].astype(np.float32), exact(case.equation, operands), case.equation)


# --- what is left ---------------------------------------------------------------------------------------------------

PRODUCT = {"equation": "bij,bjk->bik"}
EQUATIONS = ["bij,bjk->bilk", "bhij,bhjk->bhik", "bij;bjk->bik", "bij,bjk->bikb", "bijk,bjk->bik", "->", "", "ij,jk->"]
ATTRIBUTES = [*({"equation": each} for each in EQUATIONS), {}, {"equation": 3}, {**PRODUCT, "axis": 1}]


@pytest.mark.parametrize("attributes", ATTRIBUTES, ids=str)
def test_nodes_that_say_nothing_are_left_to_onnx_runtime(attributes: dict[str, Any]) -> None:
    model = einsum("bij,bjk->bik", [(2, 8, 8), (2, 8, 8)])
    del model.graph.node[0].attribute[:]
    model.graph.node[0].attribute.extend(helper.make_attribute(name, value) for name, value in attributes.items())
    optimized, result = optimize(model)
    assert result.counts == {}
    assert optimized.graph.node[0].attribute == model.graph.node[0].attribute


def test_tensors_that_are_not_those_of_the_equation_are_left_to_onnx_runtime() -> None:
    """More operands than it names, one of no known rank, and a result of another rank."""
    unranked = einsum("bij,bjk->bik", [(2, 8, 8), (2, 8, 8)])
    unranked.graph.input[1].type.tensor_type.ClearField("shape")
    wrong = einsum("bij,bjk->bki", [(2, 8, 8), (2, 8, 8)])
    del wrong.graph.output[0].type.tensor_type.shape.dim[2]
    for model in (einsum("bij,bjk->bik", [(2, 8, 8)] * 3), unranked, wrong):
        optimized, result = optimize(model)
        assert result.counts == ({} if model is not wrong else {COUNT: 1})
    assert [len(value.type.tensor_type.shape.dim) for value in optimized.graph.output] == [2]
    assert not [info.name for info in optimized.graph.value_info if info.type.tensor_type.HasField("shape")]


# --- what belongs to the node, and what is around it ----------------------------------------------------------------


def test_what_is_said_of_node_and_result_stays_with_them() -> None:
    """And new values have types and shapes, which other tools, and the rules of the pass, would not find."""
    model = ir.from_proto(einsum("bts,bcs->bct", [("n", 8, 8), ("n", 9, 8)]))
    model.graph.outputs[0].metadata_props["unit"] = "V"
    rewrite(model)
    optimized = ir.to_proto(model)
    (node,) = (node for node in optimized.graph.node if node.op_type == "MatMul")
    assert (node.name, node.doc_string) == ("sum", "from the paper")
    assert {entry.key: entry.value for entry in node.metadata_props} == {"layer": "7"}
    types = {
        info.name: [dim.dim_param or dim.dim_value for dim in info.type.tensor_type.shape.dim]
        for info in optimized.graph.value_info
        if info.type.tensor_type.elem_type == TensorProto.FLOAT
    }
    assert types == {"sum.transposed_1": ["n", 8, 9], "sum.product": ["n", 8, 9]}
    assert {value.name: dict(value.metadata_props) for node in model.graph for value in node.outputs} == {
        "sum.transposed_1": {},
        "sum.product": {},
        "y": {"unit": "V"},
    }


NAMES_TAKEN = """<ir_version: 8, opset_import: ["" : 17]>
g (float[2,8,8] "sum.transposed_0", bool c) => (float[2,8,8] y, float[2,8,8] z) <float[1] "sum.product" = {2.0}> {
    a = Mul ("sum.transposed_0", "sum.product")
    [sum] y = Einsum <equation = "bst,bcs->bct"> (a, a)
    z = If (c) <then_branch = t () => (float[2,8,8] p) {
                    "sum.transposed_1" = Neg (a)
                    ["sum.transposed"] p = Neg ("sum.transposed_1") },
                else_branch = e () => (float[2,8,8] q) { q = Neg (a) }>
}"""


def test_names_that_are_taken_are_left_alone() -> None:
    """In subgraphs, too: a name there would hide the one outside."""
    model = onnx.parser.parse_model(NAMES_TAKEN)
    optimized, _ = optimize(model)
    onnx.checker.check_model(optimized, full_check=True)
    feeds = {"sum.transposed_0": arrays([(2, 8, 8)])["a"], "c": np.array(True)}
    for name, expected in run(model, feeds).items():
        close(run(optimized, feeds)[name], expected, name)
    assert [(node.op_type, node.name, node.output[0]) for node in optimized.graph.node][1:5] == [
        ("Transpose", "sum.transposed_0.1", "sum.transposed_0.1"),
        ("Transpose", "sum.transposed_1.1", "sum.transposed_1.1"),
        ("MatMul", "sum", "sum.product.1"),
        ("Transpose", "sum.transposed.1", "y"),
    ]


def test_a_function_that_is_given_its_equation() -> None:
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17, "own" : 1]>
        g (float[64,64] x) => (float[64,64] y) { y = own.sum <equation = "ij,jk->ik"> (x) }
        <domain: "own", opset_import: ["" : 17]> sum <equation> (a) => (r)
            { r = Einsum <equation: string = @equation> (a, a) }
        """
    )
    optimized, _ = optimize(model)
    assert [node.op_type for node in optimized.functions[0].node] == ["Einsum"]
