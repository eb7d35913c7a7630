"""Activations that are single nodes, read by the activation table."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import onnx_ir as ir

from normfuse.graph_rewrites.engine.facts import Facts, label
from normfuse.graph_rewrites.engine.fused import Activation, Fused
from normfuse.graph_rewrites.engine.pattern import node_of
from normfuse.graph_rewrites.engine.rule import FusionRule
from normfuse.graph_rewrites.engine.sites import Declined
from normfuse.spec import ACTIVATIONS, ActivationSpelling

_SPELLINGS: dict[tuple[str, str], list[tuple[str, ActivationSpelling]]] = {}
for _name, _row in ACTIVATIONS.items():
    for _spelling in _row.spellings:
        _SPELLINGS.setdefault((_spelling.domain, _spelling.op_type), []).append((_name, _spelling))

# What formulas are written with is no activation by itself.
_PARTS = {key for key, known in _SPELLINGS.items() if all(spelling.is_part for _, spelling in known)}
#: Every operator that is an activation by itself, and the domains they are in.
ACTIVATION_OPERATORS = tuple(sorted({key[1] for key in _SPELLINGS if key not in _PARTS}))
ACTIVATION_DOMAINS = tuple(sorted({domain for domain, _ in _SPELLINGS}))
_PRODUCTS = ("Conv", "Gemm", "MatMul")
_ROUNDS = ("DequantizeLinear", "QuantizeLinear")
# Finite numbers of the float types.
_LARGEST = {
    ir.DataType.FLOAT16: 65504.0,
    ir.DataType.BFLOAT16: float.fromhex("0x1.fep127"),
    ir.DataType.FLOAT: float.fromhex("0x1.fffffep127"),
}
_WRITTEN_OUT = ("Gelu", "GeluTanh", "HardSwish", "Mish", "Swish")
_ALSO_WRITTEN_OUT = tuple(
    sorted({spelling.op_type for name in _WRITTEN_OUT for spelling in ACTIVATIONS[name].spellings})
)


def is_activation(node: ir.Node) -> bool:
    """True for an operator that is an activation by its name, whether or not its attributes can be taken."""
    key = (node.domain, node.op_type)
    return key in _SPELLINGS and key not in _PARTS


def may_go_on(node: ir.Node) -> bool:
    """True for what formulas are written with, unless no more than products read it: a formula may go on with it."""
    return (node.domain, node.op_type) in _PARTS and not _only_products_read(node)


def _only_products_read(node: ir.Node) -> bool:
    readers = [reader for value in node.outputs for reader in value.consumers()]
    return all(
        reader.op_type in _PRODUCTS or (reader.op_type in _ROUNDS and _only_products_read(reader)) for reader in readers
    )


def read_activation(node: ir.Node, facts: Facts, opsets: Mapping[str, int]) -> tuple[Activation, ir.Value | None]:
    """Return the activation that a single node is, by the activation table, and the bias it adds before (BiasGelu).

    Raises:
        Declined: a parameter is not constant, or the node means something else at this opset.
    """
    version = opsets.get(node.domain, 1)
    for name, spelling in _SPELLINGS.get((node.domain, node.op_type), ()):
        if not (spelling.since <= version <= (spelling.until or version)):
            continue
        if any(_string(node, attribute) != wanted for attribute, wanted in spelling.when.items()):
            continue
        # An infinite default, Clip's, is the type's lowest or largest number in ONNX.
        largest = _largest(facts.dtype(node.inputs[0]))
        parameters = {
            key: math.copysign(largest, value) if math.isinf(value) else value
            for key, value in spelling.defaults.items()
        }
        for attribute, parameter in spelling.attributes.items():
            given = node.attributes.get(attribute)
            if given is not None:
                if given.is_ref():
                    raise Declined("parameter_not_constant", parameter=f"attribute {attribute}", node=label(node))
                parameters[parameter] = given.as_float()
        for value, parameter in zip(node.inputs[1:], spelling.inputs, strict=False):
            if value is not None:
                scalar = facts.scalar(value)
                if scalar is None:
                    raise Declined("parameter_not_constant", parameter=label(value), node=label(node))
                parameters[parameter] = scalar
        slope = node.inputs[1] if ACTIVATIONS[name].has_slope else None
        bias = node.inputs[1] if spelling.has_bias and len(node.inputs) > 1 else None
        return Activation.of(name, slope, **parameters), bias
    raise Declined("unsupported_operator", op_type=f"{node.op_type} of opset {version}", where="as an activation")


def _largest(dtype: ir.DataType | None) -> float:
    return _LARGEST.get(dtype or ir.DataType.FLOAT, _LARGEST[ir.DataType.FLOAT])


def _string(node: ir.Node, attribute: str) -> str:
    given = node.attributes.get(attribute)
    if given is None:
        return "none"
    return "" if given.is_ref() else given.as_string()


def any_activation(op: Any, *inputs: Any, output: str, parts: bool = False) -> Any:
    """Return the pattern of any single node of the activation table.

    `parts`: of those that formulas are written with, too.
    """
    operators = (*ACTIVATION_OPERATORS, *sorted({op_type for _, op_type in _PARTS if parts}))
    return node_of(ACTIVATION_DOMAINS, operators)(*inputs, _allow_other_inputs=True, _outputs=[output])


class NodeActivation(FusionRule):
    """One node that computes what exporters also write out: newer opsets and ONNX Runtime's own optimiser have it.

    So a model is seen as it was before another tool inlined our functions or ONNX Runtime fused their bodies.

    Before::

        Y = BiasGelu(x, bias)

    After::

        Y = FusedActivation(x, bias, steps="Add bias; Gelu")
    """

    def pattern(self, op: Any, x: Any) -> Any:
        nodes = node_of(ACTIVATION_DOMAINS, _ALSO_WRITTEN_OUT)
        return nodes(x, _allow_other_inputs=True, _outputs=["activated"])

    def check(self, root: ir.Node, x: ir.Value, **_: Any) -> Fused:
        self.require_float(x, "FusedActivation")
        activation, bias = read_activation(root, self.facts, self.facts.opsets)
        if bias is not None:
            self.facts.require_fits(bias, x, "bias")
        fused = Fused("FusedActivation", {"X": x})
        fused.put_affine(None, bias)
        fused.activate(activation)
        return fused
