"""Constants of islands: they go up once, whatever shapes come, and those of float16 are cast once."""

from __future__ import annotations

import harness
import numpy as np
import onnx
import onnxruntime
import pytest
from directml_islands import OUT_OF_MEMORY, REMOVED, FakeGpu

from normfuse.meaning import Array

RNG = np.random.default_rng(31)
W = RNG.normal(size=(64, 64)).astype(np.float32)
B, S = (RNG.normal(size=(64,)).astype(np.float32) for _ in range(2))
ALIGNMENT = 256  # tensors start at multiples of this
UP = W.nbytes + B.nbytes + S.nbytes


def session_of(
    gpu: FakeGpu, rows: str, kind: str = "float", given: dict[str, onnxruntime.OrtValue] | None = None
) -> onnxruntime.InferenceSession:
    model = onnx.parser.parse_model(f"""<ir_version: 10, opset_import: ["": 20]>
        g ({kind}[{rows}, 64] x) => ({kind}[{rows}, 64] y)
        {{ p = MatMul(x, w) q = Add(p, b) r = MatMul(q, w) y = LayerNormalization(r, s) }}""")
    dtype = np.float16 if kind == "float16" else np.float32
    constants = {"w": W.astype(dtype), "b": B.astype(dtype), "s": S.astype(dtype)}
    model.graph.initializer.extend(onnx.numpy_helper.from_array(value, name) for name, value in constants.items())
    options = harness.session_options("ep", backend="directml", **gpu.options)
    for name, value in (given or {}).items():
        options.add_initializer(name, value)
    session: onnxruntime.InferenceSession = harness.create_session(model, "ep", options)
    assert not harness.cpu_types(session)
    assert len(harness.ep_groups(session)) == 1
    return session


def expected(x: Array, **given: Array) -> Array:
    """Of constants of the type that the input has."""
    constants = {"w": W, "b": B, "s": S, **given}.values()
    w, b, s = (constant.astype(x.dtype).astype(np.float64) for constant in constants)
    r = (x.astype(np.float64) @ w + b) @ w
    centred = r - r.mean(-1, keepdims=True)
    return np.asarray(centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * s)


def check(session: onnxruntime.InferenceSession, rows: int) -> int:
    """What the inputs of the run are on the way up."""
    x = RNG.normal(size=(rows, 64)).astype(np.float32)
    np.testing.assert_allclose(session.run(None, {"x": x})[0], expected(x), rtol=1e-3, atol=1e-4)
    return -(-x.nbytes // ALIGNMENT) * ALIGNMENT


@pytest.mark.parametrize("name", ["w", "b", "s"])
def test_what_session_options_give_is_read_in_each_run(gpu: FakeGpu, name: str) -> None:
    array = {"w": W.T.copy(), "b": -B, "s": 2 * S}[name]
    value = onnxruntime.OrtValue.ortvalue_from_numpy(array)
    session = session_of(gpu, "N", given={name: value})
    x = RNG.normal(size=(3, 64)).astype(np.float32)
    np.testing.assert_allclose(session.run(None, {"x": x})[0], expected(x, **{name: array}), rtol=1e-3, atol=1e-4)


def test_weights_go_up_once(gpu: FakeGpu) -> None:
    session = session_of(gpu, "N")
    for rows, weights in ((3, UP), (1, 0), (5, 0), (3, 0), (2, 0)):
        before = gpu["bytes_up"]
        inputs = check(session, rows)
        assert gpu["bytes_up"] - before == inputs + weights


def test_weights_go_up_once_where_shapes_are_known(gpu: FakeGpu) -> None:
    """They belong to DirectML, which may lay them out anew."""
    session = session_of(gpu, "3")
    for weights in (UP, 0):
        before = gpu["bytes_up"]
        inputs = check(session, 3)
        assert gpu["bytes_up"] - before == inputs + weights


def test_weights_go_up_again_where_the_gpu_was_lost(gpu: FakeGpu) -> None:
    session = session_of(gpu, "N")
    check(session, 3)
    gpu.control("remove_device", REMOVED)
    with pytest.raises(Exception, match="DXGI_ERROR_DEVICE_REMOVED"):
        check(session, 3)
    before = gpu["bytes_up"]
    inputs = check(session, 2)
    assert gpu["bytes_up"] - before == inputs + UP
    check(session, 3)


def test_weights_that_find_no_memory_go_up_later(gpu: FakeGpu) -> None:
    session = session_of(gpu, "N")
    gpu.control("fail:CreateCommittedResource", OUT_OF_MEMORY)
    with pytest.raises(Exception, match=r"CreateCommittedResource.*has no CPU path"):
        check(session, 3)
    for rows, weights in ((3, UP), (4, 0)):
        before = gpu["bytes_up"]
        inputs = check(session, rows)
        assert gpu["bytes_up"] - before == inputs + weights


@pytest.mark.parametrize("rows", ["N", "3"])
def test_constants_of_float16_are_cast_once(rows: str, gpu: FakeGpu) -> None:
    """The program casts what its steps read and give, and no weight."""
    session = session_of(gpu, rows, "float16")
    x = RNG.normal(size=(3, 64)).astype(np.float16)
    before = gpu["operators"]
    np.testing.assert_allclose(session.run(None, {"x": x})[0], expected(x), rtol=2e-2, atol=2e-2)
    # A product with its bias, a product and a normalisation; each casts X to float32, and its result back.
    assert gpu["operators"] - before == 3 + 2 * 3
