"""Finding where two versions of a model begin to differ.

Values that both versions compute under the same name are made outputs of both, a few at a time. Each round leaves only
what the first differing value is computed from, without what equal values are computed from: memory stays bounded, and
a chain of n values takes about log(n) / log(16) rounds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import onnx_ir as ir

from normfuse.errors import NormfuseError
from normfuse.sessions import open_session
from normfuse.verification.comparison import Difference

if TYPE_CHECKING:
    from normfuse.graph_rewrites.sites import Site
    from normfuse.verification.budget import Budget
    from normfuse.verification.inputs import Sample

__all__ = ["locate", "site_of_value"]

_OUTPUTS_AT_ONCE = 16


def locate(
    original: ir.Model,
    optimized: ir.Model,
    *,
    sample: Sample,
    ep_options: dict[str, Any] | None,
    sites: Sequence[Site],
    tolerance: float,
    quantized: bool,
    budget: Budget,
) -> tuple[str | None, Site | None]:
    """Return (name of the first value that differs, site whose node computes it); None where there is none.

    Where the time does not last, it is the first one that was found until then.
    """
    candidates = _common_values(original, optimized)
    found: str | None = None
    while candidates and not budget.is_spent:
        step = max(1, len(candidates) // _OUTPUTS_AT_ONCE)
        probes = candidates[::-step][::-1]
        different = _different(probes, original, optimized, sample, ep_options, tolerance, quantized)
        bad = next((name for name, differs in zip(probes, different, strict=True) if differs), found)
        if bad is None:
            return None, None
        before = _ancestors(optimized, [bad])
        equal = [name for name, differs in zip(probes, different, strict=True) if not differs and name in before]
        before -= _ancestors(optimized, equal) | {*equal, bad}
        candidates = [name for name in candidates if name in before]
        found = bad
    return found, None if found is None else site_of_value(optimized, original, found, sites)


def _ancestors(model: ir.Model, names: Iterable[str]) -> set[str]:
    """Names of the values in the main graph that some values are computed from."""
    wanted = set(names)
    pending = [value for node in model.graph for value in node.outputs if value.name in wanted]
    seen: set[str] = set()
    while pending:
        node = pending.pop().producer()
        for value in node.inputs if node is not None else ():
            if value is not None and value.name and value.name not in seen:
                seen.add(value.name)
                pending.append(value)
    return seen


def _common_values(original: ir.Model, optimized: ir.Model) -> list[str]:
    """Names that nodes of both main graphs compute, in the optimised graph's order."""
    first = {value.name for node in original.graph for value in node.outputs if value.name}
    return [value.name for node in optimized.graph for value in node.outputs if value.name and value.name in first]


def _different(
    names: list[str],
    original: ir.Model,
    optimized: ir.Model,
    sample: Sample,
    ep_options: dict[str, Any] | None,
    tolerance: float,
    quantized: bool,
) -> list[bool]:
    try:
        a = _values(original, names, sample, None)
        b = _values(optimized, names, sample, ep_options)
    except NormfuseError:
        return [False] * len(names)
    result = []
    for name in names:
        difference = Difference(name, quantized)
        difference.add(a[name], b[name])
        steps = 1.0 if quantized and difference.dtype.startswith(("int", "uint")) else 0.0
        result.append(difference.error > max(tolerance, steps))
    return result


def _values(model: ir.Model, names: list[str], sample: Sample, ep_options: dict[str, Any] | None) -> dict[str, Any]:
    probe = model.clone()
    values = {value.name: value for node in probe.graph for value in node.outputs}
    present = {value.name for value in probe.graph.outputs}
    probe.graph.outputs.extend(values[name] for name in names if name not in present)
    session = open_session(probe, "the model", ep_options=ep_options, level="disable" if ep_options is None else "all")
    return dict(zip(names, session.run(names, sample), strict=True))


def site_of_value(optimized: ir.Model, original: ir.Model, value: str, sites: Sequence[Site]) -> Site | None:
    """Return the site that computes a value, by the name of its node now or before."""
    node_names = {
        node.name
        for model in (optimized, original)
        for node in model.graph
        for out in node.outputs
        if out.name == value
    }
    fused = [site for site in sites if site.fused_into is not None]
    return next((site for site in fused if site.name in node_names or node_names & set(site.nodes)), None)
