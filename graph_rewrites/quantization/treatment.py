"""What the rewriting pass is to do with the quantisation of a model, beside the chains."""

from __future__ import annotations

import dataclasses
from typing import Literal

__all__ = ["AS_IT_IS", "Folding", "Products", "Treatment"]

Folding = Literal["never", "file", "session"]
"""Whether weights are folded: in a file, which any session may be created on, only those that ONNX Runtime leaves as
they are; in a session, whose options say that it leaves them, all."""

Products = Literal["as they are", "integer", "exact integer", "float"]
"""What becomes of products of 8 bits. "integer": activations of int8 become uint8, so that ONNX Runtime takes them;
"exact integer": weights as well, where sums of uint8 x int8 would saturate (x86 without VNNI); "float": they run in
float, and their weights are dequantised once."""


@dataclasses.dataclass(frozen=True)
class Treatment:
    """What becomes of what is quantised."""

    allow_requantization_removal: bool = False
    """Also fuse where that removes a QuantizeLinear -> DequantizeLinear pair inside a chain, which changes results by
    up to one quantisation step."""
    remove_quantization: bool = False
    """First take the pairs of QuantizeLinear and DequantizeLinear of activations out (`quantization_removal`)."""
    fold_weights: Folding = "never"
    """Dequantise the weights of operators that run in float, once (`weight_folding`). "session": QLinearSoftmax is
    written as operators of ONNX, too (`qlinear_softmax`)."""
    products: Products = "as they are"
    """See `int8_products`."""
    drop_repeated_pairs: bool = False
    """Where nothing runs in integers, take pairs out that change nothing (`redundant_qdq`)."""
    shapes_of_integers: bool = False
    """Where something does, ask for the shape of bytes before they are dequantised (`shape_readers`)."""


AS_IT_IS = Treatment()
