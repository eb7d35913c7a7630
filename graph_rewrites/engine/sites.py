"""What the pass reports: one `Site` for each place that was, or could have been, fused."""

from __future__ import annotations

import dataclasses

import onnx_ir as ir

from normfuse.graph_rewrites.engine.pattern import Mismatch
from normfuse.spec import REASONS


@dataclasses.dataclass(frozen=True, slots=True)
class Site:
    """A normalisation, activation, quantisation or dequantisation of a model, and what became of it."""

    name: str
    """Name of the fused node, or of the node that was left; its first output where it has no name."""
    kind: str
    """What is computed: "LayerNormalization", "RMSNormalization", "Activation", "DequantizeLinear" ..."""
    graph: str
    """"" = main graph; otherwise a path such as "then_branch of If 'x'" or "function 'domain::name'"."""
    nodes: tuple[str, ...]
    """Names of the original nodes that belong to the site."""
    fused_into: str | None
    """Operator of the domain ai.normfuse, such as "FusedNormalization"; None: left as it was."""
    description: str
    """The chain in words, such as "DequantizeLinear -> LayerNormalization -> Gelu"."""
    reason: str | None = None
    """Code from the table of reasons, for a site that was left."""
    message: str = ""
    """The reason as a sentence; of a fused site, where its chain stops although it looks as if it went on, and why."""
    advice: str = ""
    """What the user can do about it."""


class Reason(str):
    """A reason of the closed set, filled in: the sentence itself, carrying its code.

    A string, as the reasons of failed matches are that are no site's reason yet.
    """

    __slots__ = ("code",)
    code: str

    def __new__(cls, code: str, **fields: object) -> Reason:
        """Return the sentence of ``code``, filled in; KeyError for an unknown code or a missing field."""
        reason = super().__new__(cls, REASONS[code].message(**fields))
        reason.code = code
        return reason

    @property
    def advice(self) -> str:
        """What the user can do about it."""
        return REASONS[self.code].advice


class Declined(Mismatch):
    """Raised by a rule's ``check`` (or by what it calls) to leave a match alone, with the reason."""

    reason: Reason

    def __init__(self, code: str, *, at: ir.Node | None = None, **fields: object) -> None:
        """`at`: a node outside of the match that is left for this reason as well."""
        super().__init__(Reason(code, **fields), *([at] if at is not None else []))
