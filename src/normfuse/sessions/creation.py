"""Ordinary ONNX Runtime sessions, with and without the execution provider."""

from __future__ import annotations

import normfuse.quick_imports  # noqa: F401 -- before what imports onnx_ir

# isort: split

import collections
import contextlib
import functools
import logging
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import onnx
import onnx_ir as ir

from normfuse.collection import give_back_memory
from normfuse.errors import InvalidModelError, LibraryLoadError, OptionError
from normfuse.files.model_files import ModelLike, Source, external_tensors, load_model, runnable, to_proto
from normfuse.graph_rewrites.engine.traversal import graphs_of
from normfuse.host.config_entries import (
    EXTERNAL_DATA_FOLDER,
    disabled_optimizers,
    users_entry,
)
from normfuse.host.float16 import avoid_float16_fault
from normfuse.host.given_initializers import InitializersGiven, require_none_of
from normfuse.host.inlining import choose_inlining, inlines_late
from normfuse.host.messages import words_of
from normfuse.host.native_library import EP_NAME, get_library_path
from normfuse.host.needs import SUMMARY, Needs, data_in
from normfuse.host.output_shapes import forget_made_up_names, has_made_up_names
from normfuse.host.plain_sessions import plain_session
from normfuse.host.session import session_options
from normfuse.host.versions import import_host, load_host
from normfuse.sessions import AllowedChanges
from normfuse.sessions.host_optimization import count_failures
from normfuse.sessions.prepared_models import Origin, state_of
from normfuse.sessions.session_model import SessionModel, session_model
from normfuse.spec import OPERATOR_DOMAIN

if TYPE_CHECKING:
    import onnxruntime

    _Keep: TypeAlias = Callable[[onnxruntime.InferenceSession, bytes | Path, str], None]
    """Keeps what a session was created on, with its external data in a folder ("": it has none)."""


_log = logging.getLogger("normfuse")

Level = Literal["disable", "basic", "extended", "all"]
# What a session loses that is created on a plainer form, since ONNX Runtime refused the prepared model.
_IN_HOST_TYPES_AND_LAYOUT = (
    "The session runs it rewritten, but with products in the types, and chains in the layout, that ONNX Runtime "
    "chooses: what other ones would gain is lost. choose_products=False, blocked_layout=False asks for that at once."
)
_WITHOUT_REWRITING = (
    "The session runs it as it is given, not rewritten: only chains of standard operators gain. "
    "onnxruntime.InferenceSession(model, normfuse.session_options()) is the same at once."
)
# The operator domains of ONNX and of ONNX Runtime.
_DOMAINS = (
    "",
    "ai.onnx",
    "ai.onnx.ml",
    "ai.onnx.preview.training",
    "com.microsoft",
    "com.microsoft.nchwc",
    "com.ms.internal.nhwc",
)


class GivenModel:
    """The model that a user gave, loaded again each time that a fresh copy is needed."""

    def __init__(self, model: ModelLike, options: onnxruntime.SessionOptions | None) -> None:
        """Load a model as a session with the user's options would.

        Raises:
            InitializersGiven: The options replace some of its initializers.
            InvalidModelError: It cannot be read.
        """
        self._model, self._options = model, options
        self.initializers: tuple[list[str], list[str]] = ([], [])
        self.data: dict[str, object] = {}
        """Files with external data of the model, and the state by which a later change is recognised."""
        self.summary: dict[str, object] = {}
        """`Needs.summary`, for the report."""
        self._loaded: Source | None = self._load()
        self.name, self.kind = self._loaded.name, self._loaded.kind
        #: Whether the loaded model belongs to normfuse alone.
        self.is_own = self._loaded is not model and self._loaded.kind not in ("ir", "program")
        self.foreign_domains = foreign_domains(self._loaded.model)

    def take(self) -> Source:
        """Return the model, which is no longer stored here: it may be changed if `is_own`."""
        source, self._loaded = self._loaded or self._load(), None
        return source

    def _load(self) -> Source:
        folder = None if self._options is None else users_entry(self._options, EXTERNAL_DATA_FOLDER)
        return load_model(self._model, folder, before_data=self._look_at)

    def _look_at(self, model: ir.Model) -> None:
        self.initializers = _names_of_initializers(model)
        require_none_of(self._options, *self.initializers)
        with contextlib.suppress(OSError):  # whoever loads it says so
            paths = {str(Path(tensor.path).absolute()) for tensor in external_tensors(model)}
            self.data = {path: state_of(path) for path in paths}

    def prepare(self, options: onnxruntime.SessionOptions, allowed: AllowedChanges) -> SessionModel:
        """Return the prepared model for a session."""
        made = session_model(self.take(), options, allowed, again=self.take if self.is_own else None)
        _log.info("%s", made)
        kinds = [site.kind for site in made.written.sites if site.fused_into] if made.written else []
        self.summary = {"plan": str(made), "fused": dict(collections.Counter(kinds))}
        return made._replace(written=None)

    def take_original(self) -> SessionModel:
        """Return the model, not rewritten."""
        self.summary = {}
        return SessionModel(self.take().model)


def _names_of_initializers(model: ir.Model) -> tuple[list[str], list[str]]:
    """Return the names of a model's initializers, and those of the files that hold their data.

    ONNX Runtime turns Constant nodes into initializers before it replaces those that the options give.
    """
    graphs = graphs_of(model.graph)
    names = [value.name or "" for graph in graphs for value in graph.initializers.values()]
    names += [node.outputs[0].name or "" for graph in graphs for node in graph if node.op_type == "Constant"]
    files = {str(getattr(value.const_value, "location", "")) for value in model.graph.initializers.values()} - {""}
    return names, sorted(files)


def create_on_original(
    model: ModelLike, options: onnxruntime.SessionOptions, given: InitializersGiven
) -> onnxruntime.InferenceSession:
    """Return a session on the original model: the execution provider sees the initializers that the options give."""
    warnings.warn(str(given), stacklevel=5)  # at the caller of InferenceSession
    data = to_proto(model).SerializeToString() if isinstance(model, ir.Model) else model
    data = data.SerializeToString() if isinstance(data, onnx.ModelProto) else data
    return plain_session(data, options)


def foreign_domains(model: ir.Model) -> list[str]:
    """Return the domains of nodes that only a library of the user can define: no function, nor ONNX Runtime."""
    known = {*_DOMAINS, OPERATOR_DOMAIN, *(function.domain for function in model.functions.values())}
    return sorted({node.domain for graph in graphs_of(model.graph) for node in graph} - known)


def create_or_fall_back(
    given: GivenModel, options: onnxruntime.SessionOptions, allowed: AllowedChanges, origin: Origin | None
) -> onnxruntime.InferenceSession:
    """Return a session on the prepared model; if ONNX Runtime refuses that, on one with fewer changes.

    If nothing failed, the prepared model is cached.

    ONNX Runtime's QLinear operators fail for some uint8 models that it runs as int8 (in some versions for more), and
    for some rewritten models in which it makes others. Where results are to change, the original is no substitute.
    """
    in_file = allowed.keeps_results and given.kind in ("path", "bytes")
    least = allowed._replace(choose_products=False, blocked_layout=False)
    ways = {"": functools.partial(given.prepare, options, allowed)}
    if least != allowed:
        ways[_IN_HOST_TYPES_AND_LAYOUT] = functools.partial(given.prepare, options, least)
    if allowed.keeps_results:
        ways[_WITHOUT_REWRITING] = functools.partial(given.take_original)
    answers: dict[str, None] = {}
    *_, last = ways
    for without in ways:
        try:
            session = _create_and_keep(ways[without], options, given, None if answers else origin, in_file=in_file)
            break
        except InvalidModelError as error:
            if without == last:
                raise
            answers[str(error)] = None
    if answers:
        refused = f"{'; '.join(answers)}: that was the model as normfuse prepares it."
        # At the caller of normfuse.InferenceSession.
        warnings.warn(f"{refused} {without} Results are right; please report it.", stacklevel=5)
    forget_made_up_names(session)
    vars(session)[SUMMARY] = given.summary
    return session


def _create_and_keep(
    make: Callable[[], SessionModel],
    options: onnxruntime.SessionOptions,
    given: GivenModel,
    origin: Origin | None,
    *,
    in_file: bool,
) -> onnxruntime.InferenceSession:
    failed = count_failures()
    made = make()
    made.configure(options)
    before = set(disabled_optimizers(options))
    keeps_weights, leaves_qdq, as_given = made.keeps_weights, made.leaves_qdq, made.as_given
    late = inlines_late(made.model)

    def keep(session: onnxruntime.InferenceSession, data: bytes | Path, folder: str) -> None:
        names, files = given.initializers
        needs = Needs(
            keeps_weights=keeps_weights,
            leaves_qdq=leaves_qdq,
            inlines_late=late,
            disabled=sorted(set(disabled_optimizers(options)) - before),
            initializers=names,
            files=files,
            folder="" if as_given else folder,
            contents=[],
            summary=given.summary,
            as_given=as_given,
            made_up_names=has_made_up_names(session),
            weights=[],
            whole="",
        )
        if origin is not None:
            origin.keep(b"" if as_given else data, needs, given.data)

    certain = origin is not None and count_failures() == failed
    models = [made.model]
    del made
    return _create(models, options, given.name, providers=None, keep=keep if certain else None, in_file=in_file)


def open_session(
    model: ir.Model | SessionModel,
    name: str,
    *,
    ep_options: dict[str, Any] | None = None,
    level: Level = "all",
    threads: int = 0,
    sess_options: onnxruntime.SessionOptions | None = None,
) -> onnxruntime.InferenceSession:
    """Return a session for measuring and comparing: no log, and the execution provider only if options are given.

    Args:
        model: The model; a :class:`SessionModel` also has the settings that its session needs.
        name: Its name in messages.
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
    made.configure(options)
    if ep_options is not None:
        session_options(options, **ep_options)
        return _create([made.model], options, name, providers=None)
    if needs_library(made.model):
        options.register_custom_ops_library(get_library_path())
    return _create([made.model], options, name, providers=["CPUExecutionProvider"])


def needs_library(model: ir.Model) -> bool:
    """Whether the model has nodes of normfuse's operators that no function in it defines."""
    bodies = {(function.domain, function.name) for function in model.functions.values()}
    return any(
        node.domain == OPERATOR_DOMAIN and (node.domain, node.op_type) not in bodies
        for graph in (*graphs_of(model.graph), *model.functions.values())
        for node in graph
    )


def _create(
    models: list[ir.Model],
    options: onnxruntime.SessionOptions,
    name: str,
    providers: list[str] | None,
    keep: _Keep | None = None,
    in_file: bool = False,
) -> onnxruntime.InferenceSession:
    """Return a session on the model in the list, which is emptied; `keep` is called if the model is one file or bytes.

    `in_file`: a temporary file will do, since the caller then sets what the session is recreated from.
    """
    if providers is None:
        choose_inlining(options, models[0])
        avoid_float16_fault(options, models[0])
    with runnable(models.pop(), in_file=in_file) as (data, folder):
        if in_file and not isinstance(data, bytes):
            give_back_memory()  # of the model, for onnxruntime
        try:
            given = data if isinstance(data, bytes) else str(data)
            with data_in(options, folder):
                session = plain_session(given, sess_options=options, providers=providers, enable_fallback=0)
        except Exception as error:  # onnxruntime raises one class of its own for each status code
            raise _translate(error, name) from error
        if keep is not None and (isinstance(data, bytes) or not data.with_name(f"{data.name}.data").exists()):
            keep(session, data, folder or "")
    if providers is None and EP_NAME not in session.get_providers():
        raise LibraryLoadError(f"onnxruntime created a session for {name} without {EP_NAME}.")
    return session


def _translate(error: Exception, name: str) -> Exception:
    text = words_of(error)
    # The library itself rejects only an option (DirectML is one), or the environment variable that chooses the
    # instruction set.
    own = re.search(rf"{EP_NAME}: .*option.*|DirectML path: .*|The environment variable NORMFUSE_ISA.*", text)
    if own is not None:
        return OptionError(own[0])
    return InvalidModelError(f"onnxruntime cannot load {name}: {text.splitlines()[0]}")
