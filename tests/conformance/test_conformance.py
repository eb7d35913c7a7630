"""ONNX's own node cases through the execution provider, with proof that it ran them.

Every case of the field is here: it passes on the execution provider, or its reason is in the tables below. The counts
are pinned, so that neither a lost claim nor a case that silently disappears goes unnoticed.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import harness
import pytest
from conformance_cases import NodeCase, assert_close, node_cases

# Operators that normfuse does not run, with the reason code that the execution provider gives.
NOT_OURS = {
    "LpNormalization": "unsupported_operator",
    "DynamicQuantizeLinear": "unsupported_operator",
}
NOT_OURS_CASES = {
    "test_dequantizelinear_float4e2m1": "unsupported_type",
    "test_quantizelinear_float4e2m1": "unsupported_type",
    "test_batchnorm_epsilon_training_mode": "training_mode",
    "test_batchnorm_example_training_mode": "training_mode",
}
# onnxruntime 1.31 refuses these before any provider is asked: it has no Celu of opset 28, nor kernels for its body.
HOST_REFUSES = {"test_celu_float16", "test_celu_bfloat16", "test_celu_bfloat16_expanded"}

PLAIN = [case for case in node_cases() if not case.expanded and case.name not in HOST_REFUSES]


def reason_for(case: NodeCase) -> str | None:
    return NOT_OURS_CASES.get(case.name) or NOT_OURS.get(case.op_type)


def report(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


@pytest.mark.parametrize("case", [c for c in PLAIN if reason_for(c) is None], ids=lambda case: case.name)
def test_case_runs_on_the_execution_provider(case: NodeCase) -> None:
    session = harness.create_session(case.model, "ep")
    assert harness.fused_types(session) == [[case.op_type]]
    for inputs, expected in case.data:
        assert_close(case, harness.run(session, inputs), expected)


@pytest.mark.parametrize("case", [c for c in PLAIN if reason_for(c) is not None], ids=lambda case: case.name)
def test_case_that_is_not_ours_is_left_alone_with_its_reason(case: NodeCase, tmp_path: Path) -> None:
    path = tmp_path / "claims.jsonl"
    if "float4" in case.name:  # no kernel anywhere
        with pytest.raises(Exception, match="NOT_IMPLEMENTED"):
            harness.create_session(case.model, "ep", claim_report=str(path))
    else:
        session = harness.create_session(case.model, "ep", claim_report=str(path))
        assert harness.ep_groups(session) == []
        for inputs, expected in case.data:
            assert_close(case, harness.run(session, inputs), expected)
    assert [entry["reason"] for entry in report(path)] == [reason_for(case)]


def test_counts() -> None:
    """A case that disappears from (or appears in) the installed onnx changes these numbers."""
    ours = Counter(case.op_type for case in PLAIN if reason_for(case) is None)
    assert (ours["LayerNormalization"], ours["RMSNormalization"]) == (19, 19)
    assert (ours["QuantizeLinear"], ours["DequantizeLinear"]) == (12, 13)
    assert sum(ours.values()) == 114
    assert sum(reason_for(case) is not None for case in PLAIN) == 13
    assert sum(case.expanded for case in node_cases()) == 110
