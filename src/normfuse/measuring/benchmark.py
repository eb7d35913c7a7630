"""Speed and error of a model on ONNX Runtime's CPU provider and with normfuse, measured in one process."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from normfuse.arguments import NUMBER, check_threads, check_type
from normfuse.documents import Document, Report, Seconds, Share
from normfuse.errors import OptionError
from normfuse.files.model_files import ModelLike, Source, load_model
from normfuse.host.versions import import_host
from normfuse.inspection.gpu_work import GpuWork, count_gpu_work
from normfuse.inspection.quantization import PRODUCTS, Quantization, quantization_of
from normfuse.measuring.kernel_time import FUSED, KernelTime, time_in_chains, time_in_fused_nodes
from normfuse.measuring.timing import Rounds, bound_run, ratio_of, take_turns
from normfuse.sessions import AllowedChanges
from normfuse.sessions.creation import open_session
from normfuse.sessions.exact_products import with_exact_sums
from normfuse.sessions.rewriting import rewrite_copy
from normfuse.sessions.session_model import SessionModel, session_model
from normfuse.verification import Inputs, Sample
from normfuse.verification.budget import run_all
from normfuse.verification.comparison import Difference, differences, is_quantized
from normfuse.verification.samples import reference

if TYPE_CHECKING:
    import onnx_ir as ir
    import onnxruntime


@dataclasses.dataclass(frozen=True)
class Timing:
    """One way of running the model."""

    name: str
    median_ms: Seconds
    best_ms: Seconds
    quartiles_ms: tuple[Seconds, Seconds]
    runs: int
    speedup: float
    """Time of the original on ONNX Runtime's CPU provider / time of this one: median over the rounds."""
    speedup_quartiles: tuple[float, float]
    """The middle half of that ratio."""
    error: float
    """Against the original without any graph optimisation, see :mod:`normfuse.verification.comparison`; where sums of
    integers saturate, with exact ones."""
    max_abs: float
    """Largest absolute difference from the same."""
    fused_share: Share | None
    """Share of the kernel time that the fused nodes take; None without the execution provider."""
    gpu_work: GpuWork | None
    """What a run asks of the GPU; None where DirectML runs nothing."""


@dataclasses.dataclass(frozen=True)
class OperatorTime:
    """Kernel time of one operator, in all its nodes."""

    name: str
    """"normfuse": the nodes of the execution provider."""
    kind: Literal["product", "fused", "other"]
    before_ms: Seconds
    """Of a run of the original on ONNX Runtime's CPU provider."""
    after_ms: Seconds
    """Of a run of the rewritten model with normfuse, with dequantised weights where there are any."""
    before_nodes: int
    """How many of its nodes a run of the original executes."""
    after_nodes: int
    """The same of the rewritten model with normfuse."""


@dataclasses.dataclass(frozen=True)
class Saturation(Document):
    """ONNX Runtime's sums of uint8 x int8 saturate on this machine, in products of the original.

    All errors are then against the original with exact sums (:mod:`normfuse.verification.exact_sums`).
    """

    ALSO: ClassVar = ("message",)

    products: int
    """How many of them have weights large enough for that."""
    error: float
    """That of the original with exact sums, optimised by ONNX Runtime: what its error is where nothing saturates."""
    moved: float
    """The error of the original as it is: how far saturation moves its outputs here."""

    @property
    def message(self) -> str:
        """What it makes of the errors, in a few sentences."""
        return (
            "Errors are against exact sums of integers. On this processor (it has no VNNI) ONNX Runtime's sums of "
            f"uint8 x int8 may saturate in {self.products} of the products, with normfuse or without: outputs of the "
            f"original are off by {self.moved:.2g}; if none did, by {self.error:.2g}. "
            "normfuse.InferenceSession(model, exact_products=True) computes them exactly."
        )


@dataclasses.dataclass(frozen=True)
class BenchmarkReport(Report):
    """What :func:`benchmark` measured."""

    ALSO: ClassVar = ("bound",)

    model: str
    onnxruntime_version: str
    threads: int
    inputs: Mapping[str, tuple[int, ...]]
    """Input -> shape."""
    chain_share: Share
    """Share of the kernel time of the original that the nodes which are fused take, 0 to 1."""
    timings: tuple[Timing, ...]
    operators: tuple[OperatorTime, ...]
    """Where the kernel time goes, by the profiler; what takes longest with normfuse comes first."""
    quantization: Quantization | None
    """Of the original; None: it is not quantised."""
    session_plan: str
    """What :class:`normfuse.InferenceSession` makes of it, and why."""
    saturation: Saturation | None = None
    """What that makes of the errors; None: no sum of integers saturates."""

    @property
    def bound(self) -> float:
        """The speedup that no faster chain can exceed (Amdahl's law): that of a model whose chains take no time."""
        return 1 / (1 - self.chain_share) if self.chain_share < 1 else math.inf


@dataclasses.dataclass
class _Case:
    name: str
    run: Callable[[], None]
    error: float
    max_abs: float
    kernel_time: KernelTime | None
    gpu_work: GpuWork | None
    rounds: Rounds = dataclasses.field(default_factory=list)

    @property
    def times(self) -> list[float]:
        return [seconds for times in self.rounds for seconds in times]


def benchmark(
    model: ModelLike,
    *,
    threads: int = 1,
    seconds: float = 5.0,
    inputs: Inputs | None = None,
    sizes: Mapping[str, int] | None = None,
    ep_options: Mapping[str, Any] | None = None,
    optimized: ir.Model | None = None,
    progress: Callable[[str, int, int], None] | None = None,
) -> BenchmarkReport:
    """Measure the original with and without the execution provider, and the rewritten model with and without it.

    A model of which :func:`normfuse.InferenceSession` makes another one is measured in that way, too: with its weights
    dequantised, or chains on the blocked layout of convolutions.

    Args:
        model: Any form of model that :func:`normfuse.optimize` takes.
        threads: Threads inside an operator; 0: ONNX Runtime's default.
        seconds: How long to measure, all ways of running together.
        inputs: One sample: an ``.npz`` file or a mapping; None: made from the model's signature.
        sizes: Symbolic dimension -> size for the input made.
        ep_options: Options of the execution provider.
        optimized: What :func:`normfuse.optimize` made of the model; None: it is rewritten here.
        progress: Called with (what is being done, steps done, steps in all).

    Raises:
        InvalidModelError: The model cannot be read or loaded.
        OptionError: An argument has a value that it cannot have.
        HostVersionError: onnxruntime is missing or older than 1.24.
        LibraryLoadError: The native library cannot be loaded.
        VerificationError: No input could be made that the model accepts.
    """
    from normfuse.host.registration import ensure_registered

    check_threads("threads", threads)
    check_type("seconds", seconds, NUMBER)
    if not seconds > 0:
        raise OptionError(f"seconds is {seconds}; it must be above 0.")
    tell = progress or (lambda what, done, total: None)
    source = load_model(model)
    ensure_registered()  # before anything is measured
    tell("rewriting", 0, 0)
    fused = optimized or rewrite_copy(source).model
    tell("creating sessions", 0, 0)
    quantization = quantization_of(source)
    saturating = 0 if quantization is None else quantization.saturating
    exact = with_exact_sums(source.model)[0] if saturating else source.model
    fed, expected = reference(exact, source.name, inputs, 1, 0, sizes=sizes or {}, typical=True)
    setting = _Setting(source.name, threads, fed[0], expected[0], is_quantized(source.model))
    cases, usual, in_memory = setting.cases(source, fused, quantization, dict(ep_options or {}))
    tell("profiling", 0, 0)
    original = time_in_chains(source.model, source.name, fed[0], threads=threads)
    for case, rounds in zip(cases, take_turns([case.run for case in cases], seconds, tell), strict=True):
        case.rounds = rounds
    return BenchmarkReport(
        model=source.name,
        onnxruntime_version=import_host().__version__,
        threads=threads,
        inputs={name: tuple(array.shape) for name, array in fed[0].items()},
        chain_share=original.share,
        timings=tuple(_timing(case, cases[0]) for case in cases),
        operators=_operator_times(original, usual.kernel_time),
        quantization=quantization,
        session_plan=str(in_memory),
        saturation=None
        if not saturating
        else Saturation(saturating, setting.error(open_session(exact, source.name)), cases[0].error),
    )


@dataclasses.dataclass(frozen=True)
class _Setting:
    """What all ways of running a model have in common."""

    model_name: str
    threads: int
    sample: Sample
    expected: dict[str, Any]
    quantized: bool

    def cases(
        self, source: Source, fused: ir.Model, quantization: Quantization | None, options: dict[str, Any]
    ) -> tuple[list[_Case], _Case, SessionModel]:
        """Return all ways, the one whose operators are listed, and what a session makes of the original."""
        from normfuse.graph_rewrites import RewriteOptions

        cases = [
            self.case("original", source.model, None),
            self.case("original + normfuse", source.model, options),
            self.case("rewritten", fused, None),
            self.case("rewritten + normfuse", fused, options),
        ]
        on_cpu = options.get("backend") != "directml"
        allowed = AllowedChanges(fold_weights=quantization is not None, choose_products=on_cpu, blocked_layout=on_cpu)
        in_memory = session_model(source, import_host().SessionOptions(), allowed)
        portable = rewrite_copy(source, RewriteOptions(fold_weights="never" if quantization is None else "session"))
        if in_memory.model is not portable.model or portable.counts != rewrite_copy(source).counts:
            cases.append(self.case("normfuse.InferenceSession", in_memory, options))  # else it is the one before
        usual = cases[-1]
        if quantization is not None and quantization.saturating and on_cpu:
            made = session_model(source, import_host().SessionOptions(), allowed._replace(exact_products=True))
            cases.append(self.case("normfuse.InferenceSession, exact_products", made, options))
        return cases, usual, in_memory

    def case(self, name: str, model: ir.Model | SessionModel, ep_options: dict[str, Any] | None) -> _Case:
        session = open_session(model, self.model_name, ep_options=ep_options, threads=self.threads)
        found = self._differences(session)
        kernel_time = gpu_work = None
        if ep_options is not None:
            kernel_time = time_in_fused_nodes(
                model, self.model_name, self.sample, threads=self.threads, ep_options=ep_options
            )
            if ep_options.get("backend") == "directml":
                gpu_work = self._gpu_work(model, ep_options)
        return _Case(
            name=name,
            run=bound_run(session, self.sample),
            error=max(difference.error for difference in found),
            max_abs=max(difference.max_abs for difference in found),
            kernel_time=kernel_time,
            gpu_work=gpu_work,
        )

    def error(self, session: onnxruntime.InferenceSession) -> float:
        """Return how far its results are from those expected."""
        return max(difference.error for difference in self._differences(session))

    def _differences(self, session: onnxruntime.InferenceSession) -> list[Difference]:
        return differences([self.expected], run_all(session, [self.sample]), self.quantized)

    def _gpu_work(self, model: ir.Model | SessionModel, ep_options: dict[str, Any]) -> GpuWork:
        def create(further: dict[str, Any]) -> onnxruntime.InferenceSession:
            return open_session(model, self.model_name, ep_options={**ep_options, **further}, threads=self.threads)

        return count_gpu_work(create, self.sample)


def _operator_times(original: KernelTime, fused: KernelTime | None) -> tuple[OperatorTime, ...]:
    fused = fused or KernelTime(0, {}, {})
    before, after = original.operators, fused.operators

    def kind(name: str) -> Literal["product", "fused", "other"]:
        return "fused" if name == FUSED else "product" if name in PRODUCTS else "other"

    found = [
        OperatorTime(
            name,
            kind(name),
            before.get(name, 0.0),
            after.get(name, 0.0),
            original.nodes.get(name, 0),
            fused.nodes.get(name, 0),
        )
        for name in {**after, **before}
    ]
    return tuple(sorted(found, key=lambda one: (-one.after_ms, -one.before_ms, one.name)))


def _timing(case: _Case, original: _Case) -> Timing:
    low, median, high = statistics.quantiles(case.times, n=4)
    ratio = ratio_of(original.rounds, case.rounds)
    return Timing(
        name=case.name,
        median_ms=median * 1e3,
        best_ms=min(case.times) * 1e3,
        quartiles_ms=(low * 1e3, high * 1e3),
        runs=len(case.times),
        speedup=ratio.median,
        speedup_quartiles=(ratio.low, ratio.high),
        error=case.error,
        max_abs=case.max_abs,
        fused_share=None if case.kernel_time is None else case.kernel_time.share,
        gpu_work=case.gpu_work,
    )
