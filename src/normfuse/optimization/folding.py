"""Quantised weights that were dequantised once: what that costs in bytes, and what it brings in time."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from normfuse.documents import Document, SignedInt

if TYPE_CHECKING:
    from normfuse.graph_rewrites.engine.passes import FoldedWeights
    from normfuse.measuring.timing import Ratio


@dataclasses.dataclass(frozen=True)
class FoldingReport(Document):
    """What became of quantised weights where :func:`normfuse.optimize` was to fold them."""

    written: bool
    """Whether the model has them folded; False: measured not to be faster."""
    folded: int
    """DequantizeLinear of weights that are done once instead of in every run."""
    tables: int
    """Quantised tables that Gather reads, so that only the rows that were read are dequantised."""
    left: int
    """Those left because ONNX Runtime would quantise the float weights again, with other numbers."""
    bytes_added: SignedInt
    """By which the model grows."""
    gain: Ratio | None
    """The speed with folded weights against that without, with normfuse; None: it was not measured."""

    @property
    def message(self) -> str:
        """The result in a few sentences; empty: there was nothing to fold."""
        parts = []
        if self.folded or self.tables:
            verb = "are" if self.written else "would be"
            tables = f", {self.tables} tables {verb} looked up as integers" if self.tables else ""
            grown = "more" if self.bytes_added >= 0 else "less"
            parts.append(
                f"{self.folded} quantised weights {verb} dequantised once instead of in every run{tables}: "
                f"{abs(self.bytes_added):,} bytes {grown}{self._speed}."
            )
        if self.left:
            parts.append(
                f"{self.left} are left, because ONNX Runtime would quantise them again in a session on the file; "
                "normfuse.InferenceSession dequantises them once as well."
            )
        return " ".join(parts)

    @property
    def _speed(self) -> str:
        if self.gain is None:
            return ""
        kept = "" if self.written else "; as that is no gain beyond the noise, they stay as they are"
        return f", {self.gain.median:.3f} times the speed (+/- {self.gain.error:.3f}){kept}"


def folding_report(weights: FoldedWeights, *, written: bool, gain: Ratio | None = None) -> FoldingReport:
    """Return the report on what the rewriting pass did about the weights."""
    return FoldingReport(
        written=written,
        folded=weights.folded,
        tables=weights.lookups,
        left=weights.left,
        bytes_added=weights.bytes_added,
        gain=gain,
    )
