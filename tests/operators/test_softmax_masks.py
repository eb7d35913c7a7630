"""Where in front of a softmax: scores of an attention, some of which a mask hides."""

from __future__ import annotations

import itertools
import tempfile
from pathlib import Path

import directml_libraries
import harness
import instruction_sets
import numpy as np
import onnx
import pytest
from checking import session_and_report
from covering import parametrize_covering

F32 = np.float32
KEPT, HIDDEN = "d = Where(m, s, c)", "d = Where(m, c, s)"
# The mask's shape for scores of (2, 3, 20, width).
MASKS = {
    "whole": lambda width: (2, 3, 20, width),
    "causal": lambda width: (1, 1, 20, width),
    "padding": lambda width: (2, 1, 1, width),
    "of one dimension": lambda width: (width,),
    "queries": lambda width: (2, 1, 20, 1),
    "one": lambda width: (1,),
}


def dims(shape: tuple[int | str, ...]) -> str:
    return "[" + ", ".join(map(str, shape)) + "]"


def model(
    shape: tuple[int | str, ...],
    mask: tuple[int | str, ...],
    fill: float,
    *,
    where: str = KEPT,
    axis: int = -1,
    before: str = "s = Identity(x)",
    behind: str = "y = Softmax <axis = {axis}> (d)",
    kind: str = "float",
) -> onnx.ModelProto:
    """A model whose number c is the fill; inputs are x and m."""
    made = onnx.parser.parse_model(
        f"""<ir_version: 9, opset_import: ["": 18]>
        g ({kind}{dims(shape)} x, bool{dims(mask)} m) => ({kind}{dims(shape)} y) {{
            {before.replace("s = Identity(x)", "")} {where if before != "s = Identity(x)" else where.replace("s", "x")}
            {behind.format(axis=axis)} }}"""
    )
    scalar = np.array(fill, np.float16 if kind == "float16" else F32)
    made.graph.initializer.append(onnx.numpy_helper.from_array(scalar, "c"))
    made.graph.initializer.append(onnx.numpy_helper.from_array(np.array(0.125, scalar.dtype), "k"))
    return made


def softmax(x: np.ndarray, shown: np.ndarray, fill: float, axis: int = -1) -> np.ndarray:
    """In float64; -inf in every place of a row gives NaN."""
    d = np.where(shown, x.astype(np.float64), fill)
    with np.errstate(invalid="ignore"):
        e = np.exp(d - d.max(axis, keepdims=True))
        return e / e.sum(axis, keepdims=True)


def run(
    proto: onnx.ModelProto, folder: Path, x: np.ndarray, mask: np.ndarray, *, node: str = "Where -> Softmax"
) -> np.ndarray:
    session, report = session_and_report(proto, Path(tempfile.mkdtemp(dir=folder)), claim="all")
    assert [line["description"] for line in report if line["claimed"]] == [node], report
    return session.run(None, {"x": x, "m": mask})[0]


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
def test_any_mask_and_any_number(fill: float, mask: str, width: int, tmp_path: Path) -> None:
    x = scores(width)
    shown = np.random.default_rng(8).random(MASKS[mask](width)) < 0.7
    if shown.size > width:
        shown.reshape(-1, shown.shape[-1])[-1] = False  # a row of which nothing is left
    shown.flat[0] = True
    for where, given in ((KEPT, shown), (HIDDEN, ~shown)):
        got = run(model(x.shape, shown.shape, fill, where=where), tmp_path, x, given)
        np.testing.assert_allclose(got, softmax(x, shown, F32(fill)), rtol=5e-7, atol=1.2e-38)


@pytest.mark.every_isa
def test_what_is_hidden_has_no_say(tmp_path: Path) -> None:
    """NaN, infinities and large numbers under the mask."""
    x = scores(40)
    shown = np.ones((1, 1, 1, 40), bool)
    shown[..., 30:] = False
    odd = x.copy()
    odd[..., 30:] = np.resize(np.array([np.nan, np.inf, -np.inf, 3e38, -3e38], F32), odd[..., 30:].shape)
    for fill in (-np.inf, -1e9, -50.0):
        proto = model(x.shape, shown.shape, fill)
        got = run(proto, tmp_path, odd, shown)
        np.testing.assert_array_equal(got, run(proto, tmp_path, x, shown))


@pytest.mark.every_isa
@pytest.mark.parametrize(("kind", "dtype"), [("float", F32), ("float16", np.float16)])
@pytest.mark.parametrize("axis", [-1, 2, 1])
def test_factors_types_and_axes(kind: str, dtype: type[np.floating], axis: int, tmp_path: Path) -> None:
    x = np.random.default_rng(9).normal(0, 9, (2, 3, 20, 33)).astype(dtype)
    shown = np.random.default_rng(10).random((2, 1, 20, 33)) < 0.6
    shown[:, :, 0, 0] = True
    proto = model(x.shape, shown.shape, -6e4, axis=axis, before="s = Mul(x, k)", kind=kind)
    got = run(proto, tmp_path, x, shown, node="Mul -> Where -> Softmax")
    expected = softmax(x.astype(np.float64) / 8, shown, float(dtype(-6e4)), axis)
    tolerance = {"rtol": 5e-7, "atol": 1.2e-38} if dtype is F32 else {"rtol": 6e-4, "atol": 6e-8}
    np.testing.assert_allclose(got.astype(np.float64), expected, **tolerance)


@pytest.mark.every_isa
def test_behind_an_addend_and_before_nan_to_zero(tmp_path: Path) -> None:
    x = scores(70)
    shown = np.random.default_rng(11).random((1, 1, 20, 70)) < 0.5
    shown[..., 4, :] = False
    proto = model(
        x.shape,
        shown.shape,
        -np.inf,
        before="t = Mul(x, k) s = Add(t, b)",
        behind="p = Softmax <axis = -1> (d) n = IsNaN(p) y = Where(n, z, p)",
    )
    bias = np.linspace(-1, 1, 70, dtype=F32)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(bias, "b"))
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.zeros((), F32), "z"))
    got = run(proto, tmp_path, x, shown, node="Mul -> Add -> Where -> Softmax -> IsNaN -> Where")
    with np.errstate(invalid="ignore"):
        expected = np.nan_to_num(softmax(x.astype(np.float64) / 8 + bias, shown, -np.inf), nan=0.0)
    np.testing.assert_allclose(got, expected, rtol=2e-6, atol=1.2e-38)


@pytest.mark.every_isa
def test_dimensions_that_are_not_known(tmp_path: Path) -> None:
    proto = model(("n", "h", "s", "t"), ("n", 1, "s", "t"), -1e9)
    session, report = session_and_report(proto, tmp_path, claim="all")
    assert [line["description"] for line in report] == ["Where -> Softmax"], report
    for shape, mask in (((2, 3, 4, 50), (2, 1, 4, 50)), ((1, 2, 7, 1), (1, 1, 7, 1)), ((0, 2, 7, 3), (0, 1, 7, 3))):
        x = np.random.default_rng(1).normal(size=shape).astype(F32)
        shown = np.random.default_rng(2).random(mask) < 0.5
        (y,) = session.run(None, {"x": x, "m": shown})
        np.testing.assert_allclose(y, softmax(x, shown, -1e9) if x.size else x, rtol=5e-7, atol=1.2e-38)


@pytest.mark.every_isa
@pytest.mark.parametrize("mask", ["causal", "padding"])
def test_bits_do_not_depend_on_the_rows_beside(mask: str, tmp_path: Path) -> None:
    x = scores(130)
    shown = np.random.default_rng(3).random(MASKS[mask](130)) < 0.7
    whole = np.broadcast_to(shown, x.shape)
    together = run(model(x.shape, shown.shape, -1e9), tmp_path, x, shown)
    alone = model((1, 1, 1, 130), (1, 1, 1, 130), -1e9)
    session, _ = session_and_report(alone, tmp_path, claim="all")
    for i in itertools.product(*map(range, x.shape[:-1])):
        row = {"x": x[i][None, None, None], "m": whole[i][None, None, None].copy()}
        np.testing.assert_array_equal(session.run(None, row)[0][0, 0, 0], together[i])


def test_a_constant_mask(tmp_path: Path) -> None:
    x = scores(20, (2, 3, 20))
    causal = np.tri(20, dtype=bool)[None, None]
    proto = model(x.shape, causal.shape, -np.inf)
    del proto.graph.input[1]
    proto.graph.initializer.append(onnx.numpy_helper.from_array(causal, "m"))
    session, report = session_and_report(proto, tmp_path, claim="all")
    assert [line["description"] for line in report] == ["Where -> Softmax"], report
    np.testing.assert_allclose(session.run(None, {"x": x})[0], softmax(x, causal, -np.inf), rtol=5e-7, atol=1.2e-38)


def test_claimed_by_default_where_there_are_vector_kernels(tmp_path: Path) -> None:
    proto = model((1, 12, 64, 64), (1, 1, 64, 64), -1e9)
    _, report = session_and_report(proto, tmp_path, claim="profitable")
    assert report[0]["claimed"] or instruction_sets.IN_USE == "baseline", report


@pytest.mark.parametrize(
    ("where", "behind"),
    [
        ("d = Where(m, s, v)", "y = Softmax <axis = -1> (d)"),  # not a number
        ("d = Where(m, c, c)", "y = Softmax <axis = -1> (d)"),
        ("d = Where(m, s, s)", "y = Softmax <axis = -1> (d)"),
        ("d = Where(m, s, c)", "p = Softmax <axis = -1> (d) y = Add(p, d)"),  # read elsewhere
        ("d = Where(m, s, c)", "y = LogSoftmax <axis = -1> (d)"),
    ],
)
def test_near_misses_and_the_logarithm(where: str, behind: str, tmp_path: Path) -> None:
    x = scores(40)
    shown = np.random.default_rng(4).random((1, 1, 20, 40)) < 0.7
    proto = model(x.shape, shown.shape, -20.0, where=where, behind=behind, before="s = Neg(x)")
    vector = np.linspace(-3, 3, 40, dtype=F32)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(vector, "v"))
    session, report = session_and_report(proto, tmp_path, claim="all")
    assert any("Where" in line["description"] for line in report) == ("Log" in behind), report
    plain = harness.create_session(proto, "cpu").run(None, {"x": x, "m": shown})[0]
    np.testing.assert_allclose(session.run(None, {"x": x, "m": shown})[0], plain, rtol=4e-6, atol=1e-6)


def test_on_directml_it_is_an_operator_of_the_island(tmp_path: Path) -> None:
    fake = str(directml_libraries.build_fake())
    x = np.random.default_rng(5).normal(size=(2, 3, 20, 40)).astype(F32)
    shown = np.random.default_rng(6).random((1, 1, 20, 40)) < 0.7
    shown[..., 0] = True
    libraries = {"directml_library": fake, "d3d12_library": fake}
    proto = model(x.shape, shown.shape, -1e9)
    session = harness.create_session(proto, "ep", backend="directml", claim="all", **libraries)
    assert len(harness.ep_groups(session)) == 1
    np.testing.assert_allclose(
        session.run(None, {"x": x, "m": shown})[0], softmax(x, shown, -1e9), rtol=2e-6, atol=1e-37
    )
