"""Values that are maps, as classifiers of scikit-learn give them: onnx_ir, which holds models, has no type for them.

The types of a model's inputs and outputs are kept beside it and put back where it is written; all others are inferred
by whoever runs it.
"""

from __future__ import annotations

import onnx
import onnx_ir as ir

# Key in a value's metadata, which copies of a model keep and which is never written.
_TYPE = "normfuse.map_type"


def without_map_types(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model, or if it has types that onnx_ir cannot hold, a copy in which those values have none."""
    if all(map(is_held, _values(model))):
        return model
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for value in _values(copy):
        if not is_held(value):
            value.ClearField("type")
    return copy


def keep_map_types(model: ir.Model, proto: onnx.ModelProto) -> None:
    """Note on the model's inputs and outputs what :func:`without_map_types` took from the file that it is made of."""
    values = {value.name: value for value in (*model.graph.inputs, *model.graph.outputs)}
    for given in (*proto.graph.input, *proto.graph.output):
        if not is_held(given):
            values[given.name].meta[_TYPE] = given.type.SerializeToString()


def has_map_types(model: ir.Model) -> bool:
    """Say whether there is something to restore in what is written of a model."""
    return bool(_noted(model))


def restore_map_types(proto: onnx.ModelProto, model: ir.Model) -> None:
    """Write what was noted on a model's inputs and outputs into a ModelProto of it, in place."""
    types = _noted(model)
    for written in (*proto.graph.input, *proto.graph.output):
        if written.name in types:
            written.type.ParseFromString(types[written.name])


def _noted(model: ir.Model) -> dict[str | None, bytes]:
    values = (*model.graph.inputs, *model.graph.outputs)
    return {value.name: value.meta[_TYPE] for value in values if _TYPE in value.meta}


def _values(model: onnx.ModelProto) -> list[onnx.ValueInfoProto]:
    found = [value for function in model.functions for value in function.value_info]
    waiting = [model.graph]
    while waiting:
        graph = waiting.pop()
        found += (*graph.input, *graph.output, *graph.value_info)
        for attribute in (attribute for node in graph.node for attribute in node.attribute):
            waiting += [attribute.g] if attribute.HasField("g") else attribute.graphs
    return found


def is_held(value: onnx.ValueInfoProto) -> bool:
    """Whether onnx_ir has a type for a value."""
    innermost = value.type
    while (kind := innermost.WhichOneof("value")) in ("sequence_type", "optional_type"):
        innermost = getattr(innermost, kind).elem_type
    # ONNX infers a sequence of something, without saying of what.
    return kind != "map_type" and (kind is not None or innermost is value.type)
