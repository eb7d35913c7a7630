"""Running an original and an optimised model on the same inputs, and deciding whether they agree."""

from __future__ import annotations

import contextlib
import dataclasses
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from normfuse.arguments import INTEGER, NUMBER, PROGRESS, check_type
from normfuse.claims import read_claim_report
from normfuse.errors import HostVersionError, LibraryLoadError, OptionError, VerificationError
from normfuse.model_files import ModelLike, load_model
from normfuse.sessions import needs_library, open_session
from normfuse.verification.budget import Budget, OutOfTime, Outputs, run_accepted, run_all, run_as_fits
from normfuse.verification.comparison import differences, flatten, is_quantized
from normfuse.verification.exact_sums import ExactForms, exact_forms
from normfuse.verification.inputs import GENTLE_STYLES, InputMaker, Inputs, Sample, TooLarge, check_inputs
from normfuse.verification.judge import Judge
from normfuse.verification.locate import locate, site_of_value
from normfuse.verification.lost_quantizers import lost_quantizers
from normfuse.verification.places import PlaceComparer, Way
from normfuse.verification.report import ComparedPlaces, ComparedRun, Result, Saturation, VerificationReport
from normfuse.verification.samples import reference
from normfuse.verification.ties import run_without_ties

if TYPE_CHECKING:
    import onnx_ir as ir

    from normfuse.graph_rewrites.sites import Site

__all__ = ["VERIFY_SECONDS", "check_comparison", "verify", "verify_models"]

VERIFY_SECONDS = 60.0
"""How long a verification may take unless another time is asked for."""
FLOAT_SAMPLES = 4
QUANTIZED_SAMPLES = 16
# Of the whole time: when the first and the second way of running the optimised model have to be done. What is left is
# for finding out about differences.
_SHARES = 0.45, 0.65
# Where the original is not steady: sizes that smoother and fainter inputs are made of, the share of the time left in
# which they are run, and how close together the original's own results have to be.
_GENTLE_PROFILES = 2
_GENTLE_SHARE = 0.25
_QUIET = 0.01

Progress: TypeAlias = Callable[[str], None]


def verify(
    original: ModelLike,
    optimized: ModelLike,
    *,
    inputs: Inputs | None = None,
    samples: int | None = None,
    max_error: float | None = None,
    seed: int = 0,
    seconds: float = VERIFY_SECONDS,
    progress: Progress | None = None,
) -> VerificationReport:
    """Compare an optimised model with its original on the same inputs.

    The original runs on ONNX Runtime's CPU provider with every graph optimisation off. The optimised model runs with
    normfuse, and also without it where it is portable. Where ONNX Runtime's sums of uint8 x int8 saturate (x86
    without VNNI), both run with weights of uint8 in the place of int8, whose products are exact.

    Args:
        original: Any form of model that :func:`normfuse.optimize` takes.
        optimized: The same.
        inputs: One or more ``.npz`` files, or mappings of input name to array; None: made from the signature of the
            original, with several sizes for symbolic dimensions.
        samples: How many inputs to make, if the time lasts; None: 4, or 16 for quantised models.
        max_error: The error to allow instead of what the types explain.
        seed: Of the inputs made.
        seconds: How long it may take; small inputs come first, and a run that would take longer is stopped.
        progress: Called with what is being done.

    Returns:
        The report; its ``result`` is "agree", "differ" or "undecided".

    Raises:
        InvalidModelError: A model cannot be read or loaded.
        OptionError: The inputs do not fit the model.
        VerificationError: There is nothing to compare: no input could be made that the original accepts, or the
            original does not give the same result twice.
    """
    check_comparison(inputs, samples, max_error, seconds)
    check_type("seed", seed, INTEGER)
    if seed < 0:
        raise OptionError(f"seed is {seed}; it must be 0 or more.")
    check_type("progress", progress, PROGRESS, optional=True)
    first, second = load_model(original), load_model(optimized)
    return verify_models(
        first.model,
        second.model,
        inputs=inputs,
        samples=samples,
        max_error=max_error,
        seed=seed,
        seconds=seconds,
        names=(first.name, second.name if second.name != first.name else "the optimised model"),
        progress=progress,
    )


def verify_models(
    original: ir.Model,
    optimized: ir.Model,
    *,
    inputs: Inputs | None = None,
    samples: int | None = None,
    max_error: float | None = None,
    seed: int = 0,
    seconds: float = VERIFY_SECONDS,
    names: tuple[str, str] = ("the original", "the optimised model"),
    sites: Sequence[Site] = (),
    progress: Progress | None = None,
    claim_report: Path | None = None,
) -> VerificationReport:
    """:func:`verify` for models that are loaded.

    ``sites`` are those that the rewriting pass fused; ``claim_report`` is where the execution provider says what it
    takes of the optimised model.
    """
    _check_signatures(original, optimized, names)
    tell = progress or (lambda _: None)
    exact = None
    if is_quantized(original) or is_quantized(optimized):
        tell("verifying: whether sums of integers saturate")
        exact = exact_forms(
            original, optimized
        )  # its sessions are no part of the time, which is for running the models
    with tempfile.TemporaryDirectory(prefix="normfuse.") as folder:
        models = _Models(original, optimized, names, claim_report or Path(folder) / "claims.jsonl")
        given = _Inputs(inputs, samples, seed, max_error)
        verification = _Verification(models, exact, given, Budget(seconds), tell)
        return verification.report(sites)


def check_comparison(inputs: Inputs | None, samples: int | None, max_error: float | None, seconds: float) -> None:
    """Raise OptionError if an argument that says how to compare has a type or a value that it cannot have."""
    check_inputs(inputs)
    check_type("samples", samples, INTEGER, optional=True)
    check_type("max_error", max_error, NUMBER, optional=True)
    check_type("The time for the verification", seconds, NUMBER)
    if samples is not None and samples < 1:
        raise OptionError(f"samples is {samples}; it must be 1 or more.")
    if max_error is not None and not max_error >= 0:
        raise OptionError(f"max_error is {max_error}; it must be a number from 0 on.")
    if not seconds > 0:
        raise OptionError(f"The time for the verification is {seconds} s; it must be more than 0.")


@dataclasses.dataclass(frozen=True)
class _Models:
    """Two models that are compared."""

    original: ir.Model
    optimized: ir.Model
    names: tuple[str, str]
    claim_report: Path
    """Where the execution provider says what it takes of the second one."""


@dataclasses.dataclass(frozen=True)
class _Inputs:
    given: Inputs | None
    samples: int | None
    seed: int
    max_error: float | None


@dataclasses.dataclass
class _Tried:
    """One way of running the optimised model, and what came of it."""

    way: Way
    results: Outputs
    run: ComparedRun
    without_ties: bool = False
    """The run stands for one on the original's quantised values."""


class _Verification:
    def __init__(
        self, models: _Models, exact: ExactForms | None, inputs: _Inputs, budget: Budget, tell: Progress
    ) -> None:
        self._given = models
        self._original = models.original if exact is None else exact.original
        self._optimized = models.optimized if exact is None else exact.optimized
        self._saturation = None if exact is None else Saturation(exact.products, exact.inexact)
        self._names = models.names
        self._inputs = inputs
        self._budget = budget
        self._tell = tell
        # What the provider says of a form with exact sums is nobody's business.
        report = models.claim_report
        self._claim_report = report if exact is None else report.with_name(f"exact {report.name}")
        self._quantized = is_quantized(models.original)
        self._warnings: list[str] = []
        self._places: ComparedPlaces | None = None
        # Whether the time was over before a difference was understood.
        self._open = False
        self._comparer = PlaceComparer(self._original, self._optimized, budget)

    def report(self, sites: Sequence[Site]) -> VerificationReport:
        """Compare; ``sites`` are for saying where a difference begins."""
        count = self._inputs.samples or (QUANTIZED_SAMPLES if self._quantized else FLOAT_SAMPLES)
        try:
            fed, expected = reference(
                self._original,
                self._names[0],
                self._inputs.given,
                count,
                self._inputs.seed,
                budget=self._budget,
                tell=self._tell,
            )
        except OutOfTime:
            return self._undecided()
        except TooLarge as error:
            because = f"nothing could be compared. {error} Compare it by other means."
            return dataclasses.replace(self._undecided(), undecided_because=because)
        if self._inputs.given is None and len(fed) < count:
            self._warnings.append(
                f"Within the time for the verification ({self._budget.seconds:g} s) {len(fed)} of {count} samples were "
                "compared; --verify-seconds gives it more."
            )
        self._warnings += _remarks(expected)
        judge = Judge(self._original, fed, expected, self._quantized, self._inputs.max_error, self._budget)
        tried = self._try_all(judge)
        if not tried:
            return self._undecided()
        if self._saturation is not None:
            self._tell("verifying: the optimised model as it is")
            self._saturation = dataclasses.replace(self._saturation, error=self._error_as_it_is(fed[0], tried[0]))
        report = self._judged(judge, tried, sites)
        lost = lost_quantizers(self._original, self._optimized) if self._inputs.max_error is None else ()
        if not lost:
            return report
        return dataclasses.replace(report, result="differ", lost_quantizers=tuple(lost))

    def _try_all(self, judge: Judge) -> list[_Tried]:
        tried = []
        for way, share in zip(self._ways(), _SHARES, strict=False):
            self._tell(f"verifying: {way.label}")
            try:
                session = open_session(self._optimized, self._names[1], ep_options=way.ep_options)
                results = run_as_fits(session, judge.fed, self._budget, share=share, tell=self._tell, label=way.label)
            except OutOfTime:
                self._warnings.append(f"There was no time to compare the results {way.label}.")
                continue
            way.fused = _claimed(self._claim_report) if way.ep_options is not None else ()
            way.ep_options = None if way.ep_options is None else {}
            tried.append(_Tried(way, results, ComparedRun(way.label, judge.compare(results), len(results))))
        return tried

    def _error_as_it_is(self, sample: Sample, exact: _Tried) -> float | None:
        """How far the optimised model as it is gets from its form with exact sums; None: there was no time.

        That it runs at all is part of what is verified, and what the provider takes of it is reported.
        """
        options = None if exact.way.ep_options is None else {"claim_report": self._given.claim_report}
        session = open_session(self._given.optimized, self._names[1], ep_options=options)
        try:
            results = run_all(session, [sample], self._budget)
        except OutOfTime:
            return None
        found = differences(exact.results[:1], results, self._quantized)
        return max((difference.error for difference in found), default=0.0)

    def _judged(self, judge: Judge, tried: list[_Tried], sites: Sequence[Site]) -> VerificationReport:
        doubtful = sorted({index for one in tried for index in judge.doubtful(one.results)})
        if doubtful and self._inputs.max_error is None:
            self._explain(judge, tried, doubtful)
        failed = next((one for one in tried if not one.run.passed and judge.steady(one.results)), None)
        first = None if self._places is None else self._places.first_difference
        if self._places is not None and (first or failed) and self._is_as_exact(judge, tried, doubtful):
            self._places = dataclasses.replace(self._places, first_difference=None)
            error = max(one.run.error for one in tried)
            because = (
                f"an output differs by {error:.3g}, but at each rewritten place, on the original's own values, the "
                "optimised model's results are as near to the exact ones (in float64) as the original's, or nearer: "
                "the original's own rounding explains the difference."
            )
            return dataclasses.replace(self._undecided(tried, judge), undecided_because=because)
        if first is not None:
            return self._differ(judge, tried, failed, sites)
        if failed is not None and self._open:
            return self._undecided(tried, judge)
        if failed is not None:
            return self._differ(judge, tried, failed, sites)
        if all(judge.steady(one.results) for one in tried):
            return self._agree(judge, tried)
        return self._gentle(judge, tried, sites)

    def _explain(self, judge: Judge, tried: list[_Tried], doubtful: list[int]) -> None:
        """Find out whether rounding explains what is further off than types do."""
        if self._quantized:
            self._tell("verifying: on the original's quantised values")
            self._without_ties(judge, tried)
            doubtful = self._doubtful(judge, tried)
        if doubtful:
            self._tell("verifying: how steady the original's own results are")
            self._open = not judge.measure_levels(doubtful)
            doubtful = self._doubtful(judge, tried)
            judge.keep_noise_of(doubtful)
            self._compare_again(judge, tried)
        if doubtful:
            ways, sample = [one.way for one in tried], judge.fed[doubtful[0]]
            self._places = self._comparer.compare(ways, sample, lambda what: self._tell(f"verifying: {what}"))
            self._open = self._places is None and self._budget.is_spent
        if doubtful and self._places is not None and self._places.first_difference is None:
            self._tell("verifying: how far rounding moves the original's results")
            self._open = not judge.measure_moved(self._comparer.dtypes, doubtful)
            self._compare_again(judge, tried)

    def _is_as_exact(self, judge: Judge, tried: list[_Tried], samples: list[int]) -> bool:
        """Say whether on each of some samples all places are as exact as the original's."""
        self._tell("verifying: which results are nearer to the exact ones")
        ways = [one.way for one in tried]
        return all(
            not self._budget.is_spent and self._comparer.is_as_exact(ways, judge.fed[index]) for index in samples
        )

    def _doubtful(self, judge: Judge, tried: list[_Tried]) -> list[int]:
        """The samples on which any way of running is further off than types and rounding ties explain."""
        return sorted({i for one in tried if not one.without_ties for i in judge.doubtful(one.results)})

    def _compare_again(self, judge: Judge, tried: list[_Tried]) -> None:
        for one in tried:
            if not one.without_ties:
                one.run = dataclasses.replace(
                    one.run, outputs=judge.compare(one.results), samples=len(judge.steady(one.results))
                )

    def _without_ties(self, judge: Judge, tried: list[_Tried]) -> None:
        """Put runs without rounding ties in the place of those that nothing but these makes fail."""
        samples = self._doubtful(judge, tried)
        fed, ways = [judge.fed[i] for i in samples], [one.way.ep_options for one in tried]
        found = run_without_ties(self._original, self._optimized, fed, ways, self._budget)
        for one, tie_free in zip(tried, found, strict=True):
            compared = () if tie_free is None else judge.compared(tie_free.differences, [])
            if tie_free is None or one.run.passed or not all(output.passed for output in compared):
                continue
            one.without_ties = True
            one.run = dataclasses.replace(
                one.run,
                outputs=compared,
                at_ties=tie_free.turned,
                quantized_values=tie_free.elements,
                error_with_ties=one.run.error,
            )

    def _gentle(self, judge: Judge, tried: list[_Tried], sites: Sequence[Site]) -> VerificationReport:
        """Look for inputs on which the original is steady, and compare on these; undecided where there are none."""
        quiet = self._steady_inputs(judge) if self._inputs.given is None else None
        again = self._try_all(quiet) if quiet is not None else []
        if quiet is None or not again:
            return self._undecided(tried, judge)
        failed = next((one for one in again if not one.run.passed), None)
        if failed is not None:
            return self._differ(quiet, again, failed, sites)
        self._warnings.append(
            f"On the first {len(judge.fed)} samples the original's own results are {judge.noise_of_all:.2g} apart; "
            "compared was on smooth and faint inputs, on which they are not. Real ones (--inputs) say more."
        )
        return self._agree(quiet, again)

    def _steady_inputs(self, judge: Judge) -> Judge | None:
        """Samples that are smoother and fainter, if the original's own results are close together on any."""
        self._tell("verifying: looking for inputs on which the original is steady")
        maker = InputMaker(self._original)
        candidates: list[Sample] = []
        for profile in range(min(maker.profile_count, _GENTLE_PROFILES)):
            with contextlib.suppress(TooLarge):
                candidates += [maker.make(profile, self._inputs.seed, style) for style in GENTLE_STYLES]
        share = self._budget.spent / self._budget.seconds
        try:
            session = open_session(self._original, self._names[0], level="disable")
            fed, expected = run_accepted(session, candidates, self._budget, share=share + (1 - share) * _GENTLE_SHARE)
        except OutOfTime:
            return None
        tested = dataclasses.replace(judge, fed=fed, expected=expected, noise={}, by_level={})
        everything = list(range(len(fed)))
        if not (tested.measure_levels(everything) and tested.measure_moved(self._comparer.dtypes, everything)):
            return None
        kept = [i for i in everything if max(tested.noise[i].values(), default=0.0) <= _QUIET]
        if not kept:
            return None
        return dataclasses.replace(
            judge,
            fed=[fed[i] for i in kept],
            expected=[expected[i] for i in kept],
            noise={new: tested.noise[old] for new, old in enumerate(kept)},
            by_level={},
        )

    # --- the three results ---

    def _agree(self, judge: Judge, tried: list[_Tried]) -> VerificationReport:
        decided = min(len(judge.steady(one.results)) for one in tried)
        if judge.unsteady:
            self._warnings.append(
                f"{len(judge.unsteady)} of {len(judge.fed)} samples do not count: the original's own results are "
                f"{judge.noise_of_all:.2g} apart on them."
            )
        return self._finished("agree", tried, judge, samples=decided)

    def _differ(
        self, judge: Judge, tried: list[_Tried], failed: _Tried | None, sites: Sequence[Site]
    ) -> VerificationReport:
        value = None if self._places is None else self._places.first_difference
        site = None if value is None else site_of_value(self._optimized, self._original, value, sites)
        if value is None and failed is not None and not self._budget.is_spent:
            self._tell("verifying: looking for the first difference")
            value, site = locate(
                self._original,
                self._optimized,
                sample=judge.fed[next(iter(judge.doubtful(failed.results)), 0)],
                ep_options=failed.way.ep_options,
                sites=sites,
                tolerance=judge.tolerance,
                quantized=self._quantized,
                budget=self._budget,
            )
        report = self._finished("differ", tried, judge, samples=min(len(one.results) for one in tried))
        return dataclasses.replace(report, first_difference=value, first_site=site)

    def _undecided(self, tried: Sequence[_Tried] = (), judge: Judge | None = None) -> VerificationReport:
        noise = None if judge is None else judge.noise_of_all
        if tried and self._open:
            because = (
                f"an output differs by {max(one.run.error for one in tried):.3g}, and the {self._budget.seconds:g} s "
                "were over before it was found out whether rounding explains that. Give it more time "
                "(--verify-seconds) or smaller inputs (--inputs)."
            )
        elif noise is None:
            because = (
                f"nothing could be compared within {self._budget.seconds:g} s. Give it more time (--verify-seconds) or "
                "smaller inputs (--inputs)."
            )
        else:
            because = (
                f"the original's own results are {noise:.2g} apart on these inputs, by ONNX Runtime's optimisation "
                "levels or where values are rounded once more, so that comparing with them says nothing. Real inputs "
                "(--inputs) may say more."
            )
        report = self._finished("undecided", tried, judge, samples=0)
        return dataclasses.replace(report, undecided_because=because)

    def _finished(
        self, result: Result, tried: Sequence[_Tried], judge: Judge | None, *, samples: int
    ) -> VerificationReport:
        runs = tuple(one.run for one in tried)
        saturation = () if self._saturation is None else (self._saturation.message,)
        return VerificationReport(
            result=result,
            samples=samples,
            runs=runs,
            quantized=self._quantized,
            noise=None if judge is None else judge.noise_of_all if result == "undecided" else judge.noise_of_steady,
            seconds=self._budget.spent,
            places=self._places,
            saturation=self._saturation,
            warnings=(*self._warnings, *saturation, *(run.ties_message for run in runs if run.at_ties)),
        )

    def _ways(self) -> list[Way]:
        ways: list[Way] = []
        try:
            from normfuse.host.registration import ensure_registered

            ensure_registered()
            ways.append(Way("with normfuse", {"claim_report": self._claim_report}))
        except (HostVersionError, LibraryLoadError) as error:
            self._warnings.append(f"The execution provider was not tried: {error}")
        if not needs_library(self._optimized):
            ways.append(Way("without normfuse", None))
        if not ways:
            raise VerificationError(
                f"The optimised model needs the native library, which cannot be used. {self._warnings[-1]}"
            )
        return ways


def _check_signatures(original: ir.Model, optimized: ir.Model, names: tuple[str, str]) -> None:
    for what in ("inputs", "outputs"):
        first = [value.name for value in getattr(original.graph, what)]
        second = [value.name for value in getattr(optimized.graph, what)]
        if set(first) != set(second):
            different = sorted(str(name) for name in set(first) ^ set(second))[0]
            raise OptionError(
                f"{names[0]} and {names[1]} are not versions of one model: only one of them has '{different}' among "
                f"its {what}."
            )


def _claimed(report: Path) -> tuple[tuple[str, ...], ...]:
    """The nodes of each chain that the execution provider took, by a claim report."""
    return tuple(tuple(line["nodes"]) for line in read_claim_report(report) if line["claimed"])


def _remarks(expected: Outputs) -> list[str]:
    remarks = []
    for name in expected[0]:
        pieces = [array for sample in expected for _, array in flatten(name, sample[name])]
        if all(getattr(p, "dtype", None) is not None and p.dtype.kind == "f" and bool((p != p).all()) for p in pieces):
            remarks.append(
                f"Output '{name}' of the original is NaN for every input, so that comparing it shows little."
            )
    return remarks
