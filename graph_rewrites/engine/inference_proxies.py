"""Standard operators in the place of others that have the same types and shapes: for ONNX's shape inference alone."""

from __future__ import annotations

from collections.abc import Iterable, MutableSequence, Sequence

import onnx_ir as ir

from normfuse.spec import ACTIVATIONS, NORMALIZATIONS

_EINSUM_SINCE = 12

_MICROSOFT = "com.microsoft"
# ONNX Runtime's operators whose first output has the type and shape of their first input.
_LIKE_FIRST = frozenset({"QLinearLeakyRelu", "QLinearSigmoid", "QLinearSoftmax", "RotaryEmbedding"})
# Its operators whose first output has the type and shape that a standard one gives for these inputs of theirs.
_GIVES_AS = {
    "DequantizeLinear": ("DequantizeLinear", (0, 1, 2)),
    "QuantizeLinear": ("QuantizeLinear", (0, 1, 2)),
    "DynamicQuantizeMatMul": ("MatMul", (0, 1)),
    "EmbedLayerNormalization": ("Gather", (2, 0)),
    "FusedConv": ("Conv", (0, 1)),
    "FusedGemm": ("Gemm", (0, 1)),
    "QLinearAdd": ("Add", (0, 3)),
    "QLinearMul": ("Mul", (0, 3)),
}

# Normalisations that ONNX's shape inference knows, and the opset since which it does: ONNX Runtime has its own before.
_INFERRED_SINCE = {"InstanceNormalization": 1, "LayerNormalization": 17, "RMSNormalization": 23}
# Operators whose output is shaped as X, and the output (if any) besides the first that is.
_SHAPED_AS_X = {
    (spelling.domain, spelling.op_type): None
    for activation in ACTIVATIONS.values()
    for spelling in activation.spellings
    if spelling.domain
} | {
    (row.domain, row.op_type): row.outputs.index("sum") if "sum" in row.outputs else None
    for row in NORMALIZATIONS
    if row.method == "standard"
}


def needs_stand_ins(graph: ir.Graph, opset: int) -> bool:
    """Whether `make_inferable` would change anything in a graph."""
    return any(
        node.domain == _MICROSOFT
        or _is_shaped_as_x(node, opset)
        or (node.op_type == "STFT" and not node.domain)
        or _ungrouped(node) is not None
        for node in graph
    )


def make_inferable(graph: ir.Graph, opset: int, model_inputs: MutableSequence[ir.Value]) -> bool:
    """Replace what ONNX's shape inference does not know by standard operators of the same types and shapes.

    Args:
        graph: The graph, which is changed.
        opset: Version of the standard operators.
        model_inputs: The inputs of the main graph. Weights that are another matrix than they compute join them.

    Returns:
        Whether there was anything to replace.
    """
    unknown = [node for node in graph if node.domain == _MICROSOFT or _is_shaped_as_x(node, opset)]
    for node in graph:
        if _is_shaped_as_x(node, opset):
            further = _SHAPED_AS_X[node.domain, node.op_type]
            _type_input(node)
            wanted = [index for index in (0, further) if index is not None and index < len(node.outputs)]
            outputs = [node.outputs[index] for index in wanted if node.outputs[index].name]
            _repeat(graph, node, node.inputs[0], outputs)
        elif node.domain == _MICROSOFT:
            _stand_in(node, opset, model_inputs)
        elif node.op_type == "STFT" and not node.domain:
            _give_shape(node)
        elif (ungrouped := _ungrouped(node)) is not None:
            _replace(graph, node.outputs[0], ir.Node("", *ungrouped))
            graph.remove(node)
    return bool(unknown)


def _is_shaped_as_x(node: ir.Node, opset: int) -> bool:
    """True for an operator of `_SHAPED_AS_X` that ONNX's shape inference does not know."""
    inferred = node.domain == "" and opset >= _INFERRED_SINCE.get(node.op_type, opset + 1)
    return (node.domain, node.op_type) in _SHAPED_AS_X and not inferred


def _type_input(node: ir.Node) -> None:
    """Give the first input of a node the type of its output or of its parameters, where the model gives only these."""
    x, y = node.inputs[0], node.outputs[0]
    if x is None or x.is_initializer():
        return
    if x.type is None:
        weights = [
            value.const_value for value in node.inputs[1:] if value is not None and value.const_value is not None
        ]
        x.type = ir.TensorType(weights[0].dtype) if y.type is None and weights else y.type
    if x.shape is None:
        x.shape = y.shape


def _give_shape(stft: ir.Node) -> None:
    """Give a spectrum the shape that it has in any case: ONNX infers none where a size is not known."""
    spectrum = stft.outputs[0]
    if spectrum.shape is not None:
        return
    for value in (*stft.outputs, *stft.inputs[::2]):  # the signal and the window are of one type
        if value is not None and spectrum.type is None:
            tensor = value.const_value
            spectrum.type = value.type if tensor is None else ir.TensorType(tensor.dtype)
    if spectrum.type is not None:
        spectrum.shape = ir.Shape([None, None, None, 2])


def _stand_in(node: ir.Node, opset: int, model_inputs: MutableSequence[ir.Value]) -> None:
    """Turn an operator of ONNX Runtime into a standard one, as far as its types and shapes are known."""
    x, y, z = (*node.inputs, None, None, None)[:3]
    if x is None or any(attribute.is_ref() for attribute in node.attributes.values()):
        return
    if node.op_type in _LIKE_FIRST or (node.op_type == "GroupQueryAttention" and y is not None):
        _become(node, "Identity", [x])
    elif node.op_type in _GIVES_AS and len(node.inputs) > max(_GIVES_AS[node.op_type][1][:2]):
        op_type, indices = _GIVES_AS[node.op_type]
        attributes = () if op_type in ("Gather", "MatMul") else tuple(node.attributes.values())
        _become(node, op_type, [node.inputs[index] for index in indices if index < len(node.inputs)], attributes)
    elif node.op_type == "FusedMatMul" and y is not None:
        _unfuse_matmul(node, x, y, opset)
    elif node.op_type == "MatMulIntegerToFloat" and y is not None and z is not None:
        _scale_product(node, x, y, z)
    elif node.op_type == "MatMulNBits":
        _become(node, "MatMul", [x, _unpacked(node, model_inputs)])
    elif node.op_type == "MultiHeadAttention" and y is not None and z is not None and opset >= _EINSUM_SINCE:
        # Only where each has three dimensions; it fails where inference finds another rank.
        _become(node, "Einsum", [x, z], [ir.AttrString("equation", "bsh,btv->bsv")])


def _integer(node: ir.Node, name: str) -> int:
    """Return an attribute that is 0 where it is not given, or is no integer: nothing checks these operators before."""
    attribute = node.attributes.get(name)
    return attribute.as_int() if attribute is not None and attribute.type == ir.AttributeType.INT else 0


def _become(node: ir.Node, op_type: str, inputs: Sequence[ir.Value | None], attributes: Sequence[ir.Attr] = ()) -> None:
    """Turn a node into one of a standard operator, with the same outputs."""
    node.attributes.clear()
    for attribute in attributes:
        node.attributes.add(attribute)
    node.resize_inputs(len(inputs))
    for index, value in enumerate(inputs):
        node.replace_input_with(index, value)
    node.domain, node.op_type = "", op_type


def _unpacked(node: ir.Node, model_inputs: MutableSequence[ir.Value]) -> ir.Value:
    """Return weights of the shape that those of a MatMulNBits stand for."""
    weights = ir.Value(
        name=f"{node.outputs[0].name}:weights",
        shape=ir.Shape([_integer(node, name) for name in "KN"]),
        type=ir.TensorType(ir.DataType.FLOAT),
    )
    model_inputs.append(weights)
    return weights


def _scale_product(node: ir.Node, a: ir.Value, b: ir.Value, scale: ir.Value) -> None:
    """Turn ONNX Runtime's product of integers with a scale into the product that ONNX has, cast to the scale's type."""
    dtype = scale.dtype if scale.const_value is None else scale.const_value.dtype
    if dtype is None or node.graph is None:
        return
    product = ir.Node("", "MatMulInteger", [a, b])
    node.graph.insert_before(node, product)
    product.outputs[0].name = f"{node.outputs[0].name}:integers"
    _become(node, "Cast", product.outputs, [ir.AttrInt64("to", dtype)])


def _unfuse_matmul(node: ir.Node, a: ir.Value, b: ir.Value, opset: int) -> None:
    """Turn ONNX Runtime's product with transposed operands into one that ONNX has."""
    if any(_integer(node, f"transBatch{operand}") for operand in "AB"):
        return
    transposed = [_integer(node, f"trans{operand}") for operand in "AB"]
    if not any(transposed):
        _become(node, "MatMul", [a, b])
    elif transposed == [0, 1] and b.shape is not None and len(b.shape) == 2 and node.graph is not None:
        # What Einsum's inference does not take: weights have fewer dimensions.
        turned = ir.Node("", "Transpose", [b])
        node.graph.insert_before(node, turned)
        turned.outputs[0].name = f"{node.outputs[0].name}:transposed"
        _become(node, "MatMul", [a, turned.outputs[0]])
    elif opset >= _EINSUM_SINCE:
        equation = f"{'...ki' if transposed[0] else '...ik'},{'...jk' if transposed[1] else '...kj'}->...ij"
        _become(node, "Einsum", [a, b], [ir.AttrString("equation", equation)])


def _repeat(graph: ir.Graph, node: ir.Node, source: ir.Value | None, outputs: Iterable[ir.Value]) -> None:
    """Replace a node by copies of a value that has the types and shapes of these outputs."""
    for value in tuple(outputs):
        _replace(graph, value, ir.Node("", "Identity", [source]))
    graph.remove(node)


def _replace(graph: ir.Graph, value: ir.Value, node: ir.Node) -> None:
    """Let a new node compute a value."""
    before = value.producer()
    assert before is not None
    node.outputs[0].name = value.name
    graph.insert_before(before, node)
    value.replace_all_uses_with(node.outputs[0], replace_graph_outputs=True)


def _ungrouped(node: ir.Node) -> tuple[str, list[ir.Value | None]] | None:
    """Return an operator and its inputs for Reshape(InstanceNormalization(Reshape(x, ...)), Shape(x)), a group
    normalisation of x.

    Its output has the type and shape of the group normalisation; None: it is none. Before opset 15, shape inference
    does not follow Shape.
    """
    if node.op_type != "Reshape" or node.domain or len(node.inputs) < 2:
        return None
    normalization, shape = (None if value is None else value.producer() for value in node.inputs[:2])
    if normalization is None or normalization.op_type != "InstanceNormalization" or not normalization.inputs:
        return None
    grouping = None if normalization.inputs[0] is None else normalization.inputs[0].producer()
    op_type, parameters = "Identity", list[ir.Value | None]()
    if grouping is not None and grouping.op_type == "DequantizeLinear" and grouping.inputs[0] is not None:
        op_type, parameters = "DequantizeLinear", list(grouping.inputs[1:])
        grouping = grouping.inputs[0].producer()
    if grouping is None or grouping.op_type != "Reshape" or shape is None or shape.op_type != "Shape":
        return None
    if "start" in shape.attributes or "end" in shape.attributes or shape.inputs[0] is not grouping.inputs[0]:
        return None
    return op_type, [shape.inputs[0], *parameters]
