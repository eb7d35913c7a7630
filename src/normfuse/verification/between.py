"""The values that a model computes on the way to its outputs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from normfuse.sessions import open_session
from normfuse.verification.budget import Budget, run_all

if TYPE_CHECKING:
    import onnx_ir as ir

    from normfuse.verification.inputs import Sample

__all__ = ["values_between"]


def values_between(
    model: ir.Model, names: Iterable[str], sample: Sample, budget: Budget | None = None
) -> dict[str, Any]:
    """Return values of the main graph by name, its inputs and outputs too, without any graph optimisation."""
    shown = model.clone()
    by_name = {value.name: value for node in shown.graph for value in node.outputs}
    present = {value.name for value in shown.graph.outputs}
    shown.graph.outputs.extend(by_name[name] for name in names if name in by_name and name not in present)
    session = open_session(shown, "the original", level="disable")
    return run_all(session, [sample], budget)[0] | sample
