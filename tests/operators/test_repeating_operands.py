"""Operands whose few elements repeat along a long run: a gate [N, C / b, 1, b] of channels, on [N, C / b, M, b].

The library visits such runs as one (ep/cpu/plan/geometry.cc) where b divides its blocks. Whatever b is, results are
those of NumPy in float64, and to the last bit those of the operand spread over its tensor before.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import checking
import harness
import numpy as np
import onnx
import programs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper
from strategies import Builder, Case, Numbers

from normfuse import meaning
from normfuse.meaning import Array, evaluate

pytestmark = pytest.mark.every_isa
EXAMPLES = settings().max_examples
F32 = np.float32
# Those that are joined, and those that are not: odd ones, ones that do not divide a block, one that is too long.
LANES = [1, 2, 4, 8, 8, 16, 16, 32, 64, 128, 3, 7, 12, 24, 256]
MOST_ELEMENTS = 12000
PATHS = ("", "blocks", "input", "nontemporal", "nontemporal,blocks")
INTEGERS = (np.int8, np.uint8, np.int16, np.uint16)

Shape = tuple[int, ...]


@st.composite
def wholes(draw: st.DrawFn) -> Shape:
    """[N, C / b, M, b]."""
    lanes = draw(st.sampled_from(LANES))
    channels = (draw(st.sampled_from([1, 2, 2, 0])), draw(st.integers(1, 3)))
    pixels = draw(st.sampled_from([0, 1, 2, 5, 9, 37, 128, 130, 300, 1025]))
    room = MOST_ELEMENTS // (lanes * math.prod(max(dim, 1) for dim in channels))
    return (*channels, min(pixels, max(room, 1)), lanes)


def narrow(whole: Shape) -> st.SearchStrategy[Shape]:
    """What repeats in it, and with less weight what does not."""
    n, c, m, lanes = whole
    gates: list[Shape] = [(n, c, 1, lanes), (n, c, 1, lanes), (1, c, 1, lanes), (1, 1, 1, lanes), (lanes,)]
    return st.sampled_from([*gates, (n, c, 1, 1), (n, 1, m, 1), (1, 1, m, lanes), whole, ()])


@st.composite
def random_cases(draw: st.DrawFn) -> Case:
    """A FusedActivation with operands of such shapes, X among them."""
    whole = draw(wholes())
    b = Builder(draw, "FusedActivation")
    x_shape = draw(st.one_of(st.just(whole), narrow(whole)))
    b.x(x_shape, quantized=bool(x_shape) and draw(st.booleans()))
    for name in ("scale", "bias"):
        if name == "scale" or draw(st.booleans()):
            b.inputs[name] = b.numbers.normal(draw(narrow(whole)), b.float_type)
    b.activation(whole)
    if draw(st.integers(0, 2)) == 0:
        b.steps_behind(whole)
    b.y(programs.evaluate(b.op, b.inputs, b.attributes)["Y"].exact.shape)
    return b.finish()


@settings(max_examples=4 * EXAMPLES)
@given(case=random_cases(), provider=st.sampled_from(checking.PROVIDERS))
def test_programs(case: Case, provider: str) -> None:
    checking.check(case, provider)


class Quantized:
    """DequantizeLinear of both -> Mul, in either order -> [Add of a third] -> QuantizeLinear [-> DequantizeLinear]."""

    def __init__(self, shapes: Sequence[Shape], types: Sequence[type], *, dequantizes: bool, seed: int) -> None:
        numbers = Numbers(seed)
        self.tensors = {f"t{i}": numbers.codes(shape, types[i]) for i, shape in enumerate(shapes)}
        steps = [0.4 / 2 ** (8 * np.dtype(dtype).itemsize - 8) for dtype in types]
        self.scales = {f"s{i}": F32(step * (1 + 0.3 * i)) for i, step in enumerate(steps)}
        self.zeros = {f"z{i}": numbers.zero_point((), dtype) for i, dtype in enumerate(types)}
        self.dequantizes = dequantizes

    def model(self) -> onnx.ModelProto:
        nodes: list[onnx.NodeProto] = []

        def add(op_type: str, *inputs: str) -> str:
            nodes.append(helper.make_node(op_type, inputs, [f"v{len(nodes)}"], name=f"n{len(nodes)}"))
            return f"v{len(nodes) - 1}"

        read = [add("DequantizeLinear", f"t{i}", f"s{i}", f"z{i}") for i in range(len(self.tensors))]
        y = add("Mul", read[0], read[1])
        if len(read) > 2:
            y = add("Add", y, read[2])
        y = add("QuantizeLinear", y, "s0", "z0")
        if self.dequantizes:
            y = add("DequantizeLinear", y, "s0", "z0")
        nodes[-1].output[0] = "Y"
        outputs = {"Y": meaning.dtype_code(np.zeros(0, F32) if self.dequantizes else self.tensors["t0"])}
        constants = {name: np.asarray(value) for name, value in {**self.scales, **self.zeros}.items()}
        return harness.build_model(nodes, self.tensors, outputs, constants)

    def spread(self) -> Quantized:
        """With the first two of the whole shape."""
        whole = np.broadcast_shapes(*(array.shape for array in self.tensors.values()))
        other = Quantized([], [], dequantizes=self.dequantizes, seed=0)
        other.scales, other.zeros = self.scales, self.zeros
        other.tensors = {
            name: np.ascontiguousarray(np.broadcast_to(array, whole)) for name, array in self.tensors.items()
        }
        return other

    def expected(self) -> meaning.Expected:
        """Ties fall to either side, as float32 rounds them."""
        steps = ["Dequantize scale=s0 zero_point=z0", "Mul t1 scale=s1 zero_point=z1", "Add t2 scale=s2 zero_point=z2"]
        last = f"{'FakeQuantize' if self.dequantizes else 'Quantize'} scale=y zero_point=zy"
        given = {**self.tensors, **self.scales, **self.zeros, "y": self.scales["s0"], "zy": self.zeros["z0"]}
        arrays = {"X" if name == "t0" else name: np.asarray(value) for name, value in given.items()}
        return evaluate("; ".join([*steps[: len(self.tensors)], last]), arrays)["Y"]

    def run(self, threads: int = 2) -> Array:
        options = harness.session_options("ep")
        options.intra_op_num_threads = threads
        session = harness.create_session(self.model(), options=options)
        assert harness.cpu_types(session) == []
        return harness.run(session, self.tensors)["Y"]


@st.composite
def quantized(draw: st.DrawFn) -> Quantized:
    whole = draw(wholes())
    shapes = draw(st.permutations([whole, draw(narrow(whole))]))
    if draw(st.booleans()):
        shapes = [*shapes, draw(st.one_of(st.just(whole), narrow(whole)))]
    types = [draw(st.sampled_from(INTEGERS)) for _ in shapes]
    return Quantized(shapes, types, dequantizes=draw(st.booleans()), seed=draw(st.integers(0, 999)))


@settings(max_examples=2 * EXAMPLES)
@given(case=quantized(), path=st.sampled_from(PATHS))
def test_quantized_operands(case: Quantized, path: str) -> None:
    got = case.run()
    shapes = [array.shape for array in case.tensors.values()]
    case.expected().check(got, f"shapes {shapes}")
    assert np.array_equal(got, case.spread().run()), f"spread: {shapes}"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NORMFUSE_PATH", path)
        assert np.array_equal(got, case.run()), f"{path}: {shapes}"


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("lanes", [2, 8, 16, 128, 12])
@pytest.mark.parametrize("whole", ["X", "scale"])
def test_paths_and_threads(whole: str, lanes: int, dtype: type) -> None:
    """Floats, long enough for several threads: each path and the operands spread over the tensor give the same bits."""
    numbers = Numbers(lanes)
    shape, gate = (3, 5, 60000 // lanes, lanes), (3, 5, 1, lanes)
    inputs = {
        "X": numbers.normal(shape if whole == "X" else gate, dtype),
        "scale": numbers.normal(shape if whole == "scale" else gate, dtype),
        "bias": numbers.normal((1, 5, 1, lanes), dtype),
    }
    spread = {name: np.ascontiguousarray(np.broadcast_to(array, shape)) for name, array in inputs.items()}
    results = []
    for tensors, path, threads in [(inputs, path, threads) for path in PATHS for threads in (1, 2)] + [(spread, "", 2)]:
        model = harness.operator_model(
            "FusedActivation", tensors, {"activation": "HardSwish"}, {"Y": meaning.dtype_code(tensors["X"])}
        )
        options = harness.session_options("ep")
        options.intra_op_num_threads = threads
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("NORMFUSE_PATH", path)
            results.append(harness.run(harness.create_session(model, options=options), tensors)["Y"])
    programs.evaluate("FusedActivation", inputs, {"activation": "HardSwish"})["Y"].check(results[0], "float64")
    for result in results[1:]:
        assert result.tobytes() == results[0].tobytes()
