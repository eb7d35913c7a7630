"""What becomes of a call of an island that the GPU fails, or that no shape of it can run.

An island of chains has the CPU path behind it. One with other operators has none: its call is one clear error, nothing
is lost, and the next call asks the GPU again.
"""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from directml_islands import OUT_OF_MEMORY, REMOVED, FakeGpu, island
from parsed_models import parse

from normfuse.meaning import Array

INVALID_ARGUMENT = 0x80070057 - (1 << 32)
FAILURES = (onnxruntime.capi.onnxruntime_pybind11_state.EPFail, onnxruntime.capi.onnxruntime_pybind11_state.DeviceReset)
X = np.random.default_rng(7).normal(size=(3, 4)).astype(np.float32)
W = np.random.default_rng(8).normal(size=(4, 4)).astype(np.float32)


def session_of(gpu: FakeGpu) -> onnxruntime.InferenceSession:
    text = "g (float[N, 4] x) => (float[N, 4] y) { p = MatMul(x, w) r = Reciprocal(p) y = MatMul(r, w) }"
    model = parse(text, w=W)
    for node in model.graph.node:
        node.name = f"{node.op_type} of {node.input[0]}"
    return island(model, gpu.options)


def check(session: onnxruntime.InferenceSession, x: Array = X) -> None:
    w = W.astype(np.float64)
    (y,) = session.run(None, {"x": x})
    np.testing.assert_allclose(y, (1 / (x.astype(np.float64) @ w)) @ w, rtol=1e-4)


CALLS = {
    "CreateOperator": INVALID_ARGUMENT,
    "CompileGraph": OUT_OF_MEMORY,
    "CreateOperatorInitializer": OUT_OF_MEMORY,
    "CreateCommittedResource": OUT_OF_MEMORY,
}


@pytest.mark.parametrize("call", CALLS)
def test_a_failure_while_an_island_is_compiled(call: str, gpu: FakeGpu) -> None:
    """Of its first call, and of the first one with other shapes."""
    session = session_of(gpu)
    for rows in (3, 2):
        gpu.control(f"fail:{call}", CALLS[call])
        with pytest.raises(Exception, match=f"{call}.*The island at 'MatMul of x' has no CPU path.*backend=cpu"):
            session.run(None, {"x": X[:rows]})
        check(session, X[:rows])


@pytest.mark.parametrize(
    ("control", "code", "named", "devices"),
    [("fail:Map", OUT_OF_MEMORY, "Map", 1), ("remove_device", REMOVED, "DXGI_ERROR_DEVICE_REMOVED", 2)],
)
def test_a_failure_while_an_island_runs(control: str, code: int, named: str, devices: int, gpu: FakeGpu) -> None:
    """A GPU that is lost is opened again."""
    session = session_of(gpu)
    check(session)
    gpu.control(control, code)
    with pytest.raises(Exception, match=f"{named}.*The island at 'MatMul of x' has no CPU path"):
        session.run(None, {"x": X})
    check(session)
    assert gpu["devices"] == devices


def test_every_call_that_can_fail(gpu: FakeGpu) -> None:
    """One after the other: each is an error of the island's first call, or made up for; the second has its result."""
    gpu.control("fail_code", OUT_OF_MEMORY)
    position, reached = 0, True
    while reached:
        session = session_of(gpu)
        position += 1
        target = gpu["calls"] + position
        gpu.control("fail_call", target)
        try:
            check(session)
            reached = gpu["calls"] >= target  # a wait that fails is tried again
        except FAILURES as error:
            assert "has no CPU path" in str(error)  # noqa: PT017
        gpu.control("fail_call", -1)
        check(session)
    assert position > 10
