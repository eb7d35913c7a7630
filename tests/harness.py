"""What the tests share: sessions by provider, tensors of every element type, proof of who ran what, models."""

import ctypes
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
import onnxruntime
import programs
from onnx import TensorProto, helper, numpy_helper

from normfuse.meaning import Array, dtype_code, dtype_of
from normfuse.spec import OPERATORS, labels_of, read_program

EP_NAME = "NormFuseExecutionProvider"
DOMAIN = "ai.normfuse"
# ONNX Runtime 1.31 takes IR versions up to 13; onnx writes a newer one.
IR_VERSION = 10
IR_VERSION_2_BIT = 13
BITS = {
    TensorProto.INT4: 4,
    TensorProto.UINT4: 4,
    TensorProto.INT2: 2,
    TensorProto.UINT2: 2,
}

Model = onnx.ModelProto | bytes | str | Path


def session_options(provider: str, **ep_options: Any) -> onnxruntime.SessionOptions:
    """ "ep": execution provider (and operators) with claim=all; "custom": operators only; "cpu": plain ONNX Runtime."""
    if provider == "ep":
        import normfuse

        options = normfuse.session_options(**{"claim": "all", **ep_options})
    elif provider == "custom":
        import normfuse

        options = onnxruntime.SessionOptions()
        options.register_custom_ops_library(normfuse.get_library_path())
    elif provider == "cpu":
        options = onnxruntime.SessionOptions()
    else:
        raise ValueError(f"provider {provider!r}")
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    options.log_severity_level = 3
    options.intra_op_num_threads = 2
    # A thread that waits for work otherwise spins for a while: two fifths of the time of a test with a small tensor.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return options


def create_session(
    model: Model, provider: str = "ep", options: onnxruntime.SessionOptions | None = None, **ep_options: Any
) -> onnxruntime.InferenceSession:
    """A session that fails instead of falling back when the provider cannot be created."""
    options = options or session_options(provider, **ep_options)
    if isinstance(model, onnx.ModelProto):
        model = model.SerializeToString()
    elif isinstance(model, Path):
        model = str(model)
    return onnxruntime.InferenceSession(model, sess_options=options, enable_fallback=0)


# --- tensors of every element type -----------------------------------------------------------------------------------


def pack(array: Array) -> bytes:
    """Bytes of a tensor as ONNX and ORT store it: 4- and 2-bit elements packed, the first one lowest."""
    bits = BITS.get(dtype_code(array), 0)
    if not bits:
        return np.ascontiguousarray(array).tobytes()
    per_byte = 8 // bits
    flat = array.reshape(-1).astype(np.int8).view(np.uint8) & ((1 << bits) - 1)
    flat = np.concatenate([flat, np.zeros(-len(flat) % per_byte, dtype=np.uint8)]).reshape(-1, per_byte)
    return np.bitwise_or.reduce(flat << (np.arange(per_byte, dtype=np.uint8) * bits), axis=1).astype(np.uint8).tobytes()


def unpack(data: bytes, code: int, shape: Sequence[int]) -> Array:
    """Inverse of pack."""
    bits, count = BITS.get(code, 0), int(np.prod(shape, dtype=np.int64))
    if not bits:
        return np.frombuffer(data, dtype=dtype_of(code), count=count).reshape(shape)
    fields = np.frombuffer(data, dtype=np.uint8)[:, None] >> (np.arange(8 // bits, dtype=np.uint8) * bits)
    values = (fields & ((1 << bits) - 1)).reshape(-1)[:count].astype(np.int8)
    if code in (TensorProto.INT4, TensorProto.INT2):
        values = np.where(values >= 1 << (bits - 1), values - (1 << bits), values)
    return values.astype(dtype_of(code)).reshape(shape)


def to_ort(array: Array) -> onnxruntime.OrtValue:
    """An OrtValue of any element type, ml_dtypes included."""
    value = onnxruntime.OrtValue.ortvalue_from_shape_and_type(list(array.shape), dtype_code(array))
    if data := pack(array):
        ctypes.memmove(value.data_ptr(), data, len(data))
    return value


def from_ort(value: onnxruntime.OrtValue) -> Array:
    """A copy of an OrtValue as NumPy array."""
    size = value.tensor_size_in_bytes()
    data = ctypes.string_at(value.data_ptr(), size) if size else b""
    return unpack(data, value.element_type(), value.shape())


def run(session: onnxruntime.InferenceSession, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """Run a session on arrays of any element type."""
    names = [output.name for output in session.get_outputs()]
    wanted = {node.name for node in session.get_inputs()}
    values = session.run_with_ort_values(names, {k: to_ort(v) for k, v in feeds.items() if k in wanted})
    return {name: from_ort(value) for name, value in zip(names, values, strict=True)}


# --- who ran what ----------------------------------------------------------------------------------------------------


class AssignedNode(NamedTuple):
    """A node of the original graph, as the session's assignment record has it."""

    domain: str
    op_type: str
    name: str


def ep_groups(session: onnxruntime.InferenceSession) -> list[list[AssignedNode]]:
    """The groups of nodes that the execution provider runs, each as one."""
    return [
        [AssignedNode(node.domain, node.op_type, node.name) for node in subgraph.get_nodes()]
        for subgraph in session.get_provider_graph_assignment_info()
        if subgraph.ep_name == EP_NAME
    ]


def fused_types(session: onnxruntime.InferenceSession) -> list[list[str]]:
    """Operator types of each group the EP runs, sorted within the group and by group."""
    return sorted(sorted(node.op_type for node in group) for group in ep_groups(session))


def cpu_types(session: onnxruntime.InferenceSession) -> list[str]:
    """Operator types left to ONNX Runtime."""
    return sorted(
        node.op_type
        for subgraph in session.get_provider_graph_assignment_info()
        if subgraph.ep_name != EP_NAME
        for node in subgraph.get_nodes()
    )


# --- models ----------------------------------------------------------------------------------------------------------


def initializer(name: str, array: Array) -> TensorProto:
    """A constant of any element type."""
    return TensorProto(name=name, data_type=dtype_code(array), dims=array.shape, raw_data=pack(array))


def value_info(name: str, code: int, shape: Sequence[int | str | None] | None) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, code, shape)


def with_outputs(model: onnx.ModelProto, names: Iterable[str]) -> onnx.ModelProto:
    """A copy of a model that shows some of its values."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    present = {value.name for value in (*copy.graph.input, *copy.graph.output)}
    copy.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names if name not in present)
    return copy


def build_model(
    nodes: Iterable[onnx.NodeProto],
    inputs: Mapping[str, Array],
    outputs: Mapping[str, int],
    constants: Mapping[str, Array] | None = None,
    *,
    opset: int = 21,
    shapes: Mapping[str, Sequence[int | str | None]] | None = None,
    functions: Iterable[onnx.FunctionProto] = (),
    value_infos: Iterable[onnx.ValueInfoProto] = (),
) -> onnx.ModelProto:
    """A model: graph inputs typed like the arrays given for them, outputs by element type."""
    shapes = shapes or {}
    constants = constants or {}
    graph = helper.make_graph(
        list(nodes),
        "test",
        [value_info(name, dtype_code(a), shapes.get(name, a.shape)) for name, a in inputs.items()],
        [value_info(name, code, shapes.get(name)) for name, code in outputs.items()],
        [initializer(name, a) for name, a in constants.items()],
        value_info=list(value_infos),
    )
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid(DOMAIN, 1), helper.make_opsetid("com.microsoft", 1)]
    two_bit = any(BITS.get(dtype_code(a)) == 2 for a in [*inputs.values(), *constants.values()])
    return helper.make_model(
        graph,
        opset_imports=opsets,
        ir_version=IR_VERSION_2_BIT if two_bit or opset > 23 else IR_VERSION,
        functions=list(functions),
    )


def operator_model(
    op: str,
    inputs: Mapping[str, Array | None],
    attributes: Mapping[str, Any],
    outputs: Mapping[str, int],
    *,
    constants: Iterable[str] = (),
    name: str = "site",
    shapes: Mapping[str, Sequence[int | str | None]] | None = None,
    opset: int = 21,
) -> onnx.ModelProto:
    """One node of our own domain; ``inputs`` as `operator_node` takes them, ``outputs`` name -> element type."""
    present = {key: array for key, array in inputs.items() if array is not None}
    node = operator_node(op, {key: key for key in present}, attributes, {key: key for key in outputs}, name=name)
    fixed = set(constants)
    return build_model(
        [node],
        {key: array for key, array in present.items() if key not in fixed},
        outputs,
        {key: array for key, array in present.items() if key in fixed},
        shapes=shapes,
        opset=opset,
    )


def operator_node(
    op_type: str,
    inputs: Mapping[str, str],
    attributes: Mapping[str, Any],
    outputs: Mapping[str, str],
    *,
    name: str = "site",
) -> onnx.NodeProto:
    """A node of our own domain, or a call of a function: the values' names by those of a case (`programs`).

    Attributes that are none of a case are written as they are. With ``steps``, the program itself, the inputs are
    written in the order given.
    """
    op = op_type.partition("_")[0]
    case = {key: value for key, value in attributes.items() if key in programs.DEFAULTS}
    others = {key: value for key, value in attributes.items() if key not in programs.DEFAULTS}
    order = list(inputs)
    if "steps" not in others:
        others["steps"], order = programs.write(op, inputs, case)
    values = [outputs.get(key, "") for key in OPERATORS[op].outputs]
    while values and not values[-1]:
        values.pop()
    node = helper.make_node(op_type, [inputs[key] for key in order], values, name=name, domain=DOMAIN)
    node.attribute.extend(helper.make_attribute(key, value) for key, value in others.items())
    return node


class OperatorNode(NamedTuple):
    """What a node of our own domain says: the values' names by the labels of its program."""

    op: str
    steps: str
    inputs: dict[str, str]
    outputs: dict[str, str]


def read_node(node: onnx.NodeProto) -> OperatorNode:
    """A node of our own domain, or a call of a function."""
    op = node.op_type.partition("_")[0]
    (steps,) = (attribute.s.decode() for attribute in node.attribute if attribute.name == "steps")
    labels = ["X", *labels_of(read_program(steps))]
    outputs = zip(OPERATORS[op].outputs, node.output, strict=False)
    return OperatorNode(
        op, steps, dict(zip(labels, node.input, strict=True)), {name: value for name, value in outputs if value}
    )


def to_array(tensor: TensorProto) -> Array:
    """NumPy array of an initialiser."""
    return numpy_helper.to_array(tensor)


SessionMaker = Callable[..., onnxruntime.InferenceSession]
