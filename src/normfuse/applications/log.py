"""The log about an application's sessions: the logger "normfuse", and the variable NORMFUSE_LOG."""

from __future__ import annotations

import logging
import os
from functools import cache

_VARIABLE = "NORMFUSE_LOG"
_LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
    "off": logging.CRITICAL + 1,
}


@cache
def logger() -> logging.Logger:
    """Return the logger; with NORMFUSE_LOG it has that level and writes to standard error by itself."""
    log = logging.getLogger("normfuse")
    asked = os.environ.get(_VARIABLE, "").strip().lower()
    if asked:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("normfuse: %(message)s"))
        log.addHandler(handler)
        log.propagate = False
        log.setLevel(_LEVELS.get(asked, logging.WARNING))
        if asked not in _LEVELS:
            log.warning("%s=%s is none of %s", _VARIABLE, asked, ", ".join(_LEVELS))
    return log
