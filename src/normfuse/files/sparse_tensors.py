"""Sparse weights as dense ones: onnx_ir, in which models are represented, has no sparse tensors.

ONNX Runtime makes the same of them when it loads a model.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import onnx
from onnx import numpy_helper

from normfuse.errors import InvalidModelError

# What protobuf can write.
_MOST_BYTES = 2**31 - 1


def with_dense_tensors(model: onnx.ModelProto, what: str) -> onnx.ModelProto:
    """Return the model, or if it has sparse initializers or sparse Constant nodes, a copy that has dense ones.

    Args:
        model: The model; it is not changed.
        what: Name of the model in messages.

    Raises:
        InvalidModelError: A sparse tensor is malformed.
    """
    if not any(graph.sparse_initializer or _sparse_constants(graph.node) for graph in _graphs(model)):
        return model
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for graph in _graphs(copy):
        graph.initializer.extend(_dense(tensor, what) for tensor in graph.sparse_initializer)
        del graph.sparse_initializer[:]
        for attribute in _sparse_constants(graph.node):
            value = _dense(attribute.sparse_tensor, what)
            attribute.Clear()
            attribute.name, attribute.type = "value", onnx.AttributeProto.TENSOR
            attribute.t.CopyFrom(value)
    return copy


def _graphs(model: onnx.ModelProto) -> Iterator[onnx.GraphProto]:
    """Yield the main graph and all subgraphs of it, not those of functions, which have no initializers."""
    waiting = [model.graph]
    while waiting:
        graph = waiting.pop()
        yield graph
        for node in graph.node:
            for attribute in node.attribute:
                waiting += [attribute.g] if attribute.HasField("g") else []
                waiting += attribute.graphs


def _sparse_constants(nodes: list[onnx.NodeProto]) -> list[onnx.AttributeProto]:
    constants = (node for node in nodes if node.op_type == "Constant" and node.domain in ("", "ai.onnx"))
    return [attribute for node in constants for attribute in node.attribute if attribute.HasField("sparse_tensor")]


def _dense(sparse: onnx.SparseTensorProto, what: str) -> onnx.TensorProto:
    name, shape = sparse.values.name, tuple(sparse.dims)
    try:
        values = numpy_helper.to_array(sparse.values)
        if math.prod(shape) * values.itemsize > _MOST_BYTES:
            raise ValueError("as a dense tensor it does not fit into a model")
        indices = numpy_helper.to_array(sparse.indices)
        dense = np.zeros(math.prod(shape), values.dtype)
        dense[np.ravel_multi_index(tuple(indices.T), shape) if indices.ndim == 2 else indices] = values
        return numpy_helper.from_array(dense.reshape(shape), name)
    except (IndexError, KeyError, MemoryError, TypeError, ValueError) as error:  # KeyError: an unknown element type
        raise InvalidModelError(
            f"{what}: sparse tensor '{name}' of shape {list(shape)} is malformed: {error}."
        ) from error
