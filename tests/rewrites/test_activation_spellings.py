"""Every way in which exporters write activations out, and what only looks like one."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import harness
import numpy as np
import onnx
import pytest
from covering import parametrize_spread
from rewrite_harness import CONSTANT_FORMS, SpellingBuilder, check_fused, fused_nodes, optimize, round_trip, run

SHAPE = (3, 4, 16)
ROOT_2 = math.sqrt(2)
TANH_FACTOR = math.sqrt(2 / math.pi)
Spelling = Callable[[SpellingBuilder, str], str]


def _erf(g: SpellingBuilder, x: str) -> str:
    return g.add("Erf", g.add("Div", x, ROOT_2))


def gelu_torch_legacy(g: SpellingBuilder, x: str) -> str:
    return g.add("Mul", g.add("Mul", x, g.add("Add", _erf(g, x), 1.0)), 0.5)


def gelu_torch_dynamo(g: SpellingBuilder, x: str) -> str:
    return g.add("Mul", x, g.add("Mul", 0.5, g.add("Add", _erf(g, x), 1.0)))


def gelu_bert(g: SpellingBuilder, x: str) -> str:
    erf = g.add("Erf", g.add("Mul", x, math.sqrt(0.5)))
    return g.add("Mul", g.add("Mul", x, 0.5), g.add("Add", 1.0, erf))


def gelu_halved_by_division(g: SpellingBuilder, x: str) -> str:
    return g.add("Div", g.add("Mul", x, g.add("Add", _erf(g, x), 1.0)), 2.0)


def gelu_half_of_erf(g: SpellingBuilder, x: str) -> str:
    return g.add("Mul", x, g.add("Add", g.add("Mul", _erf(g, x), 0.5), 0.5))


def _tanh(g: SpellingBuilder, inner: str) -> str:
    return g.add("Add", g.add("Tanh", inner), 1.0)


def gelu_tanh_torch(g: SpellingBuilder, x: str) -> str:
    cube = g.add("Mul", x, g.add("Mul", x, x))
    inner = g.add("Mul", g.add("Add", x, g.add("Mul", cube, 0.044715)), TANH_FACTOR)
    return g.add("Mul", g.add("Mul", x, _tanh(g, inner)), 0.5)


def gelu_tanh_gpt2(g: SpellingBuilder, x: str) -> str:
    inner = g.add("Mul", g.add("Add", x, g.add("Mul", g.add("Pow", x, 3.0), 0.044715)), TANH_FACTOR)
    return g.add("Mul", g.add("Mul", x, 0.5), _tanh(g, inner))


def gelu_tanh_dynamo(g: SpellingBuilder, x: str) -> str:
    inner = g.add("Mul", g.add("Add", x, g.add("Mul", 0.044715, g.add("Pow", x, 3.0))), TANH_FACTOR)
    return g.add("Mul", x, g.add("Mul", 0.5, _tanh(g, inner)))


def gelu_tanh_fast(g: SpellingBuilder, x: str) -> str:
    """Megatron: 0.79788456 * x * (1 + 0.044715 * x * x)."""
    inner = g.add("Mul", g.add("Mul", x, TANH_FACTOR), g.add("Add", g.add("Mul", g.add("Mul", x, 0.044715), x), 1.0))
    return g.add("Mul", g.add("Mul", x, 0.5), _tanh(g, inner))


def silu(g: SpellingBuilder, x: str) -> str:
    return g.add("Mul", x, g.add("Sigmoid", x))


def silu_by_exponential(g: SpellingBuilder, x: str) -> str:
    return g.add("Div", x, g.add("Add", g.add("Exp", g.add("Neg", x)), 1.0))


def quick_gelu(g: SpellingBuilder, x: str) -> str:
    return g.add("Mul", x, g.add("Sigmoid", g.add("Mul", x, 1.702)))


def hard_swish_gate(g: SpellingBuilder, x: str) -> str:
    return g.add("Mul", x, g.add("HardSigmoid", x, alpha=1 / 6, beta=0.5))


def _relu6(g: SpellingBuilder, x: str) -> str:
    shifted = g.add("Add", x, 3.0)
    if g.opset < 11:
        return g.add("Clip", shifted, min=0.0, max=6.0)
    return g.add("Clip", shifted, np.float32(0), np.float32(6))


def hard_swish_divided_last(g: SpellingBuilder, x: str) -> str:
    return g.add("Div", g.add("Mul", x, _relu6(g, x)), 6.0)


def hard_swish_gate_divided(g: SpellingBuilder, x: str) -> str:
    return g.add("Mul", x, g.add("Div", _relu6(g, x), 6.0))


def hard_swish_scaled(g: SpellingBuilder, x: str) -> str:
    return g.add("Mul", g.add("Mul", x, _relu6(g, x)), 1 / 6)


def mish(g: SpellingBuilder, x: str) -> str:
    return g.add("Mul", x, g.add("Tanh", g.add("Softplus", x)))


def mish_by_logarithm(g: SpellingBuilder, x: str) -> str:
    return g.add("Mul", x, g.add("Tanh", g.add("Log", g.add("Add", g.add("Exp", x), 1.0))))


def softplus_by_logarithm(g: SpellingBuilder, x: str) -> str:
    return g.add("Log", g.add("Add", g.add("Exp", x), 1.0))


def softplus_steep(g: SpellingBuilder, x: str) -> str:
    return g.add("Div", g.add("Softplus", g.add("Mul", x, 2.0)), 2.0)


def softplus_with_threshold(g: SpellingBuilder, x: str) -> str:
    return g.add("Where", g.add("Greater", x, 20.0), x, g.add("Softplus", x))


def softplus_steep_with_threshold(g: SpellingBuilder, x: str) -> str:
    steep = g.add("Mul", x, 2.0)
    return g.add("Where", g.add("Greater", steep, 20.0), x, g.add("Div", g.add("Softplus", steep), 2.0))


def leaky_relu_maximum(g: SpellingBuilder, x: str) -> str:
    """TensorFlow."""
    return g.add("Max", g.add("Mul", x, 0.25), x)


GELU = {"activation": "Gelu"}
GELU_TANH = {"activation": "GeluTanh"}
SILU = {"activation": "Swish", "activation_params": [1.0]}
QUICK_GELU = {"activation": "Swish", "activation_params": [float(np.float32(1.702))]}
HARD_SWISH = {"activation": "HardSwish", "activation_params": [float(np.float32(1 / 6)), 0.5]}
LEAKY_RELU = {"activation": "LeakyRelu", "activation_params": [0.25]}
SOFTPLUS = {"activation": "Softplus", "activation_params": [1.0]}
SOFTPLUS_2 = {"activation": "Softplus", "activation_params": [2.0]}

#: Spelling, first opset that has its operators, configuration.
TABLE: list[tuple[Spelling, int, dict[str, Any]]] = [
    (gelu_torch_legacy, 9, GELU),
    (gelu_torch_dynamo, 9, GELU),
    (gelu_bert, 9, GELU),
    (gelu_halved_by_division, 9, GELU),
    (gelu_half_of_erf, 9, GELU),
    (gelu_tanh_torch, 7, GELU_TANH),
    (gelu_tanh_gpt2, 7, GELU_TANH),
    (gelu_tanh_dynamo, 7, GELU_TANH),
    (gelu_tanh_fast, 7, GELU_TANH),
    (silu, 7, SILU),
    (silu_by_exponential, 7, SILU),
    (quick_gelu, 7, QUICK_GELU),
    (hard_swish_gate, 7, HARD_SWISH),
    (hard_swish_divided_last, 7, HARD_SWISH),
    (hard_swish_gate_divided, 7, HARD_SWISH),
    (hard_swish_scaled, 7, HARD_SWISH),
    (mish, 7, {"activation": "Mish"}),
    (mish_by_logarithm, 7, {"activation": "Mish"}),
    (softplus_by_logarithm, 7, SOFTPLUS),
    (softplus_steep, 7, SOFTPLUS_2),
    (softplus_with_threshold, 9, SOFTPLUS),
    (softplus_steep_with_threshold, 9, SOFTPLUS_2),
    # Max broadcasts from opset 8 on.
    (leaky_relu_maximum, 8, LEAKY_RELU),
]
OPSETS = (7, 9, 11, 13, 14, 17, 20, 24)


def _feeds(dtype: str = "float32") -> dict[str, Any]:
    return {"x": np.linspace(-6, 6, math.prod(SHAPE)).reshape(SHAPE).astype(dtype)}


def _model(spelling: Spelling, g: SpellingBuilder, bias: bool = False) -> onnx.ModelProto:
    x = g.input("x", SHAPE)
    g.output(spelling(g, g.add("Add", x, g.weight(16)) if bias else x), SHAPE)
    return g.model("activation")


SINCE = {spelling: since for spelling, since, _ in TABLE}
SPELLINGS = [(spelling, expected) for spelling, _, expected in TABLE]


@parametrize_spread(
    "spelling,expected,opset", SPELLINGS, OPSETS, each=2, where=lambda row, opset: opset >= SINCE[row[0]]
)
def test_spelling_at_every_opset(spelling: Spelling, expected: dict[str, Any], opset: int) -> None:
    check_fused(_model(spelling, SpellingBuilder(opset)), _feeds(), "FusedActivation", expected)


@parametrize_spread("spelling,expected,constants,swap", SPELLINGS, CONSTANT_FORMS, [False, True], each=2)
def test_constants_and_operand_order(spelling: Spelling, expected: dict[str, Any], constants: str, swap: bool) -> None:
    model = _model(spelling, SpellingBuilder(13, constants=constants, swap=swap))
    check_fused(model, _feeds(), "FusedActivation", expected)


@parametrize_spread("spelling,expected,swap", SPELLINGS, [False, True], each=1)
def test_bias_in_front(spelling: Spelling, expected: dict[str, Any], swap: bool) -> None:
    model = _model(spelling, SpellingBuilder(13, swap=swap), bias=True)
    node = check_fused(model, _feeds(), "FusedActivation", expected)
    assert set(harness.read_node(node).inputs) == {"X", "bias"}


def test_bias_behind_a_convolution_is_left_to_it() -> None:
    """ONNX Runtime makes the bias one of the Conv, where it costs nothing."""
    g = SpellingBuilder(13)
    y = g.add("Conv", g.input("x", (1, 4, 8, 8)), g.weight(4, 4, 1, 1))
    g.output(gelu_bert(g, g.add("Add", y, g.weight(1, 4, 1, 1))), (1, 4, 8, 8))
    model, _ = optimize(g.model("conv"))
    assert [node.op_type for node in model.graph.node] == ["Conv", "Add", "FusedActivation_Activation"]


@pytest.mark.parametrize(
    ("spelling", "expected"),
    [row[::2] for row in TABLE if row[0] not in (hard_swish_divided_last, hard_swish_gate_divided, hard_swish_scaled)],
)
def test_half_precision(spelling: Spelling, expected: dict[str, Any]) -> None:
    model = _model(spelling, SpellingBuilder(13, "float16"))
    portable, _ = optimize(model)
    (node,) = fused_nodes(portable)
    check_fused(model, _feeds("float16"), "FusedActivation", _rounded(expected, node))


def _rounded(expected: dict[str, Any], node: onnx.NodeProto) -> dict[str, Any]:
    """A parameter is the value that the model's own type has for it."""
    if expected is not QUICK_GELU:
        return expected
    return {**expected, "activation_params": [float(np.float16(1.702))]}


# --- what only looks like one ---------------------------------------------------------------------------------------


def _another_root(g: SpellingBuilder, x: str) -> str:
    erf = g.add("Erf", g.add("Div", x, 1.42))
    return g.add("Mul", g.add("Mul", x, g.add("Add", erf, 1.0)), 0.5)


def _another_half(g: SpellingBuilder, x: str) -> str:
    return g.add("Mul", g.add("Mul", x, g.add("Add", _erf(g, x), 1.0)), 0.49)


def _another_x(g: SpellingBuilder, x: str) -> str:
    return g.add("Mul", g.add("Mul", g.input("z", SHAPE), g.add("Add", _erf(g, x), 1.0)), 0.5)


def _another_cubic(g: SpellingBuilder, x: str) -> str:
    inner = g.add("Mul", g.add("Add", x, g.add("Mul", g.add("Pow", x, 3.0), 0.0447)), TANH_FACTOR)
    return g.add("Mul", g.add("Mul", x, 0.5), _tanh(g, inner))


def _another_clip(g: SpellingBuilder, x: str) -> str:
    clipped = g.add("Clip", g.add("Add", x, 3.0), np.float32(0), np.float32(5))
    return g.add("Div", g.add("Mul", x, clipped), 6.0)


def _gate_of_another(g: SpellingBuilder, x: str) -> str:
    """The gated linear unit."""
    return g.add("Mul", g.input("z", SHAPE), g.add("Sigmoid", x))


def _low_threshold(g: SpellingBuilder, x: str) -> str:
    return g.add("Where", g.add("Greater", x, 2.0), x, g.add("Softplus", x))


def _fraction_above_one(g: SpellingBuilder, x: str) -> str:
    return g.add("Max", g.add("Mul", x, 1.5), x)


def _fraction_of_another(g: SpellingBuilder, x: str) -> str:
    return g.add("Max", g.add("Mul", g.input("z", SHAPE), 0.25), x)


def _erf_is_an_output(g: SpellingBuilder, x: str) -> str:
    erf = _erf(g, x)
    g.output(erf, SHAPE)
    return g.add("Mul", g.add("Mul", x, g.add("Add", erf, 1.0)), 0.5)


def _sigmoid_is_used_elsewhere(g: SpellingBuilder, x: str) -> str:
    gate = g.add("Sigmoid", x)
    g.output(g.add("Exp", gate), SHAPE)
    return g.add("Mul", x, gate)


@pytest.mark.parametrize(
    ("spelling", "reason"),
    [
        (_another_root, "different_formula"),
        (_another_half, "different_formula"),
        (_another_x, "different_formula"),
        (_another_cubic, "different_formula"),
        (_another_clip, "different_formula"),
        (_gate_of_another, "nothing_to_fuse"),
        (_low_threshold, "different_formula"),
        (_erf_is_an_output, "is_graph_output"),
        (_sigmoid_is_used_elsewhere, "has_other_consumers"),
    ],
)
def test_near_miss_is_left_with_its_reason(spelling: Spelling, reason: str) -> None:
    model = _model(spelling, SpellingBuilder(13))
    optimized, result = optimize(model)
    assert optimized == round_trip(model)
    sites = [site for site in result.sites if site.kind == "Activation"]
    assert reason in [site.reason for site in sites], sites


def _threshold(compared: float | None, threshold: float, steepness: float | None) -> Spelling:
    """Where(compared * x > threshold, x, Softplus(steepness * x) / steepness)."""

    def build(g: SpellingBuilder, x: str) -> str:
        left = x if compared is None else g.add("Mul", x, compared)
        value = g.add("Softplus", x if steepness is None else g.add("Mul", x, steepness))
        value = value if steepness is None else g.add("Div", value, steepness)
        return g.add("Where", g.add("Greater", left, threshold), x, value)

    return build


@pytest.mark.parametrize(
    ("compared", "threshold", "steepness", "fused"),
    [
        (None, 20.0, None, True),
        (2.0, 20.0, 2.0, True),
        (None, 20.0, 2.0, True),
        (2.0, 40.0, None, True),
        (0.5, 1.0, 10.0, True),
        (2.0, 20.0, None, False),  # linear from 10 on
        (None, 20.0, 0.5, False),  # at 20 the exponent is 10
        (-2.0, 20.0, None, False),
        (-2.0, 20.0, -2.0, False),
        (None, 20.0, -1.0, False),
        (0.0, 20.0, None, True),  # never true
        (None, math.nan, None, True),
    ],
)
def test_softplus_is_linear_only_where_that_makes_no_difference(
    compared: float | None, threshold: float, steepness: float | None, fused: bool
) -> None:
    model = _model(_threshold(compared, threshold, steepness), SpellingBuilder(13))
    feeds = {"x": np.linspace(-50, 50, math.prod(SHAPE)).reshape(SHAPE).astype(np.float32)}
    optimized, result = optimize(model)
    assert ("Where" not in [node.op_type for node in optimized.graph.node]) == fused, result.sites
    (name,) = run(model, feeds, optimized=False)
    np.testing.assert_allclose(run(optimized, feeds)[name], run(model, feeds, optimized=False)[name], rtol=1e-6)


@pytest.mark.parametrize("spelling", [_fraction_above_one, _fraction_of_another])
def test_maximum_that_is_no_leaky_relu(spelling: Spelling) -> None:
    model = _model(spelling, SpellingBuilder(13))
    optimized, result = optimize(model)
    assert optimized == round_trip(model)
    assert not result.sites


def test_constants_cast_to_the_type_of_a_value_of_the_chain() -> None:
    """torch.onnx of onnxscript before 0.2: CastLike(constant, value) for every number."""
    g = SpellingBuilder(17)
    x = g.input("x", SHAPE)
    half = g.add("Mul", x, g.add("CastLike", np.float64(0.5), x))
    cube = g.add("Pow", x, g.add("CastLike", np.float64(3), x))
    inner = g.add("Add", x, g.add("Mul", cube, g.add("CastLike", np.float64(0.044715), cube)))
    inner = g.add("Mul", inner, g.add("CastLike", np.float64(TANH_FACTOR), inner))
    tanh = g.add("Tanh", inner)
    g.output(g.add("Mul", half, g.add("Add", tanh, g.add("CastLike", np.float64(1), tanh))), SHAPE)
    check_fused(g.model("m"), _feeds(), "FusedActivation", GELU_TANH)


@pytest.mark.parametrize("op_type", ["Relu", "Sigmoid", "Tanh", "Softplus", "Elu"])
def test_a_single_activation_is_no_site_to_rewrite(op_type: str) -> None:
    model = _model(lambda g, x: g.add(op_type, x), SpellingBuilder(13))
    optimized, result = optimize(model)
    assert optimized == round_trip(model)
    assert [(site.kind, site.reason) for site in result.sites] == [("Activation", "nothing_to_fuse")]


# --- single nodes ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("opset", "op_type", "domain", "attributes", "expected"),
    [
        (20, "Gelu", "", {}, GELU),
        (20, "Gelu", "", {"approximate": "tanh"}, GELU_TANH),
        (14, "HardSwish", "", {}, HARD_SWISH),
        (18, "Mish", "", {}, {"activation": "Mish"}),
        (24, "Swish", "", {"alpha": 1.0}, SILU),
        (13, "Gelu", "com.microsoft", {}, GELU),
        (13, "QuickGelu", "com.microsoft", {"alpha": 1.0}, SILU),
        (13, "QuickGelu", "com.microsoft", {}, QUICK_GELU),
        (13, "FastGelu", "com.microsoft", {}, GELU_TANH),
    ],
)
def test_one_node_that_is_written_out_elsewhere(
    opset: int, op_type: str, domain: str, attributes: dict[str, Any], expected: dict[str, Any]
) -> None:
    """As another tool leaves what we fused: the function inlined, or its body fused by ONNX Runtime."""
    model = _model(lambda g, x: g.add(op_type, x, domain=domain, **attributes), SpellingBuilder(opset))
    check_fused(model, _feeds(), "FusedActivation", expected)


@pytest.mark.parametrize(("op_type", "expected"), [("BiasGelu", GELU), ("FastGelu", GELU_TANH)])
def test_node_with_a_bias_of_its_own(op_type: str, expected: dict[str, Any]) -> None:
    model = _model(lambda g, x: g.add(op_type, x, g.weight(16), domain="com.microsoft"), SpellingBuilder(13))
    node = check_fused(model, _feeds(), "FusedActivation", expected)
    assert set(harness.read_node(node).inputs) == {"X", "bias"}


# --- PRelu, whose slope is a tensor -----------------------------------------------------------------------------------


def _prelu(g: SpellingBuilder, slope: Any, chain: str, shape: Sequence[int] = SHAPE) -> onnx.ModelProto:
    quantization = (np.float32(0.05), np.int8(3))
    x = g.input("x", shape, "int8" if chain == "dequantised" else None)
    if chain == "dequantised":
        x = g.add("DequantizeLinear", x, *quantization)
    if chain == "normalised":
        d = g.add("Sub", x, g.reduce_mean(x, [-1]))
        x = g.add("Div", d, g.add("Sqrt", g.add("Add", g.reduce_mean(g.add("Pow", d, 2.0), [-1]), 1e-5)))
    y = g.add("PRelu", x, slope)
    if chain == "quantised":
        y = g.add("QuantizeLinear", y, *quantization)
    g.output(y, shape, "int8" if chain == "quantised" else None)
    return g.model("prelu")


@pytest.mark.parametrize("chain", ["normalised", "dequantised", "quantised"])
@pytest.mark.parametrize("shape", [(), (1,), (16,), (4, 1), (4, 16), (1, 4, 1)])
def test_prelu_with_constant_slope(chain: str, shape: tuple[int, ...]) -> None:
    g = SpellingBuilder(13)
    slope = g.constant(np.random.default_rng(6).uniform(0, 0.5, shape).astype(np.float32))
    feeds = _feeds()
    if chain == "dequantised":
        feeds = {"x": np.random.default_rng(6).integers(-128, 128, SHAPE).astype(np.int8)}
    expected = {"activation": "PRelu"} | ({"axes": [-1]} if chain == "normalised" else {})
    operators = {"normalised": "FusedNormalization", "dequantised": "FusedDequantizeLinear"}
    check_fused(_prelu(g, slope, chain), feeds, operators.get(chain, "FusedActivation"), expected)


@pytest.mark.parametrize("chain", ["normalised", "dequantised", "quantised"])
@pytest.mark.parametrize("at_run_time", [True, False])
def test_prelu_that_is_left(chain: str, at_run_time: bool) -> None:
    """A slope that only the caller knows, and one that would enlarge x."""
    g = SpellingBuilder(13)
    slope = g.input("slope", (16,)) if at_run_time else g.weight(2, 3, 4, 16)
    optimized, result = optimize(_prelu(g, slope, chain, SHAPE))
    assert "PRelu" in [node.op_type for node in optimized.graph.node]
    (site,) = (site for site in result.sites if site.kind == "Activation")
    assert site.reason == ("parameter_not_constant" if at_run_time else "shape_mismatch")
