"""The bodies of portable models load and run on ONNX Runtime alone, whatever float types their operands have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import harness
import ml_dtypes
import numpy as np
import onnx
import pytest
from covering import parametrize_covering
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper
from rewrite_harness import DOMAIN, SpellingBuilder, fused_nodes, inputs_of, meaning_of, optimize, run
from strategies import Case

from normfuse.meaning import Array, dtype_code

SHAPE = (2, 4, 3, 8)
TYPES: list[Any] = [np.float32, np.float16, ml_dtypes.bfloat16]
LOW_TYPES = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
#: What is normalised, and the shape of scale and bias: each form has a body of its own.
FORMS: dict[str, tuple[dict[str, Any], tuple[int, ...]]] = {
    "last": ({"axes": [-1]}, (8,)),
    "last two": ({"axes": [-2, -1]}, (3, 8)),
    "scale for each row": ({"axes": [-1]}, (3, 1)),
    "root mean square": ({"axes": [-1], "use_mean": 0}, (8,)),
    "instance": ({"axes": [-2, -1], "affine_align": "channel"}, (4,)),
    "channels": ({"axes": [1]}, (4, 1, 1)),
    "groups": ({"num_groups": 2, "affine_align": "channel"}, (4,)),
    "group scales": ({"num_groups": 2, "affine_align": "group"}, (2,)),
    "groups without mean": ({"num_groups": 2, "use_mean": 0, "affine_align": "channel"}, (4,)),
    "mean and variance": ({"axes": [0, 2, 3], "epsilon": 1e-9, "epsilon_on": "stddev"}, (4, 1, 1)),
    "element-wise": ({}, (8,)),
    "element-wise channels": ({"affine_align": "channel"}, (4,)),
}
#: PRelu has a slope of its own type; float16 has no kernel of its own for the others.
ACTIVATIONS = ("Identity", "Gelu", "Swish", "PRelu", "HardSwish", "Softplus")
OPSETS = (13, 17, 18, 21, 23)


@st.composite
def nodes(draw: st.DrawFn) -> tuple[int, Case]:
    """Opset and any node of our domain, in any mixture of float types."""
    form = draw(st.sampled_from(sorted(FORMS)))
    attributes, parameter = FORMS[form]
    operator = "FusedActivation" if form.startswith("element") else "FusedNormalization"
    attributes = attributes | {"activation": draw(st.sampled_from(ACTIVATIONS))}
    numbers = np.random.default_rng(draw(st.integers(0, 99)))

    def tensor(shape: tuple[int, ...], mean: float = 0.0) -> Array:
        return numbers.normal(mean, 1, shape).astype(draw(st.sampled_from(TYPES)))

    inputs: dict[str, Array] = {"X": tensor(SHAPE)}
    if draw(st.integers(0, 3)) == 0:
        inputs["X"] = numbers.integers(-100, 100, SHAPE).astype(np.int8)
        inputs["x_scale"] = np.array(0.03, draw(st.sampled_from(TYPES)))
    for name, mean in (("scale", 1.0), ("bias", 0.0)):
        if draw(st.booleans()):
            inputs[name] = tensor(parameter, mean)
    if operator == "FusedNormalization" and not attributes.get("num_groups"):
        if draw(st.booleans()):
            inputs["residual"] = tensor(SHAPE)
        if "residual" in inputs and draw(st.booleans()):
            inputs["residual_bias"] = tensor((8,))
        if "residual" in inputs and draw(st.integers(0, 2)) == 0:
            inputs["sum_scale"] = np.array(0.1, draw(st.sampled_from(TYPES)))
            inputs["sum_zero_point"] = np.array(-2, np.int8)
    if attributes["activation"] == "PRelu":
        inputs["slope"] = tensor((8,))
    if draw(st.booleans()):
        attributes["y_dtype"] = dtype_code(np.zeros(0, draw(st.sampled_from(TYPES))))
    elif draw(st.booleans()):
        inputs["y_scale"] = np.array(0.05, draw(st.sampled_from(TYPES)))
        inputs["y_zero_point"] = np.array(3, np.int8)
    outputs = ["Y"]
    if operator == "FusedNormalization" and not attributes.get("num_groups"):
        further = ["sum", "mean", "inv_std_dev"] if attributes.get("use_mean", 1) else ["sum"]
        outputs += draw(st.sampled_from([[], ["sum"], further]))
    if "sum" in outputs and "sum_scale" not in inputs and draw(st.booleans()):
        attributes["sum_dtype"] = dtype_code(np.zeros(0, draw(st.sampled_from(TYPES))))
    return draw(st.sampled_from(OPSETS)), Case(operator, inputs, attributes, tuple(outputs))


def model_of(opset: int, case: Case) -> onnx.ModelProto:
    """A model of the one node, all its inputs given from outside but for quantisations."""
    inputs, outputs = {name: name for name in case.inputs}, {name: name for name in case.outputs}
    node = harness.operator_node(case.op, inputs, case.attributes, outputs, name="fused")
    fixed = [name for name in case.inputs if name.startswith(("x_", "y_", "sum_"))]
    graph = helper.make_graph(
        [node],
        "one node",
        [helper.make_tensor_value_info(k, dtype_code(v), v.shape) for k, v in case.inputs.items() if k not in fixed],
        [helper.make_tensor_value_info(name, value.code, None) for name, value in case.expected().items()],
        [onnx.numpy_helper.from_array(case.inputs[name], name) for name in fixed],
    )
    imports = [helper.make_opsetid("", opset), helper.make_opsetid(DOMAIN, 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=8 if opset < 19 else 10)


def check_body(model: onnx.ModelProto, inputs: Mapping[str, Array], **options: Any) -> None:
    """Assert that ONNX Runtime alone loads and runs the model rewritten, and gives what its one fused node means."""
    optimized, _ = optimize(model, **options)
    portable, _ = optimize(model)
    (node,) = fused_nodes(portable)
    given = inputs_of(node, portable, inputs)
    expected = meaning_of(node, portable, inputs)
    # What is rounded on the way: float16 sums and parameters; bfloat16 is computed in float32.
    half = any(array.dtype == np.float16 for array in given.values())
    fed = {value.name: inputs[value.name] for value in optimized.graph.input}
    got = harness.run(harness.create_session(optimized, "cpu"), fed)
    for name, output in harness.read_node(node).outputs.items():
        size = 1 + np.abs(np.nan_to_num(expected[name].exact))
        expected[name].widened((0.05 if half else 3e-4) * size).check(got[output], f"{name} of {given.keys()}")


@settings(max_examples=2 * settings().max_examples)
@given(node=nodes())
def test_body_of_any_mixture_of_types(node: tuple[int, Case]) -> None:
    check_body(model_of(*node), node[1].inputs)


def layer_norm(g: SpellingBuilder, x: str) -> str:
    d = g.add("Sub", x, g.reduce_mean(x, [-1]))
    y = g.add("Div", d, g.add("Sqrt", g.add("Add", g.reduce_mean(g.add("Pow", d, 2.0), [-1]), 1e-5)))
    return g.add("Add", g.add("Mul", y, g.weight(8, mean=1.0)), g.weight(8))


def layer_norm_node(g: SpellingBuilder, x: str) -> str:
    return g.add("LayerNormalization", x, g.weight(8, mean=1.0), g.weight(8), axis=-1)


def rms_norm(g: SpellingBuilder, x: str) -> str:
    root = g.add("Sqrt", g.add("Add", g.reduce_mean(g.add("Pow", x, 2.0), [-1]), 1e-5))
    return g.add("Mul", g.add("Mul", x, g.add("Reciprocal", root)), g.weight(8, mean=1.0))


def instance_norm(g: SpellingBuilder, x: str) -> str:
    return g.add("InstanceNormalization", x, g.weight(4, mean=1.0), g.weight(4))


def group_norm(g: SpellingBuilder, x: str) -> str:
    grouped = g.add("Reshape", x, np.array([0, 2, -1], np.int64))
    y = g.add("InstanceNormalization", grouped, np.ones(2, np.float32), np.zeros(2, np.float32))
    y = g.add("Reshape", y, g.add("Shape", x))
    return g.add("Add", g.add("Mul", y, g.weight(4, 1, 1, mean=1.0)), g.weight(4, 1, 1))


def group_norm_node(g: SpellingBuilder, x: str) -> str:
    return g.add("GroupNormalization", x, g.weight(4, mean=1.0), g.weight(4), num_groups=2)


def layer_norm_and_slope(g: SpellingBuilder, x: str) -> str:
    d = g.add("Sub", x, g.reduce_mean(x, [-1]))
    y = g.add("Div", d, g.add("Sqrt", g.add("Add", g.reduce_mean(g.add("Pow", d, 2.0), [-1]), 1e-5)))
    return g.add("PRelu", y, g.weight(8, mean=0.2))


def gelu(g: SpellingBuilder, x: str) -> str:
    return g.add("Mul", g.add("Mul", x, g.add("Add", g.add("Erf", g.add("Div", x, 2**0.5)), 1.0)), 0.5)


def biased_silu(g: SpellingBuilder, x: str) -> str:
    x = g.add("Add", x, g.weight(8))
    return g.add("Mul", x, g.add("Sigmoid", x))


CONVERTED = [
    *((layer_norm, 13), (layer_norm_node, 17), (rms_norm, 13), (instance_norm, 13), (group_norm, 13)),
    *((group_norm_node, 21), (layer_norm_and_slope, 13), (gelu, 13), (biased_silu, 13)),
]


@parametrize_covering(
    "spelling,opset,low,target",
    [spelling for spelling, _ in CONVERTED],
    OPSETS,
    list(LOW_TYPES),
    ["portable", "standard"],
    where=lambda spelling, opset, *_: opset >= dict(CONVERTED)[spelling],
)
def test_chain_between_casts_as_converters_leave_it(spelling: Any, opset: int, low: str, target: str) -> None:
    g = SpellingBuilder(opset)
    low_type = int(TensorProto.FLOAT16 if low == "float16" else TensorProto.BFLOAT16)
    x = g.add("Cast", g.input("x", SHAPE, LOW_TYPES[low]), to=int(TensorProto.FLOAT))
    g.output(g.add("Cast", spelling(g, x), to=low_type), SHAPE, LOW_TYPES[low])
    model = g.model("between casts")
    feeds = {"x": np.random.default_rng(3).normal(1, 2, SHAPE).astype(LOW_TYPES[low])}
    check_body(model, feeds, target=target)
    (node,) = fused_nodes(optimize(model)[0])
    assert node.input[0] == "x"


def test_layer_norm_between_casts_keeps_its_operator() -> None:
    """Written out, ONNX Runtime would fuse it into a LayerNormalization of two types, which it refuses itself."""
    g = SpellingBuilder(17)
    x = g.add("Cast", g.input("x", SHAPE, "float16"), to=int(TensorProto.FLOAT))
    g.output(g.add("Cast", layer_norm(g, x), to=int(TensorProto.FLOAT16)), SHAPE, "float16")
    standard, _ = optimize(g.model("m"), target="standard")
    assert [node.op_type for node in standard.graph.node] == ["Cast", "LayerNormalization", "Cast"]


@pytest.mark.parametrize("scale_shape", [(), (1,), (1, 1)])
@pytest.mark.parametrize("with_mean", [True, False])
@pytest.mark.parametrize("shape", [(2, 3, 8), (3, 8)])
@pytest.mark.parametrize("opset", [13, 18])
def test_scale_of_one_element(
    scale_shape: tuple[int, ...], with_mean: bool, shape: tuple[int, ...], opset: int
) -> None:
    """ONNX Runtime fuses a residual, a normalisation and any scale behind it, and then refuses such a scale."""
    g = SpellingBuilder(opset)
    x = g.add("Add", g.input("a", shape), g.input("b", shape))
    d = g.add("Sub", x, g.reduce_mean(x, [-1])) if with_mean else x
    variance = g.add("Add", g.reduce_mean(g.add("Mul", d, d), [-1]), 1e-3)
    n = g.add("Mul", d, g.add("Reciprocal", g.add("Sqrt", variance)))
    g.output(g.add("Mul", n, g.input("gamma", scale_shape)), shape)
    rng = np.random.default_rng(2)
    shapes = {"a": shape, "b": shape, "gamma": scale_shape}
    feeds = {name: rng.standard_normal(each).astype(np.float32) for name, each in shapes.items()}
    model = g.model("m")
    (exact,) = run(model, feeds, optimized=False).values()
    for target in ("portable", "standard"):
        written, result = optimize(model, target=target)
        assert any(site.fused_into for site in result.sites)
        (got,) = run(written, feeds).values()
        np.testing.assert_allclose(got, exact, rtol=1e-4, atol=1e-5)
