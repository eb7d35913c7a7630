"""PyTorch modules with small random weights, for exporting: blocks of our own making and models of transformers.

No weights are downloaded; each builder seeds them.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
import transformers as hf
from blocks import Built
from torch import nn
from torch.nn import functional

HIDDEN = 64
BATCH, SEQUENCE = 2, 9


@dataclasses.dataclass(frozen=True)
class ExportCase:
    """A module in evaluation mode and the inputs to export it with."""

    module: nn.Module
    inputs: tuple[torch.Tensor, ...]


def build(name: str, seed: int = 0) -> ExportCase:
    """Return the module of that name (one of BUILDERS) and its inputs, made from ``seed``."""
    torch.manual_seed(seed)
    module, inputs = BUILDERS[name]()
    # Vectors (scales, biases) that differ from 0 and 1: a mistake in their use must change results.
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.ndim == 1:
                parameter.add_(torch.randn_like(parameter) * 0.2)
    return ExportCase(module.eval(), inputs)


def _tokens(*shape: int) -> torch.Tensor:
    return torch.randint(0, 100, shape)


# Blocks


def _encoder_layer(norm_first: bool, activation: str) -> Built:
    layer = nn.TransformerEncoderLayer(
        HIDDEN, nhead=4, dim_feedforward=2 * HIDDEN, activation=activation, norm_first=norm_first, batch_first=True
    )
    # As a Sequential, which takes one argument: the legacy exporter makes a tensor of the layer's is_causal=False.
    return nn.Sequential(layer), (torch.randn(BATCH, SEQUENCE, HIDDEN),)


class ConvNextBlock(nn.Module):
    """Depthwise convolution, layer normalisation over channels last, GELU between two products, layer scale."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(channels, channels, 7, padding=3, groups=channels)
        self.norm = nn.LayerNorm(channels, eps=1e-6)
        self.expand, self.reduce = nn.Linear(channels, 4 * channels), nn.Linear(4 * channels, channels)
        self.act = nn.GELU()
        self.layer_scale = nn.Parameter(torch.full((channels,), 0.5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        y = self.layer_scale * self.reduce(self.act(self.expand(y)))
        return x + y.permute(0, 3, 1, 2)


class ResBlock(nn.Module):
    """Two times group normalisation, SiLU and convolution, with a time embedding added between them."""

    def __init__(self, channels: int, out: int, groups: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(groups, channels), nn.GroupNorm(groups, out)
        self.conv1, self.conv2 = nn.Conv2d(channels, out, 3, padding=1), nn.Conv2d(out, out, 3, padding=1)
        self.time = nn.Linear(HIDDEN, out)
        self.skip = nn.Conv2d(channels, out, 1)
        self.act = nn.SiLU()

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        y = self.conv1(self.act(self.norm1(x)))
        y = y + self.time(self.act(time))[:, :, None, None]
        y = self.conv2(self.act(self.norm2(y)))
        return self.skip(x) + y


def _convolution(channels: int, out: int, size: int, stride: int = 1, *, relu: bool = True) -> list[nn.Module]:
    """A convolution with instance normalisation, and ReLU."""
    convolution = nn.Conv2d(channels, out, size, stride=stride, padding=size // 2)
    return [convolution, nn.InstanceNorm2d(out, affine=True), *([nn.ReLU()] if relu else [])]


class InstanceNormBlock(nn.Module):
    """Two convolutions, each with instance normalisation, the first with ReLU."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        first, second = _convolution(channels, channels, 3), _convolution(channels, channels, 3, relu=False)
        self.body = nn.Sequential(*first, *second)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.body(x)


def _instance_norm_net() -> Built:
    last = nn.Conv2d(32, 3, 9, padding=4), nn.InstanceNorm2d(3)
    net = nn.Sequential(*_convolution(3, 16, 9), *_convolution(16, 32, 3, 2), InstanceNormBlock(32), *last)
    return net, (torch.randn(BATCH, 3, 32, 32),)


class SwigluBlock(nn.Module):
    """RMS normalisation and a gated feed-forward network, with a residual."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(hidden, eps=1e-6)
        self.gate, self.up = nn.Linear(hidden, 3 * hidden, bias=False), nn.Linear(hidden, 3 * hidden, bias=False)
        self.down = nn.Linear(3 * hidden, hidden, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        return x + self.down(functional.silu(self.gate(y)) * self.up(y))


# Models of transformers


class LastHiddenState(nn.Module):
    """Takes the model's arguments by position and gives its last hidden state (or logits)."""

    def __init__(self, model: nn.Module, names: tuple[str, ...]) -> None:
        super().__init__()
        self.model, self.names = model, names

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        output: Any = self.model(**dict(zip(self.names, inputs, strict=True)))
        state: torch.Tensor = output.last_hidden_state if hasattr(output, "last_hidden_state") else output.logits
        return state


# Attention as plain operators, which both exporters know at every opset.
_EAGER: dict[str, Any] = {"attn_implementation": "eager"}
_SIZES: dict[str, Any] = {
    "hidden_size": HIDDEN,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 2 * HIDDEN,
    **_EAGER,
}
_ENCODER: dict[str, Any] = _SIZES | {"vocab_size": 100, "max_position_embeddings": 32}
_DEBERTA = {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_buckets": 8}
_T5 = {"d_kv": 16, "d_ff": 2 * HIDDEN, "num_layers": 2, "num_heads": 4, "feed_forward_proj": "gated-gelu"}
_SWIN = {"image_size": 32, "patch_size": 2, "embed_dim": 16, "depths": [2, 2], "num_heads": [2, 4], "window_size": 4}


def _of(model: nn.Module, **inputs: torch.Tensor) -> Built:
    return LastHiddenState(model, tuple(inputs)), tuple(inputs.values())


def _text() -> dict[str, torch.Tensor]:
    return {
        "input_ids": _tokens(BATCH, SEQUENCE),
        "attention_mask": torch.ones(BATCH, SEQUENCE, dtype=torch.int64),
    }


def _image(size: int) -> torch.Tensor:
    return torch.randn(BATCH, 3, size, size)


def _distilbert() -> Built:
    sizes = {"dim": HIDDEN, "n_layers": 2, "n_heads": 4, "hidden_dim": 2 * HIDDEN, "max_position_embeddings": 32}
    return _of(hf.DistilBertModel(hf.DistilBertConfig(vocab_size=100, **sizes, **_EAGER)), **_text())


def _t5() -> Built:
    config = hf.T5Config(vocab_size=100, d_model=HIDDEN, use_cache=False, **_T5, **_EAGER)
    return _of(hf.T5Model(config), input_ids=_tokens(BATCH, SEQUENCE), decoder_input_ids=_tokens(BATCH, 5))


def _whisper() -> Built:
    half = {"layers": 2, "attention_heads": 4, "ffn_dim": 2 * HIDDEN}
    config = hf.WhisperConfig(
        vocab_size=100,
        num_mel_bins=16,
        d_model=HIDDEN,
        max_source_positions=20,
        max_target_positions=16,
        use_cache=False,
        **{f"{part}_{name}": value for part in ("encoder", "decoder") for name, value in half.items()},
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
        **_EAGER,
    )
    # With a mask, transformers does not look for packed sequences, which the legacy exporter cannot express.
    return _of(
        hf.WhisperModel(config),
        input_features=torch.randn(BATCH, 16, 40),
        decoder_input_ids=_tokens(BATCH, 5),
        decoder_attention_mask=torch.ones(BATCH, 5, dtype=torch.int64),
    )


def _segformer() -> Built:
    config = hf.SegformerConfig(
        depths=[1, 1, 1, 1],
        hidden_sizes=[16, 16, 32, 32],
        num_attention_heads=[1, 2, 2, 4],
        decoder_hidden_size=32,
        num_labels=5,
    )
    return _of(hf.SegformerForSemanticSegmentation(config), pixel_values=_image(64))


#: Name -> builder, in the order of the documentation's table.
BUILDERS: dict[str, Callable[[], Built]] = {
    "encoder_layer_post_gelu": lambda: _encoder_layer(False, "gelu"),
    "encoder_layer_post_relu": lambda: _encoder_layer(False, "relu"),
    "encoder_layer_pre_gelu": lambda: _encoder_layer(True, "gelu"),
    "encoder_layer_pre_relu": lambda: _encoder_layer(True, "relu"),
    "convnext_block": lambda: (ConvNextBlock(32), (torch.randn(BATCH, 32, 14, 14),)),
    "diffusion_resblock": lambda: (
        ResBlock(32, 64, 8),
        (torch.randn(BATCH, 32, 16, 16), torch.randn(BATCH, HIDDEN)),
    ),
    "instance_norm_net": _instance_norm_net,
    "swiglu_block": lambda: (SwigluBlock(HIDDEN), (torch.randn(BATCH, SEQUENCE, HIDDEN),)),
    "bert": lambda: _of(hf.BertModel(hf.BertConfig(**_ENCODER), add_pooling_layer=False), **_text()),
    "vit": lambda: _of(
        hf.ViTModel(hf.ViTConfig(**_SIZES, image_size=32, patch_size=8), add_pooling_layer=False),
        pixel_values=_image(32),
    ),
    "t5": _t5,
    "whisper": _whisper,
    "llama": lambda: _of(hf.LlamaModel(hf.LlamaConfig(**_ENCODER, num_key_value_heads=2, use_cache=False)), **_text()),
    "distilbert": _distilbert,
    "deberta": lambda: _of(
        hf.DebertaV2Model(hf.DebertaV2Config(**_ENCODER, **_DEBERTA, norm_rel_ebd="layer_norm")), **_text()
    ),
    "swin": lambda: _of(
        hf.SwinModel(hf.SwinConfig(**_SWIN, **_EAGER), add_pooling_layer=False), pixel_values=_image(32)
    ),
    "segformer": _segformer,
}
