"""The sites at which two versions of a model differ as graphs.

Nodes that both have, with the same attributes, weights and inputs, compute the same in both. The rest of the
optimised graph consists of sites: each computes a value that the original has by name, from values that the original
has by name. So each can be run by itself, on the original's own values; and if all of them are right, so is the
whole.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedFunctionsPass, RemoveUnusedNodesPass, RemoveUnusedOpsetsPass

from normfuse.graph_rewrites.engine.traversal import inner_graphs


@dataclasses.dataclass(frozen=True)
class DiffSite:
    """One value that the two graphs compute in different ways."""

    value: str
    inputs: tuple[str, ...]
    """The values that it is computed from in the optimised graph."""
    original: ir.Value
    """The value in the original."""
    original_inputs: tuple[str, ...]
    """The values that it is computed from there."""
    nodes: tuple[ir.Node, ...]
    """The nodes that compute it in the original, the last one first."""
    optimized_nodes: tuple[ir.Node, ...]
    """The nodes that compute it in the optimised graph."""
    is_rewritten: bool
    """Whether the optimised graph has other nodes there; otherwise they are only run as one."""

    def all_nodes(self, model: ir.Model) -> list[ir.Node]:
        """Return the original's nodes with those of their subgraphs and of the functions that they call."""
        found = list(self.nodes)
        for node in found:
            found += [inner for graph in inner_graphs(node) for inner in graph]
            found += model.functions.get(node.op_identifier(), ())
        return found


def given_name(name: str) -> str:
    """Return the name of the input that replaces a value of the original."""
    return f"{name} of the original"


def diff_sites(
    original: ir.Model,
    optimized: ir.Model,
    fused_elsewhere: Iterable[Sequence[str]] = (),
    unrelated: Collection[str] = (),
) -> tuple[list[DiffSite], int]:
    """Return the sites and the number of nodes that are the same in both.

    Args:
        original: The original.
        optimized: The same model, rewritten.
        fused_elsewhere: Names of the optimised model's nodes that run together as one, for each such group: they count
            as different, and the values between them as not there.
        unrelated: Names of different values in the two.
    """
    ours = {value.name: value for node in optimized.graph for value in node.outputs if value.name}
    theirs = {value.name: value for node in original.graph for value in node.outputs if value.name}
    groups = [frozenset(group) for group in fused_elsewhere]
    hidden = {name for group in groups for name in _inside(optimized, group)} | set(unrelated)
    common = (ours.keys() & theirs.keys() | {value.name for value in original.graph.inputs}) - hidden
    different = {name for group in groups for name in group}
    same = _Same(original, optimized, theirs)
    own = {node for node in optimized.graph if same(node)}
    sites = []
    for node in optimized.graph:
        if node in own and node.name not in different and not any(value.name in unrelated for value in reads(node)):
            continue
        for value in node.outputs:
            if value.name and value.name in common:
                inputs, ours_between = slice_of([value], common)
                given, nodes = slice_of([theirs[value.name]], common)
                rewritten = not own.issuperset(ours_between)
                sites.append(DiffSite(value.name, inputs, theirs[value.name], given, nodes, ours_between, rewritten))
    return sites, sum(node.name not in different for node in own)


def part_model(model: ir.Model, values: Sequence[str], given: Mapping[str, np.ndarray]) -> ir.Model:
    """Return the part of a model that computes some values, each from values that are given.

    Args:
        model: The model; it is not changed.
        values: What is computed; these are the outputs.
        given: Value that is not computed -> one like it; ``given_name`` of each is an input.
    """
    part = model.clone()
    by_name = {value.name: value for node in part.graph for value in node.outputs}
    by_name |= {value.name: value for value in part.graph.inputs}
    part.graph.outputs.clear()
    part.graph.outputs.extend(by_name[name] for name in values)
    for name, array in given.items():
        # For a tensor of unknown rank ONNX Runtime would take the result of a custom operator for a scalar.
        dtype, shape = ir.DataType.from_numpy(array.dtype), ir.Shape([None] * array.ndim)
        value = ir.Value(name=given_name(name), type=ir.TensorType(dtype), shape=shape)
        for use in tuple(by_name[name].uses()):
            use.node.replace_input_with(use.idx, value)
        part.graph.inputs.append(value)
    # Values that nodes in subgraphs of a node read count as used, even after that node is removed.
    needed = set(slice_of(part.graph.outputs, ())[1])
    for node in part.graph:
        if node not in needed:
            _forget_inner_inputs(node)
    for clean in (RemoveUnusedNodesPass, RemoveUnusedFunctionsPass, RemoveUnusedOpsetsPass):
        clean()(part)
    used = [value for value in part.graph.inputs if value.uses() and value.name not in part.graph.initializers]
    part.graph.inputs.clear()
    part.graph.inputs.extend(used)
    return part


def _forget_inner_inputs(node: ir.Node) -> None:
    for graph in inner_graphs(node):
        for inner in graph:
            _forget_inner_inputs(inner)
            for i in range(len(inner.inputs)):
                inner.replace_input_with(i, None)


def reads(node: ir.Node) -> Iterator[ir.Value]:
    """Yield the values that a node and its subgraphs read, including values of the subgraphs themselves."""
    yield from (value for value in node.inputs if value is not None)
    for graph in inner_graphs(node):
        yield from graph.outputs
        for inner in graph:
            yield from reads(inner)


def _inside(model: ir.Model, group: frozenset[str]) -> Iterator[str]:
    """Names of the values that only nodes of the group read."""
    outputs = {id(value) for value in model.graph.outputs}
    for node in model.graph:
        if node.name in group:
            for value in node.outputs:
                readers = [use.node for use in value.uses()]
                if value.name and readers and id(value) not in outputs and all(n.name in group for n in readers):
                    yield value.name


def slice_of(values: Iterable[ir.Value], known: Collection[str | None]) -> tuple[tuple[str, ...], tuple[ir.Node, ...]]:
    """Return the known values that some values are computed from, and the nodes between."""
    inputs: dict[str, None] = {}
    nodes: dict[ir.Node, None] = {}
    pending = [value.producer() for value in values]
    while pending:
        node = pending.pop()
        if node is None or node in nodes:
            continue
        nodes[node] = None
        for read in reads(node):
            if read.is_initializer():
                continue
            if read.name in known:
                inputs[read.name or ""] = None
            else:
                pending.append(read.producer())
    return tuple(inputs), tuple(nodes)


class _Same:
    """Finds out whether a node of the optimised model is also in the original."""

    def __init__(self, original: ir.Model, optimized: ir.Model, theirs: dict[str, ir.Value]) -> None:
        self._theirs = theirs
        functions = {
            key: _bytes(original.functions[key]) == _bytes(function)
            for key, function in optimized.functions.items()
            if key in original.functions
        }
        self._other_functions = {key for key in (*original.functions, *optimized.functions) if not functions.get(key)}
        # Operators may have another meaning in another version.
        self._other_domains = {
            domain
            for domain, version in optimized.opset_imports.items()
            if original.opset_imports.get(domain, version) != version
        }
        self._equal: dict[tuple[int, int], bool] = {}

    def __call__(self, node: ir.Node) -> bool:
        name = next((value.name for value in node.outputs if value.name), None)
        other = self._theirs[name].producer() if name in self._theirs else None
        if other is None or node.op_identifier() != other.op_identifier() or node.domain in self._other_domains:
            return False
        if node.op_identifier() in self._other_functions or node.attributes.keys() != other.attributes.keys():
            return False
        if [value.name for value in node.outputs] != [value.name for value in other.outputs]:
            return False
        pairs = ((node.attributes[key], other.attributes[key]) for key in node.attributes)
        if not all(a is b or _attribute_bytes(a) == _attribute_bytes(b) for a, b in pairs):
            return False
        first, second = list(_all_reads(node)), list(_all_reads(other))
        return len(first) == len(second) and all(map(self._same_value, first, second))

    def _same_value(self, first: ir.Value | None, second: ir.Value | None) -> bool:
        if first is None or second is None:
            return first is second
        a, b = constant(first), constant(second)
        if a is None or b is None:
            return a is b and first.name == second.name
        if first.is_graph_input() or second.is_graph_input():
            return first.name == second.name and self._same_tensor(a, b)
        return self._same_tensor(a, b)

    def _same_tensor(self, a: ir.TensorProtocol, b: ir.TensorProtocol) -> bool:
        key = (id(a), id(b))
        if key not in self._equal:
            self._equal[key] = a is b or (
                a.dtype == b.dtype and tuple(a.shape) == tuple(b.shape) and a.tobytes() == b.tobytes()
            )
        return self._equal[key]


def _all_reads(node: ir.Node) -> Iterator[ir.Value | None]:
    yield from node.inputs
    inputs = {id(value) for value in node.inputs}
    yield from (value for value in reads(node) if id(value) not in inputs)


def constant(value: ir.Value) -> ir.TensorProtocol | None:
    """Return the tensor of an initializer, even if a run may replace it, or of a Constant node."""
    if value.is_initializer():
        return value.const_value
    producer = value.producer()
    if producer is not None and producer.op_type == "Constant" and "value" in producer.attributes:
        return producer.attributes["value"].as_tensor()
    return None


def _attribute_bytes(attribute: ir.Attr) -> bytes:
    return bytes(ir.serde.serialize_attribute(attribute).SerializeToString(deterministic=True))


def _bytes(function: ir.Function) -> bytes:
    return bytes(ir.to_proto(function).SerializeToString(deterministic=True))
