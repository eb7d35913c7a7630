"""Products of quantised tensors run on the same kernels in a rewritten model as in the model itself.

ONNX Runtime decides between its integer and its float kernels by the nodes around a product, a bias above all: a chain
that takes one of these away changes speed and, on x86 without VNNI, where its product of uint8 and int8 saturates, the
numbers.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
from rewrite_harness import SpellingBuilder, optimize

import normfuse

pytestmark = pytest.mark.without_vnni

N = 16
THREE = np.int8(3)
SHAPES = {"rows": (2, 8, 32), "matrix": (16, 32), "unknown": ("batch", "rows", 32), "unknown rows": ("rows", 32)}
SIZES = {"batch": 2, "rows": 8}
# Saturation shows in a sum of two products already, if both are of the largest numbers.
WEIGHTS = np.random.default_rng(0).choice([-127, 127], (32, N)).astype(np.int8)
ACTIVATIONS = ["Relu", "Clip", "Gelu", "Erf", "Swish", "Sigmoid", "HardSwish"]
# What a product is computed by; how its result is stored differs.
PRODUCTS = {"Conv", "FusedConv", "FusedGemm", "Gemm", "MatMul", "MatMulIntegerToFloat", "MatMulNBits", "QGemm"}
PRODUCTS |= {"QLinearConv", "QLinearMatMul"}
FLOAT_PRODUCTS = {"FusedGemm": "Gemm", "FusedConv": "Conv"}


class QuantizedBuilder(SpellingBuilder):
    """Adds quantisation with scalar scale and zero point of a type."""

    def dequantize(self, x: str, scale: Any = 0.05, zero_point: Any = THREE, **attributes: Any) -> str:
        scale = np.asarray(scale, np.float32)
        return self.add("DequantizeLinear", x, scale, zero_point, **attributes)

    def quantize(self, x: str, scale: Any = 0.04, zero_point: Any = THREE, **attributes: Any) -> str:
        scale = np.asarray(scale, np.float32)
        return self.add("QuantizeLinear", x, scale, zero_point, **attributes)


def activate(g: QuantizedBuilder, kind: str, x: str) -> str:
    if kind == "Swish":
        return g.add("Mul", x, g.add("Sigmoid", x))
    if kind == "Clip":
        return g.add("Clip", x, 0.0, 6.0)
    if kind == "Erf":
        return g.add("Mul", g.add("Mul", x, g.add("Add", g.add("Erf", g.add("Div", x, 2.0**0.5)), 1.0)), 0.5)
    return g.add(kind, x)


def weights(g: QuantizedBuilder, form: str) -> str:
    if form == "transposed":
        return g.add("Transpose", g.dequantize(g.constant(WEIGHTS.T.copy()), 0.02, np.int8(0)), perm=[1, 0])
    if form == "columns":
        scales = np.linspace(0.01, 0.02, N)
        return g.dequantize(g.constant(WEIGHTS), scales, np.zeros(N, np.int8), axis=1)
    return g.dequantize(g.constant(WEIGHTS), 0.02, np.int8(0))


def product(
    shape: str, operation: str = "MatMul", form: str = "tensor", residual: bool = False
) -> tuple[QuantizedBuilder, str]:
    """Return x, quantised, times weights, with a bias; and a residual, which is an input."""
    g = QuantizedBuilder(21)
    x = g.input("x", SHAPES[shape])
    x = g.dequantize(g.quantize(x, 0.03, np.uint8(128)), 0.03, np.uint8(128))
    if operation == "Gemm":
        y = g.add("Gemm", x, weights(g, form), g.weight(N))
    else:
        y = g.add("Add", g.add("MatMul", x, weights(g, form)), g.weight(N))
    if residual:
        y = g.add("Add", y, g.input("residual", (*SHAPES[shape][:-1], N)))
    return g, y


def finish(g: QuantizedBuilder, y: str, shape: tuple[int | str, ...], *, quantized: bool) -> onnx.ModelProto:
    if quantized:
        zero = np.uint8(0)
        y = g.dequantize(g.quantize(y, 0.05, zero), 0.05, zero)
    else:
        y = g.add("Identity", y)
    g.output(y, shape)
    return g.model("m")


def feeds(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(1)
    found = {}
    for tensor in model.graph.input:
        dims = [dim.dim_value or SIZES[dim.dim_param] for dim in tensor.type.tensor_type.shape.dim]
        found[tensor.name] = rng.choice([-3.6, 3.6], dims).astype(np.float32)
    return found


def kernels(model: onnx.ModelProto, options: onnxruntime.SessionOptions, folder: Path) -> tuple[Counter, np.ndarray]:
    """Return the kernels of products that a session ran, and its first output."""
    options.log_severity_level = 3
    options.enable_profiling = True
    options.profile_file_prefix = str(folder / "profile")
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    y = session.run(None, feeds(model))[0]
    events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
    ran = [event["args"]["op_name"] for event in events if event["name"].endswith("_kernel_time")]
    return Counter(FLOAT_PRODUCTS.get(name, name) for name in ran if name in PRODUCTS), y


def options_of(inlining: str, with_normfuse: bool) -> onnxruntime.SessionOptions:
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.disable_aot_function_inlining", "1" if inlining == "late" else "0")
    return normfuse.session_options(options) if with_normfuse else options


def check_same_kernels(model: onnx.ModelProto, folder: Path) -> None:
    wanted, expected = kernels(model, onnxruntime.SessionOptions(), folder)
    rewritten, _ = optimize(model)
    for inlining in ("late", "early"):
        for with_normfuse in (False, True):
            found, y = kernels(rewritten, options_of(inlining, with_normfuse), folder)
            assert found == wanted, (inlining, with_normfuse)
            # One step of what may be quantised to other sides of a tie.
            np.testing.assert_allclose(y, expected, rtol=1e-3, atol=0.0501)


@pytest.mark.parametrize("quantized", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", ACTIVATIONS)
def test_bias_and_activation(kind: str, shape: str, quantized: bool, tmp_path: Path) -> None:
    g, y = product(shape)
    y = activate(g, kind, y)
    check_same_kernels(finish(g, y, (*SHAPES[shape][:-1], N), quantized=quantized), tmp_path)


@pytest.mark.parametrize("operation", ["MatMul", "Gemm"])
@pytest.mark.parametrize("form", ["transposed", "columns"])
@pytest.mark.parametrize("shape", ["rows", "matrix"])
def test_forms_of_weights(shape: str, form: str, operation: str, tmp_path: Path) -> None:
    if (shape, operation) == ("rows", "Gemm"):
        shape = "unknown rows"
    g, y = product(shape, operation, form)
    y = activate(g, "Erf", y)
    check_same_kernels(finish(g, y, (*SHAPES[shape][:-1], N), quantized=False), tmp_path)


@pytest.mark.parametrize("quantized", [False, True])
@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_bias_before_a_normalization(shape: str, residual: bool, quantized: bool, tmp_path: Path) -> None:
    g, y = product(shape, residual=residual)
    y = g.add("LayerNormalization", y, g.weight(N, mean=1.0), g.weight(N))
    check_same_kernels(finish(g, y, (*SHAPES[shape][:-1], N), quantized=quantized), tmp_path)


@pytest.mark.parametrize("shape", ["matrix", "unknown rows"])
def test_residual_alone_before_a_normalization(shape: str, tmp_path: Path) -> None:
    """Of a matrix ONNX Runtime makes the residual the third input of the Gemm."""
    g = QuantizedBuilder(21)
    x = g.quantize(g.input("x", SHAPES[shape]), 0.03, np.uint8(128))
    total = g.add("MatMul", g.dequantize(x, 0.03, np.uint8(128)), weights(g, "tensor"))
    total = g.add("Add", g.input("residual", (*SHAPES[shape][:-1], N)), total)
    y = g.add("LayerNormalization", total, g.weight(N, mean=1.0), g.weight(N))
    check_same_kernels(finish(g, y, (*SHAPES[shape][:-1], N), quantized=False), tmp_path)


def test_weights_of_4_bits_alone(tmp_path: Path) -> None:
    """A MatMulNBits may quantise its input; a Gemm does not."""
    g = QuantizedBuilder(21)
    packed = g.constant(np.resize(np.array([-7, 7], ml_dtypes.int4), (32, N)))
    w = g.add("DequantizeLinear", packed, np.full((1, N), 0.02, np.float32), axis=0, block_size=32)
    y = g.add("Add", g.add("MatMul", g.input("x", SHAPES["rows"]), w), g.weight(N))
    check_same_kernels(finish(g, activate(g, "Erf", y), (2, 8, N), quantized=False), tmp_path)


@pytest.mark.parametrize("kind", ["Relu", "Clip", "Sigmoid", "Swish"])
def test_convolutions(kind: str, tmp_path: Path) -> None:
    """ONNX Runtime quantises the bias where, without an activation that does nothing, a QuantizeLinear follows."""
    g = QuantizedBuilder(21)
    x = g.dequantize(g.quantize(g.input("x", (1, 4, 8, 8)), 0.03, np.uint8(128)), 0.03, np.uint8(128))
    w = np.resize(WEIGHTS, (8, 4, 3, 3))
    y = g.add("Conv", x, g.dequantize(g.constant(w), 0.02, np.int8(0)), g.weight(8), pads=[1, 1, 1, 1])
    check_same_kernels(finish(g, activate(g, kind, y), (1, 8, 8, 8), quantized=True), tmp_path)


def test_an_unquantised_bias_still_joins() -> None:
    g = QuantizedBuilder(21)
    y = g.add("Add", g.add("MatMul", g.input("x", SHAPES["rows"]), g.weight(32, N)), g.weight(N))
    model = finish(g, activate(g, "Erf", y), (2, 8, N), quantized=False)
    _, result = optimize(model)
    assert [site.description for site in result.sites if site.fused_into] == ["Add -> Gelu"]
