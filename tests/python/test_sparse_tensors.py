"""Sparse weights come through as dense ones, or are refused with a sentence."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest
from onnx import TensorProto, helper

import normfuse

TEXT = """<ir_version: 8, opset_import: ["" : 17]>
g (float[2,4] x, bool on) => (float[2,4] y) <float[4] s = {1, 1, 2, 2}> {
    n = LayerNormalization (x, s)
    z = Add (n, weight)
    c = Constant ()
    r = Relu (z)
    y = If (on) <then_branch = t () => (float[2,4] p) { p = Add (r, c) }, else_branch = e () => (float[2,4] q) {
        q = Sub (r, inner) }>
}"""


def sparse(name: str, shape: list[int], indices: list[int] | list[list[int]]) -> onnx.SparseTensorProto:
    places = np.array(indices, np.int64)
    values = helper.make_tensor(name, TensorProto.FLOAT, [len(places)], np.arange(1, len(places) + 1, dtype=np.float32))
    kept = helper.make_tensor("places", TensorProto.INT64, places.shape, places.ravel())
    return helper.make_sparse_tensor(values, kept, shape)


def with_sparse_tensors() -> onnx.ModelProto:
    model = onnx.parser.parse_model(TEXT)
    model.graph.sparse_initializer.append(sparse("weight", [4], [1, 3]))
    model.graph.node[2].attribute.append(
        onnx.AttributeProto(
            name="sparse_value",
            type=onnx.AttributeProto.SPARSE_TENSOR,
            sparse_tensor=sparse("constant", [2, 4], [[0, 1], [1, 3]]),
        )
    )
    branch = next(a.g for a in model.graph.node[-1].attribute if a.name == "else_branch")
    branch.sparse_initializer.append(sparse("inner", [2, 4], [[0, 2], [1, 0]]))
    return model


@pytest.mark.parametrize("on", [True, False])
def test_results_stay(on: bool) -> None:
    model = with_sparse_tensors()
    given = model.SerializeToString()
    optimized = normfuse.optimize(model, verify=False)
    assert len(optimized.report.fused) == 1
    assert model.SerializeToString() == given
    feeds = {"x": np.arange(8, dtype=np.float32).reshape(2, 4), "on": np.array(on)}
    results = []
    for each in (model, optimized.model):
        session = onnxruntime.InferenceSession(each.SerializeToString(), providers=["CPUExecutionProvider"])
        results.append(session.run(None, feeds)[0])
    np.testing.assert_allclose(results[1], results[0], atol=1e-5)


def test_malformed_tensor_is_named() -> None:
    model = with_sparse_tensors()
    model.graph.sparse_initializer[0].indices.int64_data[:] = [1, 9]
    with pytest.raises(normfuse.InvalidModelError, match=r"sparse tensor 'weight' of shape \[4\] is malformed"):
        normfuse.optimize(model)
