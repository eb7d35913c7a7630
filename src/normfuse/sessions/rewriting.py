"""The rewriting pass on a loaded model, once for each set of options."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable

import onnx_ir as ir

from normfuse import graph_rewrites
from normfuse.files.model_files import Source
from normfuse.graph_rewrites import AS_GIVEN, RewriteOptions, RewriteResult


@dataclasses.dataclass(frozen=True, kw_only=True)
class RewrittenModel(RewriteResult):
    """A rewritten copy of a model; it must not be changed, since later calls return the same one."""

    model: ir.Model
    seconds: float
    """The time that the pass took."""


def rewrite_copy(
    source: Source,
    options: RewriteOptions = AS_GIVEN,
    *,
    progress: Callable[[int, int], None] | None = None,
    in_place: bool = False,
) -> RewrittenModel:
    """Return the rewritten copy of a model; see :func:`normfuse.graph_rewrites.rewrite`.

    Args:
        source: The model.
        options: See there.
        progress: See there.
        in_place: Rewrite the source's own model, which nothing else needs any more.

    Raises:
        InvalidModelError: A node breaks the schema of its operator.
    """
    known = source.rewrites.get(options)
    if not isinstance(known, RewrittenModel):
        start = time.perf_counter()
        model = source.model if in_place else source.model.clone()
        result = graph_rewrites.rewrite(model, options, progress=progress)
        known = RewrittenModel(**vars(result), model=model, seconds=time.perf_counter() - start)
        if not in_place:
            source.rewrites[options] = known
    return known
