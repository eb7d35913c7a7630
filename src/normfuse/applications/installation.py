"""Let each ``onnxruntime.InferenceSession`` of the process be one of normfuse's.

The method of the class that ``__init__``, ``set_providers`` and the fallback call is replaced, so that names that were
imported before, subclasses and isinstance still work. Nothing is imported before onnxruntime is: a finder waits until
its module is executed, and is not removed, since others may only look for the module (``find_spec``).
"""

from __future__ import annotations

import functools
import sys
import threading
from typing import TYPE_CHECKING, Any

from normfuse.applications.report import time_runs

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from types import ModuleType

# As in normfuse.host.plain_sessions, which imports more than may be imported here.
_MODULE = "onnxruntime.capi.onnxruntime_inference_collection"
_METHOD = "_create_inference_session"
_ORIGINAL = "_normfuse_original"
_LOCK = threading.RLock()


def install() -> None:
    """Make each ``onnxruntime.InferenceSession`` that this process creates from now on one that runs with normfuse.

    Also for code that has imported the name already, and for subclasses. Sessions on other providers than the CPU's,
    and those that docs/pages/applications.md lists, are plain ones; after any error there is a plain session and a
    line on the logger "normfuse". Calling it again changes nothing.
    """
    with _LOCK:
        if _FINDER not in sys.meta_path:
            sys.meta_path.insert(0, _FINDER)
        module = sys.modules.get(_MODULE)
        if module is not None:
            _replace(module)


def uninstall() -> None:
    """Undo :func:`install`: sessions created from now on are plain ones. Existing sessions do not change."""
    with _LOCK:
        if _FINDER in sys.meta_path:
            sys.meta_path.remove(_FINDER)
        host = getattr(sys.modules.get(_MODULE), "InferenceSession", None)
        original = getattr(vars(host).get(_METHOD), _ORIGINAL, None) if host is not None else None
        if original is not None:
            setattr(host, _METHOD, original)


def _replace(module: ModuleType) -> None:
    host = getattr(module, "InferenceSession", None)
    original = getattr(host, _METHOD, None)
    if original is None or hasattr(original, _ORIGINAL):
        return  # an onnxruntime without this method, or a second call

    @functools.wraps(original)
    def create(self: Any, providers: Any = None, provider_options: Any = None, disabled_optimizers: Any = None) -> None:
        from normfuse.applications.takeover import taken_over

        if not taken_over(self, providers, provider_options, disabled_optimizers):
            original(self, providers, provider_options, disabled_optimizers)

    setattr(create, _ORIGINAL, original)
    setattr(host, _METHOD, create)
    time_runs(host)


class _Finder:
    """Finds the one module by the other finders, and changes it after it was executed."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name != _MODULE:
            return None
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = None if finder is self or find is None else find(name, path, target)
            if spec is not None:
                _let_replace(spec.loader)
                return spec
        return None


def _let_replace(loader: Any) -> None:
    execute = getattr(loader, "exec_module", None)
    if execute is None:
        return

    def exec_module(module: ModuleType) -> None:
        execute(module)
        with _LOCK:
            if _FINDER in sys.meta_path:
                _replace(module)

    loader.exec_module = exec_module


_FINDER: Any = _Finder()
