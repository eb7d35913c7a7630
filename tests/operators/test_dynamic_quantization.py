"""DynamicQuantizeLinear behind a chain by its values; chains are cases of tests/corpus/provider/integers.txt."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import harness
import numpy as np
import onnxruntime
import pytest
from checking import session_and_report
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper
from parsed_models import parse

pytestmark = pytest.mark.without_vnni

F32 = np.float32
OUTPUTS = "uint8[a, b] Q, float S, uint8 Z"


def values(shape: tuple[int, ...], seed: int = 5, offset: float = 0.0, spread: float = 1.0) -> np.ndarray:
    return np.random.default_rng(seed).normal(offset, spread, shape).astype(F32)


def model(inputs: str, outputs: str, nodes: str) -> Any:
    return parse(f"g ({inputs}) => ({outputs}) {{ {nodes} }}", 17)


def claimed(proto: Any, tmp_path: Path, description: str) -> onnxruntime.InferenceSession:
    """A session in which that and nothing else is claimed."""
    session, report = session_and_report(proto, tmp_path)
    assert [line["description"] for line in report if line["claimed"]] == [description], report
    return session


def parameters(y: np.ndarray) -> tuple[float, float]:
    """Scale and zero point by ONNX's formula, in float64; the scale is 1 where all values are 0, as in ONNX Runtime."""
    finite = y[~np.isnan(y)]
    low, high = (float(min(0.0, finite.min())), float(max(0.0, finite.max()))) if finite.size else (0.0, 0.0)
    if low == high:
        return 1.0, 0.0
    scale = (high - low) / 255
    return scale, float(np.clip(-low / scale, 0, 255))


def check(got: list[np.ndarray], exact: np.ndarray, error: float) -> None:
    """``error``: what float32 may have changed of the values, relative to the largest."""
    codes, scale, zero = got
    want_scale, want_zero = parameters(exact)
    assert (codes.dtype, scale.dtype, zero.dtype) == (np.uint8, F32, np.uint8)
    assert (codes.shape, scale.shape, zero.shape) == (exact.shape, (), ())
    np.testing.assert_allclose(scale, want_scale, rtol=1e-6 + error)
    assert abs(float(zero) - want_zero) <= 0.5 + 255 * (1e-6 + error)
    want = np.clip(np.where(np.isnan(exact), -np.inf, exact) / float(scale) + float(zero), 0, 255)
    assert np.abs(codes - want).max(initial=0) <= 0.5 + 255 * (1e-6 + error)


QUANTIZE = "Q, S, Z = DynamicQuantizeLinear(n)"
INF = np.inf
EDGES: list[tuple[list[float], float, int, list[int]]] = [
    # values, scale, zero point, codes
    ([0.0, -0.0, 0.0], 1.0, 0, [0, 0, 0]),
    ([], 1.0, 0, []),
    ([4.0], 4 / 255, 0, [255]),
    ([-4.0], 4 / 255, 255, [0]),
    ([np.nan], 1.0, 0, [0]),
    ([np.nan, 255.0, 1.0], 1.0, 0, [0, 255, 1]),
    ([255.0, 0.5, 1.5, 2.5], 1.0, 0, [255, 0, 2, 2]),
    ([-255.0, -0.5], 1.0, 255, [0, 255]),
    ([-127.5, 127.5], 1.0, 128, [0, 255]),
    ([INF, 1.0, 0.0], INF, 0, [0, 0, 0]),
    ([-INF, 1.0], INF, 255, [0, 255]),
    ([1e-45, 0.0], 0.0, 255, [255, 0]),
    ([3e38, -3e38], INF, 0, [0, 0]),
]


@pytest.mark.every_isa
@pytest.mark.parametrize("repeat", [1, 37])
@pytest.mark.parametrize(("given_values", "scale", "zero", "codes"), EDGES)
def test_edges(
    given_values: list[float], scale: float, zero: int, codes: list[int], repeat: int, tmp_path: Path
) -> None:
    """Behind a LeakyRelu of slope 1, which changes nothing."""
    x = np.tile(np.array(given_values, F32), (repeat, 1))
    proto = model("float[a, b] X", OUTPUTS, "n = LeakyRelu<alpha = 1.0>(X)" + QUANTIZE)
    got = claimed(proto, tmp_path, "LeakyRelu -> DynamicQuantizeLinear").run(None, {"X": x})
    np.testing.assert_array_equal(got[1], F32(scale))
    assert int(got[2]) == zero
    np.testing.assert_array_equal(got[0], np.tile(np.array(codes, np.uint8), (repeat, 1)))


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 3000), st.integers(0, 2**31), st.floats(-5, 5), st.sampled_from([1e-40, 1e-3, 1.0, 1e30]))
def test_as_onnx_says(count: int, seed: int, offset: float, spread: float) -> None:
    x = (np.random.default_rng(seed).normal(offset, 1.0, (1, count)) * spread).astype(F32)
    proto = model("float[a, b] X", OUTPUTS, "n = LeakyRelu<alpha = 1.0>(X)" + QUANTIZE)
    got = harness.create_session(proto, "ep").run(None, {"X": x})
    if spread < 1e-30:  # scales that float32 holds with a few bits only
        np.testing.assert_allclose(got[1], parameters(x)[0], atol=1.5e-45)
        return
    check(got, x.astype(np.float64), 0)


@pytest.mark.every_isa
@pytest.mark.parametrize("scale", ["float s", "float[1, 1] s", "float[1, 24] s"])
def test_a_node_of_ours_keeps_its_other_outputs(scale: str, tmp_path: Path) -> None:
    """Its factor is the scale of the integers; sum and statistics are as without the neighbours."""
    inputs = f"int32[a, 24] I, {scale}, float[a, 24] r, float[24] g"
    steps = "Mul s; Add r; Normalize axes=-1 epsilon=1e-05; Mul g"
    own = f'c = Cast<to = 1>(I) n, d, mean, inv = ai.normfuse.FusedNormalization<steps = "{steps}">(c, s, r, g)'
    outputs = f"float[a, 24] d, float[a, 1] mean, float[a, 1] inv, float[a, 24] n, {OUTPUTS}"
    proto = model(inputs, outputs, f"{own} {QUANTIZE}")
    proto.opset_import.append(helper.make_opsetid("ai.normfuse", 1))
    session = claimed(proto, tmp_path, "Cast -> FusedNormalization -> DynamicQuantizeLinear")
    shape = {"float s": (), "float[1, 1] s": (1, 1), "float[1, 24] s": (1, 24)}[scale]
    feeds = {
        "I": np.random.default_rng(2).integers(-(2**20), 2**20, (9, 24)).astype(np.int32),
        "s": np.asarray(np.abs(values(shape, 4)) * F32(1e-5)),
        "r": values((9, 24), 3),
        "g": values((24,), 4),
    }
    d, mean, inv, n, *quantised = session.run(None, feeds)
    exact = feeds["I"] * feeds["s"].astype(np.float64) + feeds["r"]
    deviation = 1 / np.sqrt(exact.var(-1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(d, exact, rtol=1e-6, atol=1e-5)
    np.testing.assert_allclose(mean, exact.mean(-1, keepdims=True), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(inv, deviation, rtol=1e-5)
    np.testing.assert_allclose(
        n, (exact - exact.mean(-1, keepdims=True)) * deviation * feeds["g"], rtol=1e-4, atol=1e-5
    )
    check(quantised, n, 0)
