"""Names, types and shapes of inputs and outputs: a session of normfuse says of them what ONNX Runtime says by itself.

tests/packaging/test_version_matrix.py runs this in the oldest onnxruntime, too.
"""

import harness
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper
from parsed_models import parse

import normfuse
from normfuse.meaning import Array

F32 = np.float32
RNG = np.random.default_rng(17)


def weights(*shape: int) -> Array:
    return np.asarray(RNG.normal(size=shape).astype(F32) / 8)


SAME = "<pads = [1, 1, 1, 1]>"
# Chains between convolutions and at the end, which a session runs on the blocked layout.
CONVOLUTIONS = f"""c = Conv {SAME} (x, w) r = Sigmoid(c) d = Mul(c, r) e = Conv {SAME} (d, v)
    t = Sigmoid(e) y = Mul(e, t) z = Relu(y)"""
NORMALIZATION = "n = LayerNormalization(x, g, b) t = Sigmoid(n) y = Mul(n, t) z = Cast <to = 10> (y)"
QUANTIZED = """p = QuantizeLinear(x, s, o) d = DequantizeLinear(p, s, o) n = LayerNormalization(d, g, b)
    q = QuantizeLinear(n, s, o) y = DequantizeLinear(q, s, o)"""


def model(nodes: str, x: str, outputs: str) -> onnx.ModelProto:
    tensors = {"g": weights(64), "b": weights(64), "w": weights(32, 16, 3, 3), "v": weights(32, 32, 3, 3)}
    tensors |= {"s": np.array(0.05, F32), "o": np.array(3, np.int8)}
    used = {name: array for name, array in tensors.items() if f" {name})" in nodes or f" {name}," in nodes}
    return parse(f"g (float[{x}] x) => ({outputs}) {{ {nodes} }}", 21 if nodes == QUANTIZED else 17, **used)


MODELS = {
    "convolutions, unnamed": model(CONVOLUTIONS, "?, 16, ?, ?", "float[?, 32, ?, ?] y"),
    "convolutions, named": model(CONVOLUTIONS, "n, 16, h, w", "float[?, ?, high, ?] y, float[?, 32, ?, ?] z"),
    "convolutions, known": model(CONVOLUTIONS, "1, 16, 24, 24", "float[?, 32, ?, ?] y, float[] z"),
    "convolutions, no shape": model(CONVOLUTIONS, "?, 16, ?, 20", "float[] y, float[] z"),
    "normalization, unnamed": model(NORMALIZATION, "?, ?, 64", "float[?, ?, 64] y, float16[?, ?, ?] z"),
    "normalization, named": model(NORMALIZATION, "n, 5, 64", "float[m, ?, 64] y, float16[?, ?, ?] z"),
    "normalization, no shape": model(NORMALIZATION, "?, 5, 64", "float[] y, float16[] z"),
    "quantized, unnamed": model(QUANTIZED, "?, 5, 64", "float[?, 5, 64] y, int8[?, 5, 64] q"),
    "quantized, named": model(QUANTIZED, "n, m, 64", "float[?, m, ?] y, int8[?, m, ?] q"),
    "an input that is held": model(NORMALIZATION, "n, 5, 64", "float[n, ?, 64] y, float16[?, ?, ?] z"),
}
MODELS["an input that is held"].graph.input.append(helper.make_tensor_value_info("g", TensorProto.FLOAT, [64]))


def described(session: onnxruntime.InferenceSession) -> list[list[str]]:
    """As NodeArg writes itself: its name, type and shape."""
    values = session.get_inputs(), session.get_outputs(), session.get_overridable_initializers()
    return [[str(each) for each in some] for some in values]


@pytest.mark.parametrize("name", MODELS)
def test_as_onnx_runtime_describes_them(name: str) -> None:
    model = MODELS[name].SerializeToString()
    plain = harness.create_session(model, "cpu")
    session = normfuse.InferenceSession(model, harness.session_options("cpu"))
    assert described(session) == described(plain)
    assert described(harness.create_session(model, "ep")) == described(plain)
    rewritten = normfuse.optimize(model, verify=False).model
    assert described(harness.create_session(rewritten, "ep")) == described(plain)


def test_a_session_on_a_blocked_layout_among_them() -> None:
    """Where ONNX Runtime would give an output a name that a custom operator made up."""
    model = MODELS["convolutions, unnamed"].SerializeToString()
    session = normfuse.InferenceSession(model, harness.session_options("cpu"))
    assert any("normfuse_unknown_" in str(each) for each in session._sess.outputs_meta)
    (y,) = session.get_outputs()
    assert isinstance(y, onnxruntime.NodeArg)
    assert y.shape == [None, 32, None, None]
    x = np.zeros((1, 16, 8, 8), F32)
    np.testing.assert_allclose(session.run(None, {"x": x})[0], np.zeros((1, 32, 8, 8), F32), atol=1e-6)
