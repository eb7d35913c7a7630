"""Ordinary ONNX Runtime sessions, with and without the execution provider."""

from __future__ import annotations

import normfuse.quick_imports  # noqa: F401 -- before what imports onnx_ir

# isort: split

import dataclasses
import functools
import re
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import onnx
import onnx_ir as ir

from normfuse.channels_last import channels_last
from normfuse.errors import InvalidModelError, LibraryLoadError, OptionError
from normfuse.host.config_entries import (
    EXTERNAL_DATA_FOLDER,
    choose_entry,
    disabled_optimizers,
    get_entry,
    set_entry,
    users_entry,
)
from normfuse.host.float16 import avoid_float16_fault
from normfuse.host.given_initializers import InitializersGiven, names_of_initializers, require_none_given
from normfuse.host.inlining import choose_inlining, inlines_late
from normfuse.host.integer_products import sums_saturate
from normfuse.host.messages import words_of
from normfuse.host.native_library import EP_NAME, get_library_path
from normfuse.host.needs import QUANTIZES_WEIGHTS, Needs, settle
from normfuse.host.output_shapes import forget_made_up_names, has_made_up_names
from normfuse.host.plain_sessions import plain_session
from normfuse.host.session import OPTION_PREFIX, session_options
from normfuse.host.versions import import_host, load_host
from normfuse.host_optimization import failures
from normfuse.model_files import ModelLike, Source, load_model, runnable, to_proto
from normfuse.nchwc import blocked, may_gain
from normfuse.operator_form import gain_as_pairs, in_pairs
from normfuse.rewriting import Rewritten, rewritten
from normfuse.spec import OPERATOR_DOMAIN, OPTIONS

if TYPE_CHECKING:
    import onnxruntime

    from normfuse.graph_rewrites import Target
    from normfuse.graph_rewrites.treatment import Products
    from normfuse.prepared_models import Origin

__all__ = [
    "Choices",
    "Level",
    "SessionModel",
    "created",
    "foreign_domains",
    "left_as_it_is",
    "loaded",
    "needs_library",
    "open_session",
    "session_model",
]

Level = Literal["disable", "basic", "extended", "all"]
# What a session does without that was created once more, since ONNX Runtime refused what was made of its model.
_WITHOUT_CHOICES = (
    "The session runs it rewritten, but with products in the types, and chains in the layout, that ONNX Runtime "
    "chooses: what other ones would gain is lost. choose_products=False, blocked_layout=False asks for that at once."
)
_WITHOUT_REWRITING = (
    "The session runs it as it is given, not rewritten: only chains of standard operators gain. "
    "onnxruntime.InferenceSession(model, normfuse.session_options()) is the same at once."
)
# Of ONNX and of ONNX Runtime.
_DOMAINS = (
    "",
    "ai.onnx",
    "ai.onnx.ml",
    "ai.onnx.preview.training",
    "com.microsoft",
    "com.microsoft.nchwc",
    "com.ms.internal.nhwc",
)


def loaded(model: ModelLike, options: onnxruntime.SessionOptions | None) -> Source:
    """Return a model as a session with the user's options is created from it.

    Raises:
        InitializersGiven: The options give some of its initializers.
        InvalidModelError: It cannot be read.
    """
    folder = None if options is None else users_entry(options, EXTERNAL_DATA_FOLDER)
    return load_model(model, folder, before_data=functools.partial(require_none_given, options))


def left_as_it_is(
    model: ModelLike, options: onnxruntime.SessionOptions, given: InitializersGiven
) -> onnxruntime.InferenceSession:
    """Return a session on the model as it is: nothing is computed ahead of time from what the model says."""
    warnings.warn(str(given), stacklevel=5)  # at the caller of InferenceSession
    key = OPTION_PREFIX + "compile"
    before = get_entry(options, key)
    set_entry(options, key, "0")
    try:
        data = to_proto(model).SerializeToString() if isinstance(model, ir.Model) else model
        data = data.SerializeToString() if isinstance(data, onnx.ModelProto) else data
        return plain_session(data, options)
    finally:
        set_entry(options, key, OPTIONS["compile"].default if before is None else before)


def foreign_domains(model: ir.Model) -> list[str]:
    """Return the domains of nodes that a library of the user's may define: neither functions nor ONNX Runtime do."""
    known = {*_DOMAINS, OPERATOR_DOMAIN, *(function.domain for function in model.functions.values())}
    return sorted({node.domain for graph in model.graphs() for node in graph} - known)


class _Way(NamedTuple):
    """One way to create a session on a model."""

    made: Callable[[], SessionModel]
    without: str = ""
    """What such a session does without, and how to ask for it: for a warning, where the way before it failed."""


def created(
    source: Source, options: onnxruntime.SessionOptions, choices: Choices, origin: Origin | None
) -> onnxruntime.InferenceSession:
    """Return a session on what is made of a model, or where ONNX Runtime does not take that on as little as possible.

    Where nothing failed, it is kept as made from the origin.

    ONNX Runtime's operators of integers fail for some models of uint8 that it runs as int8, some versions for more, as
    for a rewritten model in which it finds other ones. Where results are to change, the model as it was will not do.
    """
    least = dataclasses.replace(choices, choose_products=False, blocked_layout=False)
    ways = [_Way(functools.partial(session_model, source, options, choices))]
    if least != choices:
        ways.append(_Way(functools.partial(session_model, source, options, least), _WITHOUT_CHOICES))
    if not (choices.remove_quantization or choices.allow_requantization_removal):
        ways.append(_Way(functools.partial(SessionModel, source.model), _WITHOUT_REWRITING))
    *others, last = ways
    answers: list[str] = []
    for way in others:
        failed = failures()
        made = way.made()
        certain = origin if not answers and failures() == failed else None
        try:
            session = _settled_session(made, options, source, certain)
        except InvalidModelError as error:
            answers.append(str(error))
        else:
            break
    else:
        way, session = last, _settled_session(last.made(), options, source, None)
    if answers:
        warnings.warn(_warning_of(answers, way), stacklevel=5)  # at the caller of normfuse.InferenceSession
    forget_made_up_names(session)
    return session


def _warning_of(answers: list[str], way: _Way) -> str:
    """Return the warning that a session was created in a further way, what was tried before having been refused."""
    refused = "; ".join(dict.fromkeys(answers))
    return f"{refused}: that was the model as normfuse prepares it. {way.without} Results are right; please report it."


def _settled_session(
    made: SessionModel, options: onnxruntime.SessionOptions, source: Source, origin: Origin | None
) -> onnxruntime.InferenceSession:
    made.settle(options)
    before = set(disabled_optimizers(options))

    def keep(session: onnxruntime.InferenceSession, data: bytes) -> None:
        names, files = names_of_initializers(source.model)
        needs = Needs(
            keeps_weights=made.keeps_weights,
            leaves_pairs=made.leaves_pairs,
            inlines_late=inlines_late(made.model),
            disabled=sorted(set(disabled_optimizers(options)) - before),
            initializers=names,
            files=files,
            made_up_names=has_made_up_names(session),
        )
        if origin is not None:
            origin.keep(data, needs)

    return _create(made.model, options, source.name, providers=None, keep=None if origin is None else keep)


class SessionModel(NamedTuple):
    """What a session is created on, and what its options have to say for that."""

    model: ir.Model
    keeps_weights: bool = False
    """ONNX Runtime is not to make integers of float weights: dequantised ones, or those of blocked convolutions."""
    leaves_pairs: bool = False
    """ONNX Runtime is to leave QuantizeLinear and DequantizeLinear as they are."""
    written: Rewritten | None = None
    """What the rewriting pass made of the model first."""

    def settle(self, options: onnxruntime.SessionOptions) -> None:
        """Say it; what an earlier session on these options needed is taken back."""
        settle(options, keeps_weights=self.keeps_weights, leaves_pairs=self.leaves_pairs)


@dataclasses.dataclass(frozen=True)
class Choices:
    """What :class:`normfuse.InferenceSession` may do to a model, by the names of its arguments."""

    fold_weights: bool = True
    choose_products: bool = True
    blocked_layout: bool = True
    allow_requantization_removal: bool = False
    remove_quantization: bool = False


def session_model(source: Source, options: onnxruntime.SessionOptions, choices: Choices) -> SessionModel:
    """Return what :class:`normfuse.InferenceSession` makes of a model.

    Args:
        source: The model as it was loaded.
        options: Those of the session.
        choices: What may be done.
    """
    from normfuse.graph_rewrites import Treatment
    from normfuse.graph_rewrites.quantized_products import activation_types

    if choices.remove_quantization or (choices.choose_products and gain_as_pairs(options)):
        source = in_pairs(source)
    treatment = Treatment(
        allow_requantization_removal=choices.allow_requantization_removal,
        remove_quantization=choices.remove_quantization,
        fold_weights="session" if choices.fold_weights else "never",
    )

    has_bytes = not activation_types(source.model).isdisjoint((ir.DataType.INT8, ir.DataType.UINT8))

    def rewrite(target: Target, products: Products) -> Rewritten:
        blocks = target == "custom-op"
        further = dataclasses.replace(treatment, products=products, shapes_of_integers=has_bytes and not blocks)
        return rewritten(source, target, dataclasses.replace(further, drop_repeated_pairs=blocks))

    forms: list[Products] = _forms_of_products(source.model) if choices.choose_products else ["as they are"]
    if choices.blocked_layout and may_gain(source.model, options):
        for products in forms:
            found = _laid_out(functools.partial(rewrite, products=products), options, in_float=products == "float")
            if found is not None:
                return found
    result = rewrite("portable", forms[-1])
    return SessionModel(result.model, keeps_weights=result.weights.guarded > 0, written=result)


def _forms_of_products(model: ir.Model) -> list[Products]:
    """Return what may become of products of 8 bits, the best first: in float only with the layout of convolutions."""
    from normfuse.graph_rewrites.product_times import are_faster_in_float
    from normfuse.graph_rewrites.quantized_products import activation_types
    from normfuse.graph_rewrites.quantized_weights import is_x86

    first: list[Products] = ["float"] if is_x86() and are_faster_in_float(model) else []
    if ir.DataType.INT8 not in activation_types(model):
        return [*first, "as they are"]
    return [*first, "exact integer" if sums_saturate() else "integer"]


def _laid_out(
    rewrite: Callable[[Target], Rewritten], options: onnxruntime.SessionOptions, *, in_float: bool
) -> SessionModel | None:
    """Return a convolution network in the layout of its convolutions; None: that is no gain."""
    from normfuse.graph_rewrites.integer_operators import has_products_of_integers

    result = rewrite("custom-op")
    if result.weights.relying or has_products_of_integers(result.model):
        return None if in_float else _channels_last(rewrite("standard"), options)
    found = blocked(result.model, options)
    if found is None:
        return None
    # Nothing of it runs in integers.
    has_pairs = any(node.op_type == "QuantizeLinear" for node in found.graph)
    return SessionModel(found, keeps_weights=True, leaves_pairs=has_pairs, written=result)


def _channels_last(result: Rewritten, options: onnxruntime.SessionOptions) -> SessionModel | None:
    keeps_weights = result.weights.guarded > 0
    found = channels_last(result.model, options, [QUANTIZES_WEIGHTS] if keeps_weights else [])
    return None if found is None else SessionModel(found, keeps_weights=keeps_weights, written=result)


def open_session(
    model: ir.Model | SessionModel,
    name: str,
    *,
    ep_options: dict[str, Any] | None = None,
    level: Level = "all",
    threads: int = 0,
    sess_options: onnxruntime.SessionOptions | None = None,
) -> onnxruntime.InferenceSession:
    """Return a session for measuring and comparing: quiet, and with the execution provider only if options are given.

    Args:
        model: The model; a :class:`SessionModel` also says what its session's options need.
        name: What it is called in messages.
        ep_options: Options of the execution provider, {} for its defaults; None: ONNX Runtime's CPU provider alone,
            with the custom operators if the model cannot run without them.
        level: ONNX Runtime's own graph optimisations.
        threads: Threads inside an operator; 0: ONNX Runtime's default.
        sess_options: Session options to use; None: new ones.

    Raises:
        InvalidModelError: ONNX Runtime cannot load the model.
        NormfuseError: Whatever :func:`normfuse.session_options` raises.
    """
    host = import_host() if ep_options is None else load_host()
    options = sess_options or host.SessionOptions()
    levels = host.GraphOptimizationLevel
    options.graph_optimization_level = {
        "disable": levels.ORT_DISABLE_ALL,
        "basic": levels.ORT_ENABLE_BASIC,
        "extended": levels.ORT_ENABLE_EXTENDED,
        "all": levels.ORT_ENABLE_ALL,
    }[level]
    options.log_severity_level = 4
    # Threads that wait for work of one session must not take the processor from the next one.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    if threads:
        options.intra_op_num_threads = threads
    made = model if isinstance(model, SessionModel) else SessionModel(model)
    made.settle(options)
    if ep_options is not None:
        session_options(options, **ep_options)
        return _create(made.model, options, name, providers=None)
    if needs_library(made.model):
        options.register_custom_ops_library(get_library_path())
    return _create(made.model, options, name, providers=["CPUExecutionProvider"])


def needs_library(model: ir.Model) -> bool:
    """Whether the model has nodes of normfuse's operators without a function that says what they do."""
    bodies = {(function.domain, function.name) for function in model.functions.values()}
    return any(
        node.domain == OPERATOR_DOMAIN and (node.domain, node.op_type) not in bodies
        for graph in (*model.graphs(), *model.functions.values())
        for node in graph
    )


def _create(
    model: ir.Model,
    options: onnxruntime.SessionOptions,
    name: str,
    providers: list[str] | None,
    keep: Callable[[onnxruntime.InferenceSession, bytes], None] | None = None,
) -> onnxruntime.InferenceSession:
    """Return a session; what it was created on is kept if that is the whole model."""
    if providers is None:
        choose_inlining(options, model)
        avoid_float16_fault(options, model)
    with runnable(model) as (data, folder):
        users = users_entry(options, EXTERNAL_DATA_FOLDER)
        if folder is not None and users is None:
            choose_entry(options, EXTERNAL_DATA_FOLDER, folder)
        elif folder is not None:
            set_entry(options, EXTERNAL_DATA_FOLDER, folder)
        try:
            session = plain_session(data, sess_options=options, providers=providers, enable_fallback=0)
        except Exception as error:  # onnxruntime raises one class of its own for each status code
            raise _translated(error, name) from error
        finally:
            if users is not None:
                set_entry(options, EXTERNAL_DATA_FOLDER, users)
    if providers is None and EP_NAME not in session.get_providers():
        raise LibraryLoadError(f"onnxruntime created a session for {name} without {EP_NAME}.")
    if keep is not None and isinstance(data, bytes) and folder is None:
        keep(session, data)
    return session


def _translated(error: Exception, name: str) -> Exception:
    text = words_of(error)
    # What the library itself objects to is an option (DirectML is one), or the environment variable that chooses the
    # instruction set.
    own = re.search(rf"{EP_NAME}: .*option.*|DirectML path: .*|The environment variable NORMFUSE_ISA.*", text)
    if own is not None:
        return OptionError(own[0])
    return InvalidModelError(f"onnxruntime cannot load {name}: {text.splitlines()[0]}")
