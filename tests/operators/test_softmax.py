"""Softmax and its logarithm: as nodes of our operator, and as chains of standard nodes that the provider claims."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import directml_libraries
import harness
import instruction_sets
import numpy as np
import oracle
import pytest
from checking import PROVIDERS, check, normalization, session_and_report
from onnx import TensorProto, helper, parser

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
    check(normalization(x, {"axes": [-1], "method": "softmax"}), "custom")
    check(normalization(np.repeat(x, 40, axis=0), {"axes": [-1], "method": "softmax"}), "custom")


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
@pytest.mark.parametrize("axis", [-1, -2])
@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
@pytest.mark.parametrize("method", METHODS)
def test_bytes(method: str, dtype: type[np.integer[Any]], axis: int) -> None:
    info = np.iinfo(dtype)
    x = np.random.default_rng(2).integers(info.min, info.max + 1, (3, 50, 49)).astype(dtype)
    case = normalization(
        x,
        {"axes": [axis], "method": method},
        x_scale=F32(0.07),
        x_zero_point=np.array(info.min + 100, dtype),
        y_scale=F32(1 / 256) if method == "softmax" else F32(0.1),
        y_zero_point=np.array(info.min if method == "softmax" else info.max, dtype),
    )
    check(case, "ep")


@pytest.mark.every_isa
@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("shape", [(1, 1, 1, 37), (2, 1, 1, 37), (1, 1, 5, 37), (2, 3, 5, 1), (2, 3, 5, 37)])
def test_scaled_and_masked(provider: str, shape: tuple[int, ...]) -> None:
    mask = np.where(np.random.default_rng(3).random(shape) < 0.4, -np.inf, 0.0).astype(F32)
    mask[..., 0] = 0.0
    attributes = {"axes": [-1], "method": "softmax", "steps_before": "Mul Add"}
    check(normalization(values((2, 3, 5, 37)), attributes, operand_0=F32(0.125), operand_1=mask), provider)
    attributes["steps_before"] = "Mul"
    check(normalization(values((2, 3, 5, 37)), attributes, operand_0=F32(0.125), residual=mask), provider)


@pytest.mark.every_isa
@pytest.mark.parametrize("place", ["X", "M"])
def test_long_rows_in_place(place: str) -> None:
    """Y may be bound to the memory of X, or of a tensor that is added, which are read again where a row is unusual."""
    x, mask = values((3, 8500)), values((3, 8500))
    x[1] += F32(100.0)
    text = "g (float[a, b] X, float[a, b] M) => (float[a, b] Y) { s = Add(X, M)  Y = Softmax(s) }"
    session = harness.create_session(parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> {text}'), "ep")
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


# --- chains of standard nodes ---------------------------------------------------------------------


def model(nodes: str, tensor: str, opset: int, result: str | None = None, **constants: np.ndarray) -> Any:
    """One input X and one output Y of the same type, if not said otherwise, and the input M, where it is used."""
    width = re.findall(r"\w+", tensor)[-1]
    mask = f", float[1, 1, 1, {width}] M" if "M" in re.split(r"\W", nodes) else ""
    text = f'<ir_version: 8, opset_import: ["": {opset}]> g ({tensor} X{mask}) => ({result or tensor} Y) {{{nodes}}}'
    proto = parser.parse_model(text)
    proto.graph.initializer.extend(harness.initializer(name, array) for name, array in constants.items())
    return proto


def claimed(proto: Any, tmp_path: Path, inputs: dict[str, np.ndarray], **options: Any) -> np.ndarray:
    """The result of a session in which everything is claimed, as one chain."""
    session, report = session_and_report(proto, tmp_path, **options)
    assert [line["claimed"] for line in report] == [True], report
    return np.asarray(session.run(None, inputs)[0])


@pytest.mark.parametrize(
    ("opset", "axis", "axes"), [(11, 1, [1, 2, 3]), (11, 2, [2, 3]), (12, -1, [3]), (13, 1, [1]), (22, -1, [3])]
)
@pytest.mark.parametrize(("op_type", "method"), [("Softmax", "softmax"), ("LogSoftmax", "log_softmax")])
def test_the_meaning_of_axis_before_and_from_opset_13(
    op_type: str, method: str, opset: int, axis: int, axes: list[int], tmp_path: Path
) -> None:
    x = values((2, 3, 4, 5))
    proto = model(f"Y = {op_type}<axis = {axis}>(X)", "float[2, 3, 4, 5]", opset)
    got = claimed(proto, tmp_path, {"X": x}, claim="all")
    oracle.evaluate("FusedNormalization", {"X": x}, {"axes": axes, "method": method})["Y"].check(got)


@pytest.mark.parametrize(("opset", "axes"), [(9, [1, 2]), (13, [2])])
def test_the_default_axis(opset: int, axes: list[int], tmp_path: Path) -> None:
    x = values((2, 3, 4))
    got = claimed(model("Y = Softmax(X)", "float[2, 3, 4]", opset), tmp_path, {"X": x}, claim="all")
    oracle.evaluate("FusedNormalization", {"X": x}, {"axes": axes, "method": "softmax"})["Y"].check(got)


@pytest.mark.parametrize("zero", [np.array(0, np.uint8), np.array(-128, np.int8)])
def test_quantised_softmax_is_one_chain_by_default(zero: np.ndarray, tmp_path: Path) -> None:
    name = "uint8" if zero.dtype == np.uint8 else "int8"
    scales = {"xs": np.array(0.1, F32), "xz": np.array(7, zero.dtype), "ys": np.array(1 / 256, F32), "yz": zero}
    nodes = "d = DequantizeLinear(X, xs, xz) s = Softmax(d) Y = QuantizeLinear(s, ys, yz)"
    info = np.iinfo(zero.dtype)
    x = np.random.default_rng(1).integers(info.min, info.max + 1, (2, 4, 40, 40)).astype(zero.dtype)
    got = claimed(model(nodes, f"{name}[2, 4, 40, 40]", 13, **scales), tmp_path, {"X": x}, claim="profitable")
    inputs = {
        "X": x,
        "x_scale": scales["xs"],
        "x_zero_point": scales["xz"],
        "y_scale": scales["ys"],
        "y_zero_point": zero,
    }
    oracle.evaluate("FusedNormalization", inputs, {"axes": [-1], "method": "softmax"})["Y"].check(got)


def test_a_mask_in_front_is_one_chain(tmp_path: Path) -> None:
    x, mask = values((2, 4, 40, 40)), values((1, 1, 1, 40))
    mask[..., 7:] = -np.inf
    proto = model("a = Add(X, M) Y = Softmax(a)", "float[2, 4, 40, 40]", 13)
    got = claimed(proto, tmp_path, {"X": x, "M": mask}, claim="all")
    inputs = {"X": x, "residual": mask}
    oracle.evaluate("FusedNormalization", inputs, {"axes": [-1], "method": "softmax"})["Y"].check(got)


@pytest.mark.parametrize("swapped", [False, True])
def test_a_factor_and_a_mask_are_one_chain(swapped: bool, tmp_path: Path) -> None:
    """By default where there are vector kernels: the plain ones are no faster than ONNX Runtime's."""
    claim = "all" if instruction_sets.IN_USE == "baseline" else "profitable"
    x, mask, factor = values((2, 4, 40, 40)), values((1, 1, 1, 40)), np.array(0.3, F32)
    product = "m = Mul(c, X)" if swapped else "m = Mul(X, c)"
    proto = model(f"{product} a = Add(m, M) Y = Softmax(a)", "float[2, 4, 40, 40]", 13, c=factor)
    got = claimed(proto, tmp_path, {"X": x, "M": mask}, claim=claim)
    inputs = {"X": x, "operand_0": factor, "residual": mask}
    attributes = {"axes": [-1], "method": "softmax", "steps_before": "Mul"}
    oracle.evaluate("FusedNormalization", inputs, attributes)["Y"].check(got)


def test_a_factor_of_a_product_stays_with_it(tmp_path: Path) -> None:
    nodes = "p = MatMul(X, X) m = Mul(p, c) a = Add(m, M) Y = Softmax(a)"
    proto = model(nodes, "float[2, 4, 40, 40]", 13, c=np.array(0.3, F32))
    _, report = session_and_report(proto, tmp_path, claim="all")
    assert [line["description"] for line in report] == ["Add -> Softmax"], report


@pytest.mark.parametrize("nodes", ["Y = Softmax(X)", "Y = LogSoftmax(X)", "m = Mul(X, c) Y = Softmax(m)"])
def test_rows_of_float32_alone_are_left_to_onnx_runtime(nodes: str, tmp_path: Path) -> None:
    proto = model(nodes, "float[2, 4, 384, 384]", 13, c=np.array(0.3, F32))
    _, report = session_and_report(proto, tmp_path, claim="profitable")
    assert [line["claimed"] for line in report] == [False], report


@pytest.mark.parametrize(
    ("shape", "axis", "claimed"),
    [("4, 8, 64, 64", 2, False), ("2, 1000, 49", 1, False), ("64, 1024", -2, False), ("1, 16, 4, 2100", 1, True)],
)
def test_columns_are_left_to_onnx_runtime(shape: str, axis: int, claimed: bool, tmp_path: Path) -> None:
    """It has a fast kernel that swaps the last two dimensions, and none for others."""
    proto = model(f"Y = Softmax<axis = {axis}>(X)", f"float[{shape}]", 13)
    _, report = session_and_report(proto, tmp_path, claim="profitable")
    assert [line["claimed"] for line in report] == [claimed], report


@pytest.mark.parametrize("width", [12, 384, 18385])
def test_a_mask_is_claimed_where_there_are_vector_kernels(width: int, tmp_path: Path) -> None:
    proto = model("a = Add(X, M) Y = Softmax(a)", f"float[2, 4, 40, {width}]", 13)
    _, report = session_and_report(proto, tmp_path, claim="profitable")
    assert [line["claimed"] for line in report] == [instruction_sets.IN_USE != "baseline"], report


# One layer of attention as ONNX Runtime's AttentionFusion wants it.
ATTENTION = """
<ir_version: 8, opset_import: ["": 17]>
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
    proto = parser.parse_model(ATTENTION)
    if not normalises:  # of a type of statistics that we do not have
        proto.graph.node[0].attribute.append(helper.make_attribute("stash_type", 11))
    numbers = {"w": values((16, 16)), "b": values((16,)), "two": np.array(2, F32)}
    shapes = {"heads": np.array([0, 0, 4, 4]), "rows": np.array([0, 0, 16])}
    proto.graph.initializer.extend(harness.initializer(name, array) for name, array in {**numbers, **shapes}.items())
    _, report = session_and_report(proto, tmp_path, claim="profitable")
    lines = [line for line in report if line["op_type"] == "Softmax"]
    assert ["Attention" in str(line) for line in lines] == [not normalises], report


# Softmax of which rows that are NaN become 0, as PyTorch exports attention with a mask that may hide whole rows.
CLEARED = "p = Softmax<axis = {axis}>(X) n = IsNaN(p) {where}"
ZERO_FOR_NAN = "Y = Where(n, z, p)"


def without_nan(x: np.ndarray, axis: int) -> np.ndarray:
    """In float64; a row with NaN or plus infinity, or of nothing but minus infinity, is 0."""
    d = x.astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        powers = np.exp(d - d.max(axis, keepdims=True))
        quotients = powers / powers.sum(axis, keepdims=True)
    return np.where(np.isnan(quotients), 0.0, quotients)


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
def test_rows_that_would_be_nan_are_zero(shape: tuple[int, ...], axis: int, tmp_path: Path) -> None:
    x = odd_rows(shape, axis)
    proto = model(
        CLEARED.format(axis=axis, where=ZERO_FOR_NAN),
        f"float[{', '.join(map(str, shape))}]",
        18,
        z=np.zeros((1, 1), F32),
    )
    got = claimed(proto, tmp_path, {"X": x}, claim="all")
    expected = without_nan(x, axis)
    assert (got[expected == 0] == 0).all()
    np.testing.assert_allclose(got, expected, rtol=5e-7, atol=1.2e-38)


@pytest.mark.every_isa
def test_what_stands_around_rows_of_zeros(tmp_path: Path) -> None:
    """A mask before them and a quantisation behind: 0 becomes the zero point."""
    x, mask = values((2, 4, 40, 40)), np.zeros((1, 1, 1, 40), F32)
    x[0, 1, 5:9] = -np.inf
    mask[..., 33:] = -np.inf
    nodes = "a = Add(X, M) p = Softmax(a) n = IsNaN(p) w = Where(n, z, p) Y = QuantizeLinear(w, s, q)"
    scales = {"z": np.zeros((), F32), "s": np.array(1 / 200, F32), "q": np.array(9, np.uint8)}
    proto = model(nodes, "float[2, 4, 40, 40]", 18, "uint8[2, 4, 40, 40]", **scales)
    got = claimed(proto, tmp_path, {"X": x, "M": mask}, claim="all")
    exact = without_nan(x + mask, -1) * 200
    assert (got[0, 1, 5:9] == 9).all()
    assert (got[..., 33:] == 9).all()
    assert (np.abs(got - (np.rint(exact) + 9)) <= (np.abs(exact % 1 - 0.5) < 1e-3)).all()


def test_rows_of_zeros_are_claimed_by_default(tmp_path: Path) -> None:
    """Where there are vector kernels: IsNaN and Where take longer than the softmax itself."""
    claim = "all" if instruction_sets.IN_USE == "baseline" else "profitable"
    x, mask = values((2, 4, 40, 40)), values((1, 1, 1, 40))
    nodes = f"a = Add(X, M) p = Softmax(a) n = IsNaN(p) {ZERO_FOR_NAN}"
    proto = model(nodes, "float[2, 4, 40, 40]", 18, z=np.zeros((), F32))
    got = claimed(proto, tmp_path, {"X": x, "M": mask}, claim=claim)
    np.testing.assert_allclose(got, without_nan(x + mask, -1), rtol=2e-6)


@pytest.mark.parametrize("axis", [-1, 1])
def test_rows_of_zeros_on_directml(axis: int, tmp_path: Path) -> None:
    fake = str(directml_libraries.build_fake())
    x = odd_rows((2, 3, 7, 5), axis)
    x[np.isposinf(x)] = np.nan  # of which DirectML does not say what becomes
    proto = model(CLEARED.format(axis=axis, where=ZERO_FOR_NAN), "float[2, 3, 7, 5]", 18, z=np.zeros((1, 1), F32))
    libraries = {"directml_library": fake, "d3d12_library": fake}
    got = claimed(proto, tmp_path, {"X": x}, claim="all", backend="directml", **libraries)
    np.testing.assert_allclose(got, without_nan(x, axis), rtol=2e-6, atol=1e-37)


@pytest.mark.parametrize(
    ("where", "zero"),
    [
        ("Y = Where(n, z, p)", np.ones((), F32)),  # another number
        ("Y = Where(n, z, p)", np.zeros(40, F32)),  # of several elements
        ("Y = Where(n, z, p)", np.zeros((1, 1, 1, 1, 1), F32)),  # which makes a dimension more
        ("Y = Where(n, p, z)", np.zeros((), F32)),  # the other way round
        ("Y = Where(n, p, p)", np.zeros((), F32)),
        ("y = Where(n, z, p) Y = Add(y, p)", np.zeros((), F32)),  # the softmax is read elsewhere
        ("y = Where(n, z, p) f = Cast<to = 1>(n) Y = Add(y, f)", np.zeros((), F32)),  # what is NaN, too
        ("y = Where(n, z, X) f = Add(p, p) Y = Add(y, f)", np.zeros((), F32)),  # of another tensor
        ("m = Not(n) Y = Where(m, z, p)", np.zeros((), F32)),
    ],
)
def test_what_is_no_softmax_without_nan(where: str, zero: np.ndarray, tmp_path: Path) -> None:
    x = odd_rows((1, 4, 40, 40), -1)
    result = "float[1, 1, 4, 40, 40]" if zero.ndim == 5 else "float[1, 4, 40, 40]"
    proto = model(CLEARED.format(axis=-1, where=where), "float[1, 4, 40, 40]", 18, result, z=zero)
    session, report = session_and_report(proto, tmp_path, claim="all")
    assert not any("IsNaN" in line["description"] for line in report), report
    plain = harness.create_session(proto, "cpu").run(None, {"X": x})[0]
    np.testing.assert_allclose(session.run(None, {"X": x})[0], plain, rtol=2e-6)


@pytest.mark.parametrize(
    ("attributes", "outputs", "sentence"),
    [
        ({"steps": "Hardmax axes=-1"}, ("Y",), "the step 'Hardmax', which this library does not know"),
        ({"axes": [-1], "method": "softmax", "use_mean": 0}, ("Y",), "Softmax.* takes no argument use_mean"),
        ({"num_groups": 1, "method": "softmax"}, ("Y",), "Softmax.* takes no argument num_groups"),
        ({"axes": [-1], "method": "softmax"}, ("Y", "mean"), "no outputs mean and inv_std_dev"),
    ],
)
def test_what_a_softmax_has_not(attributes: dict[str, Any], outputs: tuple[str, ...], sentence: str) -> None:
    inputs = {"X": values((2, 3, 4))}
    types = dict.fromkeys(outputs, int(TensorProto.FLOAT))
    proto = harness.operator_model("FusedNormalization", inputs, attributes, types, constants=(), opset=20)
    with pytest.raises(Exception, match=sentence):
        harness.create_session(proto, "custom")
