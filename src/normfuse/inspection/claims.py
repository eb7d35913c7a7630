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
from typing import TYPE_CHECKING, Annotated, Any

from normfuse.documents import Document
from normfuse.errors import NormfuseError
from normfuse.sessions.creation import open_session
from normfuse.sessions.session_model import SessionModel

if TYPE_CHECKING:
    import onnx_ir as ir

    from normfuse.files.model_files import Source
    from normfuse.graph_rewrites.engine.sites import Site

_PAIR = frozenset({"QuantizeLinear", "DequantizeLinear"})


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
class Claims(Document):
    """What the execution provider does with the fused sites of a model on this machine, with ``claim=profitable``."""

    run: int
    """Sites that it runs."""
    given_back: tuple[GivenBack, ...] = ()
    not_asked: str = ""
    """Why it could not be asked; "" where it was."""


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
    lines = _lines_by_node(report)
    fused = [site for site in sites if site.fused_into is not None]
    back = [_given_back(site, lines.get(site.name)) for site in fused if not lines.get(site.name, {}).get("claimed")]
    return Claims(len(fused) - len(back), tuple(back))


def _lines_by_node(report: Path) -> dict[str, dict[str, Any]]:
    """Return node -> what a claim report says of it: the line that claims it, if there is one."""
    from normfuse.graph_rewrites.layout.blocked_layout import BLOCKED

    lines: dict[str, dict[str, Any]] = {}
    for line in read_claim_report(report):
        for given in (line["node"], *line["nodes"]):
            name = given.partition(BLOCKED)[0]  # as it was called before it was moved into the layout of convolutions
            if name not in lines or (line["claimed"] and not lines[name]["claimed"]):
                lines[name] = line
    return lines


def read_claim_report(report: Path) -> list[dict[str, Any]]:
    """Return the lines of a claim report; none if the provider wrote none."""
    if not report.exists():
        return []
    return [json.loads(line) for line in report.read_text(encoding="utf-8").splitlines()]


@dataclasses.dataclass(frozen=True)
class PairNodes:
    """QuantizeLinear and DequantizeLinear nodes of which normfuse.InferenceSession makes the same, for one reason."""

    becomes: Annotated[str, (("enum", ("fused", "folded", "repeated", "in_integers", "claimed", "left", "not_seen")),)]
    """"fused" by the rewriting pass, "folded" (dequantised once), "repeated" (redundant, and removed), "in_integers"
    (part of a QLinear operator), "claimed" by the execution provider, "left" to ONNX Runtime, or "not_seen", because
    that removed them first."""
    message: str
    nodes: tuple[str, ...]


_IN_INTEGERS = (
    "in_integers",
    "part of a QLinear operator that ONNX Runtime makes first; between convolutions the execution provider runs the "
    "elementwise ones in chains",
)
_REPEATED = ("repeated", "redundant: only data movement lies between them and a Q/DQ pair of the same parameters")


def pair_nodes(source: Source, made: SessionModel) -> tuple[PairNodes, ...]:
    """Return what becomes of each QuantizeLinear and DequantizeLinear of a model in normfuse.InferenceSession here.

    Args:
        source: The model.
        made: What :func:`normfuse.sessions.creation.session_model` makes of it.

    Raises:
        NormfuseError: The execution provider could not be asked.
    """
    nodes = [node for node in source.model.graph.all_nodes() if node.op_type in _PAIR]
    if not nodes:
        return ()
    result = made.written
    assert result is not None
    kept = {node.name for node in result.model.graph.all_nodes()}
    # Where ONNX Runtime has optimised the model first, but for its layout alone.
    taken = set() if made.leaves_qdq else kept - {node.name for node in made.model.graph.all_nodes()}
    fused = {name: site for site in result.sites if site.fused_into is not None for name in site.nodes}
    with tempfile.TemporaryDirectory(prefix="normfuse.") as folder:
        report = Path(folder) / "claims.jsonl"
        open_session(made, source.name, ep_options={"claim_report": report})
        lines = _lines_by_node(report)
    groups: dict[tuple[str, str], list[str]] = {}
    for node in nodes:
        name = node.name or ""
        if name in result.dropped:
            fate = _REPEATED
        else:
            fate = _IN_INTEGERS if name in taken else _fate(name, fused.get(name), name in kept, lines.get(name))
        groups.setdefault(fate, []).append(name)
    order = sorted(groups.items(), key=lambda group: -len(group[1]))
    return tuple(PairNodes(becomes, message, tuple(names)) for (becomes, message), names in order)


def _fate(name: str, site: Site | None, kept: bool, line: dict[str, Any] | None) -> tuple[str, str]:
    """Return what becomes of a QuantizeLinear or DequantizeLinear, and a sentence."""
    if site is not None:
        return "fused", f"part of a {site.fused_into}"
    if not kept:
        return "folded", "weights, dequantised once"
    if line is None:
        return "not_seen", "ONNX Runtime removes or moves them before it asks the execution provider"
    if line["claimed"]:
        return "claimed", "run by the execution provider, in a chain or alone"
    # The detail says why; what is around it names the node.
    detail = str(line["message"]).partition("(")[2].rstrip(")") or str(line["message"]).replace(name, "it")
    return "left", detail


def _given_back(site: Site, line: dict[str, Any] | None) -> GivenBack:
    line = line or {
        "reason": "not_seen",
        "message": "ONNX Runtime removed it, or replaced it, before it asked the provider",
        "advice": "",
    }
    message = str(line["message"])
    return GivenBack(site.name, site.graph, site.description, line["reason"], message, line["advice"])
