"""How :class:`normfuse.InferenceSession` and applications create sessions: from the cache, or by `creation`.

Where a prepared model is cached (see `prepared_models`), neither onnx, onnx_ir nor the rewriting pass is imported.
"""

from __future__ import annotations

import contextlib
import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from normfuse.collection import without_collection
from normfuse.errors import OptionError
from normfuse.host.config_entries import disable_optimizer, get_entry
from normfuse.host.given_initializers import InitializersGiven, require_none_of
from normfuse.host.messages import words_of
from normfuse.host.native_library import EP_NAME
from normfuse.host.needs import SUMMARY, data_in
from normfuse.host.options_copy import copied, has_providers, lock_of
from normfuse.host.plain_sessions import plain_session, recreate_from
from normfuse.host.session import BACKEND_KEY, ERRORS_ONLY, session_options
from normfuse.host.versions import load_host
from normfuse.sessions import AllowedChanges
from normfuse.sessions.prepared_models import Origin

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import onnxruntime

    from normfuse.files.model_files import ModelLike

_log = logging.getLogger("normfuse")


class LeftToHost(Exception):  # noqa: N818 -- no error
    """An application's session is left to onnxruntime: the message is why."""


class _Request(NamedTuple):
    """The arguments that a session is created with."""

    model: ModelLike
    given: onnxruntime.SessionOptions | None
    """The user's options."""
    complete: Callable[[onnxruntime.SessionOptions | None], onnxruntime.SessionOptions]
    """Adds the execution provider, with its options, to session options."""
    allowed: AllowedChanges
    of_application: bool


def create_session(
    model: ModelLike,
    sess_options: onnxruntime.SessionOptions | None = None,
    disabled: Iterable[str] | None = None,
    *,
    of_application: bool = False,
    **given: Any,
) -> onnxruntime.InferenceSession:
    """Return ONNX Runtime's own session on the prepared model, which :class:`normfuse.InferenceSession` wraps.

    Raises:
        LeftToHost: The session is ``of_application``, and better left to onnxruntime.
        InitializersGiven: It is ``of_application``, and the options give initializers.
        NormfuseError: What :class:`normfuse.InferenceSession` raises.
    """

    def complete(options: onnxruntime.SessionOptions | None) -> onnxruntime.SessionOptions:
        options = session_options(options, model=None, **given)
        disable_optimizer(options, *(disabled or ()))
        return options

    allowed = AllowedChanges(**{name: given.pop(name) for name in AllowedChanges._fields if name in given})
    own = _copy_of(sess_options, of_application)
    with lock_of(own) if _are_options(own) else contextlib.nullcontext():
        options = complete(own)
        if get_entry(options, BACKEND_KEY) == "directml":
            allowed = allowed._replace(choose_products=False, blocked_layout=False)
        asked = _Request(model, sess_options, complete, allowed, of_application)
        origin = Origin.of(model, options, allowed)
        session = _create_on_prepared(asked, options, origin)
        prepared = session is not None
        if session is None:
            with without_collection():
                session = _create_on_rewritten(asked, options, origin)
    vars(session)["_normfuse_prepared"] = prepared  # applications report it
    if allowed.keeps_results:
        if isinstance(model, (str, os.PathLike)):
            recreate_from(session, str(Path(model).resolve()))
        elif isinstance(model, (bytes, bytearray, memoryview)):
            recreate_from(session, bytes(model))
    return session


def _are_options(options: object) -> bool:
    return isinstance(options, load_host().SessionOptions)


def _copy_of(options: onnxruntime.SessionOptions | None, of_application: bool) -> onnxruntime.SessionOptions | None:
    """Return a copy, or the options themselves where a session needs what a copy would lack: never an application's."""
    if options is None or not _are_options(options):
        return options
    if not of_application and (has_providers(options) or get_entry(options, BACKEND_KEY)):
        return options
    try:
        copy = copied(options)
    except Exception:  # a private part of onnxruntime, which may be removed: `given_initializers` says so
        if of_application:
            raise
        return options
    if copy.log_severity_level < 0:  # the default, with which ONNX Runtime warns of each node that it runs itself
        copy.log_severity_level = ERRORS_ONLY
    return copy


def _create_on_prepared(
    asked: _Request, options: onnxruntime.SessionOptions, origin: Origin | None
) -> onnxruntime.InferenceSession | None:
    """Return a session on a cached prepared model; None: there is none that can be used."""
    found = None if origin is None else origin.find()
    if origin is None or found is None:
        return None
    needs = found.needs
    try:
        require_none_of(asked.given, needs.initializers, needs.files)
        needs.configure(options)
        with origin.whole(found) as file, data_in(options, needs.folder):
            data = asked.model if needs.as_given else file.read_bytes() if needs.folder else file
            data = os.fspath(data) if isinstance(data, (str, os.PathLike)) else bytes(data)  # type: ignore[arg-type] # no other
            session = plain_session(data, sess_options=options, providers=None, enable_fallback=0)
            if not asked.allowed.keeps_results:
                recreate_from(session, file.read_bytes())  # the original model would give other results
    except Exception as error:  # whatever it is: without the cache it is reported, or does not matter
        _log.info("No session on the prepared model %s: %s", found.path, words_of(error).splitlines()[0])
        return None
    if EP_NAME not in session.get_providers():
        return None
    vars(session)[SUMMARY] = needs.summary
    if needs.made_up_names:
        from normfuse.host.output_shapes import forget_made_up_names

        forget_made_up_names(session)
    _log.info("The session is on the prepared model %s.", found.path)
    return session


def _create_on_rewritten(
    asked: _Request, options: onnxruntime.SessionOptions, origin: Origin | None
) -> onnxruntime.InferenceSession:
    from normfuse.sessions import creation as sessions

    given = asked.given if _are_options(asked.given) else None
    try:
        model = sessions.GivenModel(asked.model, given)
    except InitializersGiven as found:
        if asked.of_application:
            raise
        if asked.allowed.exact_products:
            raise OptionError(f"{found} exact_products=True needs it rewritten.") from found
        with lock_of(given):
            return sessions.create_on_original(asked.model, asked.complete(given), found)
    foreign = model.foreign_domains
    if foreign and asked.of_application:
        raise LeftToHost(f"it has operators of {', '.join(foreign)}, of a library that its options may name")
    if not foreign or given is None:
        return sessions.create_or_fall_back(model, options, asked.allowed, None if foreign else origin)
    with lock_of(given):  # a copy lacks the library
        return sessions.create_or_fall_back(model, asked.complete(given), asked.allowed, None)
