"""What tuning measured and decided."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from normfuse.documents import Document, Seconds
from normfuse.measuring.timing import Ratio
from normfuse.tuning.decisions import Others

Written = Literal["rewritten", "original"]


@dataclasses.dataclass(frozen=True)
class GroupResult:
    """One group of chains: of the same operators, type and shape, in the same kind of place."""

    group: str
    """As the claim report names it."""
    sites: int
    on: bool
    """Whether the execution provider runs them."""
    by_cost_model: bool
    """What it would do without tuning."""
    gain: float | None
    """How many times as fast the whole model is with the group on as with it off; None: not measured by itself."""
    error: float | None
    """What the gain may be off by; None: not measured."""
    measured_with: int
    """How many groups were on and off together in that measurement, this one included."""


@dataclasses.dataclass(frozen=True)
class TuningReport(Document):
    """What :func:`normfuse.optimize` with ``tune`` measured and decided."""

    ALSO: ClassVar = ("final_noise",)

    isa: str
    """The instruction set of the kernels; the decisions hold for it."""
    onnxruntime: str
    """The version of ONNX Runtime; the decisions hold for its first two numbers."""
    threads: int
    clock: Annotated[str, (("enum", ("processor time", "time that passes")),)]
    """What was compared: "processor time" or "time that passes"."""
    seconds: Seconds
    """What it took."""
    noise: float
    """By so much two sessions on the same model differ; a smaller difference decides nothing."""
    others: Others
    """What becomes of groups that are not listed, should the execution provider see any."""
    starts: Mapping[str, Ratio]
    """The speed of the rewritten model against the original without normfuse before the groups were tried: with every
    group "off", with what the cost model takes ("cost"), with every group "on"."""
    groups: tuple[GroupResult, ...]
    written: Written
    """Which model was written: the original, with every group off, where the rewritten one was slower."""
    original_again: Ratio
    """The last comparison: a second session on the original against the first; it shows what noise is."""
    speedup: Ratio
    """The last comparison: the model that was written, with normfuse, against the original without."""

    @property
    def final_noise(self) -> float:
        """What the last comparison cannot tell apart."""
        return max(abs(self.original_again.median - 1), self.original_again.error, self.speedup.error)
