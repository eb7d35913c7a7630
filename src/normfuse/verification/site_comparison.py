"""Comparing two models site by site, on identical inputs: what decides whether a model is right.

Each site at which the graphs differ (see :mod:`normfuse.verification.diff_sites`) is run on the values that the
original has there. A result is right if it is the original's, within the rounding of a few operators, or if it is as
near to the exact value (see :mod:`normfuse.verification.exact_values`) as the original's, or nearer.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from normfuse.errors import NormfuseError
from normfuse.sessions.creation import Level, open_session
from normfuse.verification.between import run_part, showing
from normfuse.verification.budget import Budget, OutOfTime, run_all
from normfuse.verification.comparison import QUANTIZED_TYPES, Difference, lowest_precision, type_tolerance, usual_size
from normfuse.verification.diff_sites import DiffSite, diff_sites, part_model
from normfuse.verification.exact_values import ExactRange, exact_range, in_float16, quantizer_inputs
from normfuse.verification.inputs import Sample
from normfuse.verification.memory import in_batches
from normfuse.verification.stress import Stress

if TYPE_CHECKING:
    import onnxruntime

Values = Mapping[str, Any]

# Some units in the last place: the rounding of a chain, not of a whole model.
_TOLERANCES = {"float16": 1e-3, "float32": 1e-5, "float64": 1e-9}
# How much less exact than the original's a result may be, in its row and on average: rounding ties are chance.
_ROW_FACTOR = 2.0
_RMS_FACTOR = 1.1
# The largest error of results that are rounded to float16 by each operator: beyond it, something overflowed.
_MOST_ROUNDED = 1e-2
# The error that is allowed on average, as a share of the one allowed for each value.
_RMS_SHARE = 0.5
# If more of the original's own values are so far off, the exact ones are wrong: the reference implementation has most
# operators in their last version only.
_FAR, _SHARE_FAR = 0.1, 0.5
# The share of quantised values that may be one step off if the exact ones are unknown.
_SHARE_OFF = 0.01
# The exact range covers every combination of two quantisers at rounding ties. After more of them some elements may be a
# step off: at most this share of all, or so many.
_COMBINED, _SHARE_TURNED, _FEW = 2, 1e-3, 3
# A value that is so far off is a different one with the same name, if the outputs agree nevertheless.
_UNRELATED = 0.5
# Among the rules of a node: a requantisation inside the chain was removed, as the user allowed.
_SKIPPED = "requantization removed"
_RULES = "normfuse.rules"


@dataclasses.dataclass
class Way:
    """One way of running the optimised model."""

    label: str
    ep_options: dict[str, Any] | None
    """None: without the execution provider."""
    fused: tuple[tuple[str, ...], ...] = ()
    """Names of the nodes that the execution provider runs as one, for each chain that it took."""


@dataclasses.dataclass
class Found:
    """The findings at the sites, over all samples and ways of running."""

    sites: int
    same_nodes: int
    samples: int
    """The number of samples on which sites were compared."""
    out_of_time: bool = False
    error: float = 0.0
    """The largest error of those that are right."""
    wrong: dict[str, float] = dataclasses.field(default_factory=dict)
    """Value that differs -> its error, in the order of the graph."""
    unknown: dict[str, float] = dataclasses.field(default_factory=dict)
    """Values whose exact ones are unknown -> their error, 0 if they could not be computed."""

    @property
    def unrelated(self) -> list[str]:
        """The values that are so far off that they may be different ones with the same name."""
        return [name for name, error in self.wrong.items() if error > _UNRELATED]


class SiteComparer:
    """Compares the sites of two models."""

    def __init__(self, original: ir.Model, optimized: ir.Model, budget: Budget, tell: Callable[[str], None]) -> None:
        """Nothing is run yet."""
        self._original = original
        self._optimized = optimized
        self._budget = budget
        self._tell = tell
        rules = [
            node.metadata_props.get(_RULES, "")
            for graph in (*optimized.graphs(), *optimized.functions.values())
            for node in graph
        ]
        self._may_skip = any(_SKIPPED in each for each in rules)
        #: Whether one name may stand for two values: the rewriting pass gives no name another meaning.
        self.names_may_differ = not any(rules)

    def compare(self, ways: Sequence[Way], fed: Sequence[Sample], unrelated: Collection[str] = ()) -> Found:
        """Return the findings on some samples, within the time; ``unrelated``: see :func:`diff_sites`."""
        fused = [chain for way in ways for chain in way.fused]
        sites, same_nodes = diff_sites(self._original, self._optimized, fused, unrelated)
        found = Found(len(sites), same_nodes, len(fed))
        found.unknown.update(dict.fromkeys(self._ends_without_node(), 0.0))
        batches = in_batches(sites, _names, self._original, fed)
        for number, batch in enumerate(batches, 1):
            share = self._budget.spent / self._budget.seconds
            share += (1 - share) / (len(batches) - number + 1)
            found.samples = min(found.samples, self._compare_batch(batch, ways, fed, found, share))
        order = [site.value for site in sites if site.value in found.wrong]
        found.wrong = {name: found.wrong[name] for name in order}
        return found

    def _ends_without_node(self) -> Iterator[str]:
        """Yield the outputs that no node computes in one of the models: no site is there."""
        theirs = {value.name: value for value in self._original.graph.outputs}
        for value in self._optimized.graph.outputs:
            ends = (value, theirs[value.name])
            if any(end.producer() is None for end in ends) and not all(end.is_graph_input() for end in ends):
                yield value.name or ""

    def _compare_batch(
        self, sites: list[DiffSite], ways: Sequence[Way], fed: Sequence[Sample], found: Found, share: float
    ) -> int:
        """Compare some sites; return the number of samples."""
        batch: _Batch | None = None
        done = 0
        try:
            names = sorted({name for site in sites for name in _names(site)})
            session = showing(self._original, names)
            for number, sample in enumerate(fed):
                if number and self._budget.spent > share * self._budget.seconds:
                    found.out_of_time = True
                    return number
                self._tell(f"verifying: the rewritten sites, sample {number + 1} of {len(fed)}")
                known = run_all(session, [sample], self._budget)[0] | sample
                if batch is None:
                    batch = _Batch(sites, ways, self._original, self._optimized, known)
                    found.unknown.update(dict.fromkeys((site.value for site in sites if site not in batch.sites), 0.0))
                self._compare_sample(batch, known, found)
                done = number + 1
                if not number:
                    self._stress(batch, known, found)
        except OutOfTime:
            found.out_of_time = True
            return done
        except NormfuseError:
            found.unknown.update(dict.fromkeys((site.value for site in sites), 0.0))
        return len(fed)

    def _compare_sample(self, batch: _Batch, known: Values, found: Found) -> None:
        results = batch.run(known, self._budget)
        for site in batch.sites:
            if site.value in found.wrong:
                continue
            verdict, error = self._verdict(site, known, [each[site.value] for each in results if site.value in each])
            if verdict is None:
                found.unknown[site.value] = max(error, found.unknown.get(site.value, 0.0))
            elif verdict:
                found.error = max(found.error, error)
            else:
                found.wrong[site.value] = error

    def _stress(self, batch: _Batch, known: Values, found: Found) -> None:
        """Compare the sites on values that no sample has: only proven faults count, or a branch that is not judged."""
        self._tell("verifying: the rewritten sites, on unusual values")
        try:
            stress = Stress(batch.sites, self._original, known)
            for read, computed in stress.values(self._budget):
                results = batch.run({**known, **read}, self._budget)
                for site in stress.sites:
                    reference = computed[site.value]
                    got = [_where_finite(reference, each[site.value]) for each in results if site.value in each]
                    verdict, error = self._verdict(site, {**computed, **read, site.value: reference}, got)
                    if verdict is False:
                        found.wrong.setdefault(site.value, error)
                    elif verdict is None and stress.other_branch(site, known, read):
                        found.unknown[site.value] = max(error, found.unknown.get(site.value, 0.0))
        except OutOfTime:
            raise
        except NormfuseError:
            return  # one of the models refuses such values

    def _verdict(self, site: DiffSite, known: Values, got: Sequence[Any]) -> tuple[bool | None, float]:
        """Return whether results of a site are right (None: it cannot be determined), and their error."""
        reference = known[site.value]
        errors = [_error(reference, each) for each in got]
        off = [each for each, its in zip(got, errors, strict=True) if its > _tolerance(reference)]
        verdict = self._judge(site, known, off) if off else True
        if verdict is None and all(self._is_near(site, known, each) for each in off):
            verdict = True
        return verdict, max(errors, default=0.0)

    def _judge(self, site: DiffSite, known: Values, results: Sequence[Any]) -> bool | None:
        """Return whether results are as exact as the original's; None: it cannot be determined."""
        exact = exact_range(site, self._original, known, self._budget, may_skip=self._may_skip)
        reference = np.asarray(known[site.value])
        if exact is None or exact.low.shape != reference.shape:
            return None
        size = np.abs(np.where(np.isfinite(exact.high), exact.high, 0.0))
        floating = reference.dtype.kind == "f"
        usual = np.maximum(size, usual_size(size))
        allowed = usual * _tolerance(reference) if floating else np.zeros(size.shape)
        theirs = exact.distance(reference)
        if np.mean(theirs > (_FAR * usual if floating else 1.0)) > _SHARE_FAR:
            return None
        if (rounded := in_float16(site, self._original, known, self._budget)) is not None:
            theirs = np.maximum(theirs, np.minimum(exact.distance(rounded), _MOST_ROUNDED * usual))
        in_row = theirs.max(axis=-1, keepdims=True, initial=0.0) if theirs.ndim else theirs
        at_most = allowed + (_ROW_FACTOR if floating else 1.0) * in_row
        on_average = max(_RMS_FACTOR * _rms(theirs), _RMS_SHARE * _rms(allowed))
        for result in results:
            if np.shape(result) != reference.shape or np.asarray(result).dtype != reference.dtype:
                return False
            ours = exact.distance(np.asarray(result))
            if len(quantizer_inputs(site)) > _COMBINED:
                ours = _without_turned(ours, theirs, exact)
            if not (ours <= at_most).all() or not _rms(ours) <= on_average:
                return False
        return True

    def _is_near(self, site: DiffSite, known: Values, result: Any) -> bool:
        """Whether the rounding of the site's types explains an error, if the exact result is unknown."""
        expected, got = np.asarray(known[site.value]), np.asarray(result)
        error = _error(expected, got)
        if expected.dtype.name in QUANTIZED_TYPES and error <= 1:
            return bool(np.mean(expected != got) <= _SHARE_OFF)
        arrays = [np.asarray(known[name]) for name in (site.value, *site.original_inputs)]
        dtypes = {ir.DataType.from_numpy(array.dtype) for array in arrays if array.dtype.kind != "O"}
        return error <= type_tolerance(lowest_precision(dtypes, site.all_nodes(self._original)))


class _Batch:
    """Sites that run together, and sessions for them."""

    def __init__(
        self, sites: list[DiffSite], ways: Sequence[Way], original: ir.Model, optimized: ir.Model, known: Values
    ) -> None:
        # Sequences and absent values can be neither given nor compared.
        tensors = {name for name, value in known.items() if isinstance(value, np.ndarray)}
        self.sites = [site for site in sites if {site.value, *site.inputs, *site.original_inputs} <= tensors]
        self.sessions: list[onnxruntime.InferenceSession] = []
        for way in ways:
            alone = way.ep_options is None
            run = [site for site in self.sites if site.is_rewritten or not alone]
            given = {name: known[name] for site in run for name in site.inputs}
            part = part_model(optimized, [site.value for site in run], given)
            # ONNX Runtime's own optimisations are not in question.
            level: Level = "disable" if alone else "all"
            options = None if alone else {**(way.ep_options or {}), "claim": "all"}
            if run:
                self.sessions.append(open_session(part, "a part of the model", ep_options=options, level=level))

    def run(self, known: Values, budget: Budget) -> list[Values]:
        """Return the results for some values, by each way of running."""
        return [run_part(session, known, budget) for session in self.sessions]


def _names(site: DiffSite) -> set[str]:
    """The facts about the original that are needed to judge a site."""
    return {site.value, *site.inputs, *site.original_inputs, *quantizer_inputs(site)}


def _without_turned(ours: np.ndarray, theirs: np.ndarray, exact: ExactRange) -> np.ndarray:
    """Distances from the exact range, without the few elements that are a step further away than the original's."""
    with np.errstate(invalid="ignore"):
        widths = exact.high - exact.low
        step = widths[widths > 0].min() if (widths > 0).any() else 0.0
        further = np.where((ours > theirs) & (ours <= 1.001 * step), ours - theirs, 0.0).ravel()
    turned = np.argsort(-further)[: max(_FEW, int(_SHARE_TURNED * ours.size))]
    kept = ours.ravel().copy()
    kept[turned] = np.where(further[turned] > 0, theirs.ravel()[turned], kept[turned])
    return kept.reshape(ours.shape)


def _where_finite(reference: Any, result: Any) -> Any:
    """The elements of a result that can be compared: with unusual values the original may overflow its types."""
    alike = reference.dtype == result.dtype and reference.shape == result.shape and reference.dtype.kind == "f"
    return np.where(np.isfinite(reference), result, reference) if alike else result


def _error(reference: Any, result: Any) -> float:
    """The error of a result; where it is small by any measure, in fewer passes than :class:`Difference` takes."""
    same = reference.dtype == result.dtype and reference.shape == result.shape
    if same and reference.dtype.kind == "f":
        with np.errstate(over="ignore", invalid="ignore"):
            largest = float(np.abs(np.subtract(result, reference)).max(initial=0.0))
            usual = usual_size(np.abs(reference))
        if largest == 0.0 or largest <= _tolerance(reference) * usual < np.inf:
            return largest / usual if usual else 0.0
    elif same and np.array_equal(reference, result):
        return 0.0
    difference = Difference("", quantized=False)
    difference.add(reference, result)
    return difference.error


def _tolerance(reference: Any) -> float:
    return _TOLERANCES.get(np.asarray(reference).dtype.name, 0.0)


def _rms(values: np.ndarray) -> float:
    return float(np.sqrt(np.mean(values**2))) if values.size else 0.0
