"""How :class:`normfuse.InferenceSession` prepares a model: facts, the plan that follows from them, and its passes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import onnx_ir as ir

from normfuse.files.model_files import Source
from normfuse.graph_rewrites import RewriteOptions, Target, TargetByProducts
from normfuse.graph_rewrites.engine.passes import Context, Pass
from normfuse.graph_rewrites.quantization.int8_products import activation_types
from normfuse.graph_rewrites.quantization.product_times import are_faster_in_float
from normfuse.graph_rewrites.quantization.qoperator_to_qdq import has_qlinear_operators, write_qdq_pairs
from normfuse.graph_rewrites.quantization.weight_folding import is_x86
from normfuse.host.config_entries import LEAVES_QDQ, disabled_optimizers, get_entry
from normfuse.host.integer_products import sums_saturate
from normfuse.host.needs import QUANTIZES_WEIGHTS, configure
from normfuse.host.session import OPTION_PREFIX
from normfuse.host.versions import import_host
from normfuse.sessions import AllowedChanges
from normfuse.sessions.exact_products import with_exact_sums
from normfuse.sessions.layouts import (
    allows_layouts,
    has_chains_of_convolutions,
    has_quantized_elementwise,
    lay_out_channels_last,
    lay_out_in_blocks,
)
from normfuse.sessions.plan import HostFacts, ModelFacts, SessionPlan, converts_to_qdq, plan_session
from normfuse.sessions.rewriting import RewrittenModel, rewrite_copy

if TYPE_CHECKING:
    import onnxruntime

    from normfuse.graph_rewrites.engine.options import Products

    _Load: TypeAlias = Callable[[], Source]

_BYTES = (ir.DataType.INT8, ir.DataType.UINT8)
_MAKES_OPERATORS = "QDQSelectorActionTransformer"
_PAIRS = "QLinear operators as Q/DQ pairs"
PAIRS = Pass(_PAIRS, write_qdq_pairs, in_functions=False)
_NARROW = (ir.DataType.FLOAT16, ir.DataType.BFLOAT16)


class SessionModel(NamedTuple):
    """The prepared model of a session, and the settings that its session options need."""

    model: ir.Model
    keeps_weights: bool = False
    """ONNX Runtime must not quantise float weights: dequantised ones, or those of blocked convolutions."""
    leaves_qdq: bool = False
    """ONNX Runtime must not make QLinear operators of Q/DQ pairs."""
    written: RewrittenModel | None = None
    """The result of the rewriting pass, the first step."""
    plan: SessionPlan | None = None
    layout: str = "as given"
    as_given: bool = False
    """Nothing was changed."""

    def configure(self, options: onnxruntime.SessionOptions) -> None:
        """Set these options; settings that an earlier session needed are reset."""
        configure(options, keeps_weights=self.keeps_weights, leaves_qdq=self.leaves_qdq)

    def __str__(self) -> str:
        """Return the plan, and which of its conditions held, in one line."""
        off = [QUANTIZES_WEIGHTS] * self.keeps_weights + ["QLinear operators"] * self.leaves_qdq
        return f"{self.plan}; layout found: {self.layout}; off in ONNX Runtime: {', '.join(off) or 'nothing'}"


def session_model(
    source: Source, options: onnxruntime.SessionOptions, allowed: AllowedChanges, *, again: _Load | None = None
) -> SessionModel:
    """Return the model that :class:`normfuse.InferenceSession` prepares.

    Args:
        source: The model as it was loaded.
        options: Those of the session.
        allowed: The changes that may be made.
        again: Loads the model once more; with it the model of ``source`` is changed in place, without it a copy.
    """
    host = _host_facts(options)
    becomes_qdq = converts_to_qdq(host, allowed) and has_qlinear_operators(source.model.graph)

    def prepare(source: Source) -> Source:
        if allowed.exact_products and sums_saturate():
            source = dataclasses.replace(source, model=with_exact_sums(source.model)[0], rewrites={})
        return convert_to_qdq(source, in_place=again is not None) if becomes_qdq else source

    source = prepare(source)
    plan = _plan(source.model, host, allowed, becomes_qdq=becomes_qdq)
    for products in plan.products if plan.layout == "of convolutions" else ():
        made = _lay_out(source, options, plan, products, in_place=again is not None)
        if made is not None:
            return made
        if again is not None:
            source = prepare(again())
    result = rewrite_copy(source, _options(plan, plan.products[-1], "portable"), in_place=again is not None)
    keeps_weights, is_fused = result.weights.requantizable > 0, any(site.fused_into for site in result.sites)
    changes = (plan.as_qdq, not allowed.keeps_results)
    as_given = not (is_fused or result.counts or any(changes))
    return SessionModel(result.model, keeps_weights, written=result, plan=plan, as_given=as_given)


def plan_of(source: Source) -> SessionPlan:
    """Return the plan for a session with the default options; nothing is changed."""
    host, allowed = _host_facts(import_host().SessionOptions()), AllowedChanges()
    becomes_qdq = converts_to_qdq(host, allowed) and has_qlinear_operators(source.model.graph)
    return _plan((convert_to_qdq(source) if becomes_qdq else source).model, host, allowed, becomes_qdq=becomes_qdq)


def _plan(model: ir.Model, host: HostFacts, allowed: AllowedChanges, *, becomes_qdq: bool) -> SessionPlan:
    facts, host = _facts(model, host, allowed)
    return plan_session(dataclasses.replace(facts, becomes_qdq=becomes_qdq), host, allowed)


def _host_facts(options: onnxruntime.SessionOptions) -> HostFacts:
    """Return the facts but for `sums_saturate`, which is measured only if the model has int8 activations."""
    return HostFacts(
        is_x86=is_x86(),
        makes_operators=makes_operators(options),
        lays_out=allows_layouts(options),
        compiles=get_entry(options, f"{OPTION_PREFIX}compile") != "0",
    )


def _facts(model: ir.Model, host: HostFacts, allowed: AllowedChanges) -> tuple[ModelFacts, HostFacts]:
    types = activation_types(model)
    weights = [value.const_value for value in model.graph.initializers.values() if value.const_value is not None]
    kinds = {value.dtype for value in model.graph.inputs} | {tensor.dtype for tensor in weights}
    in_float = allowed.choose_products and host.is_x86 and are_faster_in_float(model)
    chains = has_chains_of_convolutions(model.graph, between=types.isdisjoint(_BYTES))
    if types and types.issubset(_BYTES) and not in_float:
        chains = chains and has_quantized_elementwise(model.graph)
    facts = ModelFacts(
        activations=frozenset(each.name for each in types if each is not None),
        chains_of_convolutions=chains,
        is_narrow=not kinds.isdisjoint(_NARROW),
        weight_bytes=sum(tensor.nbytes for tensor in weights),
        is_faster_in_float=in_float,
    )
    saturates = allowed.choose_products and ir.DataType.INT8 in types and sums_saturate()
    return facts, dataclasses.replace(host, sums_saturate=saturates)


def _options(plan: SessionPlan, products: Products, target: Target | TargetByProducts) -> RewriteOptions:
    return RewriteOptions(
        target,
        allow_requantization_removal=plan.allowed.allow_requantization_removal,
        remove_quantization=plan.allowed.remove_quantization,
        fold_weights="session" if plan.allowed.fold_weights else "never",
        products=products,
        shapes_before_dequantization=plan.shapes_before_dequantization,
    )


def _lay_out(
    source: Source, options: onnxruntime.SessionOptions, plan: SessionPlan, products: Products, *, in_place: bool
) -> SessionModel | None:
    """Return a convolution network with chains in the layout of its convolutions; None: that is no gain.

    ONNX Runtime does not change custom operators, and makes QLinear operators of standard ones.
    """
    target = TargetByProducts(in_integers=None if products == "float" else "standard", in_float="custom-op")
    asked = dataclasses.replace(_options(plan, products, target), drop_redundant_pairs=True)
    result = rewrite_copy(source, asked, in_place=in_place)
    if result.target == "standard":
        keeps_weights = result.weights.requantizable > 0
        off = [QUANTIZES_WEIGHTS] if keeps_weights else []
        found = lay_out_channels_last(result.model, options, off, frees_weights=in_place)
        return None if found is None else SessionModel(found, keeps_weights, False, result, plan, "channels last")
    found = lay_out_in_blocks(result.model, options, frees_weights=in_place) if result.target is not None else None
    if found is None:
        return None
    # No product is quantised.
    has_pairs = any(node.op_type == "QuantizeLinear" for node in found.graph)
    return SessionModel(found, True, has_pairs, result, plan, "blocked")


def convert_to_qdq(source: Source, *, in_place: bool = False) -> Source:
    """Return a model with Q/DQ pairs instead of QLinear operators; the model itself, if it has none.

    Later calls return the same one; `in_place` changes the source's own model, which nothing else needs.
    """
    if in_place:
        Context(source.model).run(PAIRS)
        return source
    known = source.rewrites.get(_PAIRS)
    if not isinstance(known, Source):
        known = source
        if has_qlinear_operators(source.model.graph):
            model = source.model.clone()
            if Context(model).run(PAIRS):
                known = dataclasses.replace(source, model=model, rewrites={})
        source.rewrites[_PAIRS] = known
    return known


def makes_operators(options: onnxruntime.SessionOptions) -> bool:
    """Whether a session with these options lets ONNX Runtime make QLinear operators of Q/DQ pairs."""
    levels = import_host().GraphOptimizationLevel
    if options.graph_optimization_level in (levels.ORT_DISABLE_ALL, levels.ORT_ENABLE_BASIC):
        return False
    return get_entry(options, LEAVES_QDQ) != "1" and _MAKES_OPERATORS not in disabled_optimizers(options)
