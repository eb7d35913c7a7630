"""Softmax and its logarithm by their values, with masks and without; chains are cases of tests/corpus/provider."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import directml_libraries
import harness
import numpy as np
import pytest
from checking import PROVIDERS, check, normalization, session_and_report
from covering import parametrize_covering
from onnx import helper
from parsed_models import parse

F32 = np.float32
METHODS = ("softmax", "log_softmax")
# Rows in one block and in several, kept between the passes and read again; columns likewise.
SHAPES = [
    ((3, 7), [-1]),
    ((2, 3, 384), [-1]),
    ((4, 1500), [1]),
    ((2, 8200), [-1]),
    ((2, 5, 6), [1]),
    ((90, 70), [0]),
    ((2, 300, 33), [-2]),
    ((3, 2, 40, 5), [1, 3]),
    ((3, 4, 5, 6), [2, 3]),
    ((6,), [0]),
    ((1, 1), [1]),
]


def values(shape: tuple[int, ...], offset: float = 0.0, spread: float = 1.0) -> np.ndarray:
    return np.random.default_rng(5).normal(offset, spread, shape).astype(F32)


@pytest.mark.every_isa
@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize(("shape", "axes"), SHAPES)
@pytest.mark.parametrize("method", METHODS)
def test_any_rows(provider: str, method: str, shape: tuple[int, ...], axes: list[int]) -> None:
    for x in (
        values(shape),
        values(shape, spread=30.0),
        values(shape, -200.0, 20.0),
        values(shape, 1000.0, 20.0),
        values(shape, -1e6, 5.0),
        values(shape).astype(np.float16),
    ):
        check(normalization(x, {"axes": axes, "method": method}), provider)


@pytest.mark.every_isa
@pytest.mark.parametrize("width", [5, 384, 1500])
def test_rows_of_any_largest_value_beside_each_other(width: int) -> None:
    """Largest values of the size that scores have are not looked for before exponentials are taken; others are."""
    largest = np.array([-22.01, -21.99, 0, 39.99, 40.01, 0, 88, 89, 300, 1e30, 0, 0, -90, -104, 1, 2, 3], F32)
    x = largest[:, None] - np.geomspace(0.001, 90, width, dtype=F32)
    x[:, width // 2] = largest
    x[5, 1:] = -np.inf
    x[10, 2], x[11], x[14, 3] = np.nan, -np.inf, np.inf
    x[12, -1], x[13, width // 2 - 1] = np.nan, np.nan  # of which the largest value may know nothing
    for method in METHODS:
        check(normalization(x, {"axes": [-1], "method": method}), "custom")
        check(normalization(np.repeat(x, 40, axis=0), {"axes": [-1], "method": method}), "custom")


@pytest.mark.every_isa
@pytest.mark.parametrize("width", [8193, 9216, 10255])
@pytest.mark.parametrize("bias", [False, True])
def test_long_rows(width: int, bias: bool) -> None:
    """Rows that wait in Y for their sum: usual ones, others, and what is odd, in the first block and in the last."""
    x = values((9, width), spread=4.0)
    x[1] += F32(100.0)
    x[2] -= F32(300.0)
    x[3, [0, -1]] = -np.inf
    x[4, -1] = np.inf
    x[5, 0], x[6, -1], x[7] = np.nan, np.nan, -np.inf
    inputs = {"residual": values((width,))} if bias else {}
    got = check(normalization(x, {"axes": [-1], "method": "softmax"}, **inputs), "custom")["Y"]
    alone = check(normalization(x[8:], {"axes": [-1], "method": "softmax"}, **inputs), "custom")["Y"]
    np.testing.assert_array_equal(got[8:], alone)


@pytest.mark.every_isa
@pytest.mark.parametrize("spread", [1.0, 10.0, 100.0])
@pytest.mark.parametrize("offset", [0.0, -50.0, 255.0, 257.0, 1e4])
def test_small_values_beside_a_large_one_are_not_lost(offset: float, spread: float) -> None:
    """Exponentials of which each is below half a unit in the last place of the sum add up."""
    x = np.full((2, 8000), offset, F32)
    x[0, 1:] -= F32(17.0)
    x[1] -= np.linspace(0, spread, 8000, dtype=F32)
    check(normalization(x, {"axes": [-1], "method": "softmax"}), "custom")


@pytest.mark.every_isa
@pytest.mark.parametrize("place", ["X", "M"])
def test_long_rows_in_place(place: str) -> None:
    """Y may be bound to the memory of X, or of a tensor that is added, which are read again where a row is unusual."""
    x, mask = values((3, 8500)), values((3, 8500))
    x[1] += F32(100.0)
    text = "g (float[a, b] X, float[a, b] M) => (float[a, b] Y) { s = Add(X, M)  Y = Softmax(s) }"
    session = harness.create_session(parse(text))
    expected = harness.run(session, {"X": x, "M": mask})["Y"]
    binding, memory = session.io_binding(), {"X": x.copy(), "M": mask.copy()}
    for name, array in memory.items():
        binding.bind_input(name, "cpu", 0, F32, array.shape, array.ctypes.data)
    binding.bind_output("Y", "cpu", 0, F32, x.shape, memory[place].ctypes.data)
    session.run_with_iobinding(binding)
    np.testing.assert_array_equal(memory[place], expected)


@pytest.mark.every_isa
@pytest.mark.parametrize("axis", [-1, 0])
@pytest.mark.parametrize("size", [255.0, 257.0, 1e12, 1e17, 3.4e38])
def test_log_softmax_of_large_values(size: float, axis: int) -> None:
    """Masked as a whole, for instance: the logarithm of the sum counts beside a largest value of any size."""
    rows = np.array([[-1, -1, -1, -1], [1, 1, 0, -1], [1, 0.999, 1, 1], [-1, -1, -1, 0]], F32) * F32(size)
    x = np.repeat(rows, 3, axis=0)
    check(normalization(x if axis == -1 else x.T.copy(), {"axes": [axis], "method": "log_softmax"}), "custom")


def confident_rows(width: int) -> np.ndarray:
    """Rows in which one value, or several equal ones, have nearly all of the sum, at each kind of place."""
    margins = np.concatenate([np.linspace(0, 4, 200), np.geomspace(4, 90, 200), [1e3]])
    rows = np.random.default_rng(8).uniform(-3, 0, (1200, width))
    rows[::3] = np.linspace(0, -3, width)
    rows[1::3] = 0
    largest = np.resize([0, 2.3, 17, 39.7, -21.3, 41.1, -88, 200.3, 300.7, -1e4], len(rows))
    rows += (largest - np.resize(margins, len(rows)))[:, None]
    rows[np.arange(len(rows)), np.resize([0, width // 2, width - 1], len(rows))] = largest
    rows[::7, -2:] = largest[::7, None]
    return rows.astype(F32)


@pytest.mark.every_isa
@pytest.mark.parametrize("axis", [-1, 0])
@pytest.mark.parametrize("width", [1, 2, 21, 1000, 9000])
def test_no_logarithm_of_a_probability_is_above_0(width: int, axis: int) -> None:
    rows = confident_rows(width) if width > 1 else values((600, 1), spread=100.0)
    x = rows[: 90 if width == 9000 else None]
    case = normalization(x if axis == -1 else x.T.copy(), {"axes": [axis], "method": "log_softmax"})
    got = np.moveaxis(check(case, "custom")["Y"], axis, -1)
    assert got.max() <= 0
    d = x.astype(np.float64)
    exact = d - d.max(-1, keepdims=True)
    exact -= np.log(np.exp(exact).sum(-1, keepdims=True))
    winners = exact > -0.6
    # Sums of exponentials are near 1: two roundings of 2^-23.
    np.testing.assert_allclose(got[winners], exact[winners], rtol=3e-7, atol=2.4e-7)
    if width == 1:
        assert not np.signbit(got).any()


# One layer of attention as ONNX Runtime's AttentionFusion wants it.
ATTENTION = """
g (float[batch, 8, 16] X, float[1, 1, 1, 8] M) => (float[batch, 8, 16] Y) {
    n = LayerNormalization(X, b, b)
    q = MatMul(n, w) qb = Add(q, b) qr = Reshape(qb, heads) qt = Transpose<perm = [0, 2, 1, 3]>(qr)
    k = MatMul(n, w) kb = Add(k, b) kr = Reshape(kb, heads) kt = Transpose<perm = [0, 2, 3, 1]>(kr)
    v = MatMul(n, w) vb = Add(v, b) vr = Reshape(vb, heads) vt = Transpose<perm = [0, 2, 1, 3]>(vr)
    s = MatMul(qt, kt) d = Div(s, two) a = Add(d, M) p = Softmax<axis = 3>(a)
    o = MatMul(p, vt) ot = Transpose<perm = [0, 2, 1, 3]>(o) r = Reshape(ot, rows)
    y = MatMul(r, w) yb = Add(y, b) Y = Add(yb, n)
}"""


@pytest.mark.parametrize("normalises", [True, False], ids=["with the LayerNormalization", "without it"])
def test_scores_of_an_attention(normalises: bool, tmp_path: Path) -> None:
    """The fusion begins at a LayerNormalization on ONNX Runtime's own provider: if it is left, so is Softmax."""
    numbers = {"w": values((16, 16)), "b": values((16,)), "two": np.array(2, F32)}
    shapes = {"heads": np.array([0, 0, 4, 4]), "rows": np.array([0, 0, 16])}
    proto = parse(ATTENTION, 17, **numbers, **shapes)
    if not normalises:  # of a type of statistics that we do not have
        proto.graph.node[0].attribute.append(helper.make_attribute("stash_type", 11))
    _, report = session_and_report(proto, tmp_path, claim="profitable")
    lines = [line for line in report if line["op_type"] == "Softmax"]
    assert ["Attention" in str(line) for line in lines] == [not normalises], report


# --- masks that hide places, or whole rows, and NaN that becomes 0 ---

KEPT, HIDDEN, ADDED = "d = Where(m, x, c)", "d = Where(m, c, x)", "d = Add(x, m)"
CLEARED = "p = Softmax<axis = AXIS>(d) n = IsNaN(p) y = Where(n, z, p)"
# The mask's shape for scores of (2, 3, 20, width).
MASKS = {
    "whole": lambda width: (2, 3, 20, width),
    "causal": lambda width: (1, 1, 20, width),
    "padding": lambda width: (2, 1, 1, width),
    "of one dimension": lambda width: (width,),
    "queries": lambda width: (2, 1, 20, 1),
    "one": lambda width: (1,),
}


def softmax(d: np.ndarray, axis: int = -1) -> np.ndarray:
    """In float64; NaN, plus infinity, or minus infinity in every place of a row gives NaN."""
    d = d.astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        powers = np.exp(d - d.max(axis, keepdims=True))
        return np.asarray(powers / powers.sum(axis, keepdims=True))


def masked(
    x: np.ndarray, mask: np.ndarray, fill: float = -np.inf, *, where: str = KEPT, behind: str = "", axis: int = -1
) -> Any:
    """The result of a session in which all is one chain, and the session."""
    behind = (behind or "y = Softmax<axis = AXIS>(d)").replace("AXIS", str(axis))
    of_mask = f"{'bool' if mask.dtype == bool else 'float'}{list(mask.shape)}"
    zero = {"z": np.zeros((), F32)} if "z, p" in behind else {}
    fills = {"c": np.array(fill, F32)} if "c" in where else {}
    text = f"g (float{list(x.shape)} x, {of_mask} m) => (float{list(x.shape)} y) {{ {where} {behind} }}"
    session = harness.create_session(parse(text, 18, **zero, **fills))
    assert len(harness.ep_groups(session)) == 1
    assert harness.cpu_types(session) == []
    return session.run(None, {"x": x, "m": mask})[0], session


def scores(width: int, shape: tuple[int, ...] = (2, 3, 20)) -> np.ndarray:
    """Rows of usual scores, and beside them rows of large ones, of infinities and of NaN."""
    x = np.random.default_rng(7).normal(0, 2, (*shape, width)).astype(F32)
    rows = x.reshape(-1, width)
    rows[3] += 90
    rows[11] *= F32(1e36)
    rows[17, width // 3], rows[23, width // 2], rows[29, -1] = np.nan, np.inf, -np.inf
    rows[31] = -np.inf
    return x


@pytest.mark.every_isa
@parametrize_covering(
    "width,mask,fill",
    [5, 384, 1024, 1100],
    list(MASKS),
    [-np.inf, -3.4e38, -1e4, -301.0, -300.0, -20.0, 0.0, 5.0],
)
def test_any_mask_and_any_number(fill: float, mask: str, width: int) -> None:
    x = scores(width)
    shown = np.random.default_rng(8).random(MASKS[mask](width)) < 0.7
    if shown.size > width:
        shown.reshape(-1, shown.shape[-1])[-1] = False  # a row of which nothing is left
    shown.flat[0] = True
    expected = softmax(np.where(shown, x.astype(np.float64), F32(fill)))
    for where, given in ((KEPT, shown), (HIDDEN, ~shown)):
        np.testing.assert_allclose(masked(x, given, fill, where=where)[0], expected, rtol=5e-7, atol=1.2e-38)


@pytest.mark.every_isa
def test_what_is_hidden_has_no_say() -> None:
    """NaN, infinities and large numbers under the mask."""
    x, shown = scores(40), np.ones((1, 1, 1, 40), bool)
    shown[..., 30:] = False
    odd = x.copy()
    odd[..., 30:] = np.resize(np.array([np.nan, np.inf, -np.inf, 3e38, -3e38], F32), odd[..., 30:].shape)
    for fill in (-np.inf, -1e9, -50.0):
        np.testing.assert_array_equal(masked(odd, shown, fill)[0], masked(x, shown, fill)[0])


@pytest.mark.every_isa
@pytest.mark.parametrize("mask", ["causal", "padding"])
def test_bits_do_not_depend_on_the_rows_beside(mask: str) -> None:
    x = scores(130)
    shown = np.random.default_rng(3).random(MASKS[mask](130)) < 0.7
    whole, (together, _) = np.broadcast_to(shown, x.shape), masked(x, shown, -1e9)
    _, session = masked(x[:1, :1, :1], whole[:1, :1, :1].copy(), -1e9)
    for i in itertools.product(*map(range, x.shape[:-1])):
        row = {"x": x[i][None, None, None], "m": whole[i][None, None, None].copy()}
        np.testing.assert_array_equal(session.run(None, row)[0][0, 0, 0], together[i])


def odd_rows(shape: tuple[int, ...], axis: int) -> np.ndarray:
    """Rows that are hidden as a whole, partly, not at all, and that hold NaN or plus infinity."""
    x = np.moveaxis(values(shape, spread=4.0), axis, -1).copy()
    rows = x.reshape(-1, x.shape[-1])
    rows[0::5] = -np.inf
    rows[1::5, 1:] = -np.inf
    rows[2::5, -1] = np.nan
    rows[3::5, 0] = np.inf
    return np.ascontiguousarray(np.moveaxis(x, -1, axis))


@pytest.mark.every_isa
@pytest.mark.parametrize("axis", [-1, -2])
@pytest.mark.parametrize(
    "shape", [(2, 3, 7, 5), (1, 2, 40, 40), (1, 1, 9, 1500), (1, 1, 6, 8200), (1, 1, 8200, 6), (1, 1, 300, 130)]
)
def test_rows_that_would_be_nan_are_zero(shape: tuple[int, ...], axis: int) -> None:
    x, mask = odd_rows(shape, axis), np.zeros((1, 1, 1, shape[-1]), F32)
    mask[..., shape[-1] // 2 :] = -0.5
    got, _ = masked(x, mask, where=ADDED, behind=CLEARED, axis=axis)
    expected = np.nan_to_num(softmax(x + mask, axis), nan=0.0)
    assert (got[expected == 0] == 0).all()
    np.testing.assert_allclose(got, expected, rtol=2e-6, atol=1.2e-38)


@pytest.mark.every_isa
def test_what_stands_around_rows_of_zeros() -> None:
    """A mask before them and a quantisation behind: 0 becomes the zero point."""
    x, mask = values((2, 4, 40, 40)), np.zeros((1, 1, 1, 40), F32)
    x[0, 1, 5:9] = -np.inf
    mask[..., 33:] = -np.inf
    scales = {"z": np.zeros((), F32), "s": np.array(1 / 200, F32), "q": np.array(9, np.uint8)}
    nodes = "a = Add(X, M) p = Softmax(a) n = IsNaN(p) w = Where(n, z, p) Y = QuantizeLinear(w, s, q)"
    text = f"g (float[2, 4, 40, 40] X, float[1, 1, 1, 40] M) => (uint8[2, 4, 40, 40] Y) {{ {nodes} }}"
    got = harness.create_session(parse(text, 18, **scales)).run(None, {"X": x, "M": mask})[0]
    exact = np.nan_to_num(softmax(x + mask), nan=0.0) * 200
    assert (got[0, 1, 5:9] == 9).all()
    assert (got[..., 33:] == 9).all()
    assert (np.abs(got - (np.rint(exact) + 9)) <= (np.abs(exact % 1 - 0.5) < 1e-3)).all()


@pytest.mark.parametrize(("where", "axis"), [(KEPT, -1), (ADDED, -1), (ADDED, 1)])
def test_masks_on_directml(where: str, axis: int) -> None:
    fake = str(directml_libraries.build_fake())
    x = odd_rows((2, 3, 7, 5), axis) if where == ADDED else values((2, 3, 7, 5))
    x[np.isposinf(x)] = np.nan  # of which DirectML does not say what becomes
    mask = np.zeros((1, 1, 7, 5), F32) if where == ADDED else np.random.default_rng(6).random((1, 1, 7, 5)) < 0.7
    behind = CLEARED if where == ADDED else "y = Softmax<axis = AXIS>(d)"
    text = f"{where} {behind.replace('AXIS', str(axis))}"
    kind = "float" if where == ADDED else "bool"
    constants = {"z": np.zeros((), F32)} if where == ADDED else {"c": np.array(-1e9, F32)}
    proto = parse(f"g (float[2,3,7,5] x, {kind}[1,1,7,5] m) => (float[2,3,7,5] y) {{ {text} }}", 18, **constants)
    session = harness.create_session(proto, backend="directml", directml_library=fake, d3d12_library=fake)
    assert len(harness.ep_groups(session)) == 1
    expected = softmax(x + mask if where == ADDED else np.where(mask, x, -1e9), axis)
    got = session.run(None, {"x": x, "m": mask})[0]
    np.testing.assert_allclose(got, np.nan_to_num(expected, nan=0.0), rtol=2e-6, atol=1e-37)
