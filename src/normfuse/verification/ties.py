"""Quantised models compared without what rounding ties make of them.

A value within a unit in the last place of a tie of QuantizeLinear goes one way with one order of summation and the
other way with another, and the layers behind it blow that step up. So the optimised model is run with every quantised
value replaced by the original's, wherever the model goes on with it: each part of it then has the original's own
inputs. What it quantises itself may be off by one step, in the few places where a tie explains that; and its outputs
have to agree as if there were no ties.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from normfuse.errors import NormfuseError
from normfuse.sessions import open_session
from normfuse.verification.budget import Budget, run_all
from normfuse.verification.comparison import Difference, flatten, lowest_precision, type_tolerance
from normfuse.verification.graph_differences import given_name
from normfuse.verification.inputs import Sample

if TYPE_CHECKING:
    import onnxruntime

__all__ = ["SHARE_AT_TIES", "TieFreeRun", "run_without_ties"]

_QUANTIZING = ("QuantizeLinear", "DynamicQuantizeLinear")
# Of the elements of one value, for each unit of the error that the float type explains: one in 1,000 for float32.
SHARE_AT_TIES = 10.0
# How many times as many among integers of 16 bits: their steps are 256 times as narrow, and rounding errors are not.
# One step is 1.5e-5 of the range, less than what results of the float type may be off by.
_MORE_OF_16_BITS = 10.0
# A scale that DynamicQuantizeLinear finds.
_SCALE_TOLERANCE = 1e-5


# How far from a whole number of steps a float may be that was dequantised.
_OFF_GRID = 0.02


@dataclasses.dataclass(frozen=True)
class _Quantized:
    """A value that both models quantise."""

    zero_point: str = ""
    """Name of the zero point that is found for it; "": it is not found."""
    scale: float = 0.0
    """Of what is dequantised at once, and compared as that; 0: the integers are there."""


@dataclasses.dataclass
class TieFreeRun:
    """What one way of running the optimised model gave on the original's quantised values, over all samples."""

    turned: int = 0
    """Quantised elements that went the other way."""
    elements: int = 0
    found: dict[str, Difference] = dataclasses.field(default_factory=dict)

    @property
    def differences(self) -> list[Difference]:
        """Of the model's outputs."""
        return list(self.found.values())


def run_without_ties(
    original: ir.Model,
    optimized: ir.Model,
    fed: Sequence[Sample],
    ways: Sequence[dict[str, Any] | None],
    budget: Budget,
) -> list[TieFreeRun | None]:
    """Compare two models on every sample, for each way of running the second one (the options of the provider).

    Returns:
        For each way None if more than rounding ties differs, there is nothing to replace, or the time did not last.
    """
    names = _quantized_values(original, optimized)
    if not names or not fed:
        return [None] * len(ways)
    try:
        return _run(original, optimized, names, fed, ways, budget)
    except NormfuseError:
        return [None] * len(ways)


def _quantized_values(original: ir.Model, optimized: ir.Model) -> dict[str, _Quantized]:
    """Return the quantised values that the main graphs of both compute, by name.

    Where only the original has the integers, what alone reads them and dequantises stands for them.
    """
    common = {value.name for node in optimized.graph for value in node.outputs}
    names: dict[str, _Quantized] = {}
    for node in original.graph:
        if node.op_type not in _QUANTIZING:
            continue
        found = [value.name if value.name in common else None for value in node.outputs]
        zero_point = found[2] if len(found) > 2 else None
        for index, name in enumerate(found):
            if name:
                names[name] = _Quantized(zero_point or "" if index == 0 else "")
        scale = _number(node.inputs[1]) if node.op_type == "QuantizeLinear" and not found[0] else None
        readers = node.outputs[0].consumers()
        if scale and len(readers) == 1 and readers[0].op_type == "DequantizeLinear":
            name = readers[0].outputs[0].name
            if name in common and name is not None:
                names[name] = _Quantized(scale=scale)
    return names


def _number(value: ir.Value | None) -> float | None:
    """Return a constant of one element."""
    tensor = None if value is None else ir.convenience.get_const_tensor(value)
    return float(tensor.numpy().ravel()[0]) if tensor is not None and tensor.size == 1 else None


def _run(
    original: ir.Model,
    optimized: ir.Model,
    names: Mapping[str, _Quantized],
    fed: Sequence[Sample],
    ways: Sequence[dict[str, Any] | None],
    budget: Budget,
) -> list[TieFreeRun | None]:
    shown = original.clone()
    _show(shown, [*names])
    reference = open_session(shown, "the original", level="disable")
    outputs = [value.name or "" for value in original.graph.outputs]
    share = SHARE_AT_TIES * type_tolerance(lowest_precision(original))
    sessions: list[onnxruntime.InferenceSession] = []
    runs: list[TieFreeRun | None] = [TieFreeRun() for _ in ways]
    for sample in fed:
        expected = run_all(reference, [sample], budget)[0]
        if not sessions:
            replaced = _with_replacements(optimized, {name: expected[name] for name in names})
            sessions = [open_session(replaced, "the optimised model", ep_options=o, level="disable") for o in ways]
        feeds = {**sample, **{given_name(name): expected[name] for name in names}}
        for index, session in enumerate(sessions):
            run = runs[index]
            if run is not None:
                got = run_all(session, [feeds], budget)[0]
                runs[index] = run if _take_in(run, expected, got, names, outputs, share) else None
    return runs


def _take_in(
    run: TieFreeRun,
    expected: dict[str, Any],
    got: dict[str, Any],
    names: Mapping[str, _Quantized],
    outputs: list[str],
    share: float,
) -> bool:
    """Add one sample; False if more than rounding ties differs."""
    for name, how in names.items():
        shift = int(got[how.zero_point]) - int(expected[how.zero_point]) if how.zero_point else 0
        a, b = (_codes(each[name], how.scale) if how.scale else each[name] for each in (expected, got))
        turned = _turned(a, b, share, shift)
        if turned is None:
            return False
        run.turned += turned
        run.elements += got[name].size
    for name in outputs:
        pairs = zip(flatten(name, expected[name]), flatten(name, got[name]), strict=True)
        for (label, a), (_, b) in pairs:
            run.found.setdefault(label, Difference(label, quantized=True)).add(a, b)
    return True


def _codes(values: np.ndarray, scale: float) -> np.ndarray:
    """Return the integers, less their zero point, that a tensor was dequantised from; itself where it was not."""
    with np.errstate(invalid="ignore"):
        steps = values.astype(np.float64) / scale
        codes = np.rint(steps)
        is_grid = bool(np.all(np.abs(steps - codes) <= _OFF_GRID))
    return codes.astype(np.int64) if is_grid else values


def _turned(expected: np.ndarray, got: np.ndarray, share: float, shift: int = 0) -> int | None:
    """How many elements are one step off; None if any is further off, or so many are that no ties explain them.

    Of a range that is symmetric, as of a tanh, the zero point lies at a tie itself: it shifts all but the outermost.
    """
    if expected.shape != got.shape or expected.dtype != got.dtype:
        return None
    if expected.dtype.kind == "f":
        return 0 if np.allclose(got, expected, rtol=_SCALE_TOLERANCE, atol=0.0, equal_nan=True) else None
    apart = got.astype(np.int64) - expected.astype(np.int64)
    if shift:  # found by DynamicQuantizeLinear, whose result is uint8
        outermost = (apart == 0) & np.isin(got, (0, 255))
        apart = np.where(outermost, 0, apart - shift)
    if expected.dtype.itemsize > 1:
        share *= _MORE_OF_16_BITS
    turned, apart = int(np.count_nonzero(apart)), np.abs(apart)
    return turned if apart.max(initial=0) <= 1 and turned <= max(1.0, share * got.size) else None


def _show(model: ir.Model, names: Sequence[str]) -> dict[str, ir.Value]:
    """Make values outputs of the graph; gives them by name."""
    values = {value.name: value for node in model.graph for value in node.outputs}
    present = {value.name for value in model.graph.outputs}
    model.graph.outputs.extend(values[name] for name in names if name not in present)
    return {name: values[name] for name in names}


def _with_replacements(model: ir.Model, values: dict[str, np.ndarray]) -> ir.Model:
    """A copy that shows values, and reads others like these in their place."""
    copy = model.clone()
    for name, value in _show(copy, list(values)).items():
        # Of a tensor of unknown rank ONNX Runtime would take what a custom operator makes for one without dimensions.
        shape, dtype = ir.Shape([None] * values[name].ndim), ir.DataType.from_numpy(values[name].dtype)
        given = ir.Value(name=given_name(name), type=ir.TensorType(dtype), shape=shape)
        for use in tuple(value.uses()):
            use.node.replace_input_with(use.idx, given)
        copy.graph.inputs.append(given)
    return copy
