"""The exact values of a site: the original's own nodes in float64, by onnx's reference implementation.

A value may be so near to a rounding tie of a quantiser that its own rounding error decides, and so may the exact value:
the result is a range, for which each quantiser rounds slightly higher and slightly lower values.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias, TypeVar

import numpy as np
import onnx
import onnx_ir as ir
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from normfuse.graph_rewrites.engine.traversal import inner_graphs
from normfuse.meaning import INTEGER_RANGE, dequantize, dtype_code, dtype_of, expand_parameter
from normfuse.verification.budget import Budget, OutOfTime
from normfuse.verification.diff_sites import DiffSite, reads

_FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16)
_QUANTIZERS = ("QuantizeLinear", "DynamicQuantizeLinear")
# The directions in which one quantiser and the next round.
_DIRECTIONS = ((-1, -1), (1, 1), (-1, 1), (1, -1))
# How far a value may be from what is quantised exactly: in steps, more where a kernel's activation may be less exact,
# relative to its own size what float32 may be, and at most so many steps of what the original itself is off.
_STEPS_OFF = 0.0001
_STEPS_OFF_ACTIVATED = 0.001
_ACTIVATIONS = {"Erf", "Exp", "FastGelu", "Gelu", "Mish", "Sigmoid", "Softplus", "Swish", "Tanh"}
_FLOAT32_OFF = 2.0**-21
_MOST_OFF = 0.25
# Larger sites take too long, as do loops.
_MOST_NODES = 200
_MOST_ELEMENTS = 1 << 24

Arrays: TypeAlias = Mapping[str, Any]
_Proto = TypeVar("_Proto", onnx.GraphProto, onnx.FunctionProto)


class ExactRange:
    """The range of the exact value of each element.

    Attributes:
        low: The least.
        high: The largest.
    """

    def __init__(self, values: list[np.ndarray]) -> None:
        """Take the values for each direction of rounding."""
        self.low = np.minimum.reduce(values)
        self.high = np.maximum.reduce(values)

    def distance(self, result: np.ndarray) -> np.ndarray:
        """Return each element's distance from the range; infinite for a NaN or an infinity on one side only."""
        got = result.astype(np.float64)
        with np.errstate(invalid="ignore", over="ignore"):
            distance = np.array(np.maximum(np.maximum(self.low - got, got - self.high), 0.0))
            ends = [end.astype(result.dtype).astype(np.float64) for end in (self.low, self.high)]
        same = [(got == end) | (np.isnan(got) & np.isnan(end)) for end in ends]
        distance[same[0] | same[1]] = 0.0
        distance[np.isnan(distance)] = np.inf
        return distance


def quantizer_inputs(site: DiffSite) -> list[str]:
    """Return the names of the values that a site quantises: their error in the original decides what is near a tie."""
    read = (node.inputs[0] for node in site.nodes if _is_quantizer(node))
    return [value.name for value in read if value is not None and value.name and not value.is_initializer()]


def exact_range(
    site: DiffSite, model: ir.Model, known: Arrays, budget: Budget, *, may_skip: bool = False
) -> ExactRange | None:
    """Return the exact results of a site of the original from known values; None: they cannot be computed.

    Args:
        site: The site.
        model: The original.
        known: Values by name: what the site reads, and what it quantises.
        budget: The time that there is.
        may_skip: Quantisations on the way may be left out.

    Raises:
        OutOfTime: It did not last.
    """
    if len(site.nodes) > _MOST_NODES or any(known[name].size > _MOST_ELEMENTS for name in site.original_inputs):
        return None
    nodes = site.all_nodes(model)
    inner = [each for node in nodes for graph in inner_graphs(node) for each in graph]
    if any(node.op_type != "If" and inner_graphs(node) for node in nodes) or any(map(_is_quantizer, inner)):
        return None  # the reference implementation would compute loops in their own types
    directions = _DIRECTIONS if any(map(_is_quantizer, site.nodes)) else _DIRECTIONS[:1]
    try:
        values = [_Exact(site, model, known, budget, each).of(site.original) for each in directions]
        if may_skip:
            unrounded = _Exact(site, model, known, budget, None).of(site.original)
            # If the result is quantised, it was rounded last.
            half = 0.0 if known[site.value].dtype.kind == "f" else 0.5 + _STEPS_OFF_ACTIVATED
            values += [unrounded - half, unrounded + half]
        return ExactRange([np.asarray(value, np.float64) for value in values])
    except OutOfTime:
        raise
    except Exception:  # the reference implementation reports what it lacks by any exception
        return None


def in_float16(site: DiffSite, model: ir.Model, known: Arrays, budget: Budget) -> np.ndarray | None:
    """Return the results of a float16 site if each operator rounds its result; None for any other site.

    ONNX Runtime's CPU provider has few operators in float16: in the original it computes consecutive ones
    in float32, and rounds less often than the model says.

    Raises:
        OutOfTime: The time did not last.
    """
    nodes = site.all_nodes(model)
    dtypes = {known[name].dtype for name in (site.value, *site.original_inputs) if known[name].dtype.kind == "f"}
    casts = {node.attributes.get_int("to", 0) for node in nodes if node.op_type == "Cast"}
    if dtypes != {np.dtype(np.float16)} or not casts <= {TensorProto.FLOAT16} or any(map(_is_quantizer, nodes)):
        return None
    try:
        return _Exact(site, model, known, budget, None, np.float16).of(site.original)
    except OutOfTime:
        raise
    except Exception:  # as above
        return None


def _is_quantizer(node: ir.Node) -> bool:
    return node.op_type in _QUANTIZERS


class _Exact:
    """Computes values of one site."""

    def __init__(
        self,
        site: DiffSite,
        model: ir.Model,
        known: Arrays,
        budget: Budget,
        directions: tuple[int, int] | None,
        stored: type[np.floating] = np.float64,
    ) -> None:
        self._model = model
        self._known = known
        self._budget = budget
        self._directions = None if directions is None else itertools.cycle(directions)
        self._stored = stored
        self._values: dict[ir.Value, np.ndarray] = {}
        self._given = {name: _double(known[name]) for name in site.original_inputs}
        activated = not _ACTIVATIONS.isdisjoint(node.op_type for node in site.nodes)
        self._off = _STEPS_OFF_ACTIVATED if activated else _STEPS_OFF

    def of(self, value: ir.Value) -> np.ndarray:
        if value.name in self._given:
            return self._given[value.name]
        if value not in self._values:
            node = value.producer()
            if node is None:
                assert value.const_value is not None
                self._values[value] = _double(value.const_value.numpy())
            else:
                self._run(node)
        return self._values[value]

    def _run(self, node: ir.Node) -> None:
        if node.op_type == "If":
            taken = all(np.all(self.of(value)) for value in node.inputs if value is not None)
            chosen = "then_branch" if taken else "else_branch"
            for value, result in zip(node.outputs, node.attributes[chosen].as_graph().outputs, strict=True):
                self._values[value] = self.of(result)
            return
        inputs = {value.name or "": self.of(value) for value in reads(node)}
        if self._budget.is_spent:
            raise OutOfTime(self._budget.message)
        operands = [None if value is None else inputs[value.name or ""] for value in node.inputs]
        results: tuple[np.ndarray, ...]
        with np.errstate(all="ignore"):
            if node.op_type == "QuantizeLinear":
                results = (self._quantized(node, *operands),)
            elif node.op_type == "DequantizeLinear":
                results = (_dequantized(node, *operands),)
            elif node.op_type == "DynamicQuantizeLinear":
                results = self._quantized_dynamically(*operands)
            else:
                results = self._by_reference(node, inputs)
            results = tuple(_double(each.astype(self._stored)) if each.dtype.kind == "f" else each for each in results)
        self._values.update(zip((value for value in node.outputs if value.name), results, strict=True))

    def _by_reference(self, node: ir.Node, inputs: Mapping[str, np.ndarray]) -> tuple[np.ndarray, ...]:
        graph = onnx.GraphProto(name="site", node=[ir.serde.serialize_node(node)])
        graph.input.extend(onnx.ValueInfoProto(name=name) for name in inputs)
        named = [value.name for value in node.outputs if value.name]
        graph.output.extend(onnx.ValueInfoProto(name=name) for name in named)
        functions: list[ReferenceEvaluator | onnx.FunctionProto] = []
        if node.op_identifier() in self._model.functions:
            functions += [_in_double(ir.to_proto(function)) for function in self._model.functions.values()]
        opsets = dict(self._model.opset_imports)
        results: Any = ReferenceEvaluator(_in_double(graph), opsets=opsets, functions=functions).run(None, dict(inputs))
        return tuple(np.asarray(result) for result in results)

    def _quantized(self, node: ir.Node, x: Any, scale: Any, zero: Any = None) -> np.ndarray:
        code = node.attributes.get_int("output_dtype", 0) or TensorProto.UINT8 if zero is None else dtype_code(zero)
        zero = np.zeros(()) if zero is None else zero.astype(np.float64)
        scale, zero = (expand_parameter(each, x.shape, *_layout(node)) for each in (scale, zero))
        steps = x / scale
        off = self._off + np.abs(steps) * _FLOAT32_OFF
        own = self._known.get(getattr(node.inputs[0], "name", None) or "")
        if own is not None and own.dtype.kind == "f":
            off += np.abs(steps) * float(np.finfo(own.dtype).eps) / 2
            missed = np.abs(_double(own) / scale - steps)
            off += np.minimum(2 * (missed.max(axis=-1, keepdims=True, initial=0.0) if x.ndim else missed), _MOST_OFF)
        stored: np.ndarray = np.clip(self._rounded(steps, off) + zero, *INTEGER_RANGE[code])
        return stored if self._directions is None else stored.astype(dtype_of(code))

    def _quantized_dynamically(self, x: Any) -> tuple[np.ndarray, ...]:
        low, high = min(float(x.min(initial=0.0)), 0.0), max(float(x.max(initial=0.0)), 0.0)
        scale = np.asarray((high - low) / 255 or 1.0)
        zero = np.clip(self._rounded(np.asarray(-low / scale), self._off), 0, 255)
        stored = np.clip(self._rounded(x / scale, self._off) + zero, 0, 255)
        return stored.astype(np.uint8), scale, zero.astype(np.uint8)

    def _rounded(self, steps: np.ndarray, off: Any) -> np.ndarray:
        """Round values that may be off by so much to integers, in the current direction."""
        return steps if self._directions is None else np.rint(steps + next(self._directions) * off)


def _dequantized(node: ir.Node, x: Any, scale: Any, zero: Any = None) -> np.ndarray:
    return dequantize(x, scale, zero, *_layout(node))


def _layout(node: ir.Node) -> tuple[int, int]:
    return node.attributes.get_int("axis", 1), node.attributes.get_int("block_size", 0)


def _double(array: Any) -> np.ndarray:
    values = np.asarray(array)
    return values.astype(np.float64) if values.dtype.kind == "f" or values.dtype.name == "bfloat16" else values


def _in_double(proto: _Proto) -> _Proto:
    for node in _nodes(list(proto.node)):
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.TENSOR and attribute.t.data_type in _FLOATS:
                wide = numpy_helper.to_array(attribute.t).astype(np.float64)
                attribute.t.CopyFrom(numpy_helper.from_array(wide, attribute.t.name))
            elif attribute.name in ("to", "dtype") and attribute.i in _FLOATS:
                attribute.i = TensorProto.DOUBLE
            elif attribute.name == "value_float" and node.op_type == "Constant":
                attribute.CopyFrom(
                    helper.make_attribute("value", numpy_helper.from_array(np.asarray(attribute.f, np.float64)))
                )
        kept = [a for a in node.attribute if not (node.op_type == "DequantizeLinear" and a.name == "output_dtype")]
        del node.attribute[:]
        node.attribute.extend(kept)
    return proto


def _nodes(nodes: list[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    for node in nodes:
        yield node
        for attribute in node.attribute:
            for graph in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
                yield from _nodes(list(graph.node))
