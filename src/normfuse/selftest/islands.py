"""The self-test's cases for operators between chains on DirectML: one for each row of the table.

What each must give, onnx's reference implementation says.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from normfuse.meaning import Array, Expected, dtype_code


@dataclasses.dataclass(frozen=True)
class IslandCase:
    """Nodes that make ``y`` of the inputs."""

    operator: str
    body: str
    """As ONNX's text form has it; what it reads is in the tables below."""

    @property
    def name(self) -> str:
        return f"{self.operator} in an island"

    @property
    def runtime(self) -> tuple[str, ...]:
        return tuple(_named(self.body, _RUNTIME))

    @property
    def inputs(self) -> Mapping[str, Array]:
        return _named(self.body, _RUNTIME | _CONSTANTS)

    @cached_property
    def expected(self) -> Expected:
        model = self._model(onnx.ValueInfoProto(name="y"))
        (result,) = ReferenceEvaluator(model).run(None, {name: self.inputs[name] for name in self.runtime})
        value = np.asarray(result)
        exact = value.astype(np.float64)
        return Expected(exact, exact, exact, dtype_code(value))

    def model(self, ir_version: int) -> onnx.ModelProto:
        """The model; dimensions of its inputs are open."""
        model = self._model(helper.make_tensor_value_info("y", self.expected.code, [None] * self.expected.exact.ndim))
        model.ir_version = ir_version
        return model

    def _model(self, output: onnx.ValueInfoProto) -> onnx.ModelProto:
        text = f'<ir_version: 10, opset_import: ["": 20]> island () => () {{ {self.body} }}'
        model = onnx.parser.parse_model(text)
        for name in self.runtime:
            value = self.inputs[name]
            shape = [f"{name}_{i}" for i in range(value.ndim)]
            model.graph.input.append(helper.make_tensor_value_info(name, dtype_code(value), shape))
        constants = {name: value for name, value in self.inputs.items() if name not in self.runtime}
        model.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in constants.items())
        model.graph.output.append(output)
        return model


def _named(body: str, arrays: Mapping[str, Array]) -> dict[str, Array]:
    return {name: arrays[name] for name in dict.fromkeys(re.findall(r"\w+", body)) if name in arrays}


def _numbers(*shape: int) -> Array:
    """Between -2 and 2, none near 0."""
    values = np.sin(np.arange(math.prod(shape)) * 1.7 + 0.3) * 1.8
    return np.asarray(np.where(values < 0, values - 0.2, values + 0.2).reshape(shape).astype(np.float32))


def _bytes(kind: str, *shape: int) -> Array:
    return np.asarray((np.arange(math.prod(shape)) * 37 % 256).astype(np.uint8).view(kind).reshape(shape))


def _ints(*values: Any) -> Array:
    return np.array(values, np.int64)


_A, _B = _numbers(2, 3, 4), _numbers(3, 1)
_RUNTIME: dict[str, Array] = {
    "a": _A,
    "b": _B,
    "a_matrix": _A[0],
    "other_a": _A.reshape(6, 4),
    "factor": _numbers(2, 4, 3),
    "is_a": _A > 0,
    "is_b": _B > 0,
    "image": _numbers(2, 3, 5, 6),
    "bytes": _bytes("uint8", 3, 8),
    "signed": _bytes("int8", 8, 4),
    "byte_image": _bytes("uint8", 2, 3, 5, 6),
}
# Lists of numbers, m for minus.
_LISTS = "1 2 9 0_2 0_4 2_2 4_m1 2_3_4 2_0_m1 0_1_0_1_0_2"
_CONSTANTS: dict[str, Array] = {
    "three": np.array(3, np.float32),
    "doubled": np.array([1, 1, 2, 2], np.float32),
    **{f"index_{value}": np.array(value, np.int64) for value in range(3)},
    **{f"ints_{text}": _ints(*map(int, text.replace("m", "-").split("_"))) for text in _LISTS.split()},
    "pairs": _ints((0, 2), (1, -1)),
    "matrix": _numbers(4, 5),
    "vector": _numbers(5),
    "filters": _numbers(4, 3, 3, 3),
    "turned_filters": _numbers(3, 4, 3, 3),
    "byte_filters": _bytes("int8", 4, 3, 3, 3),
    "channels": _numbers(3),
    "variance": np.abs(_numbers(3)),
    **{name: np.array(value, np.float32) for name, value in (("sa", 0.02), ("sb", 0.01), ("sy", 2.5))},
    "za": np.array(7, np.uint8),
    "zb": np.array(-3, np.int8),
    "zy": np.array(99, np.uint8),
}
_UNARY = "Sqrt Neg Abs Exp Sin Cos Log Erf Reciprocal Tanh Sigmoid Relu IsNaN"
_BINARY = "Add Sub Mul Div Min Max Equal Greater GreaterOrEqual Less LessOrEqual"
_OTHERS = """
Pow: n = Abs(a) y = Pow(n, three)
Not: p = And(is_a, is_a) y = Not(p)
Where: n = Neg(a) y = Where(is_a, n, a)
Cast: n = Add(a, a) y = Cast <to = 9> (n)
Gather: n = Neg(a) y = Gather <axis = 1> (n, ints_2_0_m1)
GatherND: n = Neg(a) y = GatherND(n, pairs)
Concat: n = Neg(a) y = Concat <axis = 1> (n, n)
Slice: n = Neg(a) y = Slice(n, ints_1, ints_9, ints_2, ints_2)
Transpose: n = Neg(a) y = Transpose <perm = [2, 0, 1]> (n)
Reshape: n = Neg(a) y = Reshape(n, ints_4_m1)
Flatten: n = Neg(a) y = Flatten <axis = 2> (n)
Squeeze: n = Neg(b) y = Squeeze(n, ints_1)
Unsqueeze: n = Neg(a) y = Unsqueeze(n, ints_0_4)
Expand: n = Neg(b) y = Expand(n, ints_2_3_4)
Identity: n = Neg(a) y = Identity(n)
ReduceMean: n = Neg(a) y = ReduceMean(n, ints_1)
ReduceSum: n = Neg(a) y = ReduceSum <keepdims = 0> (n, ints_0_2)
ReduceMax: n = Neg(a) y = ReduceMax(n, ints_1)
Pad: n = Neg(a) y = Pad(n, ints_0_1_0_1_0_2)
Split: n = Neg(a) u, v = Split <axis = 2> (n, ints_2_2) y = Mul(u, v)
Shape: s = Shape(a) r = Reshape(other_a, s) y = Add(a, r)
Range: s = Shape(a) e = Gather(s, index_2) r = Range(index_0, e, index_1) f = Cast <to = 1> (r) y = Add(a, f)
ConstantOfShape: s = Shape(a) o = ConstantOfShape(s) y = Max(a, o)
MatMul: y = MatMul(a, matrix)
Gemm: n = Neg(a_matrix) y = Gemm <alpha = 0.5, beta = 2.0> (n, matrix, vector)
Einsum: y = Einsum <equation = "bij,bjk->bik"> (a, factor)
Conv: y = Conv(image, filters)
ConvTranspose: y = ConvTranspose(image, turned_filters)
MaxPool: y = MaxPool <kernel_shape = [3, 3]> (image)
AveragePool: y = AveragePool <kernel_shape = [3, 3]> (image)
GlobalAveragePool: y = GlobalAveragePool(image)
GlobalMaxPool: y = GlobalMaxPool(image)
BatchNormalization: n = Neg(image) y = BatchNormalization(n, channels, channels, channels, variance)
Resize: n = Neg(image) \
  y = Resize <mode = "nearest", coordinate_transformation_mode = "asymmetric", nearest_mode = "floor"> (n, , doubled)
MatMulInteger: y = MatMulInteger(bytes, signed, za, zb)
ConvInteger: y = ConvInteger(byte_image, byte_filters, za, zb)
QLinearMatMul: y = QLinearMatMul(bytes, sa, za, signed, sb, zb, sy, zy)
QLinearConv: y = QLinearConv(byte_image, sa, za, byte_filters, sb, zb, sy, zy)
DynamicQuantizeLinear: y, s, z = DynamicQuantizeLinear(a)
"""


def island_cases() -> list[IslandCase]:
    """One for each operator of the table."""
    return [
        *(IslandCase(name, f"n = Abs(a) y = {name}(n)") for name in _UNARY.split()),
        *(IslandCase(name, f"y = {name}(a, b)") for name in _BINARY.split()),
        *(IslandCase(name, f"y = {name}(is_a, is_b)") for name in ("And", "Or", "Xor")),
        *(IslandCase(*line.split(": ", 1)) for line in _OTHERS.strip().splitlines()),
    ]
