"""A model that another tool has worked on after us, and whose functions it inlined, has the same sites again."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import onnx
import onnx.inliner
import onnx_ir as ir
import onnxruntime
import pytest
from onnxruntime.quantization.shape_inference import quant_pre_process
from onnxscript import optimizer

import normfuse
from normfuse import models

Tool = Callable[[onnx.ModelProto], onnx.ModelProto]


def inlined(model: onnx.ModelProto) -> onnx.ModelProto:
    return onnx.inliner.inline_local_functions(model)


def optimized_by_onnxscript(model: onnx.ModelProto) -> onnx.ModelProto:
    result = ir.from_proto(model)
    optimizer.optimize(result)
    return ir.to_proto(result)


def prepared_for_quantization(model: onnx.ModelProto) -> onnx.ModelProto:
    with tempfile.TemporaryDirectory() as folder:
        before, after = Path(folder) / "before.onnx", Path(folder) / "after.onnx"
        onnx.save(model, before)
        quant_pre_process(before, after, skip_symbolic_shape=True)
        return onnx.load(after)


def _saved(model: onnx.ModelProto, level: str) -> onnx.ModelProto:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
    with tempfile.TemporaryDirectory() as folder:
        options.optimized_model_filepath = str(Path(folder) / "saved.onnx")
        onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        return onnx.load(options.optimized_model_filepath)


def saved_by_onnxruntime(model: onnx.ModelProto) -> onnx.ModelProto:
    return _saved(model, "ORT_ENABLE_BASIC")


def fused_by_onnxruntime(model: onnx.ModelProto) -> onnx.ModelProto:
    """ONNX Runtime's own operators instead of our functions."""
    return _saved(model, "ORT_ENABLE_EXTENDED")


TOOLS: tuple[Tool, ...] = (
    inlined,
    optimized_by_onnxscript,
    prepared_for_quantization,
    saved_by_onnxruntime,
    fused_by_onnxruntime,
)
SIZES = {"layers": 1, "hidden": 32, "heads": 2, "vocabulary": 30, "positions": 32}
MODELS: dict[str, Callable[[], onnx.ModelProto]] = {
    "transformer 13": lambda: models.transformer_encoder(**SIZES, opset=13),
    "transformer 17": lambda: models.transformer_encoder(**SIZES, opset=17),
    "transformer 20": lambda: models.transformer_encoder(**SIZES, opset=20),
    "quantised transformer": lambda: models.transformer_encoder(**SIZES, quantized=True),
    "residual block": lambda: models.diffusion_resblock(channels=32, groups=4, size=8),
    "gated block": lambda: models.swiglu_block(hidden=16, inner=32),
    "text recognition": lambda: models.ocr_block(channels=16),
}


def sites(model: onnx.ModelProto) -> Counter[str]:
    return Counter(site.kind for site in normfuse.inspect(model) if site.fused_into is not None)


@pytest.mark.parametrize("tool", TOOLS, ids=lambda tool: tool.__name__)
@pytest.mark.parametrize("name", MODELS)
def test_sites_are_found_again(name: str, tool: Tool) -> None:
    optimized = normfuse.optimize(MODELS[name](), verify=False).model
    before = sites(optimized)
    assert sum(before.values()) >= 2
    assert sites(tool(optimized)) == before
