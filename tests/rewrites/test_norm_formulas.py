"""Layer and RMS normalisation in every algebraic form, as JAX, hand-written models and optimisers leave them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from rewrite_harness import SpellingBuilder, check_fused, close, fused_nodes, optimize, run

SHAPE = (3, 5, 8)
EPSILON = 1e-5
Spelling = Callable[[SpellingBuilder, str], str]


def _feeds() -> dict[str, Any]:
    return {"x": (np.random.default_rng(1).standard_normal(SHAPE) * 3 + 1).astype(np.float32)}


def _mean(g: SpellingBuilder, x: str) -> str:
    return g.reduce_mean(x, [-1])


def _variance(g: SpellingBuilder, x: str) -> tuple[str, str]:
    d = g.add("Sub", x, _mean(g, x))
    return d, g.add("Add", _mean(g, g.add("Mul", d, d)), EPSILON)


# How the inverse of a root is written

INVERSES: dict[str, Callable[[SpellingBuilder, str], str]] = {
    "reciprocal of root": lambda g, v: g.add("Reciprocal", g.add("Sqrt", v)),
    "root of reciprocal": lambda g, v: g.add("Sqrt", g.add("Reciprocal", v)),
    "root of one over": lambda g, v: g.add("Sqrt", g.add("Div", 1.0, v)),
    "power": lambda g, v: g.add("Pow", v, -0.5),
    "power of reciprocal": lambda g, v: g.add("Pow", g.add("Reciprocal", v), 0.5),
    "exponential": lambda g, v: g.add("Exp", g.add("Mul", g.add("Log", v), -0.5)),
    "exponential of half": lambda g, v: g.add("Exp", g.add("Neg", g.add("Div", g.add("Log", v), 2.0))),
}


@pytest.mark.parametrize("with_mean", [True, False])
@pytest.mark.parametrize("inverse", INVERSES)
def test_inverse_root(inverse: str, with_mean: bool) -> None:
    g = SpellingBuilder(13)
    x = g.input("x", SHAPE)
    if with_mean:
        d, shifted = _variance(g, x)
    else:
        d, shifted = x, g.add("Add", _mean(g, g.add("Mul", x, x)), EPSILON)
    g.output(g.add("Mul", d, INVERSES[inverse](g, shifted)), SHAPE)
    expected = {"axes": [-1]} if with_mean else {"axes": [-1], "use_mean": 0}
    check_fused(g.model("m"), _feeds(), "FusedNormalization", expected)


# How the mean comes back to x's dimensions


def _row_shape(g: SpellingBuilder, x: str) -> str:
    """[batch, row, 1], taken from x at run time."""
    shape = g.add("Shape", x)
    return g.add("Concat", g.add("Slice", shape, [0], [2]), np.array([1], np.int64), axis=0)


def _batch_shape(g: SpellingBuilder, x: str) -> str:
    """[batch, 5, 1], the batch taken from x at run time."""
    size = g.add("Slice", g.add("Shape", x), [0], [1])
    return g.add("Concat", size, np.array([5, 1], np.int64), axis=0)


def _dropped_mean(g: SpellingBuilder, x: str) -> str:
    return g.add("Mul", g.reduce("ReduceSum", x, [-1], keepdims=0), 1 / 8)


RESTORED: dict[str, Callable[[SpellingBuilder, str, str], str]] = {
    "unsqueeze": lambda g, v, x: g.add("Unsqueeze", v, [-1]),
    "unsqueeze from the front": lambda g, v, x: g.add("Unsqueeze", v, [2]),
    "reshape": lambda g, v, x: g.add("Reshape", v, [3, 5, 1]),
    "reshape to as many": lambda g, v, x: g.add("Reshape", v, [-1, 5, 1]),
    "reshape to the same": lambda g, v, x: g.add("Reshape", v, [0, 0, 1]),
    "reshape at run time": lambda g, v, x: g.add("Reshape", v, _batch_shape(g, x)),
    "expand": lambda g, v, x: g.add("Expand", g.add("Unsqueeze", v, [-1]), [3, 5, 8]),
    "expand by ones": lambda g, v, x: g.add("Expand", g.add("Unsqueeze", v, [-1]), [1, 1]),
}


def _expanded_to_the_shape(g: SpellingBuilder, v: str, x: str) -> str:
    """JAX: a Reshape and an Expand to one shape that is computed at run time."""
    shape = _batch_shape(g, x)
    return g.add("Expand", g.add("Reshape", v, shape), shape)


FIXED = ("expand", "reshape")
RESTORED["reshape and expand at run time"] = _expanded_to_the_shape


@pytest.mark.parametrize(
    ("restored", "dynamic"),
    # A shape that is known contradicts one that is not.
    [(name, dynamic) for name in RESTORED for dynamic in (False, True) if not dynamic or name not in FIXED],
)
def test_sums_without_their_dimensions(restored: str, dynamic: bool) -> None:
    """jax.nn and Flax: sums times 1/n, E[x^2] - E[x]^2 held above 0, and the dimensions put back last."""
    g = SpellingBuilder(13)
    x = g.input("x", ("batch", 5, 8) if dynamic else SHAPE)
    restore = RESTORED[restored]
    mean, squares = _dropped_mean(g, x), _dropped_mean(g, g.add("Mul", x, x))
    variance = g.add("Max", 0.0, g.add("Sub", squares, g.add("Mul", mean, mean)))
    inverse = g.add("Reciprocal", g.add("Sqrt", g.add("Add", restore(g, variance, x), EPSILON)))
    factor = g.add("Mul", inverse, g.weight(8, mean=1.0))
    y = g.add("Mul", g.add("Sub", x, restore(g, mean, x)), factor)
    g.output(g.add("Add", y, g.weight(8)), ("batch", 5, 8) if dynamic else SHAPE)
    model = g.model("m")
    portable, result = optimize(model)
    (node,) = fused_nodes(portable)
    assert [site.description for site in result.sites if site.fused_into] == ["LayerNormalization"]
    assert len([name for name in node.input if name]) == 3
    close(*(next(iter(run(m, _feeds()).values())) for m in (portable, model)), what=restored)


@pytest.mark.parametrize(
    ("restored", "shape"),
    [
        ([-1], (3, 1, 8)),  # along another dimension: the mean of the wrong row
        ([0], (1, 3, 8)),
        ([1], (3, 3, 8)),
    ],
)
def test_mean_of_other_rows_is_none(restored: Sequence[int], shape: Sequence[int]) -> None:
    g = SpellingBuilder(13)
    x = g.input("x", shape)
    axis = 1 if restored == [-1] else 2
    mean = g.add("Unsqueeze", g.reduce("ReduceMean", x, [axis], keepdims=0), restored)
    d = g.add("Sub", x, mean)
    y = g.add("Div", d, g.add("Sqrt", g.add("Add", g.reduce_mean(g.add("Mul", d, d), [axis]), EPSILON)))
    g.output(y, np.broadcast_shapes(shape, (3, 3, 8)) if restored == [0] else shape)
    optimized, _ = optimize(g.model("m"))
    assert not [node for node in fused_nodes(optimized) if node.input[0] == "x"]


# What d and its square are


def _deviation(g: SpellingBuilder, form: str) -> tuple[str, str]:
    x = g.input("x", SHAPE)
    mean = _mean(g, x)
    d = g.add("Sub", x, mean)
    back = g.add("Sub", mean, x)
    squares = {
        "mean - x": lambda: g.add("Pow", back, 2.0),
        "times itself turned": lambda: g.add("Neg", g.add("Mul", d, back)),
        "absolute": lambda: g.add("Pow", g.add("Abs", d), 2.0),
        "absolute times": lambda: (lambda a: g.add("Mul", a, a))(g.add("Abs", d)),
        "x - 2 mean": lambda: g.add(
            "Add", g.add("Mul", x, g.add("Sub", x, g.add("Mul", mean, 2.0))), g.add("Mul", mean, mean)
        ),
        "minus a negative": lambda: g.add("Pow", g.add("Sub", x, g.add("Neg", g.add("Neg", mean))), 2.0),
        "added negative": lambda: g.add("Pow", g.add("Add", x, g.add("Neg", mean)), 2.0),
    }
    return d, squares[form]()


@pytest.mark.parametrize(
    "form",
    [
        "mean - x",
        "times itself turned",
        "absolute",
        "absolute times",
        "x - 2 mean",
        "minus a negative",
        "added negative",
    ],
)
def test_squared_deviation(form: str) -> None:
    g = SpellingBuilder(13)
    d, square = _deviation(g, form)
    g.output(g.add("Div", d, g.add("Sqrt", g.add("Add", _mean(g, square), EPSILON))), SHAPE)
    check_fused(g.model("m"), _feeds(), "FusedNormalization", {"axes": [-1]})


def test_both_signs_turned() -> None:
    g = SpellingBuilder(13)
    x = g.input("x", SHAPE)
    back = g.add("Sub", _mean(g, x), x)
    root = g.add("Sqrt", g.add("Add", _mean(g, g.add("Mul", back, back)), EPSILON))
    g.output(g.add("Div", back, g.add("Neg", root)), SHAPE)
    check_fused(g.model("m"), _feeds(), "FusedNormalization", {"axes": [-1]})


# Epsilon


@pytest.mark.parametrize("with_mean", [True, False])
@pytest.mark.parametrize("form", ["none", "beside", "in the sum", "subtracted", "divided in"])
def test_epsilon(form: str, with_mean: bool) -> None:
    g = SpellingBuilder(13)
    x = g.input("x", SHAPE)
    d = g.add("Sub", x, _mean(g, x)) if with_mean else x
    square = g.add("Mul", d, d)
    forms: dict[str, Callable[[], str]] = {
        "none": lambda: g.add("Sqrt", _mean(g, square)),
        "beside": lambda: g.add("Add", g.add("Sqrt", _mean(g, square)), EPSILON),
        "in the sum": lambda: g.add(
            "Sqrt", g.add("Mul", g.add("Add", g.reduce("ReduceSum", square, [-1]), 8e-5), 1 / 8)
        ),
        "subtracted": lambda: g.add("Sqrt", g.add("Sub", _mean(g, square), -EPSILON)),
        "divided in": lambda: g.add(
            "Div", g.add("Sqrt", g.add("Add", g.reduce("ReduceSum", square, [-1]), 8e-5)), 8**0.5
        ),
    }
    g.output(g.add("Div", d, forms[form]()), SHAPE)
    expected: dict[str, Any] = {"axes": [-1]} | ({} if with_mean else {"use_mean": 0})
    expected |= {"none": {"epsilon": 0.0}, "beside": {"epsilon_on": "stddev"}}.get(form, {})
    check_fused(g.model("m"), _feeds(), "FusedNormalization", expected)


# Near-misses: what looks like a normalisation is listed, with what is different about it


def _near_miss(g: SpellingBuilder, name: str) -> str:
    x = g.input("x", SHAPE)
    d = g.add("Sub", x, _mean(g, x))
    variance = _mean(g, g.add("Mul", d, d))
    shifted = g.add("Add", variance, EPSILON)
    forms: dict[str, Callable[[], str]] = {
        "held above": lambda: g.add("Div", x, g.add("Max", g.add("Sqrt", _mean(g, g.add("Mul", x, x))), EPSILON)),
        "held a little above": lambda: g.add(
            "Div", x, g.add("Max", g.add("Mul", g.reduce("ReduceL2", x, [-1]), 8**-0.5), 1e-12)
        ),
        "clipped": lambda: g.add(
            "Div", x, g.add("Sqrt", g.add("Clip", _mean(g, g.add("Mul", x, x)), np.float32(1e-30)))
        ),
        "deviation clipped": lambda: g.add("Div", d, g.add("Clip", g.add("Sqrt", variance), np.float32(1e-12))),
        "divided by the variance": lambda: g.add(
            "Div", d, g.add("Mul", g.add("Sqrt", shifted), g.add("Sqrt", shifted))
        ),
        "turned round": lambda: g.add("Div", g.add("Sub", _mean(g, x), x), g.add("Sqrt", shifted)),
        "twice the mean": lambda: g.add("Div", g.add("Sub", d, _mean(g, x)), g.add("Sqrt", shifted)),
        "cube root": lambda: g.add("Mul", d, g.add("Pow", shifted, -1 / 3)),
        "root of a cube": lambda: g.add(
            "Div", d, g.add("Sqrt", g.add("Add", _mean(g, g.add("Mul", d, g.add("Mul", d, d))), EPSILON))
        ),
        "dimensions dropped": lambda: g.add(
            "Div",
            d,
            g.add("Sqrt", g.add("Add", g.reduce("ReduceMean", g.add("Mul", d, d), [0, 1], keepdims=0), EPSILON)),
        ),
        "of the absolute value": lambda: g.add("Div", g.add("Abs", d), g.add("Sqrt", shifted)),
        "variance chosen": lambda: g.add(
            *("Mul", d, g.add("Pow", g.add("Where", g.add("Greater", variance, 0.1), shifted, 1.0), -0.5))
        ),
        "of another tensor": lambda: g.add("Div", g.add("Tanh", d), g.add("Sqrt", shifted)),
        "of another tensor by a power": lambda: g.add("Mul", g.add("Tanh", d), g.add("Pow", shifted, -0.5)),
        "of another tensor by a reciprocal": lambda: g.add(
            "Mul", g.add("Reciprocal", g.add("Sqrt", shifted)), g.add("Tanh", d)
        ),
    }
    return forms[name]()


OF_X_ITSELF = ("held above", "held a little above", "clipped")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("held above", "by a maximum"),
        ("held a little above", "by a maximum"),
        ("clipped", "by a maximum"),
        ("deviation clipped", "by a maximum"),
        ("turned round", "sign"),
        ("twice the mean", "no (x - mean)"),
        ("root of a cube", "more than its square"),
        ("of the absolute value", "absolute value"),
        ("variance chosen", "Where_6' stands between its mean square and the root"),
        ("of another tensor", "divides 'Tanh_5_0' by its root, which is not a deviation from the mean"),
        ("of another tensor by a power", "divides 'Tanh_5_0' by its root, which is not a deviation from the mean"),
        ("of another tensor by a reciprocal", "divides 'Tanh_7_0' by its root, which is not a deviation from the mean"),
    ],
)
def test_near_miss_is_listed_with_what_is_different(name: str, words: str) -> None:
    g = SpellingBuilder(13)
    g.output(_near_miss(g, name), SHAPE)
    optimized, result = optimize(g.model("m"))
    assert not fused_nodes(optimized)
    sites = [site for site in result.sites if site.kind in ("LayerNormalization", "RMSNormalization")]
    assert words in " ".join(site.message for site in sites), result.sites
    assert {site.reason for site in sites} == {"different_formula"}
    (kind,) = {site.kind for site in sites}
    assert kind == ("RMSNormalization" if name in OF_X_ITSELF else "LayerNormalization")
    assert not any("looks like RMS" in site.message for site in sites) or name in OF_X_ITSELF


@pytest.mark.parametrize("name", ["divided by the variance", "cube root", "dimensions dropped"])
def test_other_near_misses_are_left(name: str) -> None:
    g = SpellingBuilder(13)
    g.output(_near_miss(g, name), SHAPE)
    assert not fused_nodes(optimize(g.model("m"))[0])


def _left(g: SpellingBuilder, y: str) -> tuple[str, str]:
    """The kind and message of the one site that is left of a graph."""
    g.output(y, SHAPE)
    optimized, result = optimize(g.model("m"))
    assert not fused_nodes(optimized)
    (site,) = result.sites
    return site.kind, site.message


def test_normalize_of_pytorch_is_left_with_its_reason() -> None:
    """F.normalize(x) * sqrt(n): a row of zeros stays one, which no epsilon that is added gives."""
    g = SpellingBuilder(13)
    x = g.input("x", SHAPE)
    norm = g.add("Clip", g.reduce("ReduceL2", x, [-1]), np.float32(1e-12))
    y = g.add("Mul", g.add("Div", x, g.add("Expand", norm, g.add("Shape", x))), 8**0.5)
    kind, message = _left(g, y)
    assert kind == "RMSNormalization"
    assert "looks like RMSNormalization, but its deviation is held above" in message


def test_variance_held_above_zero_is_no_hard_swish() -> None:
    """Near zero it has a kink like one, but with a slope that no model has."""
    g = SpellingBuilder(13)
    x = g.input("x", SHAPE)
    shape = g.input("shape", (3,), np.int64)
    mean, squares = _dropped_mean(g, x), _dropped_mean(g, g.add("Mul", x, x))
    variance = g.add("Max", g.add("Sub", squares, g.add("Mul", mean, mean)), 0.0)
    inverse = g.add("Reciprocal", g.add("Sqrt", g.add("Add", variance, EPSILON)))
    centred = g.add("Sub", x, g.add("Unsqueeze", mean, np.array([-1])))
    kind, message = _left(g, g.add("Mul", centred, g.add("Reshape", inverse, shape)))
    assert kind == "LayerNormalization"
    assert "it gives a shape that is not known" in message
