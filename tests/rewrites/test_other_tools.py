"""A model that another tool has worked on after us, and whose functions it inlined, has the same sites again."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx.inliner
import onnx_ir as ir
import onnxruntime
from covering import parametrize_spread
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


@parametrize_spread("name,tool", list(MODELS), TOOLS, each=3)
def test_sites_are_found_again(name: str, tool: Tool) -> None:
    optimized = normfuse.optimize(MODELS[name](), verify=False).model
    before = sites(optimized)
    assert sum(before.values()) >= 2
    assert sites(tool(optimized)) == before


def test_each_part_of_what_was_written_out_has_a_name_of_its_own() -> None:
    """Behind a quantiser two chains are found in what was one, and the last of its nodes has the name of all of it."""
    model = normfuse.optimize(
        models.chain([4, 64], activation_name="gelu_erf", opset=17), target="standard", verify=False
    ).model
    (norm,) = [node for node in model.graph.node if node.op_type == "LayerNormalization"]
    scale = onnx.numpy_helper.from_array(np.float32(0.05), "scale")
    zero_point = onnx.numpy_helper.from_array(np.int8(3), "zero_point")
    model.graph.initializer.extend([scale, zero_point])
    for node in model.graph.node:
        node.input[:] = ["dequantized" if name == norm.output[0] else name for name in node.input]
    pair = [
        onnx.helper.make_node("QuantizeLinear", [norm.output[0], "scale", "zero_point"], ["quantized"]),
        onnx.helper.make_node("DequantizeLinear", ["quantized", "scale", "zero_point"], ["dequantized"]),
    ]
    at = list(model.graph.node).index(norm) + 1
    nodes = [*model.graph.node[:at], *pair, *model.graph.node[at:]]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    optimized = normfuse.optimize(model).model  # and verified: ONNX Runtime loads it
    names = [node.name for node in optimized.graph.node if node.domain == "ai.normfuse"]
    assert len(set(names)) == len(names) == 2
