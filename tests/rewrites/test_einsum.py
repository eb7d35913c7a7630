"""Einsum that is a matrix product becomes MatMul behind Transposes; every other one stays as it is."""

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
from rewrite_harness import Array, close, fused_nodes, optimize, round_trip, run

from normfuse.graph_rewrites import Target, rewrite

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

B, H, Q, K, D = 2, 3, 10, 12, 8
N = 64
WRITTEN: dict[str, tuple[list[Sequence[int | str]], list[str]]] = {
    # equation: shapes, and what it becomes
    "bct,bcs->bts": ([(B, D, Q), (B, D, K)], ["Transpose", "MatMul"]),
    "bts,bcs->bct": ([(B, Q, K), (B, D, K)], ["Transpose", "MatMul", "Transpose"]),
    "bhqd,bhkd->bhqk": ([(B, H, Q, D), (B, H, K, D)], ["Transpose", "MatMul"]),
    "bhqk,bhkd->bhqd": ([(B, H, Q, K), (B, H, K, D)], ["MatMul"]),
    "bqhd,bkhd->bhqk": ([(B, Q, H, D), (B, K, H, D)], ["Transpose", "Transpose", "MatMul"]),
    "bhqk,bkhd->bqhd": ([(B, H, Q, K), (B, K, H, D)], ["Transpose", "MatMul", "Transpose"]),
    "bsd,de->bse": ([(1, 2, 3), (3, N)], ["MatMul"]),
    "bsd,ed->bse": ([(1, 2, D), (N, D)], ["Transpose", "MatMul"]),
    "ij,jk->ik": ([(1, 2), (2, N)], ["MatMul"]),
    "ji,kj->ki": ([(D, Q), (N, D)], ["Transpose", "Transpose", "MatMul", "Transpose"]),
    " b i j , bjk->  bik ": ([(1, 1, 1), (1, 1, D)], ["MatMul"]),
    "Bij,BjK->BiK": ([(3, 1, 2), (3, 2, D)], ["MatMul"]),
    "ij,jk": ([(2, 3), (3, N)], ["MatMul"]),
    "kj,ji": ([(Q, D), (D, N)], ["MatMul", "Transpose"]),
    "bij,bjk->bik": ([("batch", "rows", "inner"), ("batch", "inner", "columns")], ["MatMul"]),
    "abij,abjk->abik": ([("batch", 3, "rows", 2), (2, "other", 2, "columns")], ["MatMul"]),
    "ibj,bjk->bik": ([(Q, 3, D), ("other", D, K)], ["Transpose", "MatMul"]),
    "bsd,de ->bse": ([("batch", "rows", 3), (3, N)], ["MatMul"]),
}


@pytest.mark.parametrize("equation", WRITTEN)
def test_written_as_matmul(equation: str) -> None:
    shapes, expected = WRITTEN[equation]
    sizes = {"batch": 2, "rows": 3, "inner": 5, "columns": 4, "other": 3}
    feeds = arrays([[dim if isinstance(dim, int) else sizes[dim] for dim in shape] for shape in shapes])
    model = einsum(equation, shapes)
    optimized, result = optimize(model)
    assert operators(optimized) == expected
    assert (result.counts, result.sites) == ({COUNT: 1}, [])
    onnx.checker.check_model(optimized, full_check=True)
    (got,), (of_einsum,) = run(optimized, feeds).values(), run(model, feeds).values()
    close(got, exact(equation, feeds), equation)
    close(got, of_einsum, "ONNX Runtime's Einsum")

    again, second = optimize(optimized)
    assert again.SerializeToString(deterministic=True) == optimized.SerializeToString(deterministic=True)
    assert second.counts == {}


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

LEFT: dict[str, tuple[str, list[Sequence[int | str | None]]]] = {
    "one operand": ("bij->bji", [(2, 3, 8)]),
    "three operands": ("ij,jk,kl->il", [(8, 8), (8, 8), (8, 8)]),
    "an ellipsis": ("...ij,...jk->...ik", [(2, 8, 8), (2, 8, 8)]),
    "a diagonal": ("bii,bik->bik", [(2, 8, 8), (2, 8, 8)]),
    "a diagonal beside a product": ("bijj,bjk->bik", [(2, 8, 8, 8), (2, 8, 8)]),
    "a sum beside a product": ("aij,jk->ik", [(8, 8, 8), (8, 64)]),
    "columns of two labels of one matrix": ("ij,jkl->ikl", [(8, 8), (8, 64, 64)]),
    "a vector and a matrix": ("j,jk->k", [(8,), (8, 64)]),
    "an outer product": ("i,j->ij", [(64,), (64,)]),
    "a product of elements": ("bij,bij->bij", [(2, 8, 8), (2, 8, 8)]),
    "a product of rows, which has no columns": ("bik,bik->bi", [(2, 8, 8), (2, 8, 8)]),
    "a matrix and a vector": ("bij,j->bi", [(2, 8, 8), (8,)]),
    "a sum over two labels": ("bijk,bjkl->bil", [(2, 8, 8, 8), (2, 8, 8, 8)]),
    "a sum over a label of one operand": ("bij,bjk->bk", [(2, 8, 8), (2, 8, 8)]),
    "a sum over a label of the other operand": ("bij,jkl->bik", [(2, 8, 8), (8, 8, 8)]),
    "columns of two labels": ("bsd,dhk->bshk", [(2, 8, 8), (8, 64, 64)]),
    "rows of two labels beside a batch": ("bhqd,bkd->bhqk", [(2, 3, 8, 8), (2, 8, 8)]),
    "a matrix on the left of a batch": ("ij,bjk->bik", [(8, 8), (2, 8, 8)]),
    "a batch in another order": ("abij,bajk->abik", [(2, 3, 8, 8), (3, 2, 8, 8)]),
    "a result with its batch in another order": ("abij,abjk->baik", [(2, 3, 8, 8), (2, 3, 8, 8)]),
    "rows that are turned in front of a matrix": ("bds,de->bse", [(2, 8, 8), (8, 64)]),
    "a result that is turned behind a matrix": ("bsd,de->bes", [(2, 8, 8), (8, 64)]),
    "letters of two cases without a result": ("kA,Ab", [(8, 8), (8, 64)]),
    "summed dimensions of which one is 1": ("bij,bjk->bik", [(2, 8, 1), (2, 8, 8)]),
    "summed dimensions that may differ": ("bij,bjk->bik", [(2, 8, "n"), (2, "m", 8)]),
    "summed dimensions without a name": ("bij,bjk->bik", [(2, 8, None), (2, None, 8)]),
    "a batch of which one is 1": ("bij,bjk->bik", [(1, 8, 8), (2, 8, 8)]),
    "few columns": ("bij,bjk->bik", [(2, 8, 8), (2, 8, 7)]),
    "few columns of a matrix": ("ij,jk->ik", [(8, 8), (8, 63)]),
    "columns of a matrix whose number is not known": ("bij,jk->bik", [(2, 8, 8), (8, "n")]),
    "few rows that would be turned": ("bji,bjk->bik", [(2, 8, 7), (2, 8, 8)]),
    "rows whose number is not known that would be turned": ("bji,bjk->bik", [(2, 8, "n"), (2, 8, 8)]),
    "a batch of 1 that would be moved": ("ibj,bjk->bik", [(8, 1, 8), (1, 8, 8)]),
    "a batch of unknown size that would be moved": ("ibj,bjk->bik", [(8, "n", 8), ("n", 8, 8)]),
}


@pytest.mark.parametrize("name", LEFT)
def test_left_as_it_is(name: str) -> None:
    equation, shapes = LEFT[name]
    model = einsum(equation, shapes)
    optimized, result = optimize(model)
    assert result.counts == {}
    assert optimized.SerializeToString() == round_trip(model).SerializeToString()


def test_without_a_rank() -> None:
    model = einsum("bij,bjk->bik", [(2, 8, 8), (2, 8, 8)])
    model.graph.input[1].type.tensor_type.ClearField("shape")
    assert operators(optimize(model)[0]) == ["Einsum"]


@pytest.mark.parametrize(
    ("dtype", "equation", "expected"),
    [
        ("float16", "bij,bjk->bik", ["Einsum"]),
        ("float64", "bij,bjk->bik", ["MatMul"]),
        ("float64", "bji,bkj->bik", ["Transpose", "Transpose", "MatMul"]),
        ("float64", "bij,bjk->bki", ["Einsum"]),
    ],
)
def test_types(dtype: str, equation: str, expected: list[str]) -> None:
    """A Transpose of float16 in front of a MatMul can end ONNX Runtime's process; one of a float64 result is slow."""
    shapes = [(2, 8, 8), (2, 8, 8)]
    model = einsum(equation, shapes, dtype=dtype)
    optimized, _ = optimize(model)
    assert operators(optimized) == expected
    feeds = arrays(shapes, dtype)
    if dtype == "float64":
        np.testing.assert_allclose(run(optimized, feeds)["y"], exact(equation, feeds), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    "equation",
    ["bij,bjk->bilk", "bhij,bhjk->bhik", "bij;bjk->bik", "bij,bjk->bikb", "bijk,bjk->bik", "->", "", "ij,jk->"],
)
def test_equations_that_say_nothing_are_left_to_onnx_runtime(equation: str) -> None:
    model = einsum(equation, [(2, 8, 8), (2, 8, 8)])
    optimized, result = optimize(model)
    assert result.counts == {}
    assert [attribute.s for attribute in optimized.graph.node[0].attribute] == [equation.encode()]


@pytest.mark.parametrize("attributes", [{}, {"equation": 3}, {"equation": "bij,bjk->bik", "axis": 1}])
def test_nodes_that_break_the_schema_are_left_to_onnx_runtime(attributes: dict[str, Any]) -> None:
    model = einsum("bij,bjk->bik", [(2, 8, 8), (2, 8, 8)])
    del model.graph.node[0].attribute[:]
    model.graph.node[0].attribute.extend(helper.make_attribute(name, value) for name, value in attributes.items())
    assert operators(optimize(model)[0]) == ["Einsum"]


def test_more_operands_than_the_equation_names_are_left_to_onnx_runtime() -> None:
    model = einsum("bij,bjk->bik", [(2, 8, 8), (2, 8, 8), (2, 8, 8)])
    assert operators(optimize(model)[0]) == ["Einsum"]


def test_a_result_with_the_wrong_rank_is_left_to_onnx_runtime() -> None:
    model = einsum("bij,bjk->bki", [(2, 8, 8), (2, 8, 8)])
    del model.graph.output[0].type.tensor_type.shape.dim[2]
    optimized, _ = optimize(model)
    assert [len(value.type.tensor_type.shape.dim) for value in optimized.graph.output] == [2]
    assert not [info.name for info in optimized.graph.value_info if info.type.tensor_type.HasField("shape")]


@pytest.mark.parametrize("operand", [0, 1])
@pytest.mark.parametrize("between", ["", "t = Transpose <perm = [0, 2, 1]> (d)"])
def test_dequantised_operands_are_left(operand: int, between: str) -> None:
    """ONNX Runtime would run the MatMul in integers, whose results differ."""
    value = "t" if between else "d"
    pair = f"{value}, x" if operand == 0 else f"x, {value}"
    model = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["" : 17]>
        g (float[2,8,8] x, int8[2,8,8] q) => (float[2,8,8] y) <float s = {{0.1}}> {{
            d = DequantizeLinear (q, s)
            {between}
            y = Einsum <equation = "bij,bjk->bik"> ({pair})
        }}"""
    )
    optimized, result = optimize(model)
    assert COUNT not in result.counts
    assert "Einsum" in operators(optimized)


# --- what belongs to the node, and what is around it ----------------------------------------------------------------


def test_the_matmul_keeps_what_the_node_says_of_itself() -> None:
    optimized, _ = optimize(einsum("bts,bcs->bct", [(2, 8, 8), (2, 8, 8)]))
    (node,) = (node for node in optimized.graph.node if node.op_type == "MatMul")
    assert (node.name, node.doc_string) == ("sum", "from the paper")
    assert {entry.key: entry.value for entry in node.metadata_props} == {"layer": "7"}
    assert [value.name for value in optimized.graph.output] == ["y"]


def test_new_values_have_types_and_shapes() -> None:
    """Which other tools, and the rules of the pass, would not find by themselves."""
    optimized, _ = optimize(einsum("bts,bcs->bct", [("n", 8, 8), ("n", 9, 8)]))
    types = {
        info.name: [dim.dim_param or dim.dim_value for dim in info.type.tensor_type.shape.dim]
        for info in optimized.graph.value_info
        if info.type.tensor_type.elem_type == TensorProto.FLOAT
    }
    assert types == {"sum.transposed_1": ["n", 8, 9], "sum.product": ["n", 8, 9]}


def test_what_is_said_of_the_result_stays_with_it() -> None:
    model = ir.from_proto(einsum("bts,bcs->bct", [(2, 8, 8), (2, 8, 8)]))
    model.graph.outputs[0].metadata_props["unit"] = "V"
    rewrite(model)
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


@pytest.mark.parametrize("target", ["portable", "custom-op", "standard"])
def test_in_subgraphs_and_functions(target: Target) -> None:
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17, "own" : 1]>
        g (float[2,8,9] x, float[2,8,9] w, bool c) => (float[2,9,9] y) {
            f = own.product (x, w)
            y = If (c) <then_branch = t () => (float[2,9,9] p) { p = Einsum <equation = "bki,bij->bkj"> (f, f) },
                        else_branch = e () => (float[2,9,9] q) { q = own.product (x, x) }>
        }
        <domain: "own", opset_import: ["" : 17]> product (a, b) => (r) { r = Einsum <equation = "bki,bkj->bij"> (a, b) }
        <domain: "own", opset_import: ["" : 17]> unused (a, b) => (r) { r = Einsum <equation = "bki,bkj->bij"> (a, b) }
        """
    )
    optimized, result = optimize(model, target=target)
    assert result.counts == {COUNT: 2}
    onnx.checker.check_model(optimized)
    bodies = {function.name: [node.op_type for node in function.node] for function in optimized.functions}
    assert bodies == {"product": ["Transpose", "MatMul"], "unused": ["Einsum"]}
    x, w = arrays([(2, 8, 9), (2, 8, 9)]).values()
    f = np.einsum("bki,bkj->bij", x, w)
    for branch, expected in ((True, f @ f), (False, np.einsum("bki,bkj->bij", x, x))):
        close(run(optimized, {"x": x, "w": w, "c": np.array(branch)})["y"], expected, f"branch {branch}")


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


@pytest.mark.parametrize("target", ["portable", "custom-op", "standard"])
def test_chains_around_a_product(target: Target) -> None:
    """They are found as beside a MatMul, and a value that is an output of the model keeps its name."""
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]>
        g (float[2,9,8] x, float[8] s, float[8] t) => (float[2,9,9] w, float[2,9,9] y) {
            n = LayerNormalization <epsilon = 1e-5> (x, s, t)
            w = Einsum <equation = "bij,bkj->bki"> (n, x)
            e = Sigmoid (w)
            y = Mul (w, e)
        }"""
    )
    optimized, result = optimize(model, target=target)
    assert result.counts.pop(COUNT) == 1
    assert sum(result.counts.values()) == 2
    assert [site.description for site in result.sites if site.fused_into] == ["LayerNormalization", "Swish"]
    assert [value.name for value in optimized.graph.output] == ["w", "y"]
    if target == "portable":
        assert len(fused_nodes(optimized)) == 2
    if target != "custom-op":
        rng = np.random.default_rng(3)
        shapes = {"x": (2, 9, 8), "s": (8,), "t": (8,)}
        feeds = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}
        for name, expected in run(model, feeds).items():
            close(run(optimized, feeds)[name], expected, name)
