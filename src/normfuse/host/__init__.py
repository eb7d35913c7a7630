"""The execution provider: where its native library is, how it is registered, and its operator specification.

ONNX Runtime's conventions for packages of plug-in execution providers are followed: :func:`get_library_path`,
:func:`get_ep_name` and :func:`get_ep_names`.
"""

from __future__ import annotations

from normfuse.host.native_library import get_ep_name, get_ep_names, get_library_path
from normfuse.host.registration import register
from normfuse.host.session import session_options

__all__ = ["get_ep_name", "get_ep_names", "get_library_path", "register", "session_options"]
