"""What is left for a reason outside of the formula: ONNX Runtime's own fusions, and functions of the model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from rewrite_harness import SpellingBuilder, optimize, round_trip

IMAGE = (2, 6, 4, 3)


def _batch_norm(g: SpellingBuilder, x: str) -> str:
    parameters = [g.weight(6, mean=1.0), g.weight(6), g.weight(6), g.constant(np.linspace(0.5, 2, 6).astype(g.dtype))]
    return g.add("BatchNormalization", x, *parameters, epsilon=1e-4)


def _quantised_weights(g: SpellingBuilder) -> str:
    weights = np.random.default_rng(5).integers(-127, 128, (6, 6, 1, 1)).astype(np.int8)
    return g.add("DequantizeLinear", g.constant(weights), g.constant(np.asarray(0.01, np.float32)))


PRODUCTS: dict[str, tuple[Callable[[SpellingBuilder, str], str], tuple[int, ...]]] = {
    "Conv": (lambda g, x: g.add("Conv", x, g.weight(6, 6, 1, 1), g.weight(6)), IMAGE),
    "grouped ConvTranspose": (lambda g, x: g.add("ConvTranspose", x, g.weight(6, 3, 1, 1), group=2), IMAGE),
    "MatMul": (lambda g, x: g.add("MatMul", x, g.weight(6, 6)), (4, 6)),
    "MatMul of a stack": (lambda g, x: g.add("MatMul", x, g.weight(5, 5)), (4, 6, 5)),
    "Gemm": (lambda g, x: g.add("Gemm", x, g.weight(6, 6), g.weight(6)), (4, 6)),
    "Conv with quantised weights": (lambda g, x: g.add("Conv", x, _quantised_weights(g)), IMAGE),
    "Conv with weights from a caller": (lambda g, x: g.add("Conv", x, g.input("w", (6, 6, 1, 1))), IMAGE),
}


@pytest.mark.parametrize("product", PRODUCTS)
def test_batch_normalization_is_left_where_onnx_runtime_makes_it_part_of_a_product(
    product: str, tmp_path: Path
) -> None:
    build, shape = PRODUCTS[product]
    g = SpellingBuilder(13)
    g.output(g.add("Relu", _batch_norm(g, build(g, g.input("x", shape)))), shape)
    model = g.model("m")
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    options.log_severity_level = 3
    onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    on_its_own = "BatchNormalization" in {n.op_type for n in onnx.load(options.optimized_model_filepath).graph.node}
    optimized, result = optimize(model)
    if on_its_own:
        assert "BatchNormalization" not in {node.op_type for node in optimized.graph.node}
    else:
        assert optimized == round_trip(model)
        (site,) = (site for site in result.sites if site.kind == "BatchNormalization")
        assert site.reason == "not_profitable"


def test_in_a_function_of_the_model_it_is_left() -> None:
    """A function holds no initialisers, which the scale would be."""
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 13, "custom" : 1]>
        main (float[3,5,8] x) => (float[3,5,8] y) { y = custom.norm (x) }
        <domain: "custom", opset_import: ["" : 13]>
        norm (a) => (b)
        {
            two = Constant <value_float: float = 2.0> ()
            epsilon = Constant <value_float: float = 0.00001> ()
            squares = Mul (a, a)
            mean = ReduceMean <axes = [-1]> (squares)
            shifted = Add (mean, epsilon)
            root = Sqrt (shifted)
            twice = Mul (root, two)
            b = Div (a, twice)
        }""")
    optimized, result = optimize(model)
    (own,) = optimized.functions
    assert [node.op_type for node in own.node][-1] == "Div"
    assert [site.reason for site in result.sites] == ["unsupported_operator"]
