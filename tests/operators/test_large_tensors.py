"""Results that are stored non-temporally, as those of large tensors are: every way of it, on one thread and on two."""

from __future__ import annotations

import harness
import numpy as np
import onnxruntime
import pytest
from checking import activation, dequantization, normalization
from strategies import Case

from normfuse.meaning import Array, dtype_of

F32, F16 = np.float32, np.float16
pytestmark = [pytest.mark.every_isa, pytest.mark.slow]
ROWS = (2752, 1008)  # 22 MB in and out; rows of 63 vectors of 64 bytes
IMAGE = (4, 8, 292, 320)


@pytest.fixture(autouse=True)
def _stores_non_temporally(monkeypatch: pytest.MonkeyPatch) -> None:
    """By default from 24 MiB on."""
    monkeypatch.setenv("NORMFUSE_PATH", "nontemporal")


def numbers(shape: tuple[int, ...], seed: int = 0, dtype: type = F32, mean: float = 0.0) -> Array:
    return np.random.default_rng(seed).normal(mean, 1.0, shape).astype(dtype)


def rows(attributes: dict[str, object], outputs: tuple[str, ...] = ("Y",), **inputs: Array) -> Case:
    parameters = {"scale": numbers(ROWS[1:], 1), "bias": numbers(ROWS[1:], 2)} | inputs
    return normalization(numbers(ROWS), {"axes": [-1], **attributes}, outputs, **parameters)


def image(attributes: dict[str, object]) -> Case:
    channels = {"scale": numbers(IMAGE[1:2], 1), "bias": numbers(IMAGE[1:2], 2)}
    return normalization(numbers(IMAGE), {"affine_align": "channel", **attributes}, **channels)


def quantized(shape: tuple[int, ...], axis: int, **zero: Array) -> Case:
    x = np.random.default_rng(3).integers(-128, 128, shape, dtype=np.int8)
    scale = np.abs(numbers((shape[axis],), 4)) + F32(0.01)
    return dequantization(x, {"x_axis": axis}, x_scale=scale, **zero)


CASES = {
    "LayerNorm": lambda: rows({}),
    "LayerNorm, Gelu": lambda: rows({"activation": "Gelu"}),
    "LayerNorm, Mish": lambda: rows({"activation": "Mish"}),
    "RMSNorm": lambda: normalization(numbers(ROWS), {"axes": [-1], "use_mean": 0}, scale=numbers(ROWS[1:], 1)),
    "LayerNorm, scalar": lambda: normalization(numbers(ROWS), {"axes": [-1]}),
    "Add, LayerNorm": lambda: rows({}, residual=numbers(ROWS, 5)),
    "Add, LayerNorm, sum": lambda: rows({}, ("Y", "sum"), residual=numbers(ROWS, 5)),
    "Add, Add, LayerNorm, sum": lambda: rows(
        {}, ("Y", "sum"), residual=numbers(ROWS, 5), residual_bias=numbers(ROWS[1:], 6)
    ),
    "float16": lambda: normalization(
        numbers((5300, 1024), 0, F16), {"axes": [-1]}, scale=numbers((1024,), 1, F16), bias=numbers((1024,), 2, F16)
    ),
    "float16, odd rows, Relu": lambda: normalization(
        numbers((4097, 800), 0, F16),
        {"axes": [-1], "activation": "Relu"},
        scale=numbers((800,), 1, F16),
        bias=numbers((800,), 2, F16),
    ),
    "float16, Add, sum": lambda: normalization(
        numbers((5300, 1024), 0, F16), {"axes": [-1]}, ("Y", "sum"), residual=numbers((5300, 1024), 5, F16)
    ),
    "float16, a long row": lambda: normalization(
        numbers((1, 5_500_032), 0, F16), {"axes": [-1]}, ("Y", "sum"), residual=numbers((1, 5_500_032), 5, F16)
    ),
    "one long row": lambda: normalization(numbers((1, 2_800_000), mean=1e3), {"axes": [-1]}),
    "one long row, sum": lambda: normalization(
        numbers((1, 2_800_000), mean=1e3), {"axes": [-1]}, ("Y", "sum"), residual=numbers((1, 2_800_000), 5)
    ),
    "InstanceNorm, Relu": lambda: image({"axes": [2, 3], "activation": "Relu"}),
    "GroupNorm, Swish": lambda: image({"num_groups": 4, "activation": "Swish"}),
    "MVN over batches": lambda: normalization(numbers(IMAGE), {"axes": [0, 2, 3]}),
    "rows of odd length": lambda: normalization(numbers((2752, 1007)), {"axes": [-1]}),
    "HardSwish": lambda: activation(numbers(ROWS), {"activation": "HardSwish"}),
    "DequantizeLinear": lambda: dequantization(
        np.random.default_rng(3).integers(-128, 128, (4200, 1008), dtype=np.int8), {}, x_scale=np.array(0.03, F32)
    ),
    "DequantizeLinear, rows": lambda: quantized((4200, 1008), 0),
    "DequantizeLinear, columns": lambda: quantized(
        (4200, 1008), 1, x_zero_point=np.random.default_rng(7).integers(-128, 128, 1008, dtype=np.int8)
    ),
}
# Every way of writing rows that do not begin with a line of the cache.
CUT = [
    "LayerNorm", "LayerNorm, Gelu", "LayerNorm, Mish", "RMSNorm", "LayerNorm, scalar", "Add, LayerNorm",
    "Add, LayerNorm, sum", "float16", "float16, odd rows, Relu", "one long row", "InstanceNorm, Relu",
    "rows of odd length", "HardSwish", "DequantizeLinear", "DequantizeLinear, rows", "DequantizeLinear, columns",
]  # fmt: skip


def session(case: Case, threads: int) -> onnxruntime.InferenceSession:
    types = {name: value.code for name, value in case.expected().items()}
    model = harness.operator_model(case.op, case.inputs, case.attributes, types, constants=case.constants, opset=25)
    options = harness.session_options("custom")
    options.intra_op_num_threads = threads
    return onnxruntime.InferenceSession(model.SerializeToString(), options)


@pytest.mark.parametrize("name", CASES)
def test_results_past_the_caches(name: str) -> None:
    case = CASES[name]()
    for threads in (1, 2):
        got = harness.run(session(case, threads), case.inputs)
        for output, expected in case.expected().items():
            expected.check(got[output], f"{name}, {threads} thread(s), {output}")


LINE = 64  # bytes


class Guarded:
    """Room for an array that begins ``offset`` bytes behind the beginning of a line of the cache, between guards."""

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype, offset: int) -> None:
        self.bytes = np.full(int(np.prod(shape)) * dtype.itemsize + 4 * LINE, 0xA5, np.uint8)
        self.begin = LINE - self.bytes.ctypes.data % LINE + LINE + offset
        self.end = self.begin + int(np.prod(shape)) * dtype.itemsize
        self.array = self.bytes[self.begin : self.end].view(dtype).reshape(shape)

    def check(self, label: str) -> None:
        assert (self.bytes[: self.begin] == 0xA5).all(), label
        assert (self.bytes[self.end :] == 0xA5).all(), label


@pytest.mark.parametrize("name", CUT)
def test_outputs_that_begin_within_a_line_of_the_cache(name: str) -> None:
    case = CASES[name]()
    made = session(case, 2)
    binding = made.io_binding()
    feeds = {key: harness.to_ort(value) for key, value in case.inputs.items()}
    for node in made.get_inputs():
        binding.bind_ortvalue_input(node.name, feeds[node.name])
    expected = case.expected()
    places = {key: Guarded(value.exact.shape, dtype_of(value.code), 20) for key, value in expected.items()}
    for key, place in places.items():
        array = place.array
        binding.bind_output(key, "cpu", 0, array.dtype, array.shape, array.ctypes.data)
    made.run_with_iobinding(binding)
    for key, place in places.items():
        expected[key].check(place.array, f"{name}, {key}")
        place.check(f"{name}, {key}")
