"""The rewriting pass: finds normalisation and activation chains in every spelling, and fuses them.

`rewrite` is the entry point. Each family of spellings is one file of rules; `rules.RULES` lists them all.
"""

import normfuse.quick_imports  # noqa: F401 -- before what imports onnx_ir

# isort: split
from .engine import RewriteResult, Target, TargetByProducts, rewrite
from .rules import RULES
from .sites import Site
from .treatment import AS_IT_IS, Treatment

__all__ = ["AS_IT_IS", "RULES", "RewriteResult", "Site", "Target", "TargetByProducts", "Treatment", "rewrite"]
