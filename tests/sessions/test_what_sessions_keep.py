"""What a session of normfuse.InferenceSession keeps of the model that it was created from."""

from __future__ import annotations

import gc
import tempfile
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import onnxruntime
import pytest
from onnx import numpy_helper

import normfuse
from normfuse.host.plain_sessions import plain_session
from normfuse.sessions import creation as sessions
from normfuse.sessions import host_optimization

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


def large() -> bytes:
    """A model with 16 MB of weights, and a chain."""
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["": 21]>
        g (float[128, 512] x) => (float[128, 512] y) {
          a = MatMul(x, W) b = MatMul(a, V) c = Slice(b, zeros, sizes) s = Sigmoid(c) y = Mul(c, s) }""")
    shapes = {"W": (512, 4096), "V": (4096, 512)}
    arrays = {
        name: np.random.default_rng(size[0]).normal(0, 0.02, size).astype(np.float32) for name, size in shapes.items()
    }
    arrays |= {"zeros": np.zeros(2, np.int64), "sizes": np.array([128, 512])}
    model.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in arrays.items())
    return model.SerializeToString()


@pytest.mark.parametrize("room", [True, False])
@pytest.mark.parametrize("kind", ["path", "bytes"])
def test_nothing_of_the_rewriting_while_onnxruntime_creates_it(
    kind: str, room: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A large model goes through a temporary file, where there is room for one; the collector is on again."""
    monkeypatch.setenv("NORMFUSE_CACHE", "0")
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / ("temporary" if room else "missing")))
    gc.collect()
    before = sum(isinstance(each, ir.Node) for each in gc.get_objects())
    kept, original = [], sessions.plain_session

    def creating(model: object, *arguments: object, **named: object) -> onnxruntime.InferenceSession:
        kept.append((type(model), sum(isinstance(each, ir.Node) for each in gc.get_objects()) - before))
        return original(model, *arguments, **named)

    monkeypatch.setattr(sessions, "plain_session", creating)
    path = tmp_path / "model.onnx"
    path.write_bytes(large())
    session = normfuse.InferenceSession(path if kind == "path" else large())
    assert kept[0] == (str, 0) if room else kept[0][0] is bytes
    assert gc.isenabled()
    assert not list((tmp_path / "temporary").iterdir())
    expected = onnxruntime.InferenceSession(large(), providers=["CPUExecutionProvider"]).run(None, X)[0]
    np.testing.assert_allclose(session.run(None, X)[0], expected, rtol=1e-4, atol=1e-4)
    session.set_providers(["CPUExecutionProvider"])
    np.testing.assert_allclose(session.run(None, X)[0], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("frees", [True, False])
def test_no_second_copy_of_weights_while_onnxruntime_optimises(frees: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The model is given up once it is written, and ONNX Runtime writes one weight after the other."""
    model, left = ir.from_proto(onnx.load_from_string(large())), []

    def creating(*arguments: object, **named: object) -> onnxruntime.InferenceSession:
        left.extend(value.const_value for value in model.graph.initializers.values())
        session = plain_session(*arguments, **named)
        assert Path(arguments[1].optimized_model_filepath).stat().st_size < 100_000
        return session

    monkeypatch.setattr(host_optimization, "plain_session", creating)
    optimized = host_optimization.optimize_by_host(model, onnxruntime.SessionOptions(), [], frees_weights=frees)
    assert [each is None for each in left] == [frees] * len(model.graph.initializers)
    got = plain_session(ir.to_proto(optimized).SerializeToString()).run(None, X)[0]
    np.testing.assert_array_equal(got, plain_session(large()).run(None, X)[0])
