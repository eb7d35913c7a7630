"""The rewriting pass: a list of changes, of which the options of a run say which are made."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import onnx_ir as ir

from normfuse.graph_rewrites.engine.dimensions import drop_other_names, names_of_dimensions
from normfuse.graph_rewrites.engine.options import AS_GIVEN, RewriteOptions, Target, TargetByProducts
from normfuse.graph_rewrites.engine.passes import FoldedWeights, Pass, RemovedQuantization
from normfuse.graph_rewrites.engine.sites import Site
from normfuse.graph_rewrites.fusion import Fusion
from normfuse.graph_rewrites.quantization.int8_products import make_unsigned
from normfuse.graph_rewrites.quantization.qlinear_operators import has_quantized_products, write_softmaxes
from normfuse.graph_rewrites.quantization.quantization_removal import remove_quantization
from normfuse.graph_rewrites.quantization.redundant_qdq import drop_redundant_pairs
from normfuse.graph_rewrites.quantization.shape_readers import read_shapes_of_quantized
from normfuse.graph_rewrites.quantization.weight_folding import fold_weights
from normfuse.graph_rewrites.spellings.einsum import write_products
from normfuse.graph_rewrites.spellings.subtractions import write_additions


@dataclasses.dataclass(frozen=True)
class RewriteResult:
    """What `rewrite` did to a model."""

    sites: tuple[Site, ...]
    """Every site, fused or left, in graph order."""
    counts: dict[str, int]
    """Name of a rule or pass -> how often it was applied."""
    weights: FoldedWeights
    """What became of quantised weights."""
    quantization: RemovedQuantization
    """What became of quantised activations, where that was asked for."""
    dropped: tuple[str, ...]
    """Names of the nodes of Q/DQ pairs that went because they change nothing."""
    target: Target | None = "portable"
    """That of the nodes; None: the model is not rewritten to the end, see `TargetByProducts`."""


def _choose_target(graph: ir.Graph, fusion: Fusion) -> int:
    """Find out whether products run in integers, where that matters, and take the target for it."""
    target = fusion.options.target
    if fusion.options.drop_redundant_pairs or isinstance(target, TargetByProducts):
        fusion.in_integers = fusion.weights.host_quantizes or has_quantized_products(graph)
    if isinstance(target, TargetByProducts):
        fusion.target = target.in_integers if fusion.in_integers else target.in_float
        fusion.stops = fusion.target is None
    return 0


#: All changes, in this order, each with its name in the report and when it is made.
PASSES = (
    # What an earlier run wrote can grow, and take another form.
    Pass("", lambda graph, fusion: fusion.lift(), in_functions=False),
    Pass("EinsumAsMatMul", write_products),
    # Before pairs are looked at: this makes some.
    Pass("SoftmaxOfIntegers", write_softmaxes, lambda run: run.options.fold_weights == "session"),
    Pass("", remove_quantization, lambda run: run.options.remove_quantization),
    # Before weights are folded: which products run in float follows from the types.
    Pass("Int8AsUint8", make_unsigned, lambda run: "integer" in run.options.products, in_functions=False),
    Pass("FoldedWeights", fold_weights, in_functions=False),
    # Now products run in integers or in float for good. Where no target is for these, all ends here.
    Pass("", _choose_target, in_functions=False),
    Pass("RepeatedPairs", drop_redundant_pairs, lambda run: run.options.drop_redundant_pairs and not run.in_integers),
    # Custom operators read what was dequantised.
    Pass(
        "ShapeOfIntegers",
        read_shapes_of_quantized,
        lambda run: run.options.shapes_before_dequantization and run.target != "custom-op",
    ),
    # In the way of no pattern, until the form is written.
    Pass("", lambda graph, fusion: fusion.bypass(graph)),
    Pass("", lambda graph, fusion: fusion.fuse(graph, fusion.home.path)),
    # Behind the rules, which know a Sub in a decomposed normalisation.
    Pass("SubtractionAsAddition", write_additions, in_functions=False),
    Pass("", lambda graph, fusion: fusion.write_form(), in_functions=False),
)


def rewrite(
    model: ir.Model, options: RewriteOptions = AS_GIVEN, *, progress: Callable[[int, int], None] | None = None
) -> RewriteResult:
    """Fuse the normalisation chains of a model, in place.

    Args:
        model: Any ONNX model; its opset does not change, and no node changes that is not fused, but for Einsum and for
            Sub behind a convolution.
        options: The form of what is fused, and what becomes of what is quantised.
        progress: Called with (nodes done, nodes in all) from time to time.

    Returns:
        All sites, fused or left with the reason, and how often each rule was applied.

    Raises:
        InvalidModelError: a node breaks the schema of its operator.
    """
    given = names_of_dimensions(model)
    fusion = Fusion(model, options, progress)
    fusion.run(*PASSES)
    if not fusion.stops:
        drop_other_names(model, given)
    counts = {name: count for name, count in fusion.counts.items() if count and name and not fusion.stops}
    return RewriteResult(
        tuple(fusion.sites), counts, fusion.weights, fusion.quantization, tuple(fusion.dropped), fusion.target
    )
