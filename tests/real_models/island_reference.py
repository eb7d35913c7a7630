"""What a quantised model computes with exact products, on the quantised values that an island found.

ONNX Runtime's products of uint8 and int8 saturate on x86 without VNNI, at every optimisation level, so its results for
a model of integer products are no reference. Here each MatMulInteger is one of doubles, which is exact, and products
between pairs of DequantizeLinear and QuantizeLinear are of floats, as the model is written: nothing is optimised.

Nor is the end of a quantised model a property of its operators: a value within a unit in the last place of a rounding
tie goes one way or the other, and the layers behind it make much of that step. So what reads a quantised value gets the
island's here. Each quantised value then follows from the island's own values, may be off by one step where there is a
tie, which few are, and the outputs agree as if there were no ties.
"""

from __future__ import annotations

import harness
import numpy as np
import onnx
import onnxruntime
from model_zoo import Feeds
from onnx import TensorProto, helper

from normfuse.meaning import Array

QUANTISING = ("QuantizeLinear", "DynamicQuantizeLinear")
# Operators that compute in integers, but for those that are replaced.
IN_INTEGERS = {"ConvInteger", "QLinearConv", "QLinearMatMul", "MatMulNBits", "QGemm", "DynamicQuantizeMatMul"}
# Of the elements of one tensor, which are some thousand at the least.
SHARE_AT_TIES, MOST_AT_TIES = 1e-4, 3


def quantised_values(model: onnx.ModelProto) -> dict[str, int]:
    """Names of what the model's quantising nodes give, in the graph's order, and the element types."""
    types = {tensor.name: tensor.data_type for tensor in model.graph.initializer}
    found: dict[str, int] = {}
    for node in model.graph.node:
        if node.op_type == "QuantizeLinear":
            found[node.output[0]] = types[node.input[2]]
        elif node.op_type == "DynamicQuantizeLinear":
            found |= zip(node.output, (TensorProto.UINT8, TensorProto.FLOAT, TensorProto.UINT8), strict=True)
    return found


def showing_quantised_values(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy whose quantised values are outputs."""
    return harness.with_outputs(model, quantised_values(model))


def replacement(name: str) -> str:
    return f"{name} of the island"


def exact_product(node: onnx.NodeProto) -> list[onnx.NodeProto]:
    """A MatMulInteger as a product of doubles, in which sums of products of 8 bits are exact."""
    nodes, factors = [], []
    for side in range(2):
        names = [node.input[i] for i in (side, side + 2) if i < len(node.input) and node.input[i]]
        wide = [f"{node.output[0]} {side} {i}" for i in range(len(names))]
        casts = [helper.make_node("Cast", [a], [b], to=TensorProto.DOUBLE) for a, b in zip(names, wide, strict=True)]
        factors.append(f"{node.output[0]} {side}")
        nodes += [*casts, helper.make_node("Sub" if len(wide) > 1 else "Identity", wide, factors[-1:])]
    product = f"{node.output[0]} exact"
    nodes.append(helper.make_node("MatMul", factors, [product]))
    return [*nodes, helper.make_node("Cast", [product], [node.output[0]], to=TensorProto.INT32)]


def exact_reference(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy with exact products that shows its quantised values, and reads those given in their place."""
    assert not IN_INTEGERS & {node.op_type for node in model.graph.node}
    copy = showing_quantised_values(model)
    given = quantised_values(model)
    for node in copy.graph.node:
        for i, name in enumerate(node.input):
            if name in given:
                node.input[i] = replacement(name)
    nodes = [exact_product(node) if node.op_type == "MatMulInteger" else [node] for node in copy.graph.node]
    del copy.graph.node[:]
    copy.graph.node.extend(node for some in nodes for node in some)
    copy.graph.input.extend(harness.value_info(replacement(name), code, None) for name, code in given.items())
    return copy


def results_on(model: onnx.ModelProto, feeds: Feeds, given: dict[str, Array]) -> dict[str, Array]:
    """What the exact reference gives, quantised values included, where it goes on with the given ones."""
    options = harness.session_options("cpu")
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = harness.create_session(exact_reference(model), options=options)
    return harness.run(session, {**feeds, **{replacement(name): given[name] for name in quantised_values(model)}})


def check_quantised(model: onnx.ModelProto, feeds: Feeds, got: dict[str, Array]) -> dict[str, Array]:
    """Assert that the quantised values that a run gave are right but for ties; gives the reference's outputs."""
    expected = results_on(model, feeds, got)
    for node in model.graph.node:
        if node.op_type not in QUANTISING:
            continue
        codes, *dynamic = node.output
        shift = 0
        if dynamic:
            scale, zero_point = dynamic
            np.testing.assert_allclose(got[scale], expected[scale], rtol=1e-5, err_msg=scale)
            shift = int(got[zero_point]) - int(expected[zero_point])
            assert abs(shift) <= 1, zero_point
        check_codes(codes, got[codes], expected[codes], shift)
    return expected


def check_codes(name: str, got: Array, expected: Array, shift: int) -> None:
    """``shift``: by how much the zero point found is higher, which moves all codes but the outermost."""
    assert (got.shape, got.dtype) == (expected.shape, expected.dtype), name
    apart = got.astype(np.int64) - expected
    if shift:
        apart[(apart != 0) | ~np.isin(got, (0, 255))] -= shift
    assert np.abs(apart).max(initial=0) <= 1, name
    assert np.count_nonzero(apart) <= max(MOST_AT_TIES, SHARE_AT_TIES * got.size), name
