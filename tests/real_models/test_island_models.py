"""Real models on DirectML: one island, one submission and one wait a run; only inputs and outputs are copied."""

from __future__ import annotations

import directml_libraries as libraries
import harness
import numpy as np
import pytest
from model_zoo import MODELS
from oracle import Array

from normfuse.gpu_work import count_gpu_work

ALIGNMENT = 256  # tensors start at multiples of this


def copied(arrays: list[Array]) -> int:
    """Bytes on the GPU, where integers have 32 bits."""
    sizes = [array.size * min(array.itemsize, 4) for array in arrays]
    return sum(-(-size // ALIGNMENT) * ALIGNMENT for size in sizes)


# What a tensor that is quantised with another last bit becomes: one step in some activations.
OF_A_STEP = 5e-3


@pytest.mark.parametrize(
    ("name", "tolerance"),
    [
        ("minilm-l3", 1e-3),
        ("minilm-l6", 1e-3),
        ("ocr-direction", 1e-3),
        ("smart-turn", OF_A_STEP),
    ],
)
def test_a_model_is_one_island(name: str, tolerance: float) -> None:
    fake = str(libraries.build_fake())
    options = {"backend": "directml", "claim": "profitable", "directml_library": fake, "d3d12_library": fake}
    model = MODELS[name]
    feeds = next(model.inputs())
    on_cpu = harness.create_session(model.path(), "cpu")
    expected = on_cpu.run(None, feeds)
    session = harness.create_session(model.path(), "ep", **options)
    # Inputs that are outputs as they are need no GPU.
    assert len(harness.ep_groups(session)) == 1
    assert set(harness.cpu_types(session)) <= {"Identity"}
    results = session.run(None, feeds)
    for result, value in zip(results, expected, strict=True):
        error = np.abs(result.astype(np.float64) - value).max() / max(1e-30, np.abs(value).max())
        assert error <= tolerance, error
    work = count_gpu_work(lambda given: harness.create_session(model.path(), "ep", **options, **given), feeds)
    assert (work.submissions, work.waits, work.created) == (1, 1, 0)
    computed = [result for result in results if result.dtype == np.float32]
    assert (work.bytes_up, work.bytes_down) == (copied(list(feeds.values())), copied(computed))


def test_a_dynamically_quantised_model_is_hardly_torn() -> None:
    """T5's encoder: the CPU computes the table of relative positions, of integers and of their logarithms."""
    fake = str(libraries.build_fake())
    options = {"backend": "directml", "claim": "profitable", "directml_library": fake, "d3d12_library": fake}
    model = MODELS["title-encoder"]
    feeds = next(model.inputs())
    session = harness.create_session(model.path(), "ep", **options)
    assert len(harness.ep_groups(session)) <= 2
    assert not set(harness.cpu_types(session)) & {"MatMul", "MatMulInteger", "DynamicQuantizeLinear", "Softmax"}
    (expected,) = harness.create_session(model.path(), "cpu").run(None, feeds)
    (result,) = session.run(None, feeds)
    error = np.abs(result.astype(np.float64) - expected).max() / np.abs(expected).max()
    assert error <= OF_A_STEP, error
    work = count_gpu_work(lambda given: harness.create_session(model.path(), "ep", **options, **given), feeds)
    assert work.submissions <= 2
    assert (work.waits, work.created) == (work.submissions, 0)
