"""Import onnx_ir without what only its symbolic arithmetic needs: importing this module is enough.

onnx_ir imports sympy, which takes longer than all the rest that a session imports. Nothing here computes with symbolic
dimensions, so sympy is imported where somebody does. Versions of onnx_ir without sympy are imported as they are.
"""

from __future__ import annotations

import importlib
import sys
import types
from typing import Any

# Whoever imports one of these while onnx_ir is imported, gets a stand-in; it is the module where an attribute is read.
_DEFERRED = ("sympy", "onnx_ir._symbolic_shapes")


class _StandIn(types.ModuleType):
    """A module that is imported when an attribute of it is first read."""

    def __getattr__(self, name: str) -> Any:
        _forget(self)
        return getattr(importlib.import_module(self.__name__), name)


def _forget(module: _StandIn) -> None:
    if sys.modules.get(module.__name__) is module:
        del sys.modules[module.__name__]


def _import_onnx_ir() -> None:
    stand_ins = [_StandIn(name) for name in _DEFERRED if name not in sys.modules]
    sys.modules.update((module.__name__, module) for module in stand_ins)
    try:
        importlib.import_module("onnx_ir")
    finally:
        for module in stand_ins:
            _forget(module)


if "onnx_ir" not in sys.modules:
    _import_onnx_ir()
