"""Removal of Q/DQ pairs whose parameters are the same: the float network of a quantised one.

Results change, so this is done only on request. The rounding to steps is removed, the range is not: a quantiser leaves
out a Relu or Clip whose effect its QuantizeLinear has (uint8 with zero point 0 saturates negative values), so a Clip
to the representable range replaces a pair, unless the values are within it anyhow. A Clip of the quantised values, as
Brevitas writes it, narrows that range. Weights are folded afterwards, see `weight_folding`.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import onnx_ir as ir

from normfuse.graph_rewrites.engine.constants import Array
from normfuse.graph_rewrites.engine.facts import Facts, is_float, label, name_of
from normfuse.graph_rewrites.engine.fused import new_constant
from normfuse.graph_rewrites.engine.names import Names
from normfuse.graph_rewrites.engine.passes import Context, KeptPair
from normfuse.graph_rewrites.engine.traversal import graphs_of
from normfuse.graph_rewrites.quantization.weight_folding import array_of, tidy

_INTEGERS = {
    ir.DataType.INT4: (-8, 7),
    ir.DataType.UINT4: (0, 15),
    ir.DataType.INT8: (-128, 127),
    ir.DataType.UINT8: (0, 255),
    ir.DataType.INT16: (-32768, 32767),
    ir.DataType.UINT16: (0, 65535),
}
Range = tuple[float, float]
_ANY: Range = (-math.inf, math.inf)
# Operators whose results lie between the two numbers, whatever their input.
_BOUNDED: dict[str, Range] = {
    **dict.fromkeys(("Sigmoid", "HardSigmoid", "Softmax"), (0.0, 1.0)),
    **dict.fromkeys(("Tanh", "Erf", "Sin", "Cos", "Softsign"), (-1.0, 1.0)),
    **dict.fromkeys(("Abs", "Exp", "Softplus", "Sqrt", "ReduceL2"), (0.0, math.inf)),
}
# Operators that give elements of their first input, or averages of them.
_SELECTING = frozenset(
    {
        *("Identity", "Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "Slice", "Split", "Gather", "Expand"),
        *("MaxPool", "GlobalMaxPool", "GlobalAveragePool", "ReduceMax", "ReduceMin", "ReduceMean", "DepthToSpace"),
        *("SpaceToDepth", "Tile"),
    }
)
_MOST_STEPS = 16
_CLIP_WITH_INPUTS = 11  # the opset from which on Clip takes its bounds as tensors


@dataclasses.dataclass(frozen=True)
class _Pair:
    quantizer: ir.Node
    clip: ir.Node | None
    readers: tuple[ir.Node, ...]
    low: Array
    high: Array
    """The representable range, dequantised: one number, or one for each channel."""

    @property
    def nodes(self) -> list[ir.Node]:
        """All nodes of the pair, the last ones first."""
        return [*self.readers, *([] if self.clip is None else [self.clip]), self.quantizer]


class _NotRemoved(Exception):  # noqa: N818 -- an answer
    """Why a QuantizeLinear is not removed."""


def remove_quantization(home: ir.Graph, context: Context) -> int:
    """Remove the Q/DQ pairs of activations from a graph and its subgraphs; return how many."""
    facts, done, opset = context.facts, context.quantization, context.opset
    names, removed = Names(home), 0
    for node in [node for graph in graphs_of(home) for node in graph]:
        if node.op_type != "QuantizeLinear" or node.domain not in ("", "com.microsoft"):
            continue
        try:
            if home in facts.function_bodies:
                raise _NotRemoved("it is in the body of a function")
            pair = _pair_of(node, facts)
        except _NotRemoved as reason:
            done.kept.append(KeptPair(name_of(node), str(reason)))
            continue
        removed += 1
        if _remove(pair, facts, names, opset):
            done.clipped += 1
        else:
            done.unclipped.append(name_of(node))
    if removed:
        _make_finite(home, names, opset)
    done.removed += removed
    return removed


# Which


def _pair_of(node: ir.Node, facts: Facts) -> _Pair:
    x, quantized = node.inputs[0], node.outputs[0]
    scale, zero_point = _parameters(node, facts)
    dtype = ir.DataType.UINT8 if zero_point is None else ir.DataType.from_numpy(zero_point.dtype)
    if x is None or facts.is_constant(x):
        raise _NotRemoved("what it quantises is constant")
    if not is_float(facts.dtype(x) or ir.DataType.from_numpy(scale.dtype)):
        raise _NotRemoved(f"it quantises {facts.dtype(x)}")
    if dtype not in _INTEGERS:
        raise _NotRemoved(f"it quantises to {dtype}")
    readers = _readers_of(quantized)
    clip = readers[0] if len(readers) == 1 and readers[0].op_type == "Clip" else None
    ends = _INTEGERS[dtype]
    if clip is not None and clip.inputs[0] is quantized:
        ends = _clipped_ends(clip, ends, facts)
        quantized = clip.outputs[0]
        readers = _readers_of(quantized)
    for reader in readers:
        if reader.op_type != "DequantizeLinear" or reader.inputs[0] is not quantized:
            raise _NotRemoved(f"{label(reader)} reads its integers")
        if not _is_inverse(reader, node, (scale, zero_point), facts):
            raise _NotRemoved(f"{label(reader)} has other parameters")
    low, high = _representable(ends, scale, zero_point)
    if scale.size > 1:
        axis = node.attributes.get_int("axis", 1)
        rank = facts.rank(x)
        if rank is None or node.attributes.get_int("block_size", 0) > 0 or scale.ndim != 1:
            raise _NotRemoved(
                "it has a scale for each block" if rank is not None else f"the rank of {label(x)} is not known"
            )
        shape = [-1 if dim == axis % rank else 1 for dim in range(rank)]
        low, high = low.reshape(shape), high.reshape(shape)
    return _Pair(node, clip, readers, low, high)


def _readers_of(quantized: ir.Value) -> tuple[ir.Node, ...]:
    if quantized.is_graph_output():
        raise _NotRemoved(f"{label(quantized)} is an output of the graph")
    readers = tuple(dict.fromkeys(use.node for use in quantized.uses()))
    if not readers:
        raise _NotRemoved("nothing reads it")
    return readers


def _clipped_ends(clip: ir.Node, ends: tuple[int, int], facts: Facts) -> tuple[int, int]:
    """Return the range of quantised values after a Clip; if its bounds are crossed, the upper one for both."""
    bounds = [*clip.inputs[1:], None, None][:2]
    given = [array_of(value) if value is not None and facts.is_constant(value) else None for value in bounds]
    if any(
        value is not None and (array is None or array.size != 1) for value, array in zip(bounds, given, strict=True)
    ):
        raise _NotRemoved(f"the bounds of {label(clip)} are not constant")
    low, high = (end if array is None else int(array.item()) for end, array in zip(ends, given, strict=True))
    return min(low, high), high


def _parameters(node: ir.Node, facts: Facts) -> tuple[Array, Array | None]:
    """Return scale and zero point of a QuantizeLinear or DequantizeLinear."""
    given = [value for value in node.inputs[1:3] if value is not None]
    arrays = [array_of(value) if facts.is_constant(value) else None for value in given]
    scale, zero_point = (*arrays, None)[:2]
    if scale is None or any(array is None for array in arrays):
        raise _NotRemoved(f"the parameters of {label(node)} are not constant")
    stored = node.attributes.get_int("output_dtype", 0)
    if zero_point is None and stored and node.op_type == "QuantizeLinear":
        zero_point = np.zeros(scale.shape, ir.DataType(stored).numpy())
    return scale, zero_point


def _is_inverse(reader: ir.Node, quantizer: ir.Node, parameters: tuple[Array, Array | None], facts: Facts) -> bool:
    scale, zero_point = parameters
    own_scale, own_zero_point = _parameters(reader, facts)
    if not _equal(scale, own_scale) or reader.attributes.get_int("output_dtype", 0) not in (0, _type_of(scale)):
        return False
    x = facts.dtype(quantizer.inputs[0])
    if x is not None and int(x) != _type_of(scale):
        return False
    same = (("axis", 1), ("block_size", 0)) if scale.size > 1 else ()
    if any(reader.attributes.get_int(name, least) != quantizer.attributes.get_int(name, least) for name, least in same):
        return False
    if zero_point is None or own_zero_point is None:
        return not any(each is not None and each.astype(bool).any() for each in (zero_point, own_zero_point))
    return _equal(zero_point, own_zero_point)


def _type_of(array: Array) -> int:
    return int(ir.DataType.from_numpy(array.dtype))


def _equal(a: Array, b: Array) -> bool:
    return a.dtype == b.dtype and (a.shape == b.shape or a.size == b.size == 1) and bool((a == b).all())


def _representable(ends: tuple[int, int], scale: Array, zero_point: Array | None) -> tuple[Array, Array]:
    zero = np.zeros((), np.int64) if zero_point is None else zero_point.astype(np.int64)
    steps = scale.astype(np.float32)
    with np.errstate(over="ignore"):
        low, high = (((end - zero).astype(np.float32) * steps).astype(scale.dtype) for end in ends)
    return (low, high) if scale.size > 1 else (low.reshape(()), high.reshape(()))


# Within which range values are


def _range_of(value: ir.Value | None, facts: Facts, steps: int = _MOST_STEPS) -> Range:
    """Return a lower and an upper bound of the elements of a tensor."""
    node = None if value is None else value.producer()
    if node is None or node.domain != "" or steps == 0:
        return _ANY
    if node.op_type in _BOUNDED:
        return _BOUNDED[node.op_type]
    if node.op_type in _SELECTING:
        return _range_of(node.inputs[0], facts, steps - 1)
    if node.op_type == "Concat":
        ranges = [_range_of(source, facts, steps // 2) for source in node.inputs]
        return min(low for low, _ in ranges), max(high for _, high in ranges)
    if node.op_type == "Relu":
        low, high = _range_of(node.inputs[0], facts, steps - 1)
        return max(low, 0.0), max(high, 0.0)
    least, most = facts.clip_bounds(node) if node.op_type == "Clip" else _ANY
    return -math.inf if least is None else least, math.inf if most is None else most


def _is_within(found: Range, pair: _Pair, scale: float) -> bool:
    """Whether saturation changes nothing beyond rounding."""
    low, high = found
    slack = scale / 2
    return bool((low >= pair.low - slack).all() and (high <= pair.high + slack).all())


# What becomes of it


def _remove(pair: _Pair, facts: Facts, names: Names, opset: int) -> bool:
    """Let the readers of a pair read its input, clipped if that matters; return whether it is clipped."""
    x = pair.quantizer.inputs[0]
    assert x is not None
    scale = array_of(pair.quantizer.inputs[1])
    assert scale is not None
    clipped = not _is_within(_range_of(x, facts), pair, float(scale.min()))
    if clipped:
        x = _clip(x, pair, facts, names, opset)
    for reader in pair.readers:
        _replace(reader, x, names)
    tidy(pair.nodes)
    return clipped


def _replace(reader: ir.Node, x: ir.Value, names: Names) -> None:
    """Replace the result of a DequantizeLinear by a tensor; an output of a graph keeps its name."""
    result, graph = reader.outputs[0], reader.graph
    assert graph is not None
    if not result.is_graph_output():
        result.replace_all_uses_with(x)
        return
    node = ir.Node("", "Identity", (x,), name=names.new(f"{name_of(reader)}.float"))
    value = node.outputs[0]
    value.type, value.shape, value.name = result.type, result.shape, result.name
    graph.insert_before(reader, node)
    result.replace_all_uses_with(value, replace_graph_outputs=True)


def _clip(x: ir.Value, pair: _Pair, facts: Facts, names: Names, opset: int) -> ir.Value:
    """Insert nodes that clip a tensor to the range of a pair; return their result."""
    for node in _clipping(x, (pair.low, pair.high), names, opset):
        dtype, result = facts.dtype(x), node.outputs[0]
        result.type, result.shape = (None if dtype is None else ir.TensorType(dtype)), facts.shape(x)
        graph = pair.quantizer.graph
        assert isinstance(graph, ir.Graph)
        graph.insert_before(pair.quantizer, node)
        _register_constants(node, graph)
        x = result
    return x


def _register_constants(node: ir.Node, graph: ir.Graph) -> None:
    for value in node.inputs[1:]:
        assert value is not None
        graph.register_initializer(value)


def _clipping(x: ir.Value, ends: tuple[Array, Array], names: Names, opset: int) -> list[ir.Node]:
    """Return nodes that clip a tensor to a range, with constants that are in no graph yet."""
    name, (low, high) = str(x.name), ends

    def node(op_type: str, source: ir.Value, *arrays: Array, **attributes: float) -> ir.Node:
        constants = [new_constant(array, names.new(f"{name}.bound")) for array in arrays]
        given = [ir.AttrFloat32(key, value) for key, value in attributes.items()]
        made = ir.Node("", op_type, (source, *constants), given, name=names.new(f"{name}.{op_type}"))
        made.outputs[0].name = names.new(f"{name}.range")
        return made

    if low.ndim:
        above = node("Max", x, low)
        return [above, node("Min", above.outputs[0], high)]
    if opset >= _CLIP_WITH_INPUTS:
        return [node("Clip", x, low, high)]
    return [node("Clip", x, min=float(low), max=float(high))]


def _make_finite(home: ir.Graph, names: Names, opset: int) -> None:
    """Clip constants that overflow when they are dequantised, as the lowest float32 of attention masks does.

    An infinity may lead to NaN, which the removed QuantizeLinear turned into a number.
    """
    for graph in graphs_of(home):
        for node in tuple(graph):
            if node.op_type != "DequantizeLinear" or len(node.inputs) < 2 or node.outputs[0].is_graph_output():
                continue
            quantized, scale = array_of(node.inputs[0]), array_of(node.inputs[1])
            if quantized is None or scale is None or not _may_overflow(quantized, scale):
                continue
            largest = np.asarray(ir.DataType.from_numpy(scale.dtype).max, scale.dtype)
            uses = tuple(node.outputs[0].uses())
            (clip,) = _clipping(node.outputs[0], (-largest, largest), names, opset)
            for use in uses:
                use.node.replace_input_with(use.idx, clip.outputs[0])
            graph.insert_after(node, clip)
            _register_constants(clip, graph)


def _may_overflow(quantized: Array, scale: Array) -> bool:
    limits = ir.DataType.from_numpy(quantized.dtype)
    distance = float(limits.max) - float(limits.min)
    return bool(distance * float(np.abs(scale).max()) > float(ir.DataType.from_numpy(scale.dtype).max))
