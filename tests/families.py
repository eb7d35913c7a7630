"""Families of data: what tensors look like outside of tests, where they are seldom white noise.

Kernels choose by the values: a row whose first values say little of its mean is summed again, one whose squares leave
float32 is summed in double, one of equal numbers has no deviation. Noise takes none of these branches. A family fills
whole rows, over the axes that are normalised; with `Family.row` one row is unusual among noise, as a branch that
disturbs its neighbours needs it.

Shared by the tests. `normfuse.verification.inputs` makes samples for models of users: it may take TABLE's functions as
they are (rng, rows, length) -> float64 of size about 1, if they move to the package; chain_harness.cc has them in C++.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

Array = np.ndarray[Any, Any]
Maker = Callable[[np.random.Generator, int, int], Array]

#: Where one value stands out: the edges of vectors, of a block of 1024, and (negative) from the end.
EDGES = (0, 3, 4, 7, 8, 15, 16, 31, 32, 33, 127, 128, 1023, 1024, 1025, -1, -2, -9, -17, -33)


def _noise(rng: np.random.Generator, rows: int, length: int) -> Array:
    return rng.standard_normal((rows, length))


def _ramp(rng: np.random.Generator, rows: int, length: int) -> Array:
    return np.linspace(0.0, 2.0, length) * np.arange(1, rows + 1)[:, None] / max(1, rows // 4)


def _ramp_down(rng: np.random.Generator, rows: int, length: int) -> Array:
    return _ramp(rng, rows, length)[:, ::-1]


def _step(rng: np.random.Generator, rows: int, length: int) -> Array:
    return np.where(np.arange(length) < rng.integers(0, length + 1, (rows, 1)), -1.0, 1.0) + 0.01 * rng.normal()


def _outlier(rng: np.random.Generator, rows: int, length: int) -> Array:
    values = 0.1 * _noise(rng, rows, length)
    for row in values:
        row[int(rng.choice(EDGES)) % length] = rng.choice([-1.0, 1.0]) * 10.0 ** rng.integers(0, 4)
    return values


def _zeros_in_front(rng: np.random.Generator, rows: int, length: int) -> Array:
    return np.where(np.arange(length) < rng.integers(0, length + 1, (rows, 1)), 0.0, _noise(rng, rows, length) + 2.0)


def _zeros_behind(rng: np.random.Generator, rows: int, length: int) -> Array:
    return _zeros_in_front(rng, rows, length)[:, ::-1]


def _constant(rng: np.random.Generator, rows: int, length: int) -> Array:
    return np.broadcast_to(rng.normal(size=(rows, 1)), (rows, length))


def _constant_but_one(rng: np.random.Generator, rows: int, length: int) -> Array:
    values = _constant(rng, rows, length).copy()
    for row in values:
        row[int(rng.choice(EDGES)) % length] += rng.choice([-1.0, 1.0])
    return values


def _sorted(rng: np.random.Generator, rows: int, length: int) -> Array:
    return np.sort(_noise(rng, rows, length), axis=1)


def _pink(rng: np.random.Generator, rows: int, length: int) -> Array:
    """Amplitudes as 1 / frequency: sound, and the weather."""
    frequencies = np.arange(length // 2 + 1)
    spectrum = np.exp(2j * np.pi * rng.random((rows, frequencies.size))) / np.maximum(frequencies, 1)
    return np.fft.irfft(spectrum, n=length, axis=1) * length / 2


def _smooth(rng: np.random.Generator, rows: int, length: int) -> Array:
    """A picture: neighbours, in a row and from row to row, are nearly equal."""
    across, down = np.arange(length) / length, np.arange(rows)[:, None] / max(rows, 8)
    waves = [np.sin(2 * np.pi * (a * across + b * down + c)) for a, b, c in rng.random((3, 3)) * 2]
    return np.asarray(sum(waves) / 2 + 1.0)


def _sparse(rng: np.random.Generator, rows: int, length: int) -> Array:
    return np.where(rng.random((rows, length)) < 0.05, _noise(rng, rows, length), 0.0)


def _alternating(rng: np.random.Generator, rows: int, length: int) -> Array:
    return np.where(np.arange(length) % 2, -1e4, 1e4) * (1.0 + 1e-3 * _noise(rng, rows, length))


def _offset(rng: np.random.Generator, rows: int, length: int) -> Array:
    """Far from 0 for its deviation, by row."""
    return 10.0 ** rng.integers(0, 4, (rows, 1)) + _noise(rng, rows, length)


def _denormals(rng: np.random.Generator, rows: int, length: int) -> Array:
    return _noise(rng, rows, length) * 10.0 ** rng.integers(-44, -36, (rows, 1))


def _ends(rng: np.random.Generator, rows: int, length: int) -> Array:
    """Beyond every type: clamped to its ends."""
    return np.where(rng.random((rows, length)) < 0.5, -1e300, 1e300)


def _one_row(value: float) -> Maker:
    def make(rng: np.random.Generator, rows: int, length: int) -> Array:
        values = _noise(rng, rows, length)
        values[rng.integers(rows), rng.integers(length)] = value
        return values

    return make


TABLE: dict[str, Maker] = {
    "noise": _noise,
    "ramp": _ramp,
    "ramp down": _ramp_down,
    "step": _step,
    "outlier": _outlier,
    "zeros in front": _zeros_in_front,
    "zeros behind": _zeros_behind,
    "constant": _constant,
    "constant but one": _constant_but_one,
    "sorted": _sorted,
    "pink": _pink,
    "smooth": _smooth,
    "sparse": _sparse,
    "alternating": _alternating,
    "offset": _offset,
    "denormals": _denormals,
    "ends": _ends,
    "NaN": _one_row(np.nan),
    "infinity": _one_row(np.inf),
}


@dataclass(frozen=True)
class Family:
    """A family for all rows, or for one of them (modulo their number) among noise."""

    name: str = "noise"
    row: int | None = None


def fill(
    family: Family,
    rng: np.random.Generator,
    shape: Sequence[int],
    dtype: Any,
    axes: Sequence[int] = (-1,),
    mean: float = 0.0,
    deviation: float = 1.0,
) -> Array:
    """A tensor of the family whose rows lie along ``axes``; of integers, over their whole range."""
    shape, rank = tuple(shape), len(shape)
    last = sorted({axis % rank for axis in axes if -rank <= axis < rank})
    first = [axis for axis in range(rank) if axis not in last]
    length = int(np.prod([shape[axis] for axis in last], dtype=np.int64))
    rows = int(np.prod([shape[axis] for axis in first], dtype=np.int64))
    values = np.zeros((rows, length))
    if values.size:
        values[:] = (TABLE["noise"] if family.row is not None else TABLE[family.name])(rng, rows, length)
        if family.row is not None:
            # Of several, so that what depends on the row's number (a ramp's size) is not always that of the first.
            values[family.row % rows] = TABLE[family.name](rng, 4, length)[family.row % 4]
    values = values.reshape([shape[axis] for axis in first + last]).transpose(np.argsort(first + last))
    if family.name == "denormals":
        mean, deviation = 0.0, 1.0
    return _stored(values, np.dtype(dtype), mean, deviation)


def _stored(values: Array, dtype: np.dtype[Any], mean: float, deviation: float) -> Array:
    if dtype.kind in "iu" or dtype.name in ("int4", "uint4", "int2", "uint2"):
        low, high = _range(dtype)
        # Two deviations from the middle of the type to its ends: what lies farther is clamped, as by a quantiser.
        codes = np.clip(np.nan_to_num(values), -9, 9) * ((high - low) / 4) + (low + high + 1) // 2
        return np.asarray(np.clip(np.rint(codes), low, high)).astype(dtype)
    limit = float(ml_dtypes.finfo(dtype).max)
    limit = limit / 64 if limit > 1e30 else limit  # room for a sum and a product in float32
    values = mean + deviation * (np.nan_to_num(values, posinf=1.0) if "float8" in dtype.name else values)
    with np.errstate(under="ignore"):
        return np.where(np.isfinite(values), np.clip(values, -limit, limit), values).astype(np.float32).astype(dtype)


def _range(dtype: np.dtype[Any]) -> tuple[int, int]:
    if dtype.itemsize == 4:  # where float32 holds them
        return (-(1 << 19), (1 << 19) - 1) if dtype.kind == "i" else (0, (1 << 20) - 1)
    info = ml_dtypes.iinfo(dtype)
    return int(info.min), int(info.max)
