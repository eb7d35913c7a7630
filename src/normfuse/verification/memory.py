"""The memory that a model would need, estimated before ONNX Runtime runs it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

import onnx_ir as ir

from normfuse.errors import InvalidModelError
from normfuse.graph_rewrites.engine.inference import infer_types
from normfuse.verification.inputs import MOST_BYTES, Sample, TooLarge

_NAME_BYTES = 8.0  # for each string
_BATCH_BYTES = 1 << 30
_Item = TypeVar("_Item")


def require_memory(model: ir.Model) -> None:
    """Raise TooLarge if a tensor of the model, by its known sizes, is larger than the limit.

    A file of a few hundred bytes can ask for terabytes. Unknown dimensions count as 1.
    """
    for name, dtype, shape in _tensors(model):
        needed = math.prod(shape) * _element_bytes(dtype)
        if needed > MOST_BYTES:
            raise TooLarge(f"'{name}' of shape {list(shape)} would take {needed / 2**30:,.0f} GiB of memory.")


def in_batches(
    items: Sequence[_Item], names: Callable[[_Item], Iterable[str]], model: ir.Model, fed: Sequence[Sample]
) -> list[list[_Item]]:
    """Return items in batches whose values, by their names, take about a GiB on the largest of some samples."""
    if not items:
        return []
    largest = max(fed, key=lambda sample: sum(array.nbytes for array in sample.values()))
    sized = model.clone()
    for value in (*sized.graph.inputs, *(output for node in sized.graph for output in node.outputs)):
        value.shape = ir.Shape(largest[value.name].shape) if value.name in largest else None
    needed = {name: math.prod(shape) * _element_bytes(dtype) for name, dtype, shape in _tensors(sized)}
    batches: list[list[_Item]] = [[]]
    held: set[str] = set()
    for item in items:
        held |= set(names(item))
        if batches[-1] and sum(needed.get(name, 0.0) for name in held) > _BATCH_BYTES:
            batches.append([])
            held = set(names(item))
        batches[-1].append(item)
    return batches


def _tensors(model: ir.Model) -> Iterator[tuple[str, ir.DataType | None, tuple[int, ...]]]:
    try:
        tables = infer_types(model)
    except InvalidModelError:
        return  # ONNX Runtime has the better message
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
