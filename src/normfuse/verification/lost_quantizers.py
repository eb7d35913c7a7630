"""Quantisations that an optimised model does not do any more.

Taking one out moves results by less than the rounding of all the others does: no comparison of numbers tells it from
that. But each has a scale of its own, as a rule, and a model in which nothing reads that scale does not do it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import onnx_ir as ir

from normfuse.spec import OPERATOR_DOMAIN, labels_of, read_program

__all__ = ["lost_quantizers"]

# Stands among the rules of a node for which a requantisation inside a chain was removed, as the user allowed.
_ALLOWED = "requantization removed"
_RULES = "normfuse.rules"
# A scale has at most so many elements; a larger tensor is none that is compared here.
_MOST_ELEMENTS = 1 << 16

# Steps that quantise.
_QUANTISING = ("FakeQuantize", "Quantize", "Requantize")

_Key = tuple[float, ...]


def lost_quantizers(original: ir.Model, optimized: ir.Model) -> list[str]:
    """Return the names of the original's QuantizeLinear nodes that the optimised model does not do any more.

    Those are nodes with a scale that fewer nodes read there, steps of normfuse's nodes counted each. Of what quantises
    the same tensor twice, one is enough; weights that the original quantises may have been quantised once. None where
    the model says of itself that some were removed.
    """
    wanted: dict[_Key, list[ir.Node]] = {}
    for node in _nodes(original):
        is_one = node.op_type == "QuantizeLinear" and _is_read(node) and not _is_constant(node.inputs[0])
        key = _key(node.inputs[1]) if is_one else None
        if key is not None and not any(_is_twin(node, other) for other in wanted.get(key, ())):
            wanted.setdefault(key, []).append(node)
    if not wanted or any(_ALLOWED in node.metadata_props.get(_RULES, "") for node in _nodes(optimized)):
        return []
    readers = _readers(optimized)
    computed = {value.name for node in _nodes(optimized) for value in node.outputs}
    lost: list[str] = []
    for key, nodes in wanted.items():
        if len(nodes) > readers[key]:
            gone = [node for node in nodes if node.outputs[0].name not in computed]
            lost += [node.name or str(node.outputs[0].name) for node in gone or nodes]
    return lost


def _readers(model: ir.Model) -> Counter[_Key]:
    """Return for each scale how many nodes may quantise with it."""
    known: dict[ir.Value, _Key | None] = {}
    found: Counter[_Key] = Counter()
    for node in _nodes(model):
        if node.op_type == "DequantizeLinear" and node.domain != OPERATOR_DOMAIN:
            continue
        for value in _quantising(node):
            if value not in known:
                known[value] = _key(value)
            key = known[value]
            if key is not None:
                found[key] += 1
    return found


def _quantising(node: ir.Node) -> Iterator[ir.Value]:
    """Yield the inputs of a node that it may quantise with: of one of normfuse's the scales of steps that do."""
    inputs = list(node.inputs)
    if node.domain == OPERATOR_DOMAIN:
        program = node.attributes.get("steps")
        steps = () if program is None else read_program(program.as_string())
        labels = labels_of(steps)
        scales = [labels.index(step.arguments["scale"]) + 1 for step in steps if step.name in _QUANTISING]
        inputs = [node.inputs[index] for index in scales if index < len(node.inputs)]
    yield from (value for value in inputs if value is not None)


def _is_twin(node: ir.Node, other: ir.Node) -> bool:
    return node.inputs[0] is other.inputs[0] and node.outputs[0].dtype == other.outputs[0].dtype


def _nodes(model: ir.Model) -> Iterator[ir.Node]:
    for graph in (*model.graphs(), *model.functions.values()):
        yield from graph


def _is_read(node: ir.Node) -> bool:
    return any(value.uses() or value.is_graph_output() for value in node.outputs)


def _is_constant(value: ir.Value | None) -> bool:
    return value is not None and ir.convenience.get_const_tensor(value) is not None


def _key(value: ir.Value | None) -> _Key | None:
    """Return the numbers of a constant, whatever its shape and type; None: it is none, or not a scale."""
    if value is None:
        return None
    node = value.producer()
    tensor = value.const_value
    if node is not None and node.op_type == "Constant" and "value" in node.attributes:
        tensor = node.attributes["value"].as_tensor()
    if tensor is None or tensor.size > _MOST_ELEMENTS or not tensor.dtype.is_floating_point():
        return None
    return tuple(float(number) for number in tensor.numpy().ravel())
