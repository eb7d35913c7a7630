"""What a model becomes on DirectML: asked of the native library, which needs no GPU for the answer."""

from __future__ import annotations

import dataclasses
import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from normfuse.documents import Document
from normfuse.errors import OptionError
from normfuse.files.model_files import ModelLike, load_model
from normfuse.host.options import accepts
from normfuse.sessions.creation import open_session
from normfuse.sessions.rewriting import rewrite_copy
from normfuse.spec import OPTIONS

if TYPE_CHECKING:
    from normfuse.graph_rewrites.engine.sites import Site

DEFAULT_LEVEL = "6_4"
"""Feature level of the current DirectML redistributable."""


@dataclasses.dataclass(frozen=True)
class LoweredSite:
    """A site of the rewritten model that the execution provider can run, and its DirectML operators."""

    name: str
    """Of the site's node, or of the first one where it is a chain."""
    description: str
    graph: str
    operators: tuple[str, ...]
    """DirectML operators in order, such as "MEAN_VARIANCE_NORMALIZATION1 with ACTIVATION_GELU fused in"; none where it
    stays on the CPU path."""
    reason: str | None
    """Why it stays on the CPU path: a code, see :data:`normfuse.spec.REASONS`; None: it does not."""
    message: str
    advice: str
    program: dict[str, Any] | None
    """The whole lowering, with tensors: "level", "inputs", "operators", "outputs"; None on the CPU path."""


@dataclasses.dataclass(frozen=True)
class Island:
    """Nodes of the rewritten model that run on the GPU as one DirectML graph: one submission and one wait a run."""

    graph: str
    nodes: tuple[str, ...]
    """In an order in which they can run."""
    chains: int
    """How many of its sites are chains of normfuse; its other nodes are operators of ONNX."""
    reason: str | None
    """Why the island is left to the CPU unless the option claim is "all": a code; None: it runs on the GPU."""
    message: str
    advice: str


@dataclasses.dataclass(frozen=True)
class OperatorOnCpu:
    """A node of the rewritten model, not of a chain, that joins no island."""

    graph: str
    name: str
    op_type: str
    reason: str
    message: str
    advice: str


@dataclasses.dataclass(frozen=True)
class Lowering(Document):
    """What a rewritten model becomes on DirectML of a feature level."""

    level: str
    sites: tuple[LoweredSite, ...]
    islands: tuple[Island, ...]
    on_cpu: tuple[OperatorOnCpu, ...]
    """Operators that join no island; computations of shapes are not counted."""


def lower(model: ModelLike, level: str = DEFAULT_LEVEL, *, allow_requantization_removal: bool = False) -> Lowering:
    """Rewrite a model and return what it becomes on DirectML of a feature level: its sites and its islands.

    Dimensions that are not known get values that fit. Sites that the execution provider cannot run at all are not
    in the list; :func:`normfuse.inspect` says why.

    Args:
        model: Any form of model that :func:`normfuse.optimize` takes; it is not changed.
        level: DirectML's feature level, such as "6_2".
        allow_requantization_removal: As for :func:`normfuse.optimize`.

    Raises:
        InvalidModelError: The model cannot be read or loaded.
        OptionError: There is no such level.
        HostVersionError: onnxruntime is missing or older than 1.24.
        LibraryLoadError: The native library cannot be loaded.
    """
    if not accepts(OPTIONS["explain_directml"], level):
        raise OptionError(f"The DirectML feature level is '{level}'; it is written like 6_2, from 2_0 on.")
    from normfuse.graph_rewrites import RewriteOptions

    source = load_model(model)
    found = rewrite_copy(source, RewriteOptions(allow_requantization_removal=allow_requantization_removal))
    sites = {site.name: site for site in found.sites if site.fused_into is not None}
    with tempfile.TemporaryDirectory(prefix="normfuse.") as folder:
        report = Path(folder) / "claims.jsonl"
        options = {"claim": "all", "claim_report": report, "explain_directml": level}
        open_session(found.model, source.name, ep_options=options)
        lines = report.read_text(encoding="utf-8").splitlines() if report.exists() else []
    answers = [json.loads(line) for line in lines]
    return Lowering(
        level,
        tuple(_site(answer, sites) for answer in answers if "directml" in answer),
        tuple(_island(answer) for answer in answers if "island" in answer),
        tuple(
            OperatorOnCpu(*(answer[key] for key in ("graph", "operator", "op_type", "reason", "message", "advice")))
            for answer in answers
            if "operator" in answer
        ),
    )


def _island(line: dict[str, Any]) -> Island:
    return Island(
        graph=line["graph"],
        nodes=tuple(line["island"]),
        chains=line["chains"],
        reason=line.get("reason"),
        message=line.get("message", ""),
        advice=line.get("advice", ""),
    )


def _site(line: dict[str, Any], sites: dict[str, Site]) -> LoweredSite:
    answer = line["directml"]
    stays = "operators" not in answer
    known = sites.get(line["node"])
    return LoweredSite(
        name=line["node"],
        description=line["description"] if known is None else known.description,
        graph=line["graph"],
        operators=() if stays else tuple(_operator(operator) for operator in answer["operators"]),
        reason=answer["reason"] if stays else None,
        message=answer["message"] if stays else "",
        advice=answer["advice"] if stays else "",
        program=None if stays else answer,
    )


def _operator(operator: dict[str, Any]) -> str:
    fused = operator.get("fused_activation")
    return str(operator["operator"]) + (f" with {fused['operator']} fused in" if fused else "")
