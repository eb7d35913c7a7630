"""Running one node of our domain through a provider and holding it against the oracle."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import harness
import onnxruntime
import programs
from oracle import Array
from strategies import Case

PROVIDERS = ("custom", "ep")


def session_of(case: Case, provider: str, **how: Any) -> onnxruntime.InferenceSession:
    """The case as a node of its operator: run as custom operator, or claimed by the execution provider."""
    expected = case.expected()
    model = harness.operator_model(
        case.op,
        case.inputs,
        case.attributes,
        {name: value.code for name, value in expected.items()},
        constants=case.constants,
        opset=25,
        **how,
    )
    session = harness.create_session(model, provider)
    groups = harness.fused_types(session)
    assert groups == ([[case.op]] if provider == "ep" else []), groups
    return session


def check(case: Case, provider: str) -> dict[str, Array]:
    """Run and compare every output."""
    got = harness.run(session_of(case, provider), case.inputs)
    for name, expected in case.expected().items():
        expected.check(got[name], f"{provider}: {name} of {case}")
    return got


def normalization(
    x: Array, attributes: Mapping[str, Any], outputs: Iterable[str] = ("Y",), **inputs: Array | None
) -> Case:
    """A FusedNormalization of x whose parameters are constants."""
    return _case("FusedNormalization", x, attributes, outputs, inputs)


def activation(x: Array, attributes: Mapping[str, Any], **inputs: Array | None) -> Case:
    """A FusedActivation of x whose parameters are constants."""
    return _case("FusedActivation", x, attributes, ("Y",), inputs)


def dequantization(x: Array, attributes: Mapping[str, Any], **inputs: Array | None) -> Case:
    """A FusedDequantizeLinear of x whose parameters are constants."""
    return _case("FusedDequantizeLinear", x, attributes, ("Y",), inputs)


def _case(
    op: str, x: Array, attributes: Mapping[str, Any], outputs: Iterable[str], inputs: Mapping[str, Array | None]
) -> Case:
    given = {"X": x, **{name: value for name, value in inputs.items() if value is not None}}
    ordered = {name: given.pop(name) for name in programs.INPUTS[op] if name in given}
    assert not given, f"{op} has no inputs {sorted(given)}"
    return Case(op, ordered, dict(attributes), tuple(outputs), frozenset(set(ordered) - {"X", "residual"}))
