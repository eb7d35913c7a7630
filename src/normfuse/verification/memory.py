"""What a model would take to run, known before ONNX Runtime is asked to."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

from normfuse.errors import InvalidModelError
from normfuse.graph_rewrites.inference import infer_types
from normfuse.verification.inputs import MOST_BYTES, TooLarge

if TYPE_CHECKING:
    import onnx_ir as ir

__all__ = ["require_memory"]

_NAME_BYTES = 8.0  # of a string


def require_memory(model: ir.Model) -> None:
    """Raise TooLarge if a tensor of the model is larger, by the sizes that are known, than is asked of a machine.

    A file of a few hundred bytes can ask for terabytes. Dimensions that are not known count as 1.
    """
    for name, dtype, shape in _tensors(model):
        needed = math.prod(shape) * _element_bytes(dtype)
        if needed > MOST_BYTES:
            raise TooLarge(f"'{name}' of shape {list(shape)} would take {needed / 2**30:,.0f} GiB of memory.")


def _tensors(model: ir.Model) -> Iterator[tuple[str, ir.DataType | None, tuple[int, ...]]]:
    try:
        tables = infer_types(model)
    except InvalidModelError:
        return  # ONNX Runtime says it better
    for graph in model.graphs():
        inferred = tables.get(graph)
        for value in (*graph.inputs, *(output for node in graph for output in node.outputs)):
            name = value.name or ""
            known = (inferred.get(name) if inferred is not None else None) or value
            shape, dtype = known.shape or value.shape, value.dtype or known.dtype
            if shape is not None:
                yield name, dtype, tuple(dim for dim in shape if isinstance(dim, int))


def _element_bytes(dtype: ir.DataType | None) -> float:
    try:
        return dtype.itemsize if dtype is not None else 1.0
    except TypeError:
        return _NAME_BYTES
