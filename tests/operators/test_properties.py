"""The whole operator specification at random: every way to run it against the float64 oracle."""

from __future__ import annotations

import dataclasses

import checking
import harness
import numpy as np
import onnx
import programs
import pytest
import standard_chains
import strategies
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from standard_chains import Chain
from strategies import Case

import normfuse
from normfuse import meaning
from normfuse.meaning import Array

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


@given(chain=st.one_of(standard_chains.chains(symbolic=True), standard_chains.chains()))
def test_chain_by_every_way_in(chain: Chain) -> None:
    """Provider, rewritten file (claimed, its bodies on plain ONNX Runtime, custom operator) and InferenceSession."""
    # ONNX Runtime's own fusions of Clip, or Relu, and QuantizeLinear know these types only, in whatever model they are.
    y_type = str(chain.case.inputs["y_zero_point"].dtype) if "y_zero_point" in chain.case.inputs else "uint8"
    activation = chain.case.attributes.get("activation")
    assume(activation not in ("Clip", "Relu") or y_type in ("int8", "uint8", "int16", "uint16"))
    assume(activation != "Swish" or chain.opset < 24)  # which it has no kernel for
    model = standard_chains.model_of(chain)
    portable = normfuse.optimize(model, verify=False).model
    custom = normfuse.optimize(model, verify=False, target="custom-op").model
    sessions = {
        "default claims": harness.create_session(model, claim="profitable"),
        "claimed": harness.create_session(portable),
        "function bodies": harness.create_session(portable, "cpu"),
        "custom operator": harness.create_session(custom, "custom"),
        "InferenceSession": normfuse.InferenceSession(model, harness.session_options("cpu")),
        "InferenceSession, all": normfuse.InferenceSession(model, harness.session_options("cpu"), claim="all"),
    }
    # A float16 sum that is rounded before the statistics may be left outside: both are right.
    rounds = chain.case.inputs["X"].dtype == np.float16 and "residual" in chain.case.inputs
    # As may the first Adds of what another operand widens.
    apart = rounds or chain.case.inputs["X"].shape != chain.case.expected()["Y"].exact.shape
    if not chain.symbolic:
        assert len(harness.ep_groups(sessions["claimed"])) in ((1, 2) if apart else (1,)), repr(chain)
    plain = harness.run(harness.create_session(model, "cpu"), chain.case.inputs)
    for way, session in sessions.items():
        got = harness.run(session, chain.case.inputs)
        whole = not harness.cpu_types(session)
        if way == "custom operator":  # the rewrite leaves some chains, whose operands widen X, to the provider
            whole = {node.domain for node in custom.graph.node} == {harness.DOMAIN}
        for name, expected in chain.case.expected().items():
            what = f"{way}: {name} of {chain}"
            if whole:
                slack = 1e-2 * (1 + np.abs(finite(expected.exact))) if rounds else 0.0
                expected.widened(slack).check(got[name], what)
            else:
                assert_as_onnxruntime(chain, name, got[name], plain[name], what)


@pytest.mark.parametrize("shape", [(1, 2, 1), (3, 1, 1), (2, 3, 4)])
def test_body_of_a_norm_with_one_scale_for_all(shape: tuple[int, ...]) -> None:
    """A scale of one element is no scale for each channel, whatever dimensions are 1."""
    x, scale = np.arange(np.prod(shape), dtype=np.float32).reshape(shape), np.array([2.0], np.float32)
    node = onnx.helper.make_node("LayerNormalization", ["X", "scale"], ["Y"], axis=-1)
    model = harness.build_model([node], {"X": x}, {"Y": 1}, {"scale": scale}, shapes={"Y": shape})
    portable = normfuse.optimize(model, verify=False).model
    assert [call.domain for call in portable.graph.node] == [harness.DOMAIN]
    got = harness.run(harness.create_session(portable, "cpu"), {"X": x})["Y"]
    expected = programs.evaluate("FusedNormalization", {"X": x, "scale": scale}, {"axes": [-1]})["Y"]
    expected.widened(1e-5).check(got)


def assert_as_onnxruntime(chain: Chain, name: str, got: Array, plain: Array, what: str) -> None:
    """ONNX Runtime rounds after each node: looser, but never a different formula.

    Where its own results are wrong (a variance that cancels, squares beyond float32), a row may be so as well.
    """
    case, expected = chain.case, chain.case.expected()[name]
    half, rank = case.inputs["X"].dtype == np.float16, expected.exact.ndim
    amount = (0.02 if half else 3e-4) * (1 + np.abs(finite(expected.exact)))
    if "residual" in case.inputs and (half or "residual_bias" in case.inputs):
        amount = amount + rounded_sum(case, 2.0**-10 if half else 2.0**-22)
    with np.errstate(invalid="ignore"):
        off = np.maximum(np.abs(plain.astype(np.float64) - expected.stored()) - (plain.dtype.kind in "iu"), 0.0)
    off = np.where(np.isfinite(off), off, np.where(expected.allows(plain), 0.0, 1e30))
    axes = range(1, rank) if "num_groups" in case.attributes else case.attributes.get("axes", ())
    amount = amount + 8 * off.max(axis=tuple(axis % rank for axis in axes), keepdims=True, initial=0.0)
    # Of a row in which it had no number nothing is asked, and of what it gives for the original, either.
    got = np.where((amount < 1e30) & (got != plain), got, expected.array())
    on_both_sides(case, name, float(amount.max(initial=0.0))).widened(amount).check(got, what)


def on_both_sides(case: Case, name: str, error: float) -> meaning.Expected:
    """What is expected, at the thresholds of an activation that jumps also with a value beyond them."""
    expected, activation = case.expected()[name], case.attributes.get("activation")
    if activation not in ("ThresholdedRelu", "Shrink"):
        return expected
    *others, threshold = meaning.activation_parameters(activation, case.attributes.get("activation_params", ()))
    moved = [{"activation_params": [*others, threshold + by]} for by in (-error, error)]
    every = [expected, *(programs.evaluate(case.op, case.inputs, case.attributes | to)[name] for to in moved)]
    low, high = np.min([each.low for each in every], axis=0), np.max([each.high for each in every], axis=0)
    return dataclasses.replace(expected, low=low, high=high)


def rounded_sum(case: Case, unit: float) -> Array:
    """What may become of a row's outputs where its sums are rounded to float16, or are of three in another order."""
    every = programs.evaluate(case.op, case.inputs, case.attributes)
    terms = np.abs(every["sum"].exact) + 2 * np.abs(case.inputs["residual"].astype(np.float64))
    terms = terms + 2 * np.abs(case.inputs.get("residual_bias", np.zeros(1)).astype(np.float64))
    error = unit * terms.max(axis=tuple(case.attributes["axes"]), keepdims=True)
    inverse = np.maximum(1.0, every["inv_std_dev"].exact)
    moved = error * inverse * np.maximum(inverse, np.abs(case.inputs["scale"]).max())
    moved = np.where(error * inverse < 0.25, finite(moved), 1e30)  # of a deviation below it nothing is left
    return moved / step_of(case)


def step_of(case: Case) -> float:
    """In what outputs are counted: the least step of quantised ones."""
    return float(case.inputs["y_scale"].min()) if "y_scale" in case.inputs else 1.0


def finite(values: Array) -> Array:
    return np.where(np.isfinite(values), values, 0.0)
