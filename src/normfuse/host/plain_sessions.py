"""ONNX Runtime's own sessions, whatever was done to the name or to the class by :func:`normfuse.install`."""

from __future__ import annotations

import importlib
from typing import Any

from normfuse.host.versions import import_host

#: The module that defines the class. ``onnxruntime.InferenceSession`` may be something else by now.
INNER_MODULE = "onnxruntime.capi.onnxruntime_inference_collection"
#: The method that ``__init__``, ``set_providers`` and the fallback call to create a session.
CREATION = "_create_inference_session"
#: Attribute of the replacement of that method: the original method.
ORIGINAL = "_normfuse_original"


def host_class() -> Any:
    """Return onnxruntime's class ``InferenceSession``.

    Raises:
        HostVersionError: onnxruntime is not installed or cannot be imported.
    """
    import_host()
    return importlib.import_module(INNER_MODULE).InferenceSession


def plain_session(*arguments: Any, **named: Any) -> Any:
    """Return a session of onnxruntime's own, created as if normfuse were not installed in this process."""
    host = host_class()
    creation = getattr(host, CREATION, None)
    original = getattr(creation, ORIGINAL, None)
    if original is None:
        return host(*arguments, **named)
    own = type("InferenceSession", (host,), {CREATION: original, "__module__": host.__module__})
    return own(*arguments, **named)


def recreate_from(session: Any, model: str | bytes) -> None:
    """Let a session store a path or bytes of a model with the same results, instead of the prepared model.

    onnxruntime's class stores the bytes of its model as long as it lives, to be created again with other providers:
    for a rewritten model that is a second copy of all weights.
    """
    if not hasattr(session, "_model_path") or not hasattr(session, "_model_bytes"):
        return  # a version that keeps something else, or nothing
    is_path = isinstance(model, str)
    session._model_path = model if is_path else None
    session._model_bytes = None if is_path else model
