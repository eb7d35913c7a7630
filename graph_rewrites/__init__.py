"""The rewriting pass: finds normalisation and activation chains in every spelling, and fuses them.

`rewrite` is the entry point. Each family of spellings is one file of rules; `rules.RULES` lists them all.
"""

import normfuse.quick_imports  # noqa: F401 -- before what imports onnx_ir

# isort: split
from normfuse.graph_rewrites.engine.options import AS_GIVEN, RewriteOptions, Target, TargetByProducts
from normfuse.graph_rewrites.engine.sites import Site
from normfuse.graph_rewrites.rewriter import RewriteResult, rewrite
from normfuse.graph_rewrites.rules import RULES

__all__ = ["AS_GIVEN", "RULES", "RewriteOptions", "RewriteResult", "Site", "Target", "TargetByProducts", "rewrite"]
