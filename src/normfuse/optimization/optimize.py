"""Rewriting a model, verifying the result and saying what was done."""

from __future__ import annotations

import normfuse.quick_imports  # noqa: F401 -- before what imports onnx_ir

# isort: split

import dataclasses
import functools
import os
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import onnx_ir as ir

from normfuse.arguments import PROGRESS, YES_OR_NO, check_type
from normfuse.documents import Report, Seconds
from normfuse.errors import OptionError, VerificationError
from normfuse.files.model_files import (
    ModelLike,
    Source,
    as_kind,
    load_model,
    model_size,
    save_model,
    tensors,
)
from normfuse.inspection.claims import Claims, ask_provider, claims_of
from normfuse.optimization.float_network import RemovalReport, measure_removal, unrounded
from normfuse.optimization.folding import FoldingReport, folding_report
from normfuse.optimization.site_examples import SiteExample, site_examples
from normfuse.sessions.rewriting import RewrittenModel, rewrite_copy
from normfuse.spec import REASONS
from normfuse.tuning import Tuned, TuningReport, check_tuning, tune_model
from normfuse.verification import VERIFY_SECONDS, Comparing, Inputs, VerificationReport, verify_models

if TYPE_CHECKING:
    from normfuse.graph_rewrites.engine.sites import Site

NOTHING_TO_GAIN = ("nothing_to_fuse", "not_profitable", "tuned_off")

Target = Literal["portable", "custom-op", "standard"]
Progress = Callable[[str, int, int], None]
"""Called with (what is being done, steps done, steps in all; 0 if not known)."""


@dataclasses.dataclass(frozen=True)
class OptimizationReport(Report):
    """What :func:`optimize` did and what it left."""

    model: str
    target: Target
    sites: tuple[Site, ...]
    rules: Mapping[str, int]
    """Rewrite rule -> how often it was applied; EinsumAsMatMul, SubtractionAsAddition -> how many Einsum and Sub
    were written as MatMul and Add."""
    operators_before: Mapping[str, int]
    operators_after: Mapping[str, int]
    """Operator ("domain::" in front of other domains than ONNX's) -> nodes, subgraphs included, function bodies not."""
    bytes_before: int
    bytes_after: int
    """Size of the graph and its weights."""
    rewrite_seconds: Seconds
    verification: VerificationReport | None
    warnings: tuple[str, ...]
    examples: tuple[SiteExample, ...] = ()
    """The original nodes of one site of each kind that was fused."""
    claims: Claims | None = None
    """Which of the fused sites the execution provider runs on this machine; None: it was not asked."""
    tuning: TuningReport | None = None
    """What was measured to decide that; None: it was not."""
    folding: FoldingReport | None = None
    """What became of quantised weights; None: they were not to be folded."""
    removal: RemovalReport | None = None
    """What became of quantised activations; None: they were not to be removed."""

    @property
    def fused(self) -> tuple[Site, ...]:
        """The sites that were fused."""
        return tuple(site for site in self.sites if site.fused_into is not None)

    @property
    def left(self) -> tuple[Site, ...]:
        """The sites that something kept from being fused: each has its reason."""
        return tuple(site for site in self.sites if site.fused_into is None and not nothing_to_gain(site))

    def __repr__(self) -> str:
        """Return a line: all fields together are a page for each hundred sites."""
        verified = "none" if self.verification is None else self.verification.result
        sites = f"{len(self.fused)} of {len(self.fused) + len(self.left)} sites fused"
        return f"<OptimizationReport of {self.model}: target {self.target}, {sites}, verification: {verified}>"


class OptimizationError(VerificationError):
    """An optimised model differs from the original, or fewer of its sites were fused than required; it is not kept.

    Attributes:
        report: What was done and found, the verification's report included.
    """

    def __init__(self, message: str, report: OptimizationReport) -> None:
        super().__init__(message)
        self.report = report


@dataclasses.dataclass(frozen=True)
class OptimizationResult:
    """An optimised model, with the report on it."""

    report: OptimizationReport
    _model: ir.Model
    source: Source

    def __repr__(self) -> str:
        """Return a line: neither the model nor the report has its place in one."""
        return f"<OptimizationResult: {self.report!r}>"

    @property
    def in_memory(self) -> ir.Model:
        """The optimised model as it lies in memory, which must not be changed."""
        return self._model

    @functools.cached_property
    def model(self) -> Any:
        """The optimised model, of the kind that was given (a path gives a ModelProto).

        External data stays where it is: a ModelProto made from a path refers to the files beside that path.
        """
        return as_kind(self._model, self.source)

    def with_claims(self) -> OptimizationResult:
        """Return the same with ``report.claims``, for which a session is created if none was."""
        if self.report.claims is not None:
            return self
        claims = ask_provider(self._model, self.source.name, self.report.sites)
        return dataclasses.replace(self, report=dataclasses.replace(self.report, claims=claims))

    def save(self, path: str | os.PathLike[str]) -> int:
        """Write the optimised model, under a temporary name first, so that nothing half-written is left behind.

        A model with external data gets one file ``<name>.data`` beside it.

        Args:
            path: The file to write; not the original's.

        Returns:
            The number of bytes written, external data included.

        Raises:
            OptionError: The file cannot be written there.
        """
        return save_model(self._model, path, never=self.source)


def optimize(
    model: ModelLike,
    *,
    target: Target = "portable",
    verify: bool = True,
    inputs: Inputs | None = None,
    samples: int | None = None,
    max_error: float | None = None,
    verify_seconds: float = VERIFY_SECONDS,
    allow_requantization_removal: bool = False,
    remove_quantization: bool = False,
    fold_weights: bool | None = None,
    require_fused: int | Literal["all"] | None = None,
    tune: float | None = None,
    tune_threads: int = 1,
    progress: Progress | None = None,
) -> OptimizationResult:
    """Fuse the normalisation chains of a model, and verify that it still computes the same.

    An Einsum that MatMul computes faster becomes one, behind Transposes where needed, and a Sub that ONNX Runtime makes
    part of a convolution as an Add becomes one. Nothing else changes.

    Args:
        model: A path, bytes, onnx.ModelProto, onnx_ir.Model, or the torch.onnx.ONNXProgram that
            ``torch.onnx.export(..., dynamo=True)`` returns. It is never changed.
        target: "portable": calls of functions that the model brings along, which run everywhere, and fast where
            normfuse is; "custom-op": plain operators of normfuse, for hosts that only use
            ``register_custom_ops_library``; "standard": canonical ONNX operators only.
        verify: Compare the result with the original (see :func:`normfuse.verify`). Where that stays undecided, the
            report's ``verification.result`` is "undecided", and no exception is raised.
        inputs: Inputs for the verification: one or more ``.npz`` files or mappings of input name to array; None: made
            from the model's signature.
        samples: How many inputs to make; None: 4, or 16 for quantised models.
        max_error: The error to allow instead of what the model's types explain.
        verify_seconds: How long the verification may take.
        allow_requantization_removal: Also fuse where that removes a quantisation inside a chain, which changes results
            by up to one quantisation step.
        remove_quantization: Remove the Q/DQ pairs (QuantizeLinear, DequantizeLinear) of activations, and fold the
            weights: the float network of a quantised model. Results change. The model is verified against the original
            without its rounding; the change of the results is measured (``report.removal``).
        fold_weights: Dequantise quantised weights once instead of in every run, where the operator that reads them runs
            in float and ONNX Runtime leaves float weights. Results do not change; the model grows. None: only if
            ``tune`` measures that it is faster, or with ``remove_quantization``. With ``tune``, True is None.
        require_fused: Fail unless at least so many sites are fused; "all": every one that was found, those excepted
            that have nothing beside them to be fused with.
        tune: Seconds to measure for, on this machine, which groups of chains the execution provider should run; the
            decisions are stored in the model. None: its cost model decides, wherever the model runs. Where the
            rewritten model is slower than the original whatever runs, the result is the original.
        tune_threads: Threads inside an operator to measure with; 0: ONNX Runtime's default.
        progress: Called with (what is being done, steps done, steps in all).

    Returns:
        The optimised model and the report.

    Raises:
        InvalidModelError: The model cannot be read or loaded.
        OptionError: An argument has a value that it cannot have.
        OptimizationError: The result differs from the original, or too few sites were fused.
        VerificationError: No input could be made that the model accepts, or verification is impossible.
    """
    comparing = Comparing(inputs, samples, max_error, seconds=verify_seconds)
    options = _Options(
        *(target, verify, comparing, allow_requantization_removal, remove_quantization, fold_weights),
        *(require_fused, tune, tune_threads, progress),
    )
    options.check()
    return options.applied_to(load_model(model))


@dataclasses.dataclass(frozen=True)
class _Options:
    """The arguments of :func:`optimize`."""

    target: Target
    verify: bool
    comparing: Comparing
    allow_requantization_removal: bool
    remove_quantization: bool
    fold_weights: bool | None
    require_fused: int | Literal["all"] | None
    tune: float | None
    tune_threads: int
    progress: Progress | None

    def check(self) -> None:
        """Raise OptionError where one has a value that it cannot have."""
        for name in ("verify", "allow_requantization_removal", "remove_quantization"):
            check_type(name, getattr(self, name), YES_OR_NO)
        check_type("fold_weights", self.fold_weights, YES_OR_NO, optional=True)
        check_type("progress", self.progress, PROGRESS, optional=True)
        self.comparing.check()
        if self.target not in ("portable", "custom-op", "standard"):
            raise OptionError(f"target is '{self.target}'; it must be portable, custom-op or standard.")
        count = self.require_fused
        if not (count in (None, "all") or (isinstance(count, int) and count >= 0)):
            raise OptionError(f"require_fused is '{count}'; it must be a number from 0 on, or 'all'.")
        check_tuning(self.tune, self.tune_threads, self.target)

    def applied_to(self, source: Source) -> OptimizationResult:
        """Rewrite a model, tune and verify the result as far as that is asked for."""
        measures_folding = self.tune is not None and not self.remove_quantization and self.fold_weights is not False
        folds = self.fold_weights if self.fold_weights is not None else self.remove_quantization
        found = self._rewritten(source, folds=folds and not measures_folding)
        report = _report_on(source, found, self.target)
        if folds and not measures_folding:
            report = dataclasses.replace(report, folding=folding_report(found.weights, written=True))
        _require_fused(report, self.require_fused)
        optimized = found.model
        if self.tune is not None:
            folded = self._rewritten(source, folds=True) if measures_folding else None
            found, optimized, report = self._tuned(source, found, folded, report)
            _require_fused(report, self.require_fused)
        removes = self.remove_quantization and (report.tuning is None or report.tuning.written == "rewritten")
        if self.verify:
            report = self._verified(source, optimized, report, found, removes=removes)
        elif removes:
            done = found.quantization
            report = dataclasses.replace(report, removal=RemovalReport(done.removed, done.clipped, tuple(done.kept)))
        return OptimizationResult(report, optimized, source)

    def _rewritten(self, source: Source, *, folds: bool) -> RewrittenModel:
        from normfuse.graph_rewrites import RewriteOptions

        tell = self.progress
        options = RewriteOptions(
            self.target,
            allow_requantization_removal=self.allow_requantization_removal,
            remove_quantization=self.remove_quantization,
            fold_weights="file" if folds else "never",
        )
        counted = None if tell is None else lambda done, total: tell("rewriting", done, total)
        return rewrite_copy(source, options, progress=counted)

    def _tuned(
        self, source: Source, found: RewrittenModel, folded: RewrittenModel | None, report: OptimizationReport
    ) -> tuple[RewrittenModel, ir.Model, OptimizationReport]:
        """Tune a rewritten model, or the one with ``folded`` weights where that is faster."""
        assert self.tune is not None
        if folded is not None and not (folded.weights.folded or folded.weights.lookups):
            folded = None
        tuned = tune_model(
            source,
            found.model,
            folded=None if folded is None else folded.model,
            seconds=self.tune,
            threads=self.tune_threads,
            inputs=self.comparing.inputs,
            progress=self.progress,
        )
        if folded is not None and tuned.folded:
            report, found = _report_on(source, folded, self.target), folded
        report = _with_tuning(report, tuned)
        if folded is not None:
            told = folding_report(folded.weights, written=tuned.folded, gain=tuned.gain_of_folding)
            report = dataclasses.replace(report, folding=told)
        return found, tuned.model, report

    def _verified(
        self, source: Source, optimized: ir.Model, report: OptimizationReport, found: RewrittenModel, *, removes: bool
    ) -> OptimizationReport:
        """Return the report with the comparison in it; ``removes``: the result is without quantised activations.

        Raises:
            OptimizationError: They differ.
        """
        tell = self.progress or (lambda what, done, total: None)
        expected, name = source.model, source.name
        if removes:
            kept = {pair.name for pair in found.quantization.kept}
            expected = unrounded(source.model, kept, frozenset(found.quantization.unclipped))
            name = f"{source.name} without its rounding"
        with tempfile.TemporaryDirectory(prefix="normfuse.") as folder:
            claim_report = Path(folder) / "claims.jsonl"
            verification = verify_models(
                expected,
                optimized,
                self.comparing,
                names=(name, "the optimised model"),
                sites=report.fused,
                progress=None if self.progress is None else lambda what: tell(what, 0, 0),
                claim_report=claim_report,
            )
            claims = claims_of(found.sites, claim_report) if claim_report.exists() else None
        report = dataclasses.replace(report, verification=verification, claims=claims)
        if verification.result == "differ":
            raise OptimizationError(f"{name}: {verification.message}", report)
        if not removes:
            return report
        tell("comparing with the quantised original", 0, 0)
        removal = measure_removal(source, optimized, found.quantization, self.comparing)
        return dataclasses.replace(report, removal=removal)


def _report_on(source: Source, found: RewrittenModel, target: Target) -> OptimizationReport:
    """Return what there is to say of a rewritten model before it has been run."""
    return OptimizationReport(
        model=source.name,
        target=target,
        sites=found.sites,
        rules=found.counts,
        operators_before=operator_counts(source.model),
        operators_after=operator_counts(found.model),
        bytes_before=source.size,
        bytes_after=model_size(found.model),
        rewrite_seconds=found.seconds,
        verification=None,
        warnings=tuple(weight_warnings(source.model)),
        examples=site_examples(source.model, found.sites),
    )


def inspect(model: ModelLike, *, allow_requantization_removal: bool = False) -> list[Site]:
    """Return every normalisation, activation, and quantisation site of a model, and what would become of it.

    Args:
        model: Any form of model that :func:`optimize` takes; it is not changed.
        allow_requantization_removal: As for :func:`optimize`.

    Raises:
        InvalidModelError: The model cannot be read.
    """
    check_type("allow_requantization_removal", allow_requantization_removal, YES_OR_NO)
    return list(_found(load_model(model), allow_requantization_removal).sites)


def inspect_with_claims(model: ModelLike, *, allow_requantization_removal: bool = False) -> tuple[list[Site], Claims]:
    """Return what :func:`inspect` does, and which of the sites the execution provider would run on this machine."""
    source = load_model(model)
    found = _found(source, allow_requantization_removal)
    return list(found.sites), ask_provider(found.model, source.name, found.sites)


def _found(source: Source, allow_requantization_removal: bool) -> RewrittenModel:
    from normfuse.graph_rewrites import RewriteOptions

    return rewrite_copy(source, RewriteOptions(allow_requantization_removal=allow_requantization_removal))


def nothing_to_gain(site: Site) -> bool:
    """Say whether a site was left because there is nothing beside it to fuse it with, or no time to be won."""
    return site.fused_into is None and site.reason in NOTHING_TO_GAIN


def operator_counts(model: ir.Model) -> dict[str, int]:
    """Return operator -> number of nodes, most frequent first; subgraphs count, function bodies do not."""
    counts = Counter(
        f"{node.domain}::{node.op_type}" if node.domain not in ("", "ai.onnx") else node.op_type
        for node in ir.traversal.RecursiveGraphIterator(model.graph)
    )
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def _with_tuning(report: OptimizationReport, tuned: Tuned) -> OptimizationReport:
    """Return the report on a model with what tuning did to it."""
    report = dataclasses.replace(report, tuning=tuned.report)
    if tuned.report.written == "rewritten":
        return report
    reason = REASONS["tuned_off"]
    sites = tuple(
        site
        if site.fused_into is None
        else dataclasses.replace(
            site,
            fused_into=None,
            reason=reason.code,
            message=reason.message(node=f"'{site.name}'"),
            advice=reason.advice,
        )
        for site in report.sites
    )
    return dataclasses.replace(
        report,
        sites=sites,
        rules={},
        operators_after=operator_counts(tuned.model),
        bytes_after=model_size(tuned.model),
        examples=(),
    )


def _require_fused(report: OptimizationReport, require_fused: int | Literal["all"] | None) -> None:
    fused, found = len(report.fused), len(report.fused) + len(report.left)
    if require_fused == "all" and fused < found:
        left = report.left[0]
        raise OptimizationError(
            f"{report.model}: {fused} of {found} sites are fused, and all were required; '{left.name}' is left "
            f"because {left.message}.",
            report,
        )
    if isinstance(require_fused, int) and fused < require_fused:
        raise OptimizationError(f"{report.model}: {fused} sites are fused, and {require_fused} were required.", report)


_PIECE = 1 << 20  # elements that are looked at at once, so that a large table takes no further memory


def weight_warnings(model: ir.Model) -> list[str]:
    """Return a warning if weights hold NaN or infinity (attention masks of 0 and minus infinity excepted)."""
    bad = []
    for tensor in tensors(model):
        if tensor.dtype.is_floating_point() and tensor.dtype.bitwidth >= 16 and tensor.size > 1:
            values = tensor.numpy().ravel()
            pieces = [values[start : start + _PIECE] for start in range(0, values.size, _PIECE)]
            if not all(np.isfinite(piece).all() for piece in pieces) and not all(map(_is_mask, pieces)):
                bad.append(tensor.name or "(without a name)")
    if not bad:
        return []
    names = ", ".join(f"'{name}'" for name in bad[:3]) + (f" and {len(bad) - 3} more" if len(bad) > 3 else "")
    return [f"NaN or infinity in {names}: if that is not meant, the file may be damaged."]


def _is_mask(values: np.ndarray) -> bool:
    """Attention masks hold 0 and minus infinity on purpose."""
    finite = np.isfinite(values)
    return bool((values[finite] == 0).all() and (values[~finite] == -np.inf).all())
