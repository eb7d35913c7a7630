"""Small models that all kinds of host run: through the execution provider ("plugin") or the operators ("custom")."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import oracle
import programs
from onnx import helper, numpy_helper

SHAPE = (2, 7, 96)
DOMAIN = "ai.normfuse"
LAYER_NORM = {"axes": [-1], "epsilon": 1e-5}

Arrays = dict[str, np.ndarray[Any, Any]]


@dataclass(frozen=True)
class Case:
    """A chain as standard nodes and as one operator, with its inputs and its exact result."""

    name: str
    models: dict[str, onnx.ModelProto]  # route -> model
    inputs: Arrays
    expected: oracle.Expected
    claimed: list[str]  # operator types that the execution provider must have


def value_info(name: str, array: np.ndarray[Any, Any]) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, oracle.dtype_code(array), array.shape)


def make_model(
    nodes: list[onnx.NodeProto],
    inputs: Arrays,
    constants: Arrays,
    opset: int,
    functions: tuple[onnx.FunctionProto, ...] = (),
) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "chain",
        [value_info(name, value) for name, value in inputs.items()],
        [helper.make_empty_tensor_value_info("Y")],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid(DOMAIN, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9, functions=functions)


def fused_node(op_type: str, given: Arrays, **attributes: Any) -> onnx.NodeProto:
    steps, inputs = programs.write("FusedNormalization", given, attributes)
    return helper.make_node(op_type, inputs, ["Y"], name="fused", domain=DOMAIN, spec_version=1, steps=steps)


def expected(given: Arrays, attributes: dict[str, Any]) -> oracle.Expected:
    return oracle.evaluate("FusedNormalization", given, attributes)["Y"]


def parameters(count: int, seed: int) -> Arrays:
    rng = np.random.default_rng(seed)
    return {name: rng.normal(1, 0.2, count).astype(np.float32) for name in ("scale", "bias")}


def normal(shape: tuple[int, ...], seed: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).normal(3, 2, shape).astype(np.float32)


def float_case(name: str, shape: tuple[int, ...]) -> Case:
    nodes = [
        helper.make_node("Add", ["X", "residual"], ["sum"], name="add"),
        helper.make_node("LayerNormalization", ["sum", "scale", "bias"], ["n"], name="norm", axis=-1, epsilon=1e-5),
        helper.make_node("Relu", ["n"], ["Y"], name="relu"),
    ]
    inputs = {"X": normal(shape, 1), "residual": normal(shape, 2)}
    constants = parameters(shape[-1], 3)
    attributes = {**LAYER_NORM, "activation": "Relu"}
    given = {**inputs, **constants}
    models = {
        "plugin": make_model(nodes, inputs, constants, 17),
        "custom": make_model([fused_node("FusedNormalization", given, **attributes)], inputs, constants, 17),
    }
    return Case(name, models, inputs, expected(given, attributes), ["Add", "LayerNormalization", "Relu"])


def quantised_case() -> Case:
    nodes = [
        helper.make_node("DequantizeLinear", ["X", "x_scale", "x_zero_point"], ["d"], name="dq"),
        helper.make_node("LayerNormalization", ["d", "scale", "bias"], ["n"], name="norm", axis=-1, epsilon=1e-5),
        helper.make_node("Gelu", ["n"], ["a"], name="gelu"),
        helper.make_node("QuantizeLinear", ["a", "y_scale", "y_zero_point"], ["Y"], name="q"),
    ]
    inputs = {"X": np.random.default_rng(4).integers(-128, 128, SHAPE, dtype=np.int8)}
    constants = parameters(SHAPE[-1], 5) | {
        "x_scale": np.asarray(0.03, np.float32),
        "x_zero_point": np.asarray(-5, np.int8),
        "y_scale": np.asarray(0.025, np.float32),
        "y_zero_point": np.asarray(-100, np.int8),
    }
    attributes = {**LAYER_NORM, "activation": "Gelu"}
    given = {**inputs, **constants}
    models = {
        "plugin": make_model(nodes, inputs, constants, 20),
        "custom": make_model([fused_node("FusedNormalization", given, **attributes)], inputs, constants, 20),
    }
    return Case("quantised", models, inputs, expected(given, attributes), [node.op_type for node in nodes])


def branch_case() -> Case:
    """The chain in a branch of an If, on a value of the graph around it."""
    nodes = [
        helper.make_node("LayerNormalization", ["X", "scale", "bias"], ["n"], name="norm", axis=-1, epsilon=1e-5),
        helper.make_node("Relu", ["n"], ["then_y"], name="relu"),
    ]
    otherwise = [helper.make_node("Identity", ["X"], ["else_y"], name="identity")]
    branches = {
        f"{name}_branch": helper.make_graph(body, name, [], [helper.make_empty_tensor_value_info(f"{name}_y")])
        for name, body in (("then", nodes), ("else", otherwise))
    }
    choice = helper.make_node("If", ["condition"], ["Y"], name="if", **branches)
    inputs = {"X": normal(SHAPE, 6), "condition": np.asarray(True)}
    constants = parameters(SHAPE[-1], 7)
    given = {"X": inputs["X"], **constants}
    model = make_model([choice], inputs, constants, 17)
    attributes = {**LAYER_NORM, "activation": "Relu"}
    return Case("branch", {"plugin": model}, inputs, expected(given, attributes), ["LayerNormalization", "Relu"])


def function_case(case: str, name: str) -> Case:
    """A call of a model-local function, as an optimised model holds it."""
    attributes = {**LAYER_NORM, "activation": "Identity"}
    inputs, constants = {"X": normal(SHAPE, 8)}, parameters(SHAPE[-1], 9)
    given = {**inputs, **constants}
    body = [helper.make_node("LayerNormalization", ["X", "scale", "bias"], ["Y"], axis=-1, epsilon=1e-5)]
    opsets = [helper.make_opsetid("", 17)]
    function = helper.make_function(
        DOMAIN, name, ["X", "scale", "bias"], ["Y"], body, opsets, attributes=["spec_version", "steps"]
    )
    model = make_model([fused_node(name, given, **attributes)], inputs, constants, 17, (function,))
    return Case(case, {"plugin": model}, inputs, expected(given, attributes), [name])


def many_nodes_case() -> Case:
    """More single nodes than are compiled one by one: registered kernels run them, and read attributes of each type."""
    nodes, value = [], "X"
    for index in range(500):  # an even number: what comes out is X again
        nodes += [
            helper.make_node("LeakyRelu", [value], [f"r{index}"], name=f"relu{index}", alpha=1.0),
            helper.make_node("Neg", [f"r{index}"], [f"v{index}"], name=f"neg{index}"),
        ]
        value = f"v{index}"
    nodes.append(helper.make_node("MeanVarianceNormalization", [value], ["Y"], name="mvn", axes=[1]))
    inputs = {"X": normal(SHAPE, 11)}
    attributes = {"axes": [1], "epsilon": 1e-9, "epsilon_on": "stddev", "activation": "Identity"}
    return Case("many", {"plugin": make_model(nodes, inputs, {}, 17)}, inputs, expected(inputs, attributes), [])


def impossible_model() -> onnx.ModelProto:
    """An axis that X does not have."""
    inputs = {"X": normal(SHAPE, 10)}
    return make_model([fused_node("FusedNormalization", inputs, axes=[9])], inputs, {}, 17)


CASES = (
    float_case("float", SHAPE),
    float_case("threads", (64, 128, 96)),
    quantised_case(),
    branch_case(),
    function_case("function", "FusedNormalization_LayerNormalization"),
    function_case("unusual-function", "FusedNormalization_my_own"),
)
RUNS = [(case, route) for case in CASES for route in case.models]


def write_models(folder: Path) -> None:
    for case, route in RUNS:
        # What the provider asks the model for; with claim=all it does not go by it.
        onnx.helper.set_model_props(case.models[route], {"ai.normfuse.tuning": "version 1\nothers off\n"})
        onnx.save(case.models[route], folder / f"{case.name}.{route}.onnx")
        np.savez(folder / f"{case.name}.npz", **case.inputs)


def write_manifest(folder: Path) -> Path:
    """All cases for the host program of host/main.cc: models, inputs, and the bounds of every output element."""
    write_models(folder)
    lines = []
    for case, route in RUNS:
        lines.append(f"case {case.name} {route} {case.name}.{route}.onnx")
        for name, value in case.inputs.items():
            file = f"{case.name}.{name}"
            value.tofile(folder / file)
            lines.append(" ".join(map(str, ["input", name, oracle.dtype_code(value), value.ndim, *value.shape, file])))
        bounds = {side: f"{case.name}.{side}" for side in ("low", "high")}
        for side, file in bounds.items():
            case.expected.stored(getattr(case.expected, side)).astype(np.float64).tofile(folder / file)
        shape = case.expected.exact.shape
        lines.append(" ".join(map(str, ["output Y", case.expected.code, len(shape), *shape, *bounds.values()])))
    path = folder / "manifest.txt"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path
