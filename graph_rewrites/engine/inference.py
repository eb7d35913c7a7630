"""Types and shapes that a model does not give itself, by ONNX's shape inference. The model is not changed."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

import onnx
import onnx_ir as ir

from normfuse.errors import InvalidModelError
from normfuse.graph_rewrites.engine.constants import constant_tensor
from normfuse.graph_rewrites.engine.inference_proxies import make_inferable, needs_stand_ins
from normfuse.graph_rewrites.engine.map_types import is_held
from normfuse.graph_rewrites.engine.sizes import Sizes
from normfuse.graph_rewrites.engine.traversal import all_nodes, graphs_of

logger = logging.getLogger(__name__)


class Types(Mapping[str, ir.Value]):
    """Values by name, with the types that ONNX inferred; each is read when it is first asked for."""

    def __init__(self, infos: Mapping[str, onnx.ValueInfoProto]) -> None:
        self._infos = infos
        self._values: dict[str, ir.Value] = {}

    def __getitem__(self, name: str) -> ir.Value:
        if name not in self._values:
            info = self._infos[name]
            held = info if is_held(info) else onnx.ValueInfoProto(name=name)
            self._values[name] = ir.serde.deserialize_value_info_proto(held, None)
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._infos)

    def __len__(self) -> int:
        return len(self._infos)


_WRONG_TYPE = re.compile(
    r"\(op_type:(\w+), node name: ([^)]*)\): \[TypeInferenceError\] "
    r"Inferred elem type differs from existing elem type: \((\d+)\) vs \((\d+)\)"
)

# Larger initialisers take no part in shape inference: without them the model fits into one message, whatever its size.
_MAX_ELEMENTS = 64


def infer_types(model: ir.Model) -> Mapping[ir.Graph, Types]:
    """Return, for every graph of the model (functions' bodies and subgraphs too), its values by name, with types.

    A function's body is inferred with the types that its calls have in common. What cannot be inferred is left out.

    Raises:
        InvalidModelError: the model gives a value another element type than it has.
    """
    tables: dict[ir.Graph, Types] = {}
    inferred = _infer(model)
    _enter(tables, model.graph, Types({}) if _is_complete(model.graph) else inferred)
    calls = _calls(model)
    waiting = [function for function in model.functions.values() if function.identifier() in calls]
    while waiting:
        ready = [f for f in waiting if all(call.graph in tables for call in calls[f.identifier()])]
        for function in ready:
            arguments = _common_types(calls[function.identifier()], tables)
            types = _infer_function(model, function, arguments) if arguments is not None else Types({})
            _enter(tables, function.graph, types)
        if not ready:
            break
        waiting = [function for function in waiting if function not in ready]
    return tables


def _enter(tables: dict[ir.Graph, Types], graph: ir.Graph, types: Types) -> None:
    for part in graphs_of(graph):
        tables[part] = types


def _is_complete(graph: ir.Graph) -> bool:
    values = (value for node in all_nodes(graph) for value in node.outputs)
    return all(
        value.dtype is not None and value.shape is not None and not value.shape.has_unknown_dim() for value in values
    )


def _infer(model: ir.Model) -> Types:
    """Return the values of the model's graph and subgraphs with the types and shapes that ONNX infers."""
    opset, graphs = model.opset_imports.get("", 1), graphs_of(model.graph)
    replaced: list[bool] = []
    if len(graphs) > 1 or any(needs_stand_ins(graph, opset) for graph in graphs):
        model = model.clone()
        replaced = [make_inferable(graph, opset, model.graph.inputs) for graph in graphs_of(model.graph)]
        _repeat_constants(model)
    weights = _large_weights(model.graph)
    if not Sizes(model.functions, {}, weights).add(model.graph).has_few_dimensions:
        logger.debug("shape inference would take too much memory")
        return Types({})
    try:
        skeleton = _skeleton(model, weights)
    except Exception as error:  # onnx_ir raises what its parts raise, such as for text that is not UTF-8
        logger.debug("shape inference is not possible: %s", error)
        return Types({})
    inferred = _inferred(skeleton, judged=not any(replaced), propagated=False)
    if inferred is not None:
        shapes = _shapes(inferred.graph)
        if Sizes(model.functions, shapes, weights).add(model.graph).has_few_elements:
            inferred = _inferred(skeleton, judged=not any(replaced), propagated=True) or inferred
    return Types({} if inferred is None else {info.name: info for info in _values_of(inferred.graph)})


def _repeat_constants(model: ir.Model) -> None:
    """Give each subgraph the small constants of the graphs around it: ONNX passes their types in, and not their values.

    The axes of a reduction are such, and the target of a Reshape.
    """
    for number, graph in enumerate(graphs_of(model.graph)[1:]):
        repeated: dict[ir.Value, ir.Value] = {}
        for node in tuple(graph):
            for index, value in enumerate(node.inputs):
                if value is None or value.graph is graph or (tensor := _small_constant(value, model)) is None:
                    continue
                if value not in repeated:
                    constant = ir.Node("", "Constant", [], [ir.AttrTensor("value", tensor)])
                    constant.outputs[0].name = f"{value.name}:in:{number}"
                    graph.insert_before(node, constant)
                    repeated[value] = constant.outputs[0]
                node.replace_input_with(index, repeated[value])


def _small_constant(value: ir.Value, model: ir.Model) -> ir.TensorProtocol | None:
    node = value.producer()
    if node is not None:
        tensor = constant_tensor(node) if node.op_type == "Constant" and node.domain == "" else None
    else:
        fixed = value.is_initializer() and not (value.is_graph_input() and model.ir_version >= 4)
        tensor = value.const_value if fixed else None
    return tensor if tensor is not None and tensor.dtype.is_integer() and tensor.size <= _MAX_ELEMENTS else None


def _large_weights(graph: ir.Graph) -> list[ir.Value]:
    """Return the initialisers that take no part in shape inference but by their type."""
    tensors = ((value, value.const_value) for value in graph.initializers.values() if value.name is not None)
    return [value for value, tensor in tensors if tensor is not None and tensor.size > _MAX_ELEMENTS]


def _skeleton(model: ir.Model, weights: Sequence[ir.Value]) -> onnx.ModelProto:
    """Return the model without the numbers of these weights: inputs of the same type instead."""
    proto = onnx.ModelProto(ir_version=model.ir_version)
    for domain, version in model.opset_imports.items():
        proto.opset_import.add(domain=domain, version=version)
    for function in model.functions.values():
        ir.serde.serialize_function_into(proto.functions.add(), function)
    graph, large = model.graph, set(weights)
    small = [value for value in graph.initializers.values() if value not in large]
    inputs = [value for value in graph.inputs if value not in large]
    view = ir.GraphView(inputs, graph.outputs, nodes=tuple(graph), initializers=small, name=graph.name)
    ir.serde.serialize_graph_into(proto.graph, view)  # type: ignore[arg-type]  # it says so of its own view
    for value in weights:
        tensor = value.const_value
        assert tensor is not None
        info = proto.graph.input.add(name=value.name)
        info.type.tensor_type.elem_type = tensor.dtype
        info.type.tensor_type.shape.SetInParent()
        for size in tensor.shape.numpy():
            info.type.tensor_type.shape.dim.add(dim_value=size)
        if tensor.dtype.is_floating_point():
            # Of an input ONNX would keep as many unknown numbers as it has elements, and of these it asks for none.
            proto.graph.initializer.add(name=value.name, data_type=tensor.dtype, dims=tensor.shape.numpy())
    return proto


def _values_of(graph: onnx.GraphProto) -> Iterator[onnx.ValueInfoProto]:
    """Yield what a graph and its subgraphs say of their values."""
    yield from (*graph.input, *graph.value_info, *graph.output)
    for attribute in (attribute for node in graph.node for attribute in node.attribute):
        for inner in (attribute.g,) if attribute.HasField("g") else attribute.graphs:
            yield from _values_of(inner)


def _shapes(graph: onnx.GraphProto) -> dict[str, list[int | None]]:
    """Return the shapes that a graph and its subgraphs give, by the names of their values."""
    shapes: dict[str, list[int | None]] = {}
    for info in _values_of(graph):
        if info.type.tensor_type.HasField("shape"):
            dims = info.type.tensor_type.shape.dim
            shapes[info.name] = [dim.dim_value if dim.HasField("dim_value") else None for dim in dims]
    return shapes


def _inferred(model: onnx.ModelProto, *, judged: bool, propagated: bool) -> onnx.ModelProto | None:
    """Return the model with types and shapes, also such as are computed if `propagated`; None: inference fails.

    Raises:
        InvalidModelError: if `judged`, where an element type that the model gives is another one than it has, which
            ONNX Runtime refuses as well. It takes models whose shapes are wrong.
    """
    for strict in (True, False):
        try:
            return onnx.shape_inference.infer_shapes(model, strict_mode=strict, data_prop=propagated)
        except Exception as error:
            logger.debug("shape inference failed: %s", error)
            wrong = _WRONG_TYPE.search(str(error)) if judged else None
            if wrong is not None:
                op_type, name, *types = wrong.groups()
                found, given = (ir.DataType(int(number)).name for number in types)
                raise InvalidModelError(
                    f"Node '{name}' ({op_type}) computes {found}, and the model's value_info or outputs say {given}."
                ) from None
    return None


# The model's own functions


def _calls(model: ir.Model) -> dict[ir.OperatorIdentifier, list[ir.Node]]:
    """Return the calls of every function, wherever they are."""
    calls: dict[ir.OperatorIdentifier, list[ir.Node]] = {}
    for home in (model.graph, *(function.graph for function in model.functions.values())):
        for node in all_nodes(home):
            if node.op_identifier() in model.functions:
                calls.setdefault(node.op_identifier(), []).append(node)
    return calls


def _called_by(model: ir.Model, graph: ir.Graph) -> list[ir.Function]:
    """Return the functions that the graph calls, directly or through other functions."""
    found: dict[ir.OperatorIdentifier, ir.Function] = {}
    waiting = [graph]
    while waiting:
        for node in all_nodes(waiting.pop()):
            function = model.functions.get(node.op_identifier())
            if function is not None and function.identifier() not in found:
                found[function.identifier()] = function
                waiting.append(function.graph)
    return list(found.values())


def _common_types(calls: Iterable[ir.Node], tables: Mapping[ir.Graph, Types]) -> list[ir.Value | None] | None:
    """Return the arguments with the types that they have in all calls; None if the element types differ."""
    common: list[ir.Value | None] | None = None
    for call in calls:
        assert call.graph is not None
        table = tables[call.graph]
        arguments = [None if value is None else _typed(value, table) for value in call.inputs]
        if common is None:
            common = arguments
            continue
        if len(common) != len(arguments):
            return None
        for mine, other in zip(common, arguments, strict=True):
            if (mine is None) != (other is None):
                return None
            if mine is not None and other is not None:
                if mine.dtype != other.dtype:
                    return None
                mine.shape = _common_shape(mine.shape, other.shape)
    return common


def _typed(value: ir.Value, table: Types) -> ir.Value:
    inferred = table.get(value.name or "") or value
    known = value.const_value
    if known is not None:
        return ir.Value(shape=ir.Shape(known.shape.numpy()), type=ir.TensorType(known.dtype))
    return ir.Value(shape=value.shape or inferred.shape, type=value.type or inferred.type)


def _common_shape(a: ir.Shape | None, b: ir.Shape | None) -> ir.Shape | None:
    if a is None or b is None or len(a) != len(b):
        return None
    return ir.Shape([p if p == q else None for p, q in zip(a, b, strict=True)])


def _infer_function(model: ir.Model, function: ir.Function, arguments: list[ir.Value | None]) -> Types:
    body = function.clone()
    for formal, given in zip(body.inputs, arguments, strict=False):
        if given is not None:
            formal.shape, formal.type = given.shape, given.type
    body.graph.name = function.name
    called = [other.clone() for other in _called_by(model, function.graph)]
    return _infer(ir.Model(body.graph, ir_version=model.ir_version, functions=called))
