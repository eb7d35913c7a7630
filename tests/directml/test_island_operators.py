"""Operators of islands, one row each: in an island, against ONNX's reference implementation in float64.

What that implementation does not compute, or has no operator for, is in the other files.
"""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import numpy as np
import onnx
import parsed_models
import pytest
from directml_islands import in_double, island, kind, open_output

from normfuse.meaning import Array
from normfuse.spec.directml import DIRECTML_OPERATORS

RNG = np.random.default_rng(4)


@dataclasses.dataclass(frozen=True)
class Row:
    """Nodes whose last result is y."""

    body: str
    inputs: dict[str, Array]
    """Those of one letter arrive at run time, the others are constants."""
    reference: str
    """Nodes that the reference computes instead, where there are some."""

    @property
    def first(self) -> str:
        return next(iter(self.inputs))

    @property
    def of_floats(self) -> bool:
        return self.inputs[self.first].dtype == np.float32


def parse(body: str, inputs: str = "", output: str = "y", constants: dict[str, Array] | None = None) -> onnx.ModelProto:
    return parsed_models.parse(f"g ({inputs}) => ({output}) {{ {body} }}", 20, **(constants or {}))


def declared(feeds: dict[str, Array]) -> str:
    return ", ".join(f"{kind(value)}[{','.join(map(str, value.shape))}] {name}" for name, value in feeds.items())


def row(body: str, reference: str = "", **inputs: Any) -> Row:
    """Tuples are shapes of random floats, lists integers."""
    body = body if " y = " in body else f"y = {body}"
    read = {name for node in parse(f"{body} {reference}").graph.node for name in node.input}
    arrays = {
        name: normal(*value) if isinstance(value, tuple) else np.asarray(value)
        for name, value in inputs.items()
        if name in read
    }
    return Row(body, arrays, reference)


def normal(*shape: int) -> Array:
    return np.asarray(RNG.normal(size=shape).astype(np.float32))


def positive(*shape: int) -> Array:
    return np.abs(normal(*shape)) + np.float32(0.2)


def integers(dtype: str, *shape: int) -> Array:
    limits = np.iinfo(dtype)
    return np.asarray(RNG.integers(limits.min, limits.max + 1, shape, dtype=dtype))


def number(value: float) -> Array:
    return np.array(value, np.float32)


A, ODD = (3, 4, 5), np.array([1, 2, np.nan, np.inf, -np.inf, 0, -0.0, 0.25], np.float32)
BOOLS = np.array([[True], [False]])
BROADCASTS = [((2, 3, 4), (2, 3, 4)), ((2, 1, 4), (3, 1)), ((4,), (2, 3, 4)), ((), (5,))]
PRODUCTS = [
    *(((2, 3), (3, 4)), ((5, 2, 3), (3, 4)), ((2, 5, 2, 3), (3, 4)), ((2, 3, 4, 5), (2, 3, 5, 2))),
    *(((2, 1, 4, 5), (3, 5, 2)), ((2, 1, 2, 2, 3), (1, 3, 2, 3, 2)), ((3,), (3, 4)), ((2, 3), (3,))),
    *(((5, 2, 3), (3,)), ((3,), (3,)), ((2, 1, 3), (2, 3, 1))),
]
ELEMENTWISE = [
    *(row(f"{op}(a, b)", a=a, b=b) for op in ("Add", "Sub", "Mul", "Div", "Min", "Max") for a, b in BROADCASTS),
    *(row(f"{op}(a)", a=A) for op in ("Neg", "Abs", "Exp", "Sin", "Cos", "Erf", "Tanh", "Sigmoid", "Relu")),
    *(row(f"{op}(a)", a=positive(3, 5)) for op in ("Sqrt", "Log", "Reciprocal")),
    *(row("Pow(a, exponent)", a=positive(3, 5), exponent=number(e)) for e in (2, 0.5, 3)),
    row("Pow(a, b)", a=positive(3, 5), b=(5,)),
    *(
        row(f"{op}(a, b)", a=ODD, b=ODD[:, None])
        for op in ("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual")
    ),
    *(row(f"t = Cast <to = 9> (a) y = {op}(t, c)", a=ODD, c=BOOLS) for op in ("And", "Or", "Xor")),
    row("t = IsNaN(a) y = Not(t)", a=ODD),
    row("Where(c, a, b)", a=(2, 4), b=(4,), c=BOOLS),
    row("BatchNormalization <epsilon = 0.01> (x, s, b, m, v)", x=(2, 3, 4, 5), s=(3,), b=(3,), m=(3,), v=positive(3)),
]
MATRICES = [
    *(row("MatMul(a, b)", a=a, b=b) for a, b in PRODUCTS),
    *(
        row(f"Gemm <alpha = 0.5, beta = 2.0, transA = {i}, transB = {j}> (a, b, c)", a=a, b=b, c=c)
        for i, a in enumerate([(2, 3), (3, 2)])
        for (j, b), c in zip(enumerate([(3, 4), (4, 3)]), [(4,), (2, 1)], strict=True)
    ),
    *(
        row(f'Einsum <equation = "{equation}"> (a, b)', a=a, b=b)
        for equation, shapes in {
            "bct,bcs->bts": [((2, 3, 4), (2, 3, 5))],
            "bts,bcs->bct": [((2, 4, 5), (2, 3, 5))],
            "bhid,bhjd->bhij": [((2, 3, 4, 5), (2, 3, 6, 5))],
            "ij,jk->ki": [((2, 3), (3, 4))],
            "ij,jk": [((2, 3), (3, 4))],
            "i,j->ij": [((3,), (4,))],
            "bi,bi->bi": [((3, 2), (3, 2))],
            "bi,bi->b": [((3, 2), (3, 2))],
            # Dimensions of 1 repeat.
            "bi,bij->bj": [((1, 3), (2, 3, 4)), ((2, 3), (1, 3, 4)), ((2, 1), (2, 3, 4)), ((2, 3), (2, 1, 4))],
            "bij,bjk->bik": [((2, 3, 1), (2, 4, 5)), ((1, 3, 4), (2, 4, 5)), ((2, 1, 4), (2, 4, 1))],
            "abcd,ecd->aeb": [((2, 3, 4, 5), (6, 4, 5)), ((2, 3, 1, 5), (6, 4, 5)), ((2, 3, 4, 5), (6, 1, 1))],
            "abi,abi->ab": [((1, 3, 2), (4, 1, 2)), ((4, 1, 1), (1, 3, 2))],
        }.items()
        for a, b in shapes
    ),
]
FAR = 2**63 - 1
MOVEMENTS = [
    row("Slice(a, start, stop, axis)", a=A, start=[1], stop=[3], axis=[1]),
    row("Slice(a, start, stop, axis)", a=A, start=[0], stop=[3], axis=[1]),
    row("Slice(a, start, stop, axis, step)", a=A, start=[1], stop=[FAR], axis=[-2], step=[2]),
    row("Slice(a, start, stop, axis, step)", a=A, start=[FAR], stop=[-FAR], axis=[1], step=[-1]),
    row("Slice(a, start, stop, axis, step)", a=A, start=[3, 1], stop=[0, 4], axis=[0, 2], step=[-2, 1]),
    row("Slice(a, start, stop, axis, step)", a=(1, 5), start=[3], stop=[9], axis=[1], step=[3]),
    row("Transpose <perm = [2, 0, 1]> (a)", a=A),
    row("Flatten <axis = 2> (a)", a=A),
    row("Flatten <axis = -1> (a)", a=A),
    row("Reshape(a, shape)", a=A, shape=[4, -1]),
    row("Reshape(a, shape)", a=A, shape=[0, -1]),
    row("Squeeze(a, axes)", a=(3, 1, 4, 1), axes=[-1]),
    row("Squeeze(a)", a=(3, 1, 4, 1)),
    row("Unsqueeze(a, axes)", a=A, axes=[0, 4]),
    row("Unsqueeze(a, axes)", a=A, axes=[-1]),
    row("Expand(a, shape)", a=A, shape=[2, 1, 1, 1]),
    row("Identity(a)", a=A),
    row("Concat <axis = 1> (a, b, a)", a=A, b=(3, 1, 5)),
    row("Concat <axis = -1> (a, b)", a=A, b=(3, 4, 2)),
    row("Gather <axis = 1> (a, indices)", a=A, indices=[2, 0, -1]),
    row("Gather <axis = -1> (a, indices)", a=A, indices=[[2, 0], [-5, 4]]),
    row("Gather(a, index)", a=A, index=np.array(-2)),
    row("GatherND(a, indices)", a=A, indices=[[0, 2], [1, -1], [-2, 0]]),
    row("GatherND <batch_dims = 1> (a, indices)", a=(2, 3, 4), indices=[[[2], [0]], [[-1], [1]]]),
    *(
        row(f"{op} <keepdims = {keep}> (a, axes)", a=A, axes=axes)
        for op, keep, axes in itertools.product(("ReduceMean", "ReduceSum", "ReduceMax"), (0, 1), ([1], [0, -1], [-3]))
    ),
    row("ReduceSum <keepdims = 0> (a)", a=A),
    row("ReduceSum <noop_with_empty_axes = 1> (a)", a=A),
    *(
        row(f'Pad <mode = "{mode}"> (a, pads)', a=A, pads=pads)
        for mode, pads in itertools.product(("constant", "edge", "reflect"), ([0, 1, 2, 1, 0, 3], [0] * 6))
    ),
    *(
        row(
            f'Pad <mode = "{mode}"> (a, pads)',
            f'kept = Slice(a, start, stop) y = Pad <mode = "{mode}"> (kept, more)',
            a=A,
            pads=[0, -1, 2, 1, 2, -2],
            start=[0, 1, 0],
            stop=[3, 4, 3],
            more=[0, 0, 2, 1, 2, 0],
        )
        for mode in ("constant", "edge", "reflect")
    ),
    row("Pad(a, pads, value, axis)", a=(3, 4), pads=[1, 2], value=number(0.5), axis=[-1]),
]
RESIZES = [
    *(
        row(
            f'Resize <mode = "linear", coordinate_transformation_mode = "{how}"> (x, , , sizes)',
            x=(2, 3, 5, 4),
            sizes=n,
        )
        for how in ("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel")
        for n in ([2, 3, 10, 12], [2, 3, 5, 3], [2, 3, 8, 4], [2, 3, 1, 4])
    ),
    *(
        row(
            f'Resize <nearest_mode = "{nearest}", coordinate_transformation_mode = "{how}"> (x, , scales)',
            x=(1, 2, 5, 6),
            scales=np.array([1, 1, *scales], np.float32),
        )
        for nearest in ("floor", "ceil", "round_prefer_floor", "round_prefer_ceil")
        for how in ("half_pixel", "asymmetric")
        for scales in ((2, 2), (2, 0.5), (3, 1))
    ),
]


def window(op: str, of: str, **attributes: object) -> str:
    return f"{op} <{', '.join(f'{name} = {value}' for name, value in attributes.items())}> ({of})"


SAME = [f'"{how}"' for how in ("SAME_UPPER", "SAME_LOWER", "VALID")]
CONVOLUTIONS: list[tuple[Any, ...]] = [
    ((2, 3, 9), (4, 3, 3), {"strides": [2], "pads": [1, 0]}),
    ((2, 3, 8, 7), (4, 3, 3, 2), {"group": 1}),
    ((1, 4, 9, 10), (6, 2, 3, 3), {"strides": [2, 1], "dilations": [1, 2], "pads": [1, 2, 0, 3], "group": 2}),
    ((2, 4, 6, 6), (4, 1, 3, 3), {"pads": [1, 1, 1, 1], "group": 4}),
    ((2, 3, 8, 8), (5, 3, 4, 4), {"strides": [4, 4]}),
    ((1, 2, 4, 5, 6), (3, 2, 2, 3, 2), {"strides": [1, 2, 1], "pads": [0, 1, 0, 1, 0, 1]}),
]
WINDOWS = [
    *(row(window("Conv", "x, w", **how), x=x, w=w) for x, w, how in CONVOLUTIONS),
    *(row(window("Conv", "x, w, b", **how), x=x, w=w, b=w[:1]) for x, w, how in CONVOLUTIONS),
    *(row(window("Conv", "x, w", auto_pad=how, strides=[2, 3]), x=(1, 2, 9, 8), w=(3, 2, 4, 3)) for how in SAME),
    *(
        row(window("ConvTranspose", "x, w, b", **how), x=x, w=w, b=(w[1],))
        for x, w, how in (
            ((2, 3, 5), (3, 4, 3), {"strides": [2]}),
            ((1, 4, 3, 4), (4, 2, 3, 2), {"strides": [2, 1], "pads": [1, 0, 0, 1], "output_padding": [1, 0]}),
        )
    ),
    row(
        window("ConvTranspose", "x, w, b", strides=[2, 2], group=2),
        """p, q = Split <axis = 1> (x, halves) r, s = Split(w, halves) t = ConvTranspose <strides = [2, 2]> (p, r)
            u = ConvTranspose <strides = [2, 2]> (q, s) v = Concat <axis = 1> (t, u) z = Unsqueeze(b, last)
            y = Add(v, z)""",
        x=(2, 4, 3, 3),
        w=(4, 3, 2, 2),
        b=(6,),
        halves=[2, 2],
        last=[1, 2],
    ),
    *(
        row(
            window(op, "x", kernel_shape=[3] * n, strides=[2] * n, pads=[1] * n + [0] * n, **more),
            x=(2, 3, 9, 8, 5)[: n + 2],
        )
        for n in (1, 2, 3)
        for op, more in (("MaxPool", {}), ("AveragePool", {}), ("AveragePool", {"count_include_pad": 1}))
    ),
    *(
        row(f"Global{op}Pool(x)", f"y = Reduce{reduction}(x, axes)", x=(2, 3, *more), axes=[*range(2, 2 + len(more))])
        for op, reduction in (("Average", "Mean"), ("Max", "Max"))
        for more in ((9,), (8, 9), (5, 6, 5))
    ),
    # A last window that would begin behind the tensor is none.
    row(
        window("MaxPool", "x", kernel_shape=[1, 2], strides=[5, 3], ceil_mode=1),
        "y = " + window("MaxPool", "x", kernel_shape=[1, 2], strides=[5, 3]),
        x=(1, 2, 5, 5),
    ),
    row(
        window("MaxPool", "x", kernel_shape=[2, 3], strides=[3, 2], dilations=[2, 1], ceil_mode=1),
        x=(1, 2, 8, 9),
    ),
    *(
        row(
            window("MaxPool", "x", kernel_shape=[2, 2], strides=[3, 2], auto_pad=how),
            "y = " + window("MaxPool", "x", kernel_shape=[2, 2], strides=[3, 2], pads=pads),
            x=(1, 2, 7, 7),
        )
        for how, pads in zip(SAME, ([0, 0, 1, 1], [1, 1, 0, 0], [0, 0, 0, 0]), strict=True)
    ),
]


def scales(columns: int) -> dict[str, Array]:
    many = (columns,) if columns else ()
    return {"sa": number(0.02), "sb": np.asarray(RNG.uniform(0.01, 0.03, many).astype(np.float32)), "sy": number(0.9)}


# The reference's own convolutions of integers know a zero point of each channel beside two dimensions alone.
CENTRED = """a = Cast <to = 11> (x) b = Cast <to = 11> (za) p = Sub(a, b) c = Cast <to = 11> (w)
    d = Cast <to = 11> (zb) e = Reshape(d, filters) q = Sub(c, e)"""
REQUANTISED = """f = Cast <to = 11> (bias) r = {conv}(p, q, f) g = Mul(sa, sb) h = Div(g, sy) i = Reshape(h, channels)
    j = Mul(r, i) k = Cast <to = 11> (zy) l = Add(j, k) m = Round(l) o = Clip(m, zero, most) y = Cast <to = 2> (o)"""
QUANTISED = [
    *(
        row(f"MatMulInteger({of})", a=integers(i, *a), b=integers(j, *b), za=integers(i), zb=integers(j, *zeros(b)))
        for (a, b), (i, j) in itertools.product(PRODUCTS[:5], (("uint8", "int8"), ("uint8", "uint8"), ("int8", "int8")))
        for of, zeros in (("a, b", lambda _: ()), ("a, b, za, zb", lambda _: ()), ("a, b, za, zb", lambda b: b[-1:]))
    ),
    *(
        row(
            "QLinearMatMul(a, sa, za, b, sb, zb, sy, zy)",
            a=integers(i, *a),
            b=integers("int8", *b),
            **scales(b[-1] * many),
            za=integers(i),
            zb=integers("int8", *b[-1:] * many),
            zy=integers(i),
        )
        for (a, b), i, many in itertools.product([*PRODUCTS[:5], PRODUCTS[6]], ("uint8", "int8"), (False, True))
    ),
    *(
        row(
            window(op, of, **how),
            f"{CENTRED} {as_floats.format(conv=window('Conv', '', **how)[:-2])}",
            x=integers("uint8", *(2, 4, 6, 7)[: 2 + n]),
            w=integers("int8", 8, 4 // how["group"], *[3] * n),
            **scales(8 * many),
            za=integers("uint8"),
            zb=integers("int8", *[8] * many),
            zy=integers("uint8"),
            bias=RNG.integers(-999, 999, 8, dtype=np.int32),
            filters=[-1, *[1] * (n + 1)],
            channels=[1, -1, *[1] * n],
            zero=number(0),
            most=number(255),
        )
        for op, of, as_floats in (
            ("ConvInteger", "x, w, za, zb", "r = {conv}(p, q) y = Cast <to = 6> (r)"),
            ("QLinearConv", "x, sa, za, w, sb, zb, sy, zy, bias", REQUANTISED),
        )
        for n, many in itertools.product((1, 2), (False, True))
        for how in (
            {"group": 1, "strides": [1] * n, "pads": [0] * 2 * n},
            {"group": 2, "strides": [2] * n, "pads": [1] * 2 * n},
            {"group": 4, "strides": [1] * n, "pads": [1] * 2 * n},
        )
    ),
]
ROWS = [*ELEMENTWISE, *MATRICES, *MOVEMENTS, *RESIZES, *WINDOWS, *QUANTISED]
ELSEWHERE = {"Shape", "Range", "Split", "ConstantOfShape", "DynamicQuantizeLinear"}


def test_every_operator_has_a_row() -> None:
    tested = {node.op_type for each in ROWS for node in parse(each.body).graph.node}
    assert tested == set(DIRECTML_OPERATORS) - ELSEWHERE


def check(each: Row, fake: dict[str, str], dtype: type, before: str) -> None:
    """Floats are of `dtype`, and come out of another operator of the island."""
    inputs = {
        name: value.astype(dtype) if value.dtype == np.float32 and each.of_floats and name != "scales" else value
        for name, value in each.inputs.items()
    }
    feeds = {name: value for name, value in inputs.items() if len(name) == 1}
    constants = {name: value for name, value in inputs.items() if len(name) > 1}
    (result,) = in_double(parse(each.reference or each.body, declared(feeds), "y", constants), feeds)
    output, body = kind(inputs[each.first] if result.dtype.kind == "f" else result), each.body
    if each.of_floats:
        given = np.asarray(-feeds.pop(each.first))
        feeds["given"] = given.T if before == "Transpose" else given
        body = f"negated = Neg(given) {each.first} = {before}(negated) {body}"
    (y,) = island(open_output(parse(body, declared(feeds), f"{output} y", constants)), fake).run(None, feeds)
    assert y.shape == result.shape
    tolerance = {"f": 2e-3 if dtype == np.float16 else 1e-5}.get(result.dtype.kind, "QLinear" in body)  # a tie
    np.testing.assert_allclose(y.astype(result.dtype), result, rtol=tolerance, atol=tolerance)
    assert result.dtype.kind == "f" or np.mean(y != result) < 0.05


@pytest.mark.parametrize("each", ROWS, ids=lambda each: each.body)
def test_row(each: Row, fake: dict[str, str]) -> None:
    check(each, fake, np.float32, "Identity")


@pytest.mark.parametrize("each", [each for each in ROWS if each.of_floats], ids=lambda each: each.body)
def test_row_in_float16_and_by_strides(each: Row, fake: dict[str, str]) -> None:
    # The value of a Pad has to be a constant of float32.
    check(each, fake, np.float32 if "value" in each.inputs else np.float16, "Transpose")
