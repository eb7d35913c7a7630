"""The rewriting pass on a loaded model: once for each way that it is asked for."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import onnx_ir as ir

from normfuse.files.model_files import Source

if TYPE_CHECKING:
    from normfuse.graph_rewrites import Target, TargetByProducts, Treatment
    from normfuse.graph_rewrites.engine.sites import Site
    from normfuse.graph_rewrites.quantization.quantization_removal import RemovedQuantization
    from normfuse.graph_rewrites.quantization.weight_folding import FoldedWeights

__all__ = ["Rewritten", "rewritten"]


@dataclasses.dataclass(frozen=True)
class Rewritten:
    """A rewritten copy of a model, which must not be changed: who asks again gets the same one."""

    model: ir.Model
    sites: tuple[Site, ...]
    rules: Mapping[str, int]
    """As ``OptimizationReport`` has them."""
    seconds: float
    """What it took."""
    weights: FoldedWeights
    quantization: RemovedQuantization
    repeated: tuple[str, ...]
    target: Target | None


def rewritten(
    source: Source,
    target: Target | TargetByProducts = "portable",
    treatment: Treatment | None = None,
    *,
    progress: Callable[[int, int], None] | None = None,
    in_place: bool = False,
) -> Rewritten:
    """Return the rewritten copy of a model; see :func:`normfuse.graph_rewrites.rewrite`.

    Args:
        source: The model.
        target: See there.
        treatment: See there; None: what is quantised stays as it is.
        progress: See there.
        in_place: Rewrite the source's own model, of which nothing else has need any more.

    Raises:
        InvalidModelError: A node breaks the schema of its operator.
    """
    from normfuse.graph_rewrites import AS_IT_IS, rewrite

    key = (target, treatment or AS_IT_IS)
    known = source.rewrites.get(key)
    if not isinstance(known, Rewritten):
        start = time.perf_counter()
        model = source.model if in_place else source.model.clone()
        result = rewrite(model, target=target, treatment=treatment or AS_IT_IS, progress=progress)
        known = Rewritten(
            model,
            tuple(result.sites),
            dict(result.counts),
            time.perf_counter() - start,
            result.weights,
            result.quantization,
            result.repeated,
            result.target,
        )
        if not in_place:
            source.rewrites[key] = known
    return known
