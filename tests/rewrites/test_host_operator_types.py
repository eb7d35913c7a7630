"""What is known of ONNX Runtime's own operators in front of a chain: exactly what these give there, or nothing."""

from __future__ import annotations

import re

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from rewrite_harness import optimize

from normfuse.graph_rewrites.engine.inference import infer_types

# The inputs of each operator, and what computes h of them, which the model does not describe.
ROWS = """
QLinearSoftmax: uint8[N,3,8] x, PAIR -> h = QLinearSoftmax<axis = -1, opset = 13>(x, SZ, SZ)
QLinearSigmoid: uint8[N,3,8] x, PAIR -> h = QLinearSigmoid(x, SZ, SZ)
QLinearLeakyRelu: uint8[N,3,8] x, PAIR -> h = QLinearLeakyRelu(x, SZ, SZ)
QLinearAdd: uint8[N,1,8] x, uint8[3,1] b, PAIR -> h = QLinearAdd(x, SZ, b, SZ, SZ)
QLinearMul: uint8[N,1,8] x, uint8[3,1] b, PAIR -> h = QLinearMul(x, SZ, b, SZ, SZ)
RotaryEmbedding: float[N,3,8] x, int64[1] p, float[4,4] c -> h = RotaryEmbedding(x, p, c, c)
RotaryEmbedding of heads: float[N,2,3,8] x, int64[1] p, float[4,4] c -> h = RotaryEmbedding(x, p, c, c)
GroupQueryAttention: float[N,3,32] x, float[N,3,16] b, int32[N] last, int32 total -> h, k, v = GroupQueryAttention<num_heads = 4, kv_num_heads = 2>(x, b, b, , , last, total)
GroupQueryAttention, packed: float[N,3,64] x, int32[N] last, int32 total -> h, k, v = GroupQueryAttention<num_heads = 4, kv_num_heads = 2>(x, , , , , last, total)
MultiHeadAttention: float[N,3,16] x, float[N,5,16] k, float[N,5,24] v -> h = MultiHeadAttention<num_heads = 2>(x, k, v)
MultiHeadAttention, packed: float[N,3,2,3,8] x -> h = MultiHeadAttention<num_heads = 2>(x)
MultiHeadAttention of heads: float[N,3,16] x, float[N,2,5,8] k, float[N,2,5,12] v -> h = MultiHeadAttention<num_heads = 2>(x, k, v)
MatMulIntegerToFloat: uint8[N,3,8] x, uint8[8,5] q, float s -> h = MatMulIntegerToFloat(x, q, s, s)
MatMulNBits: float[N,3,32] x, uint8[5,1,16] q, float[5] s -> h = MatMulNBits<K = 32, N = 5, bits = 4, block_size = 32>(x, q, s)
DynamicQuantizeMatMul: float[N,3,8] x, uint8[8,5] q, float s, uint8 z -> h = DynamicQuantizeMatMul(x, q, s, z)
EmbedLayerNormalization: int32[N,3] x, float[9,8] w, float[8] s -> h, m = EmbedLayerNormalization(x, , w, w, , s, s)
FusedConv: float[N,3,8,8] x, float[5,3,3,3] w -> h = FusedConv<activation = "Relu", pads = [1, 0, 1, 0], strides = [2, 1]>(x, w)
FusedGemm: float[3,8] x, float[5,8] w -> h = FusedGemm<activation = "Relu", transB = 1>(x, w)
FusedMatMul: float[N,3,8] x, float[8,5] w -> h = FusedMatMul(x, w)
FusedMatMul, second transposed: float[N,3,8] x, float[5,8] w -> h = FusedMatMul<transB = 1>(x, w)
FusedMatMul, first transposed: float[N,8,3] x, float[N,8,5] w -> h = FusedMatMul<transA = 1>(x, w)
FusedMatMul, both transposed: float[N,8,3] x, float[N,5,8] w -> h = FusedMatMul<transA = 1, transB = 1>(x, w)
FusedMatMul, batch: float[3,2,8] x, float[2,8,5] w -> h = FusedMatMul<transBatchA = 1>(x, w)
"""  # noqa: E501
PROGRAMS = {
    name: (call, inputs)
    for name, inputs, call in re.findall(
        "(.*): (.*) -> (.*)", ROWS.replace("PAIR", "float scale, uint8 zero").replace("SZ", "scale, zero")
    )
}


def model_of(program: str, inputs: str, outputs: str = "h") -> onnx.ModelProto:
    head, _, call = program.partition(" = ")
    text = f"""
        <ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]>
        g ({inputs}) => ({outputs}) {{ {head} = com.microsoft.{call} }}
    """
    return onnx.parser.parse_model(text)


def fed(model: onnx.ModelProto, n: int) -> dict[str, np.ndarray]:
    feeds = {}
    for value in model.graph.input:
        tensor = value.type.tensor_type
        shape = [dim.dim_value or n for dim in tensor.shape.dim]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
        feeds[value.name] = np.full(shape, {"last": 2, "total": 3}.get(value.name, 1), dtype)
    return feeds


@pytest.mark.parametrize("name", PROGRAMS)
def test_types_are_those_of_onnxruntime(name: str) -> None:
    model = model_of(*PROGRAMS[name])
    source = ir.from_proto(model)
    inferred = infer_types(source)[source.graph].get("h")
    unknown = name in ("GroupQueryAttention, packed", "MultiHeadAttention, packed", "MultiHeadAttention of heads")
    if unknown or name == "FusedMatMul, batch":
        assert inferred is None or inferred.shape is None
        return
    assert inferred is not None
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    for n in (1, 2):
        (h,) = session.run(["h"], fed(model, n))
        assert inferred.dtype.numpy() == h.dtype
        assert [n if isinstance(dim, ir.SymbolicDim) else dim for dim in inferred.shape] == list(h.shape)


@pytest.mark.parametrize(
    "call",
    ['MatMulNBits<K = "a", N = 1.0>(x)', "FusedMatMul<transA = 0.5, transBatchB = [1]>(x, x)", "QLinearAdd(x)"],
)
def test_operator_that_is_no_such_one_is_passed_over(call: str) -> None:
    """ONNX knows no schema of theirs, so that nothing else refuses them."""
    _, result = optimize(model_of(f"h = {call}", "float[2,8] x"))
    assert not result.sites


def test_attribute_that_the_call_of_a_function_gives() -> None:
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["": 17, "com.microsoft": 1, "own": 1]>
        g (float[4,8] x, float[4,8] w) => (float[8,8] y) { y = own.product <turned = 1> (x, w) }
        <domain: "own", opset_import: ["": 17, "com.microsoft": 1]>
        product <turned> (a, b) => (h) { h = com.microsoft.FusedMatMul <transA: int = @turned> (a, b) }
    """)
    source = ir.from_proto(model)
    (function,) = source.functions.values()
    inferred = infer_types(source)[function.graph].get("h")
    assert inferred is None or inferred.shape is None
