"""Pairs with a Clip of the integers between QuantizeLinear and DequantizeLinear, as Brevitas writes them.

ONNX Runtime's own three nodes say what the bits are, and NumPy in float64 says what they mean. ONNX Runtime clips no
other integers than those of 8 bits, of those that quantised tensors have.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import harness
import numpy as np
import onnx
import pytest
from checking import session_and_report
from exact_programs import nasty
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper
from oracle import Array
from parsed_models import results
from strategies import Numbers

F32 = np.float32
pytestmark = [pytest.mark.every_isa, pytest.mark.without_vnni]


def clipped_pair(x: str, y: str, *, bounds: tuple[str, str] = ("low", "high")) -> list[onnx.NodeProto]:
    return [
        helper.make_node("QuantizeLinear", [x, "s", "z"], [f"{y}q"], f"Q of {x}"),
        helper.make_node("Clip", [f"{y}q", *bounds], [f"{y}c"], f"Clip of {x}"),
        helper.make_node("DequantizeLinear", [f"{y}c", "s", "z"], [y], f"DQ to {y}"),
    ]


def model(x: Array, constants: dict[str, Array], nodes: list[onnx.NodeProto], opset: int = 21) -> onnx.ModelProto:
    used = {name for node in nodes for name in node.input}
    fixed = {name: array for name, array in constants.items() if name in used}
    return harness.build_model(nodes, {"X": x}, {"Y": TensorProto.FLOAT}, fixed, opset=opset)


def in_float64(x: Array, constants: dict[str, Array], bounds: tuple[str, str]) -> Array:
    """What the three nodes mean; NaN becomes the least number of the type."""
    scale, zero = float(constants["s"]), int(constants["z"])
    limits = np.iinfo(constants["z"].dtype)
    with np.errstate(over="ignore", invalid="ignore"):
        quotient = (x / constants["s"]).astype(np.float64)  # which ONNX defines in float32
    codes = np.clip(np.where(np.isnan(quotient), -np.inf, np.rint(quotient)) + zero, limits.min, limits.max)
    low, high = (
        int(constants[name]) if name else end for name, end in zip(bounds, (limits.min, limits.max), strict=True)
    )
    return (np.minimum(np.maximum(codes, low), high) - zero) * scale


@st.composite
def cases(draw: st.DrawFn) -> tuple[Array, dict[str, Array], tuple[str, str]]:
    numbers = Numbers(draw(st.integers(0, 2**32 - 1)))
    dtype = draw(st.sampled_from([np.int8, np.uint8]))
    limits = np.iinfo(dtype)
    integers = st.one_of(st.integers(limits.min, limits.max), st.sampled_from([limits.min, limits.max, 0]))
    constants = {
        "s": np.array(draw(st.sampled_from([0.05, 0.007, 1.0, 1e-38, 1e-42, 1e30])) * draw(st.floats(0.5, 2)), F32),
        "z": np.array(draw(integers), dtype),
        "low": np.array(draw(integers), dtype),
        "high": np.array(draw(integers), dtype),
    }
    shape = tuple(draw(st.lists(st.integers(1, 40), min_size=1, max_size=3)))
    x = nasty(numbers, shape)
    if draw(st.booleans()):  # of the size of the range, and ties
        steps = numbers.generator.integers(-600, 600, shape) / 2
        with np.errstate(over="ignore"):
            x = np.where(numbers.generator.integers(0, 2, shape).astype(bool), x, steps * constants["s"]).astype(F32)
    bounds = draw(st.sampled_from([("low", "high"), ("low", ""), ("", "high"), ("", "")]))
    return x, constants, bounds


@given(case=cases())
def test_the_bits_of_the_three_nodes(case: tuple[Array, dict[str, Array], tuple[str, str]]) -> None:
    x, constants, bounds = case
    proto = model(x, constants, clipped_pair("X", "Y", bounds=bounds))
    session = harness.create_session(proto, "ep")
    assert len(harness.ep_groups(session)) == 1
    assert harness.cpu_types(session) == []
    got = harness.run(session, {"X": x})["Y"]
    np.testing.assert_array_equal(got, results(proto, {"X": x})["Y"])
    np.testing.assert_allclose(got, in_float64(x, constants, bounds), rtol=1e-6, atol=1e-44)


CONSTANTS: dict[str, Array] = {
    "s": np.array(0.04, F32),
    "z": np.array(3, np.int8),
    "low": np.array(-5, np.int8),
    "high": np.array(8, np.int8),
    "k": np.array([0.3, -1.2, 2.5, 0.7], F32),
}
X = (np.random.default_rng(2).standard_normal((3, 5, 4)) / 2).astype(F32)


def unary(op_type: str, x: str, y: str, **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(op_type, [x], [y], f"{op_type} of {x}", **attributes)


def binary(op_type: str, a: str, b: str, y: str) -> onnx.NodeProto:
    return helper.make_node(op_type, [a, b], [y], f"{op_type} of {a}")


CHAINS: dict[str, list[onnx.NodeProto]] = {
    "before an activation": [*clipped_pair("X", "a"), unary("LeakyRelu", "a", "Y")],
    "behind an activation": [unary("Relu", "X", "a"), *clipped_pair("a", "Y")],
    "around an activation": [*clipped_pair("X", "a"), unary("LeakyRelu", "a", "b"), *clipped_pair("b", "Y")],
    "behind a sum": [*clipped_pair("X", "a"), binary("Add", "a", "k", "b"), *clipped_pair("b", "Y")],
    "an activation behind a sum": [
        *(*clipped_pair("X", "a"), binary("Mul", "a", "k", "b"), *clipped_pair("b", "c")),
        *(unary("Relu", "c", "d"), binary("Add", "k", "d", "e"), *clipped_pair("e", "Y")),
    ],
    "bounds that cross": [*clipped_pair("X", "a", bounds=("high", "low")), unary("Relu", "a", "Y")],
}


@pytest.mark.parametrize("chain", CHAINS)
def test_anywhere_in_a_chain(chain: str) -> None:
    proto = model(X, CONSTANTS, CHAINS[chain])
    session = harness.create_session(proto, "ep")
    assert len(harness.ep_groups(session)) == 1, harness.fused_types(session)
    assert harness.cpu_types(session) == []
    got, whole = harness.run(session, {"X": X})["Y"], results(proto, {"X": X})["Y"]
    np.testing.assert_array_equal(got, whole)
    # And what the Clip does is seen here.
    without = [node for node in proto.graph.node if node.op_type != "Clip"]
    for node in without:
        node.input[0] = node.input[0].removesuffix("c") + "q" if node.op_type == "DequantizeLinear" else node.input[0]
    assert np.abs(results(model(X, CONSTANTS, without), {"X": X})["Y"] - whole).max() > 0.3


@pytest.mark.parametrize("length", [1, 7, 8, 33, 1023, 1025, 5000])
@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
def test_of_any_length(dtype: type, length: int) -> None:
    constants = {**CONSTANTS, **{name: np.array(30 + 5 * i, dtype) for i, name in enumerate(("z", "low", "high"))}}
    x = nasty(Numbers(length), (length,))
    proto = model(x, constants, [*clipped_pair("X", "a"), unary("Neg", "a", "Y")])
    got = harness.run(harness.create_session(proto, "ep"), {"X": x})["Y"]
    np.testing.assert_array_equal(got, results(proto, {"X": x})["Y"])


def with_input(proto: onnx.ModelProto, name: str) -> onnx.ModelProto:
    """The caller may override an initializer that is an input as well."""
    (tensor,) = [each for each in proto.graph.initializer if each.name == name]
    proto.graph.input.append(helper.make_tensor_value_info(name, tensor.data_type, list(tensor.dims)))
    return proto


@pytest.mark.parametrize("scale", [-0.04, 0.0, np.nan, np.inf, 1e38])
def test_only_of_a_scale_that_keeps_the_order(scale: float) -> None:
    proto = model(X, {**CONSTANTS, "s": np.array(scale, F32)}, clipped_pair("X", "Y"))
    session = harness.create_session(proto, "ep")
    assert "Clip" in harness.cpu_types(session)
    np.testing.assert_array_equal(harness.run(session, {"X": X})["Y"], results(proto, {"X": X})["Y"])


@pytest.mark.parametrize("name", ["low", "high", "s", "z"])
def test_only_of_constants(name: str) -> None:
    proto = with_input(model(X, CONSTANTS, clipped_pair("X", "Y")), name)
    session = harness.create_session(proto, "ep")
    assert "Clip" in harness.cpu_types(session)
    changed = {name: CONSTANTS[name] * 2}
    for feeds in ({"X": X}, {"X": X, **changed}):
        np.testing.assert_array_equal(harness.run(session, feeds)["Y"], results(proto, feeds)["Y"])


def test_a_scale_for_each_channel_says_why_it_is_left(tmp_path: Path) -> None:
    constants = {**CONSTANTS, "s": np.linspace(0.02, 0.06, 5, dtype=F32), "z": np.zeros(5, np.int8)}
    proto = model(X, constants, [unary("Neg", "X", "n"), *clipped_pair("n", "Y")])
    session, report = session_and_report(proto, tmp_path, claim="profitable")
    np.testing.assert_array_equal(harness.run(session, {"X": X})["Y"], results(proto, {"X": X})["Y"])
    (line,) = [line for line in report if line["node"] == "Q of n"]
    assert not line["claimed"]
    assert "the scale is one constant above 0" in line["message"]


def test_the_clipped_integers_are_read_twice() -> None:
    nodes = clipped_pair("X", "Y")
    twice = [*nodes, helper.make_node("DequantizeLinear", ["Yc", "s", "z"], ["d"]), unary("Neg", "d", "Z")]
    proto = harness.build_model(
        twice,
        {"X": X},
        {"Y": TensorProto.FLOAT, "Z": TensorProto.FLOAT},
        {k: v for k, v in CONSTANTS.items() if k != "k"},
    )
    session = harness.create_session(proto, "ep")
    got = harness.run(session, {"X": X})
    expected = results(model(X, CONSTANTS, nodes), {"X": X})["Y"]
    np.testing.assert_array_equal(got["Y"], expected)
    np.testing.assert_array_equal(got["Z"], -expected)


def test_silu_of_clipped_integers() -> None:
    """ONNX Runtime writes a DequantizeLinear for each of the two nodes that read them."""
    nodes = [*clipped_pair("X", "a"), unary("Sigmoid", "a", "g"), binary("Mul", "a", "g", "Y")]
    proto = model(X, CONSTANTS, nodes)
    session = harness.create_session(proto, "ep")
    assert len(harness.ep_groups(session)) == 1, harness.fused_types(session)
    np.testing.assert_allclose(harness.run(session, {"X": X})["Y"], results(proto, {"X": X})["Y"], rtol=1e-6)
