"""Running an original and an optimised model on the same inputs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from normfuse.ep.spec import OPERATOR_DOMAIN
from normfuse.errors import HostVersionError, LibraryLoadError, OptionError, VerificationError
from normfuse.model_files import ModelLike, load_model
from normfuse.sessions import Level, open_session
from normfuse.verification.comparison import (
    NOISE_FACTOR,
    QUANTIZED_TOLERANCE,
    QUANTIZED_TYPES,
    Difference,
    OutputComparison,
    flatten,
    is_quantized,
    lowest_precision,
    type_tolerance,
)
from normfuse.verification.inputs import InputMaker, Inputs, Sample, read_inputs
from normfuse.verification.locate import locate
from normfuse.verification.report import ComparedRun, VerificationReport
from normfuse.verification.ties import run_without_ties

if TYPE_CHECKING:
    import onnx_ir as ir
    import onnxruntime

    from normfuse.graph_rewrites.sites import Site

__all__ = ["differences", "reference", "run_all", "verify", "verify_models"]

FLOAT_SAMPLES = 4
QUANTIZED_SAMPLES = 16
_SIZES_TRIED = 3
_LARGE_NOISE = 0.1
"""Error from which on a model is taken to be out of its depth on the inputs that it was given."""

Outputs: TypeAlias = list[dict[str, Any]]
"""For each sample: output name -> array."""
Progress: TypeAlias = Callable[[str], None]


@dataclasses.dataclass
class _Judge:
    """Compares results with the original's, and finds out how exact they have to be."""

    original: ir.Model
    name: str
    fed: list[Sample]
    expected: Outputs
    quantized: bool
    max_error: float | None
    noise: dict[str, float] | None = None

    @property
    def tolerance(self) -> float:
        """The error that the types explain, or that the user allows."""
        if self.max_error is not None:
            return self.max_error
        return QUANTIZED_TOLERANCE if self.quantized else type_tolerance(lowest_precision(self.original))

    def compare(self, results: Outputs) -> tuple[OutputComparison, ...]:
        found = differences(self.expected, results, self.quantized)
        compared = self._compared(found)
        if self.max_error is None and self.noise is None and not all(output.passed for output in compared):
            # Some models blow rounding up, such as those that end in a steep sigmoid; then so does ONNX Runtime itself.
            self.noise = self._measured_noise()
            compared = self._compared(found)
        return compared

    def without_ties(self, run: ComparedRun, optimized: ir.Model, ep_options: dict[str, Any] | None) -> ComparedRun:
        """The run as it is without rounding ties, if nothing but these makes it fail; otherwise the run itself."""
        tie_free = run_without_ties(self.original, optimized, self.fed, ep_options)
        if tie_free is None:
            return run
        compared = self._compared(tie_free.differences)
        if not all(output.passed for output in compared):
            return run
        return ComparedRun(run.name, compared, tie_free.turned, tie_free.elements, run.error)

    def first_failing(self, results: Outputs) -> Sample:
        for sample, a, b in zip(self.fed, self.expected, results, strict=True):
            if not all(output.passed for output in self._compared(differences([a], [b], self.quantized))):
                return sample
        return self.fed[0]

    def _compared(self, found: list[Difference]) -> tuple[OutputComparison, ...]:
        return tuple(difference.compared(self._allowed(difference)) for difference in found)

    def _allowed(self, difference: Difference) -> float:
        noise = NOISE_FACTOR * (self.noise or {}).get(difference.name, 0.0)
        # A quantised output may be off by one step: that is the smallest difference that its type has.
        step = 1.0 if self.quantized and self.max_error is None and difference.dtype in QUANTIZED_TYPES else 0.0
        return max(self.tolerance, noise, step)

    def _measured_noise(self) -> dict[str, float]:
        """Output -> error between ONNX Runtime's own optimisation levels."""
        noise: dict[str, float] = {}
        levels: tuple[Level, ...] = ("basic", "all")
        seen = [self.expected]
        for level in levels:
            results = run_all(open_session(self.original, self.name, level=level), self.fed)
            for earlier in seen:
                for difference in differences(earlier, results, self.quantized):
                    noise[difference.name] = max(noise.get(difference.name, 0.0), difference.error)
            seen.append(results)
        return noise


def verify(
    original: ModelLike,
    optimized: ModelLike,
    *,
    inputs: Inputs | None = None,
    samples: int | None = None,
    max_error: float | None = None,
    seed: int = 0,
) -> VerificationReport:
    """Compare an optimised model with its original on the same inputs.

    The original runs on ONNX Runtime's CPU provider with every graph optimisation off. The optimised model runs with
    normfuse, and also without it where it is portable.

    Args:
        original: Any form of model that :func:`normfuse.optimize` takes.
        optimized: The same.
        inputs: One or more ``.npz`` files, or mappings of input name to array; None: made from the signature of the
            original, with several sizes for symbolic dimensions.
        samples: How many inputs to make; None: 4, or 16 for quantised models.
        max_error: The error to allow instead of what the types explain.
        seed: Of the inputs made.

    Returns:
        The report; ``passed`` says whether they agree.

    Raises:
        InvalidModelError: A model cannot be read or loaded.
        OptionError: The inputs do not fit the model.
        VerificationError: There is nothing to compare: no input could be made that the original accepts, or the
            original does not give the same result twice.
    """
    first, second = load_model(original), load_model(optimized)
    return verify_models(
        first.model,
        second.model,
        inputs=inputs,
        samples=samples,
        max_error=max_error,
        seed=seed,
        names=(first.name, second.name if second.name != first.name else "the optimised model"),
    )


def verify_models(
    original: ir.Model,
    optimized: ir.Model,
    *,
    inputs: Inputs | None = None,
    samples: int | None = None,
    max_error: float | None = None,
    seed: int = 0,
    names: tuple[str, str] = ("the original", "the optimised model"),
    sites: Sequence[Site] = (),
    progress: Progress | None = None,
) -> VerificationReport:
    """:func:`verify` for models that are loaded; ``sites`` are those that the rewriting pass fused."""
    if samples is not None and samples < 1:
        raise OptionError(f"samples is {samples}; it must be 1 or more.")
    if max_error is not None and not max_error >= 0:
        raise OptionError(f"max_error is {max_error}; it must be a number from 0 on.")
    tell = progress or (lambda _: None)
    _check_signatures(original, optimized, names)
    quantized = is_quantized(original)
    count = samples or (QUANTIZED_SAMPLES if quantized else FLOAT_SAMPLES)
    tell("running the original")
    fed, expected = reference(original, names[0], inputs, count, seed)
    judge = _Judge(original, names[0], fed, expected, quantized, max_error)
    runs, warnings = [], _remarks(expected)
    failed: dict[str, Any] | None = None
    for label, ep_options in _ways_to_run(optimized, warnings):
        tell(f"running the optimised model {label}")
        results = run_all(open_session(optimized, names[1], ep_options=ep_options), fed)
        run = ComparedRun(label, judge.compare(results))
        if quantized and not run.passed and max_error is None:
            tell(f"running the optimised model {label} on the original's quantised values")
            run = judge.without_ties(run, optimized, ep_options)
        runs.append(run)
        if failed is None and not runs[-1].passed:
            failed = {"ep_options": ep_options, "sample": judge.first_failing(results)}
    first_value, first_site = None, None
    if failed is not None:
        tell("looking for the first difference")
        first_value, first_site = locate(
            original, optimized, sites=sites, tolerance=judge.tolerance, quantized=quantized, **failed
        )
    noise = max(judge.noise.values()) if judge.noise else None
    if noise is not None and noise > _LARGE_NOISE:
        warnings.append(
            f"On these inputs ONNX Runtime's own optimisation levels are {noise:.2g} apart, so that comparing on them "
            "says little; give real ones (--inputs)."
        )
    return VerificationReport(
        passed=failed is None,
        samples=len(fed),
        runs=tuple(runs),
        quantized=quantized,
        noise=noise,
        warnings=(*warnings, *(run.ties_message for run in runs if run.at_ties)),
        first_difference=first_value,
        first_site=first_site,
    )


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


def reference(
    model: ir.Model, name: str, inputs: Inputs | None, count: int, seed: int, sizes: Mapping[str, int] | None = None
) -> tuple[list[Sample], Outputs]:
    """Return inputs, made or a user's, and what the model makes of them without any graph optimisation.

    Args:
        model: The model.
        name: What it is called in messages.
        inputs: The user's inputs; None: made.
        count: How many to make.
        seed: Of those made.
        sizes: Symbolic dimension -> size that those made must have.

    Raises:
        OptionError: The inputs do not fit the model.
        VerificationError: No input could be made that the model accepts, or it gives different results each time.
    """
    session = open_session(model, name, level="disable")
    maker = InputMaker(model, sizes)
    if inputs is not None:
        fed = [maker.check(sample, label) for label, sample in read_inputs(inputs)]
        if not fed:
            raise OptionError("inputs is empty; give at least one sample, or None to have them made.")
        expected = run_all(session, fed)
    else:
        fed, expected = _accepted(session, maker, name, count, seed)
    again = run_all(session, fed[:1])
    if any(d.error > QUANTIZED_TOLERANCE for d in differences(expected[:1], again, quantized=False)):
        raise VerificationError(
            f"{name} does not give the same result twice on the same inputs (does it draw random numbers?), so it "
            "cannot be verified; optimise it without verification and compare by other means."
        )
    return fed, expected


def _accepted(
    session: onnxruntime.InferenceSession, maker: InputMaker, name: str, count: int, seed: int
) -> tuple[list[Sample], Outputs]:
    """Make samples, at the first few choices of sizes that the model accepts."""
    fed: list[Sample] = []
    expected: Outputs = []
    profiles: list[int] = []
    last_error = ""
    for profile in range(maker.profile_count):
        if len(profiles) == min(_SIZES_TRIED, count):
            break
        sample = maker.make(profile, seed)
        try:
            expected += run_all(session, [sample])
        except VerificationError as error:
            last_error = str(error)
            continue
        fed.append(sample)
        profiles.append(profile)
    if not profiles:
        raise VerificationError(
            f"{name} accepts none of the inputs that were made from its signature; give real ones in an .npz file "
            f"(--inputs). {last_error}"
        )
    for index in range(len(fed), count):
        sample = maker.make(profiles[index % len(profiles)], seed + index)
        expected += run_all(session, [sample])
        fed.append(sample)
    return fed, expected


def run_all(session: onnxruntime.InferenceSession, fed: Sequence[Sample]) -> Outputs:
    """Return the outputs for each sample; VerificationError if the session refuses one."""
    names = [output.name for output in session.get_outputs()]
    results = []
    for sample in fed:
        try:
            results.append(dict(zip(names, session.run(names, sample), strict=True)))
        except Exception as error:  # onnxruntime raises one class of its own for each status code
            raise VerificationError(f"onnxruntime says: {(str(error).splitlines() or ['?'])[0]}") from error
    return results


def _ways_to_run(model: ir.Model, warnings: list[str]) -> list[tuple[str, dict[str, Any] | None]]:
    ways: list[tuple[str, dict[str, Any] | None]] = []
    try:
        from normfuse.ep.registration import ensure_registered

        ensure_registered()
        ways.append(("with normfuse", {}))
    except (HostVersionError, LibraryLoadError) as error:
        warnings.append(f"The execution provider was not tried: {error}")
    bodies = {(function.domain, function.name) for function in model.functions.values()}
    needs_library = any(
        node.domain == OPERATOR_DOMAIN and (node.domain, node.op_type) not in bodies
        for graph in (*model.graphs(), *model.functions.values())
        for node in graph
    )
    if not needs_library:
        ways.append(("without normfuse", None))
    if not ways:
        raise VerificationError(f"The optimised model needs the native library, which cannot be used. {warnings[-1]}")
    return ways


def differences(expected: Outputs, results: Outputs, quantized: bool) -> list[Difference]:
    """Return how far each output is from its reference, over all samples."""
    found: dict[str, Difference] = {}
    for reference, result in zip(expected, results, strict=True):
        for name, value in reference.items():
            pairs = zip(flatten(name, value), flatten(name, result[name]), strict=False)
            for (label, a), (_, b) in pairs:
                found.setdefault(label, Difference(label, quantized)).add(a, b)
    return list(found.values())


def _remarks(expected: Outputs) -> list[str]:
    remarks = []
    for name in expected[0]:
        pieces = [array for sample in expected for _, array in flatten(name, sample[name])]
        if all(getattr(p, "dtype", None) is not None and p.dtype.kind == "f" and bool((p != p).all()) for p in pieces):
            remarks.append(
                f"Output '{name}' of the original is NaN for every input, so that comparing it shows little."
            )
    return remarks
