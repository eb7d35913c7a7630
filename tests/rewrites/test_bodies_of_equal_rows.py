"""What optimize writes keeps the exactness of the operators that the model had, where normfuse is not there."""

from __future__ import annotations

import families
import harness
import numpy as np
import onnx
import pytest
from parsed_models import parse, results
from rewrite_harness import fused_nodes, only_fused, optimize

from normfuse.meaning import Array

SHAPE = (2, 6, 96)


def padded() -> Array:
    """Rows of equal numbers far from 0, zeros, a row that is constant but one, and usual ones."""
    x = np.random.default_rng(3).standard_normal(SHAPE) * 0.1 + 1
    x[0, 3:] = 0
    x[1, 0], x[1, 1], x[1, 2] = 1e4, 0.1, np.float32(1 / 3)
    x[1, 3] = 0.7
    x[1, 3, -1] = 0.8
    return x.astype(np.float32)


def model_of(behind: str, epsilon: float, inputs: str = "") -> onnx.ModelProto:
    text = f"""g (float[2, 6, 96] x{inputs}) => (float[2, 6, 96] y) {{
        n = LayerNormalization<axis = -1, epsilon = {epsilon}>(x, ones, zeros) {behind} }}"""
    return parse(text, opset=17, ones=np.ones(96, np.float32), zeros=np.zeros(96, np.float32))


BEHIND = {
    "gate": ("y = Mul(n, gate)", ", float[2, 6, 1] gate", {"gate": (2, 6, 1)}),
    "modulation": (
        "a = Mul(n, scale) y = Add(a, shift)",
        ", float[2, 1, 96] scale, float[2, 1, 96] shift",
        {"scale": (2, 1, 96), "shift": (2, 1, 96)},
    ),
    "one number a channel": ("y = Mul(n, gate)", ", float[6, 1] gate", {"gate": (6, 1)}),
    "x itself": ("y = Mul(n, x)", "", {}),
    "one number": ("y = Mul(n, number)", ", float number", {"number": ()}),
}


def same_where_the_original_is_exact(model: onnx.ModelProto, feeds: dict[str, Array]) -> None:
    optimized, _ = optimize(model)
    assert fused_nodes(optimized)
    (want,), (got,) = (list(results(each, feeds).values()) for each in (model, optimized))
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("epsilon", [1e-12, 1e-5])
@pytest.mark.parametrize("name", BEHIND)
def test_rows_of_equal_numbers(name: str, epsilon: float) -> None:
    behind, inputs, shapes = BEHIND[name]
    rng = np.random.default_rng(5)
    feeds = {"x": padded(), **{key: rng.uniform(0.5, 2, shape).astype(np.float32) for key, shape in shapes.items()}}
    same_where_the_original_is_exact(model_of(behind, epsilon, inputs), feeds)


@pytest.mark.parametrize("size", [1.0, 1e-8])
def test_a_written_out_mean_variance_normalization(size: float) -> None:
    """Its epsilon, which ONNX Runtime's operator lacks, is all that a row of equal numbers is divided by."""
    text = """g (float[2, 6, 96] x) => (float[2, 6, 96] y) <int64[1] axes = {2}, float e = {1e-9}> {
        m = ReduceMean(x, axes) d = Sub(x, m) q = Mul(d, d) v = ReduceMean(q, axes) s = Sqrt(v) r = Add(s, e)
        y = Div(d, r) }"""
    x = np.random.default_rng(4).standard_normal(SHAPE) * size
    x[0, 3:], x[1, 2] = 0, 1
    same_where_the_original_is_exact(parse(text, opset=18), {"x": x.astype(np.float32)})


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_row_of_unknown_length(dynamic: bool) -> None:
    model = model_of(*(BEHIND["gate"][0], 1e-12, BEHIND["gate"][1]))
    if dynamic:
        for value in (model.graph.input[0], model.graph.output[0]):
            value.type.tensor_type.shape.dim[2].dim_param = "width"
    gate = np.linspace(0.5, 2, 12, dtype=np.float32).reshape(2, 6, 1)
    same_where_the_original_is_exact(model, {"x": padded(), "gate": gate})


GROUPED = """g (float[2, 6, 8, 8] x) => (float[2, 6, 8, 8] y) <int64[3] groups = {0, 3, -1}> {
    r = Reshape(x, groups) n = InstanceNormalization(r, ones, zeros) s = Shape(x) u = Reshape(n, s)
    m = Mul(u, scale) y = Add(m, bias) }"""
GROUPS = {
    "opset 14": (14, GROUPED, (3,), (6, 1, 1)),
    "opset 17": (17, GROUPED, (3,), (6, 1, 1)),
    "opset 18": (18, "y = GroupNormalization<num_groups = 3>(x, scale, bias)", (3,), (3,)),
    "opset 21": (21, "y = GroupNormalization<num_groups = 3>(x, scale, bias)", (3,), (6,)),
}


@pytest.mark.parametrize("mean", [0.0, 3.7, 1e4])
@pytest.mark.parametrize("family", ["noise", "ramp", "step", "constant", "constant but one", "smooth", "zeros behind"])
@pytest.mark.parametrize("name", GROUPS)
def test_groups_are_as_exact_as_the_original(name: str, family: str, mean: float) -> None:
    opset, text, unit, shape = GROUPS[name]
    if "=>" not in text:
        text = f"g (float[2, 6, 8, 8] x) => (float[2, 6, 8, 8] y) {{ {text} }}"
    scale, bias = (np.linspace(*ends, shape[0], dtype=np.float32).reshape(shape) for ends in ((0.5, 2), (-1, 1)))
    given = {"ones": np.ones(unit, np.float32), "zeros": np.zeros(unit, np.float32)} if "ones" in text else {}
    model = parse(text, opset=opset, scale=scale, bias=bias, **given)
    x = families.fill(families.Family(family), np.random.default_rng(2), (2, 3, 128), np.float32, mean=mean)
    x = x.reshape(2, 6, 8, 8)
    optimized, _ = optimize(model)
    assert "num_groups=3" in harness.read_node(only_fused(optimized)).steps
    (was,), (got,) = (list(results(each, {"x": x}).values()) for each in (model, optimized))
    rows = x.astype(np.float64).reshape(2, 3, -1)
    normal = (rows - rows.mean(-1, keepdims=True)) / np.sqrt(rows.var(-1, keepdims=True) + np.float32(1e-5))
    scales, biases = (np.repeat(each, 6 // each.size).reshape(6, 1, 1) for each in (scale, bias))
    exact = normal.reshape(x.shape) * scales + biases
    error, allowed = (np.abs(each - exact).reshape(2, 3, -1).max(-1) for each in (got, was))
    # A variance that cancels gives no number.
    assert np.all((error <= 1.5 * allowed + 2e-6) | np.isnan(allowed)), (error, allowed)


def test_an_infinite_gate_of_an_instance_normalization() -> None:
    text = """g (float[2, 6, 4, 8] x, float[6, 1, 1] gate) => (float[2, 6, 4, 8] y) {
        n = InstanceNormalization(x, ones, zeros) y = Mul(n, gate) }"""
    model = parse(text, opset=17, ones=np.ones(6, np.float32), zeros=np.zeros(6, np.float32))
    x = np.random.default_rng(1).standard_normal((2, 6, 4, 8)).astype(np.float32) + 3
    gate = np.array([1, np.inf, -np.inf, 2, 0, 1e30], np.float32).reshape(6, 1, 1)
    same_where_the_original_is_exact(model, {"x": x, "gate": gate})


@pytest.mark.parametrize("divisor", [0.3, 41.0, 49.0, 55.0, 4.0])
def test_quotients_in_front_of_a_quantization_keep_their_ties(divisor: float) -> None:
    text = """g (float[2, 6, 96] x) => (uint8[2, 6, 96] y) <float c, float s, uint8 z = {128}> {
        n = Relu(x) e = Sigmoid(x) a = Mul(x, e) d = Div(a, c) y = QuantizeLinear(d, s, z) }"""
    text = text.replace("float c", f"float c = {{{divisor}}}").replace("float s", "float s = {0.25}")
    model = parse(text, opset=17)
    # Large ones, where the activation is x itself: exact ties of d / s.
    x = (np.resize(np.arange(20, 132), SHAPE) * np.float32(divisor) * 0.125).astype(np.float32)
    optimized, _ = optimize(model)
    np.testing.assert_array_equal(results(optimized, {"x": x})["y"], results(model, {"x": x})["y"])
