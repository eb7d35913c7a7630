"""Small models that all kinds of host run: through the execution provider ("plugin") or the operators ("custom")."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from normfuse.meaning import Expected, dtype_code, evaluate
from normfuse.spec import labels_of, read_program

SHAPE = (2, 7, 96)
DOMAIN = "ai.normfuse"
LAYER_NORM = "Normalize axes=-1 epsilon=1e-05; Mul scale; Add bias"

Arrays = dict[str, np.ndarray[Any, Any]]


@dataclass(frozen=True)
class Case:
    """A chain as standard nodes and as one operator, with its inputs and its exact result."""

    name: str
    models: dict[str, onnx.ModelProto]  # route -> model
    inputs: Arrays
    expected: Expected
    claimed: list[str]  # operator types that the execution provider must have


def make_model(nodes: str, inputs: Arrays, constants: Arrays, opset: int = 17, functions: str = "") -> onnx.ModelProto:
    imports = f'"": {opset}, "{DOMAIN}": 1'
    model = onnx.parser.parse_model(
        f"<ir_version: 9, opset_import: [{imports}]> chain () => () {{ {nodes} }} {functions}"
    )
    for name, value in inputs.items():
        model.graph.input.append(helper.make_tensor_value_info(name, dtype_code(value), value.shape))
    model.graph.output.append(helper.make_empty_tensor_value_info("Y"))
    model.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in constants.items())
    return model


def fused_node(op_type: str, steps: str) -> str:
    inputs = ", ".join(["X", *labels_of(read_program(steps))])
    return f'[fused] Y = {DOMAIN}.{op_type} <spec_version = 1, steps = "{steps}"> ({inputs})'


def parameters(count: int, seed: int) -> Arrays:
    rng = np.random.default_rng(seed)
    return {name: rng.normal(1, 0.2, count).astype(np.float32) for name in ("scale", "bias")}


def normal(shape: tuple[int, ...], seed: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).normal(3, 2, shape).astype(np.float32)


NORM = "LayerNormalization <axis = -1, epsilon = 1e-05> ({}, scale, bias)"


def both_routes(name: str, nodes: str, steps: str, inputs: Arrays, constants: Arrays, opset: int = 17) -> Case:
    fused = fused_node("FusedNormalization", steps)
    models = {
        route: make_model(text, inputs, constants, opset) for route, text in (("plugin", nodes), ("custom", fused))
    }
    claimed = [node.op_type for node in models["plugin"].graph.node]
    return Case(name, models, inputs, evaluate(steps, {**inputs, **constants})["Y"], claimed)


def float_case(name: str, shape: tuple[int, ...]) -> Case:
    nodes = f"[add] sum = Add (X, residual) [norm] n = {NORM.format('sum')} [relu] Y = Relu (n)"
    inputs = {"X": normal(shape, 1), "residual": normal(shape, 2)}
    return both_routes(name, nodes, f"Add residual; {LAYER_NORM}; Relu", inputs, parameters(shape[-1], 3))


def quantised_case() -> Case:
    nodes = f"""[dq] d = DequantizeLinear (X, x_scale, x_zero_point) [norm] n = {NORM.format("d")} [gelu] a = Gelu (n)
        [q] Y = QuantizeLinear (a, y_scale, y_zero_point)"""
    inputs = {"X": np.random.default_rng(4).integers(-128, 128, SHAPE, dtype=np.int8)}
    numbers = {"x_scale": np.float32(0.03), "x_zero_point": np.int8(-5)}
    numbers |= {"y_scale": np.float32(0.025), "y_zero_point": np.int8(-100)}
    constants = parameters(SHAPE[-1], 5) | {name: np.asarray(number) for name, number in numbers.items()}
    x, y = (f"scale={name}_scale zero_point={name}_zero_point" for name in "xy")
    steps = f"Dequantize {x}; {LAYER_NORM}; Gelu; Quantize {y}"
    return both_routes("quantised", nodes, steps, inputs, constants, opset=20)


def branch_case() -> Case:
    """The chain in a branch of an If, on a value of the graph around it."""
    choice = f"""[if] Y = If (condition) <
        then_branch = t () => (float[] p) {{ [norm] n = {NORM.format("X")} [relu] p = Relu (n) }},
        else_branch = e () => (float[] q) {{ [identity] q = Identity (X) }}>"""
    inputs, constants = {"X": normal(SHAPE, 6), "condition": np.asarray(True)}, parameters(SHAPE[-1], 7)
    exact = evaluate(f"{LAYER_NORM}; Relu", {"X": inputs["X"], **constants})["Y"]
    model = make_model(choice, inputs, constants)
    return Case("branch", {"plugin": model}, inputs, exact, ["LayerNormalization", "Relu"])


def function_case(case: str, name: str) -> Case:
    """A call of a model-local function, as an optimised model holds it."""
    inputs, constants = {"X": normal(SHAPE, 8)}, parameters(SHAPE[-1], 9)
    head = f'<opset_import: ["": 17], domain: "{DOMAIN}"> {name} <spec_version, steps>'
    function = f"{head} (X, scale, bias) => (Y) {{ Y = {NORM.format('X')} }}"
    model = make_model(fused_node(name, LAYER_NORM), inputs, constants, 17, function)
    return Case(case, {"plugin": model}, inputs, evaluate(LAYER_NORM, {**inputs, **constants})["Y"], [name])


def many_nodes_case() -> Case:
    """More single nodes than are compiled one by one: registered kernels run them, and read attributes of each type."""
    # An even number: what comes out is X again.
    pair = "[relu{0}] r{0} = LeakyRelu <alpha = 1.0> (v{0}) [neg{0}] v{1} = Neg (r{0})"
    nodes = " ".join(pair.format(index, index + 1) for index in range(500)).replace("(v0)", "(X)")
    nodes += " [mvn] Y = MeanVarianceNormalization <axes = [1]> (v500)"
    inputs = {"X": normal(SHAPE, 11)}
    exact = evaluate("Normalize axes=1 epsilon=1e-09 epsilon_on=stddev", inputs)["Y"]
    return Case("many", {"plugin": make_model(nodes, inputs, {})}, inputs, exact, [])


def impossible_model() -> onnx.ModelProto:
    """An axis that X does not have."""
    inputs = {"X": normal(SHAPE, 10)}
    return make_model(fused_node("FusedNormalization", "Normalize axes=9"), inputs, {})


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
            lines.append(" ".join(map(str, ["input", name, dtype_code(value), value.ndim, *value.shape, file])))
        bounds = {side: f"{case.name}.{side}" for side in ("low", "high")}
        for side, file in bounds.items():
            case.expected.stored(getattr(case.expected, side)).astype(np.float64).tofile(folder / file)
        shape = case.expected.exact.shape
        lines.append(" ".join(map(str, ["output Y", case.expected.code, len(shape), *shape, *bounds.values()])))
    path = folder / "manifest.txt"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path
