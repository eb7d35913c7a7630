"""DequantizeLinear of weights in front of operators that run in float, done once.

ONNX Runtime folds no DequantizeLinear, so that weights stored as integers are dequantised in every run unless the
operator that reads them runs in integers, and a convolution whose weights are no constant does not get ONNX Runtime's
blocked layout. Folded, the numbers are the very ones of each run; the weights take up to four times, of 4 bits eight
times the bytes. A table that Gather reads is looked up as integers instead, and the rows that are read are dequantised.

Which products ONNX Runtime runs in integers follows from its selectors (QDQSelectorActionTransformer): by the element
types, and by who reads what is between. Where that is not certain the weights stay as they are.
"""

from __future__ import annotations

import platform
from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from .constants import Array, constant_tensor
from .facts import Facts
from .fused import new_constant
from .names import Names

__all__ = ["LOOKED_UP_AS_INTEGERS", "WEIGHTS_FOLDED", "fold_weights"]

#: What the report calls them, among the rules.
WEIGHTS_FOLDED = "FoldedWeights"
LOOKED_UP_AS_INTEGERS = "TableOfIntegers"

_WIDE = frozenset({ir.DataType.INT16, ir.DataType.UINT16})
_INTEGERS = frozenset(
    {
        *(ir.DataType.INT4, ir.DataType.UINT4, ir.DataType.INT8, ir.DataType.UINT8),
        *(ir.DataType.INT16, ir.DataType.UINT16, ir.DataType.INT32),
    }
)
# What ONNX Runtime moves a QuantizeLinear or DequantizeLinear across, and what it drops in front of a QuantizeLinear.
_MOVED = frozenset({"Identity", "Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "MaxPool", "Slice", "Split"})
_CLIPS = frozenset({"Relu", "Clip"})
# No kernel of ONNX Runtime on the CPU takes integers for these.
_ALWAYS_FLOAT = frozenset(
    {
        *("BatchNormalization", "ConvTranspose", "Div", "Einsum", "GroupNormalization", "InstanceNormalization"),
        *("LayerNormalization", "PRelu", "Pow", "RMSNormalization", "Sub"),
    }
)
# Of the rows of the other factor, for how many a product of floats is faster than MatMulNBits.
_LEAST_ROWS = 16
# A smaller table is as quickly dequantised as its rows are.
_LEAST_TABLE = 1 << 14


def fold_weights(home: ir.Graph, facts: Facts) -> dict[str, int]:
    """Dequantise the weights of a graph and its subgraphs once, where that changes no product; return how many."""
    counts = {WEIGHTS_FOLDED: 0, LOOKED_UP_AS_INTEGERS: 0}
    if home in facts.function_bodies:
        return counts  # they hold no initialisers
    names: Names | None = None
    for node in list(_dequantizers_of_constants(home, facts)):
        names = names or Names(home)
        uses = node.outputs[0].uses()
        if all(_is_lookup(use.node, use.idx, node) for use in uses):
            for use in tuple(uses):
                _look_up_integers(node, use.node, names, facts)
            counts[LOOKED_UP_AS_INTEGERS] += 1
        elif all(_runs_in_float(use.node, use.idx, facts) for use in uses):
            if not _fold(node, names):
                continue
            counts[WEIGHTS_FOLDED] += 1
        else:
            continue
        _remove(node)
    return counts


def _dequantizers_of_constants(home: ir.Graph, facts: Facts) -> Iterator[ir.Node]:
    for graph in (home, *home.subgraphs()):
        for node in graph:
            if node.op_type != "DequantizeLinear" or node.domain not in ("", "com.microsoft"):
                continue
            output = node.outputs[0]
            if not output.uses() or output.is_graph_output() or len(node.inputs) < 2:
                continue
            given = [value for value in node.inputs if value is not None]
            if all(facts.is_constant(value) and _array_of(value) is not None for value in given):
                yield node


def _tensor_of(value: ir.Value | None) -> ir.TensorProtocol | None:
    if value is None:
        return None
    node = value.producer()
    if node is None:
        return value.const_value
    return constant_tensor(node) if node.op_type == "Constant" and node.domain == "" else None


def _array_of(value: ir.Value | None) -> Array | None:
    tensor = _tensor_of(value)
    return None if tensor is None else tensor.numpy()


# Who reads it


def _dequantizer(value: ir.Value | None) -> ir.Node | None:
    """Return the DequantizeLinear that makes a value, or would once ONNX Runtime has moved it."""
    node = None if value is None else value.producer()
    while node is not None and node.op_type in _MOVED and node.domain == "":
        value = node.inputs[0]
        node = None if value is None else value.producer()
    return node if node is not None and node.op_type == "DequantizeLinear" else None


def _type_of(value: ir.Value | None, facts: Facts) -> ir.DataType | None:
    return None if value is None else facts.dtype(value)


def _is_in_pair(quantized: ir.Value) -> bool:
    """Whether one QuantizeLinear makes an int8 tensor and one DequantizeLinear reads it, for one reader in all.

    ONNX Runtime makes uint8 of such a pair on x86 (QDQS8ToU8Transformer), whose kernels take no int8.
    """
    producer, uses = quantized.producer(), tuple(quantized.uses())
    if producer is None or producer.op_type != "QuantizeLinear" or len(uses) != 1 or quantized.is_graph_output():
        return False
    reader = uses[0].node
    result = reader.outputs[0]
    return reader.op_type == "DequantizeLinear" and len(result.uses()) + result.is_graph_output() == 1


def _stays_int8(quantized: ir.Value | None, facts: Facts) -> bool:
    """Whether the tensor is int8 for ONNX Runtime's kernels, which on x86 take none."""
    if platform.machine().lower() not in ("x86_64", "amd64") or quantized is None:
        return False
    return _type_of(quantized, facts) == ir.DataType.INT8 and not _is_in_pair(quantized)


def _quantizer_behind(value: ir.Value) -> ir.Node | None:
    """Return the QuantizeLinear that alone reads a result, or would once ONNX Runtime has moved it."""
    while len(value.uses()) == 1 and not value.is_graph_output():
        reader = next(iter(value.uses())).node
        if reader.op_type == "QuantizeLinear":
            return reader
        if reader.domain != "" or reader.op_type not in _MOVED | _CLIPS:
            return None
        value = reader.outputs[0]
    return None


def _multiplies_in_float(product: ir.Node, facts: Facts) -> bool:
    dequantizer = _dequantizer(product.inputs[0])
    if dequantizer is None or _type_of(dequantizer.inputs[0], facts) in _WIDE:
        return True
    quantizer = _quantizer_behind(product.outputs[0])
    if quantizer is None:
        return product.op_type == "Conv" or _stays_int8(dequantizer.inputs[0], facts)
    result = quantizer.outputs[0]
    if product.op_type == "Gemm":
        return _type_of(result, facts) in _WIDE
    return _type_of(result, facts) in _WIDE or _stays_int8(dequantizer.inputs[0], facts) or _stays_int8(result, facts)


def _has_many_rows(product: ir.Node, facts: Facts) -> bool:
    """Whether a MatMulNBits, which ONNX Runtime makes of a MatMul and weights of two dimensions, would be slower."""
    x = product.inputs[0]
    shape = None if x is None else facts.shape(x)
    if shape is None:
        return False
    rows = 1
    for dim in shape[:-1]:
        rows *= dim if isinstance(dim, int) else _LEAST_ROWS
    return rows >= _LEAST_ROWS


def _runs_in_float(node: ir.Node, position: int, facts: Facts) -> bool:
    """Whether the operator reads the weights as floats, whatever ONNX Runtime makes of it."""
    if node.domain != "":
        return False
    if node.op_type in _ALWAYS_FLOAT:
        return True
    if node.op_type in ("Conv", "Gemm"):
        return position > 0 and _multiplies_in_float(node, facts)
    if node.op_type == "MatMul":
        return position == 1 and _multiplies_in_float(node, facts) and _has_many_rows(node, facts)
    if node.op_type in ("Add", "Mul"):
        other = _dequantizer(node.inputs[1 - position])
        return other is None or _type_of(other.inputs[0], facts) in _WIDE
    return False


# What becomes of it


def _spread(parameter: Array, like: Array, axis: int, block_size: int) -> Array:
    """Return a scale or zero point with a value for each element, or one that broadcasts to that."""
    if parameter.size == 1:
        return parameter.reshape(())
    if block_size > 0:
        return np.take(parameter, np.arange(like.shape[axis]) // block_size, axis=axis)
    return parameter.reshape([-1 if dim == axis % like.ndim else 1 for dim in range(like.ndim)])


def _fold(node: ir.Node, names: Names) -> bool:
    """Put the dequantised weights in the place of a DequantizeLinear; False where its kernel is not known here."""
    source, scale = node.inputs[0], node.inputs[1]
    zero_point = node.inputs[2] if len(node.inputs) > 2 else None
    weights, scales, zeros = _array_of(source), _array_of(scale), _array_of(zero_point)
    tensor = _tensor_of(source)
    if weights is None or scales is None or tensor is None or tensor.dtype not in _INTEGERS:
        return False
    output_type = node.attributes.get_int("output_dtype", 0)
    if scales.dtype != np.float32 or output_type not in (0, int(ir.DataType.FLOAT)):
        return False
    axis, block_size = node.attributes.get_int("axis", 1), node.attributes.get_int("block_size", 0)
    difference = weights.astype(np.int64)
    if zeros is not None:
        difference = difference - _spread(zeros.astype(np.int64), weights, axis, block_size)
    with np.errstate(over="ignore"):
        value = difference.astype(np.float32) * _spread(scales, weights, axis, block_size)
    graph, output = node.graph, node.outputs[0]
    assert isinstance(graph, ir.Graph)
    folded = new_constant(value.astype(np.float32, copy=False), names.new(f"{output.name}.folded"))
    folded.dtype, folded.shape = ir.DataType.FLOAT, ir.Shape(value.shape)
    graph.register_initializer(folded)
    output.replace_all_uses_with(folded)
    return True


def _is_lookup(node: ir.Node, position: int, dequantizer: ir.Node) -> bool:
    table, scale = _tensor_of(dequantizer.inputs[0]), _array_of(dequantizer.inputs[1])
    if node.op_type != "Gather" or node.domain != "" or position != 0 or table is None or scale is None:
        return False
    return scale.size == 1 and table.size >= _LEAST_TABLE and not node.outputs[0].is_graph_output()


def _look_up_integers(dequantizer: ir.Node, gather: ir.Node, names: Names, facts: Facts) -> None:
    """Let a Gather read the integers, and dequantise what it gives."""
    table, result, graph = dequantizer.inputs[0], gather.outputs[0], gather.graph
    assert table is not None
    assert graph is not None
    behind = ir.Node(
        dequantizer.domain,
        "DequantizeLinear",
        [None, *dequantizer.inputs[1:]],
        [each for each in dequantizer.attributes.values() if each.name != "axis"],
        name=names.new(f"{gather.name or 'Gather'}.dequantised"),
    )
    made = behind.outputs[0]
    made.name = names.new(f"{result.name}.dequantised")
    dtype = facts.dtype(result)
    made.type, made.shape = (None if dtype is None else ir.TensorType(dtype)), facts.shape(result)
    result.replace_all_uses_with(made)
    gather.replace_input_with(0, table)
    tensor = _tensor_of(table)
    assert tensor is not None
    result.type = ir.TensorType(tensor.dtype)
    behind.replace_input_with(0, result)
    graph.insert_after(gather, behind)


def _remove(node: ir.Node) -> None:
    """Take a node away that nothing reads any more, and the initialisers that it alone read."""
    graph = node.graph
    assert graph is not None
    inputs = [value for value in node.inputs if value is not None]
    graph.remove(node, safe=True)
    for value in inputs:
        if value.uses() or value.is_graph_input() or value.is_graph_output() or not value.is_initializer():
            continue
        if value.graph is not None and value.name is not None and value.name in value.graph.initializers:
            value.graph.initializers.pop(value.name)
