"""A copy of a user's session options, so that the settings of one session do not change theirs."""

from __future__ import annotations

import contextlib
import threading
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from normfuse.host.versions import import_host

if TYPE_CHECKING:
    import onnxruntime

# The smallest model there is: a graph with a name and Identity from x to y.
_TINY = bytes.fromhex(
    "08083a370a100a017812017922084964656e746974791201675a0f0a0178120a0a08080112040a02"
    "0801620f0a0179120a0a08080112040a02080142040a001011"
)
_LOCKS: WeakKeyDictionary[object, AbstractContextManager[object]] = WeakKeyDictionary()


def lock_of(options: onnxruntime.SessionOptions) -> AbstractContextManager[object]:
    """Return a lock, so that one thread at a time works with the same options."""
    return _LOCKS.setdefault(options, threading.RLock())


def has_providers(options: onnxruntime.SessionOptions) -> bool:
    """Whether providers were added to the options themselves; False also if ONNX Runtime cannot tell."""
    return bool(getattr(options, "has_providers", bool)())


def copied(options: onnxruntime.SessionOptions) -> onnxruntime.SessionOptions:
    """Return a copy; providers and libraries of operators that were added to the options are not in it.

    ONNX Runtime cannot copy options, but a session has a copy of its own, and gives access to it. It is created on a
    tiny model, and not initialised; if it begins a file of profiles, that is removed.
    """
    state: Any = import_host().capi._pybind_state
    session = state.InferenceSession(options, _TINY, False, False)
    if options.enable_profiling:
        with contextlib.suppress(OSError):  # a folder that is only read
            Path(session.end_profiling()).unlink()
    copy: onnxruntime.SessionOptions = session.session_options
    return copy
