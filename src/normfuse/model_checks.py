"""Rules of the ONNX format that everything after loading relies on, each broken one a sentence that names the place.

Linear in the size of the graph. onnx.checker is stricter in parts (it refuses operators that only ONNX Runtime knows)
and laxer in others, so it is not used.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path

import onnx
import onnx_ir as ir

from normfuse.errors import InvalidModelError

__all__ = ["check_external_data", "check_structure"]


def check_structure(model: onnx.ModelProto, what: str) -> None:
    """Raise InvalidModelError if the model's graph is not one that can be rewritten.

    Args:
        model: The model; external data is not looked at.
        what: Name of the model in messages.
    """
    if not model.HasField("graph") or not model.ir_version:
        raise InvalidModelError(f"{what} is not an ONNX model: it holds no graph.")
    _check_graph(model.graph, set(), {entry.domain for entry in model.opset_import}, what)
    for function in model.functions:
        place = f"{what}, function '{function.domain}::{function.name}'"
        domains = {entry.domain for entry in function.opset_import}
        defined = _check_nodes(function.node, set(), set(function.input), domains, place)
        _check_outputs(function.output, defined, place)


def check_external_data(tensors: Iterable[ir.ExternalTensor], what: str) -> None:
    """Raise InvalidModelError if external data is missing, cut off, or outside the model's folder."""
    sizes: dict[str, int] = {}
    for tensor in tensors:
        location = str(tensor.location)
        folder = Path(tensor.base_dir or ".").resolve()
        path = (folder / location).resolve()
        if Path(location).is_absolute() or not path.is_relative_to(folder):
            raise InvalidModelError(
                f"{what}: tensor '{tensor.name}' has its data in '{location}', outside the model's folder, and "
                "that is refused; move the file beside the model."
            )
        if location not in sizes:
            if not path.is_file():
                raise InvalidModelError(f"{what}: file '{location}' with the data of '{tensor.name}' is missing.")
            sizes[location] = path.stat().st_size
        length = tensor.length if tensor.length is not None else tensor.nbytes
        if length < tensor.nbytes or (tensor.offset or 0) + length > sizes[location]:
            raise InvalidModelError(
                f"{what}: file '{location}' is too short for tensor '{tensor.name}' (needs bytes up to "
                f"{(tensor.offset or 0) + tensor.nbytes}, the file has {sizes[location]}); is it cut off?"
            )


def _check_graph(graph: onnx.GraphProto, outer: set[str], domains: set[str], place: str) -> None:
    inputs = [value.name for value in graph.input]
    if duplicate := _first_duplicate(inputs):
        raise InvalidModelError(f"{place}: two inputs are called '{duplicate}'.")
    initializers = [tensor.name for tensor in graph.initializer]
    initializers += [tensor.values.name for tensor in graph.sparse_initializer]
    if duplicate := _first_duplicate(initializers):
        raise InvalidModelError(f"{place}: two initialisers are called '{duplicate}'.")
    for tensor in graph.initializer:
        _check_tensor(tensor, f"{place}: initialiser '{tensor.name}'")
    defined = _check_nodes(graph.node, outer, {*inputs, *initializers}, domains, place)
    _check_outputs([value.name for value in graph.output], defined, place)


def _check_nodes(
    nodes: Sequence[onnx.NodeProto], outer: set[str], own: set[str], domains: set[str], place: str
) -> set[str]:
    """Check nodes in order and return all names that are defined after them (``own``: those of this graph)."""
    defined = outer | own
    for index, node in enumerate(nodes):
        here = f"{place}: node {node_label(node, index)}"
        domain = "" if node.domain == "ai.onnx" else node.domain
        if domain not in domains and not (domain == "" and "ai.onnx" in domains):
            raise InvalidModelError(
                f"{here} is of domain '{node.domain or 'ai.onnx'}', for which the model imports no opset version."
            )
        for name in node.input:
            if name and name not in defined:
                _raise_undefined(name, nodes[index:], here)
        for attribute in node.attribute:
            _check_attribute(attribute, defined, domains, here)
        for name in filter(None, node.output):
            if name in own:
                raise InvalidModelError(f"{here} writes '{name}', which is defined before.")
            own.add(name)
            defined.add(name)
    return defined


def _raise_undefined(name: str, later: Iterable[onnx.NodeProto], here: str) -> None:
    if any(name in node.output for node in later):
        raise InvalidModelError(
            f"{here} reads '{name}' before it is computed: the graph has a cycle or its nodes are not sorted."
        )
    raise InvalidModelError(
        f"{here} reads '{name}', which is neither an input, nor an initialiser, nor the output of a node."
    )


def _check_attribute(attribute: onnx.AttributeProto, outer: set[str], domains: set[str], here: str) -> None:
    kinds = onnx.AttributeProto
    if attribute.type == kinds.UNDEFINED and not attribute.ref_attr_name:
        raise InvalidModelError(f"{here} has an attribute '{attribute.name}' without a type.")
    if attribute.type == kinds.GRAPH:
        _check_graph(attribute.g, outer, domains, f"{here}, {attribute.name}")
    for graph in attribute.graphs if attribute.type == kinds.GRAPHS else ():
        _check_graph(graph, outer, domains, f"{here}, {attribute.name}")
    if attribute.type == kinds.TENSOR and not attribute.ref_attr_name:
        _check_tensor(attribute.t, f"{here}, attribute '{attribute.name}'")


def _check_outputs(names: Iterable[str], defined: set[str], place: str) -> None:
    for name in names:
        if name not in defined:
            raise InvalidModelError(f"{place}: output '{name}' is computed by no node.")


def _check_tensor(tensor: onnx.TensorProto, here: str) -> None:
    if any(size < 0 for size in tensor.dims):
        raise InvalidModelError(f"{here} has a negative dimension: {list(tensor.dims)}.")
    try:
        dtype = ir.DataType(tensor.data_type)
    except ValueError:
        raise InvalidModelError(f"{here} has the unknown element type {tensor.data_type}.") from None
    if dtype == ir.DataType.UNDEFINED:
        raise InvalidModelError(f"{here} has no element type.")
    if tensor.data_location == onnx.TensorProto.EXTERNAL or not tensor.HasField("raw_data"):
        return
    if dtype == ir.DataType.STRING:
        raise InvalidModelError(f"{here} holds strings as raw bytes, which the format does not allow.")
    needed = math.ceil(math.prod(tensor.dims) * dtype.bitwidth / 8)
    if len(tensor.raw_data) != needed:
        raise InvalidModelError(
            f"{here} of type {dtype.name} and shape {list(tensor.dims)} needs {needed} bytes and has "
            f"{len(tensor.raw_data)}."
        )


def node_label(node: onnx.NodeProto, index: int) -> str:
    """Return how a node is called in messages."""
    return f"'{node.name}' ({node.op_type})" if node.name else f"number {index} ({node.op_type})"


def _first_duplicate(names: Iterable[str]) -> str | None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    return None
