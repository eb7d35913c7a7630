"""What a verification found."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from normfuse.graph_rewrites.sites import Site
    from normfuse.verification.comparison import OutputComparison

__all__ = ["ComparedRun", "VerificationReport"]


@dataclasses.dataclass(frozen=True)
class ComparedRun:
    """One way of running the optimised model, against the original."""

    name: str
    """"with normfuse" or "without normfuse" (the portable bodies, run by ONNX Runtime alone)."""
    outputs: tuple[OutputComparison, ...]
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
            f"step off {self.name}, which moves an output by {self.error_with_ties:.2g}; with these values as the "
            "original has them, everything agrees."
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
class VerificationReport:
    """The original, unoptimised by ONNX Runtime, against the optimised model on the same inputs."""

    passed: bool
    samples: int
    runs: tuple[ComparedRun, ...]
    quantized: bool
    """The rule for quantised models was applied (see :mod:`normfuse.verification.comparison`)."""
    noise: float | None
    """The error between ONNX Runtime's own optimisation levels on the same inputs; None where it was not needed."""
    warnings: tuple[str, ...] = ()
    first_difference: str | None = None
    """If it failed: name of the first value that differs."""
    first_site: Site | None = None
    """If it failed: the first fused site whose result differs."""

    @property
    def error(self) -> float:
        """The largest error of any output in any run."""
        return max((run.error for run in self.runs), default=0.0)

    @property
    def message(self) -> str:
        """The result in one sentence."""
        if self.passed:
            noise = f"; ONNX Runtime's own optimisation levels are {self.noise:.2g} apart" if self.noise else ""
            return f"The results agree on {self.samples} samples (largest error {self.error:.2g}{noise})."
        run, output = next((run, output) for run in self.runs for output in run.outputs if not output.passed)
        text = f"Output '{output.name}' differs {run.name}: "
        text += output.note or f"error {output.error:.3g}, allowed {output.tolerance:.3g}"
        if output.error <= output.tolerance:
            text += ", but the largest element of a row is another one"
        if self.first_site is not None:
            text += f"; first at site '{self.first_site.name}' ({self.first_site.description})"
        elif self.first_difference is not None:
            text += f"; first at value '{self.first_difference}'"
        return text + "."

    def to_dict(self) -> dict[str, Any]:
        """Return the report as data for JSON."""
        return {
            "passed": self.passed,
            "message": self.message,
            "samples": self.samples,
            "error": self.error,
            "quantized": self.quantized,
            "noise": self.noise,
            "runs": [
                {
                    "name": run.name,
                    "passed": run.passed,
                    "error": run.error,
                    "at_ties": run.at_ties,
                    "quantized_values": run.quantized_values,
                    "error_with_ties": run.error_with_ties,
                    "outputs": [dataclasses.asdict(output) for output in run.outputs],
                }
                for run in self.runs
            ],
            "warnings": list(self.warnings),
            "first_difference": self.first_difference,
            "first_site": None if self.first_site is None else self.first_site.name,
        }
