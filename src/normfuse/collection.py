"""Python's garbage collection around the rewriting of a model, whose values and nodes refer to each other.

What is made in the meantime stays in the youngest generation, so that all of it is given back in one go, without a look
at what else the process has; and the collector does not go through the growing graph again and again.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import sys
import threading
from collections.abc import Iterator

_lock = threading.Lock()
_inside = 0
_was_enabled = False


@contextlib.contextmanager
def without_collection() -> Iterator[None]:
    """Switch the collector off, for as long as any thread is in such a context."""
    global _inside, _was_enabled
    with _lock:
        if _inside == 0:
            _was_enabled = gc.isenabled()
            gc.disable()
        _inside += 1
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            if _inside == 0 and _was_enabled:
                gc.enable()


def collect_young() -> None:
    """Give back what was made within such a context and is used no longer."""
    gc.collect(0)


def give_back_memory() -> None:
    """Give back what was made within such a context, and have glibc give what is free to the system: it keeps it."""
    collect_young()
    if sys.platform == "linux" and (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)) is not None:
        trim(0)
