"""Models as quantisers leave them: ONNX Runtime's own, run here, and the placements of others, built by hand."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_static
from rewrite_harness import SpellingBuilder, fused_nodes, optimize, run

import normfuse
from normfuse import models
from normfuse.graph_rewrites import Treatment

# Verification runs what ONNX Runtime makes of the pairs, products of uint8 and int8 among them.
pytestmark = pytest.mark.without_vnni

SIZES = {"layers": 1, "hidden": 32, "heads": 2, "vocabulary": 50, "positions": 32, "opset": 17}
RNG = np.random.default_rng(0)
FEEDS = [{"input_ids": RNG.integers(0, 50, (2, 7)), "attention_mask": np.ones((2, 7), np.int64)} for _ in range(4)]


class Calibration(CalibrationDataReader):
    def __init__(self) -> None:
        self._feeds = iter(FEEDS)

    def get_next(self) -> dict[str, Any] | None:
        return next(self._feeds, None)


def quantized(model: onnx.ModelProto, folder: Path, **options: Any) -> onnx.ModelProto:
    before, after = folder / "before.onnx", folder / "after.onnx"
    onnx.save(model, before)
    quantize_static(before, after, Calibration(), **options)
    return onnx.load(after)


def descriptions(model: onnx.ModelProto, **options: Any) -> list[str]:
    return [site.description for site in normfuse.inspect(model, **options) if site.fused_into is not None]


# --- onnxruntime.quantization ---------------------------------------------------------------------------------------

OPTIONS = {
    "int8": {},
    "uint8": {"activation_type": QuantType.QUInt8},
    "uint8 weights": {"activation_type": QuantType.QUInt8, "weight_type": QuantType.QUInt8},
    "per channel": {"per_channel": True},
    "uint16": {"activation_type": QuantType.QUInt16},
    "int16": {"activation_type": QuantType.QInt16},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_quantized_by_onnxruntime(options: dict[str, Any], tmp_path: Path) -> None:
    canonical = normfuse.optimize(models.transformer_encoder(**SIZES), target="standard", verify=False).model
    model = quantized(canonical, tmp_path, **options)
    result = normfuse.optimize(model, samples=2)  # and verified
    chains = [site.description for site in result.report.fused if site.kind == "LayerNormalization"]
    expected = ["DequantizeLinear -> Add -> LayerNormalization -> QuantizeLinear"] * 3
    if options.get("activation_type") in (QuantType.QUInt16, QuantType.QInt16):
        # What reads it is no product with quantised weights.
        expected[-1] = "DequantizeLinear -> Add -> LayerNormalization -> FakeQuantize"
    assert chains == expected


def test_spelled_out_normalization_that_was_split(tmp_path: Path) -> None:
    """Mean, variance and root quantised each, and the numbers between them: epsilon, 1, 0.5, the square root of 2."""
    original = models.transformer_encoder(**SIZES)
    model = quantized(original, tmp_path)
    reasons = {site.reason for site in normfuse.inspect(model) if site.kind in ("LayerNormalization", "Activation")}
    assert reasons == {"changes_rounding"}
    assert descriptions(model) == []
    allowed, result = optimize(model, treatment=Treatment(allow_requantization_removal=True))
    chains = [site for site in result.sites if site.fused_into is not None]
    assert [site.kind for site in chains] == [
        "LayerNormalization",
        "LayerNormalization",
        "Activation",
        "LayerNormalization",
    ]
    assert all(site.message == "requantization removed" for site in chains)
    distance = [
        np.sqrt(np.mean([(_output(each, feeds) - _output(original, feeds)) ** 2 for feeds in FEEDS]))
        for each in (model, allowed)
    ]
    assert distance[1] < 0.8 * distance[0], "less is rounded, so it is closer to the float model"


def _output(model: onnx.ModelProto, feeds: dict[str, Any]) -> Any:
    return run(model, feeds, optimized=False)["last_hidden_state"]


PARAMETERS = """qs = Constant <value_float = 0.05> () qz = Constant <value = int8 {3}> ()
  w = Constant <value_floats = [1.0, 2.0]> () b = Constant <value_floats = [0.5, 0.0]> ()"""
REQUANTIZED = """s = Add(x, r) q = QuantizeLinear(s, qs, qz) d = DequantizeLinear(q, qs, qz)
  n = LayerNormalization(d, w, b) a = Add(d, n)"""


@pytest.mark.parametrize("inside", [True, False])
def test_a_requantised_sum_has_its_parameters_beside_it(inside: bool) -> None:
    """ONNX Runtime before 1.31 shows a kernel in a subgraph no constants of the graph around it."""
    outer, inner = ("", PARAMETERS) if inside else (PARAMETERS, "")
    model = onnx.parser.parse_model(f"""<ir_version: 10, opset_import: ["": 21]>
      g (float[3,2] x, float[3,2] r, bool c) => (float[3,2] y) {{ {outer}
      y = If(c) <then_branch = t () => (float[3,2] a) {{ {inner} {REQUANTIZED} }},
                 else_branch = e () => (float[3,2] o) {{ o = Identity(x) }}> }}""")
    after, result = optimize(model)
    (normalization,) = (site for site in result.sites if site.kind == "LayerNormalization")
    assert normalization.description == f"{'Add' if inside else 'DequantizeLinear'} -> LayerNormalization"
    feeds = {"x": RNG.normal(size=(3, 2)).astype(np.float32), "r": np.ones((3, 2), np.float32), "c": np.array(True)}
    np.testing.assert_allclose(run(after, feeds)["y"], run(model, feeds)["y"], atol=1e-5)


# --- placements of other tools --------------------------------------------------------------------------------------

SHAPE = (2, 5, 8)


def _grid(g: SpellingBuilder, scale: float, zero_point: Any, dtype: Any = np.float32) -> tuple[str, str]:
    return g.constant(np.array(scale, dtype)), g.constant(np.asarray(zero_point))


def _layer_norm(g: SpellingBuilder, x: str, *parameters: str) -> str:
    return g.add("LayerNormalization", x, *(parameters or (g.weight(8, mean=1.0), g.weight(8))))


def _requantize(g: SpellingBuilder, x: str, *grid: str) -> str:
    return g.add("DequantizeLinear", g.add("QuantizeLinear", x, *grid), *grid)


def _product(g: SpellingBuilder, x: str) -> str:
    return g.add("MatMul", x, g.weight(8, 8))


def nncf(g: SpellingBuilder, x: str) -> str:
    """In front of the product, not of the normalisation, which stays float."""
    return _product(g, _requantize(g, _layer_norm(g, x), *_grid(g, 0.04, np.uint8(120))))


def nncf_spelled_out(g: SpellingBuilder, x: str) -> str:
    """The pattern of a normalisation is left out of quantisation as a whole."""
    d = g.add("Sub", x, g.reduce_mean(x, [-1]))
    y = g.add("Div", d, g.add("Sqrt", g.add("Add", g.reduce_mean(g.add("Pow", d, 2.0), [-1]), 1e-5)))
    y = g.add("Add", g.add("Mul", y, g.weight(8, mean=1.0)), g.weight(8))
    return _product(g, _requantize(g, y, *_grid(g, 0.04, np.uint8(120))))


def modelopt(g: SpellingBuilder, x: str) -> str:
    """NVIDIA: the producer's output quantised, the normalisation in float, nothing behind it."""
    return _product(g, _layer_norm(g, _requantize(g, _product(g, x), *_grid(g, 0.05, np.int8(0)))))


def modelopt_fp8(g: SpellingBuilder, x: str) -> str:
    return _product(g, _requantize(g, _layer_norm(g, x), *_grid(g, 0.01, ml_dtypes.float8_e4m3fn(0))))


def amd(g: SpellingBuilder, x: str) -> str:
    """Scale and bias both as 8-bit weights."""
    grid = _grid(g, 0.02, np.int8(0))
    weights = [g.constant(RNG.integers(-128, 128, 8).astype(np.int8)) for _ in range(2)]
    parameters = [g.add("DequantizeLinear", weight, *grid) for weight in weights]
    activations = _grid(g, 0.05, np.int8(3))
    return _requantize(g, _layer_norm(g, _requantize(g, x, *activations), *parameters), *activations)


def pt2e(g: SpellingBuilder, x: str) -> str:
    """PyTorch: scale and zero point as Constant nodes, and a Clip where a range is narrower than the type."""
    scale, zero_point = g.number(0.04), g.number(3, np.int8)
    narrow = g.add("QuantizeLinear", _layer_norm(g, x), scale, zero_point)
    clipped = g.add("Clip", narrow, np.int8(-127), np.int8(127))
    return _product(g, g.add("DequantizeLinear", clipped, scale, zero_point))


def half_precision(g: SpellingBuilder, x: str) -> str:
    """Casts around quantisation whose scale is float32."""
    grid = _grid(g, 0.04, np.int8(0))
    half = g.add("Cast", x, to=onnx.TensorProto.FLOAT16)
    parameters = [np.linspace(0.5, 1.5, 8).astype(np.float16), np.linspace(-1, 1, 8).astype(np.float16)]
    y = g.add("LayerNormalization", half, *parameters)
    return _product(g, _requantize(g, g.add("Cast", y, to=onnx.TensorProto.FLOAT), *grid))


BEHIND = ["LayerNormalization -> QuantizeLinear"]
PLACEMENTS: list[tuple[Callable[[SpellingBuilder, str], str], int, list[str]]] = [
    (nncf, 17, BEHIND),
    (nncf_spelled_out, 13, BEHIND),
    (modelopt, 17, ["DequantizeLinear -> LayerNormalization"]),
    (modelopt_fp8, 19, BEHIND),
    (amd, 17, ["DequantizeLinear -> LayerNormalization -> QuantizeLinear"]),
    (pt2e, 18, ["LayerNormalization -> FakeQuantize -> Clip"]),
    (half_precision, 17, BEHIND),
]


@pytest.mark.parametrize(("placement", "opset", "expected"), PLACEMENTS)
def test_placement(placement: Callable[..., str], opset: int, expected: list[str]) -> None:
    g = SpellingBuilder(opset, constants="constant node")
    g.output(placement(g, g.input("x", SHAPE)), SHAPE)
    model = g.model("placed")
    optimized, result = optimize(model)
    assert [site.description for site in result.sites if site.fused_into is not None] == expected
    (node,) = fused_nodes(optimized)
    if placement is amd:
        assert len([name for name in node.input if name]) == 11  # X, scale, bias, and two for each of four
    feeds = {"x": RNG.standard_normal(SHAPE).astype(np.float32)}
    (before,), (after,) = (run(each, feeds, optimized=False).values() for each in (model, optimized))
    # A step of the quantisation inside, times the weights behind it.
    np.testing.assert_allclose(after, before, atol=0.15 if placement is not modelopt_fp8 else 1.0)
    assert np.mean(np.abs(after - before)) < 0.02
