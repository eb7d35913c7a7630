"""What a session is to make of a model: decided from facts alone."""

from __future__ import annotations

import numpy as np
import pytest

import normfuse
from normfuse import models
from normfuse.files.model_files import load_model
from normfuse.sessions import AllowedChanges as Allowed
from normfuse.sessions.plan import MOST_BYTES, HostFacts, ModelFacts, converts_to_qdq, plan_session
from normfuse.sessions.session_model import plan_of

DETECTOR = ModelFacts(chains_of_convolutions=True)
INT8 = ModelFacts(frozenset({"INT8"}), chains_of_convolutions=True)
NARROW = ModelFacts(chains_of_convolutions=True, is_narrow=True)
LARGE = ModelFacts(chains_of_convolutions=True, weight_bytes=MOST_BYTES)
DEPTHWISE = ModelFacts(frozenset({"INT8"}), chains_of_convolutions=True, is_faster_in_float=True)
AS_THEY_ARE, INTEGER, EXACT = ("as they are",), ("integer",), ("exact integer",)
OF_CONVOLUTIONS, AS_GIVEN = "of convolutions", "as given"
X86, ARM = HostFacts(), HostFacts(is_x86=False)

CASES = {
    "transformer": (ModelFacts(), X86, Allowed(), AS_THEY_ARE, AS_GIVEN, "no chain stands between"),
    "detector": (DETECTOR, X86, Allowed(), AS_THEY_ARE, OF_CONVOLUTIONS, "chains stand between convolutions"),
    "detector on Arm": (DETECTOR, ARM, Allowed(), AS_THEY_ARE, OF_CONVOLUTIONS, "chains stand between"),
    "not all optimisations": (DETECTOR, HostFacts(lays_out=False), Allowed(), AS_THEY_ARE, AS_GIVEN, "optimisations"),
    "nothing compiled": (DETECTOR, HostFacts(compiles=False), Allowed(), AS_THEY_ARE, AS_GIVEN, "compile is 0"),
    "layout left": (DETECTOR, X86, Allowed(blocked_layout=False), AS_THEY_ARE, AS_GIVEN, "blocked_layout is off"),
    "float16": (NARROW, X86, Allowed(), AS_THEY_ARE, AS_GIVEN, "float16"),
    "a gibibyte": (LARGE, X86, Allowed(), AS_THEY_ARE, AS_GIVEN, "1 GiB"),
    "int8": (INT8, X86, Allowed(), INTEGER, OF_CONVOLUTIONS, "activations are int8"),
    "int8 without VNNI": (INT8, HostFacts(sums_saturate=True), Allowed(), EXACT, OF_CONVOLUTIONS, "saturate here"),
    "uint8": (ModelFacts(frozenset({"UINT8"})), X86, Allowed(), AS_THEY_ARE, AS_GIVEN, "no activation is int8"),
    "uint16": (ModelFacts(frozenset({"UINT16"})), X86, Allowed(), AS_THEY_ARE, AS_GIVEN, "no activation is int8"),
    "products left": (INT8, X86, Allowed(choose_products=False), AS_THEY_ARE, OF_CONVOLUTIONS, "choose_products"),
    "depthwise": (DEPTHWISE, X86, Allowed(), ("float", "integer"), OF_CONVOLUTIONS, "faster in float"),
    "depthwise on Arm": (DEPTHWISE, ARM, Allowed(), INTEGER, OF_CONVOLUTIONS, "int8"),
    "depthwise, layout left": (DEPTHWISE, X86, Allowed(blocked_layout=False), INTEGER, AS_GIVEN, "int8"),
}


@pytest.mark.parametrize("case", CASES)
def test_plans(case: str) -> None:
    model, host, allowed, products, layout, reason = CASES[case]
    plan = plan_session(model, host, allowed)
    assert (plan.products, plan.layout) == (products, layout)
    assert reason in str(plan)
    assert "\n" not in str(plan)
    assert plan.shapes_before_dequantization == bool(model.activations & {"INT8", "UINT8"})


@pytest.mark.parametrize(
    ("host", "allowed", "expected"),
    [
        (X86, Allowed(), True),
        (ARM, Allowed(), False),
        (HostFacts(makes_operators=False), Allowed(), False),
        (X86, Allowed(choose_products=False), False),
        (ARM, Allowed(remove_quantization=True), True),
    ],
)
def test_when_operators_become_pairs(host: HostFacts, allowed: Allowed, expected: bool) -> None:
    assert converts_to_qdq(host, allowed) == expected


@pytest.mark.parametrize("becomes_qdq", [True, False])
def test_operators_become_pairs(becomes_qdq: bool) -> None:
    plan = plan_session(ModelFacts(becomes_qdq=becomes_qdq), X86, Allowed())
    assert plan.as_qdq == becomes_qdq
    assert ("form=Q/DQ pairs" in str(plan)) == becomes_qdq


def test_a_line_of_the_log_says_it(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NORMFUSE_CACHE", "0")
    model = models.ocr_block()
    with caplog.at_level("INFO", logger="normfuse"):
        session = normfuse.InferenceSession(model)
    session.run(None, {"x": np.zeros((1, 3, 48, 32), np.float32)})
    (line,) = (record.getMessage() for record in caplog.records if "session plan" in record.getMessage())
    assert "products=as they are" in line
    assert "off in ONNX Runtime: " in line


def test_a_plan_alone_changes_nothing() -> None:
    source = load_model(models.ocr_block())
    before = [node.op_type for node in source.model.graph]
    assert "products=as they are" in str(plan_of(source))
    assert [node.op_type for node in source.model.graph] == before


@pytest.mark.parametrize(("operator", "layout"), [("Sigmoid", OF_CONVOLUTIONS), ("Gelu", AS_GIVEN)])
def test_the_layout_of_integers_needs_something_elementwise_in_integers(operator: str, layout: str) -> None:
    g = models.GraphBuilder(opset=20)
    scale, zero = g.constant(np.float32(0.05)), g.constant(np.uint8(128))
    y = g.input("x", (1, 16, 8, 8))
    for following in ("Conv", operator, "Flatten", "Relu"):
        y = g.add("DequantizeLinear", g.add("QuantizeLinear", y, scale, zero), scale, zero)
        y = g.add(following, y, *([g.weight(16, 16, 1, 1)] if following == "Conv" else []))
    g.output(y, (1, 1024))
    assert plan_of(load_model(g.model(operator))).layout == layout
