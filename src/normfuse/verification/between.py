"""The values that a model computes on the way to its outputs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from normfuse.sessions.creation import open_session
from normfuse.verification.budget import run_all
from normfuse.verification.diff_sites import given_name

if TYPE_CHECKING:
    import onnx_ir as ir
    import onnxruntime

    from normfuse.verification.budget import Budget
    from normfuse.verification.inputs import Sample


def showing(model: ir.Model, names: Iterable[str]) -> onnxruntime.InferenceSession:
    """Return a session without any graph optimisation that gives values of the main graph as well."""
    shown = model.clone()
    by_name = {value.name: value for node in shown.graph for value in node.outputs}
    present = {value.name for value in shown.graph.outputs}
    shown.graph.outputs.extend(by_name[name] for name in names if name in by_name and name not in present)
    return open_session(shown, "the original", level="disable")


def run_part(session: onnxruntime.InferenceSession, known: Mapping[str, Any], budget: Budget) -> dict[str, Any]:
    """Return the results of a part of a model (:func:`part_model`) for values of the original."""
    given = {given_name(name): value for name, value in known.items()}
    return run_all(session, [{value.name: given[value.name] for value in session.get_inputs()}], budget)[0]


def values_between(model: ir.Model, names: Iterable[str], sample: Sample) -> dict[str, Any]:
    """Return values of the main graph by name, its inputs and outputs too."""
    return run_all(showing(model, names), [sample])[0] | sample
