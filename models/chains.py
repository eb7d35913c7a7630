"""One fused chain as a whole model, for tests and benchmarks."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx

from normfuse.models.graph_builder import Dim, GraphBuilder
from normfuse.models.spellings import activation, group_norm, layer_norm, rms_norm


def chain(
    shape: Sequence[Dim],
    norm: str | None = "LayerNormalization",
    *,
    spelling: str = "canonical",
    activation_name: str | None = None,
    residual: bool = False,
    input_type: str | None = None,
    output_type: str | None = None,
    groups: int = 32,
    opset: int = 20,
    dtype: str = "float32",
    seed: int = 0,
) -> onnx.ModelProto:
    """Return [DequantizeLinear] -> [Add] -> norm -> [activation] -> [QuantizeLinear] as a model: x [, residual] -> y.

    Args:
        shape: Of x; the normalised dimensions (the last one, or the channels) must be numbers.
        norm: "LayerNormalization", "RMSNormalization", "GroupNormalization", or None for an activation
            alone.
        spelling: Of the normalisation, see :mod:`normfuse.models.spellings`.
        activation_name: See :data:`normfuse.models.spellings.ACTIVATIONS`.
        residual: Add a second input before the normalisation.
        input_type: "int8" or "uint8": x is quantised, with one scale and zero point.
        output_type: The same for y.
        groups: Of GroupNormalization.
        opset: Version of the ai.onnx operators.
        dtype: "float32" or "float16".
        seed: Of the weights.
    """
    g = GraphBuilder(opset, dtype, seed)
    x = g.input("x", shape, input_type)
    if input_type is not None:
        x = g.add("DequantizeLinear", x, np.asarray(0.03, g.dtype), _zero_point(input_type))
    if residual:
        x = g.add("Add", x, g.input("residual", shape), output="sum")
    x = _normalised(g, x, shape, norm, spelling, groups)
    if activation_name is not None:
        x = activation(g, x, activation_name)
    if output_type is not None:
        x = g.add("QuantizeLinear", x, np.asarray(0.04, g.dtype), _zero_point(output_type))
    g.output(x, shape, output_type)
    return g.model("chain")


def _normalised(g: GraphBuilder, x: str, shape: Sequence[Dim], norm: str | None, spelling: str, groups: int) -> str:
    if norm is None:
        return x
    size = int(shape[-1] if norm in ("LayerNormalization", "RMSNormalization") else shape[1])
    if norm == "GroupNormalization":
        return group_norm(g, x, size, groups, spelling=spelling)
    scale, bias = g.weight(size, scale=0.1, mean=1.0), g.weight(size, scale=0.1)
    if norm == "LayerNormalization":
        return layer_norm(g, x, scale, bias, spelling=spelling)
    if norm == "RMSNormalization":
        return rms_norm(g, x, scale, spelling=spelling)
    raise ValueError(f"unknown normalisation: {norm}")


def _zero_point(dtype: str) -> np.ndarray:
    return np.asarray(3 if dtype == "int8" else 128, dtype)
