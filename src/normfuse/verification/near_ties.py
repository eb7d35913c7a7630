"""Which values are so near to a rounding tie of a quantiser that another order of summation may turn them.

How far summation moves a value follows from its type. The rounding errors of a sum of n terms are about as a random
walk of n steps: the square root of n units of roundoff of what is summed (Higham and Mary, A new approach to
probabilistic rounding error analysis, 2019). The size of what is summed is taken to be the whole range of the
quantiser, which is several times that of a usual value: the spare part is for what else lies between two quantisers.
In steps that is independent of the scale: ``sqrt(n) * u * 2**bits``, of 1,024 terms in float32 0.0005 among 8 bits
and 0.125 among 16.
"""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

__all__ = ["may_turn", "share_that_turns", "steps_moved"]

_ROUNDOFF = {
    ir.DataType.BFLOAT16: 2.0**-8,
    ir.DataType.FLOAT16: 2.0**-11,
    ir.DataType.FLOAT: 2.0**-24,
    ir.DataType.DOUBLE: 2.0**-53,
}
# What the kernels promise on top, in steps: a GELU behind a normalisation need not be exact where bytes are made of it
# (docs/pages/how-it-works.md, "Accuracy").
_OF_ACTIVATIONS = 0.001


def steps_moved(terms: int, precision: ir.DataType, bits: int) -> float:
    """Return how many steps another order of summation may move a value by.

    Args:
        terms: How many one sum has at most.
        precision: The float type that is summed in.
        bits: Of the quantiser's integers.
    """
    return _OF_ACTIVATIONS + math.sqrt(terms) * _ROUNDOFF[precision] * 2.0**bits


def share_that_turns(integers: np.ndarray, precision: ir.DataType) -> float:
    """Return how many of some integers may come out another way, if it is not known how near to a tie each was.

    Of values that lie anywhere between two ties the share that a small distance takes across one is that distance.
    """
    terms = max(integers.shape, default=1)
    return min(1.0, steps_moved(terms, precision, 8 * integers.dtype.itemsize))


def may_turn(steps: np.ndarray, apart: np.ndarray, distance: float, precision: ir.DataType) -> np.ndarray:
    """Say for each value whether it may come out as many steps apart, itself being moved by less than a distance.

    Args:
        steps: What the original rounds, more exactly than it has it.
        apart: By how many steps the results are apart.
        distance: How far a value may have moved, in steps.
        precision: The float type that the original has it in: a quotient just below a tie may be the tie itself there.
    """
    way = np.sign(apart)
    with np.errstate(invalid="ignore"):
        inexact = 2 * _ROUNDOFF[precision] * np.abs(steps)
        crosses = np.rint(steps + way * distance) != np.rint(steps - way * inexact)
        may: np.ndarray = (np.abs(apart) == 1) & np.isfinite(steps) & crosses
    return may
