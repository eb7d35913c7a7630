"""Tensors that stay on the GPU, on the tests' own Direct3D.

test_probes.py runs this in processes of their own: whether they are offered is decided when the library is registered.
"""

from __future__ import annotations

import contextlib
import gc
import re
import threading
from collections.abc import Callable

import directml_islands
import numpy as np
import onnxruntime as ort
import pytest
from directml_islands import OUT_OF_MEMORY, REMOVED, FakeGpu
from parsed_models import parse

import normfuse
from normfuse.meaning import Array

VENDOR = 0x4E46
RNG = np.random.default_rng(12)
W = (RNG.normal(size=(64, 64)) / 8).astype(np.float32)
STEP = "g (float[N, 64] x) => (float[N, 64] y) { p = MatMul(x, w) y = Relu(p) }"


class Counts:
    """What was asked of Direct3D since."""

    NAMES = ("submissions", "waits", "bytes_up", "bytes_down", "recordings", "buffers")

    def __init__(self, gpu: FakeGpu) -> None:
        self.gpu, self.before = gpu, {name: gpu[name] for name in self.NAMES}

    def __getitem__(self, name: str) -> int:
        return self.gpu[name] - self.before[name]


def session_of(gpu: FakeGpu, text: str, device_memory: str = "1", **options: str) -> ort.InferenceSession:
    model = parse(text, 20, **({"w": W} if "w)" in text else {}))
    for output in model.graph.output:
        output.type.tensor_type.ClearField("shape")
    return directml_islands.session_of(model, gpu.options, device_memory=device_memory, **options)


def on_gpu(array: Array) -> ort.OrtValue:
    return ort.OrtValue.ortvalue_from_numpy(array, "gpu", 0, vendor_id=VENDOR)


def run(session: ort.InferenceSession, feeds: dict[str, ort.OrtValue]) -> list[ort.OrtValue]:
    """All outputs on the GPU."""
    binding = session.io_binding()
    for name, value in feeds.items():
        binding.bind_ortvalue_input(name, value)
    device = ort.OrtDevice.make("gpu", 0, VENDOR)._get_c_device()
    for output in session.get_outputs():
        binding._iobinding.bind_output(output.name, device)
    session.run_with_iobinding(binding)
    return list(binding.get_outputs())


def numbers(*shape: int) -> Array:
    return RNG.normal(size=shape).astype(np.float32)


def step(x: Array) -> Array:
    return np.maximum(x.astype(np.float64) @ W, 0)


def close(result: Array, expected: Array) -> None:
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5)


def fails(call: Callable[[], object], *words: str) -> None:
    with pytest.raises(Exception, match=".*".join(map(re.escape, words))):
        call()


def test_states_go_around(gpu: FakeGpu) -> None:
    """Nothing is copied between runs, and in the steady state nothing is created or recorded."""
    session, x = session_of(gpu, STEP), numbers(5, 64)
    state, expected = on_gpu(x), x.astype(np.float64)
    counts = Counts(gpu)
    for _ in range(12):
        before = Counts(gpu)
        (state,) = run(session, {"x": state})
        expected = step(expected)
        assert (before["submissions"], before["waits"]) in ((1, 1), (3, 3))  # weights and initialisation at first
    assert (before["recordings"], before["buffers"]) == (0, 0)
    assert counts["bytes_up"] == x.nbytes + W.nbytes
    assert counts["bytes_down"] == 0
    close(state.numpy(), expected)
    assert counts["bytes_down"] == x.nbytes


def test_outputs_that_are_given(gpu: FakeGpu) -> None:
    """Two values of the caller's in turn."""
    session, x = session_of(gpu, STEP), numbers(5, 64)
    state, result = (
        on_gpu(x),
        ort.OrtValue.ortvalue_from_shape_and_type([5, 64], np.float32, "gpu", 0, vendor_id=VENDOR),
    )
    expected, binding = x.astype(np.float64), session.io_binding()
    for _ in range(8):
        counts = Counts(gpu)
        binding.bind_ortvalue_input("x", state)
        binding.bind_ortvalue_output("y", result)
        session.run_with_iobinding(binding)
        state, result = result, state
        expected = step(expected)
    assert [counts[name] for name in Counts.NAMES] == [1, 1, 0, 0, 0, 0]
    close(state.numpy(), expected)


def test_runs_without_binding(gpu: FakeGpu) -> None:
    """Inputs and outputs on the CPU: no more goes up and down than they have bytes."""
    session, x = session_of(gpu, STEP), numbers(4, 64)
    for _ in range(3):
        counts = Counts(gpu)
        close(session.run(None, {"x": x})[0], step(x))
    assert (counts["bytes_up"], counts["bytes_down"]) == (x.nbytes, x.nbytes)


def test_inputs_that_stay(gpu: FakeGpu) -> None:
    """One from the CPU goes up with the first call that reads it; from the second on it is on the GPU."""
    session, x = session_of(gpu, STEP), numbers(5, 64)
    value = on_gpu(x)
    run(session, {"x": value})
    ups = []
    for _ in range(4):
        counts = Counts(gpu)
        (y,) = run(session, {"x": value})
        ups.append(counts["bytes_up"])
    assert ups == [x.nbytes, 0, 0, 0]
    close(y.numpy(), step(x))
    value.update_inplace(2 * x)
    close(run(session, {"x": value})[0].numpy(), step(2 * x))
    close(value.numpy(), 2 * x)


def test_outputs_are_read_at_once(gpu: FakeGpu) -> None:
    """Those of a run that are wanted on the CPU: one wait for all."""
    session = session_of(
        gpu,
        "g (float[N, 64] x) => (float[N, 64] y, float[N, 64] z, float[1, 1] s) { "
        "y = MatMul(x, w) z = Relu(y) s = ReduceSum <keepdims = 1> (z) }",
    )
    x = numbers(3, 64)
    for _ in range(3):
        counts = Counts(gpu)
        y, z, s = session.run(None, {"x": x})
    assert (counts["submissions"], counts["waits"]) == (2, 2)
    close(y, x.astype(np.float64) @ W)
    close(z, step(x))
    close(s, step(x).sum().reshape(1, 1))


def test_between_islands(gpu: FakeGpu) -> None:
    """What the CPU does not need stays on the GPU between two islands of a model."""
    session = session_of(
        gpu,
        """g (float[N, 64] x) => (float[N, 64] y) {
        p = MatMul(x, w) few = ReduceSum <keepdims = 1> (p) c = Atan(few)
        q = MatMul(p, w) r = Mul(q, c) y = Relu(r) }""",
    )
    x = numbers(6, 64)
    p = x.astype(np.float64) @ W
    expected = np.maximum(p @ W * np.arctan(p.sum()), 0)
    value = on_gpu(x)
    for _ in range(3):
        counts = Counts(gpu)
        (y,) = run(session, {"x": value})
    close(y.numpy(), expected)
    # The sum goes down for Atan, and up again; the product does not.
    assert counts["bytes_up"] <= 256 + x.nbytes
    assert counts["bytes_down"] <= 256 + x.nbytes


def test_element_types(gpu: FakeGpu) -> None:
    """float16, bool, int32 and int64; what has other bytes on the GPU goes through the CPU."""
    text = """g (float[2, 3] x, float16[2, 3] h, bool[2, 3] b, int32[2, 3] i, int64[2, 3] l)
        => (float[2, 3] y, float16[2, 3] hy, bool[2, 3] by, int32[2, 3] iy, int64[2, 3] ly) {
        y = Neg(x) n = Neg(h) hy = Neg(n) k = Neg(y) c = Greater(y, k) by = Or(c, b)
        iy = Where(by, i, i) ly = Where(by, l, l) }"""
    session = session_of(gpu, text)
    feeds = {
        "x": numbers(2, 3),
        "h": numbers(2, 3).astype(np.float16),
        "b": np.array([[True, False, False]] * 2),
        "i": np.array([[1, -2, 3], [2**31 - 1, -(2**31), 0]], np.int32),
        "l": np.array([[5, -6, 7], [2**31 - 1, -(2**31), 0]], np.int64),
    }
    expected = [-feeds["x"], feeds["h"], (-feeds["x"] > feeds["x"]) | feeds["b"], feeds["i"], feeds["l"]]
    values = {name: on_gpu(array) for name, array in feeds.items()}
    for _ in range(3):
        results = run(session, values)
        for result, each in zip(results, expected, strict=True):
            np.testing.assert_array_equal(result.numpy(), each)
        # What came of the GPU is read there, too.
        values = dict(zip(values, results, strict=True))
        expected = [-expected[0], expected[1], (-expected[0] > expected[0]) | expected[2], expected[3], expected[4]]


def test_integers_are_checked(gpu: FakeGpu) -> None:
    """Those that arrive in the GPU's memory: from the CPU, and from an island."""
    twice = session_of(
        gpu, "g (float[2] x, int64[2] l) => (int64[2] y) { n = Neg(x) c = Greater(n, x) y = Where(c, l, l) }"
    )
    gather = session_of(gpu, "g (float[4, 3] x, int64[2] i) => (float[2, 3] y) { n = Neg(x) y = Gather(n, i) }")
    x = numbers(4, 3)
    for indices in ([3, -4], [4, 0], [0, 2**32]):
        (value,) = [on_gpu(np.array(indices))]
        if max(indices) < 2**32:
            (made,) = run(twice, {"x": on_gpu(numbers(2)), "l": value})
        else:
            made = value
        for each in (value, made):
            if indices == [3, -4]:
                np.testing.assert_array_equal(run(gather, {"x": on_gpu(x), "i": each})[0].numpy(), -x[indices])
            else:
                fails(lambda each=each: run(gather, {"x": on_gpu(x), "i": each}), "as indices", "from -4 to 3")


def test_shapes_from_the_gpu(gpu: FakeGpu) -> None:
    """A tensor that decides a shape, in the GPU's memory."""
    text = "g (float[M, N] x, int64[2] s) => (float[K, L] y) { n = Neg(x) y = Reshape(n, s) }"
    session, x = session_of(gpu, text), numbers(2, 6)
    for shape in ((3, 4), (4, 3), (-1, 2)):
        (y,) = run(session, {"x": on_gpu(x), "s": on_gpu(np.array(shape))})
        np.testing.assert_array_equal(y.numpy(), -x.reshape(shape))


def test_initialisers_that_are_inputs(gpu: FakeGpu) -> None:
    """Another value may be given: ONNX Runtime has them in the memory of the session's nodes."""
    session = session_of(
        gpu, "g (float[N, 64] x, float[64, 64] w) => (float[N, 64] y) { p = MatMul(x, w) y = Relu(p) }"
    )
    x, other = numbers(3, 64), numbers(64, 64)
    for _ in range(3):
        counts = Counts(gpu)
        close(run(session, {"x": on_gpu(x)})[0].numpy(), step(x))
    assert counts["bytes_up"] == x.nbytes
    close(run(session, {"x": on_gpu(x), "w": on_gpu(other)})[0].numpy(), np.maximum(x.astype(np.float64) @ other, 0))
    close(run(session, {"x": on_gpu(x)})[0].numpy(), step(x))


def test_control_flow(gpu: FakeGpu) -> None:
    """Islands in branches, and what the CPU does around them."""
    text = """g (float[N, 64] x, bool c) => (float[N, 64] y) {
        a = MatMul(x, w) y = If(c) <then_branch = t () => (float[N, 64] p) { q = MatMul(a, w) p = Relu(q) },
        else_branch = e () => (float[N, 64] r) { r = Atan(a) }> }"""
    session, x = session_of(gpu, text), numbers(3, 64)
    a = x.astype(np.float64) @ W
    for c, expected in ((True, step(a)), (False, np.arctan(a))):
        (y,) = run(session, {"x": on_gpu(x), "c": ort.OrtValue.ortvalue_from_numpy(np.array(c))})
        close(y.numpy(), expected)


def test_threads_and_sessions(gpu: FakeGpu) -> None:
    """Several of both, with tensors that go from one session to another."""
    sessions = [session_of(gpu, STEP), session_of(gpu, STEP)]
    errors: list[Exception] = []

    def work(seed: int) -> None:
        try:
            x = np.random.default_rng(seed).normal(size=(1 + seed % 5, 64)).astype(np.float32)
            value, expected = on_gpu(x), x.astype(np.float64)
            for turn in range(12):
                (value,) = run(sessions[(seed + turn) % 2], {"x": value})
                expected = step(expected)
                if turn % 4 == 3:
                    close(value.numpy(), expected)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors


def test_no_memory(gpu: FakeGpu) -> None:
    """Of the GPU: an error of the call, and the next one has its result."""
    session, x = session_of(gpu, STEP), on_gpu(numbers(300, 64))
    (first,) = run(session, {"x": x})
    gpu.control("fail:CreateCommittedResource", OUT_OF_MEMORY)
    fails(lambda: run(session, {"x": x}), "CreateCommittedResource", "E_OUTOFMEMORY")
    (second,) = run(session, {"x": x})
    np.testing.assert_array_equal(first.numpy(), second.numpy())
    gpu.control("fail:CreateCommittedResource", OUT_OF_MEMORY)
    wide = session_of(gpu, "g (float[N, 64] x) => (float[N, 64] y) { y = Neg(x) }")
    fails(lambda: run(wide, {"x": first}), "CreateCommittedResource", "E_OUTOFMEMORY")
    np.testing.assert_array_equal(run(wide, {"x": first})[0].numpy(), -first.numpy())


def test_every_call_that_can_fail(gpu: FakeGpu) -> None:
    """One after the other: each is an error of a run or of what reads its result; the next run has its result."""
    x = numbers(4, 64)
    gpu.control("fail_code", OUT_OF_MEMORY)
    position, reached = 0, True
    while reached:
        session, value = session_of(gpu, STEP), on_gpu(x)
        position += 1
        target = gpu["calls"] + position
        gpu.control("fail_call", target)
        for _ in range(3):  # the first goes up with its call, the second is moved, the third is there
            result = None
            with contextlib.suppress(Exception):
                result = run(session, {"x": value})[0].numpy()
            if result is not None:
                close(result, step(x))
        reached = gpu["calls"] >= target
        gpu.control("fail_call", -1)
        close(run(session, {"x": value})[0].numpy(), step(x))
        close(value.numpy(), x)
    assert position > 20
    del session, value
    gc.collect()
    assert gpu["live_objects"] == 0


def test_a_lost_gpu(gpu: FakeGpu) -> None:
    """What was on it is lost and says so; what comes from the CPU runs on the GPU that is opened again."""
    session, x = session_of(gpu, STEP), numbers(4, 64)
    value = on_gpu(x)
    (kept,) = run(session, {"x": value})
    gpu.control("remove_device", REMOVED)
    fails(lambda: run(session, {"x": value}), "DXGI_ERROR_DEVICE_REMOVED")
    (again,) = run(session, {"x": value})
    close(again.numpy(), step(x))
    devices = gpu["devices"]
    fails(lambda: run(session, {"x": kept}), "cannot be read from the GPU that it is on", "DXGI_ERROR_DEVICE_REMOVED")
    fails(kept.numpy, "DXGI_ERROR_DEVICE_REMOVED")
    (again,) = run(session, {"x": again})
    close(again.numpy(), step(step(x)))
    assert gpu["devices"] == devices  # the healthy one was not given up


def test_two_gpus(gpu: FakeGpu) -> None:
    """A tensor of one goes to the other through the CPU."""
    first, second = session_of(gpu, STEP), session_of(gpu, STEP, adapter_index="0", dxcore_library=gpu.path)
    x = numbers(4, 64)
    (value,) = run(first, {"x": on_gpu(x)})
    counts = Counts(gpu)
    (value,) = run(second, {"x": value})
    assert counts["bytes_down"] == x.nbytes
    close(value.numpy(), step(step(x)))


def test_tensors_outlive_sessions(gpu: FakeGpu) -> None:
    session, x = session_of(gpu, STEP), numbers(4, 64)
    (value,) = run(session, {"x": on_gpu(x)})
    del session
    gc.collect()
    assert gpu["live_objects"] > 0
    close(value.numpy(), step(x))
    del value
    gc.collect()
    assert gpu["live_objects"] == 0


def test_what_was_never_written(gpu: FakeGpu) -> None:
    session = session_of(gpu, STEP)
    value = ort.OrtValue.ortvalue_from_shape_and_type([4, 64], np.float32, "gpu", 0, vendor_id=VENDOR)
    fails(lambda: run(session, {"x": value}), "nothing was written to")
    fails(value.numpy, "nothing was written to")


def test_unified_memory(gpu: FakeGpu) -> None:
    """Nothing is copied."""
    gpu.control("unified_memory", 2)
    session, x = session_of(gpu, STEP), numbers(5, 64)
    state, expected = on_gpu(x), x.astype(np.float64)
    for _ in range(4):
        (state,) = run(session, {"x": state})
        expected = step(expected)
    assert (gpu["bytes_up"], gpu["bytes_down"]) == (0, 0)
    close(state.numpy(), expected)


def test_chains_alone(gpu: FakeGpu) -> None:
    """They are islands as well: nothing runs on the CPU path, which does not reach the GPU's memory."""
    scale = ", ".join(["2"] * 64)
    session = session_of(
        gpu,
        f"""g (float[N, 64] x) => (float[N, 64] y) <float[64] s = {{{scale}}}> {{
        n = LayerNormalization(x, s) y = Tanh(n) }}""",
    )
    x = numbers(3, 64)
    centred = x.astype(np.float64) - x.mean(-1, keepdims=True, dtype=np.float64)
    expected = np.tanh(2 * centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5))
    close(run(session, {"x": on_gpu(x)})[0].numpy(), expected)
    fails(lambda: run(session, {"x": on_gpu(numbers(0, 64))}), "has no CPU path")


def test_other_sessions(gpu: FakeGpu) -> None:
    """Where the memory is offered, sessions that do not ask for it have their tensors in the CPU's."""
    x = numbers(4, 64)
    for backend in ("cpu", "directml"):
        session = session_of(gpu, STEP, "0", backend=backend)
        binding = session.io_binding()
        binding.bind_cpu_input("x", x)
        binding.bind_output("y")
        counts = Counts(gpu)
        session.run_with_iobinding(binding)
        (y,) = binding.get_outputs()
        assert y.device_name() == "cpu"
        close(y.numpy(), step(x))
        assert (counts["submissions"] > 0) == (backend == "directml")


def test_refused(gpu: FakeGpu) -> None:
    fails(lambda: session_of(gpu, STEP, backend="cpu"), "device_memory=1 needs backend=directml")
    fails(lambda: session_of(gpu, STEP, compile="0"), "device_memory=1 needs compile=1")
    fails(lambda: session_of(gpu, STEP, "2"), "device_memory is '2'; it takes 0 or 1")


def test_not_offered(gpu: FakeGpu) -> None:
    """Without the variable."""
    fails(lambda: session_of(gpu, STEP), "device_memory=1 needs the environment variable NORMFUSE_DEVICE_MEMORY=1")
    fails(lambda: on_gpu(numbers(2)), "")
    for device in normfuse.register():
        assert device.memory_info(ort.OrtDeviceMemoryType.DEFAULT) is None
    close(session_of(gpu, STEP, "0").run(None, {"x": numbers(1, 64) * 0})[0], np.zeros((1, 64)))


def test_tensors_outlive_the_library(gpu: FakeGpu) -> None:
    """It is unregistered while one lives, which is let go of afterwards."""
    session, x = session_of(gpu, STEP), numbers(4, 64)
    (value,) = run(session, {"x": on_gpu(x)})
    del session
    gc.collect()
    ort.unregister_execution_provider_library(normfuse.get_ep_name())
    del value
    gc.collect()
