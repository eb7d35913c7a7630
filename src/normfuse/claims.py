"""Which fused sites the execution provider will run on this machine, and which it leaves to ONNX Runtime.

The provider says so itself, when a session is created (the EP option ``claim_report``): it takes what its cost model
expects to be faster than ONNX Runtime's own kernels, with the instruction set of this machine.
"""

from __future__ import annotations

import dataclasses
import json
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from normfuse.errors import NormfuseError
from normfuse.sessions import open_session

if TYPE_CHECKING:
    import onnx_ir as ir

    from normfuse.graph_rewrites.sites import Site

__all__ = ["Claims", "GivenBack", "ask_provider", "claims_of", "read_claim_report"]


@dataclasses.dataclass(frozen=True)
class GivenBack:
    """A fused site that ONNX Runtime runs by the function's body."""

    name: str
    graph: str
    description: str
    reason: str
    """A code, see :data:`normfuse.spec.REASONS`."""
    message: str
    advice: str


@dataclasses.dataclass(frozen=True)
class Claims:
    """What the execution provider does with the fused sites of a model on this machine, with ``claim=profitable``."""

    run: int
    """Sites that it runs."""
    given_back: tuple[GivenBack, ...] = ()
    not_asked: str = ""
    """Why it could not be asked; "" where it was."""

    def to_dict(self) -> dict[str, Any]:
        """Return the claims as data for JSON."""
        return dataclasses.asdict(self)


def ask_provider(model: ir.Model, name: str, sites: Iterable[Site]) -> Claims:
    """Create a session on an optimised model and return what the execution provider takes of its sites."""
    with tempfile.TemporaryDirectory(prefix="normfuse.") as folder:
        report = Path(folder) / "claims.jsonl"
        try:
            open_session(model, name, ep_options={"claim_report": report})
        except NormfuseError as error:
            return Claims(0, not_asked=str(error))
        return claims_of(sites, report)


def claims_of(sites: Iterable[Site], report: Path) -> Claims:
    """Return what a claim report says of the fused sites; sites that it does not name count as declined."""
    lines: dict[str, dict[str, Any]] = {}
    for line in read_claim_report(report):
        for name in (line["node"], *line["nodes"]):
            if name not in lines or (line["claimed"] and not lines[name]["claimed"]):
                lines[name] = line
    fused = [site for site in sites if site.fused_into is not None]
    back = [_given_back(site, lines.get(site.name)) for site in fused if not lines.get(site.name, {}).get("claimed")]
    return Claims(len(fused) - len(back), tuple(back))


def read_claim_report(report: Path) -> list[dict[str, Any]]:
    """Return the lines of a claim report; none if the provider wrote none."""
    if not report.exists():
        return []
    return [json.loads(line) for line in report.read_text(encoding="utf-8").splitlines()]


def _given_back(site: Site, line: dict[str, Any] | None) -> GivenBack:
    line = line or {
        "reason": "not_seen",
        "message": "ONNX Runtime removed it, or replaced it, before it asked the provider",
        "advice": "",
    }
    message = str(line["message"])
    return GivenBack(site.name, site.graph, site.description, line["reason"], message, line["advice"])
