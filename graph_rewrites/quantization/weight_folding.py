"""Constant folding of DequantizeLinear nodes whose weights are read by operators that run in float.

ONNX Runtime folds no DequantizeLinear, so quantised weights are dequantised in every run unless the operator that reads
them runs in integers, and a convolution whose weights are no constant does not get ONNX Runtime's blocked layout.
Folding gives exactly the same numbers; the weights take up to four times the memory (of 4 bits eight times). A table
that Gather reads is not folded: Gather reads the quantised table, and only its result is dequantised.

Which products ONNX Runtime runs in integers follows from its selectors (QDQSelectorActionTransformer): from the element
types, and from the readers of the tensors between. Where that is not certain, weights are not folded.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Iterator

import numpy as np
import onnx_ir as ir

from normfuse.graph_rewrites.engine.constants import Array, constant_tensor
from normfuse.graph_rewrites.engine.dequantization import is_dequantizer
from normfuse.graph_rewrites.engine.facts import Facts
from normfuse.graph_rewrites.engine.fused import new_constant
from normfuse.graph_rewrites.engine.names import Names
from normfuse.graph_rewrites.engine.passes import Context
from normfuse.graph_rewrites.engine.traversal import graphs_of
from normfuse.spec import OPERATOR_DOMAIN

# Operators that quantise float weights in a model, and the quantised types that are known here.
_QUANTIZERS = frozenset({"Clip", "QuantizeLinear"})
_CODES = frozenset({ir.DataType.INT8, ir.DataType.UINT8, ir.DataType.INT16, ir.DataType.UINT16})
_WIDE = frozenset({ir.DataType.INT16, ir.DataType.UINT16})
_INTEGERS = frozenset(
    {
        *(ir.DataType.INT4, ir.DataType.UINT4, ir.DataType.INT8, ir.DataType.UINT8),
        *(ir.DataType.INT16, ir.DataType.UINT16, ir.DataType.INT32),
    }
)
# ONNX Runtime quantises their float weights to int8 between a DequantizeLinear and a QuantizeLinear; it fuses MatMul
# and Add to a Gemm first.
_QUANTIZED_AGAIN = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})
# Operators that it fuses into such an operator first, or removes before the QuantizeLinear.
_JOINED = frozenset({"Add", "BatchNormalization", "Clip", "Dropout", "Mul", "Pad", "Relu"})
# Operators that ONNX Runtime moves a Q or DQ node across, and those that it removes before a QuantizeLinear.
_MOVED = frozenset({"Identity", "Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "MaxPool", "Slice", "Split"})
_CLIPS = frozenset({"Relu", "Clip"})
# ONNX Runtime has no quantised kernel for these on the CPU.
_ALWAYS_FLOAT = frozenset(
    {
        *("BatchNormalization", "ConvTranspose", "Div", "Einsum", "GroupNormalization", "InstanceNormalization"),
        *("LayerNormalization", "PRelu", "Pow", "RMSNormalization", "Sub"),
    }
)
# Bits of the weights -> rows of the other factor from which on a float product is faster than MatMulNBits.
_LEAST_ROWS = {4: 64, 8: 16}
# An unknown size may be the length of a sequence, or 1: see _unknown_size.
_SEQUENCE = 16
# Dequantising a smaller table takes no longer than dequantising the rows that are read.
_LEAST_TABLE = 1 << 14


def fold_weights(home: ir.Graph, context: Context) -> int:
    """Dequantise the weights of a graph and its subgraphs once, where that changes no product; return how many."""
    facts, done, folding = context.facts, context.weights, context.options.fold_weights
    done.host_quantizes = _relies_on_host(home, facts)
    if folding == "never":
        return 0
    if folding == "session" and done.host_quantizes:
        folding = "file"
    names, known = Names(home), dict[object, ir.Value]()
    for node in list(_dequantizers_of_constants(home, facts)):
        uses = tuple(node.outputs[0].uses())
        if all(_is_lookup(use.node, use.idx, node) for use in uses):
            for use in uses:
                _look_up_quantized(node, use.node, names, facts)
            done.lookups += 1
        elif all(_runs_in_float(use.node, use.idx, facts) for use in uses):
            is_quantized_again = any(_is_quantized_again(use.node, facts) for use in uses)
            if folding == "file" and is_quantized_again:
                done.left += 1
                continue
            added = _fold(node, names, known, facts)
            if added is None:
                continue
            done.folded += 1
            done.requantizable += is_quantized_again
            done.bytes_added += added
        else:
            continue
        quantizers = list(_quantizers_of_weights(node))
        done.bytes_added -= tidy([node])
        for each in quantizers:
            if not each.outputs[0].uses() and not each.outputs[0].is_graph_output():
                done.bytes_added -= tidy([each])
    context.counts["TableOfIntegers"] += done.lookups
    return done.folded


def _quantizers_of_weights(dequantizer: ir.Node) -> Iterator[ir.Node]:
    """Yield the Clip and the QuantizeLinear that quantise the weights, unless these are stored quantised."""
    value = dequantizer.inputs[0]
    while value is not None and (node := value.producer()) is not None and node.op_type in _QUANTIZERS:
        yield node
        value = node.inputs[0]


def _dequantizers_of_constants(home: ir.Graph, facts: Facts) -> Iterator[ir.Node]:
    for graph in graphs_of(home):
        for node in graph:
            if not is_dequantizer(node):
                continue
            output = node.outputs[0]
            if not output.uses() or output.is_graph_output() or len(node.inputs) < 2:
                continue
            parameters = [value for value in node.inputs[1:] if value is not None]
            if _is_quantized_once(node.inputs[0], facts) and all(is_readable(value, facts) for value in parameters):
                yield node


def is_readable(value: ir.Value | None, facts: Facts) -> bool:
    """Whether a value is a constant that can be read here."""
    return value is not None and facts.is_constant(value) and array_of(value) is not None


def _is_quantized_once(value: ir.Value | None, facts: Facts) -> bool:
    """Whether a tensor is a constant, or float constants after QuantizeLinear, perhaps followed by a Clip.

    Brevitas writes weights like that. ONNX Runtime folds these nodes, but not the DequantizeLinear that follows.
    """
    node = None if value is None else value.producer()
    if node is None or node.domain != "" or node.op_type not in _QUANTIZERS:
        return is_readable(value, facts)
    if not all(is_readable(each, facts) for each in node.inputs[1:] if each is not None):
        return False
    if node.op_type == "Clip":
        return _is_quantized_once(node.inputs[0], facts)
    given = array_of(node.inputs[0]) if is_readable(node.inputs[0], facts) else None
    is_usual = set(node.attributes) <= {"axis", "block_size", "saturate"} and len(node.inputs) > 2
    return is_usual and given is not None and given.dtype == np.float32 and facts.dtype(value) in _CODES


def _tensor_of(value: ir.Value | None) -> ir.TensorProtocol | None:
    if value is None:
        return None
    node = value.producer()
    if node is None:
        return value.const_value
    return constant_tensor(node) if node.op_type == "Constant" and node.domain == "" else None


def _quantized_values_of(value: ir.Value | None) -> Array | None:
    """Return the quantised values of a tensor that `_is_quantized_once`."""
    node = None if value is None else value.producer()
    if node is None or node.op_type not in _QUANTIZERS:
        return array_of(value)
    low, high = (array_of(each) for each in [*node.inputs[1:], None, None][:2])
    if node.op_type == "Clip":
        integers = _quantized_values_of(node.inputs[0])
        return None if integers is None else np.asarray(np.clip(integers, low, high))
    x, scale, zero_point = (array_of(each) for each in node.inputs[:3])
    if x is None or scale is None or zero_point is None:
        return None
    limits = np.iinfo(zero_point.dtype)
    spread = _of_blocks_or_axis(node, x)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        rounded = np.rint(x / spread(scale)) + spread(zero_point.astype(np.float32))
    known = np.where(np.isnan(rounded), limits.min, rounded)
    return np.asarray(np.clip(known, limits.min, limits.max).astype(zero_point.dtype))


def array_of(value: ir.Value | None) -> Array | None:
    """Return the array of an initializer or a Constant node, of any size; None: the value is neither."""
    tensor = _tensor_of(value)
    return None if tensor is None else tensor.numpy()


# Who reads it


def dequantizer_of(value: ir.Value | None) -> ir.Node | None:
    """Return the DequantizeLinear that gives a value, directly or after ONNX Runtime has moved it."""
    node = None if value is None else value.producer()
    while node is not None and node.op_type in _MOVED and node.domain == "":
        value = node.inputs[0]
        node = None if value is None else value.producer()
    return node if node is not None and node.op_type == "DequantizeLinear" else None


def _type_of(value: ir.Value | None, facts: Facts) -> ir.DataType | None:
    return None if value is None else facts.dtype(value)


def is_in_pair(quantized: ir.Value) -> bool:
    """Whether a tensor is within a Q/DQ pair that has a single reader.

    ONNX Runtime converts such int8 pairs to uint8 on x86 (QDQS8ToU8Transformer), whose kernels take no int8.
    """
    producer, uses = quantized.producer(), tuple(quantized.uses())
    if producer is None or producer.op_type != "QuantizeLinear" or len(uses) != 1 or quantized.is_graph_output():
        return False
    reader = uses[0].node
    result = reader.outputs[0]
    return reader.op_type == "DequantizeLinear" and len(result.uses()) + result.is_graph_output() == 1


def is_x86() -> bool:
    """Whether this is an x86 processor, for which ONNX Runtime's kernels take no int8 activations."""
    return platform.machine().lower() in ("x86_64", "amd64")


def stays_int8(quantized: ir.Value | None, facts: Facts) -> bool:
    """Whether ONNX Runtime leaves a tensor in int8 on x86, where its kernels take none."""
    if not is_x86() or quantized is None:
        return False
    return _type_of(quantized, facts) == ir.DataType.INT8 and not is_in_pair(quantized)


def following_quantizer(value: ir.Value, facts: Facts) -> ir.Node | None:
    """Return the QuantizeLinear that is the only reader of a result, directly or after ONNX Runtime has moved it."""
    is_after_relu = False
    while len(value.uses()) == 1 and not value.is_graph_output():
        reader = next(iter(value.uses())).node
        if reader.op_type == "QuantizeLinear":
            return None if is_after_relu and _has_negatives(reader, facts) else reader
        if reader.domain != "" or reader.op_type not in _MOVED | _CLIPS:
            return None
        is_after_relu = is_after_relu or reader.op_type == "Relu"
        value = reader.outputs[0]
    return None


def _has_negatives(quantizer: ir.Node, facts: Facts) -> bool:
    """Whether negative numbers are representable, so that ONNX Runtime does not remove a Relu before the quantiser."""
    zero_point = quantizer.inputs[2] if len(quantizer.inputs) > 2 else None
    if not is_readable(zero_point, facts):
        return False  # a missing one is 0 of uint8; an unknown one may be anything
    zeros = array_of(zero_point)
    return zeros is not None and zeros.dtype.kind in "iu" and bool((zeros > np.iinfo(zeros.dtype).min).any())


def _multiplies_in_float(product: ir.Node, facts: Facts) -> bool:
    if facts.options.products == "float":
        return True
    if any(node is not None and facts.is_call(node) for node in (_node_before(product), _node_after(product)[0])):
        return False  # the Q/DQ pair may be in the function
    dequantizer = dequantizer_of(product.inputs[0])
    if dequantizer is None or _type_of(dequantizer.inputs[0], facts) in _WIDE:
        return True
    quantizer = following_quantizer(product.outputs[0], facts)
    if quantizer is None:
        return product.op_type == "Conv" or stays_int8(dequantizer.inputs[0], facts)
    result = quantizer.outputs[0]
    if product.op_type == "Gemm":
        return _type_of(result, facts) in _WIDE
    return _type_of(result, facts) in _WIDE or stays_int8(dequantizer.inputs[0], facts) or stays_int8(result, facts)


def _has_many_rows(product: ir.Node, facts: Facts) -> bool:
    """Whether MatMulNBits, into which ONNX Runtime fuses MatMul and quantised weights, would be slower."""
    x, weights = product.inputs[0], dequantizer_of(product.inputs[1])
    shape = None if x is None else facts.shape(x)
    dtype = None if weights is None else _type_of(weights.inputs[0], facts)
    if shape is None or dtype is None:
        return False
    bits = 4 if dtype.bitwidth <= 4 else 8
    if bits == 8 and facts.options.remove_quantization:
        return True  # MatMulNBits rounds its operand to 8 bits, which was to be removed
    rows = 1
    for dim in shape[:-1]:
        rows *= dim if isinstance(dim, int) else _unknown_size(product, bits, len(shape))
    return rows >= _LEAST_ROWS[bits]


def _unknown_size(product: ir.Node, bits: int, rank: int) -> int:
    """Return a lower bound for an unknown size.

    A language model multiplies one row in a step, and then MatMulNBits takes a quarter of the time: only its weights
    are quantised, or they have 4 bits, or it reads a cache of keys and values. In a matrix, the unknown size is the
    batch. The other models are encoders, whose activations are quantised as well.
    """
    if bits == 4 or rank < 3 or dequantizer_of(product.inputs[0]) is None or _reads_state(product.graph):
        return 1
    return _SEQUENCE


def _reads_state(graph: ir.Graph | ir.Function | None) -> bool:
    """Whether a graph concatenates to one of its inputs, as a decoder does with its keys and values."""
    if graph is None:
        return False
    lengthened = (value for node in graph if node.op_type == "Concat" for value in node.inputs)
    return any(_given(value) is not None for value in lengthened)


def _given(value: ir.Value | None) -> ir.Value | None:
    """Return the graph input that a value is, perhaps after Q and DQ nodes."""
    while value is not None and (node := value.producer()) is not None:
        if node.op_type not in ("DequantizeLinear", "QuantizeLinear"):
            return None
        value = node.inputs[0]
    return value if value is not None and value.is_graph_input() else None


def _runs_in_float(node: ir.Node, position: int, facts: Facts) -> bool:
    """Whether the operator reads the weights as floats, after all of ONNX Runtime's fusions."""
    if node.domain != "":
        return False
    if node.op_type in _ALWAYS_FLOAT:
        return True
    if node.op_type in ("Conv", "Gemm"):
        return position > 0 and _multiplies_in_float(node, facts)
    if node.op_type == "MatMul":
        return position == 1 and _multiplies_in_float(node, facts) and _has_many_rows(node, facts)
    if node.op_type in ("Add", "Mul"):
        other = dequantizer_of(node.inputs[1 - position])
        return facts.options.products == "float" or other is None or _type_of(other.inputs[0], facts) in _WIDE
    return False


def _is_quantized_again(node: ir.Node, facts: Facts) -> bool:
    """Whether ONNX Runtime would quantise float weights of this operator to int8, or its bias to int32: results change.

    WeightBiasQuantization does, with one scale for the whole tensor. A node of normfuse and a function of the model
    count as DequantizeLinear and as QuantizeLinear, since their bodies may begin or end with one.
    """
    if node.op_type not in _QUANTIZED_AGAIN:
        return False
    before, (after, joins_sum) = _node_before(node), _node_after(node)
    if before is None or not (before.op_type == "DequantizeLinear" or _is_written_out(before, facts)):
        return False
    if after is None or not (after.op_type == "QuantizeLinear" or _is_written_out(after, facts)):
        return False
    return joins_sum or node.op_type != "MatMul"


def _is_written_out(node: ir.Node, facts: Facts) -> bool:
    return node.domain == OPERATOR_DOMAIN or facts.is_call(node)


def _node_before(product: ir.Node) -> ir.Node | None:
    """Return the node that gives a product's input, skipping those that ONNX Runtime moves or fuses."""
    value = product.inputs[0]
    node = None if value is None else value.producer()
    while node is not None and node.domain == "" and node.op_type in _MOVED | _JOINED:
        value = node.inputs[0]
        node = None if value is None else value.producer()
    return node


def _node_after(product: ir.Node) -> tuple[ir.Node | None, bool]:
    """Return the only reader of a result, skipping the same ones, and whether it or one of them is an Add."""
    result, joins_sum = product.outputs[0], False
    while len(result.uses()) == 1 and not result.is_graph_output():
        reader = next(iter(result.uses())).node
        joins_sum = joins_sum or reader.op_type == "Add"
        if reader.domain != "" or reader.op_type not in _MOVED | _JOINED:
            return reader, joins_sum
        result = reader.outputs[0]
    return None, joins_sum


def _relies_on_host(home: ir.Graph, facts: Facts) -> bool:
    """Whether a product runs in integers because ONNX Runtime quantises its float weights or bias itself."""
    return any(
        node.op_type in ("Conv", "Gemm", "MatMul")
        and node.domain == ""
        and not _multiplies_in_float(node, facts)
        and _is_quantized_again(node, facts)
        and any(_is_float_constant(value, facts) for value in _weights_of(node))
        for graph in graphs_of(home)
        for node in graph
    )


def _weights_of(product: ir.Node) -> Iterator[ir.Value | None]:
    """Yield the weights and the bias, for a MatMul that of an Add that follows."""
    yield from product.inputs[1:]
    if product.op_type == "MatMul":
        for use in product.outputs[0].uses():
            if use.node.op_type == "Add":
                yield use.node.inputs[1 - use.idx]


def _is_float_constant(value: ir.Value | None, facts: Facts) -> bool:
    if value is None or _type_of(value, facts) != ir.DataType.FLOAT or not facts.is_constant(value):
        return False
    producer = value.producer()
    return producer is None or producer.op_type != "DequantizeLinear"


# What becomes of it


def _spread(parameter: Array, like: Array, axis: int, block_size: int) -> Array:
    """Return a scale or zero point with a value for each element, or one that broadcasts to that."""
    if parameter.size == 1:
        return parameter.reshape(())
    if block_size > 0:
        return np.take(parameter, np.arange(like.shape[axis]) // block_size, axis=axis)
    return parameter.reshape([-1 if dim == axis % like.ndim else 1 for dim in range(like.ndim)])


def _of_blocks_or_axis(node: ir.Node, like: Array) -> Callable[[Array], Array]:
    """Return a function that broadcasts the parameters of a Q or DQ node to its tensor."""
    axis, block_size = node.attributes.get_int("axis", 1), node.attributes.get_int("block_size", 0)
    return lambda parameter: _spread(parameter, like, axis, block_size)


def _fold(node: ir.Node, names: Names, known: dict[object, ir.Value], facts: Facts) -> int | None:
    """Replace a DequantizeLinear by the dequantised weights; return the bytes added, None: it has unknown types.

    ``known``: weights that were folded before; quantisers may write a DequantizeLinear for each reader.
    """
    source, scale = node.inputs[0], node.inputs[1]
    zero_point = node.inputs[2] if len(node.inputs) > 2 else None
    output = node.outputs[0]
    key = (node.graph, source, scale, zero_point, *sorted((each.name, each.value) for each in node.attributes.values()))
    if key in known:
        output.replace_all_uses_with(known[key])
        return 0
    weights, scales, zeros = _quantized_values_of(source), array_of(scale), array_of(zero_point)
    if weights is None or scales is None or facts.dtype(source) not in _INTEGERS:
        return None
    output_type = node.attributes.get_int("output_dtype", 0)
    if scales.dtype != np.float32 or output_type not in (0, int(ir.DataType.FLOAT)):
        return None
    spread = _of_blocks_or_axis(node, weights)
    wide = np.int32 if weights.dtype.itemsize < 4 else np.int64  # either is exact
    difference = weights.astype(wide)
    if zeros is not None:
        difference = difference - spread(zeros.astype(wide))
    with np.errstate(over="ignore"):
        value = difference.astype(np.float32) * spread(scales)
    graph = node.graph
    assert isinstance(graph, ir.Graph)
    folded = new_constant(value.astype(np.float32, copy=False), names.new(f"{output.name}.folded"))
    folded.dtype, folded.shape = ir.DataType.FLOAT, ir.Shape(value.shape)
    graph.register_initializer(folded)
    output.replace_all_uses_with(folded)
    known[key] = folded
    return int(value.nbytes)


def _is_lookup(node: ir.Node, position: int, dequantizer: ir.Node) -> bool:
    table, scale = _tensor_of(dequantizer.inputs[0]), array_of(dequantizer.inputs[1])
    if node.op_type != "Gather" or node.domain != "" or position != 0 or table is None or scale is None:
        return False
    return scale.size == 1 and table.size >= _LEAST_TABLE and not node.outputs[0].is_graph_output()


def _look_up_quantized(dequantizer: ir.Node, gather: ir.Node, names: Names, facts: Facts) -> None:
    """Let a Gather read the quantised table, and dequantise its result."""
    table, result, graph = dequantizer.inputs[0], gather.outputs[0], gather.graph
    assert table is not None
    assert graph is not None
    dequantize = ir.Node(
        dequantizer.domain,
        "DequantizeLinear",
        [None, *dequantizer.inputs[1:]],
        [each for each in dequantizer.attributes.values() if each.name != "axis"],
        name=names.new(f"{gather.name or 'Gather'}.dequantised"),
    )
    made = dequantize.outputs[0]
    made.name = names.new(f"{result.name}.dequantised")
    dtype = facts.dtype(result)
    made.type, made.shape = (None if dtype is None else ir.TensorType(dtype)), facts.shape(result)
    result.replace_all_uses_with(made)
    gather.replace_input_with(0, table)
    tensor = _tensor_of(table)
    assert tensor is not None
    result.type = ir.TensorType(tensor.dtype)
    dequantize.replace_input_with(0, result)
    graph.insert_after(gather, dequantize)


def tidy(nodes: Iterable[ir.Node]) -> int:
    """Remove nodes that nothing reads any more, and constants that only they read; return the bytes of these."""
    freed = 0
    for node in nodes:
        inputs = dict.fromkeys(value for value in node.inputs if value is not None)
        assert node.graph is not None
        node.graph.remove(node, safe=True)
        freed += sum(drop_unused_constant(value) for value in inputs)
    return freed


def drop_unused_constant(value: ir.Value) -> int:
    """Remove a constant that nothing reads any more; return its bytes."""
    if value.uses() or value.is_graph_input() or value.is_graph_output():
        return 0
    tensor, node = _tensor_of(value), value.producer()
    if tensor is None:
        return 0
    if node is not None and node.graph is not None:
        node.graph.remove(node, safe=True)
    elif value.is_initializer() and value.graph is not None and value.name is not None:
        value.graph.initializers.pop(value.name)
    return int(tensor.nbytes)
