"""Rules of the ONNX format that all later code relies on; the message for a broken one names the place.

Linear in the size of the graph. onnx.checker is stricter in parts (it refuses operators that only ONNX Runtime knows)
and laxer in others, so it is not used.
"""

from __future__ import annotations

import functools
import math
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

import onnx
import onnx_ir as ir

from normfuse.errors import InvalidModelError
from normfuse.spec import ATTRIBUTES, MOST_TENSORS, OPERATOR_DOMAIN, OPERATORS

_DATA_FIELDS = ("float_data", "int32_data", "string_data", "int64_data", "double_data", "uint64_data")

Versions: TypeAlias = dict[str, int]
"""Domain ("" = ai.onnx) -> version of its operators."""


# Runtimes inline functions: models with more nodes than this after it, and far more than in the file, are refused.
_MOST_NODES = 1_000_000
_MOST_GROWTH = 100
# ONNX follows calls by recursion.
_MOST_LEVELS = 200


def check_structure(model: onnx.ModelProto, what: str) -> None:
    """Raise InvalidModelError if the model's graph is not one that can be rewritten.

    Args:
        model: The model; external data is not read.
        what: Name of the model in messages.
    """
    if not model.HasField("graph") or not model.ir_version:
        raise InvalidModelError(f"{what} is not an ONNX model: it holds no graph.")
    _check_graph(model.graph, set(), _versions(model.opset_import, what), what)
    for function in model.functions:
        place = f"{what}, function '{function.domain}::{function.name}'"
        versions = _versions(function.opset_import, place)
        defined = _check_nodes(function.node, set(), set(function.input), versions, place)
        _check_outputs(function.output, defined, place)
    _check_functions(model, what)


def check_external_data(tensors: Iterable[ir.ExternalTensor], what: str, linked: Path | None = None) -> None:
    """Raise InvalidModelError if external data is missing, truncated, or outside of the model's folder.

    Args:
        tensors: Those with external data, below their base_dir.
        what: Name of the model in messages.
        linked: Another folder that the files may lead to by links: the one that holds the model file itself where the
            path given is a link, as in the cache of the Hugging Face hub.
    """
    sizes: dict[str, int] = {}
    for tensor in tensors:
        if tensor.path not in sizes:
            sizes[tensor.path] = _data_size(tensor, what, linked)
        size = sizes[tensor.path]
        offset = tensor.offset or 0
        length = tensor.length if tensor.length is not None else tensor.nbytes
        if offset < 0 or length < 0:
            raise InvalidModelError(
                f"{what}: the data of '{tensor.name}' is said to be {length} bytes at offset {offset} of "
                f"'{tensor.location}'; neither can be negative."
            )
        if length < tensor.nbytes or offset + length > size:
            raise InvalidModelError(
                f"{what}: file '{tensor.location}' is too short for tensor '{tensor.name}' (needs bytes up to "
                f"{offset + tensor.nbytes}, the file has {size}); is it truncated?"
            )


def _data_size(tensor: ir.ExternalTensor, what: str, linked: Path | None) -> int:
    location = str(tensor.location)
    try:
        folder = Path(tensor.base_dir or ".").resolve()
        path = (folder / location).resolve()
        is_file = path.is_file()
        # Links do not count in what the model itself says: it cannot name a file beside or above its folder.
        inside = not Path(location).is_absolute() and Path(os.path.normpath(folder / location)).is_relative_to(folder)
    except (OSError, RuntimeError, ValueError) as error:  # links in a circle, a NUL, a name that is too long
        raise InvalidModelError(
            f"{what}: tensor '{tensor.name}' has its data in {location!r}, which is no path: {error}."
        ) from error
    if not inside or not any(path.is_relative_to(allowed) for allowed in (folder, linked) if allowed is not None):
        raise InvalidModelError(
            f"{what}: tensor '{tensor.name}' has its data in '{location}', outside the model's folder, and "
            "that is refused; move the file beside the model."
        )
    if not is_file:
        raise InvalidModelError(
            f"{what}: file '{location}' with the data of '{tensor.name}' is missing, or is no file."
        )
    return path.stat().st_size


def _check_graph(graph: onnx.GraphProto, outer: set[str], versions: Versions, place: str) -> None:
    inputs = [value.name for value in graph.input]
    _check_text([tensor.name for tensor in graph.initializer], place)
    _check_text([value.name for value in (*graph.input, *graph.output, *graph.value_info)], place)
    if duplicate := _first_duplicate(inputs):
        raise InvalidModelError(f"{place}: two inputs are called '{duplicate}'.")
    initializers = [tensor.name for tensor in graph.initializer]
    initializers += [tensor.values.name for tensor in graph.sparse_initializer]
    if duplicate := _first_duplicate(initializers):
        raise InvalidModelError(f"{place}: two initialisers are called '{duplicate}'.")
    for tensor in graph.initializer:
        _check_tensor(tensor, f"{place}: initialiser '{tensor.name}'")
    defined = _check_nodes(graph.node, outer, {*inputs, *initializers}, versions, place)
    _check_outputs([value.name for value in graph.output], defined, place)


def _check_nodes(
    nodes: Sequence[onnx.NodeProto], outer: set[str], own: set[str], versions: Versions, place: str
) -> set[str]:
    """Check nodes, in any order, and return all names that are defined (``own``: as for inputs)."""
    for index, node in enumerate(nodes):
        here = f"{place}: node {node_label(node, index)}"
        _check_text((node.op_type, node.domain, node.name, *node.input, *node.output), here)
        for name in filter(None, node.output):
            if name in own:
                raise InvalidModelError(f"{here} writes '{name}', which is defined before.")
            own.add(name)
    defined = outer | own
    for index, node in enumerate(nodes):
        here = f"{place}: node {node_label(node, index)}"
        _check_text([attribute.name for attribute in node.attribute], here)
        _check_text([text for entry in node.metadata_props for text in (entry.key, entry.value)], here)
        version = versions.get(_domain(node.domain))
        if version is None:
            raise InvalidModelError(
                f"{here} is of domain '{node.domain or 'ai.onnx'}', for which the model imports no opset version."
            )
        _check_signature(node, version, here)
        for name in node.input:
            if name and name not in defined:
                raise InvalidModelError(
                    f"{here} reads '{name}', which is neither an input, nor an initialiser, nor the output of a node."
                )
        for attribute in node.attribute:
            _check_attribute(attribute, defined, versions, here)
    return defined


def _check_text(texts: Iterable[str], here: str) -> None:
    """Protobuf hands out text that is not UTF-8 as bytes."""
    for text in texts:
        if not isinstance(text, str):
            raise InvalidModelError(f"{here} holds a name that is not UTF-8 text ({text!r}); the file is damaged.")


def _check_signature(node: onnx.NodeProto, version: int, here: str) -> None:
    """Numbers of inputs and outputs, and types of attributes, of ONNX's own operators."""
    if node.domain == OPERATOR_DOMAIN:
        _check_own_signature(node, here)
    schema = _schema(node.op_type, _domain(node.domain), version)
    if schema is None:
        return
    for what, count, least, most in (
        ("inputs", len(node.input), schema.min_input, schema.max_input),
        ("outputs", len(node.output), schema.min_output, schema.max_output),
    ):
        if not least <= count <= most:
            wanted = str(least) if least == most else f"{least} to {most}"
            raise InvalidModelError(f"{here} has {count} {what}; {node.op_type} has {wanted}.")
    for name, parameter in zip(node.input, schema.inputs, strict=False):
        if not name and parameter.option == onnx.defs.OpSchema.FormalParameterOption.Single:
            raise InvalidModelError(f"{here} lacks its input '{parameter.name}'.")
    for attribute in node.attribute:
        known = schema.attributes.get(attribute.name)
        if known is None or not attribute.type:
            continue
        kind = onnx.AttributeProto.AttributeType.Name(attribute.type)
        expected = str(known.type).rpartition(".")[2]
        if kind != expected:
            raise InvalidModelError(
                f"{here}: attribute '{attribute.name}' is of kind {kind}; {node.op_type} takes {expected}."
            )


def _check_own_signature(node: onnx.NodeProto, here: str) -> None:
    """The same for our operators, and for calls of functions named after them."""
    operator = OPERATORS.get(node.op_type.partition("_")[0])
    if operator is None:
        return
    if not node.input or not node.input[0]:
        raise InvalidModelError(f"{here} lacks its input 'X'.")
    if len(node.input) > 1 + MOST_TENSORS or not 1 <= len(node.output) <= len(operator.outputs):
        raise InvalidModelError(
            f"{here} has {len(node.input)} inputs and {len(node.output)} outputs; {operator.name} has at most "
            f"{1 + MOST_TENSORS} and {len(operator.outputs)}."
        )
    for attribute in node.attribute:
        known = ATTRIBUTES.get(attribute.name)
        kind = onnx.AttributeProto.AttributeType.Name(attribute.type).lower()
        if known is not None and kind != known.type:
            raise InvalidModelError(
                f"{here}: attribute '{attribute.name}' is of kind {kind.upper()}; {operator.name} takes "
                f"{known.type.upper()}."
            )
        if known is not None and known.type == "string":
            try:
                attribute.s.decode("utf-8")
            except UnicodeDecodeError:
                raise InvalidModelError(
                    f"{here}: attribute '{attribute.name}' is no text in UTF-8; write it anew."
                ) from None


@functools.lru_cache(maxsize=4096)
def _schema(op_type: str, domain: str, version: int) -> onnx.defs.OpSchema | None:
    try:
        return onnx.defs.get_schema(op_type, version, domain)
    except onnx.defs.SchemaError:
        return None


def _domain(name: str) -> str:
    return "" if name == "ai.onnx" else name


def _versions(imports: Iterable[onnx.OperatorSetIdProto], place: str) -> Versions:
    versions: Versions = {}
    for entry in imports:
        name = entry.domain or "ai.onnx"
        if not 1 <= entry.version < 2**31:
            raise InvalidModelError(f"{place} imports version {entry.version} of the domain '{name}'.")
        if versions.setdefault(_domain(entry.domain), entry.version) != entry.version:
            raise InvalidModelError(f"{place} imports two versions of the domain '{name}'.")
    return versions


def _check_functions(model: onnx.ModelProto, what: str) -> None:
    """A function may call others, but not itself, even indirectly; inlined they must not grow without bound."""
    calls = {(function.domain, function.name): _calls(function.node) for function in model.functions}
    sizes: dict[tuple[str, str], int] = {}
    levels = 0
    while waiting := [name for name in calls if name not in sizes]:
        ready = [name for name in waiting if all(called in sizes for called in calls[name] if called in calls)]
        if not ready:
            domain, name = min(waiting)
            raise InvalidModelError(f"{what}: function '{domain}::{name}' calls itself, or one that calls it.")
        levels += 1
        if levels > _MOST_LEVELS:
            raise InvalidModelError(f"{what}: its functions call each other more than {_MOST_LEVELS} levels deep.")
        sizes |= {name: _written_out(calls[name], sizes) for name in ready}
    size = _written_out(_calls(model.graph.node), sizes)
    if size > _MOST_NODES and size > _MOST_GROWTH * sum(1 for _ in _all_nodes(model.graph.node)):
        raise InvalidModelError(f"{what}: its functions, written out where they are called, are {size:.3g} nodes.")


def _calls(nodes: Iterable[onnx.NodeProto]) -> Counter[tuple[str, str]]:
    return Counter((node.domain, node.op_type) for node in _all_nodes(nodes))


def _written_out(calls: Counter[tuple[str, str]], sizes: Mapping[tuple[str, str], int]) -> int:
    return sum(count * sizes.get(called, 1) for called, count in calls.items())


def _all_nodes(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    for node in nodes:
        yield node
        for attribute in node.attribute:
            for graph in (attribute.g, *attribute.graphs):
                yield from _all_nodes(graph.node)


def _check_attribute(attribute: onnx.AttributeProto, outer: set[str], versions: Versions, here: str) -> None:
    kinds = onnx.AttributeProto
    if attribute.type == kinds.UNDEFINED and not attribute.ref_attr_name:
        raise InvalidModelError(f"{here} has an attribute '{attribute.name}' without a type.")
    if attribute.type == kinds.GRAPH:
        _check_graph(attribute.g, outer, versions, f"{here}, {attribute.name}")
    for graph in attribute.graphs if attribute.type == kinds.GRAPHS else ():
        _check_graph(graph, outer, versions, f"{here}, {attribute.name}")
    if attribute.type == kinds.TENSOR and not attribute.ref_attr_name:
        _check_tensor(attribute.t, f"{here}, attribute '{attribute.name}'")
    for tensor in attribute.tensors if attribute.type == kinds.TENSORS else ():
        _check_tensor(tensor, f"{here}, attribute '{attribute.name}'")


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
    if tensor.data_location == onnx.TensorProto.EXTERNAL:
        for entry in tensor.external_data:
            if entry.key in ("offset", "length") and not entry.value.isdecimal():
                raise InvalidModelError(
                    f"{here} has its data at {entry.key} '{entry.value}' of a file; it must be a number from 0 on."
                )
        return
    if not tensor.HasField("raw_data"):
        _check_elements(tensor, dtype, here)
        return
    if dtype == ir.DataType.STRING:
        raise InvalidModelError(f"{here} holds strings as raw bytes, which the format does not allow.")
    needed = math.ceil(math.prod(tensor.dims) * dtype.bitwidth / 8)
    if len(tensor.raw_data) != needed:
        raise InvalidModelError(
            f"{here} of type {dtype.name} and shape {list(tensor.dims)} needs {needed} bytes and has "
            f"{len(tensor.raw_data)}."
        )


def _check_elements(tensor: onnx.TensorProto, dtype: ir.DataType, here: str) -> None:
    """Data that is not raw bytes is in one of the lists, and complete."""
    count = max(len(getattr(tensor, field)) for field in _DATA_FIELDS)
    needed = math.prod(tensor.dims) * (2 if dtype in (ir.DataType.COMPLEX64, ir.DataType.COMPLEX128) else 1)
    packed = dtype != ir.DataType.STRING and dtype.bitwidth < 8
    least = -(-needed // 16) if packed else needed
    if not least <= count <= needed:
        raise InvalidModelError(
            f"{here} of type {dtype.name} and shape {list(tensor.dims)} needs {needed} elements and has {count}."
        )


def node_label(node: onnx.NodeProto, index: int) -> str:
    """Return the name of a node for messages."""
    return f"'{node.name}' ({node.op_type})" if node.name else f"number {index} ({node.op_type})"


def _first_duplicate(names: Iterable[str]) -> str | None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    return None
