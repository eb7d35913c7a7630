"""Running one node of our domain through a provider and holding it against the oracle."""

from __future__ import annotations

import dataclasses
import json
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import families
import harness
import numpy as np
import onnx
import onnxruntime
import programs
from families import Family
from strategies import Case

from normfuse.meaning import Array

_LARGE = 1 << 16
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
    """Run and compare every output, on the case's numbers and on X of a family of data; return those of the first."""
    session = session_of(case, provider)
    got = _checked(session, case, provider)
    if other := _like_data(case):
        _checked(session, other, provider)
    return got


def _checked(session: onnxruntime.InferenceSession, case: Case, provider: str) -> dict[str, Array]:
    got = harness.run(session, case.inputs)
    for name, expected in case.expected().items():
        expected.check(got[name], f"{provider}: {name} of {case}")
    return got


def _like_data(case: Case) -> Case | None:
    """The case with X of another family, which depends on the case; None where X is no noise, or large."""
    x = case.inputs["X"]
    if case.family is not None or "X" in case.constants or x.ndim == 0 or not 0 < x.size < _LARGE:
        return None
    chosen = zlib.crc32(repr(case).encode())
    family = Family(list(families.TABLE)[chosen % len(families.TABLE)], (None, chosen % 7)[chosen // 32 % 2])
    axes = case.attributes.get("axes") or [-1]
    other = families.fill(family, np.random.default_rng(chosen), x.shape, x.dtype, axes)
    return dataclasses.replace(case, inputs={**case.inputs, "X": other}, family=family)


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


def session_and_report(
    model: harness.Model, folder: Path, **options: Any
) -> tuple[onnxruntime.InferenceSession, list[dict[str, Any]]]:
    """A session with the execution provider, and the lines of its claim report."""
    path = folder / "claims.jsonl"
    path.unlink(missing_ok=True)
    session = harness.create_session(model, "ep", claim_report=str(path), **options)
    return session, [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def node_by_node(model: harness.Model) -> onnxruntime.InferenceSession:
    """ONNX Runtime on the graph that the execution provider sees, which is simplified and not fused."""
    options = harness.session_options("cpu")
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    return harness.create_session(model, options=options)


def operators_run(
    model: onnx.ModelProto, options: onnxruntime.SessionOptions, feeds: Mapping[str, Array], folder: Path
) -> Counter[str]:
    """How often each operator ran in a session, groups of the execution provider among them."""
    options.enable_profiling = True
    options.profile_file_prefix = str(folder / "profile")
    session = harness.create_session(model, options=options)
    harness.run(session, feeds)
    events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
    return Counter(event["args"]["op_name"] for event in events if event["name"].endswith("kernel_time"))
