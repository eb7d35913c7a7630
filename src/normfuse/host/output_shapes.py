"""What a session says about the shapes of its outputs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import onnx_ir as ir

from normfuse.host.plain_sessions import plain_session
from normfuse.host.versions import import_host
from normfuse.spec import UNNAMED_DIMENSION

if TYPE_CHECKING:
    from collections.abc import Sequence

    import onnxruntime


def forget_made_up_names(session: onnxruntime.InferenceSession) -> None:
    """Remove the names of output dimensions that have none in the original model.

    A custom operator must name a dimension that it does not know (ep/custom_ops/shape_inference.cc), and ONNX Runtime
    reports that as the name of an output's dimension.
    """
    outputs, affected = _outputs(session), _affected(session)
    if affected:
        described = {each.name: each for each in _without_made_up_names(affected)}
        session._outputs_meta = [described.get(each.name, each) for each in outputs]


def has_made_up_names(session: onnxruntime.InferenceSession) -> bool:
    """Whether there are such names to remove."""
    return bool(_affected(session))


def _outputs(session: onnxruntime.InferenceSession) -> Sequence[Any]:
    return getattr(session, "_outputs_meta", ())  # onnxruntime has no public way to set it


def _affected(session: onnxruntime.InferenceSession) -> list[Any]:
    return [each for each in _outputs(session) if any(map(_is_made_up, each.shape))]


def _is_made_up(size: object) -> bool:
    return isinstance(size, str) and size.startswith(UNNAMED_DIMENSION)


def _without_made_up_names(tensors: list[Any]) -> list[Any]:
    """Return what a session on a model with these tensors says of them: nothing but onnxruntime makes a NodeArg."""
    host = import_host()
    values = [
        ir.Value(
            name=each.name,
            type=ir.TensorType(ir.DataType[each.type.removeprefix("tensor(").removesuffix(")").upper()]),
            shape=ir.Shape([None if _is_made_up(size) else size for size in each.shape]),
        )
        for each in tensors
    ]
    graph = ir.Graph(values, values, nodes=[], opset_imports={"": 17}, name="outputs")
    options = host.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    data = ir.to_proto(ir.Model(graph, ir_version=10)).SerializeToString()
    return list(plain_session(data, options, providers=["CPUExecutionProvider"]).get_outputs())
