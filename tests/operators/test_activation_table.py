"""Every row of the activation table: its function body, its formula, its DirectML line, its place in the self-test."""

from __future__ import annotations

import json
from pathlib import Path

import harness
import numpy as np
import onnx
import onnxruntime
import pytest
from checking import activation

import normfuse
from normfuse.selftest.cases import cases
from normfuse.spec import ACTIVATIONS, Activation

X = np.linspace(-6, 6, 48, dtype=np.float32).reshape(2, 24)
SLOPE = np.array([0.3], np.float32)
EACH = pytest.mark.parametrize("row", ACTIVATIONS.values(), ids=lambda row: row.name)


def drawn(row: Activation) -> list[float]:
    return [float(np.float32(each.low + 0.375 * (each.high - each.low))) for each in row.drawn.values()]


def usual(row: Activation) -> list[float]:
    return [float(np.float32(value)) for value in row.parameters.values()]


def model_of(row: Activation, parameters: list[float], opset: int) -> onnx.ModelProto:
    case = activation(
        X, {"activation": row.name, "activation_params": parameters}, slope=SLOPE if row.has_slope else None
    )
    return harness.operator_model(
        case.op, case.inputs, case.attributes, {"Y": onnx.TensorProto.FLOAT}, constants=case.constants, opset=opset
    )


@EACH
@pytest.mark.parametrize("opset", [17, 22])
def test_function_body_computes_the_formula(row: Activation, opset: int) -> None:
    for parameters in (usual(row), drawn(row)):
        model = normfuse.optimize(model_of(row, parameters, opset), verify=False).model
        ((name, function),) = ((f.name, f) for f in model.functions)
        assert not {node.op_type for node in function.node if node.domain == "ai.normfuse"}, name
        session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        (got,) = session.run(None, {"X": X})
        wanted = row(X.astype(np.float64), parameters, SLOPE.astype(np.float64))
        np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6, err_msg=f"{row.name} {parameters}")


def test_directml_has_what_the_table_says(tmp_path: Path) -> None:
    for row in ACTIVATIONS.values():
        report = tmp_path / f"{row.name}.jsonl"
        parameters = drawn(row)
        options = normfuse.session_options(claim="all", claim_report=report, explain_directml="6_4")
        onnxruntime.InferenceSession(model_of(row, parameters, 22).SerializeToString(), options)
        lines = map(json.loads, report.read_text("utf-8").splitlines())
        (site,) = (line for line in lines if "directml" in line)
        there = row.directml is not None or row.composed
        assert ("reason" not in site["directml"]) == there, (row.name, site["directml"])


def test_the_self_test_has_two_cases_for_each() -> None:
    names = [case.name for case in cases()]
    for name in ACTIVATIONS:
        assert {name, f"LayerNorm -> {name}"} <= set(names)
