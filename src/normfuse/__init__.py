"""Fused normalisation chains for ONNX Runtime: a graph-rewriting pass and an execution provider.

Everything public is here; importing it is quick, because each name loads what it needs when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from normfuse._version import __version__

if TYPE_CHECKING:
    from normfuse.applications import install, uninstall
    from normfuse.errors import (
        HostVersionError,
        InvalidModelError,
        LibraryLoadError,
        NormfuseError,
        OptionError,
        VerificationError,
    )
    from normfuse.graph_rewrites.engine.sites import Site
    from normfuse.host import get_ep_name, get_ep_names, get_library_path, register, session_options
    from normfuse.optimization.optimize import (
        OptimizationError,
        OptimizationReport,
        OptimizationResult,
        inspect,
        optimize,
    )
    from normfuse.sessions.inference_session import InferenceSession
    from normfuse.verification import VerificationReport, verify

__all__ = [
    "HostVersionError",
    "InferenceSession",
    "InvalidModelError",
    "LibraryLoadError",
    "NormfuseError",
    "OptimizationError",
    "OptimizationReport",
    "OptimizationResult",
    "OptionError",
    "Site",
    "VerificationError",
    "VerificationReport",
    "__version__",
    "get_ep_name",
    "get_ep_names",
    "get_library_path",
    "inspect",
    "install",
    "optimize",
    "register",
    "session_options",
    "uninstall",
    "verify",
]

_MODULES = {
    "normfuse.host": ("get_ep_name", "get_ep_names", "get_library_path", "register", "session_options"),
    "normfuse.errors": (
        *("HostVersionError", "InvalidModelError", "LibraryLoadError"),
        *("NormfuseError", "OptionError", "VerificationError"),
    ),
    "normfuse.graph_rewrites.engine.sites": ("Site",),
    "normfuse.optimization.optimize": (
        *("OptimizationError", "OptimizationReport", "OptimizationResult"),
        *("inspect", "optimize"),
    ),
    "normfuse.applications": ("install", "uninstall"),
    "normfuse.sessions.inference_session": ("InferenceSession",),
    "normfuse.verification": ("VerificationReport", "verify"),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}


if not TYPE_CHECKING:  # a type checker would take any name for one that there is

    def __getattr__(name: str) -> Any:
        if name not in _MODULE_OF:
            raise AttributeError(f"module 'normfuse' has no attribute '{name}'")
        value = getattr(importlib.import_module(_MODULE_OF[name]), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
