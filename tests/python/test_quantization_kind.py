"""What `inspect` and `bench` say of a quantised model: the kind, its products here, and what becomes of its pairs."""

import numpy as np
import onnx
import onnxruntime
import pytest
from command import Run

import normfuse
from normfuse.files.model_files import load_model
from normfuse.host.integer_products import integer_products
from normfuse.inspection.quantization import Product, Quantization, quantization_of

ROWS, DEPTH = 32, 64


def parsed(text: str, **tensors: np.ndarray) -> onnx.ModelProto:
    imports = '["": 17, "com.microsoft": 1]'
    model = onnx.parser.parse_model(f"<ir_version: 9, opset_import: {imports}> g {text}")
    model.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in tensors.items())
    return model


def quantised(activations: type, weights: np.ndarray, channels: int = 1) -> onnx.ModelProto:
    """A Relu, and a MatMul between pairs of QuantizeLinear and DequantizeLinear."""
    domain = "" if np.dtype(activations).itemsize == 1 else "com.microsoft."
    text = f"""(float[{ROWS}, {DEPTH}] x) => (float[{ROWS}, {DEPTH}] y) <float s = {{0.05}}, float ps = {{0.5}}> {{
        [r] r = Relu (x) [q] q = {domain}QuantizeLinear (r, s, z) [d] d = {domain}DequantizeLinear (q, s, z)
        [wd] wd = DequantizeLinear <axis = 1> (w, ws, wz) [p] p = MatMul (d, wd)
        [pq] pq = {domain}QuantizeLinear (p, ps, z) [y] y = {domain}DequantizeLinear (pq, ps, z) }}"""
    shape = channels if channels > 1 else ()
    parameters = {"ws": np.full(shape, 0.01, np.float32), "wz": np.zeros(shape, weights.dtype)}
    return parsed(text, w=weights, z=np.zeros((), activations), **parameters)


def weights(low: int, high: int, dtype: type = np.int8) -> np.ndarray:
    return np.random.default_rng(0).integers(low, high, (DEPTH, DEPTH), dtype)


def said_of(model: onnx.ModelProto) -> Quantization:
    found = quantization_of(load_model(model), with_pairs=True)
    assert not found.not_asked
    return found


@pytest.mark.without_vnni
def test_whether_sums_saturate_is_asked_of_onnxruntime() -> None:
    a = np.full((4, 64), 255, np.uint8)
    b = np.full((64, 4), 127, np.int8)
    model = parsed("(uint8[4, 64] a, int8[64, 4] b) => (int32[4, 4] y) { y = MatMulInteger (a, b) }")
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (y,) = session.run(None, {"a": a, "b": b})
    here = integer_products()
    assert here.saturates == bool((y != 255 * 127 * 64).any())
    assert set(here.cost) == {"uint8 x int8", "uint8 x uint8", "int8 x int8", "int8 x uint8"}
    assert all(0.01 < cost < 100 for cost in here.cost.values())


@pytest.mark.without_vnni
@pytest.mark.parametrize(("low", "high"), [(-128, 128), (-64, 65)])
def test_a_product_of_uint8_and_int8(low: int, high: int) -> None:
    model = quantised(np.uint8, weights(low, high))
    said = said_of(model)
    assert said.forms == ("QDQ",)
    assert said.activations == {"uint8": 2}
    assert said.weights == {"int8 per tensor": 1}
    may = integer_products().saturates and low < -64
    (product,) = said.products
    cost = integer_products().cost["uint8 x int8"]
    assert product == Product("QLinearMatMul", "uint8 x int8", 1, cost, int(may))
    for sentences in (said.advice, normfuse.verify(model, model, samples=1).warnings):
        assert any("saturate" in sentence for sentence in sentences) == may


def test_weights_of_uint8_never_saturate() -> None:
    said = said_of(quantised(np.uint8, weights(0, 256, np.uint8)))
    assert [(product.types, product.saturating) for product in said.products] == [("uint8 x uint8", 0)]
    assert said.advice == ()


def test_sixteen_bits_run_in_float() -> None:
    said = said_of(quantised(np.uint16, weights(-128, 128)))
    assert said.activations == {"uint16": 2}
    (product,) = said.products
    if product.operator == "MatMulNBits":  # which ONNX Runtime 1.32 makes of weights of 8 bits
        assert product.types == "int8 x uint8"
    else:
        assert (product.operator, product.types, product.cost) == ("MatMul", "float32", 1.0)
        (sentence,) = said.advice
        assert "1 of 1 products in float" in sentence
        assert "none of 16 bits" in sentence
    assert ("folded", ("wd",)) in [(group.becomes, group.nodes) for group in said.pairs]


def test_weights_with_a_scale_for_each_channel() -> None:
    assert said_of(quantised(np.uint8, weights(-128, 128), channels=DEPTH)).weights == {"int8 per channel": 1}


def test_dynamic_quantisation() -> None:
    text = """(float[32, 64] x) => (float[32, 64] y) <float ws = {0.01}> {
        q, s, z = DynamicQuantizeLinear (x) i = MatMulInteger (q, w, z) f = Cast <to = 1> (i)
        both = Mul (s, ws) y = Mul (f, both) }"""
    said = said_of(parsed(text, w=weights(-128, 128)))
    assert said.forms == ("dynamic",)
    assert said.activations == {"uint8, found in each run": 1}
    assert said.weights == {"int8 per tensor": 1}
    assert [(product.operator, product.types) for product in said.products] == [
        ("DynamicQuantizeMatMul", "uint8 x int8")
    ]
    assert said.pairs == ()


@pytest.mark.without_vnni
def test_a_convolution_of_integers_does_not_saturate() -> None:
    """ONNX Runtime multiplies the weights, which are int8, by the image."""
    text = "(uint8[1, 64, 1, 4] x) => (int32[1, 4, 1, 4] y) { y = ConvInteger (x, w) }"
    model = parsed(text, w=np.full((4, 64, 1, 1), 127, np.int8))
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (y,) = session.run(None, {"x": np.full((1, 64, 1, 4), 255, np.uint8)})
    assert (y == 255 * 127 * 64).all()
    (product,) = said_of(model).products
    assert (product.operator, product.types, product.saturating) == ("ConvInteger", "int8 x uint8", 0)


def test_nothing_is_said_of_a_float_model() -> None:
    assert quantization_of(load_model(parsed("(float[4, 4] x) => (float[4, 4] y) { y = Relu (x) }"))) is None


def test_inspect_and_bench_say_it(run: Run) -> None:
    onnx.save(quantised(np.uint8, weights(-128, 128)), "model.onnx")
    said = run.document("inspection", "inspect", "model.onnx")["quantization"]
    assert sorted(name for group in said["pairs"] for name in group["nodes"]) == ["d", "pq", "q", "wd", "y"]
    assert all(group["message"] for group in said["pairs"])
    text = run("inspect", "model.onnx").out
    assert "Quantised: QDQ; activations uint8 (2); weights int8 per tensor (1)." in text
    assert "What normfuse.InferenceSession makes of 5 QuantizeLinear and DequantizeLinear:" in text
    said = run.document("benchmark", "bench", "model.onnx", "--seconds", "0.1")["quantization"]
    assert said["weights"] == {"int8 per tensor": 1}
    assert "Quantised: QDQ" in run("bench", "model.onnx", "--seconds", "0.1").out
