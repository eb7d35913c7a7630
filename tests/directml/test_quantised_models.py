"""Models in QDQ form, as onnxruntime's quantiser writes them: one island, one submission and one wait a run."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import harness
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper
from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_static
from parsed_models import parse

from normfuse.inspection.gpu_work import count_gpu_work
from normfuse.meaning import Array

RNG = np.random.default_rng(42)
SCHEMES = {
    "a16w8": {"activation_type": QuantType.QUInt16, "weight_type": QuantType.QInt8},
    "s8s8": {"activation_type": QuantType.QInt8, "weight_type": QuantType.QInt8},
}
WIDTH, HEADS = 16, 2


def weights(*shape: int) -> Array:
    return np.asarray(RNG.normal(size=shape).astype(np.float32) / np.float32(math.sqrt(shape[-1])))


def transformer() -> tuple[onnx.ModelProto, tuple[int, ...]]:
    """A block of an encoder: attention, and a network of two layers with SiLU."""
    constants = {name: weights(WIDTH, WIDTH) for name in ("wq", "wk", "wv", "wo", "w1", "w2")}
    constants |= {"g": 1 + weights(WIDTH), "scale": np.array(0.35, np.float32)}
    constants |= {
        "split": np.array([2, 5, HEADS, WIDTH // HEADS], np.int64),
        "join": np.array([2, 5, WIDTH], np.int64),
    }
    heads = "".join(
        f"{p}m = MatMul(n, w{p}) {p}s = Reshape({p}m, split) {p}h = Transpose <perm = [{order}]> ({p}s) "
        for p, order in (("q", "0, 2, 1, 3"), ("k", "0, 2, 3, 1"), ("v", "0, 2, 1, 3"))
    )
    text = f"""encoder (float[2, 5, {WIDTH}] x) => (float[2, 5, {WIDTH}] y) {{
        n = LayerNormalization <axis = -1> (x, g) {heads} scores = MatMul(qh, kh) scaled = Mul(scores, scale)
        p = Softmax <axis = -1> (scaled) o = MatMul(p, vh) ot = Transpose <perm = [0, 2, 1, 3]> (o)
        joined = Reshape(ot, join) a = MatMul(joined, wo) r = Add(x, a)
        m = LayerNormalization <axis = -1> (r, g) up = MatMul(m, w1) gate = Sigmoid(up) silu = Mul(up, gate)
        down = MatMul(silu, w2) y = Add(r, down) }}"""
    return onnx.shape_inference.infer_shapes(parse(text, **constants)), (2, 5, WIDTH)


def convolutions() -> tuple[onnx.ModelProto, tuple[int, ...]]:
    """A residual block with HardSwish, a squeeze and excitation, and a classifier."""
    constants = {
        "w0": weights(8, 3, 3, 3) / 3,
        "w1": weights(8, 8, 3, 3) / 3,
        "b0": weights(8),
        "b1": weights(8),
        "squeeze": weights(4, 8, 1, 1),
        "excite": weights(8, 4, 1, 1),
        "head": weights(8, 5),
        "flat": np.array([2, 8], np.int64),
    }
    text = """classifier (float[2, 3, 8, 8] x) => (float[2, 5] y) {
        c0 = Conv <pads = [1, 1, 1, 1]> (x, w0, b0) g0 = HardSigmoid <alpha = 0.16666667> (c0) a0 = Mul(c0, g0)
        c1 = Conv <pads = [1, 1, 1, 1]> (a0, w1, b1) pooled = GlobalAveragePool(c1) s = Conv(pooled, squeeze)
        sr = Relu(s) e = Conv(sr, excite) gate = Sigmoid(e) gated = Mul(c1, gate) r = Add(gated, a0) a = Relu(r)
        last = GlobalAveragePool(a) f = Reshape(last, flat) y = MatMul(f, head) }"""
    return onnx.shape_inference.infer_shapes(parse(text, **constants)), (2, 3, 8, 8)


NETWORKS = {"transformer": transformer, "convolutions": convolutions}


class Samples(CalibrationDataReader):
    def __init__(self, shape: tuple[int, ...]) -> None:
        numbers = np.random.default_rng(1)
        self._feeds = iter([{"x": numbers.normal(size=shape).astype(np.float32)} for _ in range(8)])

    def get_next(self) -> Any:
        return next(self._feeds, None)


@pytest.fixture(scope="module", params=[(name, scheme) for name in NETWORKS for scheme in SCHEMES], ids="-".join)
def quantised(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Array]:
    """The quantised model, and what it is run on."""
    name, scheme = request.param
    model, shape = NETWORKS[name]()
    folder = tmp_path_factory.mktemp("quantised")
    onnx.save(model, folder / "float.onnx")
    quantize_static(folder / "float.onnx", folder / "quantised.onnx", Samples(shape), **SCHEMES[scheme])
    return folder / "quantised.onnx", np.random.default_rng(2).normal(size=shape).astype(np.float32)


def unoptimised(model: Path, x: Array) -> Array:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return np.asarray(onnxruntime.InferenceSession(model, options).run(None, {"x": x})[0])


def test_one_island(quantised: tuple[Path, Array], fake: dict[str, str]) -> None:
    model, x = quantised
    options = {"backend": "directml", "claim": "all", **fake}
    session = harness.create_session(model, "ep", **options)
    assert not harness.cpu_types(session)
    assert len(harness.ep_groups(session)) == 1
    work = count_gpu_work(lambda given: harness.create_session(model, "ep", **options, **given), {"x": x})
    assert (work.submissions, work.waits, work.dispatches, work.created) == (1, 1, 1, 0)
    expected = unoptimised(model, x)
    # Sums in another order may make a neighbour of an integer, which goes on from there.
    step = np.abs(expected).max() / (2**14 if "uint16" in element_types(model) else 2**6)
    np.testing.assert_allclose(session.run(None, {"x": x})[0], expected, rtol=0, atol=step)


def element_types(model: Path) -> set[str]:
    """Of the zero points."""
    constants = {each.name: numpy_helper.to_array(each) for each in onnx.load(model).graph.initializer}
    return {
        str(constants[node.input[2]].dtype) for node in onnx.load(model).graph.node if node.op_type == "QuantizeLinear"
    }
