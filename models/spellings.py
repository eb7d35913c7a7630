"""The same function in the spellings that exporters write: one node where ONNX has it, or the decomposed forms."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from normfuse.models.graph_builder import GraphBuilder


def layer_norm(
    g: GraphBuilder,
    x: str,
    scale: str | None,
    bias: str | None,
    *,
    epsilon: float = 1e-5,
    axes: Sequence[int] = (-1,),
    spelling: str = "pow_div",
) -> str:
    """Layer normalisation over the last dimensions.

    Spellings: "canonical" (LayerNormalization, opset 17), "pow_div" (PyTorch before opset 17), "reciprocal" (squares
    by Mul, division by Reciprocal and Mul).
    """
    if spelling == "canonical":
        one: str = scale if scale is not None else g.constant(np.ones((), g.dtype))
        return g.add("LayerNormalization", x, one, bias or "", axis=min(axes), epsilon=epsilon)
    centred = g.add("Sub", x, g.reduce_mean(x, axes))
    square = g.add("Pow", centred, 2.0) if spelling == "pow_div" else g.add("Mul", centred, centred)
    deviation = g.add("Sqrt", g.add("Add", g.reduce_mean(square, axes), epsilon))
    if spelling == "pow_div":
        y = g.add("Div", centred, deviation)
    elif spelling == "reciprocal":
        y = g.add("Mul", centred, g.add("Reciprocal", deviation))
    else:
        raise ValueError(f"unknown spelling of LayerNormalization: {spelling}")
    return affine(g, y, scale, bias)


def rms_norm(
    g: GraphBuilder, x: str, scale: str | None, *, epsilon: float = 1e-6, spelling: str = "reciprocal_div"
) -> str:
    """Root-mean-square normalisation over the last dimension.

    Spellings: "canonical" (RMSNormalization, opset 23), "reciprocal_div" (1 / sqrt, then Mul), "div".
    """
    if spelling == "canonical":
        one: str = scale if scale is not None else g.constant(np.ones((), g.dtype))
        return g.add("RMSNormalization", x, one, axis=-1, epsilon=epsilon)
    deviation = g.add("Sqrt", g.add("Add", g.reduce_mean(g.add("Pow", x, 2.0), (-1,)), epsilon))
    if spelling == "div":
        y = g.add("Div", x, deviation)
    elif spelling == "reciprocal_div":
        y = g.add("Mul", x, g.add("Div", 1.0, deviation))
    else:
        raise ValueError(f"unknown spelling of RMSNormalization: {spelling}")
    return affine(g, y, scale, None)


def group_norm(
    g: GraphBuilder, x: str, channels: int, groups: int, *, epsilon: float = 1e-5, spelling: str = "instance"
) -> str:
    """Group normalisation of [N, C, H, W] with a scale and bias for each channel.

    Spellings: "canonical" (GroupNormalization, opset 21), "instance" (PyTorch: Reshape, InstanceNormalization,
    Reshape, Mul, Add).
    """
    if spelling == "canonical":
        scale, bias = g.weight(channels, scale=0.1, mean=1.0), g.weight(channels, scale=0.1)
        return g.add("GroupNormalization", x, scale, bias, num_groups=groups, epsilon=epsilon)
    if spelling != "instance":
        raise ValueError(f"unknown spelling of GroupNormalization: {spelling}")
    grouped = g.add("Reshape", x, [0, groups, -1])
    ones, zeros = np.ones(groups, g.dtype), np.zeros(groups, g.dtype)
    normal = g.add("InstanceNormalization", grouped, ones, zeros, epsilon=epsilon)
    y = g.add("Reshape", normal, g.add("Shape", x))
    return affine(g, y, g.weight(channels, 1, 1, scale=0.1, mean=1.0), g.weight(channels, 1, 1, scale=0.1))


def affine(g: GraphBuilder, x: str, scale: str | None, bias: str | None) -> str:
    """Multiply by a scale and add a bias, where there are any."""
    if scale is not None:
        x = g.add("Mul", x, scale)
    if bias is not None:
        x = g.add("Add", x, bias)
    return x


def activation(g: GraphBuilder, x: str, name: str) -> str:
    """Apply one of :data:`ACTIVATIONS`."""
    return ACTIVATIONS[name](g, x)


def _gelu_erf(g: GraphBuilder, x: str) -> str:
    erf = g.add("Add", g.add("Erf", g.add("Div", x, float(np.sqrt(2.0)))), 1.0)
    return g.add("Mul", g.add("Mul", x, erf), 0.5)


def _silu(g: GraphBuilder, x: str) -> str:
    return g.add("Mul", x, g.add("Sigmoid", x))


def _hard_swish(g: GraphBuilder, x: str) -> str:
    clipped = g.add("Clip", g.add("Add", x, 3.0), 0.0, 6.0)
    return g.add("Div", g.add("Mul", x, clipped), 6.0)


ACTIVATIONS: dict[str, Callable[[GraphBuilder, str], str]] = {
    "gelu": lambda g, x: g.add("Gelu", x),
    "gelu_erf": _gelu_erf,
    "silu": _silu,
    "hard_swish": _hard_swish,
}
"""Name -> function that adds the nodes of an activation; "gelu" needs opset 20."""
