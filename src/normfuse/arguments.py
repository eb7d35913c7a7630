"""Checks of arguments' types, for a sentence instead of what fails somewhere inside."""

from __future__ import annotations

import numbers
import reprlib
from collections.abc import Callable
from typing import TypeAlias

from normfuse.errors import OptionError, OptionTypeError

Kind: TypeAlias = tuple[str, type]
"""What an argument must be, in words and as a class; NumPy's numbers are of these classes, too."""

INTEGER: Kind = ("a whole number", numbers.Integral)
NUMBER: Kind = ("a number", numbers.Real)
YES_OR_NO: Kind = ("True or False", bool)
PROGRESS: Kind = ("a function", Callable)  # type: ignore[assignment]

MOST_THREADS = 1024
"""More than machines have: ONNX Runtime starts as many as it is asked for, and takes minutes for a hundred thousand."""


def check_type(name: str, value: object, kind: Kind, *, optional: bool = False) -> None:
    """Raise OptionTypeError if an argument is of another type; True and False are no numbers."""
    if optional and value is None:
        return
    words, expected = kind
    if not isinstance(value, expected) or (isinstance(value, bool) and expected is not bool):
        given = f"{reprlib.repr(value)} ({type(value).__name__})"
        raise OptionTypeError(f"{name} is {given}; it must be {words}{' or None' if optional else ''}.")


def check_threads(name: str, threads: object) -> None:
    """Raise OptionError if a number of threads inside an operator is none that a session can have."""
    check_type(name, threads, INTEGER)
    assert isinstance(threads, numbers.Integral)
    if not 0 <= int(threads) <= MOST_THREADS:
        raise OptionError(
            f"{name} is {threads}; it must be a number from 0 (ONNX Runtime's default) to {MOST_THREADS}."
        )
