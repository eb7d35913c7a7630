"""A model that was optimised is optimised: a second run finds the same sites and changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import onnx
import pytest
from covering import parametrize_spread
from onnx import TensorProto, helper
from rewrite_harness import optimize
from test_other_tools import MODELS, TOOLS

from normfuse import models


def of_one_chain(norm: str, spelling: str, opset: int) -> Callable[[], onnx.ModelProto]:
    return lambda: models.chain(
        ["N", "M", 16], norm, spelling=spelling, opset=opset, residual=True, activation_name="gelu_erf"
    )


SPELLINGS = (
    ("LayerNormalization", "pow_div"),
    ("LayerNormalization", "reciprocal"),
    ("RMSNormalization", "reciprocal_div"),
    ("RMSNormalization", "div"),
)
CHAINS = {
    f"{norm}, {spelling}, {opset}": of_one_chain(norm, spelling, opset)
    for norm, spelling in SPELLINGS
    for opset in (13, 18)
}


def untyped(model: onnx.ModelProto) -> onnx.ModelProto:
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    del copy.graph.value_info[:]
    return copy


def in_a_branch(model: onnx.ModelProto) -> onnx.ModelProto:
    """All nodes in a branch of an If; initialisers, reduction axes among them, stay outside."""
    outer = untyped(model)
    graph = outer.graph
    branch = helper.make_graph(graph.node, "branch", [], graph.output)
    empty = [
        helper.make_node(
            "ConstantOfShape",
            [f"{output.name}_rank"],
            [f"{output.name}_other"],
            value=helper.make_tensor("zero", output.type.tensor_type.elem_type, [1], [0]),
        )
        for output in graph.output
    ]
    ranks = [
        helper.make_tensor(f"{output.name}_rank", TensorProto.INT64, [r], [1] * r)
        for output in graph.output
        for r in [len(output.type.tensor_type.shape.dim)]
    ]
    types = [
        helper.make_tensor_value_info(f"{o.name}_other", o.type.tensor_type.elem_type, [1] * len(r.int64_data))
        for o, r in zip(graph.output, ranks, strict=True)
    ]
    other = helper.make_graph(empty, "other", [], types)
    del graph.node[:]
    graph.initializer.extend(ranks)
    graph.input.append(helper.make_tensor_value_info("condition", TensorProto.BOOL, []))
    for output in graph.output:
        output.name += "_chosen"
    names = [output.name for output in graph.output]
    graph.node.append(helper.make_node("If", ["condition"], names, then_branch=branch, else_branch=other))
    onnx.checker.check_model(outer)
    return outer


def descriptions(result: Any) -> list[tuple[str, str, str | None]]:
    return [(site.name, site.description, site.fused_into) for site in result.sites]


def check_second_run(model: onnx.ModelProto, target: Any) -> Any:
    once, first = optimize(model, target=target)
    assert any(site.fused_into for site in first.sites)
    twice, second = optimize(once, target=target)
    assert descriptions(second) == descriptions(first)
    assert twice.SerializeToString(deterministic=True) == once.SerializeToString(deterministic=True)
    return first


@parametrize_spread("name,target", [*MODELS, *CHAINS], ["portable", "custom-op", "standard"], each=1)
def test_second_run_changes_nothing(name: str, target: str) -> None:
    model = {**MODELS, **CHAINS}[name]()
    direct = check_second_run(model, target)
    branch = check_second_run(in_a_branch(model), target)
    fused = [[site.description for site in each.sites if site.fused_into] for each in (direct, branch)]
    assert fused[1] == fused[0]


@pytest.mark.parametrize("target", ["portable", "standard"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_second_run_finds_groups_of_unknown_size(dtype: str, target: str) -> None:
    group_norm = models.chain(
        ["N", 6, "H", "W"], "GroupNormalization", groups=3, activation_name="silu", opset=21, dtype=dtype
    )
    check_second_run(group_norm, target)


@parametrize_spread("name,tool", list(MODELS), TOOLS, each=2)
def test_second_run_behind_another_tool(name: str, tool: Callable[[onnx.ModelProto], onnx.ModelProto]) -> None:
    check_second_run(untyped(tool(optimize(MODELS[name]())[0])), "portable")
