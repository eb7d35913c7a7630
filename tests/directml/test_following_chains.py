"""Chains that follow each other are one fused node on DirectML, so that what passes between them stays on the GPU."""

from __future__ import annotations

import harness
import numpy as np
import onnx
import onnxruntime
import pytest
from directml_islands import session_of
from parsed_models import parse

from normfuse import meaning
from normfuse.meaning import Array, evaluate

NORM = "LayerNormalization <axis = -1, epsilon = 1e-5>"
RNG = np.random.default_rng(3)
X = RNG.normal(size=(6, 8)).astype(np.float32)
SCALE = RNG.normal(1, 0.2, 8).astype(np.float32)


def model(body: str, outputs: str = "float[N, 8] y") -> onnx.ModelProto:
    parameters = "float step = {0.05}, int8 zero = {3}"
    return parse(f"following (float[N, 8] x) => ({outputs}) <{parameters}> {{ {body} }}", 20, s=SCALE)


def session(body: str, fake: dict[str, str], outputs: str = "float[N, 8] y") -> onnxruntime.InferenceSession:
    return session_of(model(body, outputs), fake)


def normed(x: Array) -> Array:
    return evaluate("Normalize axes=-1; Mul scale", {"X": x, "scale": SCALE})["Y"].exact


def test_two_chains_are_one_node(fake: dict[str, str]) -> None:
    made = session(f"n = {NORM}(x, s) a = Relu(n) m = {NORM}(a, s) y = Tanh(m)", fake)
    assert harness.fused_types(made) == [["LayerNormalization", "LayerNormalization", "Relu", "Tanh"]]
    expected = np.tanh(normed(np.maximum(normed(X), 0).astype(np.float32)))
    np.testing.assert_allclose(made.run(None, {"x": X})[0], expected, rtol=0, atol=2e-6)
    if "device_memory" not in fake:  # A dimension of 0 runs on the CPU path, chain by chain.
        assert made.run(None, {"x": X[:0]})[0].shape == (0, 8)


def test_what_passes_between_them_may_be_an_output_and_quantised(fake: dict[str, str]) -> None:
    body = f"""n = {NORM}(x, s) q = QuantizeLinear(n, step, zero)
               d = DequantizeLinear(q, step, zero) m = {NORM}(d, s) y = Elu(m)"""
    made = session(body, fake, "float[N, 8] y, int8[N, 8] q")
    assert len(harness.fused_types(made)) == 1
    y, q = made.run(None, {"x": X})
    steps = np.clip(np.rint(normed(X) / np.float32(0.05)) + 3, -128, 127)
    np.testing.assert_array_equal(q, steps)
    exact = normed(((steps - 3) * np.float64(np.float32(0.05))).astype(np.float32))
    np.testing.assert_allclose(y, np.where(exact < 0, np.expm1(exact), exact), rtol=0, atol=2e-6)


@pytest.mark.parametrize("activation", ["Sigmoid", "Tanh"])
def test_a_chain_may_read_what_another_makes_in_the_middle(activation: str, fake: dict[str, str]) -> None:
    """Its node stands in front of the other chain's last one."""
    made = session(f"t = Add(x, x) z = {activation}(t) y = {NORM}(t, s)", fake, "float[N, 8] y, float[N, 8] z")
    assert [sorted(types) for types in harness.fused_types(made)] == [sorted(["Add", "LayerNormalization", activation])]
    y, z = made.run(None, {"x": X})
    np.testing.assert_allclose(y, normed(X + X), rtol=0, atol=2e-6)
    twice = 2 * X.astype(np.float64)
    np.testing.assert_allclose(z, meaning.activate(activation, twice), rtol=0, atol=2e-6)


def test_a_way_around_keeps_them_apart(fake: dict[str, str]) -> None:
    """The second chain also reads what another node makes of the first: one node could not wait for it."""
    body = f"n = {NORM}(x, s) a = Relu(n) c = Atan(a) t = Add(a, c) m = {NORM}(t, s) y = Tanh(m)"
    made = session(body, fake)
    assert sorted(map(len, harness.fused_types(made))) == [2, 3]
    a = np.maximum(normed(X), 0).astype(np.float32)
    expected = np.tanh(normed(a + np.arctan(a)))
    np.testing.assert_allclose(made.run(None, {"x": X})[0], expected, rtol=0, atol=4e-6)


def test_the_cpu_path_gains_nothing_from_it() -> None:
    made = harness.create_session(model(f"n = {NORM}(x, s) a = Relu(n) m = {NORM}(a, s) y = Tanh(m)"), backend="cpu")
    assert harness.fused_types(made) == [["LayerNormalization", "Relu"], ["LayerNormalization", "Tanh"]]


@pytest.mark.parametrize("bounds", [{}, {"high": 6}, {"low": 0}])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_infinities_are_clipped(dtype: type, bounds: dict[str, float], fake: dict[str, str]) -> None:
    """Without a bound to the type's lowest and largest finite numbers, as ONNX has it."""
    of = "float16" if dtype == np.float16 else "float"
    read = ", ".join(name if name in bounds else "" for name in ("low", "high"))
    text = f"clip ({of}[1, 5] x) => ({of}[1, 5] y) {{ c = Clip(x, {read}) y = Add(c, one) }}"
    constants = {name: np.array(value, dtype) for name, value in bounds.items()}
    made = session_of(parse(text, 20, one=np.ones(5, dtype), **constants), fake)
    assert harness.fused_types(made) == [["Add", "Clip"]]
    x, most = np.array([[-np.inf, np.inf, 7.0, -7.0, 0.5]], dtype), np.finfo(dtype).max
    expected = np.clip(x, constants.get("low", -most), constants.get("high", most)) + dtype(1)
    np.testing.assert_array_equal(made.run(None, {"x": x})[0], expected)
