"""How reproducible a model's results are on given inputs, on any runtime.

Compared are ONNX Runtime's own optimisation levels, and a run in which the values that an optimised model computes in
another way are rounded once more: a right result may differ from the original's by that much.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from normfuse.sessions import Level, open_session
from normfuse.verification.budget import Budget, Outputs, run_all
from normfuse.verification.comparison import differences
from normfuse.verification.inputs import Sample

__all__ = ["Noise", "noise_between", "results_by_level", "results_rounded_once_more", "rounded_once_more"]

Noise = dict[str, float]
"""Output -> error between results of the model itself, see :mod:`normfuse.verification.comparison`."""
_LEVELS: tuple[Level, ...] = ("basic", "all")


def results_by_level(model: ir.Model, fed: Sequence[Sample], budget: Budget) -> list[Outputs]:
    """Return the results for each of ONNX Runtime's optimisation levels but the lowest."""
    return [run_all(open_session(model, "the original", level=level), fed, budget) for level in _LEVELS]


def noise_between(results: Sequence[Outputs], quantized: bool) -> list[Noise]:
    """Return the largest error between any two of some results on the same samples, for each sample."""
    found: list[Noise] = [{} for _ in results[0]]
    for first, second in itertools.combinations(results, 2):
        for noise, a, b in zip(found, first, second, strict=True):
            for difference in differences([a], [b], quantized):
                noise[difference.name] = max(noise.get(difference.name, 0.0), difference.error)
    return found


def results_rounded_once_more(
    model: ir.Model, dtypes: Mapping[str, np.dtype[Any]], fed: Sequence[Sample], budget: Budget
) -> Outputs:
    """Return the results with values of these names and types rounded once more."""
    return run_all(open_session(rounded_once_more(model, dtypes), "the original", level="disable"), fed, budget)


def rounded_once_more(model: ir.Model, dtypes: Mapping[str, np.dtype[Any]]) -> ir.Model:
    """Return a copy in which floats of these names are multiplied by a third and by three before they are read."""
    copy = model.clone()
    for node in tuple(copy.graph):
        for value in node.outputs:
            dtype = dtypes.get(value.name or "")
            if dtype is not None and dtype.kind == "f":
                _round_once_more(copy.graph, node, value, dtype)
    return copy


def _round_once_more(graph: ir.Graph, node: ir.Node, value: ir.Value, dtype: np.dtype[Any]) -> None:
    uses = tuple(value.uses())
    moved = value
    for step, factor in enumerate((1 / 3, 3.0)):
        constant = ir.Value(name=f"{value.name} factor {step}")
        constant.const_value = ir.tensor(np.asarray(factor, dtype), name=constant.name)
        graph.register_initializer(constant)
        multiply = ir.Node("", "Mul", (moved, constant), name=f"{value.name} moved {step}")
        multiply.outputs[0].name = f"{value.name} moved {step}"
        graph.insert_after(node, multiply)
        node, moved = multiply, multiply.outputs[0]
    for use in uses:
        use.node.replace_input_with(use.idx, moved)
