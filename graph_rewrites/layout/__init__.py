"""Rewrites of what ONNX Runtime runs in its blocked layout, NCHWc."""
