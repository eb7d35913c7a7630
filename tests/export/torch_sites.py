"""What a module computes, counted while PyTorch runs it: the numbers that the rewriting pass has to find again."""

import dataclasses
import re

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

_NORMALIZATIONS = {
    functional.layer_norm,
    functional.group_norm,
    functional.instance_norm,
    functional.rms_norm,
    torch.layer_norm,
    torch.group_norm,
    torch.instance_norm,
    torch.rms_norm,
}
# ReLU is not among them: alone it is one operator, and nothing is gained by fusing it.
_ACTIVATIONS = {functional.gelu, functional.silu, torch._C._nn.gelu, torch._C._nn.silu_}
# Modules that compute by elementary operations what has no function of its own.
_NORMALIZATION_CLASS = re.compile(r"(RMSNorm|T5LayerNorm)$")
_ACTIVATION_CLASS = re.compile(r"NewGELUActivation$")


@dataclasses.dataclass
class Counts:
    """Normalisations and activations (GELU, SiLU) that are executed, not modules: one module may run twice."""

    normalizations: int = 0
    activations: int = 0


class _Counter(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.counts = Counts()

    def __torch_function__(self, function, types, args=(), kwargs=None):
        # Only the outermost call arrives here: functional.layer_norm, not also the torch.layer_norm that it calls.
        self.counts.normalizations += function in _NORMALIZATIONS
        self.counts.activations += function in _ACTIVATIONS
        return function(*args, **(kwargs or {}))


def run_and_count(module: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, Counts]:
    """Return the module's output and what it executed."""
    hooks = []
    counter = _Counter()

    def count(part: torch.nn.Module) -> None:
        if isinstance(part, torch.nn.RMSNorm):
            return
        name = type(part).__name__
        if _NORMALIZATION_CLASS.search(name) or _ACTIVATION_CLASS.search(name):
            field = "normalizations" if _NORMALIZATION_CLASS.search(name) else "activations"

            def executed(*_: object) -> None:
                setattr(counter.counts, field, getattr(counter.counts, field) + 1)

            hooks.append(part.register_forward_hook(executed))

    for part in module.modules():
        count(part)
    try:
        with torch.no_grad(), counter:
            output = module(*inputs)
    finally:
        for hook in hooks:
            hook.remove()
    return output, counter.counts
