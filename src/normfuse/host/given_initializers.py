"""Initializers of the model that session options replace: by ``add_initializer`` and similar functions.

onnxruntime cannot list them. Adding one again fails if there is one with that name, so names are tried on a copy of the
options, which onnxruntime makes for each session; the user's own options are not changed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from normfuse.host.options_copy import copied
from normfuse.host.versions import load_host

if TYPE_CHECKING:
    import onnxruntime


class InitializersGiven(Exception):  # noqa: N818 - a reason not to rewrite the model
    """Options replace initializers of the model, or it cannot be determined whether they do."""


def require_none_of(options: onnxruntime.SessionOptions | None, names: list[str], files: list[str]) -> None:
    """Raise InitializersGiven if options replace one of these initializers, or the data of one of these files."""
    if options is None or not isinstance(options, load_host().SessionOptions) or not names:
        return
    try:
        copy = copied(options)
    except Exception as error:  # a private part of onnxruntime, which may be removed
        raise InitializersGiven(
            "It cannot be seen whether the session options give initializers of the model "
            f"({type(error).__name__}: {error}); the session runs it as it is, not rewritten. "
            "Pass no sess_options to have it rewritten."
        ) from error
    value = load_host().OrtValue.ortvalue_from_numpy(np.zeros(1, np.float32))
    given = [
        *(name for name in names if _is_there(copy.add_initializer, name, value)),
        *(name for name in names if _is_there(copy.add_external_initializers, [name], [value])),
        *(
            file
            for file in files
            if _is_there(copy.add_external_initializers_from_files_in_memory, [file], [b"0"], [1])
        ),
    ]
    if given:
        raise InitializersGiven(
            f"The session options give {len(given)} of the model's initializers ('{given[0]}'), so that the session "
            "runs it as it is, not rewritten: only chains of standard operators gain. Write them into the model to "
            "have it rewritten."
        )


def _is_there(add: Callable[..., Any], *arguments: Any) -> bool:
    try:
        add(*arguments)
    except RuntimeError:
        return True
    return False
