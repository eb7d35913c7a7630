"""The real models that the benchmarks run: third-party ones, and those that onnxscript tests its own rewriter with."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "real_models")]

import model_zoo  # noqa: E402

# Without phi2 and phi4, which hold gigabytes of random weights.
ONNXSCRIPT_MODELS = {
    "bart-encoder": "_bart_encoder.bart_encoder_test",
    "smollm-1": "_smollm_1.smollm_test_1",
    "smollm-2": "_smollm_2.smollm_test_2",
    "whisper-decoder": "_whisper_decoder.whisper_decoder_test",
    "whisper-encoder": "_whisper_encoder.whisper_encoder_test",
}
NAMES = (*model_zoo.MODELS, *ONNXSCRIPT_MODELS)


@dataclass(frozen=True)
class Case:
    """A model's file, and inputs like those that it was made for."""

    name: str
    path: Path
    feeds: dict[str, np.ndarray[Any, Any]]


def model_name(text: str) -> str:
    """The name of a model, as an argument of a command."""
    if text not in NAMES:
        raise argparse.ArgumentTypeError(f"there is no model {text}; there are {', '.join(NAMES)}")
    return text


def cases(folder: Path, wanted: Sequence[str] = ()) -> Iterator[Case]:
    """Yield the models of these names, or all; what has no file of its own is written into the folder."""
    for name, model in model_zoo.MODELS.items():
        if not wanted or name in wanted:
            yield Case(name, model.path(), model.feeds(np.random.default_rng(0)))
    for name, source in ONNXSCRIPT_MODELS.items():
        if not wanted or name in wanted:
            yield _onnxscript_case(name, source, folder)


def _onnxscript_case(name: str, source: str, folder: Path) -> Case:
    module, function = source.split(".")
    test = getattr(importlib.import_module(f"onnxscript.rewriter.models.{module}"), function)()
    np.random.seed(0)  # noqa: NPY002 - what the module draws its weights and inputs from
    model = test.get_onnx_model()
    path = folder / f"{name}.onnx"
    ir.save(model if isinstance(model, ir.Model) else ir.from_proto(model), path)
    return Case(name, path, test.get_ort_inputs())
