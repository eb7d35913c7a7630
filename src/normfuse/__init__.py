"""Fused normalisation chains for ONNX Runtime: a graph-rewriting pass and an execution provider.

Everything public is here; importing it is quick, because each name loads what it needs when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from normfuse._version import __version__ as __version__

# Name -> the module that has it.
_MODULE_OF = {
    name: f"normfuse.{module}"
    for module, names in {
        "applications": "install uninstall",
        "errors": "HostVersionError InvalidModelError LibraryLoadError NormfuseError OptionError VerificationError",
        "graph_rewrites.engine.sites": "Site",
        "host": "get_ep_name get_ep_names get_library_path register session_options",
        "optimization.optimize": "OptimizationError OptimizationReport OptimizationResult inspect optimize",
        "sessions.inference_session": "InferenceSession",
        "verification": "VerificationReport verify",
    }.items()
    for name in names.split()
}

if TYPE_CHECKING:  # which takes `as` for what other code may import from here
    from normfuse.applications import install as install
    from normfuse.applications import uninstall as uninstall
    from normfuse.errors import HostVersionError as HostVersionError
    from normfuse.errors import InvalidModelError as InvalidModelError
    from normfuse.errors import LibraryLoadError as LibraryLoadError
    from normfuse.errors import NormfuseError as NormfuseError
    from normfuse.errors import OptionError as OptionError
    from normfuse.errors import VerificationError as VerificationError
    from normfuse.graph_rewrites.engine.sites import Site as Site
    from normfuse.host import get_ep_name as get_ep_name
    from normfuse.host import get_ep_names as get_ep_names
    from normfuse.host import get_library_path as get_library_path
    from normfuse.host import register as register
    from normfuse.host import session_options as session_options
    from normfuse.optimization.optimize import OptimizationError as OptimizationError
    from normfuse.optimization.optimize import OptimizationReport as OptimizationReport
    from normfuse.optimization.optimize import OptimizationResult as OptimizationResult
    from normfuse.optimization.optimize import inspect as inspect
    from normfuse.optimization.optimize import optimize as optimize
    from normfuse.sessions.inference_session import InferenceSession as InferenceSession
    from normfuse.verification import VerificationReport as VerificationReport
    from normfuse.verification import verify as verify
else:  # a type checker would take any name for one that there is
    __all__ = sorted(["__version__", *_MODULE_OF])

    def __getattr__(name: str) -> Any:
        if name not in _MODULE_OF:
            raise AttributeError(f"module 'normfuse' has no attribute '{name}'")
        value = getattr(importlib.import_module(_MODULE_OF[name]), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULE_OF})
