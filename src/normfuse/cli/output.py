"""Standard output whose reader may go away before the end, as ``head`` does."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any, TextIO, cast


@contextlib.contextmanager
def forgiving_output() -> Iterator[None]:
    """Let what is printed after the reader has gone go nowhere: a command ends with the exit code of what it found."""
    stream = sys.stdout
    output = _Forgiving(stream)
    sys.stdout = cast(TextIO, output)
    try:
        yield
    finally:
        sys.stdout = stream
        output.flush()  # here, where it can be forgiven, and not when Python ends


class _Forgiving:
    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        self._unless_closed(lambda: self._stream.write(text))
        return len(text)

    def flush(self) -> None:
        self._unless_closed(self._stream.flush)

    def _unless_closed(self, write: Callable[[], object]) -> None:
        try:
            write()
        except BrokenPipeError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._stream.fileno())
            os.close(nowhere)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
