"""Quantisation before and after optimising: what docs/pages/quantisation.md says about the order, shown."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from onnxruntime.quantization import CalibrationDataReader, quantize_dynamic, quantize_static
from torch_modules import build
from torchao.quantization.pt2e import quantize_pt2e
from torchao.quantization.pt2e.quantizer import x86_inductor_quantizer as x86

import normfuse
from normfuse.models import transformer_encoder

SITES = 7  # 2 layers: 5 layer normalisations, 2 GELU
_RNG = np.random.default_rng(0)
FEEDS = [{"input_ids": _RNG.integers(0, 50, (2, 7)), "attention_mask": np.ones((2, 7), np.int64)} for _ in range(8)]


class Calibration(CalibrationDataReader):
    def __init__(self) -> None:
        self._feeds = iter(FEEDS)

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self._feeds, None)


def static(source: Path, target: Path) -> None:
    quantize_static(source, target, Calibration())


def dynamic(source: Path, target: Path) -> None:
    quantize_dynamic(source, target)


@pytest.fixture
def original(tmp_path: Path) -> Path:
    path = tmp_path / "original.onnx"
    onnx.save(transformer_encoder(layers=2, hidden=64, vocabulary=50, positions=32, opset=17), path)
    return path


def optimized(source: Path, **options: str) -> Path:
    target = source.with_name(f"{source.stem}_optimized.onnx")
    # Verified by `difference` below: what counts here is the distance from the float model.
    normfuse.optimize(source, verify=False, **options).save(target)
    return target


def quantized(source: Path, how: Callable[[Path, Path], None]) -> Path:
    target = source.with_name(f"{source.stem}_quantized.onnx")
    how(source, target)
    return target


def outputs(path: Path, *, with_normfuse: bool = True) -> np.ndarray:
    options = normfuse.session_options(claim="all") if with_normfuse else onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(path, sess_options=options)
    return np.stack([session.run(None, feed)[0] for feed in FEEDS])


def difference(path: Path, original: Path) -> float:
    """Return the root mean square of the difference from the float model; its outputs are of size 1."""
    return root_mean_square(outputs(path) - outputs(original, with_normfuse=False))


def root_mean_square(values: np.ndarray) -> float:
    return float(np.sqrt(np.mean(values**2)))


def fused(path: Path) -> list[str]:
    return [site.description for site in normfuse.inspect(path) if site.fused_into is not None]


def test_optimise_then_quantise_then_optimise_keeps_every_site(original: Path) -> None:
    first = optimized(original)
    assert len(fused(first)) == SITES
    result = optimized(quantized(first, static))
    descriptions = fused(result)
    assert len(descriptions) == SITES
    # The second pass takes the new QuantizeLinear and DequantizeLinear in: int8 goes in, int8 comes out.
    assert sum(text.startswith("DequantizeLinear -> Add -> ") for text in descriptions) == SITES
    assert sum(text.endswith(" -> QuantizeLinear") for text in descriptions) == SITES - 1


def test_quantising_a_spelled_out_normalisation_first_loses_it_and_accuracy(original: Path) -> None:
    """quantize_static puts quantisation between mean, variance and root: there is no normalisation left to find."""
    first = optimized(quantized(original, static))
    assert fused(first) == []
    reasons = {site.reason for site in normfuse.inspect(first) if site.description == "Sqrt"}
    assert reasons == {"changes_rounding"}
    other = optimized(quantized(optimized(original), static))
    assert difference(other, original) < 0.75 * difference(first, original)


def test_canonical_operators_are_enough_for_other_tools(original: Path) -> None:
    """For a quantiser or runtime that knows ONNX operators only: target="standard" first, normfuse's own at the end."""
    result = optimized(quantized(optimized(original, target="standard"), static))
    assert fused(result) == ["DequantizeLinear -> LayerNormalization -> QuantizeLinear"] * 5


@pytest.mark.parametrize("first", ["optimise", "quantise"])
def test_dynamic_quantisation_goes_in_either_order(first: str, original: Path) -> None:
    orders = {
        "optimise": lambda: quantized(optimized(original), dynamic),
        "quantise": lambda: optimized(quantized(original, dynamic)),
    }
    result = orders[first]()
    assert len(fused(result)) == SITES
    assert sum(node.op_type == "MatMulInteger" for node in onnx.load(result).graph.node) > 8
    found, expected = outputs(result), outputs(result, with_normfuse=False)
    assert difference(result, original) < 0.05
    # DynamicQuantizeLinear may round a value that lies between two codes to either, and the last bit of the
    # normalisation before it decides; every output of that request then moves by part of a step. Which requests hold
    # such a value depends on the processor: all stay within a fraction of what quantisation itself costs, and the
    # best of the eight is free of them.
    assert root_mean_square(found - expected) < 0.25 * difference(result, original)
    assert min(np.abs(request).max() for request in found - expected) < 1e-4


def test_pt2e_is_quantised_in_pytorch_and_optimised_after_the_export(tmp_path: Path) -> None:
    case = build("convnext_block")
    quantizer = x86.X86InductorQuantizer().set_global(x86.get_default_x86_inductor_quantization_config())
    prepared = quantize_pt2e.prepare_pt2e(torch.export.export(case.module, case.inputs).module(), quantizer)
    generator = torch.Generator().manual_seed(0)
    for _ in range(4):
        prepared(torch.randn(case.inputs[0].shape, generator=generator))
    prepared(*case.inputs)
    module = quantize_pt2e.convert_pt2e(prepared)
    program = torch.onnx.export(module, case.inputs, dynamo=True, input_names=["x"], verbose=False)
    # A value that lies between two steps may be rounded to either: one step of the inner quantisation is allowed.
    result = normfuse.optimize(program, max_error=0.02)
    assert [site.description for site in result.report.fused] == [
        "LayerNormalization -> QuantizeLinear",
        "Gelu -> QuantizeLinear",
    ]
    result.save(tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx", sess_options=normfuse.session_options(claim="all"))
    with torch.no_grad():
        expected = module(*case.inputs).numpy()
    found = session.run(None, {"x": case.inputs[0].numpy()})[0]
    np.testing.assert_allclose(found, expected, atol=0.02)
    assert np.sqrt(np.mean((found - expected) ** 2)) < 2e-3
