"""Clamps inside of what is written out: a bound that rows of a model can pass is kept."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from parsed_models import parse, results
from rewrite_harness import fused_nodes, optimize

# Rows on both sides of every bound below: their deviations reach from 1e-3 to 1e6, and their means from -1e6 to 1e6.
SIZES = np.geomspace(1e-3, 1e6, 19)
ROWS = (
    SIZES[:, None] * np.random.default_rng(7).standard_normal((19, 16)) + (SIZES * np.resize([1, -1, 0], 19))[:, None]
).astype(np.float32)

# A LayerNormalization, or its kin, with one place for a clamp of a.
CENTRED = "m = ReduceMean<axes=[-1]>(x) d = Sub(x, m) s = Mul(d, d)"
NORMS = {
    "variance": CENTRED + " a = ReduceMean<axes=[-1]>(s) v = {0} w = Add(v, e) r = Sqrt(w) y = Div(d, r)",
    "deviation": CENTRED + " v = ReduceMean<axes=[-1]>(s) w = Add(v, e) a = Sqrt(w) r = {0} y = Div(d, r)",
    "inverse": "s = Mul(x, x) v = ReduceMean<axes=[-1]>(s) w = Add(v, e) q = Sqrt(w) a = Reciprocal(q) r = {0} "
    "y = Mul(x, r)",
    "norm": "a = ReduceL2<axes=[-1]>(x) l = {0} w = Add(l, e) y = Div(x, w)",
}
KEPT = {
    "variance": ["Min(a, {b})", "Clip(a, , {b})", "Max(a, {b})"],
    "deviation": ["Min(a, {b})", "Clip(a, , {b})"],
    "inverse": ["Max(a, {b})", "Clip(a, {b})", "Min(a, {b})"],
    "norm": ["Min(a, {b})", "Clip(a, , {b})"],
}
BOUNDS = [1e-3, 2e2, 1e4, 3e5]


def norm(place: str, clamp: str, bound: float) -> str:
    nodes = NORMS[place].replace("{0}", clamp.replace("{b}", "b"))
    constants = f"float e = {{1e-5}}, float b = {{{bound}}}"
    return f"g (float[19, 16] x) => (float[19, 16] y) <{constants}> {{ {nodes} }}"


def check_same(text: str, x: np.ndarray) -> bool:
    """That the optimised model gives what the model gives, and whether anything was fused."""
    model = parse(text, opset=13)
    optimized, _ = optimize(model)
    want, got = results(model, {"x": x})["y"], results(optimized, {"x": x})["y"]
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4 * float(np.abs(want).max()))
    return bool(fused_nodes(optimized))


@pytest.mark.parametrize("bound", BOUNDS)
@pytest.mark.parametrize(("place", "clamp"), [(place, clamp) for place in KEPT for clamp in KEPT[place]])
def test_a_bound_that_rows_pass_is_kept(place: str, clamp: str, bound: float) -> None:
    check_same(norm(place, clamp, bound), ROWS)


@pytest.mark.parametrize("bound", [1e3, 1e5])
def test_a_bound_of_the_mean_is_kept(bound: float) -> None:
    nodes = (
        "a = ReduceMean<axes=[-1]>(x) m = Clip(a, n, b) d = Sub(x, m) s = Mul(d, d) v = ReduceMean<axes=[-1]>(s) "
        "w = Add(v, e) r = Sqrt(w) y = Div(d, r)"
    )
    constants = f"float e = {{1e-5}}, float b = {{{bound}}}, float n = {{{-bound}}}"
    check_same(f"g (float[19, 16] x) => (float[19, 16] y) <{constants}> {{ {nodes} }}", ROWS)


@pytest.mark.parametrize(
    ("place", "clamp", "bound"),
    [
        ("variance", "Max(a, {b})", 0.0),
        ("variance", "Relu(a)", 0.0),
        ("variance", "Clip(a, {b})", 0.0),
        ("variance", "Min(a, {b})", 3.4028235e38),
        ("deviation", "Max(a, {b})", 1e-3),  # sqrt(1e-5) is more
        ("inverse", "Min(a, {b})", 1e3),
    ],
)
def test_a_bound_that_nothing_passes_does_not_matter(place: str, clamp: str, bound: float) -> None:
    assert check_same(norm(place, clamp, bound), ROWS)


# With a clamp of x, or of what x is multiplied with, in one of the places.
ACTIVATIONS = {
    "Gelu": "d = Div(x, c) f = Erf(d) g = Add(f, o) h = Mul(x, g) k = {clamp}(h, b) y = Mul(k, t)",
    "SiLU": "k = {clamp}(x, b) d = Sigmoid(x) y = Mul(k, d)",
    "HardSwish": "k = {clamp}(x, b) d = HardSigmoid<alpha = 0.166666667, beta = 0.5>(x) y = Mul(k, d)",
    "LeakyRelu": "k = {clamp}(x, b) d = Mul(x, t) y = Max(k, d)",
    "cube of it": "h = Mul(x, x) l = Mul(h, x) k = {clamp}(l, b) m = Sub(k, l) d = Sigmoid(x) e = Mul(x, d) "
    "y = Add(e, m)",
}


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(sorted(ACTIVATIONS)), st.booleans(), st.floats(-3, 12))
def test_a_bound_inside_of_an_activation_is_kept(name: str, above: bool, exponent: float) -> None:
    bound = 10.0**exponent
    nodes = ACTIVATIONS[name].replace("{clamp}", "Min" if above else "Max")
    constants = f"float c = {{1.41421356}}, float o = {{1}}, float t = {{0.5}}, float b = {{{bound * (2 * above - 1)}}}"
    at = bound ** (1 / 3) if name == "cube of it" else bound
    values = np.array([0.4, 0.6, 0.999, 1.001, 1.5, 3]) * at
    x = np.resize(np.concatenate([values, -values, np.linspace(-4, 4, 20)]), 64).astype(np.float32)
    check_same(f"g (float[64] x) => (float[64] y) <{constants}> {{ {nodes} }}", x)
