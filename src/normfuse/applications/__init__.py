"""Applications that create their sessions themselves, through ``onnxruntime.InferenceSession``.

Modules here are loaded in each process that NORMFUSE=1 reaches: they import nothing that takes time.
"""

from __future__ import annotations

from normfuse.applications.installation import install, uninstall

__all__ = ["install", "uninstall"]
