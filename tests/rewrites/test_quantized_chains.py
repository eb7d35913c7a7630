"""Quantised chains with options, and of types that a target's form cannot have; the others are in tests/corpus."""

from __future__ import annotations

import harness
import numpy as np
import onnx
from corpus_reader import cases
from rewrite_harness import SpellingBuilder, fused_nodes, optimize, run

from normfuse.graph_rewrites import Treatment

SHAPE = (2, 5, 8)


def test_requantised_chain_is_fused_where_allowed() -> None:
    (split,) = (case for case in cases() if case.name == "quantized/split")
    model = split.build(SpellingBuilder(13))
    optimized, result = optimize(model, treatment=Treatment(allow_requantization_removal=True))
    (node,) = fused_nodes(optimized)
    assert " Requantize" not in harness.read_node(node).steps
    assert [n.op_type for n in optimized.graph.node] == [node.op_type]
    feeds = {"x": np.random.default_rng(0).integers(-128, 127, SHAPE, endpoint=True).astype(np.int8)}
    name = node.output[0]
    expected, got = (run(m, feeds, optimized=False)[name].astype(int) for m in (model, optimized))
    # The difference is the rounding that was removed: a few steps of the intermediate scales.
    assert np.abs(expected - got).max() <= 8
    assert any("requantization removed" in site.message for site in result.sites)


def test_pair_with_different_scales_is_no_rounding() -> None:
    g = SpellingBuilder(17)
    x = g.input("x", SHAPE)
    y = g.add("LayerNormalization", x, g.weight(8, mean=1.0))
    quantized = g.add("QuantizeLinear", y, np.float32(0.04), np.int8(0))
    rescaled = g.add("DequantizeLinear", quantized, np.float32(0.05), np.int8(0))
    g.output(g.add("Add", rescaled, g.weight(8)), SHAPE)
    optimized, _ = optimize(g.model("m"), treatment=Treatment(allow_requantization_removal=True))
    assert [n.op_type for n in optimized.graph.node][1:] == ["DequantizeLinear", "Add"]


TWO_BITS = """<ir_version: 13, opset_import: ["" : 25]>
g (int2[4] x) => (uint2[4] y)
<float scale = {0.5}, uint2 zero = {1}, float[4] gamma = {1, 1, 2, 2}>
{ d = DequantizeLinear (x, scale)  n = RMSNormalization (d, gamma)  y = QuantizeLinear (n, scale, zero) }"""


def test_custom_operators_have_no_two_bit_types() -> None:
    """ONNX Runtime refuses a custom operator's node with a tensor of a 2-bit type; a function may have one."""
    model = onnx.parser.parse_model(TWO_BITS)
    portable, _ = optimize(model)
    assert [node.op_type for node in portable.graph.node] == [
        "FusedNormalization_DequantizeLinear_RMSNormalization_QuantizeLinear"
    ]
    plain, result = optimize(model, target="custom-op")
    assert [node.op_type for node in plain.graph.node] == ["DequantizeLinear", "FusedNormalization", "QuantizeLinear"]
    assert [site.reason for site in result.sites] == ["unsupported_type", None, "unsupported_type"]
    again, _ = optimize(portable, target="custom-op")
    assert again.graph.node == portable.graph.node
    assert again.functions == portable.functions
