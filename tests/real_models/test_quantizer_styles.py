"""Files as other quantisers write them: the numbers, the products of integers, and a reason for every pair."""

from __future__ import annotations

import functools
import platform
from collections import Counter

import numpy as np
import pytest
from parsed_models import results
from quantized_zoo import check_pairs
from quantizer_styles import FILES, File, plain, products_of_integers

import normfuse
from normfuse.files.model_files import load_model
from normfuse.inspection.quantization import quantization_of

# The main part runs one of each style; the others are "slow".
FIRST = ("convolutions-qcdq-channel-20", "convolutions-tflite-tensor-15", "transformer-tensorrt-channel-17")
CASES = [
    pytest.param(file, id=file.name, marks=[] if file.name in FIRST or file.style == "blocks" else [pytest.mark.slow])
    for file in FILES
]
# Of the largest output. A value beside a rounding tie is a step of 1/127 in one layer; whether a rounding is lost,
# verification finds out.
OF_TIES = 0.06


@pytest.mark.parametrize("file", CASES)
def test_a_session_has_the_numbers_and_the_products(file: File) -> None:
    feeds = file.feeds()
    (expected,) = results(file.model(), feeds).values()  # without any optimisation: all products in float
    model = file.model().SerializeToString()
    (got,) = normfuse.InferenceSession(model).run(None, feeds)
    assert np.abs(got - expected).max() <= OF_TIES * np.abs(expected).max()
    of_onnxruntime = products_of_integers(plain, model, feeds)
    as_they_are = functools.partial(normfuse.InferenceSession, choose_products=False)
    kept = products_of_integers(as_they_are, model, feeds)
    chosen = products_of_integers(normfuse.InferenceSession, model, feeds)
    if file.name.startswith("transformer-qcdq"):
        # Of int8 activations, which stay so behind a Clip: ONNX Runtime's slowest products on x86.
        for counts in (of_onnxruntime, kept, chosen):
            counts.pop("QGemm", None)
    assert kept == of_onnxruntime
    assert Counter(chosen) >= Counter(of_onnxruntime)  # none is lost
    if file.style == "tflite" and platform.machine().lower() in ("x86_64", "amd64"):
        assert Counter(chosen) > Counter(of_onnxruntime)  # of int8 tensors that several nodes read


@pytest.mark.parametrize("file", CASES)
def test_the_file_is_verified(file: File) -> None:
    """Pairs that were lost are found there."""
    result = normfuse.optimize(file.model(), fold_weights=True, samples=1)
    assert result.report.verification is not None
    assert result.report.verification.passed


@pytest.mark.parametrize("file", CASES)
def test_every_pair_is_explained(file: File) -> None:
    model = file.model()
    said = quantization_of(load_model(model), with_pairs=True)
    assert said is not None
    assert said.forms == (("weights alone",) if file.style == "blocks" else ("QDQ",))
    assert set(said.activations) == (set() if file.style == "blocks" else {"int8"})
    granularity = {"blocks": "in blocks of 32"}.get(file.style, "per channel" if file.per_channel else "per tensor")
    assert {each.partition(" ")[2] for each in said.weights} == {granularity}
    check_pairs(said, model)
