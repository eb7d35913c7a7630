"""Float16 models on which ONNX Runtime ends the process while it creates a session.

If a Transpose of a float16 tensor precedes a MatMul with constant weights, ONNX Runtime fuses the Transpose, the Cast
that it has inserted, and the MatMul (MatmulTransposeFusion), and then reads a node that was removed
(FuseFp16InitializerToFp32NodeTransformer). One of the two must be disabled. Without the second one all weights are cast
in every run (7 times slower with a batch of 1), without the first one such a Transpose is a node of its own.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, BinaryIO

from normfuse.host.config_entries import disable_optimizer, disabled_optimizers
from normfuse.host.model_forms import ModelForm, ask_model
from normfuse.host.wire_format import GRAPH_INITIALIZER, GRAPH_NODE, MODEL_GRAPH, fields, first_number, read

if TYPE_CHECKING:
    import onnx
    import onnx_ir as ir
    import onnxruntime

_FUSION = "MatmulTransposeFusion"
_AT_FAULT = "FuseFp16InitializerToFp32NodeTransformer"
_FLOAT16 = 10  # onnx.TensorProto.FLOAT16
_TENSOR_TYPE = 2  # field data_type of a TensorProto
_LARGEST_NODE = 1 << 20  # bytes; none of the operators looked for is as large

_Node = tuple[str, Sequence[str], Sequence[str]]  # operator, inputs, outputs


def avoid_float16_fault(options: onnxruntime.SessionOptions, model: ModelForm) -> None:
    """Disable MatmulTransposeFusion if the model may trigger the fault; optimizers that are disabled stay disabled.

    Raises:
        InvalidModelError: The file cannot be read.
    """
    disabled = disabled_optimizers(options)
    if _FUSION in disabled or _AT_FAULT in disabled:
        return
    if ask_model(model, _file_transposes_float16, _proto_transposes_float16, _graph_transposes_float16):
        disable_optimizer(options, _FUSION)


def _proto_transposes_float16(model: onnx.ModelProto) -> bool:
    holds = any(tensor.data_type == _FLOAT16 for tensor in model.graph.initializer)
    return holds and _multiplies_transposed((n.op_type, n.input, n.output) for n in model.graph.node)


def _graph_transposes_float16(model: ir.Model) -> bool:
    holds = any(value.dtype is not None and int(value.dtype) == _FLOAT16 for value in model.graph.initializers.values())
    return holds and _multiplies_transposed(_of_ir(model))


def _of_ir(model: ir.Model) -> Iterator[_Node]:
    for node in model.graph:
        inputs = ["" if value is None else str(value.name) for value in node.inputs]
        yield node.op_type, inputs, [str(value.name) for value in node.outputs]


def _file_transposes_float16(file: BinaryIO) -> bool:
    import onnx

    size = file.seek(0, os.SEEK_END)
    graphs = [part[1:] for part in fields(file, 0, size) if part[0] == MODEL_GRAPH]
    parts = [part for graph in graphs for part in fields(file, *graph)]
    weights = (part[1:] for part in parts if part[0] == GRAPH_INITIALIZER)
    if not any(first_number(file, start, end, _TENSOR_TYPE) == _FLOAT16 for start, end in weights):
        return False
    nodes = []
    for field, start, end in parts:
        if field == GRAPH_NODE and end - start < _LARGEST_NODE:
            node = onnx.NodeProto()
            node.ParseFromString(read(file, start, end))
            nodes.append((node.op_type, node.input, node.output))
    return _multiplies_transposed(nodes)


def _multiplies_transposed(nodes: Iterable[_Node]) -> bool:
    """Whether the result of a Transpose, perhaps cast, is an operand of a MatMul; ONNX sorts nodes."""
    transposed: set[str] = set()
    for op_type, inputs, outputs in nodes:
        if op_type == "Transpose" or (op_type == "Cast" and transposed.intersection(inputs)):
            transposed.update(outputs)
        elif op_type == "MatMul" and transposed.intersection(inputs):
            return True
    return False
