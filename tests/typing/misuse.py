"""Mistakes that a type checker must find: mypy --strict complains of each ignore for which there is nothing to ignore.

Not run, only checked (see .ci/run).
"""

import normfuse

normfuse.optimize("model.onnx").save("out.onnx")
normfuse.InferenceSession(b"model")

print(normfuse.nosuch)  # type: ignore[attr-defined]
normfuse.optimize(3)  # type: ignore[arg-type]
normfuse.inspect(None)  # type: ignore[arg-type]
normfuse.verify("model.onnx", 1.5)  # type: ignore[arg-type]
normfuse.optimize("model.onnx", target="fast")  # type: ignore[arg-type]
normfuse.optimize("model.onnx", samples="all")  # type: ignore[arg-type]
