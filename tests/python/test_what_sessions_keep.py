"""What a session of normfuse.InferenceSession keeps of the model that it was created from."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import numpy_helper

import normfuse

WEIGHTS = np.random.default_rng(5).integers(-127, 128, (512, 512)).astype(np.int8)
X = {"x": np.random.default_rng(6).normal(size=(128, 512)).astype(np.float32)}


def quantized() -> bytes:
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["": 21]>
        g (float[128, 512] x) => (float[128, 512] y) {
          q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) w = DequantizeLinear(W, s) y = MatMul(d, w) }""")
    arrays = {"s": np.array(0.001, np.float32), "z": np.array(2**15, np.uint16), "W": WEIGHTS}
    model.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in arrays.items())
    return model.SerializeToString()


@pytest.mark.parametrize("kind", ["path", "bytes"])
def test_not_the_folded_weights(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(quantized())
    session = normfuse.InferenceSession(path if kind == "path" else quantized())
    kept = session._model_bytes
    assert kept is None if kind == "path" else len(kept) < 2 * WEIGHTS.nbytes  # folded ones take four times as many
    before = session.run(None, X)[0]
    session.set_providers(["CPUExecutionProvider"])
    assert session.get_providers() == ["CPUExecutionProvider"]
    np.testing.assert_allclose(session.run(None, X)[0], before, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("option", ["remove_quantization", "allow_requantization_removal"])
def test_the_rewritten_model_where_results_change(option: str) -> None:
    session = normfuse.InferenceSession(quantized(), **{option: True})
    before = session.run(None, X)[0]
    session.set_providers(["CPUExecutionProvider"])
    np.testing.assert_allclose(session.run(None, X)[0], before, rtol=1e-5, atol=1e-5)
