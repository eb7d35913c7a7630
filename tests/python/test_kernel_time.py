"""Shares of kernel time: what of ONNX Runtime's optimised model is found to belong to chains."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest

from normfuse import models
from normfuse.measuring.benchmark import BenchmarkReport, benchmark
from normfuse.models import spellings

SHAPE = (8, 64, 64)  # enough that the profiler's whole microseconds say something
Builder = models.GraphBuilder


def measured(model: onnx.ModelProto) -> BenchmarkReport:
    return benchmark(model, seconds=0.05)


def matmul(g: Builder, x: str) -> str:
    return g.add("MatMul", x, g.weight(64, 64))


def gelu(g: Builder, x: str) -> str:
    return spellings.activation(g, x, "gelu_erf")


def layer_norm(g: Builder, x: str) -> str:
    return spellings.layer_norm(g, x, g.weight(64, mean=1.0), g.weight(64))


def model_of(*parts: Callable[[Builder, str], str]) -> onnx.ModelProto:
    g = Builder(opset=13)
    x = g.input("x", SHAPE)
    for part in parts:
        x = part(g, x)
    g.output(x, SHAPE)
    return g.model("parts")


@pytest.mark.parametrize("part", [gelu, layer_norm])
def test_a_chain_alone_is_everything(part: Callable[[Builder, str], str]) -> None:
    """Of its nodes ONNX Runtime makes one, which stands for all of them."""
    report = measured(model_of(part))
    assert report.chain_share == 1
    assert report.bound == math.inf
    assert report.to_dict()["bound"] == math.inf


def test_a_model_without_chains() -> None:
    report = measured(model_of(matmul, matmul))
    assert report.chain_share == 0
    assert report.bound == 1
    assert [timing.fused_share for timing in report.timings] == [None, 0, None, 0]


def test_a_chain_among_other_nodes() -> None:
    report = measured(model_of(matmul, layer_norm, matmul, gelu, matmul))
    assert 0 < report.chain_share < 1
    assert report.bound == pytest.approx(1 / (1 - report.chain_share))
    original, with_provider, rewritten, both = (timing.fused_share for timing in report.timings)
    assert original is rewritten is None
    assert with_provider == 0  # a chain in a spelling that only the rewriting pass finds
    assert both is not None
    assert 0 < both < 1


# Its Conv takes the activation in, so that the time of the activation alone is not known.
CONV = """<ir_version: 8, opset_import: ["": 17]>
    g (float[1, 8, 16, 16] x, float[8, 8, 3, 3] w) => (float[1, 8, 16, 16] y) {
        c = Conv <pads = [1, 1, 1, 1]> (x, w) y = Relu (c) }"""
# The nodes of a branch are counted themselves, and not as the time of the If as well.
BRANCHES = """<ir_version: 8, opset_import: ["": 17, "local": 1]>
    g (bool c, float[8, 64, 64] x, float[64] g) => (float[8, 64, 64] y) {
        y = If (c) <then_branch = t () => (float[8, 64, 64] a) { a = local.Norm (x, g) },
            else_branch = e () => (float[8, 64, 64] a) { a = LayerNormalization (x, g) }> }
    <opset_import: ["": 17], domain: "local"> Norm (v, w) => (n) { n = LayerNormalization (v, w) }"""


@pytest.mark.parametrize(
    ("text", "feeds", "share"),
    [
        (CONV, {"x": np.ones((1, 8, 16, 16)), "w": np.ones((8, 8, 3, 3))}, 0),
        *((BRANCHES, {"c": np.array(c), "x": np.ones(SHAPE), "g": np.ones(64)}, 1) for c in (True, False)),
    ],
)
def test_chains_in_convolutions_branches_and_functions(text: str, feeds: dict[str, Any], share: int) -> None:
    given = {name: array.astype(np.float32) if array.dtype.kind == "f" else array for name, array in feeds.items()}
    assert benchmark(onnx.parser.parse_model(text), seconds=0.05, inputs=given).chain_share == share


def test_each_operators_time_without_and_with_normfuse() -> None:
    g = Builder(opset=13)
    x = g.input("x", SHAPE)
    g.output(g.add("Sin", gelu(g, layer_norm(g, matmul(g, x)))), SHAPE)
    report = benchmark(g.model("parts"), seconds=0.05, ep_options={"claim": "all"})
    operators = {operator.name: operator for operator in report.operators}
    for name, kind in (("MatMul", "product"), ("Sin", "other")):
        assert operators[name].kind == kind
        assert operators[name].before_ms > 0
        assert operators[name].after_ms > 0
        assert (operators[name].before_nodes, operators[name].after_nodes) == (1, 1)
    fused = operators["normfuse"]
    assert (fused.kind, fused.before_ms) == ("fused", 0)
    assert fused.after_ms > 0
    assert (fused.before_nodes, fused.after_nodes) == (0, 1)
    after = [operator.after_ms for operator in report.operators]
    assert after == sorted(after, reverse=True)
    assert report.to_dict()["operators"][0].keys() == {field.name for field in dataclasses.fields(fused)}
