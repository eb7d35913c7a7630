"""Single blocks of well-known architectures."""

from __future__ import annotations

import numpy as np
import onnx

from normfuse.models.graph_builder import Dim, GraphBuilder
from normfuse.models.spellings import activation, affine, group_norm, rms_norm


def diffusion_resblock(
    *,
    channels: int = 64,
    groups: int = 32,
    size: Dim | None = None,
    opset: int = 17,
    dtype: str = "float32",
    seed: int = 0,
) -> onnx.ModelProto:
    """Return a ResBlock of a diffusion U-Net, two times GroupNorm -> SiLU -> Conv, plus the input.

    sample ["batch", channels, "height", "width"] -> out of the same shape; ``size`` fixes height and width.
    """
    g = GraphBuilder(opset, dtype, seed)
    shape: list[Dim] = ["batch", channels, size or "height", size or "width"]
    sample = x = g.input("sample", shape)
    for _ in range(2):
        x = activation(g, group_norm(g, x, channels, groups), "silu")
        weight = g.weight(channels, channels, 3, 3, scale=1.0 / np.sqrt(9.0 * channels))
        x = g.add("Conv", x, weight, g.weight(channels, scale=0.05), kernel_shape=[3, 3], pads=[1, 1, 1, 1])
    g.output(g.add("Add", sample, x), shape, name="out")
    return g.model("diffusion_resblock")


def swiglu_block(
    *,
    hidden: int = 128,
    inner: int = 344,
    opset: int = 17,
    dtype: str = "float32",
    seed: int = 0,
) -> onnx.ModelProto:
    """Return the feed-forward half of a Llama block: RMSNorm -> silu(x W1) * (x W3) W2, plus the input.

    hidden_states ["batch", "sequence", hidden] -> out of the same shape.
    """
    g = GraphBuilder(opset, dtype, seed)
    shape: list[Dim] = ["batch", "sequence", hidden]
    x = g.input("hidden_states", shape)
    normal = rms_norm(g, x, g.weight(hidden, scale=0.1, mean=1.0))
    gate = activation(g, g.add("MatMul", normal, g.weight(hidden, inner)), "silu")
    product = g.add("Mul", gate, g.add("MatMul", normal, g.weight(hidden, inner)))
    g.output(g.add("Add", x, g.add("MatMul", product, g.weight(inner, hidden))), shape, name="out")
    return g.model("swiglu_block")


def ocr_block(
    *, channels: int = 32, separable: int = 0, opset: int = 11, dtype: str = "float32", seed: int = 0
) -> onnx.ModelProto:
    """Return two convolutions of a text recogniser with decomposed HardSwish, the first with its bias added apart.

    x ["batch", 3, 48, "width"] -> features ["batch", channels, 24, "width / 2"]. So many ``separable`` blocks, each of
    a pointwise and a depthwise convolution with HardSwish behind both, come after these.
    """
    g = GraphBuilder(opset, dtype, seed)
    x = g.input("x", ["batch", 3, 48, "width"])
    weight = g.weight(channels, 3, 3, 3, scale=1.0 / np.sqrt(27.0))
    x = g.add("Conv", x, weight, kernel_shape=[3, 3], pads=[1, 1, 1, 1], strides=[2, 2])
    x = activation(g, affine(g, x, None, g.weight(1, channels, 1, 1, scale=0.1)), "hard_swish")
    x = g.add("Conv", x, g.weight(channels, 1, 5, 5, scale=0.2), group=channels, kernel_shape=[5, 5], pads=[2] * 4)
    for _ in range(separable):
        x = activation(g, x, "hard_swish")
        x = g.add("Conv", x, g.weight(channels, channels, 1, 1, scale=1.5 / np.sqrt(channels)), g.weight(channels))
        x = activation(g, x, "hard_swish")
        x = g.add("Conv", x, g.weight(channels, 1, 3, 3, scale=0.4), group=channels, kernel_shape=[3, 3], pads=[1] * 4)
    g.output(activation(g, x, "hard_swish"), ["batch", channels, 24, "half_width"], name="features")
    return g.model("ocr_block")
