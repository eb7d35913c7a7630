"""Models as ONNX Runtime's quantiser leaves them; the placements of others are in tests/corpus/quantisers.txt."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_static
from rewrite_harness import optimize, run

import normfuse
from normfuse import models

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
    expected = ["DequantizeLinear -> LayerNormalization -> QuantizeLinear"] * 3  # sums of bytes are ONNX Runtime's
    if options.get("activation_type") in (QuantType.QUInt16, QuantType.QInt16):
        # What reads the last one is no product with quantised weights.
        expected = ["DequantizeLinear -> Add -> LayerNormalization -> QuantizeLinear"] * 3
        expected[-1] = "DequantizeLinear -> Add -> LayerNormalization -> FakeQuantize"
    assert chains == expected


def test_spelled_out_normalization_that_was_split(tmp_path: Path) -> None:
    """Mean, variance and root quantised each, and the numbers between them: epsilon, 1, 0.5, the square root of 2."""
    original = models.transformer_encoder(**SIZES)
    model = quantized(original, tmp_path)
    reasons = {site.reason for site in normfuse.inspect(model) if site.kind in ("LayerNormalization", "Activation")}
    assert reasons == {"changes_rounding"}
    assert descriptions(model) == []
    allowed, result = optimize(model, allow_requantization_removal=True)
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


PARAMETERS = """qs = Constant <value_float = 0.05> () qz = Constant <value = int16 {3}> ()
  w = Constant <value_floats = [1.0, 2.0]> () b = Constant <value_floats = [0.5, 0.0]> ()"""
REQUANTIZED = """s = Add(x, r) q = QuantizeLinear(s, qs, qz) d = DequantizeLinear(q, qs, qz)
  n = LayerNormalization(d, w, b) a = Add(x, n)"""


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
    assert normalization.description == f"{'Add' if inside else 'FakeQuantize -> Add'} -> LayerNormalization"
    feeds = {"x": RNG.normal(size=(3, 2)).astype(np.float32), "r": np.ones((3, 2), np.float32), "c": np.array(True)}
    np.testing.assert_allclose(run(after, feeds)["y"], run(model, feeds)["y"], atol=1e-5)


# --- chains with options, and of types that a target's form cannot have ---------------------------------------------


TWO_BITS = """<ir_version: 13, opset_import: ["" : 25]>
g (int2[4] x) => (uint2[4] y)
<float scale = {0.5}, uint2 zero = {1}, float[4] gamma = {1, 1, 2, 2}>
{ d = DequantizeLinear (x, scale)  n = RMSNormalization (d, gamma)  y = QuantizeLinear (n, scale, zero) }"""


def test_custom_operators_have_no_two_bit_types() -> None:
    """ONNX Runtime refuses a custom operator's node with a tensor of a 2-bit type; a function may have one."""
    model = onnx.parser.parse_model(TWO_BITS)
    portable, _ = optimize(model)
    assert [node.op_type for node in portable.graph.node] == [
        "FusedNormalization_DequantizeLinear_RMSNormalization_QuantizeLinear"
    ]
    plain, result = optimize(model, target="custom-op")
    assert [node.op_type for node in plain.graph.node] == ["DequantizeLinear", "FusedNormalization", "QuantizeLinear"]
    assert [site.reason for site in result.sites] == ["unsupported_type", None, "unsupported_type"]
    again, _ = optimize(portable, target="custom-op")
    assert again.graph.node == portable.graph.node
    assert again.functions == portable.functions
