"""ONNX's own node cases through the execution provider, with proof that it ran them.

Every case of the field is here: it passes on the execution provider, or its reason is in the tables below. The counts
are pinned, so that neither a lost claim nor a case that silently disappears goes unnoticed.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import harness
import pytest
from conformance_cases import NodeCase, assert_close, node_cases, with_constant_limits

# Not run by normfuse, and why. The provider gives a reason for what lies in its field; other operators it passes over.
NO_OPERATOR_OF_OURS = {
    "LpNormalization": "divides by a norm of its own, without mean, variance or epsilon",
    "DynamicQuantizeLinear": "has its quantisation parameters as results",
    "BatchNormalization": "has its statistics as inputs: a scale and a bias that ORT folds into a convolution",
}
DECLINED = {
    "test_dequantizelinear_float4e2m1": "unsupported_type",
    "test_quantizelinear_float4e2m1": "unsupported_type",
    "test_clip_default_int8_inbounds": "unsupported_type",
    "test_clip_default_int8_max": "unsupported_type",
    "test_clip_default_int8_min": "unsupported_type",
}
# onnxruntime 1.31 refuses these before any provider is asked: it has no Celu of opset 28, nor kernels for its body.
HOST_REFUSES = {"test_celu_float16", "test_celu_bfloat16", "test_celu_bfloat16_expanded"}

PLAIN = [case for case in node_cases() if not case.expanded and case.name not in HOST_REFUSES]


def ours(case: NodeCase) -> bool:
    return case.op_type not in NO_OPERATOR_OF_OURS and case.name not in DECLINED


def names(cases: Iterable[NodeCase]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("case", list(cases), ids=lambda case: case.name)


@names(case for case in PLAIN if ours(case))
def test_case_runs_on_the_execution_provider(case: NodeCase) -> None:
    case = with_constant_limits(case) if case.op_type == "Clip" else case
    session = harness.create_session(case.model, "ep")
    assert harness.fused_types(session) == [[case.op_type]]
    for inputs, expected in case.data:
        assert_close(case, harness.run(session, inputs), expected)


@names(case for case in PLAIN if not ours(case))
def test_case_that_is_not_ours_is_left_alone(case: NodeCase, tmp_path: Path) -> None:
    path = tmp_path / "claims.jsonl"
    if "float4" in case.name:  # no kernel anywhere
        with pytest.raises(Exception, match="NOT_IMPLEMENTED"):
            harness.create_session(case.model, "ep", claim_report=str(path))
    else:
        session = harness.create_session(case.model, "ep", claim_report=str(path))
        assert harness.ep_groups(session) == []
        for inputs, expected in case.data:
            assert_close(case, harness.run(session, inputs), expected)
    report = [json.loads(line) for line in path.read_text("utf-8").splitlines()] if path.exists() else []
    assert {entry["reason"] for entry in report} <= {DECLINED.get(case.name)}


@names(case for case in PLAIN if case.op_type == "Clip" and len(case.model.graph.input) > 1)
def test_clip_with_limits_known_only_at_run_time_is_left_alone(case: NodeCase) -> None:
    session = harness.create_session(case.model, "ep")
    assert harness.ep_groups(session) == []
    for inputs, expected in case.data:
        assert_close(case, harness.run(session, inputs), expected)


def test_counts() -> None:
    """A case that disappears from (or appears in) the installed onnx changes these numbers."""
    count = Counter(case.op_type for case in PLAIN if ours(case))
    assert (count["LayerNormalization"], count["RMSNormalization"]) == (19, 19)
    assert (count["QuantizeLinear"], count["DequantizeLinear"], count["Clip"]) == (12, 13, 9)
    assert sum(count.values()) == 113
    assert len(PLAIN) == 131
    assert sum(case.expanded for case in node_cases()) == 110
