"""PyTorch modules with small random weights, for exporting: blocks of our own making and models of transformers.

torch and transformers are imported when a builder is called: they are no dependencies of normfuse. No weights are
downloaded; each builder seeds them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

__all__ = ["BUILDERS", "ExportCase", "build"]

HIDDEN = 64
BATCH, SEQUENCE = 2, 9


@dataclasses.dataclass(frozen=True)
class ExportCase:
    """A module in evaluation mode and the inputs to export it with."""

    name: str
    module: torch.nn.Module
    inputs: tuple[torch.Tensor, ...]
    input_names: tuple[str, ...]
    output_names: tuple[str, ...]


def build(name: str, seed: int = 0) -> ExportCase:
    """Return the module of that name (one of BUILDERS) and its inputs, made from ``seed``.

    Raises:
        KeyError: There is no builder of that name.
        ImportError: torch, or for the models of transformers that package, is not installed.
    """
    import torch

    builder = BUILDERS[name]
    torch.manual_seed(seed)
    module, inputs = builder()
    _spread_parameters(module)
    names = tuple(f"input_{index}" for index in range(len(inputs)))
    return ExportCase(name, module.eval(), inputs, names, ("output",))


def _spread_parameters(module: torch.nn.Module) -> None:
    """Give vectors (scales, biases) values that differ from 0 and 1: a mistake in their use must change results."""
    import torch

    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.ndim == 1:
                parameter.add_(torch.randn_like(parameter) * 0.2)


def _floats(*shape: int) -> torch.Tensor:
    import torch

    return torch.randn(*shape)


def _tokens(vocabulary: int, *shape: int) -> torch.Tensor:
    import torch

    return torch.randint(0, vocabulary, shape)


Built = tuple["torch.nn.Module", tuple["torch.Tensor", ...]]


# Blocks


def _encoder_layer(*, norm_first: bool, activation: str) -> Built:
    from torch import nn

    layer = nn.TransformerEncoderLayer(
        HIDDEN, nhead=4, dim_feedforward=2 * HIDDEN, activation=activation, norm_first=norm_first, batch_first=True
    )
    # As a Sequential, which takes one argument: the legacy exporter makes a tensor of the layer's is_causal=False.
    return nn.Sequential(layer), (_floats(BATCH, SEQUENCE, HIDDEN),)


def _convnext_block() -> Built:
    import torch
    from torch import nn

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

    return ConvNextBlock(32), (_floats(BATCH, 32, 14, 14),)


def _diffusion_resblock() -> Built:
    from torch import nn

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

    return ResBlock(32, 64, 8), (_floats(BATCH, 32, 16, 16), _floats(BATCH, HIDDEN))


def _instance_norm_net() -> Built:
    from torch import nn

    class ResidualBlock(nn.Module):
        """Two convolutions, each with instance normalisation, the first with ReLU."""

        def __init__(self, channels: int) -> None:
            super().__init__()
            self.body = nn.Sequential(
                nn.Conv2d(channels, channels, 3, padding=1),
                nn.InstanceNorm2d(channels, affine=True),
                nn.ReLU(),
                nn.Conv2d(channels, channels, 3, padding=1),
                nn.InstanceNorm2d(channels, affine=True),
            )

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.body(x)

    net = nn.Sequential(
        nn.Conv2d(3, 16, 9, padding=4),
        nn.InstanceNorm2d(16, affine=True),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1),
        nn.InstanceNorm2d(32, affine=True),
        nn.ReLU(),
        ResidualBlock(32),
        nn.Conv2d(32, 3, 9, padding=4),
        nn.InstanceNorm2d(3),
    )
    return net, (_floats(BATCH, 3, 32, 32),)


def _swiglu_block() -> Built:
    from torch import nn
    from torch.nn import functional

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

    return SwigluBlock(HIDDEN), (_floats(BATCH, SEQUENCE, HIDDEN),)


# Models of transformers


def _last_hidden_state(model: torch.nn.Module, *argument_names: str) -> torch.nn.Module:
    """Return a module that takes the model's arguments by position and gives its last hidden state (or logits)."""
    from torch import nn

    class LastHiddenState(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
            output: Any = self.model(**dict(zip(argument_names, inputs, strict=True)))
            state: torch.Tensor = output.last_hidden_state if hasattr(output, "last_hidden_state") else output.logits
            return state

    return LastHiddenState()


# Attention as plain operators, which both exporters know at every opset.
_EAGER: dict[str, Any] = {"attn_implementation": "eager"}
_ENCODER: dict[str, Any] = {
    "vocab_size": 100,
    "hidden_size": HIDDEN,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 2 * HIDDEN,
    "max_position_embeddings": 32,
}


def _text_inputs(vocabulary: int = 100) -> tuple[torch.Tensor, ...]:
    import torch

    return _tokens(vocabulary, BATCH, SEQUENCE), torch.ones(BATCH, SEQUENCE, dtype=torch.int64)


def _bert() -> Built:
    from transformers import BertConfig, BertModel

    model = BertModel(BertConfig(**_ENCODER, **_EAGER), add_pooling_layer=False)
    return _last_hidden_state(model, "input_ids", "attention_mask"), _text_inputs()


def _distilbert() -> Built:
    from transformers import DistilBertConfig, DistilBertModel

    config = DistilBertConfig(
        vocab_size=100,
        dim=HIDDEN,
        n_layers=2,
        n_heads=4,
        hidden_dim=2 * HIDDEN,
        max_position_embeddings=32,
        **_EAGER,
    )
    return _last_hidden_state(DistilBertModel(config), "input_ids", "attention_mask"), _text_inputs()


def _deberta() -> Built:
    from transformers import DebertaV2Config, DebertaV2Model

    config = DebertaV2Config(
        **_ENCODER, relative_attention=True, pos_att_type=["p2c", "c2p"], position_buckets=8, norm_rel_ebd="layer_norm"
    )
    return _last_hidden_state(DebertaV2Model(config), "input_ids", "attention_mask"), _text_inputs()


def _vit() -> Built:
    from transformers import ViTConfig, ViTModel

    sizes = {name: _ENCODER[name] for name in _ENCODER if name not in ("vocab_size", "max_position_embeddings")}
    model = ViTModel(ViTConfig(**sizes, image_size=32, patch_size=8, **_EAGER), add_pooling_layer=False)
    return _last_hidden_state(model, "pixel_values"), (_floats(BATCH, 3, 32, 32),)


def _t5() -> Built:
    from transformers import T5Config, T5Model

    config = T5Config(
        vocab_size=100,
        d_model=HIDDEN,
        d_kv=16,
        d_ff=2 * HIDDEN,
        num_layers=2,
        num_heads=4,
        feed_forward_proj="gated-gelu",
        use_cache=False,
        **_EAGER,
    )
    inputs = _tokens(100, BATCH, SEQUENCE), _tokens(100, BATCH, 5)
    return _last_hidden_state(T5Model(config), "input_ids", "decoder_input_ids"), inputs


def _whisper() -> Built:
    import torch
    from transformers import WhisperConfig, WhisperModel

    config = WhisperConfig(
        vocab_size=100,
        num_mel_bins=16,
        d_model=HIDDEN,
        encoder_layers=2,
        encoder_attention_heads=4,
        encoder_ffn_dim=2 * HIDDEN,
        decoder_layers=2,
        decoder_attention_heads=4,
        decoder_ffn_dim=2 * HIDDEN,
        max_source_positions=20,
        max_target_positions=16,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
        use_cache=False,
        **_EAGER,
    )
    # With a mask, transformers does not look for packed sequences, which the legacy exporter cannot express.
    inputs = _floats(BATCH, 16, 40), _tokens(100, BATCH, 5), torch.ones(BATCH, 5, dtype=torch.int64)
    names = "input_features", "decoder_input_ids", "decoder_attention_mask"
    return _last_hidden_state(WhisperModel(config), *names), inputs


def _llama() -> Built:
    from transformers import LlamaConfig, LlamaModel

    model = LlamaModel(LlamaConfig(**_ENCODER, num_key_value_heads=2, use_cache=False, **_EAGER))
    return _last_hidden_state(model, "input_ids", "attention_mask"), _text_inputs()


def _swin() -> Built:
    from transformers import SwinConfig, SwinModel

    config = SwinConfig(
        image_size=32, patch_size=2, embed_dim=16, depths=[2, 2], num_heads=[2, 4], window_size=4, **_EAGER
    )
    return _last_hidden_state(SwinModel(config, add_pooling_layer=False), "pixel_values"), (_floats(BATCH, 3, 32, 32),)


def _segformer() -> Built:
    from transformers import SegformerConfig, SegformerForSemanticSegmentation

    config = SegformerConfig(
        depths=[1, 1, 1, 1],
        hidden_sizes=[16, 16, 32, 32],
        num_attention_heads=[1, 2, 2, 4],
        decoder_hidden_size=32,
        num_labels=5,
    )
    return _last_hidden_state(SegformerForSemanticSegmentation(config), "pixel_values"), (_floats(BATCH, 3, 64, 64),)


#: Name -> builder, in the order of the documentation's table.
BUILDERS: dict[str, Callable[[], Built]] = {
    "encoder_layer_post_gelu": lambda: _encoder_layer(norm_first=False, activation="gelu"),
    "encoder_layer_post_relu": lambda: _encoder_layer(norm_first=False, activation="relu"),
    "encoder_layer_pre_gelu": lambda: _encoder_layer(norm_first=True, activation="gelu"),
    "encoder_layer_pre_relu": lambda: _encoder_layer(norm_first=True, activation="relu"),
    "convnext_block": _convnext_block,
    "diffusion_resblock": _diffusion_resblock,
    "instance_norm_net": _instance_norm_net,
    "swiglu_block": _swiglu_block,
    "bert": _bert,
    "vit": _vit,
    "t5": _t5,
    "whisper": _whisper,
    "llama": _llama,
    "distilbert": _distilbert,
    "deberta": _deberta,
    "swin": _swin,
    "segformer": _segformer,
}
