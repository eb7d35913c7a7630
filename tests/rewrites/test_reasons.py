"""The reasons why the pass leaves a site are a closed set, and a model here leads to each of them."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import onnx.parser
import pytest
from rewrite_harness import optimize

from normfuse import graph_rewrites
from normfuse.spec import REASONS

NORM = """
    m = ReduceMean <axes = [-1]> (x)
    d = Sub (x, m)
    q = Pow (d, two)
    v = ReduceMean <axes = [-1]> (q)
    e = Add (v, eps)
    s = Sqrt (e)
    y = Div (d, s)
"""
SPLIT = "vq = QuantizeLinear (v, two, zero)\n vd = DequantizeLinear (vq, two, zero)\n e = Add (vd"
BATCH = "(x, g, g, g, g)"
ONE_TO_ONE = "float[2,4] x) => (float[2,4] y"
#: Reason -> opset, signature, body, kind of the site, a part of its message.
CASES: dict[str, tuple[int, str, str, str, str]] = {
    "unsupported_type": (17, "double[2,4] x) => (double[2,4] y", "y = Gelu (x)", "Activation", "type DOUBLE"),
    "unknown_type_or_rank": (17, "float[] x) => (float[] y", "y = InstanceNormalization (x, g, g)", "", ""),
    "unsupported_rank": (
        13,
        ONE_TO_ONE,
        "y = InstanceNormalization (x, g, g)",
        "InstanceNormalization",
        "2 dimensions",
    ),
    "shape_mismatch": (
        13,
        "float[2,4] x) => (float[3,2,4] y",
        "z = DequantizeLinear (i, two)\n y = PRelu (z, w)",
        "",
        "",
    ),
    "has_other_consumers": (13, f"{ONE_TO_ONE}, float[2,4] z", NORM + "z = Exp (d)", "LayerNormalization", "'d'"),
    "is_graph_output": (13, f"{ONE_TO_ONE}, float[2,4] d", NORM, "LayerNormalization", "an output of the graph"),
    "parameter_not_constant": (
        *(13, "float[2,4] x, float o) => (float[2,4] y", NORM.replace("eps", "o"), "LayerNormalization", "epsilon 'o'"),
    ),
    "attribute_value": (
        *(13, "float[4,4] x) => (float[4,4] y", NORM.replace("[-1]> (x)", "[-1], keepdims = 0> (x)")),
        *("LayerNormalization", "keepdims"),
    ),
    "different_formula": (13, ONE_TO_ONE, NORM.replace("two", "eps"), "LayerNormalization", "is not the constant 2"),
    "training_mode": (
        *(15, "float[2,4,3] x) => (float[2,4,3] y", f"y, r, u = BatchNormalization <training_mode = 1> {BATCH}"),
        *("BatchNormalization", "training mode"),
    ),
    "unsupported_operator": (
        *(8, "float[1,4,2,2] x) => (float[1,4,2,2] y", "y = MeanVarianceNormalization <across_channels = 1> (x)"),
        *("MeanVarianceNormalization", "before opset 9"),
    ),
    "changes_rounding": (13, ONE_TO_ONE, NORM.replace("e = Add (v", SPLIT), "", "quantisation step"),
    "not_profitable": (
        *(13, "float[2,4,3,3] x) => (float[2,4,3,3] y"),
        "c = Conv (x, f)\n b = BatchNormalization (c, g, g, g, g)\n y = Relu (b)",
        *("BatchNormalization", "Conv"),
    ),
    "newer_spec_version": (
        13,
        ONE_TO_ONE,
        'y = ai.normfuse.FusedNormalization <steps = "Normalize axes=-1", spec_version = 99> (x)',
        "",
        "99",
    ),
    "unknown_attribute": (
        13,
        ONE_TO_ONE,
        'y = ai.normfuse.FusedNormalization <steps = "Normalize axes=-1", made_up = 1> (x)',
        "",
        "made_up",
    ),
    "unknown_step": (
        *(13, ONE_TO_ONE, 'y = ai.normfuse.FusedActivation <steps = "Square"> (x)', "FusedActivation", "Square"),
    ),
    "invalid_configuration": (
        *(13, ONE_TO_ONE, 'y = ai.normfuse.FusedNormalization <steps = "Normalize"> (x)', "FusedNormalization", "axes"),
    ),
    "too_many_tensors": (
        *(13, ONE_TO_ONE),
        f'y = ai.normfuse.FusedActivation <steps = "{"; ".join(f"Mul m{i}" for i in range(16))}"> (x{", g" * 16})',
        *("FusedActivation", "16 tensors; at most 15"),
    ),
    "not_connected": (
        *(13, "float[2,4] x, float[2,4] r) => (int8[2,4] y"),
        'n, t = ai.normfuse.FusedNormalization <steps = "Add r; Normalize axes=-1"> (x, r)\n'
        " s = ReduceMax <keepdims = 0> (t)\n"
        "y = QuantizeLinear (n, s, zero)",
        *("QuantizeLinear", "cycle"),
    ),
    "no_standard_form": (
        *(11, ONE_TO_ONE, 'y = ai.normfuse.FusedActivation <steps = "Celu"> (x)', "FusedActivation", "opset 11"),
    ),
    "nothing_to_fuse": (
        13,
        ONE_TO_ONE,
        "e = Exp (x)\n t = Tanh (e)\n y = Neg (t)",
        "Activation",
        "between Exp 'e' and Neg",
    ),
}


def parse(opset: int, signature: str, body: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["" : {opset}, "ai.normfuse" : 1]>
        g ({signature})
        <float two = {{2.0}}, float eps = {{1e-5}}, int8 zero = {{0}}, int8[2,4] i = {{1, 2, 3, 4, 5, 6, 7, 8}},
         float[4] g = {{1, 1, 2, 2}}, float[3,1,4] w = {{1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}}, float[4,4,1,1] f = {{
         1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1}}> {{ {body} }}"""
    )


@pytest.mark.parametrize("reason", CASES)
def test_reason(reason: str) -> None:
    opset, signature, body, kind, words = CASES[reason]
    _, result = optimize(parse(opset, signature, body))
    sites = [site for site in result.sites if site.reason == reason]
    assert sites, result.sites
    assert words in sites[0].message
    assert kind in sites[0].kind
    assert sites[0].advice == REASONS[reason].advice
    assert sites[0].fused_into is None


def given_reasons() -> set[str]:
    """The codes that the sources of the pass give: the first arguments of Declined(...) and Reason(...)."""
    folder = Path(inspect.getfile(graph_rewrites)).parent
    calls = [
        call
        for file in folder.rglob("*.py")
        for call in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id in ("Declined", "Reason")
    ]
    return {call.args[0].value for call in calls if isinstance(call.args[0], ast.Constant)}


def test_every_reason_that_the_pass_gives_has_its_model() -> None:
    faults = {"rule_failed"}  # no model is known that has one: see test_rule_failures.py
    assert given_reasons() == set(CASES) | faults
    assert set(CASES) <= set(REASONS)
