"""What ONNX Runtime says, without what only its developers can use."""

from __future__ import annotations

import re

_CODE = re.compile(r"^\[ONNXRuntimeError\] : \d+ : \w+ : ")
# A place in its source: file, line, and the function with its parameters, which may be functions.
_PLACE = re.compile(r"\S{1,300}\.(?:cc|h):\d+ [^()]*\((?:[^()]|\([^()]*\))*\)(?: const)? ")


def words_of(error: Exception) -> str:
    """Return an exception's message without the code and the place in the source; the class where it has none."""
    text = _PLACE.sub("", _CODE.sub("", str(error).strip()))
    return text or type(error).__name__
