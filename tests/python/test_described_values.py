"""Names, types and shapes of inputs and outputs: a session of normfuse says of them what ONNX Runtime says by itself.

tests/packaging/test_version_matrix.py runs this in the oldest onnxruntime, too.
"""

from __future__ import annotations

import harness
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper
from oracle import Array
from parsed_models import parse

import normfuse

F32 = np.float32
RNG = np.random.default_rng(17)


def weights(*shape: int) -> Array:
    return np.asarray(RNG.normal(size=shape).astype(F32) / 8)


def convolutions(image: str, outputs: str) -> onnx.ModelProto:
    """Chains between convolutions and at the end, which a session runs on the blocked layout."""
    text = f"""g (float[{image}] x) => ({outputs}) {{
        c = Conv <pads = [1, 1, 1, 1]> (x, w) s = Sigmoid(c) d = Mul(c, s)
        e = Conv <pads = [1, 1, 1, 1]> (d, v) t = Sigmoid(e) y = Mul(e, t) z = Relu(y) }}"""
    return parse(text, 17, w=weights(32, 16, 3, 3), v=weights(32, 32, 3, 3))


def normalization(x: str, outputs: str) -> onnx.ModelProto:
    text = f"""g (float[{x}] x) => ({outputs}) {{
        n = LayerNormalization(x, s, b) t = Sigmoid(n) y = Mul(n, t) z = Cast <to = 10> (y) }}"""
    return parse(text, 17, s=weights(64), b=weights(64))


def quantized(x: str, y: str) -> onnx.ModelProto:
    text = f"""g (float[{x}] x) => (float[{y}] y, int8[{y}] q) {{
        p = QuantizeLinear(x, s, o) d = DequantizeLinear(p, s, o) n = LayerNormalization(d, g, b)
        q = QuantizeLinear(n, s, o) y = DequantizeLinear(q, s, o) }}"""
    return parse(text, 21, s=np.array(0.05, F32), o=np.array(3, np.int8), g=weights(64), b=weights(64))


def with_an_input_that_is_held() -> onnx.ModelProto:
    model = normalization("n, 5, 64", "float[n, ?, 64] y, float16[?, ?, ?] z")
    model.graph.input.append(helper.make_tensor_value_info("s", TensorProto.FLOAT, [64]))
    return model


MODELS = {
    "convolutions, unnamed": convolutions("?, 16, ?, ?", "float[?, 32, ?, ?] y"),
    "convolutions, named": convolutions("n, 16, h, w", "float[?, ?, high, ?] y, float[?, 32, ?, ?] z"),
    "convolutions, known": convolutions("1, 16, 24, 24", "float[?, 32, ?, ?] y, float[] z"),
    "convolutions, no shape": convolutions("?, 16, ?, 20", "float[] y, float[] z"),
    "normalization, unnamed": normalization("?, ?, 64", "float[?, ?, 64] y, float16[?, ?, ?] z"),
    "normalization, named": normalization("n, 5, 64", "float[m, ?, 64] y, float16[?, ?, ?] z"),
    "normalization, no shape": normalization("?, 5, 64", "float[] y, float16[] z"),
    "quantized, unnamed": quantized("?, 5, 64", "?, 5, 64"),
    "quantized, named": quantized("n, m, 64", "?, m, ?"),
    "an input that is held": with_an_input_that_is_held(),
}


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
