"""Deciding how exact results have to be, and on which samples comparing says anything."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import onnx_ir as ir

from normfuse.verification.budget import Budget, OutOfTime, Outputs
from normfuse.verification.comparison import (
    LARGE_NOISE,
    NOISE_FACTOR,
    QUANTIZED_TOLERANCE,
    QUANTIZED_TYPES,
    Difference,
    OutputComparison,
    differences,
    lowest_precision,
    type_tolerance,
)
from normfuse.verification.inputs import Sample
from normfuse.verification.steadiness import Noise, noise_between, results_by_level, results_rounded_once_more

__all__ = ["Judge"]


@dataclasses.dataclass
class Judge:
    """Compares results with the original's, and finds out how exact they have to be."""

    original: ir.Model
    fed: list[Sample]
    expected: Outputs
    quantized: bool
    max_error: float | None
    budget: Budget
    noise: dict[int, Noise] = dataclasses.field(default_factory=dict)
    """Sample -> how far the original's own results are apart on it, where that was measured."""
    by_level: dict[int, Outputs] = dataclasses.field(default_factory=dict)
    """Sample -> the original's results at further optimisation levels, where these were needed."""

    @property
    def tolerance(self) -> float:
        """The error that the types explain, or that the user allows."""
        if self.max_error is not None:
            return self.max_error
        return QUANTIZED_TOLERANCE if self.quantized else type_tolerance(lowest_precision(self.original))

    @property
    def noise_of_all(self) -> float | None:
        """The largest noise of any sample; None where it was not measured."""
        return max((max(noise.values(), default=0.0) for noise in self.noise.values()), default=None)

    @property
    def noise_of_steady(self) -> float | None:
        """The largest noise of a steady sample; None where it was not measured on any."""
        steady = (noise for index, noise in self.noise.items() if index not in self.unsteady)
        return max((max(noise.values(), default=0.0) for noise in steady), default=None)

    @property
    def unsteady(self) -> frozenset[int]:
        """The samples on which the original's own results are too far apart for comparing with them."""
        return frozenset(i for i, noise in self.noise.items() if max(noise.values(), default=0.0) > LARGE_NOISE)

    def steady(self, results: Outputs) -> list[int]:
        """The samples among those run that are not unsteady."""
        return [index for index in range(len(results)) if index not in self.unsteady]

    def compare(self, results: Outputs) -> tuple[OutputComparison, ...]:
        """Compare on the steady samples; on all of them where none is steady."""
        samples = self.steady(results) or list(range(len(results)))
        return self.compared(self._differences(results, samples), samples)

    def compared(self, found: list[Difference], samples: list[int]) -> tuple[OutputComparison, ...]:
        """Return the result of differences that were found on some samples."""
        return tuple(difference.compared(self._allowed(difference, samples)) for difference in found)

    def doubtful(self, results: Outputs) -> list[int]:
        """The samples on which the results are further off than types explain."""
        return [
            index
            for index in range(len(results))
            if not all(output.passed for output in self.compared(self._differences(results, [index]), []))
        ]

    def measure_levels(self, samples: list[int]) -> bool:
        """Find out how far ONNX Runtime's own optimisation levels are apart on some samples; False: no time.

        From then on a result is right if it is that of any level.
        """
        fed = [self.fed[i] for i in samples]
        try:
            found = results_by_level(self.original, fed, self.budget)
        except OutOfTime:
            return False
        for number, index in enumerate(samples):
            self.by_level[index] = [results[number] for results in found]
        self._take_in(samples, noise_between([[self.expected[i] for i in samples], *found], self.quantized))
        return True

    def measure_moved(self, dtypes: dict[str, np.dtype[Any]], samples: list[int]) -> bool:
        """Find out how far the original's results move with the values of these names; False: no time."""
        fed = [self.fed[i] for i in samples]
        try:
            found = results_rounded_once_more(self.original, dtypes, fed, self.budget)
        except OutOfTime:
            return False
        self._take_in(samples, noise_between([[self.expected[i] for i in samples], found], self.quantized))
        return True

    def keep_noise_of(self, samples: list[int]) -> None:
        """Forget the noise of all other samples: they are decided without."""
        self.noise = {index: noise for index, noise in self.noise.items() if index in samples}

    def _take_in(self, samples: list[int], found: list[Noise]) -> None:
        for index, noise in zip(samples, found, strict=True):
            known = self.noise.setdefault(index, {})
            for name, error in noise.items():
                known[name] = max(known.get(name, 0.0), error)

    def _differences(self, results: Outputs, samples: list[int]) -> list[Difference]:
        return differences(
            [self._nearest(i, results[i]) for i in samples], [results[i] for i in samples], self.quantized
        )

    def _nearest(self, index: int, result: dict[str, Any]) -> dict[str, Any]:
        """What the original gives at that optimisation level at which it is nearest to a result."""
        references = [self.expected[index], *self.by_level.get(index, ())]
        errors = [
            max((difference.error for difference in differences([one], [result], self.quantized)), default=0.0)
            for one in references
        ]
        nearest: dict[str, Any] = references[errors.index(min(errors))]
        return nearest

    def _allowed(self, difference: Difference, samples: list[int]) -> float:
        noise = max((self.noise.get(i, {}).get(difference.name, 0.0) for i in samples), default=0.0)
        # A quantised output may be off by one step: that is the smallest difference that its type has.
        step = 1.0 if self.quantized and self.max_error is None and difference.dtype in QUANTIZED_TYPES else 0.0
        return max(self.tolerance, NOISE_FACTOR * noise, step)
