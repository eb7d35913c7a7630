"""Comparing two models place by place, on identical inputs: what decides where whole models blow rounding up.

Each place at which the graphs differ (see :mod:`normfuse.verification.graph_differences`) is run on the values that the
original has there. Some are not steady themselves, such as the normalisation of a row that is almost constant: how far
the original's own nodes go when what they read is moved by one unit in the last place, and when ONNX Runtime optimises
them, is measured along with it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from normfuse.errors import NormfuseError
from normfuse.sessions import open_session
from normfuse.verification.between import values_between
from normfuse.verification.budget import Budget, run_all
from normfuse.verification.comparison import (
    LARGE_NOISE,
    NOISE_FACTOR,
    QUANTIZED_TYPES,
    QUANTIZING,
    Difference,
    lowest_precision,
    type_tolerance,
)
from normfuse.verification.exact_places import as_near, exact_value, turned_at_most
from normfuse.verification.graph_differences import Place, differing_places, given_name, places_model
from normfuse.verification.inputs import Sample
from normfuse.verification.near_ties import share_that_turns
from normfuse.verification.report import ComparedPlaces

__all__ = ["PlaceComparer", "Way"]

Values = dict[str, Any]


@dataclasses.dataclass
class Way:
    """One way of running the optimised model."""

    label: str
    ep_options: dict[str, Any] | None
    """None: without the execution provider."""
    fused: tuple[tuple[str, ...], ...] = ()
    """Names of the nodes that the execution provider runs as one, for each chain that it took."""


class PlaceComparer:
    """Compares the places of two models.

    Attributes:
        dtypes: Value that a place computes -> its type, once something has been compared.
    """

    def __init__(self, original: ir.Model, optimized: ir.Model, budget: Budget) -> None:
        """Nothing is run yet."""
        self._original = original
        self._optimized = optimized
        self._budget = budget
        self._precision = lowest_precision(original)
        self._known: Values = {}
        self.dtypes: dict[str, np.dtype[Any]] = {}

    def compare(self, ways: Sequence[Way], sample: Sample, tell: Callable[[str], None]) -> ComparedPlaces | None:
        """Return what was found on one sample; None if it could not be found out."""
        fused = [chain for way in ways for chain in way.fused]
        places, same_nodes = differing_places(self._original, self._optimized, fused)
        if not places:
            return ComparedPlaces(0, 0, 0.0, same_nodes)
        try:
            verdicts = self._verdicts(places, ways, sample, tell)
        except NormfuseError:
            return None
        bad = [place.value for place, verdict in zip(places, verdicts, strict=True) if verdict.differs]
        good = [verdict for verdict in verdicts if verdict.agrees]
        error = max((verdict.error for verdict in good), default=0.0)
        return ComparedPlaces(len(places), len(good), error, same_nodes, bad[0] if bad else None)

    def is_as_exact(self, ways: Sequence[Way], sample: Sample) -> bool:
        """Say whether at each place the results are as near to the exact value as the original's, or nearer.

        Judged are those that are further off than types explain; where none is, all that are not equal: behind a
        quantiser less may differ than float16 explains.
        """
        fused = [chain for way in ways for chain in way.fused]
        places, _ = differing_places(self._original, self._optimized, fused)
        try:
            verdicts = self._verdicts(places, ways, sample, lambda what: None) if places else []
        except NormfuseError:
            return False
        off = [verdict for verdict in verdicts if verdict.is_off] or [each for each in verdicts if each.error > 0]
        return bool(off) and all(verdict.is_as_exact(self._original, self._known) for verdict in off)

    def _verdicts(
        self, places: list[Place], ways: Sequence[Way], sample: Sample, tell: Callable[[str], None]
    ) -> list[_Verdict]:
        values = [place.value for place in places]
        read = sorted({name for place in places for name in (*place.inputs, *place.original_inputs)})
        tell("running the original for its values in between")
        known = values_between(self._original, dict.fromkeys((*values, *read)), sample, self._budget)
        self.dtypes = {name: known[name].dtype for name in values}
        self._known = known
        given = {name: known[name] for name in read}
        tell("comparing place by place")
        moved = {name: moved_by_one_unit(array) for name, array in given.items()}
        steady = self._part_results(self._original, values, moved, None, given)
        verdicts = [_Verdict(place, self._precision, known[place.value], steady[place.value]) for place in places]
        for way in ways:
            options = way.ep_options if way.ep_options is None else {**way.ep_options, "claim": "all"}
            got = self._part_results(self._optimized, values, given, options, given)
            for verdict in verdicts:
                verdict.add(got[verdict.place.value])
        return verdicts

    def _part_results(
        self, model: ir.Model, values: list[str], given: Values, ep_options: dict[str, Any] | None, types: Values
    ) -> Values:
        part = places_model(model, values, {name: array.dtype for name, array in types.items()})
        session = open_session(part, "a part of the model", ep_options=ep_options)
        feeds = {given_name(name): array for name, array in given.items()}
        wanted = {value.name for value in session.get_inputs()}
        return run_all(session, [{name: feeds[name] for name in feeds if name in wanted}], self._budget)[0]


class _Verdict:
    """How one place compares, over all ways of running."""

    def __init__(self, place: Place, precision: ir.DataType, reference: Any, moved: Any) -> None:
        self.place = place
        self.error = 0.0
        self.differs = False
        self._results: list[Any] = []
        self._reference = np.asarray(reference)
        self._tolerance = tolerance = type_tolerance(precision)
        # What a place computes from quantised values of its own jumps by steps, of a size that is not known here.
        within = place.nodes if self._reference.dtype.kind == "f" else place.nodes[1:]
        self._jumps = not QUANTIZING.isdisjoint(within)
        noise, share = self._distance(moved)
        self._noisy = noise > LARGE_NOISE if self._reference.dtype.kind == "f" else noise > 1 or share > LARGE_NOISE
        self._allowed = max(tolerance, NOISE_FACTOR * noise)
        explained = share_that_turns(self._reference, precision)
        self._allowed_share = max(explained, NOISE_FACTOR * share, 1.5 / max(1, self._reference.size))

    @property
    def agrees(self) -> bool:
        return not self.differs and not self._noisy

    @property
    def is_off(self) -> bool:
        """Whether a result is further from the original's than the types explain."""
        return self.error > (0.0 if self._reference.dtype.kind != "f" else self._tolerance)

    def is_as_exact(self, original: ir.Model, known: Values) -> bool:
        """Say whether each result is as near to the exact value as the original's."""
        given = {name: known[name] for name in self.place.original_inputs}
        exact = exact_value(original, self.place.value, given)
        if exact is None:
            return False
        if self._reference.dtype.name in QUANTIZED_TYPES:
            share = self._share_at_ties([array.dtype for array in given.values()])
            return all(
                as_near(result, self._reference, exact, 0.0) or turned_at_most(result, exact, share)
                for result in self._results
            )
        # The steps between a value's neighbours in its type are nobody's fault.
        own = float(np.finfo(self._reference.dtype).eps) if self._reference.dtype.kind == "f" else 0.0
        return all(as_near(result, self._reference, exact, own) for result in self._results)

    def _share_at_ties(self, read: Sequence[np.dtype[Any]]) -> float:
        """How many of the integers may be one step off; 0 where that could be most, as of what float16 values make."""
        types = {ir.DataType.from_numpy(dtype) for dtype in read}
        if not types <= {ir.DataType.FLOAT, ir.DataType.DOUBLE}:
            return 0.0
        share = max(share_that_turns(self._reference, ir.DataType.FLOAT), 1.5 / max(1, self._reference.size))
        return share if share <= LARGE_NOISE else 0.0

    def add(self, result: Any) -> None:
        self._results.append(result)
        error, share = self._distance(result)
        if self._reference.dtype.name in QUANTIZED_TYPES:
            bad = error > 1 or share > self._allowed_share
        else:
            bad = error > self._allowed
        if bad and self._jumps:
            self._noisy = True
        elif bad and not self._noisy:
            self.differs = True
        self.error = max(self.error, error)

    def _distance(self, result: Any) -> tuple[float, float]:
        """The error, and the share of elements that are not equal."""
        difference = Difference(self.place.value, quantized=False)
        difference.add(self._reference, result)
        got = np.asarray(result)
        unequal = 1.0
        if got.shape == self._reference.shape:
            unequal = float(np.count_nonzero(got != self._reference)) / max(1, got.size)
        return difference.error, unequal


def moved_by_one_unit(array: Any) -> Any:
    """Return floats with each element moved up, down, or not at all by about one unit in the last place."""
    values = np.asarray(array)
    if values.dtype.kind != "f":
        return array
    rng = np.random.default_rng(0)
    unit = float(np.finfo(values.dtype).eps)
    factors = 1.0 + unit * rng.integers(-1, 2, values.shape)
    largest = np.finfo(values.dtype).max
    with np.errstate(over="ignore"):
        moved = values.astype(np.float64) * factors
    # The largest number of the type, as masks have it, stays one: it is not to become infinite.
    return np.where(np.isfinite(values), np.clip(moved, -largest, largest), values).astype(values.dtype)
