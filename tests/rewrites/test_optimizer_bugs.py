"""Models that other optimisers of layer normalisation got wrong, or made unloadable: the families of the reports
microsoft/onnxruntime 25855, 30513, 31147, 31980 and 27455.

Each is run as it is, with every optimisation off, against what is left of it after the pass: without any normfuse.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from rewrite_harness import SpellingBuilder, close, fused_nodes, optimize, run


def _chain(
    x_shape: Sequence[Any],
    *,
    opset: int = 13,
    scale: Sequence[int] | None = None,
    bias: Sequence[int] | None = None,
    keepdims: tuple[int, int] = (1, 1),
    axes: Sequence[int] = (-1,),
    simplified: bool = False,
    scale_first: bool = False,
) -> onnx.ModelProto:
    """ReduceMean, Sub, Pow, ReduceMean, Add, Sqrt, Div, Mul, Add: of LayerNormalization, or of its RMS form."""
    g = SpellingBuilder(opset)
    x = g.input("x", x_shape)
    d = x if simplified else g.add("Sub", x, g.reduce("ReduceMean", x, axes, keepdims[0]))
    variance = g.reduce("ReduceMean", g.add("Pow", d, 2.0), axes, keepdims[1])
    y = g.add("Div", d, g.add("Sqrt", g.add("Add", variance, 1e-5)))
    if scale is not None:
        weight = g.weight(*scale, scale=1.0, mean=1.0)
        y = g.add("Mul", weight, y) if scale_first else g.add("Mul", y, weight)
    if bias is not None:
        y = g.add("Add", y, g.weight(*bias, scale=1.0))
    g.output(y, _dimensions(max(len(shape) for shape in (x_shape, scale or (), bias or ()))))
    return g.model("reported")


def _dimensions(rank: int) -> list[str]:
    return [f"dimension_{axis}" for axis in range(rank)]


def _check(model: onnx.ModelProto, shape: Sequence[int], fused: int, **options: Any) -> None:
    optimized, _ = optimize(model, **options)
    assert len(fused_nodes(optimized)) == fused
    feeds = {"x": (np.random.default_rng(2).standard_normal(shape) * 3 + 1).astype(np.float32)}
    expected = run(model, feeds, optimized=False)
    # ONNX Runtime's own fusions are in question here: the pass must be right whether they run or not.
    got = run(optimized, feeds, optimized=False)
    for name in expected:
        close(got[name], expected[name], name)


@pytest.mark.parametrize("simplified", [False, True])
@pytest.mark.parametrize("scale_first", [False, True])
@pytest.mark.parametrize(
    ("x_shape", "scale", "bias"),
    [
        ((4, 6), (1,), (1,)),  # broadcasts: smaller than X.shape[axis:]
        ((4, 6), (4, 1), None),  # another dimension
        ((2, 4, 6), (4, 6), (4, 6)),  # more than the normalised dimension
        ((2, 4, 6), (2, 1, 1), (2, 1, 1)),
        ((6, 6), (6, 1), (6,)),  # as long, but another dimension
        ((4, 1), (6,), (6,)),  # enlarges the last dimension
        ((1, 1), (2,), None),  # the model of 31980
        ((1, 1), (2,), (2,)),
        ((1, 6), (4, 1), (4, 6)),  # enlarges the first one
        ((6,), (2, 6), None),  # adds a dimension
        ((6,), (1, 6), (1, 1, 6)),
    ],
)
def test_scale_and_bias_of_any_shape(
    x_shape: Sequence[int], scale: Sequence[int], bias: Sequence[int] | None, scale_first: bool, simplified: bool
) -> None:
    _check(_chain(x_shape, scale=scale, bias=bias, scale_first=scale_first, simplified=simplified), x_shape, fused=1)


@pytest.mark.parametrize("scale", [(1,), (6,)])
def test_dimensions_that_only_have_names(scale: Sequence[int]) -> None:
    """A name says nothing about a size: an input of [4, 1] is enlarged by a scale of [6]."""
    model = _chain(("rows", "columns"), scale=scale)
    for shape in ((4, 6), (4, 1)):
        if scale == (1,) or shape[1] == 6:
            _check(model, shape, fused=1)


@pytest.mark.parametrize("opset", [11, 17, 18])
@pytest.mark.parametrize("simplified", [False, True])
@pytest.mark.parametrize("keepdims", [(0, 0), (0, 1), (1, 0)])
@pytest.mark.parametrize("shape", [(4, 4), (1, 4, 4), (6,)])
def test_reductions_that_drop_the_dimension(
    shape: Sequence[int], keepdims: tuple[int, int], simplified: bool, opset: int
) -> None:
    """30513. Only the RMS form has one reduction, and is whole when that one keeps its dimension.

    A tensor of one dimension is one row, whose mean is a number that meets it in any case.
    """
    model = _chain(shape, opset=opset, keepdims=keepdims, scale=(shape[-1],), simplified=simplified)
    _check(model, shape, fused=int(len(shape) == 1 or (simplified and keepdims[1] == 1)))


@pytest.mark.parametrize("target", ["portable", "standard"])
@pytest.mark.parametrize("opset", [11, 13, 17, 18])
@pytest.mark.parametrize("simplified", [False, True])
@pytest.mark.parametrize("affine", ["none", "scale", "both"])
def test_tensors_of_one_dimension(affine: str, simplified: bool, opset: int, target: str) -> None:
    """31147: the deviation divided by its root has the rank of a scale there."""
    scale = None if affine == "none" else (6,)
    model = _chain((6,), opset=opset, scale=scale, bias=(6,) if affine == "both" else None, simplified=simplified)
    _check(model, (6,), fused=int(target == "portable"), target=target)


def test_the_product_of_two_normalizations_is_no_scale() -> None:
    g = SpellingBuilder(13)
    x = g.input("x", (6,))
    parts = []
    for _ in range(2):
        d = g.add("Sub", x, g.reduce_mean(x, [-1]))
        parts.append(g.add("Div", d, g.add("Sqrt", g.add("Add", g.reduce_mean(g.add("Pow", d, 2.0), [-1]), 1e-5))))
    g.output(g.add("Mul", *parts), (6,))
    _check(g.model("squared"), (6,), fused=2)


@pytest.mark.parametrize("shape", [(1, 1, 6), (4, 6)])
def test_skip_layer_normalization_with_parameters_of_more_dimensions(shape: Sequence[int]) -> None:
    """27455: a residual Add in front, and a scale of rank 3."""
    g = SpellingBuilder(17)
    total = g.add("Add", g.input("x", (2, 4, 6)), g.weight(2, 4, 6))
    d = g.add("Sub", total, g.reduce_mean(total, [-1]))
    y = g.add("Div", d, g.add("Sqrt", g.add("Add", g.reduce_mean(g.add("Pow", d, 2.0), [-1]), 1e-5)))
    g.output(g.add("Add", g.add("Mul", y, g.weight(*shape)), g.weight(*shape)), (2, 4, 6))
    _check(g.model("residual"), (2, 4, 6), fused=1)
