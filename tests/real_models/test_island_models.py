"""Real models on DirectML: one island, one submission and one wait a run; only inputs and outputs are copied."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path

import directml_libraries as libraries
import harness
import numpy as np
import onnx
import onnxruntime
import pytest
from island_reference import check_quantised, showing_quantised_values
from model_zoo import MODELS, Feeds, RealModel
from quantized_zoo import network_of, quantized_file

from normfuse.inspection.gpu_work import count_gpu_work
from normfuse.meaning import Array

pytestmark = pytest.mark.without_vnni

ALIGNMENT = 256  # tensors start at multiples of this


def copied(arrays: list[Array]) -> int:
    """Bytes on the GPU, where integers have 32 bits."""
    sizes = [array.size * min(array.itemsize, 4) for array in arrays]
    return sum(-(-size // ALIGNMENT) * ALIGNMENT for size in sizes)


# Of an output, relative to its largest value: some hundred operations one behind the other, of float32.
TOLERANCE = 1e-3


@functools.cache
def options(claim: str = "profitable") -> dict[str, str]:
    fake = str(libraries.build_fake())
    return {"backend": "directml", "claim": claim, "directml_library": fake, "d3d12_library": fake}


def check_close(results: Mapping[str, Array], expected: Mapping[str, Array]) -> None:
    for name, result in results.items():
        value = expected[name].astype(np.float64)
        error = np.abs(result - value).max() / max(1e-30, np.abs(value).max())
        assert error <= TOLERANCE, (name, error)


def check_quantised_model(proto: onnx.ModelProto, feeds: Feeds, islands: int) -> dict[str, Array]:
    """A session that shows the quantised values against a reference with exact products; gives its results."""
    session = harness.create_session(showing_quantised_values(proto), "ep", **options())
    assert len(harness.ep_groups(session)) == islands
    shown = harness.run(session, feeds)
    expected = check_quantised(proto, feeds, shown)
    check_close({output.name: shown[output.name] for output in proto.graph.output}, expected)
    return shown


def check_same(results: Mapping[str, Array], shown: Mapping[str, Array]) -> None:
    """That quantised values are shown changes nothing."""
    for name, result in results.items():
        np.testing.assert_array_equal(shown[name], result)


def check_one_island(path: Path) -> onnxruntime.InferenceSession:
    session = harness.create_session(path, "ep", **options())
    # Inputs that are outputs as they are need no GPU.
    assert len(harness.ep_groups(session)) == 1
    assert set(harness.cpu_types(session)) <= {"Identity"}
    return session


FLOAT = pytest.mark.parametrize(
    "name", ["minilm-l3", pytest.param("minilm-l6", marks=pytest.mark.slow), "ocr-direction"]
)


@FLOAT
def test_a_model_is_one_island(name: str) -> None:
    model = MODELS[name]
    feeds = next(model.inputs())
    session = check_one_island(model.path())
    check_close(harness.run(session, feeds), harness.run(harness.create_session(model.path(), "cpu"), feeds))


# In the group of the other tests of the file that is made of it.
QUANTISED = pytest.param("ocr-direction-s8s8", marks=pytest.mark.xdist_group("ocr-direction"))


@pytest.mark.parametrize("name", [QUANTISED, pytest.param("smart-turn", marks=pytest.mark.slow)])
def test_a_model_of_pairs_is_one_island(name: str) -> None:
    """The fake computes 10 seconds for smart-turn."""
    path = MODELS[name].path() if name in MODELS else quantized_file(name)
    feeds = next(MODELS[name].inputs() if name in MODELS else network_of(name).inputs(1))
    check_one_island(path)
    check_quantised_model(onnx.load(path), feeds, islands=1)


def check_work(model: RealModel, feeds: Feeds, results: Mapping[str, Array]) -> None:
    work = count_gpu_work(lambda given: harness.create_session(model.path(), "ep", **options(), **given), feeds)
    assert (work.submissions, work.waits, work.created) == (1, 1, 0)
    computed = [result for result in results.values() if result.dtype == np.float32]
    assert (work.bytes_up, work.bytes_down) == (copied(list(feeds.values())), copied(computed))


@FLOAT
def test_a_run_is_one_submission(name: str) -> None:
    model = MODELS[name]
    feeds = next(model.inputs())
    check_work(model, feeds, harness.run(harness.create_session(model.path(), "ep", **options()), feeds))


@pytest.mark.slow
def test_a_run_of_a_quantised_model_is_one_submission() -> None:
    """Four runs, for each of which the fake computes 10 seconds."""
    model = MODELS["smart-turn"]
    feeds = next(model.inputs())
    results = harness.run(harness.create_session(model.path(), "ep", **options()), feeds)
    check_work(model, feeds, results)
    check_same(results, check_quantised_model(onnx.load(model.path()), feeds, islands=1))


def test_a_dynamically_quantised_model_is_hardly_torn() -> None:
    """T5's encoder: the CPU computes the table of relative positions, of integers and of their logarithms."""
    model = MODELS["title-encoder"]
    feeds = next(model.inputs())
    session = harness.create_session(model.path(), "ep", **options())
    islands = len(harness.ep_groups(session))
    assert islands <= 2
    assert not set(harness.cpu_types(session)) & {"MatMul", "MatMulInteger", "DynamicQuantizeLinear", "Softmax"}
    check_same(harness.run(session, feeds), check_quantised_model(onnx.load(model.path()), feeds, islands))
    work = count_gpu_work(lambda given: harness.create_session(model.path(), "ep", **options(), **given), feeds)
    assert work.submissions <= 2
    assert (work.waits, work.created) == (work.submissions, 0)


def test_every_island_of_a_model_runs() -> None:
    """With what does not pay: T5's logarithms of distances, which are those of 0 where they are not selected."""
    model = MODELS["title-encoder"]
    feeds = next(model.inputs())
    session = harness.create_session(model.path(), "ep", **options("all"))
    assert not set(harness.cpu_types(session)) & {"Log", "Where", "Less"}
    results = harness.run(session, feeds)
    proto = onnx.load(model.path())
    shown = harness.run(harness.create_session(showing_quantised_values(proto), "ep", **options("all")), feeds)
    expected = check_quantised(proto, feeds, shown)
    np.testing.assert_array_equal(shown["last_hidden_state"], results["last_hidden_state"])
    check_close(results, expected)
