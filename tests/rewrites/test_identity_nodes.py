"""Nodes that only repeat a tensor: hundreds of them, at outputs, and beside what is not fused.

Between the nodes of chains test_corpus.py puts some into a part of its models.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from corpus_reader import model_of
from rewrite_harness import SpellingBuilder, close, fused_nodes, optimize, repeat, run

from normfuse.graph_rewrites.engine import matching

LENGTH = 600
SHAPE = ("n", 8)
X = np.random.default_rng(7).standard_normal((3, 8)).astype(np.float32)


def row(g: SpellingBuilder, value: str, op_type: str = "Identity", **attributes: object) -> str:
    for _ in range(LENGTH):
        value = g.add(op_type, value, **attributes)
    return value


def normalized(g: SpellingBuilder, x: str, repeat: Callable[[str], str] = lambda value: value) -> str:
    d = repeat(g.add("Sub", x, repeat(g.reduce_mean(x, [-1]))))
    v = repeat(g.reduce_mean(g.add("Pow", d, 2.0), [-1]))
    return g.add("Div", d, g.add("Sqrt", g.add("Add", v, 1e-5)))


def in_front(g: SpellingBuilder, x: str) -> str:
    return normalized(g, row(g, x))


def inside(g: SpellingBuilder, x: str) -> str:
    return normalized(g, x, lambda value: row(g, value))


def behind(g: SpellingBuilder, x: str) -> str:
    return g.add("Relu", row(g, normalized(g, x)))


def casts(g: SpellingBuilder, x: str) -> str:
    return g.add("Relu", row(g, normalized(g, row(g, x, "Cast", to=1)), "Cast", to=1))


def weight(g: SpellingBuilder, x: str) -> str:
    return g.add("Mul", normalized(g, x), row(g, g.constant(np.ones(8, np.float32))))


def reshapes(g: SpellingBuilder, x: str) -> str:
    for _ in range(LENGTH // 4):
        x = g.add("Reshape", x, g.add("Shape", x))
    return normalized(g, x)


@pytest.mark.parametrize("make", [in_front, inside, behind, casts, weight, reshapes])
def test_the_chain_is_found(make: Callable[[SpellingBuilder, str], str]) -> None:
    g = SpellingBuilder(13)
    g.output(make(g, g.input("x", SHAPE)), SHAPE)
    model = g.model("m")
    optimized, result = optimize(model)
    assert [site.reason for site in result.sites] == [None]
    assert len(fused_nodes(optimized)) == 1
    assert sum(node.op_type == "Identity" for node in optimized.graph.node) <= 1, "nothing is left of the rows"
    x = X.astype(np.float64)
    d = x - x.mean(-1, keepdims=True)
    expected = d / np.sqrt((d**2).mean(-1, keepdims=True) + 1e-5)
    if make in (behind, casts):
        expected = np.maximum(expected, 0)
    (got,) = run(optimized, {"x": X}).values()
    close(got, expected, "result")


def test_a_row_of_requantisations_is_not_walked_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of its nodes ends patterns of its own; a step is looked for behind the first few pairs only."""
    steps = {}
    same_grid = matching.same_grid
    for pairs in (20, 80):
        g = SpellingBuilder(13)
        value = g.input("x", SHAPE)
        for _ in range(pairs):
            value = g.add("DequantizeLinear", g.add("QuantizeLinear", value, 0.1), 0.1)
        g.output(normalized(g, value), SHAPE)
        looked: list[object] = []
        monkeypatch.setattr(matching, "same_grid", lambda *nodes, looked=looked: looked.append(0) or same_grid(*nodes))
        _, result = optimize(g.model("m"), allow_requantization_removal=True)
        assert [site.reason for site in result.sites if site.kind == "LayerNormalization"] == [None]
        steps[pairs] = len(looked)
    assert steps[80] < 5 * steps[20], "linear"


def test_the_report_names_what_stood_between() -> None:
    model = model_of("d = x - ReduceMean(x, axes=[-1]); d / Sqrt(ReduceMean(d ** 2, axes=[-1]) + 1e-5)")
    repeat(model, "Identity", 2)
    (site,) = optimize(model)[1].sites
    assert set(site.nodes) == {node.name for node in model.graph.node if node.op_type not in ("Constant", "Shape")}


def test_what_is_not_fused_reads_what_it_did() -> None:
    text = "p = MatMul(Identity(Identity(x)), weight[8, 8]); output(Softmax(Identity(p))); "
    model = model_of(text + "Relu(Identity(LayerNormalization(p, scale[8], bias[8])))")
    optimized, _ = optimize(model)
    assert len(fused_nodes(optimized)) == 1
    read = {(node.op_type, *node.input) for node in optimized.graph.node if not node.domain}
    assert len(read) == 5
    assert read <= {(node.op_type, *node.input) for node in model.graph.node}
