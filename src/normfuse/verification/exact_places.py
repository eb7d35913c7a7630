"""What a place computes exactly: the original's own nodes, evaluated in float64 by onnx's reference implementation."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from normfuse.verification.graph_differences import given_name, places_model

__all__ = ["as_near", "exact_value", "turned_at_most"]

_FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16)
# How much less exact a result may be than the original's: at rounding ties of a quantiser chance decides which is.
_RMS_FACTOR = 1.1
_MAX_FACTOR = 2.0


def exact_value(original: ir.Model, value: str, known: dict[str, Any]) -> np.ndarray | None:
    """Return a value computed from known ones without rounding in between; None where that is not possible."""
    part = places_model(original, [value], {name: array.dtype for name, array in known.items()})
    try:
        proto = _in_double(ir.to_proto(part))
        feeds = {given_name(name): _double(array) for name, array in known.items()}
        wanted = {info.name for info in proto.graph.input}
        results: Any = ReferenceEvaluator(proto).run(None, {name: feeds[name] for name in feeds if name in wanted})
        exact = np.asarray(results[0], np.float64)
    except Exception:  # what the reference implementation lacks, it says by any exception
        return None
    return exact if np.isfinite(exact).all() else None


def as_near(result: Any, original: Any, exact: np.ndarray, tolerance: float) -> bool:
    """Say whether a result is as near to the exact value as the original's, or nearer, within a tolerance."""
    errors = []
    for each in (np.asarray(result, np.float64), np.asarray(original, np.float64)):
        if each.shape != exact.shape or not np.isfinite(each).all():
            return False
        errors.append(np.abs(each - exact))
    ours, theirs = errors
    allowed = tolerance * float(np.sqrt(np.mean(exact**2)))
    at_most = max(_MAX_FACTOR * float(theirs.max(initial=0.0)), allowed)
    on_average = max(_RMS_FACTOR * float(np.sqrt(np.mean(theirs**2))), allowed)
    return bool(ours.max(initial=0.0) <= at_most and np.sqrt(np.mean(ours**2)) <= on_average)


def turned_at_most(result: Any, exact: np.ndarray, share: float) -> bool:
    """Say whether integers are the exact ones but for a share, in which they are one step off."""
    off = np.abs(np.asarray(result, np.float64) - exact)
    return bool(off.max(initial=0.0) <= 1 and np.count_nonzero(off) <= share * off.size)


def _double(array: Any) -> Any:
    values = np.asarray(array)
    return values.astype(np.float64) if values.dtype.kind == "f" or values.dtype.name == "bfloat16" else values


def _in_double(proto: onnx.ModelProto) -> onnx.ModelProto:
    for tensor in proto.graph.initializer:
        _widen(tensor)
    for info in proto.graph.input:
        if info.type.tensor_type.elem_type in _FLOATS:
            info.type.tensor_type.elem_type = TensorProto.DOUBLE
    del proto.graph.value_info[:]
    for node in _nodes([*proto.graph.node, *(node for function in proto.functions for node in function.node)]):
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.TENSOR:
                _widen(attribute.t)
            elif attribute.name in ("to", "dtype") and attribute.i in _FLOATS:
                attribute.i = TensorProto.DOUBLE
            elif attribute.name == "value_float" and node.op_type == "Constant":
                value = np.asarray(attribute.f, np.float64)
                attribute.CopyFrom(helper.make_attribute("value", numpy_helper.from_array(value)))
        kept = [a for a in node.attribute if not (node.op_type == "DequantizeLinear" and a.name == "output_dtype")]
        del node.attribute[:]
        node.attribute.extend(kept)
    return proto


def _nodes(nodes: list[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    for node in nodes:
        yield node
        for attribute in node.attribute:
            for graph in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
                yield from _nodes(list(graph.node))


def _widen(tensor: onnx.TensorProto) -> None:
    if tensor.data_type in _FLOATS:
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float64), tensor.name))
