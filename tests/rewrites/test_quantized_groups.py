"""Quantised group and instance normalisations: ONNX Runtime loads what is written for them, at every level.

Behind DequantizeLinear and Reshape, its 1.31 quantises again: int8 without a zero point as uint8, which is wrong, and
from opset 21 on with a zero point of another type, which it refuses itself.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx.inliner
import pytest
from covering import parametrize_covering
from rewrite_harness import SpellingBuilder, close, fused_nodes, optimize, run

SHAPE = (2, 6, 4, 4)
LEVELS = ("ORT_DISABLE_ALL", "ORT_ENABLE_BASIC", "ORT_ENABLE_EXTENDED", "ORT_ENABLE_ALL")
OPSETS = (13, 18, 19, 21, 22, 23)
SPELLINGS = ("GroupNormalization", "InstanceNormalization", "reshaped")
#: A scale and how many elements of dimension 1 share one, by the kind of quantisation.
SCALES: dict[str, tuple[Any, int]] = {
    "per tensor": (np.float32(0.05), 0),
    "no zero point": (np.float32(0.05), 0),
    "one element": (np.full(1, 0.05, np.float32), 0),
    "per axis": (np.linspace(0.01, 0.06, 6, dtype=np.float32), 0),
    "blocked": (np.linspace(0.01, 0.06, 96, dtype=np.float32).reshape(2, 3, 4, 4), 2),
}


def _quantization(g: SpellingBuilder, op_type: str, x: str, dtype: str, granularity: str = "per tensor") -> str:
    scale, block_size = SCALES[granularity]
    attributes = {"block_size": block_size} if block_size else {}
    zero_point = () if granularity == "no zero point" else (np.full(scale.shape, 3, dtype),)
    domain = "com.microsoft" if dtype == "int16" and g.opset < 21 else ""
    return g.add(op_type, x, scale, *zero_point, domain=domain, axis=1, **attributes)


def _normalization(g: SpellingBuilder, x: str, spelling: str) -> str:
    if spelling == "reshaped":  # as PyTorch's exporters write GroupNorm
        grouped = g.add("Reshape", x, np.array([0, 3, -1], np.int64))
        y = g.add("InstanceNormalization", grouped, np.ones(3, np.float32), np.zeros(3, np.float32))
        y = g.add("Reshape", y, g.add("Shape", x))
        return g.add("Add", g.add("Mul", y, g.weight(6, 1, 1, mean=1.0)), g.weight(6, 1, 1))
    per_group = spelling == "GroupNormalization" and g.opset < 21
    parameters = [g.weight(3 if per_group else 6, mean=1.0), g.weight(3 if per_group else 6)]
    return g.add(spelling, x, *parameters, **({"num_groups": 3} if spelling == "GroupNormalization" else {}))


def _chain(opset: int, dtype: str, spelling: str, granularity: str, quantized: str, behind: str) -> onnx.ModelProto:
    """What is normalised is `quantized`: x, x with a residual that is too, or their sum (an output as well)."""
    g = SpellingBuilder(opset)
    x = g.input("x", SHAPE, dtype)
    d = _quantization(g, "DequantizeLinear", x, dtype, granularity)
    if quantized == "residual":
        r = g.input("r", SHAPE, dtype)
        d = g.add("Add", d, _quantization(g, "DequantizeLinear", r, dtype, granularity))
    elif quantized == "sum":
        total = _quantization(g, "QuantizeLinear", g.add("Add", d, g.input("r", SHAPE)), dtype)
        g.output(total, SHAPE, dtype)
        d = _quantization(g, "DequantizeLinear", total, dtype)
    y = _normalization(g, d, spelling)
    if behind == "Swish":
        y = g.add("Mul", y, g.add("Sigmoid", y))
    elif behind == "QuantizeLinear":
        y = _quantization(g, "QuantizeLinear", y, dtype)
    g.output(y, SHAPE, dtype if behind == "QuantizeLinear" else "float32")
    return g.model("m")


def _feeds(dtype: str, quantized: str) -> dict[str, Any]:
    rng, info = np.random.default_rng(4), np.iinfo(dtype)
    values = {name: rng.integers(info.min, info.max, SHAPE, endpoint=True).astype(dtype) for name in "xr"}
    if quantized == "sum":
        values["r"] = rng.standard_normal(SHAPE).astype(np.float32)
    return values if quantized != "x" else {"x": values["x"]}


PLACES = (("x", ""), ("x", "Swish"), ("x", "QuantizeLinear"), ("residual", ""), ("sum", ""))


def _exists(opset: int, spelling: str, granularity: str, *_: object) -> bool:
    return (spelling != "GroupNormalization" or opset >= 18) and (granularity != "blocked" or opset >= 21)


# Each combination of three: ONNX Runtime's faults need an opset, a type and a kind of zero point.
@parametrize_covering(
    "opset,spelling,granularity,place,dtype",
    OPSETS,
    SPELLINGS,
    list(SCALES),
    PLACES,
    ["int8", "uint8"],
    strength=3,
    where=_exists,
)
def test_loads_without_normfuse(
    opset: int,
    spelling: str,
    granularity: str,
    place: tuple[str, str],
    dtype: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    quantized, behind = place
    monkeypatch.setattr(onnx.checker, "check_model", lambda model, **_: None)  # it refuses GroupNormalization 18
    model = _chain(opset, dtype, spelling, granularity, quantized, behind)
    portable, _ = optimize(model)
    assert len(fused_nodes(portable)) == 1
    assert not [node for node in portable.graph.node if node.op_type in ("InstanceNormalization", "QuantizeLinear")]
    feeds = _feeds(dtype, quantized)
    expected = run(model, feeds, optimized=False)
    for level in LEVELS:
        got = run(portable, feeds, level=level)
        for name, exact in expected.items():
            close(got[name], exact, f"{name} at {level}")


@parametrize_covering(
    "opset,spelling,granularity,quantized,dtype",
    OPSETS,
    ["GroupNormalization", "reshaped"],
    ["per tensor", "no zero point", "per axis"],
    ["x", "residual", "sum"],
    ["int8", "int16"],
)
def test_found_again_in_what_is_written(
    opset: int, spelling: str, granularity: str, quantized: str, dtype: str
) -> None:
    if spelling == "GroupNormalization" and opset < 21:
        spelling = "reshaped"
    model = _chain(opset, dtype, spelling, granularity, quantized, "Swish")
    portable, first = optimize(model)
    again, second = optimize(onnx.inliner.inline_local_functions(portable))
    assert [node.op_type for node in fused_nodes(again)] == [node.op_type for node in fused_nodes(portable)]
    fused = [[site.description for site in result.sites if site.fused_into] for result in (first, second)]
    assert fused[0] == fused[1]


@pytest.mark.parametrize("granularity", ["per tensor", "per axis"])
@pytest.mark.parametrize("zero_point", [True, False])
@pytest.mark.parametrize("opset", OPSETS)
def test_dequantized_behind_the_first_reshape(granularity: str, zero_point: bool, opset: int) -> None:
    """Per axis, the scale of the groups says nothing about the channels of x."""
    g = SpellingBuilder(opset)
    x = g.input("x", SHAPE, "int8")
    grouped = g.add("Reshape", x, np.array([0, 3, -1], np.int64))
    scale = np.float32(0.05) if granularity == "per tensor" else np.array([0.01, 0.02, 0.03], np.float32)
    d = g.add("DequantizeLinear", grouped, scale, *([np.full(scale.shape, 3, np.int8)] if zero_point else []))
    y = g.add("InstanceNormalization", d, np.ones(3, np.float32), np.zeros(3, np.float32))
    g.output(g.add("Reshape", y, g.add("Shape", x)), SHAPE)
    model = g.model("m")
    portable, result = optimize(model)
    groups = [site for site in result.sites if site.fused_into and site.kind == "GroupNormalization"]
    assert len(groups) == (granularity == "per tensor")
    feeds = _feeds("int8", "x")
    (expected,), (got,) = run(model, feeds, optimized=False).values(), run(portable, feeds).values()
    close(got, expected, "Y")


NARROW_TYPES = [("int4", 21), ("uint4", 23), ("int2", 25), ("uint2", 25), ("float8_e4m3fn", 21), ("float8_e5m2", 23)]
NARROW_TYPES += [("float8_e4m3fn", 19), ("float8_e5m2", 20)]


@parametrize_covering(
    "kind,spelling,zero_point,level",
    NARROW_TYPES,
    ["GroupNormalization", "InstanceNormalization"],
    [False, True],
    LEVELS,
)
def test_types_that_the_host_cannot_reshape(kind: tuple[str, int], spelling: str, zero_point: bool, level: str) -> None:
    """ONNX Runtime's Reshape has no 2 and 4 bits, and no float8 before opset 21."""
    dtype, opset = kind
    if spelling == "GroupNormalization" and opset < 21:
        spelling = "reshaped"
    g = SpellingBuilder(opset)
    zero_points = [np.zeros((), getattr(ml_dtypes, dtype))] if zero_point else []
    x = g.add("DequantizeLinear", g.input("x", SHAPE, dtype), np.float32(0.05), *zero_points)
    g.output(_normalization(g, x, spelling), SHAPE)
    model = g.model("m")
    portable, _ = optimize(model)
    assert len(fused_nodes(portable)) == 1
    feeds = {"x": np.random.default_rng(4).integers(-2, 2, SHAPE).astype(getattr(ml_dtypes, dtype))}
    got, expected = run(portable, feeds, level=level), run(model, feeds, optimized=False)
    for name, exact in expected.items():
        close(got[name], exact, name)
