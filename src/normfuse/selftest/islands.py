"""The self-test's cases for operators between chains on DirectML: one for each row of the table."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from normfuse.selftest.cases import Array, Expected

__all__ = ["IslandCase", "island_cases"]

_TEXT_TYPES: dict[np.dtype[np.generic], str] = {np.dtype(np.float32): "float"}


@dataclasses.dataclass(frozen=True)
class IslandCase:
    """Nodes that make ``y`` of the inputs; what is not ``runtime`` is a constant."""

    operator: str
    body: str
    """As ONNX's text form has it."""
    inputs: Mapping[str, Array]
    expected: Expected
    runtime: tuple[str, ...]

    @property
    def name(self) -> str:
        return f"{self.operator} in an island"

    def model(self, ir_version: int) -> onnx.ModelProto:
        """The model; dimensions of its inputs are open."""
        given = [f"{_text(self.inputs[name])}{_open(name, self.inputs[name].ndim)} {name}" for name in self.runtime]
        graph = f"island ({', '.join(given)}) => (float y) {{ {self.body} }}"
        model = onnx.parser.parse_model(f'<ir_version: {ir_version}, opset_import: ["": 20]> {graph}')
        output = helper.make_tensor_value_info("y", self.expected.code, [None] * self.expected.value.ndim)
        model.graph.output[0].CopyFrom(output)
        constants = {name: value for name, value in self.inputs.items() if name not in self.runtime}
        model.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in constants.items())
        return model


def _text(array: Array) -> str:
    return _TEXT_TYPES.get(array.dtype, str(array.dtype.name))


def _open(name: str, rank: int) -> str:
    return f"[{', '.join(f'{name}_{i}' for i in range(rank))}]" if rank else ""


def _numbers(*shape: int) -> Array:
    """Between -2 and 2, none near 0."""
    values = np.sin(np.arange(math.prod(shape)) * 1.7 + 0.3) * 1.8
    return np.asarray(np.where(values < 0, values - 0.2, values + 0.2).reshape(shape).astype(np.float32))


def _bytes(kind: str, *shape: int) -> Array:
    return np.asarray((np.arange(math.prod(shape)) * 37 % 256).astype(np.uint8).view(kind).reshape(shape))


def _ints(*values: int) -> Array:
    return np.array(values, np.int64)


A, B, IMAGE = _numbers(2, 3, 4), _numbers(3, 1), _numbers(2, 3, 5, 6)
_A, _B, _IMAGE = (x.astype(np.float64) for x in (A, B, IMAGE))
_ERF = np.vectorize(math.erf)

_UNARY: dict[str, Callable[[Array], Array]] = {
    "Sqrt": np.sqrt,
    "Neg": np.negative,
    "Abs": np.abs,
    "Exp": np.exp,
    "Sin": np.sin,
    "Cos": np.cos,
    "Log": np.log,
    "Erf": _ERF,
    "Reciprocal": np.reciprocal,
    "Tanh": np.tanh,
    "Sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "Relu": lambda x: np.maximum(x, 0),
    "IsNaN": np.isnan,
}
_BINARY: dict[str, Callable[[Array, Array], Array]] = {
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Div": np.divide,
    "Min": np.minimum,
    "Max": np.maximum,
    "Equal": np.equal,
    "Greater": np.greater,
    "GreaterOrEqual": np.greater_equal,
    "Less": np.less,
    "LessOrEqual": np.less_equal,
}
_LOGICAL: dict[str, Callable[[Array, Array], Array]] = {
    "And": np.logical_and,
    "Or": np.logical_or,
    "Xor": np.logical_xor,
}
# Of n = -a, where the constants are those that the operator reads.
_MOVED: dict[str, tuple[str, Mapping[str, Array], Array]] = {
    "Gather": ("Gather <axis = 1> (n, i)", {"i": _ints(2, 0, -1)}, _A[:, [2, 0, -1]]),
    "GatherND": ("GatherND(n, i)", {"i": np.array([[0, 2], [1, -1]], np.int64)}, _A[[0, 1], [2, -1]]),
    "Concat": ("Concat <axis = 1> (n, n)", {}, np.concatenate([_A, _A], 1)),
    "Slice": (
        "Slice(n, s, e, d, t)",
        {"s": _ints(1), "e": _ints(9), "d": _ints(2), "t": _ints(2)},
        _A[..., 1::2],
    ),
    "Transpose": ("Transpose <perm = [2, 0, 1]> (n)", {}, _A.transpose(2, 0, 1)),
    "Reshape": ("Reshape(n, s)", {"s": _ints(4, -1)}, _A.reshape(4, -1)),
    "Flatten": ("Flatten <axis = 2> (n)", {}, _A.reshape(-1, 4)),
    "Squeeze": ("Squeeze(b, s)", {"s": _ints(1)}, _B[:, 0]),
    "Unsqueeze": ("Unsqueeze(n, s)", {"s": _ints(0, 4)}, _A[None, ..., None]),
    "Expand": ("Expand(b, s)", {"s": _ints(2, 3, 4)}, np.broadcast_to(_B, (2, 3, 4))),
    "Identity": ("Identity(n)", {}, _A),
    "ReduceMean": ("ReduceMean(n, s)", {"s": _ints(1)}, _A.mean(1, keepdims=True)),
    "ReduceSum": ("ReduceSum <keepdims = 0> (n, s)", {"s": _ints(0, 2)}, _A.sum((0, 2))),
    "Pad": ("Pad(n, s)", {"s": _ints(0, 1, 0, 1, 0, 2)}, np.pad(_A, ((0, 1), (1, 0), (0, 2)))),
}


def _windows(x: Array, size: int) -> Array:
    return np.lib.stride_tricks.sliding_window_view(x, (size, size), axis=(2, 3))


def _convolved(x: Array, w: Array) -> Array:
    return np.asarray(np.einsum("nchwij,ocij->nohw", _windows(x, w.shape[2]), w))


def _transposed(x: Array, w: Array) -> Array:
    size = w.shape[2]
    y = np.zeros((x.shape[0], w.shape[1], x.shape[2] + size - 1, x.shape[3] + size - 1))
    for i in range(size):
        for j in range(size):
            y[:, :, i : i + x.shape[2], j : j + x.shape[3]] += np.einsum("nchw,co->nohw", x, w[:, :, i, j])
    return y


def _case(
    operator: str, body: str, expected: Array, inputs: Mapping[str, Array], code: int = TensorProto.FLOAT
) -> IslandCase:
    """Inputs named a, b, c and x arrive at run time; expected integers and booleans say their own type."""
    if expected.dtype in (np.dtype(bool), np.dtype(np.int64), np.dtype(np.int32)):
        code = helper.np_dtype_to_tensor_dtype(expected.dtype)
    runtime = tuple(name for name in inputs if name in ("a", "b", "c", "x"))
    return IslandCase(operator, body, inputs, Expected(np.asarray(expected, np.float64), code), runtime)


def _elementwise() -> list[IslandCase]:
    found = []
    for name, unary in _UNARY.items():
        found.append(_case(name, f"n = Abs(a) y = {name}(n)", unary(np.abs(_A)), {"a": A}))
    for name, binary in {**_BINARY, **_LOGICAL}.items():
        logical = name in _LOGICAL
        first, second = (A > 0, B > 0) if logical else (A, B)
        exact = (first, second) if logical else (_A, _B)
        found.append(_case(name, f"y = {name}(a, b)", binary(*exact), {"a": first, "b": second}))
    e = np.array(3, np.float32)
    return [
        *found,
        _case("Pow", "n = Abs(a) y = Pow(n, e)", np.abs(_A) ** 3, {"a": A, "e": e}),
        _case("Not", "p = And(a, a) y = Not(p)", ~(A > 0), {"a": A > 0}),
        _case("Where", "n = Neg(a) y = Where(c, n, a)", np.where(A > 0, -_A, _A), {"a": A, "c": A > 0}),
        _case("Cast", "n = Add(a, a) y = Cast <to = 9> (n)", np.asarray(A != 0), {"a": A}),
    ]


def _movements() -> list[IslandCase]:
    found = []
    for name, (call, constants, expected) in _MOVED.items():
        data = "b" if "(b," in call else "a"
        call = call.replace("(b,", "(n,")
        found.append(
            _case(name, f"n = Neg({data}) y = {call}", -expected, {data: A if data == "a" else B, **constants})
        )
    zero, one = np.array(0, np.int64), np.array(1, np.int64)
    counted = "s = Shape(a) e = Gather(s, last) r = Range(zero, e, one) f = Cast <to = 1> (r) y = Add(a, f)"
    filled = "s = Shape(a) o = ConstantOfShape(s) y = Max(a, o)"
    return [
        *found,
        _case("ReduceMax", "n = Neg(a) y = ReduceMax(n, s)", (-_A).max(1, keepdims=True), {"a": A, "s": _ints(1)}),
        _case(
            "Split",
            "n = Neg(a) u, v = Split <axis = 2> (n, s) y = Mul(u, v)",
            _A[..., :2] * _A[..., 2:],
            {"a": A, "s": _ints(2, 2)},
        ),
        _case("Shape", "s = Shape(a) r = Reshape(b, s) y = Add(a, r)", _A * 2, {"a": A, "b": A.reshape(6, 4)}),
        _case("Range", counted, _A + np.arange(4), {"a": A, "last": np.array(2, np.int64), "zero": zero, "one": one}),
        _case("ConstantOfShape", filled, np.maximum(_A, 0), {"a": A}),
    ]


def _products() -> list[IslandCase]:
    w = _numbers(4, 5)
    _w = w.astype(np.float64)
    both = _numbers(2, 4, 3)
    summed = np.einsum("bij,bjk->bik", _A, both.astype(np.float64))
    c = _numbers(5)
    gemm = "n = Neg(a) y = Gemm <alpha = 0.5, beta = 2.0> (n, w, c0)"
    return [
        _case("MatMul", "y = MatMul(a, w)", _A @ _w, {"a": A, "w": w}),
        _case("Gemm", gemm, -0.5 * (_A[0] @ _w) + 2.0 * c.astype(np.float64), {"a": A[0], "w": w, "c0": c}),
        _case("Einsum", 'y = Einsum <equation = "bij,bjk->bik"> (a, b)', summed, {"a": A, "b": both}),
    ]


def _images() -> list[IslandCase]:
    w, v = _numbers(4, 3, 3, 3), _numbers(3, 4, 3, 3)
    _w, _v = w.astype(np.float64), v.astype(np.float64)
    parameters: dict[str, Array] = {"g": _numbers(3), "h": _numbers(3), "m": _numbers(3), "s": np.abs(_numbers(3))}
    g, h, m, s = (value.astype(np.float64).reshape(3, 1, 1) for value in parameters.values())
    doubled = _IMAGE.repeat(2, 2).repeat(2, 3)
    resize = (
        'y = Resize <mode = "nearest", coordinate_transformation_mode = "asymmetric", nearest_mode = "floor"> (n, , f)'
    )
    return [
        _case("Conv", "y = Conv(a, w)", _convolved(_IMAGE, _w), {"a": IMAGE, "w": w}),
        _case("ConvTranspose", "y = ConvTranspose(a, w)", _transposed(_IMAGE, _v), {"a": IMAGE, "w": v}),
        _case("MaxPool", "y = MaxPool <kernel_shape = [3, 3]> (a)", _windows(_IMAGE, 3).max((4, 5)), {"a": IMAGE}),
        _case(
            "AveragePool", "y = AveragePool <kernel_shape = [3, 3]> (a)", _windows(_IMAGE, 3).mean((4, 5)), {"a": IMAGE}
        ),
        _case("GlobalAveragePool", "y = GlobalAveragePool(a)", _IMAGE.mean((2, 3), keepdims=True), {"a": IMAGE}),
        _case("GlobalMaxPool", "y = GlobalMaxPool(a)", _IMAGE.max((2, 3), keepdims=True), {"a": IMAGE}),
        _case(
            "BatchNormalization",
            "n = Neg(a) y = BatchNormalization(n, g, h, m, s)",
            (-_IMAGE - m) / np.sqrt(s + 1e-5) * g + h,
            {"a": IMAGE, **parameters},
        ),
        _case("Resize", f"n = Neg(a) {resize}", -doubled, {"a": IMAGE, "f": np.array([1, 1, 2, 2], np.float32)}),
    ]


def _quantised() -> list[IslandCase]:
    a, b = _bytes("uint8", 3, 8), _bytes("int8", 8, 4)
    x, w = _bytes("uint8", 2, 3, 5, 6), _bytes("int8", 4, 3, 3, 3)
    za, zb, zy = np.array(7, np.uint8), np.array(-3, np.int8), np.array(99, np.uint8)
    sa, sb, sy = (np.array(value, np.float32) for value in (0.02, 0.01, 2.5))
    product = (a.astype(np.float64) - 7) @ (b.astype(np.float64) + 3)
    sums = _convolved(x.astype(np.float64) - 7, w.astype(np.float64) + 3)
    scale = float(sa) * float(sb) / float(sy)
    zeros: dict[str, Array] = {"za": za, "zb": zb}
    scales: dict[str, Array] = {**zeros, "sa": sa, "sb": sb, "sy": sy, "zy": zy}
    step = (_A.max() - _A.min()) / 255
    dynamic = _A / step + np.rint(-_A.min() / step)
    uint8 = TensorProto.UINT8
    return [
        _case("MatMulInteger", "y = MatMulInteger(a, b, za, zb)", product.astype(np.int32), {"a": a, "b": b, **zeros}),
        _case("ConvInteger", "y = ConvInteger(x, w, za, zb)", sums.astype(np.int32), {"x": x, "w": w, **zeros}),
        _case(
            "QLinearMatMul",
            "y = QLinearMatMul(a, sa, za, b, sb, zb, sy, zy)",
            product * scale + 99,
            {"a": a, "b": b, **scales},
            uint8,
        ),
        _case(
            "QLinearConv",
            "y = QLinearConv(x, sa, za, w, sb, zb, sy, zy)",
            sums * scale + 99,
            {"x": x, "w": w, **scales},
            uint8,
        ),
        _case("DynamicQuantizeLinear", "y, s, z = DynamicQuantizeLinear(a)", dynamic, {"a": A}, uint8),
    ]


def island_cases() -> list[IslandCase]:
    """One for each operator of the table."""
    return [*_elementwise(), *_movements(), *_products(), *_images(), *_quantised()]
