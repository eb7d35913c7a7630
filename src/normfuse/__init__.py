"""Fused normalisation chains for ONNX Runtime."""

from __future__ import annotations

from normfuse._version import __version__

__all__ = ["__version__"]
