"""Nodes that only repeat a tensor: hundreds of them, at outputs, and beside what is not fused.

Between the nodes of chains test_corpus.py puts some into a part of its models.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
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
    g = SpellingBuilder(13)
    g.output(normalized(g, g.input("x", SHAPE)), SHAPE)
    model = g.model("m")
    repeat(model, "Identity", 2)
    (site,) = optimize(model)[1].sites
    assert set(site.nodes) == {node.name for node in model.graph.node if node.op_type not in ("Constant", "Shape")}


def test_what_is_not_fused_reads_what_it_did() -> None:
    g = SpellingBuilder(17)
    x = g.input("x", (2, 5, 8))
    product = g.add("MatMul", g.add("Identity", g.add("Identity", x)), g.weight(8, 8))
    g.output(g.add("Softmax", g.add("Identity", product)), (2, 5, 8))
    g.output(
        g.add("Relu", g.add("Identity", g.add("LayerNormalization", product, g.weight(8), g.weight(8)))), (2, 5, 8)
    )
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
        normal = g.add("LayerNormalization", g.input("x", (2, 5, 8)), g.weight(8), g.weight(8))
        repeated = g.add("Identity", normal if inside else g.add("Relu", normal), output="repeated")
        g.output(g.add("Relu", repeated) if inside else g.add("Identity", repeated, output="y"), (2, 5, 8))
        g.output("repeated", (2, 5, 8))
        model = g.model("m")
        optimized, result = optimize(model)
        reasons = [site.reason for site in result.sites]
        assert reasons == ([None, "is_graph_output"] if inside else [None])
        assert [value.name for value in optimized.graph.output] == [value.name for value in model.graph.output]
        given = {"x": np.random.default_rng(5).standard_normal((2, 5, 8)).astype(np.float32)}
        wanted, got = run(model, given), run(optimized, given)
        for name, right in wanted.items():
            close(got[name], right.astype(np.float64), name)


def test_a_dropout_that_trains_stays() -> None:
    for opset, training in ((13, (np.float32(0.5), np.array(True))), (6, ())):
        g = SpellingBuilder(opset)
        centred = g.add("Sub", g.input("x", (2, 5, 8)), g.reduce_mean("x", [-1]))
        g.output(g.add("Relu", g.add("Dropout", centred, *training)), (2, 5, 8))
        model = g.model("m")
        optimized, _ = optimize(model)
        assert [node.op_type for node in optimized.graph.node] == [node.op_type for node in model.graph.node]
