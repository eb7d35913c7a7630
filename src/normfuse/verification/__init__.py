"""Does an optimised model compute what the original computes?"""

from __future__ import annotations

import normfuse.quick_imports  # noqa: F401 -- before what imports onnx_ir

# isort: split

from normfuse.verification.comparison import OutputComparison
from normfuse.verification.inputs import Inputs, Sample
from normfuse.verification.report import ComparedRun, ComparedSites, VerificationReport
from normfuse.verification.runs import VERIFY_SECONDS, Comparing, verify, verify_models

__all__ = [
    "VERIFY_SECONDS",
    "ComparedRun",
    "ComparedSites",
    "Comparing",
    "Inputs",
    "OutputComparison",
    "Sample",
    "VerificationReport",
    "verify",
    "verify_models",
]
