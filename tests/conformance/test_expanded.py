"""ONNX's node cases in their expanded form (the operator's function body) through the rewriting pass."""

from collections import Counter

import harness
import onnx
import pytest
from conformance_cases import EXPANDED, EXPANDED_FUSED, EXPANDED_LEFT, NodeCase, assert_close

import normfuse


def fused(model: onnx.ModelProto) -> list[str]:
    return [node.op_type for node in model.graph.node if node.domain == harness.DOMAIN]


@pytest.mark.parametrize("case", EXPANDED, ids=lambda case: case.name)
def test_expanded_case_stays_right(case: NodeCase) -> None:
    """With the provider and without normfuse; the provider runs every fused call."""
    optimized = normfuse.optimize(case.model, verify=False).model
    session = harness.create_session(optimized, "ep")
    ran = [node.op_type for group in harness.ep_groups(session) for node in group]
    assert set(fused(optimized)) <= set(ran)
    plain = harness.create_session(optimized, "cpu")
    for inputs, expected in case.data:
        assert_close(case, harness.run(session, inputs), expected)
        assert_close(case, harness.run(plain, inputs), expected)


def test_every_body_is_found_or_has_its_reason() -> None:
    results = {case.name: normfuse.optimize(case.model, verify=False) for case in EXPANDED}
    found = Counter(case.op_type for case in EXPANDED if fused(results[case.name].model))
    assert found == EXPANDED_FUSED
    assert len(EXPANDED) == 109
    assert {case.op_type for case in EXPANDED} == {*EXPANDED_FUSED, *EXPANDED_LEFT}
    assert not EXPANDED_FUSED.keys() & EXPANDED_LEFT.keys()
    assert not [site for result in results.values() for site in result.report.left]
