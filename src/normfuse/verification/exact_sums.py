"""Models with exact 8-bit products to compare, if products of either model saturate on this machine.

There two right models may differ, and faults of one may not show.
"""

from __future__ import annotations

import dataclasses

import onnx_ir as ir

from normfuse.errors import NormfuseError
from normfuse.files.model_files import Source
from normfuse.inspection.quantization import saturating_products
from normfuse.sessions.creation import open_session
from normfuse.sessions.exact_products import with_exact_sums
from normfuse.verification.budget import run_all
from normfuse.verification.comparison import differences
from normfuse.verification.memory import require_memory
from normfuse.verification.samples import reference


@dataclasses.dataclass(frozen=True)
class ExactForms:
    """Two models with exact products, for models whose products may saturate on this machine."""

    original: ir.Model
    optimized: ir.Model
    products: int
    """The number of products that may saturate in the original; if there are none, in the other model."""
    inexact: int
    """The number that may still saturate in the form of the other model."""


def exact_forms(original: ir.Model, optimized: ir.Model) -> ExactForms | None:
    """Return forms of two models that can be compared on this machine; None: no other forms are needed."""
    try:
        for model in (original, optimized):
            require_memory(model)
        # Creating a session takes a second or so: usually the first one decides.
        products = saturating_products(original, "the original") or saturating_products(optimized, "the other model")
        if not products:
            return None
        forms = with_exact_sums(original, optimized)
        inexact = saturating_products(forms[1], "the form with exact sums")
    except NormfuseError:
        return None  # faults of a model are reported when it is run
    return ExactForms(forms[0], forms[1], products, inexact)


def moved_by_saturation(source: Source) -> float | None:
    """Return the error by saturation in a model's outputs on this machine, on one input; None: it cannot be run."""
    try:
        fed, expected = reference(with_exact_sums(source.model)[0], source.name, None, 1, 0, typical=True)
        results = run_all(open_session(source.model, source.name), fed)
    except NormfuseError:
        return None
    return max((difference.error for difference in differences(expected, results, quantized=True)), default=0.0)
