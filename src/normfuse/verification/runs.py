"""Running an original and an optimised model on the same inputs, and deciding whether they agree."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from normfuse.arguments import INTEGER, NUMBER, PROGRESS, check_type
from normfuse.errors import HostVersionError, LibraryLoadError, OptionError, VerificationError
from normfuse.files.model_files import ModelLike, load_model
from normfuse.inspection.claims import read_claim_report
from normfuse.sessions.creation import needs_library, open_session
from normfuse.verification.budget import Budget, OutOfTime, Outputs, run_all, run_as_fits
from normfuse.verification.comparison import (
    QUANTIZED_TOLERANCE,
    QUANTIZED_TYPES,
    Difference,
    OutputComparison,
    differences,
    flatten,
    is_quantized,
    model_precision,
    type_tolerance,
)
from normfuse.verification.exact_sums import ExactForms, exact_forms
from normfuse.verification.inputs import Inputs, Sample, TooLarge, check_inputs
from normfuse.verification.report import ComparedRun, ComparedSites, Result, Saturation, VerificationReport
from normfuse.verification.samples import reference
from normfuse.verification.site_comparison import Found, SiteComparer, Way

if TYPE_CHECKING:
    import onnx_ir as ir

    from normfuse.graph_rewrites.engine.sites import Site

VERIFY_SECONDS = 60.0
"""How long a verification may take unless another time is asked for."""
FLOAT_SAMPLES = 4
QUANTIZED_SAMPLES = 16
# Shares of the whole time by the end of which the first and the second way of running the optimised model must be done.
# The rest is for the sites.
_SHARES = 0.35, 0.45
# How often names of different values in the two models are searched for.
_ROUNDS = 4

Progress: TypeAlias = Callable[[str], None]


@dataclasses.dataclass(frozen=True)
class Comparing:
    """How two models are compared: the arguments of :func:`verify`."""

    inputs: Inputs | None = None
    samples: int | None = None
    max_error: float | None = None
    seed: int = 0
    seconds: float = VERIFY_SECONDS

    def check(self) -> None:
        """Raise OptionError if one of them has a type or a value that it cannot have."""
        check_inputs(self.inputs)
        check_type("samples", self.samples, INTEGER, optional=True)
        check_type("max_error", self.max_error, NUMBER, optional=True)
        check_type("The time for the verification", self.seconds, NUMBER)
        check_type("seed", self.seed, INTEGER)
        if self.samples is not None and self.samples < 1:
            raise OptionError(f"samples is {self.samples}; it must be 1 or more.")
        if self.max_error is not None and not self.max_error >= 0:
            raise OptionError(f"max_error is {self.max_error}; it must be a number from 0 on.")
        if not self.seconds > 0:
            raise OptionError(f"The time for the verification is {self.seconds} s; it must be more than 0.")
        if self.seed < 0:
            raise OptionError(f"seed is {self.seed}; it must be 0 or more.")


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
    without VNNI), both run with uint8 weights instead of int8, whose products are exact.

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
    comparing = Comparing(inputs, samples, max_error, seed, seconds)
    comparing.check()
    check_type("progress", progress, PROGRESS, optional=True)
    first, second = load_model(original), load_model(optimized)
    names = (first.name, second.name if second.name != first.name else "the optimised model")
    return verify_models(first.model, second.model, comparing, names=names, progress=progress)


def verify_models(
    original: ir.Model,
    optimized: ir.Model,
    comparing: Comparing | None = None,
    *,
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
        # Its sessions are no part of the time, which is for running the models.
        exact = exact_forms(original, optimized)
    with tempfile.TemporaryDirectory(prefix="normfuse.") as folder:
        models = _Models(original, optimized, names, claim_report or Path(folder) / "claims.jsonl")
        verification = _Verification(models, exact, comparing or Comparing(), tell)
        return verification.report(sites)


@dataclasses.dataclass(frozen=True)
class _Models:
    """Two models that are compared."""

    original: ir.Model
    optimized: ir.Model
    names: tuple[str, str]
    claim_report: Path
    """The file in which the execution provider reports the chains that it claims of the second one."""


@dataclasses.dataclass
class _Tried:
    """One way of running the optimised model, and its results."""

    way: Way
    results: Outputs
    run: ComparedRun


class _Verification:
    def __init__(self, models: _Models, exact: ExactForms | None, comparing: Comparing, tell: Progress) -> None:
        self._given = models
        self._original = models.original if exact is None else exact.original
        self._optimized = models.optimized if exact is None else exact.optimized
        self._saturation = None if exact is None else Saturation(exact.products, exact.inexact)
        self._names = models.names
        self._comparing = comparing
        self._budget = Budget(comparing.seconds)
        self._tell = tell
        # The provider's report on a form with exact sums is of no use to the user.
        report = models.claim_report
        self._claim_report = report if exact is None else report.with_name(f"exact {report.name}")
        self._quantized = is_quantized(models.original)
        self._warnings: list[str] = []

    def report(self, sites: Sequence[Site]) -> VerificationReport:
        """Compare; ``sites`` are for saying where a difference begins."""
        count = self._comparing.samples or (QUANTIZED_SAMPLES if self._quantized else FLOAT_SAMPLES)
        try:
            fed, expected = reference(
                self._original,
                self._names[0],
                self._comparing.inputs,
                count,
                self._comparing.seed,
                budget=self._budget,
                tell=self._tell,
            )
        except OutOfTime:
            return self._undecided()
        except TooLarge as error:
            because = f"nothing could be compared. {error} Compare it by other means."
            return dataclasses.replace(self._undecided(), undecided_because=because)
        if self._comparing.inputs is None and len(fed) < count:
            self._warnings.append(
                f"Within the time for the verification ({self._budget.seconds:g} s) {len(fed)} of {count} samples were "
                "compared; --verify-seconds gives it more."
            )
        self._warnings += _remarks(expected)
        tried = self._try_all(fed, expected)
        if not tried:
            return self._undecided()
        if self._saturation is not None:
            self._tell("verifying: the optimised model as it is")
            self._saturation = dataclasses.replace(self._saturation, error=self._error_as_it_is(fed[0], tried[0]))
        return self._judged(fed, tried, sites)

    def _try_all(self, fed: list[Sample], expected: Outputs) -> list[_Tried]:
        tried = []
        for way, share in zip(self._ways(), _SHARES, strict=False):
            self._tell(f"verifying: {way.label}")
            try:
                session = open_session(self._optimized, self._names[1], ep_options=way.ep_options)
                results = run_as_fits(session, fed, self._budget, share=share, tell=self._tell, label=way.label)
            except OutOfTime:
                self._warnings.append(f"There was no time to compare the results {way.label}.")
                continue
            way.fused = _claimed(self._claim_report) if way.ep_options is not None else ()
            way.ep_options = None if way.ep_options is None else {}
            found = differences(expected[: len(results)], results, self._quantized)
            outputs = tuple(self._compared(difference) for difference in found)
            tried.append(_Tried(way, results, ComparedRun(way.label, outputs, len(results))))
        return tried

    def _compared(self, difference: Difference) -> OutputComparison:
        if self._comparing.max_error is not None:
            return difference.compared(self._comparing.max_error)
        if not self._quantized:
            return difference.compared(type_tolerance(model_precision(self._original)))
        # One step is the smallest difference that the type of a quantised output has.
        return difference.compared(1.0 if difference.dtype in QUANTIZED_TYPES else QUANTIZED_TOLERANCE)

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

    def _judged(self, fed: list[Sample], tried: list[_Tried], sites: Sequence[Site]) -> VerificationReport:
        passed = all(one.run.passed for one in tried)
        if self._comparing.max_error is not None and passed:
            return self._finished("agree", tried)
        found = self._at_sites(fed, tried, passed)
        report = self._finished("agree", tried, found)
        doubtful = not found.samples or bool(found.unknown)
        if found.wrong or self._comparing.max_error is not None or (doubtful and not passed and not found.out_of_time):
            value = next(iter((*found.wrong, *found.unknown)), None)
            site = None if value is None else _site_of_value(self._optimized, self._original, value, sites)
            return dataclasses.replace(report, result="differ", first_difference=value, first_site=site)
        far = next((name for name, error in found.unknown.items() if error), None)
        if far is not None and passed:
            because = (
                f"value '{far}' is {found.unknown[far]:.3g} from the original's, more than its type explains, and how "
                "exact the original's is could not be found out. The outputs agree; give a limit (--max-error) to go "
                "by them alone."
            )
        elif passed or not doubtful:
            return report
        else:
            because = (
                f"an output differs by {report.error:.3g}, and the {self._budget.seconds:g} s were over before the "
                "rewritten sites were compared. Give it more time (--verify-seconds) or smaller inputs (--inputs)."
            )
        return dataclasses.replace(report, result="undecided", samples=0, undecided_because=because)

    def _at_sites(self, fed: list[Sample], tried: list[_Tried], passed: bool) -> Found:
        comparer = SiteComparer(self._original, self._optimized, self._budget, self._tell)
        ways = [one.way for one in tried]
        found = comparer.compare(ways, fed)
        outputs = {value.name for value in self._original.graph.outputs}
        unrelated: set[str] = set()
        for _ in range(_ROUNDS):
            more = {name for name in found.unrelated if passed and comparer.names_may_differ and name not in outputs}
            if not more:
                break
            unrelated |= more
            found = comparer.compare(ways, fed, unrelated)
        if found.out_of_time:
            self._warnings.append(
                f"Within the time for the verification ({self._budget.seconds:g} s) the rewritten sites were compared "
                f"on {found.samples} of {len(fed)} samples; --verify-seconds gives it more."
            )
        return found

    def _undecided(self) -> VerificationReport:
        because = (
            f"nothing could be compared within {self._budget.seconds:g} s. Give it more time (--verify-seconds) or "
            "smaller inputs (--inputs)."
        )
        return dataclasses.replace(self._finished("undecided", ()), undecided_because=because)

    def _finished(self, result: Result, tried: Sequence[_Tried], found: Found | None = None) -> VerificationReport:
        saturation = () if self._saturation is None else (self._saturation.message,)
        samples = min((len(one.results) for one in tried), default=0)
        compared = None
        if found is not None and self._comparing.max_error is None and found.samples:
            compared = ComparedSites(
                found=found.sites,
                right=found.sites - len(found.wrong) - len(found.unknown),
                samples=found.samples,
                error=found.error,
                same_nodes=found.same_nodes,
                first_difference=next(iter(found.wrong), None),
            )
            samples = found.samples if found.sites else samples
        return VerificationReport(
            result=result,
            samples=samples,
            runs=tuple(one.run for one in tried),
            quantized=self._quantized,
            seconds=self._budget.spent,
            diff_sites=compared,
            saturation=self._saturation,
            warnings=(*self._warnings, *saturation),
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


def _site_of_value(optimized: ir.Model, original: ir.Model, value: str, sites: Sequence[Site]) -> Site | None:
    """Return the site that computes a value, by the name of its node now or before."""
    node_names = {
        node.name
        for model in (optimized, original)
        for node in model.graph
        for out in node.outputs
        if out.name == value
    }
    fused = [site for site in sites if site.fused_into is not None]
    return next((site for site in fused if site.name in node_names or node_names & set(site.nodes)), None)


def _claimed(report: Path) -> tuple[tuple[str, ...], ...]:
    """The nodes of each chain that the execution provider claimed, by a claim report."""
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
