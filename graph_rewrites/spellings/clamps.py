"""Whether the samples that a formula is recognised on lie on both sides of a clamp's bounds.

A bound that no sample passes leaves no trace in the results, and would be lost. It may be lost only where nothing
passes it at all: where it is beyond the range of the type, where what is clamped has a sign (a variance is never below
0), or where that comes near its own limit at several of the samples (a tanh, or 1 / sqrt(variance + epsilon)).
"""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir

Array: TypeAlias = "np.ndarray[Any, np.dtype[np.float64]]"

_LARGEST_FLOAT = float(np.finfo(np.float32).max)
_AT_THE_LIMIT = 3
_NEAR = 1e-9


def unseen_bound(values: Array, low: float, high: float, dtype: ir.DataType | None = None) -> float | None:
    """Return the bound that no value passes although others might; None: there is none.

    `values`: what is clamped, for samples that differ in all that it depends on. `dtype`: its type.
    """
    known = np.asarray(values, np.float64)
    known = known[~np.isnan(known)]
    largest = 65504.0 if dtype == ir.DataType.FLOAT16 else _LARGEST_FLOAT
    hidden = (bound for bound, sign in ((low, -1.0), (high, 1.0)) if _can_hide(sign * known, sign * bound, largest))
    return next(hidden, None)


def _can_hide(values: Array, bound: float, largest: float) -> bool:
    """Whether an upper bound changes none of the values, and may change others."""
    if math.isnan(bound) or bound >= largest * (1 - 1e-6) or not len(values):
        return False
    most = float(values.max())
    if most > bound or most <= 0 <= bound:
        return False
    return int((values >= most - _NEAR * abs(most)).sum()) < _AT_THE_LIMIT
