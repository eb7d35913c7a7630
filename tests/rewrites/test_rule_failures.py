"""A rule with a fault of its own: its site is left with a reason, and the rest of the model is rewritten."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import onnx
import pytest
from corpus_reader import model_of
from rewrite_harness import DOMAIN, SpellingBuilder, close, fused_nodes, optimize, run

from normfuse.graph_rewrites.chains.chains_behind import QuantizeOutput
from normfuse.graph_rewrites.spellings.decomposed_activations import DecomposedActivation
from normfuse.models import spellings

SHAPE = (2, 5, 8)
FEEDS = {"x": np.random.default_rng(3).standard_normal(SHAPE).astype(np.float32)}


def model() -> onnx.ModelProto:
    g = SpellingBuilder(17)
    normal = g.add("LayerNormalization", g.input("x", SHAPE), g.weight(8, mean=1.0), g.weight(8))
    hidden = spellings.activation(g, g.add("MatMul", normal, g.weight(8, 8)), "gelu_erf")
    g.output(g.add("LayerNormalization", hidden, g.weight(8, mean=1.0), g.weight(8)), SHAPE)
    return g.model("m")


@pytest.mark.parametrize("method", ["check", "results"])
@pytest.mark.parametrize(
    "fault", [AttributeError("'NoneType' object has no attribute 'dim'"), TypeError(), KeyError(3)]
)
def test_site_is_left_and_the_rest_is_rewritten(monkeypatch: pytest.MonkeyPatch, method: str, fault: Exception) -> None:
    def failing(*_: Any, **__: Any) -> None:
        raise fault

    monkeypatch.setattr(DecomposedActivation, method, failing)
    original = model()
    optimized, result = optimize(original)
    assert len(fused_nodes(optimized)) == 2
    (site,) = (site for site in result.sites if site.reason == "rule_failed")
    assert site.fused_into is None
    assert "DecomposedActivation" in site.message
    assert f"{type(fault).__name__}: {fault}" in site.message
    assert "report" in site.advice
    assert site.name in {node.name for node in optimized.graph.node}
    (expected,), (got,) = run(original, FEEDS).values(), run(optimized, FEEDS).values()
    close(got, expected, "result")


@pytest.mark.parametrize(
    ("operator", "steps", "words"),
    [
        ("FusedNormalization", "Normalize axes=-1 epsilon_on=range", "epsilon_on is 'range', which is not variance or"),
        ("FusedNormalization", "Softmax axes=-1 use_mean=0", "step 1 (Softmax) takes no argument use_mean"),
        ("FusedNormalization", "Normalize axes=-1; Mul s align=left", "step 2 (Mul): align is 'left', which is not"),
        ("FusedNormalization", "Add s align=channel; Normalize axes=-1", "align is of steps behind"),
        ("FusedNormalization", "Normalize axes=-1 use_mean=2", "use_mean is '2', which is not 0 or 1"),
        ("FusedNormalization", "Normalize axes=-1 normalize_variance=-1", "normalize_variance is '-1'"),
        ("FusedNormalization", "Normalize axes=-1; Store type=float99", "type is 'float99', which is not an element"),
        ("FusedNormalization", "Emit type=string; Normalize axes=-1", "step 1 (Emit): type is 'string'"),
        ("FusedNormalization", "Normalize axes=-1 num_groups=3", "axes and num_groups exclude each other"),
        ("FusedNormalization", "Normalize num_groups=-1", "num_groups is negative"),
        ("FusedNormalization", "Normalize", "axes is missing"),
        ("FusedNormalization", "Normalize axes=1,1", "twice"),
        ("FusedNormalization", "Normalize axes=1.5", "axes is '1.5', which is not a list of whole numbers"),
        ("FusedNormalization", "Normalize axes=1 axes=2", "step 1 (Normalize): axes is given twice"),
        ("FusedNormalization", "Normalize axes=-1 epsilon=nan", "NaN"),
        ("FusedNormalization", "Normalize axes=-1 epsilon=1e", "epsilon is '1e', which is not a number"),
        ("FusedNormalization", "Normalize axes=-1 epsilon=-1e39", "epsilon is '-1e39', which is not a number"),
        ("FusedNormalization", "Normalize axes=-1; Mul s align=group", "align=group, but num_groups is 0"),
        ("FusedNormalization", "Relu; Normalize axes=-1", "step 2 (Normalize) cannot stand behind step 1 (Relu)"),
        ("FusedNormalization", "Normalize axes=-1; Mul s; Add s", "step 3 (Add): the label s stands twice"),
        ("FusedNormalization", "Normalize axes=-1;", "step 2 is empty"),
        ("FusedNormalization", "Gelu", "its steps have no normalisation"),
        ("FusedActivation", "Normalize axes=-1", "which belongs to FusedNormalization"),
        ("FusedActivation", "Quantize scale=s saturate=3", "saturate is '3', which is not 0 or 1"),
        ("FusedActivation", "Quantize scale=s block_size=-2", "y_block_size is negative"),
        ("FusedActivation", "Quantize zero_point=s", "y_scale, is missing, but y_zero_point is given"),
        ("FusedActivation", "Dequantize zero_point=s; Gelu", "x_scale, is missing, but x_zero_point is given"),
        ("FusedActivation", "PRelu", "step 1 (PRelu) has no operand, its slope"),
        ("FusedActivation", "Gelu s", "step 1 (Gelu) has the operand s, a slope, but takes none"),
        ("FusedActivation", "Mul s t", "'t' is no argument, key=value"),
        ("FusedActivation", "Selu beta=1", "step 1 (Selu) takes no argument beta"),
        ("FusedActivation", "Gelu; Dequantize scale=s", "step 2 (Dequantize) cannot stand behind step 1 (Gelu)"),
        ("FusedDequantizeLinear", "Gelu", "its steps have no Dequantize"),
        ("FusedActivation", "Gelu; Mul s zero_point=t", "s_scale, is missing, but s_zero_point is given"),
        ("FusedActivation", "Celu alpha=0", "Celu: alpha is 0, by which it divides"),
        ("FusedActivation", "Gelu; Store type=int8", "Store: it does not store int8"),
        ("FusedActivation", "Quantize scale=s type=int32", "Quantize: it does not store int32"),
        ("FusedNormalization", "Normalize axes=8", "axes [8] has one out of range"),
        ("FusedNormalization", "Emit type=float16; Emit; Normalize axes=-1", "sum has several steps, Emit and Emit"),
        ("FusedNormalization", "Emit; Add s; Normalize axes=-1", "Add stands behind the step that makes the output"),
    ],
)
def test_node_that_the_pass_cannot_read_is_left(operator: str, steps: str, words: str) -> None:
    g = SpellingBuilder(17)
    parameters = [g.weight(8) for label in ("s", "t") if re.search(rf"[ =]{label}\b", steps)]
    g.output(g.add(operator, g.input("x", SHAPE), *parameters, domain=DOMAIN, steps=steps), SHAPE)
    model = g.model("m")
    optimized, result = optimize(model)
    (site,) = result.sites
    assert site.reason == "invalid_configuration"
    assert words in site.message
    assert optimized.graph.node == model.graph.node


def test_endless_name_of_a_step_is_cut_in_the_message() -> None:
    g = SpellingBuilder(17)
    g.output(g.add("FusedActivation", g.input("x", SHAPE), domain=DOMAIN, steps="A" * 1_000_000), SHAPE)
    _, result = optimize(g.model("m"))
    (site,) = result.sites
    assert site.reason == "unknown_step"
    assert "AAA..." in site.message
    assert len(site.message) < 1000


def test_rule_that_fails_on_a_fused_node_leaves_it_fused(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: Any, **__: Any) -> None:
        raise AttributeError

    monkeypatch.setattr(QuantizeOutput, "check", failing)
    g = SpellingBuilder(17)
    normal = g.add("LayerNormalization", g.input("x", SHAPE), g.weight(8, mean=1.0), g.weight(8))
    g.output(g.add("QuantizeLinear", normal, np.float32(0.05), np.int8(0)), SHAPE, "int8")
    optimized, result = optimize(g.model("m"))
    assert [node.op_type for node in optimized.graph.node] == [
        "FusedNormalization_LayerNormalization",
        "QuantizeLinear",
    ]
    assert [(site.kind, site.reason) for site in result.sites] == [
        ("LayerNormalization", None),
        ("QuantizeLinear", "rule_failed"),
    ]


@pytest.mark.parametrize(
    "operators",
    [["LeakyRelu"], ["Relu", "Mul", "ThresholdedRelu"]],
)
def test_number_that_is_none_is_left(operators: list[str]) -> None:
    """No kernel takes NaN: a node with it, as target custom-op writes it, would not load."""
    g = SpellingBuilder(17)
    value = g.add("LayerNormalization", g.input("x", SHAPE), g.weight(8, mean=1.0), g.weight(8))
    for name in operators:
        value = g.add(name, value, *([g.weight(8)] if name == "Mul" else []))
    g.output(value, SHAPE)
    model = g.model("nan")
    model.graph.node[-1].attribute.append(onnx.helper.make_attribute("alpha", float("nan")))
    _, result = optimize(model, target="custom-op")
    left = [site for site in result.sites if site.fused_into is None]
    assert [site.reason for site in left] == ["attribute_value"]
    assert f"attribute alpha of {operators[-1]} is NaN" in result.sites[0].message + left[0].message


def test_epsilon_that_is_no_number_is_left() -> None:
    model = model_of("LayerNormalization(x, scale[8], bias[8])")
    model.graph.node[0].attribute.append(onnx.helper.make_attribute("epsilon", float("nan")))
    _, result = optimize(model, target="custom-op")
    assert [(site.reason, site.fused_into) for site in result.sites] == [("attribute_value", None)]
