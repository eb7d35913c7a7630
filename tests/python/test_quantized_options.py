"""What optimize and sessions do about quantised weights and activations where they are asked to."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from command import Run
from onnx import numpy_helper
from parsed_models import parse, results

import normfuse
from normfuse.cli.schema import json_schema
from normfuse.graph_rewrites.quantization import quantization_removal
from normfuse.host.config_entries import disabled_optimizers
from normfuse.optimization import float_network
from normfuse.reports.page import html_text
from normfuse.tuning import tune

F32 = np.float32

# A convolution that ONNX Runtime would quantise again, and a product of many rows.
TEXT = """g (float[1,4,10,8] x) => (float[32,16] y) {
  q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z)
  w = DequantizeLinear<axis = 0>(W, ws) b = DequantizeLinear(B, bs)
  c = Conv(d, w, b) e = QuantizeLinear(c, es, ez) f = DequantizeLinear(e, es, ez)
  r = Reshape(f, shape) v = DequantizeLinear(V, vs) m = MatMul(r, v)
  g = QuantizeLinear(m, gs, gz) h = DequantizeLinear(g, gs, gz) y = Softmax(h) }"""


def quantized(dtype: Any = np.uint16) -> onnx.ModelProto:
    generator = np.random.default_rng(11)  # the same weights in every test, whichever ran before
    steps = float(np.iinfo(dtype).max)
    middle = np.array(np.iinfo(dtype).max // 2, dtype)
    tensors = {
        "s": np.array(8 / steps, F32),
        "z": middle,
        "es": np.array(16 / steps, F32),
        "ez": np.array(0, dtype),  # a Relu that the quantiser left out
        "gs": np.array(60 / steps, F32),
        "gz": middle,
        "W": generator.integers(-127, 128, (4, 4, 3, 3)).astype(np.int8),
        "ws": np.array([0.001, 0.002, 0.004, 0.006], F32),
        "B": generator.integers(-999, 999, 4).astype(np.int32),
        "bs": np.array(1e-4, F32),
        "V": generator.integers(-127, 128, (6, 16)).astype(np.int8),
        "vs": np.array(0.01, F32),
        "shape": np.array([32, 6]),
    }
    return parse(TEXT, **tensors)


def feeds() -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(12).normal(size=(1, 4, 10, 8)).astype(F32)}


def unoptimized(model: onnx.ModelProto, x: dict[str, np.ndarray]) -> np.ndarray:
    """What a model computes before ONNX Runtime rounds anything in it that the model does not round."""
    return results(model, x)["y"]


def floats(model: onnx.ModelProto) -> int:
    """How many floating-point weights a model has."""
    arrays = (numpy_helper.to_array(tensor) for tensor in model.graph.initializer if tensor.data_type == 1)
    return sum(array.size for array in arrays if array.ndim > 1)


def as_json(report: normfuse.OptimizationReport) -> Any:
    """Return what is written of a report, which is as its schema says."""
    data = json.loads(json.dumps(report.to_dict()))
    jsonschema.validate(data, json_schema("report"))
    return data


# Weights


def test_weights_are_folded_where_they_stay_floats_in_any_session() -> None:
    """A file has no session options: between quantised tensors ONNX Runtime would make int8 of floats, by one scale."""
    model = quantized()
    assert floats(normfuse.optimize(model, verify=False).model) == 0
    result = normfuse.optimize(model, fold_weights=True, samples=2)
    folding = result.report.folding
    assert (folding.written, folding.folded, folding.left, folding.gain) == (True, 1, 2, None)
    assert folding.bytes_added == 3 * 6 * 16 - 4  # the scale is gone, too
    assert "1 quantised weights are dequantised once instead of in every run: 284 bytes more." in folding.message
    assert "2 are left, because ONNX Runtime would quantise them again" in folding.message
    assert floats(result.model) == 6 * 16
    x = feeds()
    plain = onnxruntime.InferenceSession(result.model.SerializeToString(), providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(plain.run(None, x)[0], unoptimized(model, x), atol=1e-4)


def test_onnx_runtime_quantises_again_what_a_file_leaves() -> None:
    """Otherwise leaving it would be for nothing: of channels of other sizes one scale makes other numbers."""
    model = quantized()
    weights = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    scale = weights["ws"].reshape(4, 1, 1, 1)
    for name, array in (("wf", weights["W"] * scale), ("bf", weights["B"] * weights["bs"])):
        model.graph.initializer.append(numpy_helper.from_array(array.astype(F32), name))
    (conv,) = (node for node in model.graph.node if node.op_type == "Conv")
    conv.input[1:] = ["wf", "bf"]
    x = feeds()
    found = {}
    for level in ("ORT_DISABLE_ALL", "ORT_ENABLE_ALL"):
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
        session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        found[level] = session.run(None, x)[0]
    assert np.abs(found["ORT_DISABLE_ALL"] - found["ORT_ENABLE_ALL"]).max() > 1e-3


def test_a_session_on_a_rewritten_file_folds_the_rest(tmp_path: Path) -> None:
    path = tmp_path / "folded.onnx"
    model = quantized()
    normfuse.optimize(model, fold_weights=True, verify=False).save(path)
    options = onnxruntime.SessionOptions()
    session = normfuse.InferenceSession(path, options)
    assert "WeightBiasQuantization" in disabled_optimizers(session.get_session_options())
    x = feeds()
    expected = unoptimized(model, x)
    np.testing.assert_allclose(session.run(None, x)[0], expected, atol=1e-4)


def test_a_product_that_becomes_a_gemm_is_left_as_well() -> None:
    text = """g (float[32,6] x) => (float[32,16] y) {
      q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) v = DequantizeLinear(V, s) m = MatMul(d, v)
      a = Add(m, b) e = QuantizeLinear(a, s, z) y = DequantizeLinear(e, s, z) }"""
    tensors = {"s": np.array(1e-3, F32), "z": np.array(7, np.uint16), "b": np.ones(16, F32)}
    for rewritten, left in ((text, 1), (text.replace("a = Add(m, b) e = QuantizeLinear(a", "e = QuantizeLinear(m"), 0)):
        weights = np.random.default_rng(13).integers(-127, 128, (6, 16)).astype(np.int8)
        folding = normfuse.optimize(
            parse(rewritten, V=weights, **tensors), fold_weights=True, verify=False
        ).report.folding
        assert (folding.left, folding.folded) == (left, 1 - left)


def test_weights_that_two_nodes_dequantise_are_folded_once() -> None:
    text = """g (float[4,4] x) => (float[4,4] y) {
      a = DequantizeLinear(W, s) b = DequantizeLinear(W, s) p = Sub(x, a) y = Div(p, b) }"""
    model = parse(text, W=np.full((4, 4), 3, np.int8), s=np.array(0.5, F32))
    result = normfuse.optimize(model, fold_weights=True, target="standard")
    assert len(result.model.graph.initializer) == 1
    assert result.report.folding.bytes_added == 4 * 16 - 16 - 4


@pytest.fixture
def weigh(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Let models with folded weights take so many times the time of others, on a machine whose clock is that."""

    def on(factor: float) -> None:
        made = tune._ModelBench._deciding

        def deciding(self: Any, model: ir.Model, decisions: Any) -> Any:
            way = made(self, model, decisions)
            seconds = factor if any(".folded" in name for name in model.graph.initializers) else 1.0
            object.__setattr__(way, "run", lambda: seconds)
            return way

        def original(self: Any) -> Any:
            return tune.Way(lambda: 1.0, {})

        monkeypatch.setattr(tune._ModelBench, "_deciding", deciding)
        monkeypatch.setattr(tune._ModelBench, "original", original)
        monkeypatch.setattr(tune, "take_turns", lambda runs, *_: [[[run()]] * 5 for run in runs])

    return on


@pytest.mark.parametrize(("factor", "written"), [(0.8, True), (1.0, False), (1.2, False)])
@pytest.mark.parametrize("asked", [None, True])
def test_tuning_folds_where_that_is_faster(
    weigh: Callable[[float], None], asked: bool | None, factor: float, written: bool
) -> None:
    weigh(factor)
    result = normfuse.optimize(quantized(), tune=0.1, fold_weights=asked, samples=1)
    folding = result.report.folding
    assert folding.written is written
    assert folding.gain.median == pytest.approx(1 / factor)
    assert floats(result.model) == (96 if written else 0)
    assert (result.report.rules.get("FoldedWeights") == 1) is written
    assert ("they stay as they are" in folding.message) is not written
    assert "284 bytes more" in folding.message
    assert as_json(result.report)["folding"]["written"] is written


def test_tuning_leaves_weights_alone_where_that_is_asked_for(weigh: Callable[[float], None]) -> None:
    weigh(0.5)
    result = normfuse.optimize(quantized(), tune=0.1, fold_weights=False, samples=1)
    assert result.report.folding is None
    assert floats(result.model) == 0


# Activations


def test_the_float_network_and_how_far_it_is_from_the_original() -> None:
    result = normfuse.optimize(quantized(np.uint8), remove_quantization=True, target="standard", samples=2)
    report = result.report
    assert (report.removal.removed, report.removal.clipped, report.removal.kept) == (3, 3, ())
    assert report.folding.folded == 3
    assert {node.op_type for node in result.model.graph.node} == {"Clip", "Conv", "Reshape", "MatMul", "Softmax"}
    assert report.verification.passed
    assert not report.verification.quantized  # compared as strictly as any float model
    assert report.verification.error < 1e-5
    (moved,) = report.removal.differences
    assert moved.name == "y"
    x = feeds()
    before = onnxruntime.InferenceSession(quantized(np.uint8).SerializeToString()).run(None, x)[0]
    assert 0 < moved.relative < 1
    assert 0 < moved.max_abs < np.abs(before).max()
    assert "3 quantisations of activations were removed, 3 of them with a Clip" in report.removal.message
    assert "that moves 'y' by up to" in report.removal.message
    page = html_text(as_json(report))
    assert "How far that moves the outputs, on 16 samples" in page
    assert "Quantised weights" in page


def test_a_wrong_float_network_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the Clip that stands for a Relu."""
    from normfuse.graph_rewrites.quantization import quantization_removal

    monkeypatch.setattr(quantization_removal, "_is_within", lambda *_: True)
    with pytest.raises(normfuse.OptimizationError, match="Output 'y' differs"):
        normfuse.optimize(quantized(), remove_quantization=True)


def test_not_measured_where_nothing_is_compared() -> None:
    removal = normfuse.optimize(quantized(), remove_quantization=True, verify=False).report.removal
    assert (removal.removed, removal.samples) == (3, 0)
    assert "was not measured" in removal.message


def test_a_session_without_quantised_activations() -> None:
    model = quantized()
    x = feeds()
    expected = onnxruntime.InferenceSession(model.SerializeToString()).run(None, x)[0]
    got = normfuse.InferenceSession(model, remove_quantization=True).run(None, x)[0]
    assert 0 < np.abs(got - expected).max() < 0.01 * np.abs(expected).max()


def test_the_command_says_what_it_removed(run: Run, tmp_path: Path) -> None:
    model = quantized()
    model.graph.output.extend(value for value in [onnx.helper.make_tensor_value_info("e", 4, [1, 4, 8, 6])])
    path = tmp_path / "in" / "model.onnx"
    path.parent.mkdir()
    onnx.save(model, path)
    done = run("optimize", path, "-o", "out.onnx", "--remove-quantization", "--samples", "2")
    assert done.code == 0
    text = " ".join(done.out.split())
    assert "'e' is an output of the graph 1 e" in text
    assert "2 quantisations of activations were removed, 2 of them with a Clip in their place; 1 stay." in text
    assert "quantised weights are dequantised once" in text
    assert run("optimize", path.parent, "-o", "all", "--fold-weights").code == 0
    report = json.loads((tmp_path / "all" / "model.onnx.json").read_text())
    assert report["folding"]["folded"] == 1
    done = run("check", "all/model.onnx", "--original", path)
    assert done.code == 0
    assert "The results agree" in done.out


# A pair that is missing by accident


def without_one_pair(model: onnx.ModelProto, name: str) -> onnx.ModelProto:
    changed = ir.from_proto(model)
    (quantizer,) = (node for node in changed.graph if node.outputs[0].name == name)
    for reader in [use.node for use in quantizer.outputs[0].uses()]:
        reader.outputs[0].replace_all_uses_with(quantizer.inputs[0])
        changed.graph.remove(reader, safe=True)
    changed.graph.remove(quantizer, safe=True)
    return ir.to_proto(changed)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
@pytest.mark.parametrize("name", ["q", "e", "g"])
def test_a_pair_that_is_missing_is_noticed(dtype: Any, name: str) -> None:
    """Of 16 bits a step is far below what any comparison of floats allows."""
    model = quantized(dtype)
    rewritten = normfuse.optimize(model, target="standard", verify=False).model
    assert normfuse.verify(model, rewritten, samples=2).result == "agree"
    changed = without_one_pair(rewritten, name)
    report = normfuse.verify(model, changed, samples=2)
    assert report.result == "differ"
    assert report.first_difference is not None
    assert report.first_difference in report.message
    loose = normfuse.verify(model, changed, samples=2, max_error=10.0)
    assert loose.result == "agree"  # who allows an error says what may differ


def test_unrounded_keeps_what_it_is_told() -> None:
    model = ir.from_proto(quantized())
    quantizers = [node.op_type for node in float_network.unrounded(model, {"e"}).graph]
    assert quantizers.count("QuantizeLinear") == 1


@pytest.mark.parametrize(("most", "passes"), [(0.998, True), (0.97, False)])
def test_what_rounds_to_the_end_of_a_range_needs_no_clip(
    most: float, passes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Erf gives up to 1; a calibrated range ends a little below. Beyond half a step a Clip that is missing is found."""
    text = """g (float[n, 64] x) => (float[n, 64] y) {
      e = Erf(x) q = QuantizeLinear(e, s, z) d = DequantizeLinear(q, s, z) y = Mul(d, d) }"""
    model = parse(text, s=np.array(most / 127, F32), z=np.array(0, np.int8))
    monkeypatch.setattr(quantization_removal, "_is_within", lambda *_: True)
    x = {"x": np.linspace(-6, 6, 128, dtype=np.float32).reshape(2, 64)}
    if passes:
        assert normfuse.optimize(model, remove_quantization=True, inputs=x).report.verification is not None
    else:
        with pytest.raises(normfuse.OptimizationError, match="without its rounding"):
            normfuse.optimize(model, remove_quantization=True, inputs=x)
