"""Operators of islands whose windows move over the spatial dimensions, and those that pad and resize."""

from __future__ import annotations

import itertools
import math
from typing import Any

import harness
import numpy as np
import onnx
import onnxruntime
import pytest
from oracle import Array

RNG = np.random.default_rng(4)
CODES = {np.dtype(np.float32): "float", np.dtype(np.float16): "float16"}
TYPES = pytest.mark.parametrize("dtype", [np.float32, np.float16])


def close(result: Array, expected: Array) -> None:
    tolerance = 2e-3 if result.dtype == np.float16 else 1e-5
    assert result.shape == expected.shape
    np.testing.assert_allclose(result, expected, rtol=tolerance, atol=tolerance)


def run(node: str, dtype: Any, fake: dict[str, str], *, opset: int = 20, more: str = "", **inputs: Array) -> Array:
    """Run a node between two Neg, which are in its island: -f(-x)."""
    first, *others = inputs
    dims = {name: ",".join(map(str, array.shape)) for name, array in inputs.items()}
    kinds = {name: CODES.get(array.dtype, "int64") for name, array in inputs.items()}
    declared = ", ".join(f"{kinds[name]}[{dims[name]}] {'given' if name == first else name}" for name in inputs)
    constants = f"<{more}>" if more else ""
    text = f"""<ir_version: 10, opset_import: ["": {opset}]> g ({declared}) => ({CODES[np.dtype(dtype)]} y) {constants}
        {{ {first} = Neg(given) made = {node} y = Neg(made) }}"""
    model = onnx.parser.parse_model(text)
    model.graph.output[0].type.tensor_type.ClearField("shape")
    session: onnxruntime.InferenceSession = harness.create_session(model, "ep", backend="directml", claim="all", **fake)
    assert not harness.cpu_types(session)
    assert len(harness.ep_groups(session)) == 1
    feeds = {"given": -inputs[first], **{name: inputs[name] for name in others}}
    return -np.asarray(session.run(None, feeds)[0])


def normal(dtype: Any, *shape: int) -> Array:
    return RNG.normal(size=shape).astype(dtype)


def exact(array: Array) -> Array:
    return array.astype(np.float64)


def windows(
    x: Array, kernel: list[int], strides: list[int], dilations: list[int], pads: list[int], fill: float
) -> Array:
    """[batch, channel, *places, *kernel]"""
    count = len(kernel)
    widths = [(0, 0), (0, 0), *zip(pads[:count], pads[count:], strict=True)]
    padded = np.pad(exact(x), widths, constant_values=fill)
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    views = np.lib.stride_tricks.sliding_window_view(padded, reach, tuple(range(2, 2 + count)))
    places = [slice(None, None, s) for s in strides]
    return views[(slice(None), slice(None), *places, *(slice(None, None, d) for d in dilations))]


def convolve(x: Array, w: Array, strides: list[int], dilations: list[int], pads: list[int], groups: int = 1) -> Array:
    count = w.ndim - 2
    seen = windows(x, list(w.shape[2:]), strides, dilations, pads, 0)
    parts = []
    for part, weights in zip(np.split(seen, groups, 1), np.split(exact(w), groups, 0), strict=True):
        axes = ([1, *range(2 + count, 2 + 2 * count)], list(range(1, 2 + count)))
        parts.append(np.moveaxis(np.tensordot(part, weights, axes), -1, 1))
    return np.concatenate(parts, 1)


def transposed(x: Array, w: Array, strides: list[int], pads: list[int], more: list[int], groups: int) -> Array:
    count = w.ndim - 2
    spatial = [(n - 1) * s + k for n, s, k in zip(x.shape[2:], strides, w.shape[2:], strict=True)]
    full = np.zeros((x.shape[0], w.shape[1] * groups, *(n + m for n, m in zip(spatial, more, strict=True))))
    for place in itertools.product(*map(range, x.shape[2:])):
        at = tuple(slice(p * s, p * s + k) for p, s, k in zip(place, strides, w.shape[2:], strict=True))
        columns = np.split(exact(x)[(slice(None), slice(None), *place)], groups, 1)
        for group, (column, weights) in enumerate(zip(columns, np.split(exact(w), groups, 0), strict=True)):
            channels = slice(group * w.shape[1], (group + 1) * w.shape[1])
            full[(slice(None), channels, *at)] += np.tensordot(column, weights, ([1], [0]))
    ends = [n - after for n, after in zip(full.shape[2:], pads[count:], strict=True)]
    return full[(slice(None), slice(None), *(slice(a, b) for a, b in zip(pads[:count], ends, strict=True)))]


CONVOLUTIONS = {
    "1d": ((2, 3, 9), (4, 3, 3), [2], [1], [1, 0], 1),
    "2d": ((2, 3, 8, 7), (4, 3, 3, 2), [1, 1], [1, 1], [0, 0, 0, 0], 1),
    "2d, all": ((1, 4, 9, 10), (6, 2, 3, 3), [2, 1], [1, 2], [1, 2, 0, 3], 2),
    "depthwise": ((2, 4, 6, 6), (4, 1, 3, 3), [1, 1], [1, 1], [1, 1, 1, 1], 4),
    "patches": ((2, 3, 8, 8), (5, 3, 4, 4), [4, 4], [1, 1], [0, 0, 0, 0], 1),
    "3d": ((1, 2, 4, 5, 6), (3, 2, 2, 3, 2), [1, 2, 1], [1, 1, 1], [0, 1, 0, 1, 0, 1], 1),
}


@pytest.mark.parametrize("case", CONVOLUTIONS)
@pytest.mark.parametrize("biased", [False, True])
@TYPES
def test_convolution(case: str, biased: bool, dtype: Any, fake: dict[str, str]) -> None:
    shape, filters, strides, dilations, pads, groups = CONVOLUTIONS[case]
    x, w, b = normal(dtype, *shape), normal(dtype, *filters), normal(dtype, filters[0])
    node = f"Conv <strides = {strides}, dilations = {dilations}, pads = {pads}, group = {groups}> "
    result = run(node + ("(x, w, b)" if biased else "(x, w)"), dtype, fake, x=x, w=w, **({"b": b} if biased else {}))
    expected = convolve(x, w, strides, dilations, pads, groups)
    close(result, expected + exact(b).reshape(-1, *[1] * (x.ndim - 2)) if biased else expected)


@pytest.mark.parametrize("auto_pad", ["SAME_UPPER", "SAME_LOWER", "VALID"])
def test_convolution_with_automatic_padding(auto_pad: str, fake: dict[str, str]) -> None:
    x, w = normal(np.float32, 1, 2, 9, 8), normal(np.float32, 3, 2, 4, 3)
    result = run(f'Conv <auto_pad = "{auto_pad}", strides = [2, 3]> (x, w)', np.float32, fake, x=x, w=w)
    # Rows: 5 results need 2 * 4 + 4 = 12 of 9; columns: 3 results need 2 * 3 + 3 = 9 of 8.
    pads = {"SAME_UPPER": [1, 0, 2, 1], "SAME_LOWER": [2, 1, 1, 0], "VALID": [0, 0, 0, 0]}[auto_pad]
    close(result, convolve(x, w, [2, 3], [1, 1], pads))


TRANSPOSED = {
    "1d": ((2, 3, 5), (3, 4, 3), [2], [0, 0], [0], 1),
    "2d": ((1, 4, 3, 4), (4, 2, 3, 2), [2, 1], [1, 0, 0, 1], [1, 0], 1),
    "groups": ((2, 4, 3, 3), (4, 3, 2, 2), [2, 2], [0, 0, 0, 0], [0, 0], 2),
}


@pytest.mark.parametrize("case", TRANSPOSED)
@TYPES
def test_transposed_convolution(case: str, dtype: Any, fake: dict[str, str]) -> None:
    shape, filters, strides, pads, more, groups = TRANSPOSED[case]
    x, w, b = normal(dtype, *shape), normal(dtype, *filters), normal(dtype, filters[1] * groups)
    node = f"ConvTranspose <strides = {strides}, pads = {pads}, output_padding = {more}, group = {groups}> (x, w, b)"
    expected = transposed(x, w, strides, pads, more, groups) + exact(b).reshape(-1, *[1] * (x.ndim - 2))
    close(run(node, dtype, fake, x=x, w=w, b=b), expected)


@pytest.mark.parametrize("shape", [(2, 3, 9), (2, 3, 8, 9), (1, 2, 5, 6, 5)])
@pytest.mark.parametrize(
    "op", ["MaxPool", "AveragePool", "AveragePool, padding counts", "GlobalAveragePool", "GlobalMaxPool"]
)
@TYPES
def test_pooling(op: str, shape: tuple[int, ...], dtype: Any, fake: dict[str, str]) -> None:
    x = normal(dtype, *shape)
    count = len(shape) - 2
    if op.startswith("Global"):
        combine = np.mean if op == "GlobalAveragePool" else np.max
        expected = combine(exact(x), tuple(range(2, len(shape))), keepdims=True)
        return close(run(f"{op}(x)", dtype, fake, x=x), expected)
    pads = [1] * count + [0] * count
    seen = windows(x, [3] * count, [2] * count, [1] * count, pads, np.nan)
    inner = tuple(range(-count, 0))
    attributes = f"kernel_shape = {[3] * count}, strides = {[2] * count}, pads = {pads}"
    if op == "MaxPool":
        expected = np.nanmax(seen, inner)
    elif op == "AveragePool":
        expected = np.nanmean(seen, inner)
    else:
        expected = np.nansum(seen, inner) / 3**count
        attributes += ", count_include_pad = 1"
    return close(run(f"{op.split(',')[0]} <{attributes}> (x)", dtype, fake, x=x), expected)


def test_largest_of_dilated_windows_rounded_up(fake: dict[str, str]) -> None:
    x = normal(np.float32, 1, 2, 8, 9)
    node = "MaxPool <kernel_shape = [2, 3], strides = [3, 2], dilations = [2, 1], ceil_mode = 1> (x)"
    # Rows: 3 places reach 6 + 3 = 9 of 8; columns: 4 places reach 9.
    seen = windows(x, [2, 3], [3, 2], [2, 1], [0, 0, 1, 0], -np.inf)
    close(run(node, np.float32, fake, x=x), seen.max((-2, -1)))


@TYPES
def test_batch_normalization(dtype: Any, fake: dict[str, str]) -> None:
    x, scale, bias, mean = normal(dtype, 2, 3, 4, 5), *(normal(dtype, 3) for _ in range(3))
    var = np.abs(normal(dtype, 3)) + dtype(0.5)
    result = run(
        "BatchNormalization <epsilon = 0.01> (x, s, b, m, v)", dtype, fake, x=x, s=scale, b=bias, m=mean, v=var
    )
    wide = [exact(array).reshape(3, 1, 1) for array in (scale, bias, mean, var)]
    close(result, wide[0] * (exact(x) - wide[2]) / np.sqrt(wide[3] + np.float32(0.01)) + wide[1])


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect"])
@pytest.mark.parametrize("pads", [[0, 1, 2, 1, 0, 3], [0, -1, 2, 1, 2, -2], [0, 0, 0, 0, 0, 0]])
@TYPES
def test_pad(mode: str, pads: list[int], dtype: Any, fake: dict[str, str]) -> None:
    x = normal(dtype, 2, 4, 5)
    more = f"int64[6] p = {{{', '.join(map(str, pads))}}}"
    result = run(f'Pad <mode = "{mode}"> (x, p)', dtype, fake, more=more, x=x)
    cut = x[tuple(slice(max(0, -a), n - max(0, -b)) for a, b, n in zip(pads[:3], pads[3:], x.shape, strict=True))]
    widths = [(max(0, a), max(0, b)) for a, b in zip(pads[:3], pads[3:], strict=True)]
    close(result, np.pad(exact(cut), widths, mode=mode))  # type: ignore[call-overload]


def test_pad_with_a_value_along_an_axis(fake: dict[str, str]) -> None:
    x = normal(np.float32, 2, 3)
    more = "int64[2] p = {1, 2}, float v = {0.5}, int64[1] axis = {-1}"
    close(
        run("Pad(x, p, v, axis)", np.float32, fake, more=more, x=x),
        np.pad(exact(x), [(0, 0), (1, 2)], constant_values=0.5),
    )


def positions(mode: str, size: int, count: int, scale: float) -> list[float]:
    if mode == "align_corners":
        return [0.0 if count == 1 else i * (size - 1) / (count - 1) for i in range(count)]
    if mode == "asymmetric":
        return [i / scale for i in range(count)]
    return [(i + 0.5) / scale - 0.5 for i in range(count)]


@pytest.mark.parametrize("coordinates", ["half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel"])
@pytest.mark.parametrize("sizes", [(10, 12), (5, 3), (8, 4)])
@TYPES
def test_linear_resize(coordinates: str, sizes: tuple[int, int], dtype: Any, fake: dict[str, str]) -> None:
    x = normal(dtype, 2, 3, 5, 4)
    more = f"int64[4] n = {{2, 3, {sizes[0]}, {sizes[1]}}}"
    node = f'Resize <mode = "linear", coordinate_transformation_mode = "{coordinates}"> (x, , , n)'
    expected = exact(x)
    for axis, count in zip((2, 3), sizes, strict=True):
        at = positions(coordinates, x.shape[axis], count, count / x.shape[axis])
        expected = np.apply_along_axis(lambda row, at=at: np.interp(at, range(len(row)), row), axis, expected)
    close(run(node, dtype, fake, more=more, x=x), expected)


@pytest.mark.parametrize("nearest", ["floor", "ceil", "round_prefer_floor", "round_prefer_ceil"])
@pytest.mark.parametrize("coordinates", ["half_pixel", "asymmetric"])
@pytest.mark.parametrize("scales", [(2.0, 2.0), (2.0, 0.5), (3.0, 1.0)])
def test_nearest_resize(nearest: str, coordinates: str, scales: tuple[float, float], fake: dict[str, str]) -> None:
    x = normal(np.float32, 1, 2, 5, 6)
    more = f"float[4] s = {{1, 1, {scales[0]}, {scales[1]}}}"
    node = f"""Resize <mode = "nearest", nearest_mode = "{nearest}",
        coordinate_transformation_mode = "{coordinates}"> (x, , s)"""
    round_to = {
        "floor": math.floor,
        "ceil": math.ceil,
        "round_prefer_floor": lambda at: math.ceil(at - 0.5),
        "round_prefer_ceil": lambda at: math.floor(at + 0.5),
    }[nearest]
    expected = exact(x)
    for axis, scale in zip((2, 3), scales, strict=True):
        size = x.shape[axis]
        at = positions(coordinates, size, math.floor(size * scale), scale)
        expected = expected.take([min(max(round_to(each), 0), size - 1) for each in at], axis)
    close(run(node, np.float32, fake, more=more, x=x), expected)


EINSUMS = {
    "bct,bcs->bts": ((2, 3, 4), (2, 3, 5)),
    "bts,bcs->bct": ((2, 4, 5), (2, 3, 5)),
    "bhid,bhjd->bhij": ((2, 3, 4, 5), (2, 3, 6, 5)),
    "ij,jk->ki": ((2, 3), (3, 4)),
    "ij,jk": ((2, 3), (3, 4)),
    "abcd,ecd->aeb": ((2, 3, 4, 5), (6, 4, 5)),
    "i,j->ij": ((3,), (4,)),
    "bi,bi->bi": ((3, 2), (3, 2)),
    "bi,bi->b": ((3, 2), (3, 2)),
}


@pytest.mark.parametrize("equation", EINSUMS)
@TYPES
def test_einsum(equation: str, dtype: Any, fake: dict[str, str]) -> None:
    a, b = (normal(dtype, *shape) for shape in EINSUMS[equation])
    result = run(f'Einsum <equation = "{equation}"> (a, b)', dtype, fake, a=a, b=b)
    close(result, np.einsum(equation, exact(a), exact(b)))


STRETCHED = {
    "bi,bij->bj": [
        ((1, 3), (2, 3, 4)),
        ((2, 3), (1, 3, 4)),
        ((2, 1), (2, 3, 4)),
        ((2, 3), (2, 1, 4)),
        ((1, 1), (2, 3, 4)),
    ],
    "bij,bjk->bik": [((2, 3, 1), (2, 4, 5)), ((1, 3, 4), (2, 4, 5)), ((2, 3, 4), (1, 1, 5)), ((2, 1, 4), (2, 4, 1))],
    "abcd,ecd->aeb": [((2, 3, 1, 5), (6, 4, 5)), ((2, 3, 4, 5), (6, 1, 1)), ((2, 3, 4, 1), (6, 1, 5))],
    "abi,abi->ab": [((1, 3, 2), (4, 1, 2)), ((4, 1, 1), (1, 3, 2))],
}


@pytest.mark.parametrize(
    ("equation", "shapes"), [(equation, each) for equation in STRETCHED for each in STRETCHED[equation]]
)
def test_einsum_repeats_dimensions_of_one(
    equation: str, shapes: tuple[tuple[int, ...], tuple[int, ...]], fake: dict[str, str]
) -> None:
    a, b = (normal(np.float32, *shape) for shape in shapes)
    result = run(f'Einsum <equation = "{equation}"> (a, b)', np.float32, fake, a=a, b=b)
    close(result, np.einsum(equation, exact(a), exact(b)))


LARGER = [
    # kernel, strides, pads, dilation
    ([5, 4], [4, 2], [0, 0, 0, 0], 1),
    ([6, 3], [3, 1], [1, 0, 1, 0], 1),
    ([3, 2], [3, 2], [0, 0, 0, 0], 2),
    ([3, 2], [5, 2], [0, 0, 0, 0], 3),
]


@pytest.mark.parametrize(
    ("op", "kernel", "strides", "pads", "dilation"),
    [
        (op, *window)
        for op in ("MaxPool", "AveragePool", "AveragePool <count_include_pad = 1>")
        for window in LARGER
        if op == "MaxPool" or window[3] == 1  # on DirectML AveragePool has no dilations
    ],
)
@pytest.mark.parametrize("known", [True, False])
def test_a_window_larger_than_the_tensor(
    op: str, known: bool, kernel: list[int], strides: list[int], pads: list[int], dilation: int, fake: dict[str, str]
) -> None:
    """As ONNX Runtime's own kernels have it: by less than a stride larger, it covers the padded tensor."""
    name, *more = op.split(" ", 1)
    given = f"kernel_shape = {kernel}, strides = {strides}, pads = {pads}"
    if name == "MaxPool":
        given += f", dilations = {[dilation] * 2}"
    given += ", count_include_pad = 1" if more else ""
    dims = "2, 1, 3, 3" if known else "A, B, C, D"
    model = onnx.parser.parse_model(f"""<ir_version: 10, opset_import: ["": 20]> g (float[{dims}] x) => (float y)
        {{ n = Neg(x) p = {name} <{given}> (n) y = Neg(p) }}""")
    model.graph.output[0].type.tensor_type.ClearField("shape")
    x = normal(np.float32, 2, 1, 3, 3)
    (expected,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"x": x})
    session = harness.create_session(model, "ep", backend="directml", claim="all", **fake)
    assert not harness.cpu_types(session)
    close(session.run(None, {"x": x})[0], expected)


def test_a_window_that_gives_nothing_is_refused(fake: dict[str, str]) -> None:
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["": 20]> g (float[A, B, C, D] x) => (float y)
        { n = Neg(x) p = MaxPool <kernel_shape = [4, 1]> (n) y = Neg(p) }""")
    model.graph.output[0].type.tensor_type.ClearField("shape")
    session = harness.create_session(model, "ep", backend="directml", claim="all", **fake)
    with pytest.raises(Exception, match=r"a window that is larger than the tensor .*backend=cpu"):
        session.run(None, {"x": normal(np.float32, 1, 1, 3, 3)})


@pytest.mark.parametrize(
    "node",
    [
        'Resize <mode = "cubic"> (x, , s)',
        "AveragePool <kernel_shape = [2, 2], ceil_mode = 1> (x)",
        'Einsum <equation = "bchw->bc"> (x)',
        "ConvTranspose <output_shape = [4, 6]> (x, w)",
    ],
)
def test_what_the_table_does_not_name_stays_on_the_cpu(node: str, fake: dict[str, str]) -> None:
    text = f"""<ir_version: 10, opset_import: ["": 20]> g (float[1, 1, 4, 6] x) => (float y)
        <float[4] s = {{1, 1, 2, 2}}, float[1, 1, 1, 1] w = {{2}}> {{ y = {node} }}"""
    model = onnx.parser.parse_model(text)
    model.graph.output[0].type.tensor_type.ClearField("shape")
    session = harness.create_session(model, "ep", backend="directml", claim="all", **fake)
    assert harness.cpu_types(session) == [node.split()[0]]
    assert session.run(None, {"x": normal(np.float32, 1, 1, 4, 6)})
