"""A rule with a fault of its own: its site is left with a reason, and the rest of the model is rewritten."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from rewrite_harness import DOMAIN, SpellingBuilder, close, fused_nodes, optimize, run

from normfuse.graph_rewrites.chains_behind import QuantizeOutput
from normfuse.graph_rewrites.formulas import DecomposedActivation
from normfuse.models import spellings

SHAPE = (2, 5, 8)
FEEDS = {"x": np.random.default_rng(3).standard_normal(SHAPE).astype(np.float32)}


def model() -> onnx.ModelProto:
    g = SpellingBuilder(17)
    normal = g.add("LayerNormalization", g.input("x", SHAPE), g.weight(8, mean=1.0), g.weight(8))
    hidden = spellings.activation(g, g.add("MatMul", normal, g.weight(8, 8)), "gelu_erf")
    g.output(g.add("LayerNormalization", hidden, g.weight(8, mean=1.0), g.weight(8)), SHAPE)
    return g.model("m")


@pytest.mark.parametrize("method", ["check", "rewrite"])
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


@pytest.mark.parametrize("target", ["portable", "standard"])
@pytest.mark.parametrize(
    ("opset", "rank", "attributes", "words"),
    [
        (11, 3, {"activation": "Celu"}, "opset 11 has no operator for the activation Celu"),
        (8, 3, {"activation": "Shrink"}, "opset 8 has no operator for the activation Shrink"),
        (9, 3, {"activation": "ThresholdedRelu"}, "opset 9 has no operator for the activation ThresholdedRelu"),
        (13, None, {"affine_align": "channel"}, "needs a tensor of known rank"),
    ],
)
def test_what_cannot_be_written_in_the_targets_form_stays_as_it_is(
    opset: int, rank: int | None, attributes: dict[str, str], words: str, target: str
) -> None:
    """A node of a model for target custom-op, beside a chain that is fused all the same."""
    g = SpellingBuilder(opset)
    x = g.input("x", SHAPE)
    shapeless = g.add("Reshape", x, g.input("shape", ["r"], "int64")) if rank is None else x
    parameters = [g.weight(5)] if "affine_align" in attributes else []
    own = g.add("FusedActivation", shapeless, *parameters, domain=DOMAIN, **attributes)
    norm = g.add("InstanceNormalization", x, g.weight(5), g.weight(5))
    g.output(g.add("Relu", norm), SHAPE)
    g.output(own, [None] * 3 if rank is None else SHAPE)
    made = g.model("m")
    if rank is None:
        made.graph.output[1].type.tensor_type.ClearField("shape")
    optimized, result = optimize(made, target=target)
    (left,) = (site for site in result.sites if site.fused_into is None)
    assert left.reason == "no_standard_form"
    assert words in left.message
    (kept,) = (node for node in optimized.graph.node if node.op_type == "FusedActivation")
    assert kept.output[0] == own
    assert [site.kind for site in result.sites if site.fused_into is not None] == ["InstanceNormalization"]


@pytest.mark.parametrize("shapes", [(SHAPE, None), (SHAPE, [1, *SHAPE]), (None, None)], ids=["x", "y", "nothing"])
@pytest.mark.parametrize(
    ("attributes", "name"),
    [({"steps_behind": "Mul"}, "the operand of Mul"), ({"activation": "PRelu"}, "slope"), ({}, "scale")],
)
def test_operand_with_more_dimensions_than_what_is_normalised(
    attributes: dict[str, str], name: str, shapes: tuple[list[int] | None, list[int] | None]
) -> None:
    """A body would give Y its dimensions, and the library refuses it, whatever the model says of Y."""
    of_x, of_y = shapes
    g = SpellingBuilder(17)
    x = g.input("x", of_x or SHAPE)
    parameter = g.weight(1, *SHAPE)
    place = {"scale": 1, "slope": 15}.get(name, 18)
    given = [parameter if index == place else "" for index in range(1, place + 1)]
    y = g.add("FusedNormalization", x, *given, domain=DOMAIN, axes=[-1], **attributes)
    g.output(y, of_y or SHAPE)
    model = g.model("m")
    if of_y is None:
        model.graph.output[0].type.tensor_type.ClearField("shape")
    if of_x is None:
        model.graph.input[0].type.tensor_type.ClearField("shape")
    _, result = optimize(model)
    (site,) = result.sites
    assert site.reason == (None if of_x is None else "no_standard_form")
    if of_x is not None:
        assert f"{name} has {len(SHAPE) + 1} dimensions, but what is normalised has {len(SHAPE)}" in site.message


@pytest.mark.parametrize(
    ("operator", "attributes", "words"),
    [
        ("FusedNormalization", {"axes": [-1], "epsilon_on": "range"}, "epsilon_on is range; it must be variance or"),
        ("FusedNormalization", {"axes": [-1], "method": "hardmax"}, "method is hardmax"),
        ("FusedNormalization", {"axes": [-1], "affine_align": "left"}, "affine_align is left"),
        ("FusedNormalization", {"axes": [-1], "use_mean": 2}, "use_mean is 2; it must be 0 or 1"),
        ("FusedNormalization", {"axes": [-1], "normalize_variance": -1}, "normalize_variance is -1"),
        ("FusedNormalization", {"axes": [-1], "y_dtype": 99}, "y_dtype is 99, which is no element type"),
        ("FusedNormalization", {"axes": [-1], "sum_dtype": -5}, "sum_dtype is -5"),
        ("FusedNormalization", {"axes": [-1], "num_groups": 3}, "both axes and num_groups"),
        ("FusedNormalization", {"num_groups": -1}, "num_groups is negative"),
        ("FusedNormalization", {}, "axes is missing"),
        ("FusedNormalization", {"axes": [1, 1]}, "twice"),
        ("FusedNormalization", {"axes": [-1], "epsilon": float("nan")}, "NaN"),
        ("FusedNormalization", {"axes": [-1], "method": "softmax", "use_mean": 0}, "a softmax takes axes alone"),
        ("FusedNormalization", {"axes": [-1], "affine_align": "group"}, "num_groups is 0"),
        ("FusedNormalization", {"axes": [-1], "steps_before": "Relu"}, "its steps have Relu"),
        ("FusedActivation", {"y_saturate": 3}, "y_saturate is 3"),
        ("FusedActivation", {"spec_version": 0}, "the first one is 1"),
        ("FusedActivation", {"x_block_size": -2}, "x_block_size is negative"),
        ("FusedActivation", {"activation": "PRelu"}, "needs input slope"),
        ("FusedActivation", {"activation": "Selu", "activation_params": [1.0]}, "has 1 values; Selu takes 2"),
        ("FusedActivation", {"steps_behind": "PRelu"}, "its steps have PRelu"),
        ("FusedDequantizeLinear", {}, "x_scale is missing"),
    ],
)
def test_node_that_the_library_refuses_is_left(operator: str, attributes: dict[str, Any], words: str) -> None:
    g = SpellingBuilder(17)
    g.output(g.add(operator, g.input("x", SHAPE), domain=DOMAIN, **attributes), SHAPE)
    model = g.model("m")
    optimized, result = optimize(model)
    (site,) = result.sites
    assert site.reason == "invalid_configuration"
    assert words in site.message
    assert optimized.graph.node == model.graph.node


@pytest.mark.parametrize(("name", "place"), [("x_zero_point", 4), ("y_zero_point", 6), ("slope", 7)])
def test_input_that_belongs_to_nothing_is_refused(name: str, place: int) -> None:
    g = SpellingBuilder(17)
    inputs = [g.input("x", SHAPE), *[""] * (place - 1), g.weight(8) if name == "slope" else np.int8(3)]
    g.output(g.add("FusedActivation", *inputs, domain=DOMAIN), SHAPE)
    _, result = optimize(g.model("m"))
    (site,) = result.sites
    assert site.reason == "invalid_configuration"
    assert name in site.message


@pytest.mark.parametrize(("name", "place"), [("x_scale", 3), ("y_scale", 5)])
def test_scale_that_broadcasts_in_several_dimensions_has_no_standard_form(name: str, place: int) -> None:
    g = SpellingBuilder(21)
    x = g.input("x", SHAPE, "int8" if name == "x_scale" else "float32")
    y = g.add("FusedActivation", x, *[""] * (place - 1), g.weight(1, 1, 8), domain=DOMAIN, activation="Relu")
    g.output(y, SHAPE, "float32" if name == "x_scale" else "uint8")
    _, result = optimize(g.model("m"))
    (site,) = result.sites
    assert site.reason == "no_standard_form"
    assert f"{name} has 3 dimensions" in site.message


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
