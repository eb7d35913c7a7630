"""Islands on quantised operators, against integers and float64."""

from __future__ import annotations

from typing import Any

import harness
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper
from oracle import Array

RNG = np.random.default_rng(24)
CODES = {"uint8": TensorProto.UINT8, "int8": TensorProto.INT8}


def integers(kind: str, *shape: int) -> Array:
    limits = np.iinfo(kind)
    return np.asarray(RNG.integers(limits.min, limits.max + 1, shape, dtype=kind))


def island(
    node: onnx.NodeProto, feeds: dict[str, Array], constants: dict[str, Array], output: int, fake: dict[str, str]
) -> onnxruntime.InferenceSession:
    """The node, between others of its island so that nothing of it is an input or an output of the graph as it is."""
    inputs = [harness.value_info(name, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape) for name, x in feeds.items()]
    graph = helper.make_graph(
        [node],
        "g",
        inputs,
        [harness.value_info("y", output, None)],
        [onnx.numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    session = harness.create_session(model, "ep", backend="directml", claim="all", **fake)
    assert not harness.cpu_types(session)
    assert len(harness.ep_groups(session)) == 1
    return session


def quantised(real: Array, scale: Array, zero: Array) -> Array:
    limits = np.iinfo(zero.dtype)
    return np.clip(np.rint(real / scale.astype(np.float64)) + zero.astype(np.float64), limits.min, limits.max)


SHAPES = [
    ((3, 5), (5, 4)),
    ((2, 3, 5), (5, 4)),
    ((2, 2, 3, 5), (2, 2, 5, 1)),
    ((5,), (5, 3)),
    ((2, 1, 1, 5), (3, 5, 2)),
]


@pytest.mark.parametrize(("left", "right"), SHAPES)
@pytest.mark.parametrize("kinds", [("uint8", "int8"), ("uint8", "uint8"), ("int8", "int8")])
@pytest.mark.parametrize("zeros", ["none", "one", "columns"])
def test_integer_products(
    left: tuple[int, ...], right: tuple[int, ...], kinds: tuple[str, str], zeros: str, fake: dict[str, str]
) -> None:
    a, b = integers(kinds[0], *left), integers(kinds[1], *right)
    a_zero = integers(kinds[0])
    b_zero = integers(kinds[1], *((right[-1],) if zeros == "columns" else ()))
    constants = {} if zeros == "none" else {"az": a_zero, "bz": b_zero}
    node = helper.make_node("MatMulInteger", ["a", "b", *constants], ["y"])
    session = island(node, {"a": a, "b": b}, constants, TensorProto.INT32, fake)
    (y,) = session.run(None, {"a": a, "b": b})
    wide = [x.astype(np.int64) for x in (a, b, a_zero, b_zero)]
    expected = np.matmul(wide[0] - wide[2], wide[1] - wide[3]) if constants else np.matmul(wide[0], wide[1])
    np.testing.assert_array_equal(y, expected)


@pytest.mark.parametrize(("left", "right"), SHAPES)
@pytest.mark.parametrize("kinds", [("uint8", "int8", "uint8"), ("int8", "int8", "int8")])
@pytest.mark.parametrize("columns", [False, True])
def test_quantised_products(
    left: tuple[int, ...], right: tuple[int, ...], kinds: tuple[str, str, str], columns: bool, fake: dict[str, str]
) -> None:
    a, b = integers(kinds[0], *left), integers(kinds[1], *right)
    many = (right[-1],) if columns else ()
    constants: dict[str, Array] = {
        "as": np.array(0.02, np.float32),
        "az": integers(kinds[0]),
        "bs": RNG.uniform(0.01, 0.03, many).astype(np.float32),
        "bz": integers(kinds[1], *many),
        "ys": np.array(0.31, np.float32),
        "yz": integers(kinds[2]),
    }
    node = helper.make_node("QLinearMatMul", ["a", "as", "az", "b", "bs", "bz", "ys", "yz"], ["y"])
    session = island(node, {"a": a, "b": b}, constants, CODES[kinds[2]], fake)
    (y,) = session.run(None, {"a": a, "b": b})
    c = {name: value.astype(np.float64) for name, value in constants.items()}
    real = np.matmul((a - c["az"]) * c["as"], (b - c["bz"]) * c["bs"])
    expected = quantised(real, constants["ys"], constants["yz"])
    assert y.dtype == np.dtype(kinds[2])
    np.testing.assert_allclose(y.astype(np.float64), expected, atol=1)  # a tie may go either way
    assert np.mean(y != expected) < 0.05


def convolved(x: Array, w: Array, groups: int, stride: int, pad: int) -> Array:
    """Over two spatial dimensions, in float64."""
    x = np.pad(x, ((0, 0), (0, 0), (pad, pad), (pad, pad)))
    share, per = w.shape[0] // groups, w.shape[1]
    rows, columns = ((size - kernel) // stride + 1 for size, kernel in zip(x.shape[2:], w.shape[2:], strict=True))
    y = np.zeros((x.shape[0], w.shape[0], rows, columns))
    for channel in range(w.shape[0]):
        first = channel // share * per
        for r in range(rows):
            for c in range(columns):
                at = np.s_[:, first : first + per, r * stride : r * stride + w.shape[2]]
                window = x[at][..., c * stride : c * stride + w.shape[3]]
                y[:, channel, r, c] = (window * w[channel]).sum((1, 2, 3))
    return y


CONVOLUTIONS = [
    {"groups": 1, "stride": 1, "pad": 0},
    {"groups": 2, "stride": 2, "pad": 1},
    {"groups": 4, "stride": 1, "pad": 1},
]


@pytest.mark.parametrize("how", CONVOLUTIONS)
@pytest.mark.parametrize("one_dimension", [False, True])
@pytest.mark.parametrize("by_channel", [False, True])
@pytest.mark.parametrize("quantise", [False, True])
def test_convolutions(
    how: dict[str, int], one_dimension: bool, by_channel: bool, quantise: bool, fake: dict[str, str]
) -> None:
    if one_dimension:
        how = {**how, "pad": 0}
    spatial = 1 if one_dimension else 2
    x = integers("uint8", 2, 4, 6, 7)[:, :, : (1 if one_dimension else 6)]
    w = integers("int8", 8, 4 // how["groups"], 3, 3)[:, :, : (1 if one_dimension else 3)]
    many = (8,) if by_channel else ()
    parameters: dict[str, Array] = {
        "xs": np.array(0.02, np.float32),
        "xz": integers("uint8"),
        "ws": RNG.uniform(0.01, 0.03, many).astype(np.float32),
        "wz": integers("int8", *many),
        "ys": np.array(0.9, np.float32),
        "yz": integers("uint8"),
        "bias": RNG.integers(-999, 999, 8, dtype=np.int32),
    }
    c = {name: value.astype(np.float64) for name, value in parameters.items()}
    along = lambda value: value.reshape(-1, 1, 1, 1) if by_channel else value  # noqa: E731
    sums = convolved(x - c["xz"], w - along(c["wz"]), how["groups"], how["stride"], how["pad"])
    attributes: dict[str, Any] = {
        "group": how["groups"],
        "strides": [how["stride"]] * spatial,
        "pads": [how["pad"]] * 2 * spatial,
    }
    feeds = {"x": x[:, :, 0] if one_dimension else x, "w": w[:, :, 0] if one_dimension else w}
    if quantise:
        node = helper.make_node(
            "QLinearConv", ["x", "xs", "xz", "w", "ws", "wz", "ys", "yz", "bias"], ["y"], **attributes
        )
        real = (sums + c["bias"].reshape(-1, 1, 1)) * c["xs"] * (c["ws"].reshape(-1, 1, 1) if by_channel else c["ws"])
        expected = quantised(real, parameters["ys"], parameters["yz"])
        constants, output = parameters, TensorProto.UINT8
    else:
        node = helper.make_node("ConvInteger", ["x", "w", "xz", "wz"], ["y"], **attributes)
        expected = sums
        constants, output = {name: parameters[name] for name in ("xz", "wz")}, TensorProto.INT32
    session = island(node, feeds, constants, output, fake)
    (y,) = session.run(None, feeds)
    expected = expected[:, :, 0] if one_dimension else expected
    if quantise:
        np.testing.assert_allclose(y.astype(np.float64), expected, atol=1)
        assert np.mean(y != expected) < 0.05
    else:
        np.testing.assert_array_equal(y, expected)


DYNAMIC = {
    "both signs": np.array([[-1.5, 0.25, 3], [0, 2.75, -0.75]]),
    "above 0": np.array([[1.5, 2.25, 3], [9, 2.75, 0.75]]),
    "below 0": -np.array([[1.5, 2.25, 3], [9, 2.75, 0.75]]),
    "all 0": np.zeros((2, 3)),
    "one element": np.array([[-4.0]]),
    "no dimensions": np.array(5.0),
}


@pytest.mark.parametrize("behind_a_chain", [False, True])
@pytest.mark.parametrize("name", DYNAMIC)
def test_dynamic_quantisation(name: str, behind_a_chain: bool, fake: dict[str, str]) -> None:
    """As an operator, and as the end of a chain."""
    x = DYNAMIC[name].astype(np.float32)
    dims = ",".join(map(str, x.shape))
    first = "v = Mul(x, two) v2 = Relu(v)" if behind_a_chain else "v2 = Abs(x)"
    text = f"""<ir_version: 10, opset_import: ["": 20]> g (float[{dims}] x)
        => (uint8[{dims}] y, float s, uint8 z, float[{dims}] v2) <float two = {{2.0}}> {{
            {first} w = Add(v2, x) y, s, z = DynamicQuantizeLinear(w) }}"""
    session = harness.create_session(onnx.parser.parse_model(text), "ep", backend="directml", claim="all", **fake)
    assert not harness.cpu_types(session)
    assert len(harness.ep_groups(session)) == 1
    y, s, z, _ = session.run(None, {"x": x})
    value = x.astype(np.float64)
    value = value + (np.maximum(2 * value, 0) if behind_a_chain else np.abs(value))
    least, most = min(0, value.min()), max(0, value.max())
    scale = (most - least) / 255 or 1.0
    np.testing.assert_allclose(s, scale, rtol=1e-6)
    assert z == np.rint(-least / scale)
    np.testing.assert_allclose(y, np.clip(np.rint(value / scale) + z, 0, 255), atol=1)
    assert (y.shape, s.shape, z.shape) == (x.shape, (), ())


@pytest.mark.parametrize("kind", ["float", "float16", "int64", "int32", "bool"])
def test_constant_of_shape(kind: str, fake: dict[str, str]) -> None:
    """Its shape follows from an input's."""
    kinds = {"float": np.float32, "float16": np.float16, "int64": np.int64, "int32": np.int32, "bool": np.bool_}
    value = np.array([1 if kind == "bool" else 3], kinds[kind])
    graph = onnx.parser.parse_model(f"""<ir_version: 10, opset_import: ["": 20]>
        g (float[N, 5] x) => (float[N, 5] n, {kind}[N, 5] y) <float[5] s = {{1, 2, 3, 4, 5}}> {{
            n = LayerNormalization(x, s) shape = Shape(n) y = ConstantOfShape(shape) }}""")
    graph.graph.node[-1].attribute.append(helper.make_attribute("value", onnx.numpy_helper.from_array(value)))
    session = harness.create_session(graph, "ep", backend="directml", claim="all", **fake)
    for rows in (3, 1, 3):
        _, y = session.run(None, {"x": RNG.normal(size=(rows, 5)).astype(np.float32)})
        np.testing.assert_array_equal(y, np.full((rows, 5), value[0]))
        assert y.dtype == value.dtype


def test_a_constant_of_shape_inside(fake: dict[str, str]) -> None:
    """Without its attribute, which then is 0; read by an operator and by a chain."""
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["": 20]>
        g (float[N, 4] x) => (float[N, 4] y) <float[4] s = {1, 2, 3, 4}> {
            shape = Shape(x) zeros = ConstantOfShape(shape) over = Max(x, zeros) sum = Add(over, zeros)
            n = LayerNormalization(sum, s) y = MatMul(n, w) }""")
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.eye(4, dtype=np.float32), "w"))
    session = harness.create_session(model, "ep", backend="directml", claim="all", **fake)
    assert not harness.cpu_types(session)
    assert len(harness.ep_groups(session)) == 1
    x = RNG.normal(size=(3, 4)).astype(np.float32)
    (y,) = session.run(None, {"x": x})
    over = np.maximum(x.astype(np.float64), 0)
    centred = over - over.mean(-1, keepdims=True)
    expected = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * [1, 2, 3, 4]
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("rows", [1, 2, 3, 5])
def test_a_constant_of_shape_that_others_compute_with(rows: int, fake: dict[str, str]) -> None:
    """Integers that follow from a shape are computed on the CPU: here the indices of a Gather."""
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["": 20]>
        g (float[N, 4] x) => (float[N, M] y) <int64[1] first = {0}, float[4] s = {1, 2, 3, 4}> {
            n = LayerNormalization(x, s) shape = Shape(x) count = Gather(shape, first)
            twos = ConstantOfShape <value = int64[1] {2}> (count)
            indices = Add(twos, first) y = Gather <axis = 1> (n, indices) }""")
    session = harness.create_session(model, "ep", backend="directml", claim="all", **fake)
    assert not harness.cpu_types(session)
    x = RNG.normal(size=(rows, 4)).astype(np.float32)
    (y,) = session.run(None, {"x": x})
    centred = x.astype(np.float64) - x.astype(np.float64).mean(-1, keepdims=True)
    expected = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * [1, 2, 3, 4]
    np.testing.assert_allclose(y, expected[:, [2] * rows], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dims", [(2, 0), (0,)])
def test_products_that_have_no_elements(dims: tuple[int, ...], fake: dict[str, str]) -> None:
    """Are an error of the call, and the session goes on."""
    node = helper.make_node("MatMulInteger", ["a", "b"], ["y"])
    inputs = [
        harness.value_info("a", TensorProto.UINT8, [*map(str, range(len(dims)))]),
        harness.value_info("b", TensorProto.INT8, ["K", 3]),
    ]
    graph = helper.make_graph([node], "g", inputs, [harness.value_info("y", TensorProto.INT32, None)])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    session = harness.create_session(model, "ep", backend="directml", claim="all", **fake)
    feeds = {"a": np.zeros(dims, np.uint8), "b": np.zeros((dims[-1], 3), np.int8)}
    with pytest.raises(Exception, match="dimension of 0"):
        session.run(None, feeds)
    ones = {"a": np.ones([max(1, dim) for dim in dims], np.uint8), "b": np.ones((1, 3), np.int8)}
    np.testing.assert_array_equal(session.run(None, ones)[0], np.ones([*ones["a"].shape[:-1], 3]))
