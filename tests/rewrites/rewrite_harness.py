"""What the tests of the rewriting pass share: checks of a fused model, and how to get one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import harness
import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
from onnx import numpy_helper
from spelling import CONSTANT_FORMS as CONSTANT_FORMS
from spelling import SpellingBuilder as SpellingBuilder

from normfuse.graph_rewrites import RewriteOptions, RewriteResult, rewrite
from normfuse.meaning import Array, Expected, evaluate

DOMAIN = "ai.normfuse"


def optimize(model: onnx.ModelProto, *, progress: Any = None, **options: Any) -> tuple[onnx.ModelProto, RewriteResult]:
    """The rewritten model and the report; the model given stays as it is."""
    copy = ir.from_proto(model)
    result = rewrite(copy, RewriteOptions(**options), progress=progress)
    return ir.to_proto(copy), result


def repeat(model: onnx.ModelProto, op_type: str, count: int) -> None:
    """Put nodes that only repeat a float tensor behind each value that a node computes and another one reads."""
    inferred = onnx.shape_inference.infer_shapes(model, data_prop=True).graph.value_info
    kinds = {value.name: value.type.tensor_type.elem_type for value in inferred}
    nodes = list(model.graph.node)
    del model.graph.node[:]
    read = {name for node in nodes for name in node.input}
    renamed: dict[str, str] = {}
    for node in nodes:
        node.input[:] = [renamed.get(name, name) for name in node.input]
        model.graph.node.append(node)
        value = node.output[0]
        kind = kinds.get(value)
        if value not in read or kind not in (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16):
            continue
        for number in range(count):
            attributes = {"to": kind} if op_type == "Cast" else {}
            repeated = f"{node.output[0]} {number}"
            model.graph.node.append(
                onnx.helper.make_node(op_type, [value], [repeated], f"repeat {repeated}", **attributes)
            )
            value = repeated
        renamed[node.output[0]] = value


def assert_no_constant_is_unread(model: onnx.ModelProto) -> None:
    """What nothing reads any more is not kept."""
    nodes = list(model.graph.node)
    for node in nodes:  # those of subgraphs, too, which join them
        nodes.extend(inner for attribute in node.attribute for inner in attribute.g.node)
    read = {name for node in nodes for name in node.input}
    assert {tensor.name for tensor in model.graph.initializer} <= read


def round_trip(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model as onnx-ir writes it when nothing is changed."""
    return ir.to_proto(ir.from_proto(model))


def run(
    model: onnx.ModelProto, feeds: Mapping[str, Array], *, optimized: bool = True, level: str = "ORT_ENABLE_ALL"
) -> dict[str, Array]:
    """The model's outputs on ONNX Runtime's CPU provider, without normfuse, at an optimisation level."""
    return harness.run(session_of(model, optimized=optimized, level=level), feeds)


def session_of(
    model: onnx.ModelProto, *, optimized: bool = True, level: str = "ORT_ENABLE_ALL"
) -> onnxruntime.InferenceSession:
    """A session on ONNX Runtime's CPU provider, without normfuse."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    level = level if optimized else "ORT_DISABLE_ALL"
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
    return onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"], enable_fallback=0
    )


def fused_nodes(model: onnx.ModelProto) -> list[onnx.NodeProto]:
    """The nodes of our domain in the main graph."""
    return [node for node in model.graph.node if node.domain == DOMAIN]


def only_fused(model: onnx.ModelProto) -> onnx.NodeProto:
    """The one fused node of a model that is one chain."""
    operators = [node.op_type for node in model.graph.node]
    nodes = fused_nodes(model)
    assert len(nodes) == 1, f"{len(nodes)} fused nodes among {operators}"
    assert not [op for op in operators if not op.startswith("Fused") and op not in ("Shape", "Constant")], operators
    return nodes[0]


def meaning_of(node: onnx.NodeProto, model: onnx.ModelProto, feeds: Mapping[str, Array]) -> dict[str, Expected]:
    """What a node of our domain gives, by the names of the operator's outputs."""
    return evaluate(harness.read_node(node).steps, inputs_of(node, model, feeds))


def inputs_of(node: onnx.NodeProto, model: onnx.ModelProto, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """The node's inputs by the specification's names: initialisers and what is fed."""
    known = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer} | dict(feeds)
    for constant in model.graph.node:
        if constant.op_type == "Constant":
            known[constant.output[0]] = numpy_helper.to_array(constant.attribute[0].t)
    return {name: known[value] for name, value in harness.read_node(node).inputs.items()}


def tolerance(dtype: np.dtype[Any]) -> float:
    """How far ONNX Runtime's own kernels may be from the exact value, relative to the largest one."""
    return {"float32": 3e-5, "float16": 2e-2, "bfloat16": 2e-2}.get(str(dtype), 0.0)


def close(got: Array, exact: Array, what: str, further: float = 0.0) -> None:
    """Assert that a result is the exact one but for rounding (for a quantised one, one step), or for ``further``."""
    assert got.shape == exact.shape, f"{what}: shape {got.shape}, expected {exact.shape}"
    difference = error(got, exact)
    largest = float(np.abs(exact.astype(np.float64)).max(initial=0.0))
    bound = 1.0 if got.dtype.kind in "iu" else tolerance(got.dtype) * max(1.0, largest)
    assert difference <= max(bound, further), f"{what}: off by {difference:g}, allowed {max(bound, further):g}"


def error(got: Array, exact: Array) -> float:
    """The largest difference; infinite where one is NaN, or infinite, and the other is not."""
    a, b = got.astype(np.float64), exact.astype(np.float64)
    with np.errstate(invalid="ignore"):
        difference = np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0.0, np.abs(a - b))
    return float(np.where(np.isnan(difference), np.inf, difference).max(initial=0.0))
