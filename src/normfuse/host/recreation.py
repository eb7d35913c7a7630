"""What an onnxruntime.InferenceSession is created from once more, when its providers are set again.

onnxruntime's Python class keeps the bytes that it was given for that, for as long as it lives: of a rewritten model a
second copy of all weights.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import onnxruntime

__all__ = ["recreate_from"]


def recreate_from(session: onnxruntime.InferenceSession, model: str | bytes) -> None:
    """Let a session keep a path or bytes of a model with the same results, in the place of what it was created from."""
    if not hasattr(session, "_model_path") or not hasattr(session, "_model_bytes"):
        return  # a version that keeps something else, or nothing
    is_path = isinstance(model, str)
    session._model_path = model if is_path else None
    session._model_bytes = None if is_path else model
