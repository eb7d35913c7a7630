"""Sub of a constant becomes Add where ONNX Runtime then makes it part of a convolution; every other one stays."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from rewrite_harness import SpellingBuilder, optimize, round_trip, run

COUNT = "SubtractionAsAddition"
SHAPE = (2, 4, 6, 5)
Build = Callable[[SpellingBuilder, str], str]


def convolved(g: SpellingBuilder, x: str) -> str:
    return g.add("Conv", x, g.weight(8, 4, 1, 1), g.weight(8))


def normalized(g: SpellingBuilder, y: str, *shape: int) -> str:
    """Batch normalisation, written out."""
    y = g.add("Sub", y, g.weight(*shape))
    return g.add("Relu", g.add("Add", g.add("Mul", y, g.weight(*shape, mean=1.0)), g.weight(*shape)))


def channels_first(g: SpellingBuilder, x: str) -> str:
    return normalized(g, convolved(g, x), 8, 1, 1)


def channels_last(g: SpellingBuilder, x: str) -> str:
    """As from TensorFlow by way of PyTorch, casts that do nothing included."""
    y = g.add("Cast", g.add("Transpose", convolved(g, x), perm=[0, 2, 3, 1]), to=onnx.TensorProto.FLOAT)
    y = normalized(g, g.add("Add", y, g.weight(1, 1, 1, 8)), 1, 1, 1, 8)
    return g.add("Transpose", y, perm=[0, 3, 1, 2])


def model_of(build: Build, dtype: str = "float32") -> onnx.ModelProto:
    g = SpellingBuilder(17, dtype)
    g.output(build(g, g.input("x", SHAPE)), (None, None, None, None))
    return g.model("m")


def operators(model: onnx.ModelProto) -> Counter[str]:
    return Counter(node.op_type for node in model.graph.node)


def optimized_by_onnxruntime(model: onnx.ModelProto, folder: Path) -> Counter[str]:
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(folder / "optimized.onnx")
    options.log_severity_level = 3
    onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return operators(onnx.load(options.optimized_model_filepath))


@pytest.mark.parametrize("build", [channels_first, channels_last])
def test_a_batch_normalization_becomes_part_of_its_convolution(build: Build, tmp_path: Path) -> None:
    model = model_of(build)
    written, result = optimize(model)
    assert result.counts == {COUNT: 1}
    assert operators(written) == operators(model) - Counter(["Sub"]) + Counter(["Add"])
    assert len(written.graph.initializer) == len(model.graph.initializer)
    feeds = {"x": np.random.default_rng(3).standard_normal(SHAPE).astype(np.float32)}
    (expected,), (got,) = (run(each, feeds, optimized=False).values() for each in (model, written))
    np.testing.assert_array_equal(got, expected)
    left = {"Sub", "Mul", "Add", "Relu"}
    assert left & set(optimized_by_onnxruntime(model, tmp_path)) == left
    assert not left & set(optimized_by_onnxruntime(written, tmp_path))
    again, result = optimize(written)
    assert again == round_trip(written)
    assert not result.counts


def test_names_that_are_taken(tmp_path: Path) -> None:
    """Two convolutions of the same name for their constants; one constant that two of them subtract stays."""

    def build(g: SpellingBuilder, x: str) -> str:
        mean = g.weight(8, 1, 1)
        first, second = (g.add("Relu", g.add("Sub", convolved(g, x), mean)) for _ in range(2))
        g.constant(np.zeros(1, np.float32))
        return g.add("Add", first, second)

    model = model_of(build)
    taken = next(node.output[0] for node in model.graph.node if node.op_type == "Sub") + ".addend"
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones(3, np.float32), taken))
    written, result = optimize(model)
    assert result.counts == {COUNT: 2}
    onnx.checker.check_model(written, full_check=True)
    names = [tensor.name for tensor in written.graph.initializer]
    assert len(names) == len(set(names))
    feeds = {"x": np.random.default_rng(3).standard_normal(SHAPE).astype(np.float32)}
    (expected,), (got,) = (run(each, feeds, optimized=False).values() for each in (model, written))
    np.testing.assert_array_equal(got, expected)


def read_twice(g: SpellingBuilder, x: str) -> str:
    y = convolved(g, x)
    return g.add("Concat", y, g.add("Sub", y, g.weight(8, 1, 1)), axis=1)


LEFT: dict[str, Build] = {
    "what is subtracted from": lambda g, x: g.add("Sub", g.weight(8, 1, 1), convolved(g, x)),
    "two tensors": lambda g, x: g.add("Sub", convolved(g, x), g.input("z", (2, 8, 6, 5))),
    "no convolution": lambda g, x: g.add("Sub", g.add("Relu", x), g.weight(4, 1, 1)),
    "an activation in between": lambda g, x: g.add("Sub", g.add("Relu", convolved(g, x)), g.weight(8, 1, 1)),
    "a residual in between": lambda g, x: g.add(
        "Sub", g.add("Add", convolved(g, x), g.input("z", (2, 8, 6, 5))), g.weight(8, 1, 1)
    ),
    "weights from a caller": lambda g, x: g.add("Sub", g.add("Conv", x, g.input("w", (8, 4, 1, 1))), g.weight(8, 1, 1)),
    "a convolution that is read elsewhere": read_twice,
}


@pytest.mark.parametrize("case", LEFT)
def test_a_subtraction_that_is_left(case: str) -> None:
    model = model_of(LEFT[case])
    written, result = optimize(model)
    assert written == round_trip(model)
    assert not result.counts
