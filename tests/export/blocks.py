"""Blocks of today's models as PyTorch modules, with everything that stands beside their normalisations.

Llama and Qwen3 (RMS normalisation, of queries and keys too, rotary embedding, SwiGLU), DiT (modulation, gated
residuals), ConvNeXt V2 and DINOv2 (response normalisation, layer scale), the ResBlock of SDXL (scale and shift), Mamba2
(a gated normalisation) and Kokoro (AdaIN and Snake). Small ones are for tests, large ones for benchmarks.
"""

from __future__ import annotations

import dataclasses
import io
import logging
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import onnx
import torch
from torch import nn
from torch.nn import functional

if TYPE_CHECKING:
    from torch import Tensor

Built = tuple[nn.Module, tuple[torch.Tensor, ...]]


@dataclasses.dataclass(frozen=True)
class Size:
    """How large a block is; images and sounds have as many elements as sequences have."""

    hidden: int
    heads: int
    batch: int
    sequence: int
    image: int
    samples: int


SMALL = Size(hidden=64, heads=4, batch=2, sequence=9, image=6, samples=40)
LARGE = Size(hidden=768, heads=12, batch=1, sequence=256, image=32, samples=4000)


class RMSNorm(nn.Module):
    """As transformers writes it: every exporter knows its operators."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden))

    def forward(self, x: Tensor) -> Tensor:
        variance = x.pow(2).mean(-1, keepdim=True)
        return self.weight * (x * torch.rsqrt(variance + 1e-6))


def _rotated(x: Tensor) -> Tensor:
    """Return queries or keys of [batch, heads, sequence, dimensions] with their rotary embedding."""
    half = x.shape[-1] // 2
    positions, steps = (torch.arange(count, dtype=torch.float32) for count in (x.shape[-2], half))
    angles = torch.outer(positions, 1e4 ** (-steps / half))
    cos, sin = (torch.cat([each, each], -1) for each in (angles.cos(), angles.sin()))
    return x * cos + torch.cat([-x[..., half:], x[..., :half]], -1) * sin


class Attention(nn.Module):
    """Self-attention in plain operators, with what models do to its queries and keys."""

    def __init__(self, size: Size, *, rotary: bool = False, norm: bool = False, bias: bool = False) -> None:
        super().__init__()
        self.heads, self.rotary = size.heads, rotary
        self.query, self.key, self.value, self.out = (nn.Linear(size.hidden, size.hidden, bias=bias) for _ in range(4))
        width = size.hidden // size.heads
        self.query_norm, self.key_norm = (RMSNorm(width) if norm else nn.Identity() for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        batch, sequence, hidden = x.shape
        query, key, value = (
            each.view(batch, sequence, self.heads, hidden // self.heads)
            for each in (self.query(x), self.key(x), self.value(x))
        )
        query, key, value = (each.transpose(1, 2) for each in (self.query_norm(query), self.key_norm(key), value))
        if self.rotary:
            query, key = _rotated(query), _rotated(key)
        scores = query @ key.transpose(2, 3) * (hidden // self.heads) ** -0.5
        y = torch.softmax(scores, -1) @ value
        return self.out(y.transpose(1, 2).reshape(batch, sequence, hidden))


class DecoderBlock(nn.Module):
    """Llama's block, or with normalised queries and keys Qwen3's."""

    def __init__(self, size: Size, *, query_norm: bool) -> None:
        super().__init__()
        hidden = size.hidden
        self.attention = Attention(size, rotary=True, norm=query_norm)
        self.first_norm, self.second_norm = RMSNorm(hidden), RMSNorm(hidden)
        self.gate, self.up = nn.Linear(hidden, 3 * hidden, bias=False), nn.Linear(hidden, 3 * hidden, bias=False)
        self.down = nn.Linear(3 * hidden, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.first_norm(x))
        y = self.second_norm(x)
        return x + self.down(functional.silu(self.gate(y)) * self.up(y))


class DiTBlock(nn.Module):
    """AdaLN-zero: scale, shift and gate of both halves are computed from a condition."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        hidden = size.hidden
        self.attention = Attention(size, bias=True)
        self.first_norm, self.second_norm = (nn.LayerNorm(hidden, 1e-6, elementwise_affine=False) for _ in range(2))
        self.expand, self.reduce = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)
        self.modulation = nn.Linear(hidden, 6 * hidden)

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        parts = self.modulation(functional.silu(condition)).unsqueeze(1).chunk(6, -1)
        shift, scale, gate, second_shift, second_scale, second_gate = parts
        x = x + gate * self.attention(self.first_norm(x) * (1 + scale) + shift)
        y = self.second_norm(x) * (1 + second_scale) + second_shift
        return x + second_gate * self.reduce(functional.gelu(self.expand(y), approximate="tanh"))


class ConvNeXtV2Block(nn.Module):
    """Response normalisation between the two products."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(channels, channels, 7, padding=3, groups=channels)
        self.norm = nn.LayerNorm(channels, 1e-6)
        self.expand, self.reduce = nn.Linear(channels, 4 * channels), nn.Linear(4 * channels, channels)
        self.gamma, self.beta = (nn.Parameter(torch.randn(1, 1, 1, 4 * channels)) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        y = functional.gelu(self.expand(self.norm(self.depthwise(x).permute(0, 2, 3, 1))))
        response = torch.sqrt(y.pow(2).sum((1, 2), keepdim=True))
        response = response / (response.mean(-1, keepdim=True) + 1e-6)
        y = self.reduce(self.gamma * (y * response) + self.beta + y)
        return x + y.permute(0, 3, 1, 2)


class DINOv2Block(nn.Module):
    """Layer scale on both halves."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        hidden = size.hidden
        self.attention = Attention(size, bias=True)
        self.first_norm, self.second_norm = nn.LayerNorm(hidden, 1e-6), nn.LayerNorm(hidden, 1e-6)
        self.expand, self.reduce = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)
        self.first_scale, self.second_scale = (nn.Parameter(torch.full((hidden,), 0.1)) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.first_scale * self.attention(self.first_norm(x))
        return x + self.second_scale * self.reduce(functional.gelu(self.expand(self.second_norm(x))))


class ScaleShiftResBlock(nn.Module):
    """The ResBlock of latent diffusion models, modulated by the time embedding."""

    def __init__(self, channels: int, hidden: int, groups: int) -> None:
        super().__init__()
        self.first_norm, self.second_norm = nn.GroupNorm(groups, channels), nn.GroupNorm(groups, channels)
        self.first_conv, self.second_conv = (nn.Conv2d(channels, channels, 3, padding=1) for _ in range(2))
        self.time = nn.Linear(hidden, 2 * channels)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        y = self.first_conv(functional.silu(self.first_norm(x)))
        scale, shift = self.time(functional.silu(time))[:, :, None, None].chunk(2, 1)
        y = functional.silu(self.second_norm(y) * (1 + scale) + shift)
        return x + self.second_conv(y)


class Mamba2Output(nn.Module):
    """What follows the scan of a Mamba2 block: a gate, RMS normalisation and the last product."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.norm = RMSNorm(2 * hidden)
        self.gate, self.out = nn.Linear(hidden, 2 * hidden, bias=False), nn.Linear(2 * hidden, hidden, bias=False)

    def forward(self, scanned: Tensor, x: Tensor) -> Tensor:
        return x + self.out(self.norm(scanned * functional.silu(self.gate(x))))


class KokoroBlock(nn.Module):
    """Two times AdaIN, Snake and a convolution, as in the generator of StyleTTS 2 and Kokoro."""

    def __init__(self, channels: int, style: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.InstanceNorm1d(channels) for _ in range(2))
        self.styles = nn.ModuleList(nn.Linear(style, 2 * channels) for _ in range(2))
        self.convs = nn.ModuleList(nn.Conv1d(channels, channels, 3, padding=1) for _ in range(2))
        self.alphas = nn.ParameterList(torch.rand(1, channels, 1) + 0.5 for _ in range(2))

    def forward(self, x: Tensor, style: Tensor) -> Tensor:
        y = x
        for norm, linear, conv, alpha in zip(self.norms, self.styles, self.convs, self.alphas, strict=True):
            gamma, beta = linear(style)[:, :, None].chunk(2, 1)
            y = (1 + gamma) * norm(y) + beta
            y = conv(y + (1 / alpha) * torch.sin(alpha * y) ** 2)
        return x + y


def _tokens(size: Size) -> Tensor:
    return torch.randn(size.batch, size.sequence, size.hidden)


def _condition(size: Size) -> Tensor:
    return torch.randn(size.batch, size.hidden)


def _image(size: Size, channels: int) -> Tensor:
    return torch.randn(size.batch, channels, size.image, size.image)


#: Name -> what builds it.
BLOCKS: dict[str, Callable[[Size], Built]] = {
    "llama_block": lambda s: (DecoderBlock(s, query_norm=False), (_tokens(s),)),
    "qwen3_block": lambda s: (DecoderBlock(s, query_norm=True), (_tokens(s),)),
    "dit_block": lambda s: (DiTBlock(s), (_tokens(s), _condition(s))),
    "convnext_v2_block": lambda s: (ConvNeXtV2Block(s.hidden // 2), (_image(s, s.hidden // 2),)),
    "dinov2_block": lambda s: (DINOv2Block(s), (_tokens(s),)),
    "sdxl_resblock": lambda s: (
        ScaleShiftResBlock(s.hidden // 2, s.hidden, s.hidden // 16),
        (_image(s, s.hidden // 2), _condition(s)),
    ),
    "mamba2_output": lambda s: (
        Mamba2Output(s.hidden),
        (torch.randn(s.batch, s.sequence, 2 * s.hidden), _tokens(s)),
    ),
    "kokoro_block": lambda s: (
        KokoroBlock(s.hidden // 6 * 2, s.hidden),
        (torch.randn(s.batch, s.hidden // 6 * 2, s.samples), _condition(s)),
    ),
}


def export(module: Any, inputs: tuple[Tensor, ...], exporter: str, opset: int, count: int | None = None) -> Any:
    """Return what one of PyTorch's two exporters makes of a module: an ONNXProgram ("dynamo"), or bytes ("legacy").

    ``count``: of the inputs, where the module has been captured with them.
    """
    names: dict[str, Any] = {"input_names": [f"input_{i}" for i in range(count or len(inputs))]}
    names["output_names"] = ["output"]
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if exporter == "dynamo":
            return torch.onnx.export(module, inputs, dynamo=True, opset_version=opset, verbose=False, **names)
        file = io.BytesIO()
        torch.onnx.export(module, inputs, file, dynamo=False, opset_version=opset, **names)
        return file.getvalue()


def exported(module: nn.Module, inputs: tuple[Tensor, ...], exporter: str = "dynamo") -> onnx.ModelProto:
    """Return the model that an exporter makes of a module."""
    made = export(module, inputs, exporter, 18 if exporter == "dynamo" else 17)
    return onnx.load_from_string(made) if isinstance(made, bytes) else made.model_proto
