"""A gate for pipelines: is a model as it should be before it is shipped?"""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import TYPE_CHECKING, ClassVar, Literal

from normfuse.documents import Report
from normfuse.errors import OptionError
from normfuse.files.model_files import ModelLike, load_model
from normfuse.optimization.optimize import inspect, nothing_to_gain, weight_warnings
from normfuse.verification import VERIFY_SECONDS, Inputs, verify

if TYPE_CHECKING:
    import onnx_ir as ir

    from normfuse.graph_rewrites.engine.sites import Site
    from normfuse.verification import VerificationReport

Level = Literal["error", "warning", "notice"]


@dataclasses.dataclass(frozen=True)
class Remark:
    """One thing that the check has to say."""

    level: Level
    title: str
    message: str


@dataclasses.dataclass(frozen=True)
class CheckReport(Report):
    """What a check found."""

    ALSO: ClassVar = ("passed",)

    model: str
    fused: int
    """Nodes of normfuse's domain in the model."""
    sites: tuple[Site, ...]
    """The sites that are not fused."""
    remarks: tuple[Remark, ...]
    verification: VerificationReport | None

    @property
    def passed(self) -> bool:
        """Whether there is no error among the remarks."""
        return all(remark.level != "error" for remark in self.remarks)

    def __repr__(self) -> str:
        """Return a line."""
        result = "passed" if self.passed else "failed"
        return f"<CheckReport of {self.model}: {result}, {self.fused} fused, {len(self.remarks)} remarks>"


def check(
    model: ModelLike,
    *,
    require_fused: int | Literal["all"] | None = None,
    original: ModelLike | None = None,
    inputs: Inputs | None = None,
    max_error: float | None = None,
    verify_seconds: float = VERIFY_SECONDS,
) -> CheckReport:
    """Check a model that is about to be shipped.

    Errors are: a site that :func:`normfuse.optimize` would fuse is not fused; fewer sites are fused than required; the
    results differ from the original's.

    Args:
        model: Any form of model that :func:`normfuse.optimize` takes.
        require_fused: How many sites must be fused; "all": no site may be left for a reason that
            stands in its way.
        original: Compare the results with this model's, as :func:`normfuse.verify`.
        inputs: Inputs for that comparison.
        max_error: The error to allow in it.
        verify_seconds: How long it may take.

    Raises:
        InvalidModelError: A model cannot be read or loaded.
        OptionError: An argument has a value that it cannot have.
        VerificationError: There is nothing to compare.
    """
    if original is None and (inputs is not None or max_error is not None):
        raise OptionError("inputs and max_error are for the comparison with an original; name that as well.")
    source = load_model(model)
    fused = _fused_nodes(source.model)
    left = tuple(site for site in inspect(source) if not (site.nodes and fused.keys() >= set(site.nodes)))
    remarks = [_site_remark(site, require_fused == "all") for site in left if not nothing_to_gain(site)]
    count = fused.total()
    if isinstance(require_fused, int) and count < require_fused:
        text = f"{count} sites are fused, and {require_fused} are required."
        remarks.append(Remark("error", "too few fused sites", text))
    remarks += [Remark("warning", "weights", text) for text in weight_warnings(source.model)]
    verification = None
    if original is not None:
        verification = verify(original, source, inputs=inputs, max_error=max_error, seconds=verify_seconds)
        if verification.result == "differ":
            remarks.append(Remark("error", "results differ", verification.message))
        elif verification.result == "undecided":
            remarks.append(Remark("warning", "results undecided", verification.message))
    return CheckReport(source.name, count, left, tuple(remarks), verification)


def _fused_nodes(model: ir.Model) -> Counter[str]:
    """Name, as sites have it -> how many valid nodes of normfuse's domain are called so, also in functions."""
    from normfuse.graph_rewrites.engine.facts import name_of
    from normfuse.graph_rewrites.engine.fused import Fused, is_fused
    from normfuse.graph_rewrites.engine.sites import Declined

    def is_valid(node: ir.Node) -> bool:
        try:
            Fused.read(node)
        except Declined:  # a site, with the reason
            return False
        return True

    graphs = [*model.graphs()]
    for function in model.functions.values():
        graphs += [function.graph, *function.subgraphs()]
    return Counter(name_of(node) for graph in graphs for node in graph if is_fused(node) and is_valid(node))


def _site_remark(site: Site, all_required: bool) -> Remark:
    where = f"'{site.name}' ({site.description})" + (f" in {site.graph}" if site.graph else "")
    if site.fused_into is not None:
        return Remark("error", "not fused", f"{where} can become {site.fused_into}: run normfuse optimize.")
    message = f"{where} is left: {site.message}. {site.advice}"
    return Remark("error" if all_required else "notice", f"left: {site.reason}", message)
