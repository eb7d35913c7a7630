"""One cell of the export matrix: a module, exported, optimised, counted and compared with PyTorch."""

import dataclasses
import functools
from pathlib import Path
from typing import Any

import blocks
import numpy as np
import onnx
import onnxruntime
import torch
from torch.onnx import errors as export_errors
from torch_modules import BUILDERS, ExportCase, build
from torch_sites import Counts, run_and_count

import normfuse

EXPORTERS = ("dynamo", "legacy")
# What a file of the exporters can have: 18 is the dynamo exporter's own, others come from converting its result.
OPSETS = tuple(range(13, 24))

# The legacy exporter does not know these operators (at all, or below an opset); the sentence is its own.
REFUSED = {
    ("swiglu_block", "legacy"): (OPSETS, "aten::rms_norm"),
    **{
        (name, "legacy"): ((13,), "aten::scaled_dot_product_attention")
        for name in (*(name for name in BUILDERS if name.startswith("encoder_layer")), "segformer")
    },
}
_NAMED_ACTIVATIONS = {"Gelu", "GeluTanh", "Swish"}


class Refused(Exception):
    """The exporter does not do this module at this opset."""


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What became of one export."""

    opset: int
    """Of the file; the dynamo exporter keeps its own where it cannot convert."""
    expected: Counts
    found: Counts
    error: float
    """Largest difference from PyTorch, of both sessions, relative to the largest output."""
    report: normfuse.OptimizationReport


@functools.cache
def case_and_expectation(name: str) -> tuple[ExportCase, torch.Tensor, Counts]:
    # The fused kernels of nn.TransformerEncoderLayer, for inference in PyTorch itself, cannot be exported.
    torch.backends.mha.set_fastpath_enabled(False)
    case = build(name)
    return case, *run_and_count(case.module, case.inputs)


@functools.cache
def captured(name: str) -> torch.export.ExportedProgram:
    """Return the module as torch.export captures it: the same for every opset."""
    case, _, _ = case_and_expectation(name)
    return torch.export.export(case.module, case.inputs)


def export(name: str, exporter: str, opset: int) -> Any:
    """Return what the exporter gives: an ONNXProgram, or the bytes of a file.

    Raises:
        Refused: The exporter does not know an operator of the module.
    """
    case, _, _ = case_and_expectation(name)
    if exporter == "dynamo":
        return blocks.export(captured(name), (), exporter, opset, len(case.inputs))
    try:
        return blocks.export(case.module, case.inputs, exporter, opset)
    except export_errors.UnsupportedOperatorError as error:
        raise Refused(str(error)) from error


def run_case(name: str, exporter: str, opset: int, folder: Path) -> Outcome:
    """Export, optimise, count, and run with and without normfuse."""
    case, expected, counts = case_and_expectation(name)
    result = normfuse.optimize(export(name, exporter, opset), verify=False)
    path = folder / f"{name}.{exporter}.{opset}.onnx"
    result.save(path)
    imports = {entry.domain: entry.version for entry in onnx.load(path, load_external_data=False).opset_import}
    feeds = {f"input_{i}": value.numpy() for i, value in enumerate(case.inputs)}
    quiet = onnxruntime.SessionOptions()
    quiet.log_severity_level = 3
    sessions = [
        onnxruntime.InferenceSession(path, quiet, providers=["CPUExecutionProvider"]),
        onnxruntime.InferenceSession(path, sess_options=normfuse.session_options(claim="all")),
    ]
    largest = float(expected.abs().max())
    error = max(
        float(np.abs(session.run(None, feeds)[0] - expected.numpy()).max()) / max(largest, 1.0) for session in sessions
    )
    return Outcome(imports[""], counts, found(result.report), error, result.report)


def found(report: normfuse.OptimizationReport) -> Counts:
    """Return what was fused. An activation that already is one standard operator counts: nothing is left to fuse."""
    normalizations = sum(site.kind.endswith("Normalization") for site in report.fused)
    activations = sum(
        bool(_NAMED_ACTIVATIONS & set(site.description.split(" -> ")))
        for site in report.sites
        if site.fused_into is not None or site.reason == "nothing_to_fuse"
    )
    return Counts(normalizations, activations)


def is_refused(name: str, exporter: str, opset: int) -> str | None:
    """Return a part of the sentence that the exporter is known to refuse with; None: it is to succeed."""
    opsets, sentence = REFUSED.get((name, exporter), ((), None))
    return sentence if opset in opsets else None
