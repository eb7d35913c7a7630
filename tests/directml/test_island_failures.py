"""What becomes of a call of an island that the GPU fails, or that no shape of it can run.

An island of chains has the CPU path behind it. One with other operators has none: its call is one clear error, nothing
is lost, and the next call asks the GPU again.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path

import directml_libraries as libraries
import harness
import numpy as np
import onnx
import onnxruntime
import pytest
from oracle import Array

OUT_OF_MEMORY = 0x8007000E - (1 << 32)
INVALID_ARGUMENT = 0x80070057 - (1 << 32)
REMOVED = 0x887A0005 - (1 << 32)
FAILURES = (onnxruntime.capi.onnxruntime_pybind11_state.EPFail, onnxruntime.capi.onnxruntime_pybind11_state.DeviceReset)
X = np.random.default_rng(7).normal(size=(3, 4)).astype(np.float32)
W = np.random.default_rng(8).normal(size=(4, 4)).astype(np.float32)


@pytest.fixture
def fake(tmp_path: Path) -> str:
    """A copy is another library: what a test does to its GPU touches no other test."""
    copy = tmp_path / "libfake_directml_failures.so"
    copy.write_bytes(libraries.build_fake().read_bytes())
    return str(copy)


def controls(fake: str) -> Callable[[str, int], None]:
    control = ctypes.CDLL(fake).FakeControl
    control.argtypes = [ctypes.c_char_p, ctypes.c_int64]
    return lambda name, value: control(name.encode(), value)


def counted(fake: str, name: str) -> int:
    counter = ctypes.CDLL(fake).FakeCounter
    counter.restype = ctypes.c_int64
    return int(counter(name.encode()))


def session_of(fake: str) -> onnxruntime.InferenceSession:
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["": 20]>
        g (float[N, 4] x) => (float[N, 4] y) { p = MatMul(x, w) r = Reciprocal(p) y = MatMul(r, w) }""")
    for node in model.graph.node:
        node.name = f"{node.op_type} of {node.input[0]}"
    model.graph.initializer.append(onnx.numpy_helper.from_array(W, "w"))
    options = {"backend": "directml", "claim": "all", "directml_library": fake, "d3d12_library": fake}
    session = harness.create_session(model, "ep", **options)
    assert len(harness.ep_groups(session)) == 1
    return session


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
def test_a_failure_while_an_island_is_compiled(call: str, fake: str) -> None:
    """Of its first call, and of the first one with other shapes."""
    session = session_of(fake)
    for rows in (3, 2):
        controls(fake)(f"fail:{call}", CALLS[call])
        with pytest.raises(Exception, match=f"{call}.*The island at 'MatMul of x' has no CPU path.*backend=cpu"):
            session.run(None, {"x": X[:rows]})
        check(session, X[:rows])
    assert counted(fake, "violations") == 0


def test_a_failure_while_an_island_runs(fake: str) -> None:
    session = session_of(fake)
    check(session)
    controls(fake)("fail:Map", OUT_OF_MEMORY)
    with pytest.raises(Exception, match=r"Map.*The island at 'MatMul of x' has no CPU path"):
        session.run(None, {"x": X})
    check(session)
    assert counted(fake, "violations") == 0


def test_a_gpu_that_is_lost_is_opened_again(fake: str) -> None:
    session = session_of(fake)
    check(session)
    controls(fake)("remove_device", REMOVED)
    with pytest.raises(Exception, match=r"DXGI_ERROR_DEVICE_REMOVED.*The island at 'MatMul of x' has no CPU path"):
        session.run(None, {"x": X})
    check(session)
    assert counted(fake, "devices") == 2
    assert counted(fake, "violations") == 0


def test_every_call_that_can_fail(fake: str) -> None:
    """One after the other: each is an error of the island's first call, or made up for; the second has its result."""
    control = controls(fake)
    control("fail_code", OUT_OF_MEMORY)
    position, reached = 0, True
    while reached:
        session = session_of(fake)
        position += 1
        target = counted(fake, "calls") + position
        control("fail_call", target)
        try:
            check(session)
            reached = counted(fake, "calls") >= target  # a wait that fails is tried again
        except FAILURES as error:
            assert "has no CPU path" in str(error)  # noqa: PT017
        control("fail_call", -1)
        check(session)
    assert position > 10
    assert counted(fake, "violations") == 0


def test_nothing_is_left_behind(fake: str) -> None:
    session = session_of(fake)
    controls(fake)("fail:CompileGraph", OUT_OF_MEMORY)
    with pytest.raises(Exception, match="CompileGraph"):
        session.run(None, {"x": X})
    check(session)
    del session
    assert counted(fake, "live_objects") == 0
