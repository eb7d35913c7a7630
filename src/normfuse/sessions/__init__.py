"""Sessions of ONNX Runtime with normfuse: the plan, the model, the cache, the class."""
