"""Rows side by side: every number of them, wherever X and Y lie in memory, and quantised at every scale."""

from __future__ import annotations

import harness
import ml_dtypes
import numpy as np
import onnxruntime
import pytest
from checking import check, normalization, session_of
from oracle import Array
from strategies import Case

F32 = np.float32
PAGE = 4096
pytestmark = pytest.mark.every_isa


def numbers(shape: tuple[int, ...], seed: int, mean: float = 0.0) -> Array:
    return np.random.default_rng(seed).normal(mean, 1.0, shape).astype(F32)


def rows(count: int, width: int, activation: str = "Identity", mean: float = 0.0, **inputs: Array) -> Case:
    parameters = {"scale": numbers((width,), 1), "bias": numbers((width,), 2)} | inputs
    return normalization(numbers((count, width), 0, mean), {"axes": [-1], "activation": activation}, **parameters)


def placed(memory: Array, like: Array, distance: int) -> Array:
    """An array in ``memory`` whose address is ``distance`` bytes behind a multiple of the size of a page."""
    start = -memory.ctypes.data % PAGE + distance
    return memory[start : start + like.nbytes].view(like.dtype).reshape(like.shape)


@pytest.mark.parametrize("count", range(1, 12))
@pytest.mark.parametrize("width", [17, 70, 384, 1040])
def test_every_number_of_rows(count: int, width: int) -> None:
    check(rows(count, width, "Gelu", mean=1e3), "ep")
    y = {"y_scale": np.asarray(0.02, F32), "y_zero_point": np.asarray(-5, np.int8)}
    check(rows(count, width, **y), "ep")


@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("value", [np.inf, np.nan, 6e4, 1e30])
def test_a_row_of_strange_values_changes_no_other(value: float, dtype: type, residual: bool) -> None:
    x = numbers((13, 768), 0).astype(dtype)
    inputs = {"scale": numbers((768,), 1).astype(dtype), "bias": numbers((768,), 2).astype(dtype)}
    if residual:
        inputs["residual"] = numbers((13, 768), 3).astype(dtype)
    case = normalization(x, {"axes": [-1]}, **inputs)
    session = session_of(case, "ep")
    usual = harness.run(session, case.inputs)["Y"]
    for strange in range(13):
        row = x[strange].copy()
        with np.errstate(over="ignore"):
            x[strange, [5, 700]] = np.asarray([value, -value]).astype(dtype)
        got = harness.run(session, case.inputs)["Y"]
        x[strange] = row
        others = np.arange(13) != strange
        assert got[others].tobytes() == usual[others].tobytes(), strange


@pytest.mark.parametrize("activation", ["Identity", "Relu", "Gelu", "Swish"])
@pytest.mark.parametrize("width", [40, 768, 1000])
def test_results_do_not_depend_on_where_tensors_lie(activation: str, width: int) -> None:
    case = rows(9, width, activation)
    session = session_of(case, "ep")
    x, expected = case.inputs["X"], harness.run(session, case.inputs)["Y"]
    memory = [np.zeros(x.nbytes + 3 * PAGE, np.uint8) for _ in range(2)]
    source = placed(memory[0], x, 0)
    source[:] = x
    for distance in (0, 64, 128, 448, 1024, 1088, 3072, 3136, 4032):
        target = placed(memory[1], x, distance)
        target[:] = np.nan
        binding = session.io_binding()
        for bind, name, array in ((binding.bind_input, "X", source), (binding.bind_output, "Y", target)):
            bind(name, "cpu", 0, F32, array.shape, array.ctypes.data)
        session.run_with_iobinding(binding, onnxruntime.RunOptions())
        assert target.tobytes() == expected.tobytes(), distance


@pytest.mark.parametrize("zero", [-128, 0, 127])
@pytest.mark.parametrize("scale", [1e-35, 1e-20, 1e-10, 1e-7, 1.0, 1e7, 1e20, 1e35])
def test_every_scale_of_a_quantised_result(scale: float, zero: int) -> None:
    y = {"y_scale": np.asarray(scale, F32), "y_zero_point": np.asarray(zero, np.int8)}
    for activation in ("Identity", "Relu", "Gelu"):
        check(rows(4, 100, activation, **y), "ep")
        check(rows(4, 100, activation, bias=np.full(100, 1e30, F32), **y), "ep")


@pytest.mark.parametrize("scale", [3e-8, 2e-6, 1e-4, 0.01, 0.3])
def test_quantised_gelu_of_every_size(scale: float) -> None:
    """What is normalised is multiplied by 0, so that the values are the biases themselves."""
    sizes = np.geomspace(1e-9, 20.0, 2000)
    bias = np.concatenate([sizes, -sizes, np.linspace(-9, 9, 3001), [0.0, -0.0, np.inf, -np.inf, np.nan]]).astype(F32)
    for y_type in (np.int8, np.uint8):
        y = {"y_scale": np.asarray(scale, F32), "y_zero_point": np.asarray(100, y_type)}
        check(rows(5, bias.size, "Gelu", scale=np.zeros(bias.size, F32), bias=bias, **y), "ep")
