"""Whether one session of an application runs with normfuse, or without it, with a line in the log that says why."""

from __future__ import annotations

import fnmatch
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from normfuse.applications.log import logger
from normfuse.applications.report import note

#: Models that run without normfuse: patterns of paths or file names as in a shell, or ``@dynamic``.
EXCLUDE = "NORMFUSE_EXCLUDE"
_DYNAMIC = "@dynamic"
# Operators whose scale depends on the data of a run. Their names are in the file as plain text.
_DYNAMIC_OPERATORS = (b"DynamicQuantizeLinear", b"MatMulInteger", b"ConvInteger", b"DynamicQuantize")
# Attributes that onnxruntime's __init__ has already set in the session, from the application's arguments.
_KEPT = frozenset(
    (
        *("_model_path", "_model_bytes", "_sess_options_initial", "_enable_fallback"),
        *("_read_config_from_model", "_from_model_package", "_captured_graph_bindings"),
    )
)


def taken_over(session: Any, providers: Any, provider_options: Any, disabled_optimizers: Any) -> bool:
    """Create the inner session with normfuse; False: onnxruntime creates it, as if normfuse were not installed."""
    name = session._model_path or "a model of bytes"
    try:
        from normfuse.host.provider_names import ProviderNames
        from normfuse.host.versions import load_host

        load_host()
        names = ProviderNames.given(providers)
        reason = _reason(session, providers, names)
        began = time.perf_counter()
        inner = reason or _created(session, disabled_optimizers)
        if isinstance(inner, str):
            logger().info("leaves %s alone: %s", name, inner)
            note(session, name, 0, inner)
            return False
        names.check(providers, provider_options)
        vars(session).update({key: value for key, value in vars(inner).items() if key not in _KEPT})
        names.tell(session)
        seconds = time.perf_counter() - began
        logger().info("runs %s; created in %.2f s", name, seconds)
        note(session, name, seconds, None)
        return True
    except Exception as error:  # on any error, the application gets the session that it would have without normfuse
        logger().warning("leaves %s to onnxruntime alone: %s: %s", name, type(error).__name__, error)
        note(session, name, 0, f"{type(error).__name__}: {error}")
        return False


def _created(session: Any, disabled_optimizers: Any) -> Any:
    """Return onnxruntime's own session with normfuse, or why there is none."""
    from normfuse.sessions.cached import LeftToHost, create_session

    given = session._model_path or session._model_bytes
    try:
        return create_session(given, session._sess_options, disabled_optimizers, of_application=True)
    except LeftToHost as reason:
        return str(reason)


def _reason(session: Any, providers: Any, names: Any) -> str | None:
    """Return why a session runs without normfuse, as far as that is known before its model is read."""
    options = session._sess_options
    checks: tuple[Callable[[], str | None], ...] = (
        lambda: _of_providers(providers, names, session),
        lambda: None if options is None else _of_options(options),
        lambda: _of_format(session),
        lambda: "the model says how it is run" if session._read_config_from_model else None,
        lambda: _excluded(session._model_path, session._model_bytes),
    )
    return next(filter(None, (check() for check in checks)), None)


def _of_providers(providers: Any, names: Any, session: Any) -> str | None:
    if providers is not None and providers is getattr(session, "_fallback_providers", None):
        return "a provider failed, and onnxruntime falls back"
    reason: str | None = names.reason(falls_back=session._enable_fallback)
    return reason


def _of_options(options: Any) -> str | None:
    from normfuse.host.config_entries import get_entry
    from normfuse.host.options_copy import has_providers
    from normfuse.host.versions import import_host

    if has_providers(options):
        return "its options have providers"
    if options.graph_optimization_level == import_host().GraphOptimizationLevel.ORT_DISABLE_ALL:
        return "its options switch optimisation off"
    if options.optimized_model_filepath:
        return "its options have optimized_model_filepath"
    if (get_entry(options, "session.load_model_format") or "").upper() == "ORT":
        return "the model is in ONNX Runtime's own format"
    return None


def _of_format(session: Any) -> str | None:
    path, data = session._model_path, session._model_bytes
    if path is not None and Path(path).exists() and not Path(path).is_file():
        return "the model is no regular file"  # a pipe is read once
    ort = str(path).lower().endswith(".ort") if path is not None else data[4:8] == b"ORTM"
    return "the model is in ONNX Runtime's own format" if ort else None


def _excluded(path: str | None, data: bytes | None) -> str | None:
    for pattern in filter(None, os.environ.get(EXCLUDE, "").split(os.pathsep)):
        if pattern == _DYNAMIC:
            content = data if path is None else Path(path).read_bytes()
            if content is not None and any(operator in content for operator in _DYNAMIC_OPERATORS):
                return f"it quantises dynamically, and {EXCLUDE} has {_DYNAMIC}"
        elif path is not None:
            where = Path(path)
            if any(fnmatch.fnmatch(text, pattern) for text in (str(path), str(where.resolve()), where.name)):
                return f"{EXCLUDE} has {pattern}"
    return None
