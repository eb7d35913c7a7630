"""Clip without a bound: ONNX's default is the type's lowest or largest finite number, which infinities become."""

from __future__ import annotations

from collections.abc import Mapping

import harness
import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper
from oracle import Array

import normfuse

pytestmark = pytest.mark.every_isa

BOUNDS = {"neither": (None, None), "no min": (None, 6.0), "no max": (-0.5, None), "infinite": (-np.inf, np.inf)}
CODES = {"float32": TensorProto.FLOAT, "float16": TensorProto.FLOAT16}


def odd(dtype: str) -> Array:
    largest = np.finfo(dtype).max
    return np.tile(np.array([-np.inf, np.inf, np.nan, -largest, largest, -0.0, 0.25, 7.0, -7.0], dtype), (3, 1))


def clips(dtype: str, opset: int, bounds: str, steps: tuple[str, ...] = ("Clip",)) -> harness.onnx.ModelProto:
    """A Clip, behind an Add where `steps` says so."""
    given = dict(zip(("min", "max"), BOUNDS[bounds], strict=True))
    constants: Mapping[str, Array] = {"zero": np.zeros(9, dtype)}
    attributes: dict[str, float] = {}
    names: list[str] = []
    if opset < 11:
        attributes = {name: value for name, value in given.items() if value is not None}
    else:
        constants = {**constants, **{name: np.array(v, dtype) for name, v in given.items() if v is not None}}
        names = [name if given[name] is not None else "" for name in ("min", "max")]
    add = helper.make_node("Add", ["X", "zero"], ["sum"])
    clip = helper.make_node("Clip", ["sum" if "Add" in steps else "X", *names], ["Y"], **attributes)
    nodes = [add, clip] if "Add" in steps else [clip]
    used = {name: array for name, array in constants.items() if any(name in node.input for node in nodes)}
    return harness.build_model(nodes, {"X": odd(dtype)}, {"Y": CODES[dtype]}, used, opset=opset)


@pytest.mark.parametrize("bounds", BOUNDS)
@pytest.mark.parametrize("opset", [7, 11, 12, 13])
@pytest.mark.parametrize("dtype", CODES)
def test_a_clip_has_the_bits_of_onnxruntime(dtype: str, opset: int, bounds: str) -> None:
    model = clips(dtype, opset, bounds)
    plain = harness.create_session(model, "cpu")
    session = harness.create_session(model, "ep")
    assert harness.fused_types(session) == [["Clip"]]
    expected, got = (harness.run(each, {"X": odd(dtype)})["Y"] for each in (plain, session))
    assert got.tobytes() == expected.tobytes()


@pytest.mark.parametrize("bounds", BOUNDS)
@pytest.mark.parametrize("opset", [11, 18])
@pytest.mark.parametrize("dtype", CODES)
def test_a_clip_that_the_rewriting_pass_took_has_them_too(dtype: str, opset: int, bounds: str) -> None:
    model = clips(dtype, opset, bounds, ("Add", "Clip"))
    rewritten = normfuse.optimize(model, verify=False, target="custom-op").model
    expected = harness.run(harness.create_session(model, "cpu"), {"X": odd(dtype)})["Y"]
    options = onnxruntime.SessionOptions()
    options.register_custom_ops_library(normfuse.get_library_path())
    session = onnxruntime.InferenceSession(rewritten.SerializeToString(), options, providers=["CPUExecutionProvider"])
    assert harness.run(session, {"X": odd(dtype)})["Y"].tobytes() == expected.tobytes()
