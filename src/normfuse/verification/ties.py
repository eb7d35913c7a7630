"""Quantised models compared without what rounding ties make of them.

A value within a unit in the last place of a tie of QuantizeLinear goes one way with one order of summation and the
other way with another, and the layers behind it blow that step up. So the optimised model is run with every quantised
value replaced by the original's, wherever the model goes on with it: each part of it then has the original's own
inputs. What it quantises itself may be off by one step where the original's own value is as near to a tie as
:mod:`normfuse.verification.near_ties` says; and its outputs have to agree as if there were no ties.
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
from normfuse.verification.comparison import Difference, flatten, lowest_precision
from normfuse.verification.graph_differences import given_name
from normfuse.verification.inputs import Sample
from normfuse.verification.near_ties import may_turn, steps_moved
from normfuse.verification.quantized_values import QuantizedValue, as_float, quantized_values

if TYPE_CHECKING:
    import onnxruntime

__all__ = ["TieFreeRun", "run_without_ties"]

# A scale that DynamicQuantizeLinear finds.
_SCALE_TOLERANCE = 1e-5


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
    names = quantized_values(original, optimized)
    if not names or not fed:
        return [None] * len(ways)
    try:
        return _run(original, optimized, names, fed, ways, budget)
    except NormfuseError:
        return [None] * len(ways)


def _run(
    original: ir.Model,
    optimized: ir.Model,
    names: Mapping[str, QuantizedValue],
    fed: Sequence[Sample],
    ways: Sequence[dict[str, Any] | None],
    budget: Budget,
) -> list[TieFreeRun | None]:
    reference = open_session(_showing(original, names), "the original", level="disable")
    outputs = [value.name or "" for value in original.graph.outputs]
    precision = lowest_precision(original)
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
                comparison = _Comparison({**sample, **expected}, got, precision)
                runs[index] = run if comparison.add_to(run, names, outputs) else None
    return runs


class _Comparison:
    """Results of both models on one sample."""

    def __init__(self, expected: dict[str, Any], got: dict[str, Any], precision: ir.DataType) -> None:
        self._expected = expected
        self._got = got
        self._precision = precision

    def add_to(self, run: TieFreeRun, names: Mapping[str, QuantizedValue], outputs: list[str]) -> bool:
        """Add the sample to what was found; False if more than rounding ties differs."""
        # What is summed lies along a dimension of a quantised value.
        terms = max(max(self._expected[name].shape, default=1) for name in names)
        for name, how in names.items():
            turned = self._turned(name, how, terms)
            if turned is None:
                return False
            run.turned += turned
            run.elements += self._got[name].size
        for name in outputs:
            pairs = zip(flatten(name, self._expected[name]), flatten(name, self._got[name]), strict=True)
            for (label, a), (_, b) in pairs:
                run.found.setdefault(label, Difference(label, quantized=True)).add(a, b)
        return True

    def _turned(self, name: str, how: QuantizedValue, terms: int) -> int | None:
        """How many elements are one step off; None if any is further off, or too far from a tie.

        Of a range that is symmetric, as of a tanh, the zero point lies at a tie: it shifts all but the outermost.
        """
        expected, got = (how.codes(each[name]) for each in (self._expected, self._got))
        if expected.shape != got.shape or expected.dtype != got.dtype:
            return None
        if expected.dtype.kind == "f":
            return 0 if np.allclose(got, expected, rtol=_SCALE_TOLERANCE, atol=0.0, equal_nan=True) else None
        apart = got.astype(np.int64) - expected.astype(np.int64)
        zero_points = [each[how.zero_point] for each in (self._expected, self._got)] if how.zero_point else [0, 0]
        if shift := int(zero_points[1]) - int(zero_points[0]):  # of DynamicQuantizeLinear, whose result is uint8
            outermost = (apart == 0) & np.isin(got, (0, 255))
            apart = np.where(outermost, 0, apart - shift)
        turned = apart != 0
        if turned.any():
            distance = steps_moved(terms, self._precision, how.bits(self._expected[name]))
            steps = how.unrounded(self._expected, turned)
            if not may_turn(steps, apart[turned], distance, self._precision).all():
                return None
        return int(np.count_nonzero(turned))


def _showing(model: ir.Model, names: Mapping[str, QuantizedValue]) -> ir.Model:
    """A copy that shows values, and as float32 what says how they are rounded."""
    copy = model.clone()
    _show(copy, list(names))
    computed = {value.name: value for node in copy.graph for value in node.outputs}
    for name in dict.fromkeys(value.name for how in names.values() for value in how.operands):
        if name in computed:
            node = ir.node("Cast", [computed[name]], {"to": ir.DataType.FLOAT})
            node.outputs[0].name = as_float(name or "")
            copy.graph.append(node)
            copy.graph.outputs.append(node.outputs[0])
    return copy


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
