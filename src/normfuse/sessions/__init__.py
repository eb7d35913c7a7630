"""Sessions of ONNX Runtime with normfuse: the plan, the model, the cache, the class."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["AllowedChanges"]


class AllowedChanges(NamedTuple):
    """The changes that :class:`normfuse.InferenceSession` may make to a model, by the names of its arguments."""

    fold_weights: bool = True
    choose_products: bool = True
    blocked_layout: bool = True
    exact_products: bool = False
    allow_requantization_removal: bool = False
    remove_quantization: bool = False

    @property
    def keeps_results(self) -> bool:
        """Whether the original model would give the results that are asked for."""
        return not (self.exact_products or self.allow_requantization_removal or self.remove_quantization)
