"""Clip without a bound on DirectML: infinities become the type's lowest and largest finite numbers, as ONNX has it."""

from __future__ import annotations

import harness
import numpy as np
import pytest
from onnx import TensorProto, helper


@pytest.mark.parametrize("bounds", [("", ""), ("", "six"), ("zero", "")])
@pytest.mark.parametrize(("dtype", "code"), [(np.float32, TensorProto.FLOAT), (np.float16, TensorProto.FLOAT16)])
def test_infinities_are_clipped(dtype: type, code: int, bounds: tuple[str, str], fake: dict[str, str]) -> None:
    x = np.array([[-np.inf, np.inf, 7.0, -7.0, 0.5]], dtype)
    constants = {"one": np.ones(5, dtype), "zero": np.zeros((), dtype), "six": np.full((), 6, dtype)}
    nodes = [helper.make_node("Clip", ["X", *bounds], ["c"]), helper.make_node("Add", ["c", "one"], ["Y"])]
    used = {name: array for name, array in constants.items() if any(name in node.input for node in nodes)}
    model = harness.build_model(nodes, {"X": x}, {"Y": code}, used)
    session = harness.create_session(model, backend="directml", **fake)
    assert [node.op_type for group in harness.ep_groups(session) for node in group] == ["Clip", "Add"]
    low = -np.finfo(dtype).max if not bounds[0] else constants[bounds[0]]
    high = np.finfo(dtype).max if not bounds[1] else constants[bounds[1]]
    expected = np.clip(x, low, high) + dtype(1)
    np.testing.assert_array_equal(harness.run(session, {"X": x})["Y"], expected)
