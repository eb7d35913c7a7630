"""Builders of reference models for tests, benchmarks and the demonstration.

Each returns an onnx.ModelProto with weights from a seed; the options choose what varies between exporters: spelling,
opset, element type, quantisation.
"""

from __future__ import annotations

from normfuse.models.blocks import diffusion_resblock, ocr_block, swiglu_block
from normfuse.models.chains import chain
from normfuse.models.graph_builder import GraphBuilder
from normfuse.models.transformer import transformer_encoder

__all__ = ["GraphBuilder", "chain", "diffusion_resblock", "ocr_block", "swiglu_block", "transformer_encoder"]
