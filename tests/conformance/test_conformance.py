"""ONNX's own node cases through the execution provider, with proof that it ran them.

Every case of the field is here: it passes on the execution provider, or its reason is in the tables below. The counts
are pinned, so that neither a lost claim nor a case that silently disappears goes unnoticed.
"""

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import harness
import pytest
from conformance_cases import DECLINED, PLAIN, NodeCase, assert_close, node_cases, ours, with_constant_limits
from conformance_page import PAGE, page


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
    assert {entry["reason"] for entry in report} <= {DECLINED.get(case.name, (None,))[0]}


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


def test_the_page_of_the_documentation_is_up_to_date() -> None:
    assert PAGE.read_text("utf-8") == page(), "run: PYTHONPATH=tests:tests/conformance python -m conformance_page"
