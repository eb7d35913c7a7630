"""The rewriting pass: finds normalisation and activation chains in every spelling, and fuses them.

`rewrite` is the entry point. Each family of spellings is one file of rules; `rules.RULES` lists them all.
"""

import normfuse.quick_imports  # noqa: F401 -- before what imports onnx_ir

# isort: split
from normfuse.graph_rewrites.engine.sites import Site
from normfuse.graph_rewrites.quantization.treatment import AS_IT_IS, Treatment
from normfuse.graph_rewrites.rewriter import RewriteResult, Target, TargetByProducts, rewrite
from normfuse.graph_rewrites.rules import RULES

__all__ = ["AS_IT_IS", "RULES", "RewriteResult", "Site", "Target", "TargetByProducts", "Treatment", "rewrite"]
