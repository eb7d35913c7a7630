"""What a verification found."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, ClassVar, Literal, TypeAlias

from normfuse.documents import BY_NAME, Document, Seconds

if TYPE_CHECKING:
    from normfuse.graph_rewrites.sites import Site
    from normfuse.verification.comparison import OutputComparison

__all__ = ["ComparedPlaces", "ComparedRun", "Result", "Saturation", "VerificationReport"]

Result: TypeAlias = Literal["agree", "differ", "undecided"]


@dataclasses.dataclass(frozen=True)
class ComparedRun(Document):
    """One way of running the optimised model, against the original."""

    ALSO: ClassVar = ("passed", "error")

    name: str
    """"with normfuse" or "without normfuse" (the portable bodies, run by ONNX Runtime alone)."""
    outputs: tuple[OutputComparison, ...]
    samples: int = 0
    """How many were compared."""
    at_ties: int = 0
    """Quantised values that are next to a rounding tie and went the other way. Where there are any, ``outputs`` are
    those of a run on the original's quantised values."""
    quantized_values: int = 0
    """What ``at_ties`` is counted among; 0 where that was not needed."""
    error_with_ties: float = 0.0
    """The largest error of any output in a plain run; 0 where there are no ties."""

    @property
    def ties_message(self) -> str:
        """What was done about rounding ties, in one sentence."""
        return (
            f"{self.at_ties} of {self.quantized_values:,} quantised values are next to a rounding tie and come out one "
            f"step off {self.name}. With all as it is, an output is {self.error_with_ties:.2g} from the original's; "
            f"with the original's quantised values it is {self.error:.2g}, which is within its tolerance."
        )

    @property
    def passed(self) -> bool:
        """Whether every output lies within its tolerance."""
        return all(output.passed for output in self.outputs)

    @property
    def error(self) -> float:
        """The largest error of any output."""
        return max((output.error for output in self.outputs), default=0.0)


@dataclasses.dataclass(frozen=True)
class ComparedPlaces:
    """The places at which the two models differ as graphs, each run by itself on the original's own values."""

    found: int
    compared: int
    """On inputs on which the original itself is steady there, by every way of running."""
    error: float
    """The largest of those that agree."""
    same_nodes: int
    """Nodes that both models have, with the same weights and inputs: they need no comparison."""
    first_difference: str | None = None
    """Name of the first value that differs."""

    @property
    def message(self) -> str:
        """The result in one sentence."""
        places = f"{self.found} rewritten places" if self.found != 1 else "1 rewritten place"
        rest = f"the other {self.same_nodes:,} nodes are the original's own"
        if self.found == 0:
            return f"No place was rewritten; {rest}."
        return (
            f"Compared one by one on the original's own values, {self.compared} of {places} agree (largest error "
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
    """How many of them saturate in what was compared, too, because their weights are not constant."""
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
    """"agree"; "differ"; or "undecided": the original itself answers to rounding with differences as large, or nothing
    could be compared in the time given."""
    samples: int
    """How many inputs decided it."""
    runs: tuple[ComparedRun, ...]
    quantized: bool
    """The rule for quantised models was applied (see :mod:`normfuse.verification.comparison`)."""
    noise: float | None
    """How far the original's own results are apart on the same inputs, by ONNX Runtime's optimisation levels and with
    values moved by one unit in the last place; None where it was not needed."""
    seconds: Seconds = 0.0
    """How long the verification took."""
    undecided_because: str = ""
    """Where it is undecided: why, as a sentence."""
    places: ComparedPlaces | None = None
    """The comparison place by place; None where it was not needed, or not possible."""
    warnings: tuple[str, ...] = ()
    first_difference: str | None = None
    """If it failed: name of the first value that differs."""
    first_site: Site | None = dataclasses.field(default=None, metadata=BY_NAME)
    """If it failed: the first fused site whose result differs."""
    saturation: Saturation | None = None
    """Where sums of integers saturate on this machine: what was done about it; None: they do not."""
    lost_quantizers: tuple[str, ...] = ()
    """Names of the original's QuantizeLinear nodes that the optimised model does not do any more: then it differs,
    whatever the numbers are."""

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
        if self.result == "agree":
            noise = f"; the original's own results are {self.noise:.2g} apart" if self.noise else ""
            return f"The results agree on {self.samples} samples (largest error {self.error:.2g}{noise})."
        if self.result == "undecided":
            parts = (f"Undecided: {self.undecided_because}", "" if self.places is None else self.places.message)
            return " ".join(part for part in parts if part)
        return self._difference

    @property
    def _difference(self) -> str:
        failed = ((run, output) for run in self.runs for output in run.outputs if not output.passed)
        run, output = next(failed, (None, None))
        if (run is None or output is None) and self.lost_quantizers:
            more = f" and {len(self.lost_quantizers) - 1} others" if len(self.lost_quantizers) > 1 else ""
            return (
                f"The optimised model does not quantise as QuantizeLinear '{self.lost_quantizers[0]}'{more} of the "
                "original does: too few nodes in it have that scale."
            )
        if run is None or output is None:
            return f"Value '{self.first_difference}' differs, compared by itself on the original's own values."
        text = f"Output '{output.name}' differs {run.name}: "
        text += output.note or f"error {output.error:.3g}, allowed {output.tolerance:.3g}"
        if output.error <= output.tolerance:
            text += ", but the largest element of a row is another one"
        if self.first_site is not None:
            text += f"; first at site '{self.first_site.name}' ({self.first_site.description})"
        elif self.first_difference is not None:
            text += f"; first at value '{self.first_difference}'"
        return text + "."

    def __repr__(self) -> str:
        """Return a line."""
        return f"<VerificationReport: {self.result}, {self.samples} samples, largest error {self.error:.2g}>"
