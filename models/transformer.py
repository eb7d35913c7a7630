"""A transformer encoder, as exporters and quantisers leave it."""

from __future__ import annotations

import numpy as np
import onnx

from normfuse.models.graph_builder import GraphBuilder
from normfuse.models.spellings import activation, layer_norm


def transformer_encoder(
    *,
    layers: int = 2,
    hidden: int = 128,
    heads: int = 4,
    vocabulary: int = 1000,
    positions: int = 512,
    opset: int = 17,
    dtype: str = "float32",
    quantized: bool = False,
    seed: int = 0,
) -> onnx.ModelProto:
    """Return an encoder: input_ids and attention_mask int64 ["batch", "sequence"] -> last_hidden_state.

    Args:
        layers: Blocks of attention and feed-forward network.
        hidden: Size of a token's vector.
        heads: Attention heads; divides ``hidden``.
        vocabulary: Rows of the embedding table.
        positions: Longest sequence.
        opset: Version of the ai.onnx operators.
        dtype: "float32" or "float16".
        quantized: Put QuantizeLinear and DequantizeLinear, int8 per tensor, around norms and matrix products.
        seed: Of the weights.
    """
    g = GraphBuilder(opset, dtype, seed)
    ids = g.input("input_ids", ["batch", "sequence"], np.int64)
    mask = g.input("attention_mask", ["batch", "sequence"], np.int64)
    block = _Block(g, hidden, heads, quantized)

    words = g.add("Gather", g.weight(vocabulary, hidden, scale=0.5, name="word_embeddings"), ids)
    length = g.add("Gather", g.add("Shape", ids), 1)
    index = g.add("Range", 0, length, 1)
    places = g.add("Gather", g.weight(positions, hidden, scale=0.5, name="position_embeddings"), index)
    x = block.normalise(g.add("Add", words, places))
    visible = g.add("Unsqueeze", g.add("Cast", mask, to=g.onnx_type(g.dtype)), [1, 2])
    bias = g.add("Mul", g.add("Sub", 1.0, visible), -10000.0)
    for _ in range(layers):
        x = block.normalise(g.add("Add", block.attention(x, bias), x))
        x = block.normalise(g.add("Add", block.feed_forward(x), x))
    g.output(x, ["batch", "sequence", hidden], name="last_hidden_state")
    return g.model("transformer_encoder")


class _Block:
    def __init__(self, g: GraphBuilder, hidden: int, heads: int, quantized: bool) -> None:
        self.g, self.hidden, self.heads, self.quantized = g, hidden, heads, quantized

    def normalise(self, x: str) -> str:
        g = self.g
        scale, bias = g.weight(self.hidden, scale=0.1, mean=1.0), g.weight(self.hidden, scale=0.1)
        return self.quantise(layer_norm(g, x, scale, bias), 8.0)

    def quantise(self, x: str, largest: float) -> str:
        """QuantizeLinear and DequantizeLinear for a range of -largest to largest."""
        if not self.quantized:
            return x
        scale, zero = self.g.constant(np.asarray(largest / 127.0, self.g.dtype)), self.g.constant(np.int8(0))
        return self.g.add("DequantizeLinear", self.g.add("QuantizeLinear", x, scale, zero), scale, zero)

    def linear(self, x: str, size_in: int, size_out: int) -> str:
        g = self.g
        weight = g.weight(size_in, size_out, scale=0.5 / np.sqrt(size_in))
        product = g.add("MatMul", x, self.quantise(weight, 4.0 * 0.5 / np.sqrt(size_in)))
        return g.add("Add", product, g.weight(size_out, scale=0.05))

    def split_heads(self, x: str) -> str:
        return self.g.add("Reshape", x, [0, 0, self.heads, self.hidden // self.heads])

    def attention(self, x: str, bias: str) -> str:
        g = self.g
        query, key, value = (self.split_heads(self.linear(x, self.hidden, self.hidden)) for _ in range(3))
        query = g.add("Transpose", query, perm=[0, 2, 1, 3])
        key = g.add("Transpose", key, perm=[0, 2, 3, 1])
        value = g.add("Transpose", value, perm=[0, 2, 1, 3])
        scores = g.add("Div", g.add("MatMul", query, key), float(np.sqrt(self.hidden // self.heads)))
        weights = g.add("Softmax", g.add("Add", scores, bias), axis=-1)
        context = g.add("Transpose", g.add("MatMul", weights, value), perm=[0, 2, 1, 3])
        return self.linear(g.add("Reshape", context, [0, 0, self.hidden]), self.hidden, self.hidden)

    def feed_forward(self, x: str) -> str:
        inner = activation(self.g, self.linear(x, self.hidden, 4 * self.hidden), "gelu_erf")
        return self.linear(self.quantise(inner, 8.0), 4 * self.hidden, self.hidden)
