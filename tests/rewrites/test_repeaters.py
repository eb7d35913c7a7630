"""Nodes that only repeat a tensor, between any two nodes of a chain: it is found as without them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest
from covering import parametrize_spread
from onnx import helper, numpy_helper
from rewrite_harness import SpellingBuilder, close, fused_nodes, optimize, run

from normfuse import models

SHAPE = (2, 5, 8)
IMAGE = (2, 8, 3, 3)
CHAINS = {
    "LayerNorm": models.chain(SHAPE, spelling="pow_div", residual=True, activation_name="gelu_tanh", opset=13),
    "LayerNorm 8 bits": models.chain(
        SHAPE, activation_name="gelu_erf", input_type="int8", output_type="int8", opset=17
    ),
    "RMSNorm": models.chain(SHAPE, "RMSNormalization", spelling="reciprocal", opset=13),
    "GroupNorm": models.chain(
        IMAGE, "GroupNormalization", spelling="instance", groups=4, activation_name="silu", opset=18
    ),
    "HardSwish": models.chain(SHAPE, None, activation_name="hard_swish", opset=13),
    "Mish": models.chain(SHAPE, None, activation_name="mish", opset=18),
}


def identity(value: str, result: str) -> onnx.NodeProto:
    return helper.make_node("Identity", [value], [result], name=f"repeat {result}")


def dropout(value: str, result: str) -> onnx.NodeProto:
    return helper.make_node("Dropout", [value, "", "off"], [result], name=f"repeat {result}")


def cast(value: str, result: str) -> onnx.NodeProto:
    return helper.make_node("Cast", [value], [result], name=f"repeat {result}", to=onnx.TensorProto.FLOAT)


def inserted(
    model: onnx.ModelProto, count: int, make: Callable[[str, str], onnx.NodeProto] = identity, only: str | None = None
) -> onnx.ModelProto:
    """The model with so many nodes on every value that one of its nodes computes and others read, or on one of them."""
    made = onnx.ModelProto.FromString(model.SerializeToString())
    made.graph.ClearField("node")
    if make is dropout:
        made.graph.initializer.append(numpy_helper.from_array(np.array(False), "off"))
    read = {name for node in model.graph.node for name in node.input}
    renamed: dict[str, str] = {}
    for node in model.graph.node:
        copy = made.graph.node.add()
        copy.CopyFrom(node)
        copy.input[:] = [renamed.get(name, name) for name in node.input]
        value = node.output[0]
        for number in range(count if value in read and only in (None, value) else 0):
            result = f"{node.output[0]} {number}"
            made.graph.node.append(make(value, result))
            value = result
        renamed[node.output[0]] = value
    return made


def feeds(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(5)
    arrays = {}
    for value in model.graph.input:
        kind = value.type.tensor_type
        shape = [dim.dim_value for dim in kind.shape.dim]
        dtype = helper.tensor_dtype_to_np_dtype(kind.elem_type)
        arrays[value.name] = (rng.standard_normal(shape) * (1 if dtype.kind == "f" else 40)).astype(dtype)
    return arrays


def require_found(plain: onnx.ModelProto, model: onnx.ModelProto, at_most: int = 0) -> None:
    """The same sites, no node left that only repeats, and the results of the model itself."""
    expected, wanted = optimize(plain)
    optimized, result = optimize(model)
    assert [(site.kind, site.fused_into, site.description, site.reason) for site in result.sites] == [
        (site.kind, site.fused_into, site.description, site.reason) for site in wanted.sites
    ]
    assert [node.op_type for node in fused_nodes(optimized)] == [node.op_type for node in fused_nodes(expected)]
    repeated = [node.name for node in optimized.graph.node if node.name.startswith("repeat ")]
    assert len(repeated) <= at_most, repeated
    given = feeds(model)
    results = zip(run(model, given).values(), run(optimized, given).values(), strict=True)
    for number, (right, got) in enumerate(results):
        if right.dtype.kind == "f":
            close(got, right.astype(np.float64), f"output {number}")
        else:
            assert np.abs(got.astype(int) - right.astype(int)).max() <= 1


@parametrize_spread("name,count", list(CHAINS), [1, 2], each=1)
def test_identity_between_all_nodes(name: str, count: int) -> None:
    require_found(CHAINS[name], inserted(CHAINS[name], count))


@parametrize_spread("count,name", [400], list(CHAINS), each=2)
def test_many_identities_between_all_nodes(count: int, name: str) -> None:
    require_found(CHAINS[name], inserted(CHAINS[name], count))


@pytest.mark.parametrize("name", CHAINS)
def test_identity_between_two_nodes(name: str) -> None:
    plain = CHAINS[name]
    for node in plain.graph.node:
        require_found(plain, inserted(plain, 1, only=node.output[0]))


@pytest.mark.parametrize("make", [dropout, cast])
def test_other_nodes_that_repeat(make: Callable[[str, str], onnx.NodeProto]) -> None:
    require_found(CHAINS["LayerNorm"], inserted(CHAINS["LayerNorm"], 2, make))


def test_the_report_names_what_stood_between() -> None:
    model = inserted(CHAINS["RMSNorm"], 2)
    _, result = optimize(model)
    (site,) = result.sites
    names = {node.name for node in model.graph.node if node.op_type not in ("Constant", "Shape")}
    assert set(site.nodes) == names


def test_what_is_not_fused_reads_what_it_did() -> None:
    g = SpellingBuilder(17)
    x = g.input("x", SHAPE)
    product = g.add("MatMul", g.add("Identity", g.add("Identity", x)), g.weight(8, 8))
    g.output(g.add("Softmax", g.add("Identity", product)), SHAPE)
    g.output(g.add("Relu", g.add("Identity", g.add("LayerNormalization", product, g.weight(8), g.weight(8)))), SHAPE)
    model = g.model("m")
    optimized, _ = optimize(model)
    assert len(fused_nodes(optimized)) == 1
    before = [(node.op_type, list(node.input)) for node in model.graph.node]
    after = [(node.op_type, list(node.input)) for node in optimized.graph.node if not node.domain]
    assert after == before[:5]


def test_a_repeated_value_that_is_an_output_keeps_its_name() -> None:
    """Inside of the chain it is needed; behind the chain it repeats the result."""
    for inside in (True, False):
        g = SpellingBuilder(17)
        normal = g.add("LayerNormalization", g.input("x", SHAPE), g.weight(8), g.weight(8))
        repeated = g.add("Identity", normal if inside else g.add("Relu", normal), output="repeated")
        g.output(g.add("Relu", repeated) if inside else g.add("Identity", repeated, output="y"), SHAPE)
        g.output("repeated", SHAPE)
        model = g.model("m")
        optimized, result = optimize(model)
        reasons = [site.reason for site in result.sites]
        assert reasons == ([None, "is_graph_output"] if inside else [None])
        assert [value.name for value in optimized.graph.output] == [value.name for value in model.graph.output]
        given = feeds(model)
        wanted, got = run(model, given), run(optimized, given)
        for name, right in wanted.items():
            close(got[name], right.astype(np.float64), name)


def test_a_dropout_that_trains_stays() -> None:
    for opset, training in ((13, (np.float32(0.5), np.array(True))), (6, ())):
        g = SpellingBuilder(opset)
        centred = g.add("Sub", g.input("x", SHAPE), g.reduce_mean("x", [-1]))
        g.output(g.add("Relu", g.add("Dropout", centred, *training)), SHAPE)
        model = g.model("m")
        optimized, _ = optimize(model)
        assert [node.op_type for node in optimized.graph.node] == [node.op_type for node in model.graph.node]
