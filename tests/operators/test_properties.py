"""The whole operator specification at random: every way to run it against the float64 oracle."""

from __future__ import annotations

import checking
import families
import harness
import numpy as np
import onnx
import oracle
import pytest
import standard_chains
import strategies
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from standard_chains import Chain
from strategies import Case

pytestmark = [pytest.mark.every_isa, pytest.mark.fuzz]
EXAMPLES = settings().max_examples


@settings(max_examples=4 * EXAMPLES)
@given(case=strategies.cases())
def test_custom_operator_and_claimed_operator(case: Case) -> None:
    """Both run the same kernels: equal to the last bit, and right."""
    custom = checking.check(case, "custom")
    claimed = checking.check(case, "ep")
    for name, value in custom.items():
        assert harness.pack(value) == harness.pack(claimed[name]), name


@settings(max_examples=2 * EXAMPLES)
@given(chain=st.one_of(standard_chains.chains(symbolic=True), standard_chains.chains()))
def test_chain_of_standard_operators(chain: Chain) -> None:
    """The EP runs the whole chain as one node, and as exactly as the operator itself."""
    model = standard_chains.model_of(chain)
    session = harness.create_session(model, "ep")
    (group,) = harness.fused_types(session)
    # ONNX Runtime gives each of the two nodes of SiLU a DequantizeLinear of its own.
    twins = ["DequantizeLinear"] if {"DequantizeLinear", "Sigmoid", "Mul"} <= set(group) else []
    types = [node.op_type for node in model.graph.node]
    assert group in (sorted(types), sorted(types + twins)), repr(chain)
    assert harness.cpu_types(session) == []
    got = harness.run(session, chain.case.inputs)
    for name, expected in chain.case.expected().items():
        expected.check(got[name], f"{name} of {chain}")


@given(chain=standard_chains.chains())
def test_rewritten_chain(chain: Chain) -> None:
    """Portable function call (claimed, and its body on plain ONNX Runtime) and custom operator, from one rewrite."""
    import normfuse

    # ONNX Runtime's own fusion of Clip and QuantizeLinear knows these types only, in whatever model the two are.
    y_type = str(chain.case.inputs["y_zero_point"].dtype) if "y_zero_point" in chain.case.inputs else "uint8"
    clips = chain.case.attributes.get("activation") == "Clip"
    assume(not clips or y_type in ("int8", "uint8", "int16", "uint16"))
    model = standard_chains.model_of(chain)
    portable = normfuse.optimize(model, verify=False).model
    session = harness.create_session(portable, "ep")
    # A float16 sum that is rounded before the statistics may be left outside: both are right.
    slack = 1e-2 if chain.case.inputs["X"].dtype == np.float16 and "residual" in chain.case.inputs else 0.0
    assert len(harness.ep_groups(session)) == (1 if not slack else pytest.approx(1.5, abs=0.5)), repr(chain)
    got = harness.run(session, chain.case.inputs)
    body = harness.run(harness.create_session(portable, "cpu"), chain.case.inputs)
    custom = normfuse.optimize(model, verify=False, target="custom-op").model
    operator = harness.run(harness.create_session(custom, "custom"), chain.case.inputs)
    for name, expected in chain.case.expected().items():
        widened = expected.widened(slack * (1 + np.abs(expected.exact))) if slack else expected
        widened.check(got[name], f"claimed {name} of {chain}")
        if any(node.domain == harness.DOMAIN for node in custom.graph.node):
            widened.check(operator[name], f"custom operator {name} of {chain}")
        else:  # the rewrite leaves some chains, whose operands widen X, to the provider
            assert_close_to_body(chain, name, operator[name])
        assert_close_to_body(chain, name, body[name])


@pytest.mark.parametrize("shape", [(1, 2, 1), (3, 1, 1), (2, 3, 4)])
def test_body_of_a_norm_with_one_scale_for_all(shape: tuple[int, ...]) -> None:
    """A scale of one element is no scale for each channel, whatever dimensions are 1."""
    import normfuse

    x, scale = np.arange(np.prod(shape), dtype=np.float32).reshape(shape), np.array([2.0], np.float32)
    node = onnx.helper.make_node("LayerNormalization", ["X", "scale"], ["Y"], axis=-1)
    model = harness.build_model([node], {"X": x}, {"Y": 1}, {"scale": scale}, shapes={"Y": shape})
    portable = normfuse.optimize(model, verify=False).model
    assert [call.domain for call in portable.graph.node] == [harness.DOMAIN]
    got = harness.run(harness.create_session(portable, "cpu"), {"X": x})["Y"]
    expected = oracle.evaluate("FusedNormalization", {"X": x, "scale": scale}, {"axes": [-1]})["Y"]
    expected.widened(1e-5).check(got)


def assert_close_to_body(chain: Chain, name: str, got: np.ndarray) -> None:
    """ONNX Runtime rounds after each node of the body: looser, but never a different formula."""
    if chain.kind == "MeanVarianceNormalization" and has_constant_row(chain.case):
        return  # the one allowed difference: ONNX Runtime's kernel gives NaN
    if chain.case.family is not None and chain.case.family.name not in families.GENTLE:
        return  # as exact as ONNX Runtime's kernels are there, which is not always
    expected = chain.case.expected()[name]
    half = chain.case.inputs["X"].dtype == np.float16
    size = 1 + np.abs(np.nan_to_num(expected.exact))
    amount = (0.02 if half else 3e-4) * size
    if half and "residual" in chain.case.inputs:
        amount = amount + rounded_sum(chain.case)
    expected.widened(amount).check(got, f"function body {name} of {chain}")


def rounded_sum(case: Case) -> float:
    """What a sum that is rounded to float16 before the statistics are taken may do to any output."""
    every = oracle.evaluate(case.op, case.inputs, case.attributes)
    error = 2.0**-10 * np.abs(every["sum"].exact).max()
    inverse = max(1.0, float(every["inv_std_dev"].exact.max()))
    scale = max(1.0, float(np.abs(case.inputs["scale"]).max()))
    return float(error * inverse * max(inverse, scale))


def has_constant_row(case: Case) -> bool:
    axes = tuple(case.attributes["axes"])
    return bool((np.ptp(case.inputs["X"].astype(np.float64), axis=axes) == 0).any())
