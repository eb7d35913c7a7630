"""The real models that the benchmarks run: third-party ones, those that onnxscript tests its own rewriter with, blocks
of today's models, which PyTorch exports (`tests/export/blocks.py`), and quantised files of third-party ones
(`tests/real_models/quantized_zoo.py`).
"""

import argparse
import importlib
import importlib.util
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests" / name) for name in (".", "real_models", "export")]

import model_zoo  # noqa: E402
import quantized_zoo  # noqa: E402

# Without phi2 and phi4, which hold gigabytes of random weights.
ONNXSCRIPT_MODELS = {
    "bart-encoder": "_bart_encoder.bart_encoder_test",
    "smollm-1": "_smollm_1.smollm_test_1",
    "smollm-2": "_smollm_2.smollm_test_2",
    "whisper-decoder": "_whisper_decoder.whisper_decoder_test",
    "whisper-encoder": "_whisper_encoder.whisper_encoder_test",
}
# Those of `blocks.BLOCKS`, which cannot be imported without PyTorch.
BLOCKS = (
    "llama_block",
    "qwen3_block",
    "dit_block",
    "convnext_v2_block",
    "dinov2_block",
    "sdxl_resblock",
    "mamba2_output",
    "kokoro_block",
)
NAMES = (*model_zoo.MODELS, *ONNXSCRIPT_MODELS, *BLOCKS, *quantized_zoo.NAMES)


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
    blocks = [name for name in BLOCKS if not wanted or name in wanted]
    if blocks and importlib.util.find_spec("torch") is None:
        # By the pin of pyproject.toml: any other request for torch fetches GPU runtimes.
        hint = "`pip install torch==2.13.0 onnxscript` installs what exports them"
        print(f"left out, because PyTorch is not installed: {', '.join(blocks)}; {hint}", file=sys.stderr)
        blocks = []
    for name in blocks:
        yield _block_case(name, folder)
    for name in quantized_zoo.NAMES:
        if not wanted or name in wanted:
            feeds = quantized_zoo.network_of(name).feeds(np.random.default_rng(0))
            yield Case(name, quantized_zoo.quantized_file(name), feeds)


def _onnxscript_case(name: str, source: str, folder: Path) -> Case:
    module, function = source.split(".")
    test = getattr(importlib.import_module(f"onnxscript.rewriter.models.{module}"), function)()
    np.random.seed(0)  # noqa: NPY002 - what the module draws its weights and inputs from
    model = test.get_onnx_model()
    path = folder / f"{name}.onnx"
    ir.save(model if isinstance(model, ir.Model) else ir.from_proto(model), path)
    return Case(name, path, test.get_ort_inputs())


def _block_case(name: str, folder: Path) -> Case:
    import blocks
    import torch

    torch.manual_seed(0)
    module, inputs = blocks.BLOCKS[name](blocks.LARGE)
    path = folder / f"{name}.onnx"
    onnx.save(blocks.exported(module.eval(), inputs), path)
    return Case(name, path, {f"input_{i}": each.numpy() for i, each in enumerate(inputs)})
