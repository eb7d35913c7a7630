"""What the rewriting pass is to make of a model."""

from __future__ import annotations

import dataclasses
from typing import Literal, NamedTuple, get_args

Target = Literal["portable", "custom-op", "standard"]

Folding = Literal["never", "file", "session"]
"""Whether weights are folded: in a file, which any session may be created on, only those that ONNX Runtime leaves as
they are; in a session, whose options say that it leaves them, all."""

Products = Literal["as they are", "integer", "exact integer", "float"]
"""The types of 8-bit products. "integer": int8 activations become uint8, for which ONNX Runtime has kernels;
"exact integer": weights as well, where sums of uint8 x int8 would saturate (x86 without VNNI); "float": they run in
float, and their weights are dequantised once."""


class TargetByProducts(NamedTuple):
    """A target for each of two kinds of model, which are distinguished after weights were folded."""

    in_integers: Target | None
    """If products run in integers; None: the model is not rewritten then."""
    in_float: Target
    """If none does."""


@dataclasses.dataclass(frozen=True)
class RewriteOptions:
    """The form of fused nodes, and the changes of quantised models.

    Raises:
        ValueError: Unknown target.
    """

    target: Target | TargetByProducts = "portable"
    """"portable": calls of model-local functions whose bodies are standard operators; "custom-op": plain nodes of the
    domain ai.normfuse; "standard": standard operators only; or two of these to choose from."""
    allow_requantization_removal: bool = False
    """Also fuse where that removes a QuantizeLinear -> DequantizeLinear pair inside a chain, which changes results by
    up to one quantisation step."""
    remove_quantization: bool = False
    """First remove the Q/DQ pairs of activations (`quantization_removal`)."""
    fold_weights: Folding = "never"
    """Dequantise the weights of operators that run in float, once (`weight_folding`). "session": QLinearSoftmax is
    written as operators of ONNX, too (`qlinear_operators`)."""
    products: Products = "as they are"
    """See `int8_products`."""
    drop_redundant_pairs: bool = False
    """If nothing runs in integers, remove redundant Q/DQ pairs (`redundant_qdq`)."""
    shapes_before_dequantization: bool = False
    """If something does, let Shape and Size read 8-bit tensors before DequantizeLinear (`shape_readers`)."""

    def __post_init__(self) -> None:
        """Check the targets."""
        if not self.targets <= {*get_args(Target)}:
            raise ValueError(f"target is {self.target!r}; it must be one of {', '.join(get_args(Target))}")

    @property
    def targets(self) -> set[object]:
        """All targets that may be chosen."""
        chosen: tuple[object, ...] = self.target if isinstance(self.target, TargetByProducts) else (self.target,)
        return {*chosen} - {None}


AS_GIVEN = RewriteOptions()
