"""DynamicQuantizeLinear behind a chain, and products of integers in front of one, as dynamic quantisers write them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import harness
import numpy as np
import onnx
import onnxruntime
import pytest
from checking import session_and_report
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import parser

import normfuse

pytestmark = pytest.mark.without_vnni

F32 = np.float32
OUTPUTS = "uint8[a, b] Q, float S, uint8 Z"


def values(shape: tuple[int, ...], seed: int = 5, offset: float = 0.0, spread: float = 1.0) -> np.ndarray:
    return np.random.default_rng(seed).normal(offset, spread, shape).astype(F32)


def model(inputs: str, outputs: str, nodes: str, **constants: np.ndarray) -> Any:
    proto = parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> g ({inputs}) => ({outputs}) {{{nodes}}}')
    proto.graph.initializer.extend(harness.initializer(name, array) for name, array in constants.items())
    return proto


def claimed(proto: Any, tmp_path: Path, description: str, *, rewritten: bool = False) -> onnxruntime.InferenceSession:
    """A session in which that and nothing else is claimed; ``rewritten``: but nodes that the rewriting pass wrote."""
    if rewritten:
        proto = normfuse.optimize(proto, verify=False).model
    session, report = session_and_report(proto, tmp_path, claim="all")
    (found,) = [line["description"] for line in report if line["claimed"]]
    fused = [step for step in found.split(" -> ") if step.startswith("Fused")]
    if rewritten and fused:
        before = ["Cast", "Mul"] if description.startswith("Cast -> Mul") else []
        description = " -> ".join((*before, *fused, "DynamicQuantizeLinear"))
    assert found == description, report
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


def layer_norm(x: np.ndarray, scale: np.ndarray, bias: np.ndarray) -> np.ndarray:
    d = x.astype(np.float64)
    d = d - d.mean(-1, keepdims=True)
    return np.asarray(d / np.sqrt((d * d).mean(-1, keepdims=True) + 1e-5) * scale + bias)


NORM = "n = LayerNormalization(X, g, b)"
# Three readers of the quantised tensor, as query, key and value are: no node of ONNX Runtime's takes it up.
QUANTIZE = "Q, S, Z = DynamicQuantizeLinear(n)"


@pytest.mark.every_isa
@pytest.mark.parametrize("rewritten", [False, True])
@pytest.mark.parametrize("shape", [(3, 7), (5, 64), (64, 768), (700, 770), (1, 1), (0, 16)])
def test_behind_a_normalisation(shape: tuple[int, ...], rewritten: bool, tmp_path: Path) -> None:
    scale, bias = values(shape[-1:], 1, 1.0, 0.1), values(shape[-1:], 2)
    proto = model("float[a, b] X", OUTPUTS, NORM + QUANTIZE, g=scale, b=bias)
    session = claimed(proto, tmp_path, "LayerNormalization -> DynamicQuantizeLinear", rewritten=rewritten)
    for offset in (0.0, 100.0):
        x = values(shape, offset=offset)
        check(session.run(None, {"X": x}), layer_norm(x, scale, bias), 1e-5)


@pytest.mark.every_isa
@pytest.mark.parametrize("rewritten", [False, True])
def test_the_values_themselves_are_an_output_where_others_read_them(rewritten: bool, tmp_path: Path) -> None:
    scale, bias, x = values((96,), 1), values((96,), 2), values((40, 96))
    proto = model("float[a, b] X", "float[a, b] n, " + OUTPUTS, NORM + QUANTIZE, g=scale, b=bias)
    session = claimed(proto, tmp_path, "LayerNormalization -> DynamicQuantizeLinear", rewritten=rewritten)
    got, *quantised = session.run(None, {"X": x})
    np.testing.assert_allclose(got, layer_norm(x, scale, bias), rtol=1e-5, atol=1e-5)
    check(quantised, got, 0)


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


@pytest.mark.parametrize("nodes", [NORM + QUANTIZE, "n = Relu(X)" + QUANTIZE])
def test_no_bits_depend_on_threads(nodes: str) -> None:
    proto = model(
        "float[a, b] X", OUTPUTS, nodes, **({"g": values((768,)), "b": values((768,))} if "g," in nodes else {})
    )
    results = []
    for threads in (1, 2):
        options = harness.session_options("ep")
        options.intra_op_num_threads = threads
        session = harness.create_session(proto, options=options)
        for _ in range(3):
            results.append(session.run(None, {"X": values((600, 768), offset=2.0)}))
    for result in results[1:]:
        for got, want in zip(result, results[0], strict=True):
            np.testing.assert_array_equal(got, want)


CONVOLUTION = "m = ConvInteger<pads = [1, 1, 1, 1]>(X, k, xz, kz) c = Cast<to = 1>(m) e = Mul(c, s) "
CONV_INPUTS = "uint8[1, 4, h, 9] X, uint8 xz, float s"


@pytest.mark.every_isa
@pytest.mark.parametrize("rewritten", [False, True])
@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize(
    ("nodes", "description", "function"),
    [
        ("n = Add(e, cb)", "Cast -> Mul -> Add", lambda v: v),
        ("a = Add(e, cb) n = Relu(a)", "Cast -> Mul -> Add -> Relu", lambda v: np.maximum(v, 0)),
        (
            "a = Add(cb, e) r = Sigmoid(a) n = Mul(a, r)",
            "Cast -> Mul -> Add -> Sigmoid -> Mul",
            lambda v: v * (0.5 + 0.5 * np.tanh(0.5 * v)),
        ),
    ],
)
def test_behind_a_convolution_of_integers(
    per_channel: bool, rewritten: bool, nodes: str, description: str, function: Any, tmp_path: Path
) -> None:
    numbers = np.random.default_rng(3)
    kernel = numbers.integers(0, 256, (8, 4, 3, 3)).astype(np.uint8)
    x = numbers.integers(0, 256, (1, 4, 11, 9)).astype(np.uint8)
    bias = values((1, 8, 1, 1))
    scale = np.full((1, 8, 1, 1), 1e-3, F32) * np.arange(1, 9, dtype=F32).reshape(1, 8, 1, 1)
    scale = scale if per_channel else np.array(1e-3, F32)
    inputs = CONV_INPUTS.replace("float s", "float[1, 8, 1, 1] s") if per_channel else CONV_INPUTS
    outputs = "uint8[1, 8, h, 9] Q, float S, uint8 Z"
    constants = {"k": kernel, "kz": np.array(128, np.uint8), "cb": bias}
    session = claimed(
        model(inputs, outputs, CONVOLUTION + nodes + QUANTIZE, **constants),
        tmp_path,
        description + " -> DynamicQuantizeLinear",
        rewritten=rewritten,
    )
    padded = np.pad(x.astype(np.int64) - 120, ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))
    product = np.einsum("nchwij,ocij->nohw", windows, kernel.astype(np.int64) - 128)
    exact = function(product * scale.astype(np.float64) + bias)
    got = session.run(None, {"X": x, "xz": np.array(120, np.uint8), "s": scale})
    check(got, exact, 1e-6)


@pytest.mark.parametrize(
    ("nodes", "inputs"),
    [
        # ONNX Runtime makes DynamicQuantizeMatMul and MatMulIntegerToFloat of these.
        (
            NORM + "q, s, z = DynamicQuantizeLinear(n) m = MatMulInteger(q, w, z) c = Cast<to = 1>(m) Y = Mul(c, s)",
            "float[4, 8] X",
        ),
        ("m = MatMulInteger(I, w) c = Cast<to = 1>(m) e = Mul(c, s) Y = Relu(e)", "uint8[4, 8] I, float s"),
        # The scale does not fit, or is a tensor of its own; another type.
        ("c = Cast<to = 1>(I) e = Mul(c, t) Y = Relu(e)", "int64[4, 8] I, float[4, 8] t"),
        ("c = Cast<to = 1>(I) e = Mul(c, t) Y = Relu(e)", "int32[1, 8] I, float[4, 8] t"),
        ("c = Cast<to = 1>(I) e = Mul(c, t) Y = Relu(e)", "int32[4, 8] I, float[8] t"),
    ],
)
def test_what_is_left(nodes: str, inputs: str, tmp_path: Path) -> None:
    constants = {"w": np.zeros((8, 8), np.uint8), "g": values((8,)), "b": values((8,))}
    constants = {name: array for name, array in constants.items() if f" {name}," in nodes or f" {name})" in nodes}
    _, report = session_and_report(model(inputs, "float[4, 8] Y", nodes, **constants), tmp_path, claim="all")
    for line in report:
        assert not {"Cast", "DynamicQuantizeLinear"} & set(line["description"].split(" -> ")), report


@pytest.mark.parametrize(
    ("nodes", "outputs"),
    [
        ("c = Conv(X, k) n = Relu(c)", ""),  # within the convolution
        (
            "c = Conv<pads = [1, 1, 1, 1]>(X, kk) r = Sigmoid(c) n = Mul(c, r) Y = Conv(n, k)",
            ", float[1, 16, 64, 64] Y",
        ),
    ],
)
def test_what_convolutions_do_or_keep_is_left_by_default(nodes: str, outputs: str, tmp_path: Path) -> None:
    """The layout of a convolution's result is kept where another one reads the values beside the bytes."""
    numbers = np.random.default_rng(1)
    kernels = {"k": (16, 16, 1, 1), "kk": (16, 16, 3, 3)}
    constants = {
        name: numbers.normal(0, 0.1, shape).astype(F32) for name, shape in kernels.items() if f" {name})" in nodes
    }
    proto = model(
        "float[1, 16, 64, 64] X",
        "uint8[1, 16, 64, 64] Q, float S, uint8 Z" + outputs,
        nodes + QUANTIZE,
        **constants,
    )
    _, report = session_and_report(proto, tmp_path, claim="profitable")
    assert report
    for line in report:
        assert not line["claimed"], report


PLACES = ("belongs to the quantised operator", "a layout of its own")


@pytest.mark.parametrize("reader", ["MaxPool<kernel_shape = [1, 1]>(n)", "Conv(n, k)", "Relu(n)"])
def test_scaled_integers_stand_in_no_quantised_operator_and_no_layout(reader: str, tmp_path: Path) -> None:
    """ConvInteger writes plain integers, and a Cast is no DequantizeLinear that a kernel of ONNX Runtime's takes up."""
    numbers = np.random.default_rng(1)
    constants = {
        "w": numbers.integers(0, 255, (16, 16, 1, 1)).astype(np.uint8),
        "cb": values((1, 16, 1, 1)),
        **({"k": values((16, 16, 1, 1))} if " k" in reader else {}),
    }
    nodes = f"m = ConvInteger(X, w) c = Cast<to = 1>(m) e = Mul(c, s) a = Add(e, cb) n = HardSwish(a) Y = {reader}"
    proto = model("uint8[1, 16, 64, 64] X, float s", "float[1, 16, 64, 64] Y", nodes, **constants)
    _, report = session_and_report(proto, tmp_path, claim="profitable")
    (line,) = [line for line in report if line["description"].startswith("Cast")]
    assert not any(place in line.get("message", "") for place in PLACES), line


def own_model(inputs: str, outputs: str, nodes: str) -> Any:
    return parser.parse_model(
        f'<ir_version: 8, opset_import: ["": 17, "ai.normfuse": 1]> g ({inputs}) => ({outputs}) {{{nodes}}}'
    )


STEPS = "Mul s; Add r; Normalize axes=-1 epsilon=1e-05; Mul g"


def own_chain(cast: str = "c = Cast<to = 1>(I)", read: str = "c, s, r, g") -> str:
    node = f'n, d, mean, inv = ai.normfuse.FusedNormalization<steps = "{STEPS}">({read})'
    return f"{cast} {node} {QUANTIZE}"


OWN_INPUTS = "int32[a, 24] I, float s, float[a, 24] r, float[24] g"


@pytest.mark.every_isa
@pytest.mark.parametrize("scale", ["float s", "float[1, 1] s", "float[1, 24] s"])
def test_a_node_of_ours_keeps_its_other_outputs(scale: str, tmp_path: Path) -> None:
    """Its factor is the scale of the integers; sum and statistics are as without the neighbours."""
    inputs = OWN_INPUTS.replace("float s", scale)
    proto = own_model(
        inputs, "float[a, 24] d, float[a, 1] mean, float[a, 1] inv, float[a, 24] n, " + OUTPUTS, own_chain()
    )
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


@pytest.mark.parametrize(
    ("inputs", "nodes", "outputs", "found"),
    [
        # What the Cast gives is read twice, is of another type, or comes as a second operand.
        (OWN_INPUTS, own_chain() + " e = Neg(c)", "float[a, 24] e, ", "FusedNormalization -> DynamicQuantizeLinear"),
        (OWN_INPUTS.replace("int32", "int64"), own_chain(), "", "FusedNormalization -> DynamicQuantizeLinear"),
        (
            OWN_INPUTS + ", float[a, 24] x",
            own_chain(read="x, s, c, g").replace(", r,", ", c,"),
            "",
            "FusedNormalization -> DynamicQuantizeLinear",
        ),
        # The factor widens the integers.
        (
            OWN_INPUTS.replace("float s", "float[9, 24] s").replace("int32[a, 24]", "int32[1, 24]"),
            own_chain(),
            "",
            "FusedNormalization -> DynamicQuantizeLinear",
        ),
        # Bytes that nothing reads.
        (OWN_INPUTS, own_chain().replace("Q, S, Z = Dyn", "q, S, Z = Dyn"), "", "Cast -> FusedNormalization"),
    ],
)
def test_what_is_left_around_a_node_of_ours(inputs: str, nodes: str, outputs: str, found: str, tmp_path: Path) -> None:
    given = OUTPUTS if "Q, S" in nodes else "float S"
    claimed(own_model(inputs, outputs + given, nodes), tmp_path, found)


@pytest.mark.parametrize("residual", [False, True])
def test_a_rewriting_leaves_the_factor_of_a_product_of_integers(residual: bool) -> None:
    """ONNX Runtime makes MatMulIntegerToFloat of MatMulInteger, Cast and Mul, or DynamicQuantizeMatMul."""
    product = "m = MatMulInteger(I, w) c = Cast<to = 1>(m) e = Mul(c, s)"
    added = "d = Add(r, e)" if residual else "d = Add(e, r)"
    nodes = f"{product} {added} Y = LayerNormalization(d, g, b)"
    constants = {"w": np.ones((8, 8), np.uint8), "g": values((8,)), "b": values((8,))}
    inputs = "uint8[4, 8] I, float s, float[4, 8] r"

    def operators(inputs: str, nodes: str, **constants: np.ndarray) -> list[str]:
        proto = onnx.shape_inference.infer_shapes(model(inputs, "float[4, 8] Y", nodes, **constants))
        return [each.op_type for each in normfuse.optimize(proto, verify=False).model.graph.node]

    left = operators(inputs, nodes, **constants)
    assert left[:3] == ["MatMulInteger", "Cast", "Mul"]
    assert left[3].startswith("FusedNormalization")
    plain = nodes.replace(product, "c = Cast<to = 1>(I) e = Mul(c, s)")
    left = operators(inputs.replace("uint8", "int32"), plain, g=constants["g"], b=constants["b"])
    assert left[0] == "Cast"
    assert left[1].startswith("FusedNormalization")
    assert len(left) == 2
