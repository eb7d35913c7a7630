"""Accuracy against float64: four units in the last place of max(|scale * n|, |bias|, 1), at any offset and length."""

from __future__ import annotations

import harness
import numpy as np
import pytest
from checking import activation, check, normalization, session_of
from parsed_models import parse

from normfuse import meaning
from normfuse.spec import ACTIVATIONS

F32 = np.float32
pytestmark = pytest.mark.every_isa
OFFSETS = [0.0, 1.0, 100.0, 1e4, 1e5, 1e6]


def numbers(shape: tuple[int, ...], mean: float = 0.0, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(mean, 1.0, shape).astype(F32)


@pytest.mark.parametrize("offset", OFFSETS)
@pytest.mark.parametrize("width", [1, 2, 5, 64, 768, 4096, 5000])
def test_layer_normalization_at_any_offset(offset: float, width: int) -> None:
    x = numbers((7, width), offset)
    check(normalization(x, {"axes": [-1]}, scale=numbers((width,)), bias=numbers((width,), seed=1)), "custom")


@pytest.mark.parametrize("offset", OFFSETS)
@pytest.mark.parametrize("axes", [[0], [0, 2], [1], [2, 3], [0, 2, 3], [0, 1, 2, 3]])
def test_any_axes_at_any_offset(offset: float, axes: list[int]) -> None:
    case = normalization(numbers((3, 5, 17, 33), offset), {"axes": axes}, ("Y", "mean", "inv_std_dev"))
    check(case, "custom")


@pytest.mark.parametrize("offset", OFFSETS)
def test_group_normalization_at_any_offset(offset: float) -> None:
    x = numbers((2, 12, 9, 11), offset)
    attributes = {"num_groups": 3, "affine_align": "channel", "activation": "Swish"}
    check(normalization(x, attributes, scale=numbers((12,)), bias=numbers((12,), seed=1)), "custom")


@pytest.mark.parametrize("offset", OFFSETS)
@pytest.mark.parametrize("width", [64, 768, 5000])
def test_residual_form_at_any_offset(offset: float, width: int) -> None:
    case = normalization(
        numbers((5, width), offset),
        {"axes": [-1]},
        ("Y", "sum"),
        residual=numbers((5, width), seed=1),
        residual_bias=numbers((width,), seed=2),
        scale=numbers((width,), seed=3),
    )
    check(case, "custom")


@pytest.mark.parametrize("offset", [1.0, -100.0, 1e4, 1e6])
@pytest.mark.parametrize("length", [7, 31, 64, 768, 5000, 100_000])
@pytest.mark.parametrize("axis", [0, 1])
def test_an_onset_in_one_of_three_rows(axis: int, length: int, offset: float) -> None:
    """The first values of the middle row or column, near which is summed first, lie far from the others."""
    x = numbers((3, length), offset)
    x[1, : min(length // 2, 64)] -= F32(offset)
    check(normalization(x if axis == 1 else x.T.copy(), {"axes": [axis]}), "custom")


@pytest.mark.parametrize("large", [1e3, 1e6, 1e10, -1e10])
@pytest.mark.parametrize("width", [256, 768, 1024, 4096])
def test_one_large_value(width: int, large: float) -> None:
    """Float32 rounds the equal squares of all others alike where it adds them: twelve units, not four."""
    for place in (0, 1, 5, width - 1):
        x = numbers((40, width))
        x[:, place] = large * np.linspace(0.5, 2, 40)
        case = normalization(x, {"axes": [-1], "epsilon": 1e-12})
        got = harness.run(session_of(case, "custom"), case.inputs)["Y"]
        deviations = x - x.mean(axis=-1, dtype=np.float64, keepdims=True)
        exact = deviations / np.sqrt((deviations**2).mean(axis=-1, keepdims=True) + 1e-12)
        assert (np.abs(got - exact) <= 12 * meaning.ulp32(np.maximum(np.abs(exact), 1.0))).all()


@pytest.mark.parametrize(
    ("length", "offset", "onset"),
    [(50_000, 0.0, 0), (50_000, 1e6, 0), (1_000_000, 0.0, 0), (1_000_000, 1e4, 64), (10_000_000, 1e5, 0)],
)
def test_long_rows(length: int, offset: float, onset: int) -> None:
    """In pieces: float64 copies of the whole row cost more than all other tests here."""
    x = numbers((1, length), offset)
    x[0, :onset] = 0
    case = normalization(x[:, :1000], {"axes": [-1]})
    session = session_of(case, "custom", shapes={"X": (1, "length"), "Y": (1, "length")})
    got = harness.run(session, {"X": x})["Y"]
    pieces = np.array_split(np.arange(length), max(1, length // 500_000))
    mean = sum(x[0, piece].sum(dtype=np.float64) for piece in pieces) / length
    variance = sum(((x[0, piece] - mean) ** 2).sum(dtype=np.float64) for piece in pieces) / length
    for piece in pieces:
        exact = (x[0, piece] - mean) / np.sqrt(variance + float(F32(1e-5)))
        assert (np.abs(got[0, piece] - exact) <= 4 * meaning.ulp32(np.maximum(np.abs(exact), 1.0))).all()


def test_long_columns() -> None:
    """The reduced dimension strides over memory: each of the 3 columns is a row of 300,000."""
    check(normalization(numbers((300_000, 3), 1e4), {"axes": [0]}), "custom")


@pytest.mark.parametrize("size", [1e-18, 1e-6, 1e6, 1e15])
def test_any_magnitude(size: float) -> None:
    x = numbers((4, 300)) * F32(size)
    check(normalization(x, {"axes": [-1], "epsilon": float(F32(size * size * 1e-3))}), "custom")


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("mean", [0.0, 1e6])  # in deviations
@pytest.mark.parametrize("size", [1e-38, 1e-30, 1e-22, 1e-6, 1e15, 1e20, 1e30, 1e36, 1e38])
def test_any_magnitude_without_epsilon(size: float, mean: float, axis: int) -> None:
    x = numbers((300, 2), mean if size * mean < 3e37 else 0.0) / 8 * F32(size)
    for use_mean in (0, 1):
        case = normalization(x if axis == 0 else x.T.copy(), {"axes": [axis], "epsilon": 0.0, "use_mean": use_mean})
        check(case, "custom")


@pytest.mark.parametrize("name", sorted(ACTIVATIONS))
@pytest.mark.parametrize("params", [None, (0.75, 1.5), (1.75, 0.5), (-1.5, -0.25)], ids=str)
def test_activation_of_every_float16(name: str, params: tuple[float, ...] | None) -> None:
    """All 65,536 float16 values, as float32 so that the result is not rounded to float16. Parameters above 1 and below
    0, too: a shortcut such as max(x, alpha * x) holds for usual ones only."""
    x = np.arange(65536, dtype=np.uint16).view(np.float16).astype(F32)
    check(activation(x, _attributes(name, params), slope=_slope(name)), "custom")


@pytest.mark.parametrize("name", sorted(ACTIVATIONS))
def test_activation_over_the_float32_range(name: str) -> None:
    """Every 8,191st float32, and densely where the functions bend."""
    x = np.arange(0, 2**32, 8191, dtype=np.uint64).astype(np.uint32).view(F32)
    dense = np.linspace(-20, 20, 200_001).astype(F32)
    check(activation(np.concatenate([x, dense]), {"activation": name}, slope=_slope(name)), "custom")


def _attributes(name: str, params: tuple[float, ...] | None) -> dict[str, object]:
    count = len(ACTIVATIONS[name].drawn)
    if params is None or not count:
        return {"activation": name}
    return {"activation": name, "activation_params": list(params[:count])}


def _slope(name: str) -> np.ndarray | None:
    return np.array([0.3], F32) if ACTIVATIONS[name].has_slope else None


@pytest.mark.parametrize("kind", ["GroupNormalization<num_groups = 3>", "InstanceNormalization"])
@pytest.mark.parametrize("factor", [np.inf, -np.inf, np.nan, 3e38, 1e-38, 1e-45, 0.0])
def test_ends_of_the_range_are_those_of_single_steps(kind: str, factor: float) -> None:
    """Of a scale and a shift behind the affine of a normalisation, with which they may be joined."""
    inputs = {"X": numbers((2, 6, 8, 30), 3.0), "s": numbers((6,)), "b": numbers((6,)), "m": numbers((2, 6, 1, 1), 1.0)}
    inputs["a"] = numbers((2, 6, 1, 1), seed=4)
    inputs["m"][0, 1], inputs["m"][1, 4] = factor, -factor
    inputs["s"][1], inputs["b"][4] = 0, 1e30
    names = ", ".join(f"float{list(array.shape)} {name}" for name, array in inputs.items())
    nodes = f"z = {kind}(X, s, b) v = Mul(z, m) Y = Add(v, a)"
    session = harness.create_session(parse(f"g ({names}) => (float[2,6,8,30] Y) {{ {nodes} }}"))
    assert len(harness.ep_groups(session)) == 1
    parts = inputs["X"].astype(np.float64).reshape(2, 3 if "Group" in kind else 6, -1)
    z = (parts - parts.mean(-1, keepdims=True)) / np.sqrt(parts.var(-1, keepdims=True) + 1e-5)
    with np.errstate(all="ignore"):
        affine = z.astype(F32).reshape(2, 6, 8, 30) * inputs["s"].reshape(-1, 1, 1) + inputs["b"].reshape(-1, 1, 1)
        steps = affine * inputs["m"] + inputs["a"]
    got = harness.run(session, inputs)["Y"]
    np.testing.assert_array_equal(np.isnan(got), np.isnan(steps))
    np.testing.assert_array_equal(np.isinf(got) * np.sign(got), np.isinf(steps) * np.sign(steps))
    usual = np.isfinite(steps)
    np.testing.assert_allclose(got[usual], steps[usual], rtol=2e-5, atol=2e-5)
