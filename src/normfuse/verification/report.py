"""The report of a verification."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, ClassVar, Literal, TypeAlias

from normfuse.documents import BY_NAME, Document, Seconds

if TYPE_CHECKING:
    from normfuse.graph_rewrites.engine.sites import Site
    from normfuse.verification.comparison import OutputComparison

Result: TypeAlias = Literal["agree", "differ", "undecided"]


@dataclasses.dataclass(frozen=True)
class ComparedRun(Document):
    """One way of running the optimised model, against the original."""

    ALSO: ClassVar = ("passed", "error")

    name: str
    """"with normfuse" or "without normfuse" (the portable bodies, run by ONNX Runtime alone)."""
    outputs: tuple[OutputComparison, ...]
    samples: int = 0
    """The number of compared samples."""

    @property
    def passed(self) -> bool:
        """Whether every output lies within its tolerance; sites decide (``diff_sites``), where there are any."""
        return all(output.passed for output in self.outputs)

    @property
    def error(self) -> float:
        """The largest error of any output."""
        return max((output.error for output in self.outputs), default=0.0)


@dataclasses.dataclass(frozen=True)
class ComparedSites:
    """The sites at which the two models differ as graphs, each run by itself on the original's own values."""

    found: int
    right: int
    """Those whose results are the original's within rounding, or as near to the exact ones (in float64), by every way
    of running."""
    samples: int
    """The number of inputs on which they were compared."""
    error: float
    """The largest difference from the original at those that are right."""
    same_nodes: int
    """Nodes that both models have, with the same weights and inputs: they need no comparison."""
    first_difference: str | None = None
    """Name of the first value that differs."""

    @property
    def message(self) -> str:
        """The result in one sentence."""
        sites = f"{self.found} rewritten sites" if self.found != 1 else "1 rewritten site"
        rest = f"the other {self.same_nodes:,} nodes are the original's own"
        if self.found == 0:
            return f"No site was rewritten; {rest}."
        return (
            f"Compared one by one on the original's own values, {self.right} of {sites} agree (largest difference "
            f"{self.error:.2g}); {rest}."
        )


@dataclasses.dataclass(frozen=True)
class Saturation:
    """ONNX Runtime's sums of uint8 x int8 saturate on this machine, in products of one of the models at least.

    Then both are compared with weights of uint8, with which they do not (:mod:`normfuse.verification.exact_sums`).
    """

    products: int
    """How many products of a model have weights large enough for that."""
    inexact: int
    """How many of them saturate in the compared forms, too, because their weights are not constant."""
    error: float | None = None
    """How far results of the optimised model as it is are from those with exact sums here, on the first sample and as
    the first of the runs; None: not measured."""

    @property
    def message(self) -> str:
        """What was done about it, in a few sentences."""
        text = (
            "This processor has no VNNI: ONNX Runtime's sums of uint8 x int8 saturate on it, and weights of "
            f"{self.products} products are large enough for that. Both models were compared with exact sums."
        )
        if self.inexact:
            text += (
                f" But {self.inexact} of the products have no constant weights, and saturate in both: a difference "
                "between the models may be hidden by that, or come of it."
            )
        if self.error is not None:
            text += (
                f" As it is, the optimised model gives results on this processor that are {self.error:.2g} from those "
                "with exact sums, on the first sample."
            )
        return text


@dataclasses.dataclass(frozen=True)
class VerificationReport(Document):
    """The original, unoptimised by ONNX Runtime, against the optimised model on the same inputs."""

    ALSO: ClassVar = ("passed", "error", "message")

    result: Result
    """"agree"; "differ"; or "undecided": nothing could be compared, or not all in the time given."""
    samples: int
    """How many inputs decided it."""
    runs: tuple[ComparedRun, ...]
    quantized: bool
    """The rule for quantised models was applied (see :mod:`normfuse.verification.comparison`)."""
    seconds: Seconds = 0.0
    """How long the verification took."""
    undecided_because: str = ""
    """If it is undecided: the reason, as a sentence."""
    diff_sites: ComparedSites | None = None
    """The comparison site by site, which decides; None where outputs do: by the user's own limit, or in no time."""
    warnings: tuple[str, ...] = ()
    first_difference: str | None = None
    """If it failed: name of the first value that differs."""
    first_site: Site | None = dataclasses.field(default=None, metadata=BY_NAME)
    """If it failed: the first fused site whose result differs."""
    saturation: Saturation | None = None
    """If sums of 8-bit products saturate on this machine: what was done about it; None: they do not."""

    @property
    def passed(self) -> bool:
        """Whether the results agree."""
        return self.result == "agree"

    @property
    def error(self) -> float:
        """The largest error of any output in any run."""
        return max((run.error for run in self.runs), default=0.0)

    @property
    def message(self) -> str:
        """The result in one or two sentences."""
        if self.result == "agree" and self.diff_sites is not None and not all(run.passed for run in self.runs):
            return (
                f"At each of {self.diff_sites.found} rewritten sites the results agree on {self.samples} samples. An "
                f"output is {self.error:.2g} from the original's: the model amplifies rounding."
            )
        if self.result == "agree":
            return f"The results agree on {self.samples} samples (largest error {self.error:.2g})."
        if self.result == "undecided":
            parts = (f"Undecided: {self.undecided_because}", "" if self.diff_sites is None else self.diff_sites.message)
            return " ".join(part for part in parts if part)
        return self._difference

    @property
    def _difference(self) -> str:
        failed = ((run, output) for run in self.runs for output in run.outputs if not output.passed)
        run, output = next(failed, (None, None))
        site = None if self.first_site is None else f"site '{self.first_site.name}' ({self.first_site.description})"
        if site is None and self.first_difference is not None:
            site = f"value '{self.first_difference}'"
        if run is None or output is None:
            return f"Compared by itself on the original's own values, {site} differs."
        text = f"Output '{output.name}' differs {run.name}: "
        text += output.note or f"error {output.error:.3g}, allowed {output.tolerance:.3g}"
        if output.error <= output.tolerance:
            text += ", but the largest element of a row is another one"
        return f"{text}; first at {site}." if site is not None else f"{text}."

    def __repr__(self) -> str:
        """Return a line."""
        return f"<VerificationReport: {self.result}, {self.samples} samples, largest error {self.error:.2g}>"
