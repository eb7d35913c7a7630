"""Models written as text, and what they compute without ONNX Runtime's optimisations."""

import harness
import onnx
import onnxruntime

from normfuse.meaning import Array


def parse(text: str, opset: int = 21, **tensors: Array) -> onnx.ModelProto:
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": {opset}]> {text}')
    model.graph.initializer.extend(harness.initializer(name, array) for name, array in tensors.items())
    return model


def results(model: onnx.ModelProto, feeds: dict[str, Array]) -> dict[str, Array]:
    options = harness.session_options("cpu")
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return harness.run(harness.create_session(model, "cpu", options), feeds)
