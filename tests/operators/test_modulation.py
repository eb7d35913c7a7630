"""Scales and shifts behind a normalisation with an affine of its own (AdaGN, AdaIN, AdaLN): joined or one by one."""

from __future__ import annotations

import functools

import harness
import numpy as np
import onnxruntime
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from onnx import parser
from oracle import Array

import normfuse

F32 = np.float32
GROUPS = 3
# Of X [n, GROUPS * k, h, w]; None stands for X's own size.
MODULATIONS = {
    "sample and channel": (None, None, 1, 1),
    "channel": (1, None, 1, 1),
    "sample": (None, 1, 1, 1),
    "along the run": (1, 1, 1, None),
    "element": (None, None, None, None),
    "number": (1, 1, 1, 1),
}
NORMALIZATIONS = {
    "GroupNormalization": f"z = GroupNormalization<num_groups = {GROUPS}, epsilon = 1e-5>(X, s, b)",
    "InstanceNormalization": "z = InstanceNormalization<epsilon = 1e-5>(X, s, b)",
}


@functools.cache
def session_of(normalization: str, modulation: str, silu: bool) -> onnxruntime.InferenceSession:
    given = zip("nchw", MODULATIONS[modulation], strict=True)
    sizes = ", ".join(name if size is None else str(size) for name, size in given)
    behind = "g = Sigmoid(u) Y = Mul(u, g)" if silu else "Y = Identity(u)"
    text = f"""<ir_version: 10, opset_import: ["": 21]>
        g (float[n, c, h, w] X, float[c] s, float[c] b, float[{sizes}] m, float[{sizes}] a) => (float[n, c, h, w] Y)
        {{ {NORMALIZATIONS[normalization]} v = Mul(z, m) u = Add(v, a) {behind} }}"""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    session = normfuse.InferenceSession(parser.parse_model(text).SerializeToString(), options, claim="all")
    if modulation != "element":  # an Add of a tensor like X may belong to what follows
        assert len(harness.fused_types(session)) == 1
        assert harness.cpu_types(session) == []
    return session


def normalized(x: Array, normalization: str) -> Array:
    groups = GROUPS if normalization == "GroupNormalization" else x.shape[1]
    parts = x.astype(np.float64).reshape(x.shape[0], groups, -1)
    deviations = parts - parts.mean(axis=2, keepdims=True)
    variance = np.mean(deviations**2, axis=2, keepdims=True)
    return (deviations / np.sqrt(variance + 1e-5)).reshape(x.shape)


def feeds_of(shape: tuple[int, ...], modulation: str, seed: int) -> dict[str, Array]:
    generator = np.random.default_rng(seed)
    sizes = [x if size is None else size for size, x in zip(MODULATIONS[modulation], shape, strict=True)]
    x = generator.normal(3, 2, shape)
    s, b = generator.normal(1, 1, (2, shape[1]))
    m, a = generator.normal(1, 2, (2, *sizes))
    m[generator.random(m.shape) < 0.2] = 0  # as a gate of AdaLN-zero begins
    return {name: array.astype(F32) for name, array in {"X": x, "s": s, "b": b, "m": m, "a": a}.items()}


@given(
    normalization=st.sampled_from(list(NORMALIZATIONS)),
    silu=st.booleans(),
    modulation=st.sampled_from(list(MODULATIONS)),
    shape=st.tuples(
        st.integers(1, 3), st.integers(1, 5).map(lambda k: GROUPS * k), st.integers(1, 9), st.integers(1, 40)
    ),
    seed=st.integers(0, 2**32 - 1),
)
@example(normalization="GroupNormalization", silu=True, modulation="channel", shape=(2, 6, 64, 64), seed=0)
@example(normalization="GroupNormalization", silu=False, modulation="along the run", shape=(1, 3, 60, 100), seed=0)
@example(normalization="InstanceNormalization", silu=True, modulation="element", shape=(2, 6, 40, 40), seed=0)
@settings(deadline=None, max_examples=200)
def test_a_modulation_is_exact(
    normalization: str, silu: bool, modulation: str, shape: tuple[int, ...], seed: int
) -> None:
    feeds = feeds_of(shape, modulation, seed)
    (got,) = session_of(normalization, modulation, silu).run(None, feeds)
    s, b = (feeds[name].astype(np.float64).reshape(1, -1, 1, 1) for name in "sb")
    m, a = (feeds[name].astype(np.float64) for name in "ma")
    z = normalized(feeds["X"], normalization)
    exact = (z * s + b) * m + a
    # A normalised value is exact to 4 units in the last place of 1, or of itself, and each step rounds once.
    size = np.maximum(1, np.abs(z)) * np.abs(s * m) + np.abs(b * m) + np.abs(a)
    if silu:
        exact = exact / (1 + np.exp(-exact))  # its slope is at most 1.1
    assert np.all(np.abs(got - exact) <= 2.0**-23 * (6 * size + 4 * np.abs(exact)))


@pytest.mark.parametrize("normalization", NORMALIZATIONS)
@pytest.mark.parametrize("factor", [np.inf, -np.inf, np.nan, 3e38, 1e-38, 1e-45, 0.0])
def test_ends_of_the_range_are_those_of_single_steps(normalization: str, factor: float) -> None:
    feeds = feeds_of((2, 6, 8, 30), "sample and channel", 5)
    feeds["m"][0, 1], feeds["m"][1, 4] = factor, -factor
    feeds["s"][1], feeds["b"][4] = 0, 1e30
    with np.errstate(all="ignore"):
        z = normalized(feeds["X"], normalization).astype(F32)
        affine = z * feeds["s"].reshape(1, -1, 1, 1) + feeds["b"].reshape(1, -1, 1, 1)
        steps = affine * feeds["m"] + feeds["a"]
    (got,) = session_of(normalization, "sample and channel", silu=False).run(None, feeds)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(steps))
    np.testing.assert_array_equal(np.isinf(got) * np.sign(got), np.isinf(steps) * np.sign(steps))
    usual = np.isfinite(steps)
    np.testing.assert_allclose(got[usual], steps[usual], rtol=2e-5, atol=2e-5)
