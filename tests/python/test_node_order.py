"""Models whose nodes stand in any order, as ONNX Runtime loads them: taken as if they were sorted."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

import normfuse
from normfuse import models
from normfuse.files.model_files import load_model

X = np.random.default_rng(5).standard_normal((3, 8)).astype(np.float32)


def in_other_order(nodes: Any, order: Callable[[list[onnx.NodeProto]], list[onnx.NodeProto]]) -> None:
    changed = order(list(nodes))
    del nodes[:]
    nodes.extend(changed)


def backwards(nodes: list[onnx.NodeProto]) -> list[onnx.NodeProto]:
    return nodes[::-1]


def shuffled(nodes: list[onnx.NodeProto]) -> list[onnx.NodeProto]:
    return random.Random(3).sample(nodes, len(nodes))


def main_graph() -> onnx.ModelProto:
    return models.chain(["n", 8], spelling="pow_div", opset=13)


def branch() -> onnx.ModelProto:
    """The chain stands in both branches and reads what the graph around it computes later in the list."""
    model = main_graph()
    graph = model.graph
    for node in graph.node:
        node.input[:] = ["negated" if name == "x" else name for name in node.input]
    inner = helper.make_graph(list(graph.node), "branch", [], [graph.output[0]])
    outer = [
        helper.make_node("If", ["yes"], ["chosen"], name="choice", then_branch=inner, else_branch=inner),
        helper.make_node("Neg", ["x"], ["negated"], name="neg"),
    ]
    output = helper.make_tensor_value_info("chosen", TensorProto.FLOAT, ["n", 8])
    weights = [*graph.initializer, numpy_helper.from_array(np.asarray(True), "yes")]
    made = helper.make_graph(outer[::-1], "outer", list(graph.input), [output], weights)
    return helper.make_model(made, opset_imports=model.opset_import, ir_version=8)


def function() -> onnx.ModelProto:
    model = main_graph()
    graph = model.graph
    names = [graph.input[0].name, *(tensor.name for tensor in graph.initializer if tensor.dims)]
    numbers = [helper.make_node("Constant", [], [t.name], value=t) for t in graph.initializer if not t.dims]
    nodes = [*numbers, *graph.node]
    body = helper.make_function("own", "Norm", names, [graph.output[0].name], nodes, model.opset_import)
    call = helper.make_node("Norm", names, [graph.output[0].name], domain="own", name="call")
    made = helper.make_graph([call], "calls", list(graph.input), list(graph.output), list(graph.initializer))
    opsets = [*model.opset_import, helper.make_opsetid("own", 1)]
    return helper.make_model(made, opset_imports=opsets, functions=[body], ir_version=8)


def reorder(model: onnx.ModelProto, order: Any) -> onnx.ModelProto:
    changed = onnx.ModelProto.FromString(model.SerializeToString())
    for holder in (changed.graph, *changed.functions):
        for node in holder.node:
            for attribute in node.attribute:
                in_other_order(attribute.g.node, order)
        in_other_order(holder.node, order)
    return changed


def expected(model: onnx.ModelProto) -> np.ndarray:
    weights = {t.name: numpy_helper.to_array(t).astype(np.float64) for t in model.graph.initializer}
    x = X.astype(np.float64) * (-1 if any(node.op_type == "If" for node in model.graph.node) else 1)
    d = x - x.mean(-1, keepdims=True)
    return d / np.sqrt((d**2).mean(-1, keepdims=True) + 1e-5) * weights["constant_0"] + weights["constant_1"]


def serialized(given: Any) -> bytes:
    if isinstance(given, Path):
        return given.read_bytes()
    data: bytes = (ir.to_proto(given) if isinstance(given, ir.Model) else given).SerializeToString()
    return data


@pytest.mark.parametrize("order", [backwards, shuffled])
@pytest.mark.parametrize("make", [main_graph, branch, function])
@pytest.mark.parametrize("kind", ["path", "proto", "ir"])
def test_nodes_in_any_order_are_sorted(make: Any, order: Any, kind: str, tmp_path: Path) -> None:
    ordered = make()
    proto = reorder(ordered, order)
    given: Any = proto
    if kind == "path":
        given = tmp_path / "model.onnx"
        given.write_bytes(proto.SerializeToString())
    elif kind == "ir":
        given = ir.from_proto(proto)
    before = serialized(given)
    result = normfuse.optimize(given)
    assert result.report.verification is not None
    assert result.report.verification.passed
    assert [(site.name, site.fused_into) for site in result.report.sites] == [
        (site.name, site.fused_into) for site in normfuse.optimize(ordered).report.sites
    ]
    assert len(result.report.fused) >= 1
    assert normfuse.inspect(given) == list(result.report.sites)
    session = normfuse.InferenceSession(given)
    np.testing.assert_allclose(session.run(None, {"x": X})[0], expected(proto), rtol=1e-5, atol=1e-6)
    # What was given stays as it was.
    assert serialized(given) == before


def test_sorting_moves_only_what_it_must() -> None:
    model = main_graph()
    nodes = [node.name for node in model.graph.node]
    first = model.graph.node.pop(0)
    model.graph.node.append(first)
    assert [node.name for node in load_model(model).model.graph] == nodes
