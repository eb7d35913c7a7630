"""ONNX Runtime's operators that multiply matrices."""

from __future__ import annotations

__all__ = ["PRODUCTS"]

PRODUCTS = frozenset([
    "Attention", "Conv", "ConvInteger", "ConvTranspose", "DynamicQuantizeLSTM", "DynamicQuantizeMatMul", "Einsum",
    "FusedConv", "FusedGemm", "FusedMatMul", "GRU", "Gemm", "GroupQueryAttention", "LSTM", "MatMul", "MatMulInteger",
    "MatMulIntegerToFloat", "MatMulNBits", "MultiHeadAttention", "QAttention", "QGemm", "QLinearConv", "QLinearMatMul",
    "RNN",
])  # fmt: skip
"""Operators that are products of matrices, convolutions, or made of these: what normfuse leaves to ONNX Runtime."""
