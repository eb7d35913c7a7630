"""Nodes of the domain ai.normfuse with each set of outputs, and what `optimize` makes of chains whose sum is used."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import programs
from cases import DOMAIN, Arrays, normal, parameters
from onnx import TensorProto, helper, numpy_helper

import normfuse

ROWS = ("N", 4, 32)
OUTPUTS = ("Y", "sum", "mean", "inv_std_dev")
STEP, ZERO = 0.05, 3


@dataclass(frozen=True)
class Form:
    """A model with its inputs and the float64 results; quantised ones may be a step off. No results: to be refused."""

    name: str
    model: onnx.ModelProto
    inputs: Arrays
    expected: Arrays
    fused: int

    def check(self, outputs: Arrays) -> None:
        assert set(outputs) == set(self.expected)
        for name, exact in self.expected.items():
            assert outputs[name].shape == exact.shape, name
            tolerance = 1 if outputs[name].dtype == np.int8 else 1e-4 * max(1.0, np.abs(exact).max())
            assert np.abs(outputs[name] - exact).max() <= tolerance, name


def quantised(value: np.ndarray) -> np.ndarray:
    return np.clip(np.round(value / STEP) + ZERO, -128, 127)


def layer_norm(d: np.ndarray, constants: Arrays) -> Arrays:
    mean = d.mean(-1, keepdims=True)
    inverse = 1 / np.sqrt(d.var(-1, keepdims=True) + 1e-5)
    return {"Y": (d - mean) * inverse * constants["scale"] + constants["bias"], "mean": mean, "inv_std_dev": inverse}


def model_of(
    nodes: list[onnx.NodeProto], constants: Arrays, outputs: dict[str, int], shapes: dict[str, tuple[str | int, ...]]
) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "form",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, ROWS) for name in ("X", "residual")],
        [helper.make_tensor_value_info(name, code, shapes.get(name)) for name, code in outputs.items()],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(DOMAIN, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def quantisation() -> Arrays:
    return {"y_scale": np.asarray(STEP, np.float32), "y_zero_point": np.asarray(ZERO, np.int8)}


def inputs_of() -> tuple[Arrays, np.ndarray]:
    inputs = {"X": normal((3, 4, 32), 1), "residual": normal((3, 4, 32), 2)}
    return inputs, sum(value.astype(np.float64) for value in inputs.values())  # type: ignore[return-value]


def fused_norm(inputs: dict[str, str], outputs: list[str], name: str) -> onnx.NodeProto:
    steps, order = programs.write("FusedNormalization", inputs, {"axes": [-1]})
    values = [inputs[key] for key in order]
    return helper.make_node("FusedNormalization", values, outputs, name=name, domain=DOMAIN, steps=steps)


def operator_form(further: tuple[str, ...], quantise: bool, ranked: bool) -> Form:
    """A node by hand, with the outputs of the graph as the only place that tells their types."""
    inputs, d = inputs_of()
    constants = parameters(32, 3)
    expected = {**layer_norm(d, constants), "sum": d}
    if quantise:
        constants |= quantisation()
        expected["Y"] = quantised(expected["Y"])
    used = ("Y", *further)
    names = ["X", "scale", "bias", "residual", *(["y_scale", "y_zero_point"] if quantise else [])]
    results = [name if name in used else "" for name in OUTPUTS]
    while not results[-1]:
        results.pop()
    node = fused_norm({name: name for name in names}, results, "fused")
    types = dict.fromkeys(used, TensorProto.FLOAT) | ({"Y": TensorProto.INT8} if quantise else {})
    shapes = {name: (*ROWS[:2], 1 if name in OUTPUTS[2:] else ROWS[2]) for name in used} if ranked else {}
    name = f"{'-'.join(used)}{'-int8' * quantise}{'-unranked' * (not ranked)}"
    return Form(
        name, model_of([node], constants, types, shapes), inputs, {name: expected[name] for name in used}, fused=1
    )


def optimised(nodes: list[onnx.NodeProto], constants: Arrays, outputs: dict[str, int]) -> onnx.ModelProto:
    model = model_of(nodes, constants, outputs, {})
    result = normfuse.optimize(model, target="custom-op", verify=False).model
    assert any(node.domain == DOMAIN and len(node.output) > 1 for node in result.graph.node)
    return result


def quantised_chain() -> Form:
    """Add -> LayerNormalization -> QuantizeLinear with the sum used by another operator."""
    inputs, d = inputs_of()
    constants = parameters(32, 4) | quantisation() | {"weight": normal((32, 8), 5) / 32}
    nodes = [
        helper.make_node("Add", ["X", "residual"], ["d"], name="add"),
        helper.make_node("LayerNormalization", ["d", "scale", "bias"], ["n"], name="norm", epsilon=1e-5),
        helper.make_node("QuantizeLinear", ["n", "y_scale", "y_zero_point"], ["Y"], name="quantise"),
        helper.make_node("MatMul", ["d", "weight"], ["P"], name="project"),
    ]
    model = optimised(nodes, constants, {"Y": TensorProto.INT8, "P": TensorProto.FLOAT})
    expected = {"Y": quantised(layer_norm(d, constants)["Y"]), "P": d @ constants["weight"].astype(np.float64)}
    return Form("sum-behind-int8", model, inputs, expected, fused=1)


def transformer() -> Form:
    """Pre-norm blocks: each sum is normalised and is the next residual, with the batch size open."""
    inputs, d = inputs_of()
    constants = parameters(32, 6) | {"weight": normal((32, 32), 7) / 32}
    nodes = [helper.make_node("Add", ["X", "residual"], ["d0"], name="add0")]
    weight = constants["weight"].astype(np.float64)
    for block in range(3):
        d_name, n, p = f"d{block}", f"n{block}", f"p{block}"
        nodes += [
            helper.make_node("LayerNormalization", [d_name, "scale", "bias"], [n], name=f"norm{block}", epsilon=1e-5),
            helper.make_node("MatMul", [n, "weight"], [p], name=f"project{block}"),
            helper.make_node("Add", [d_name, p], [f"d{block + 1}"], name=f"add{block + 1}"),
        ]
        d = d + layer_norm(d, constants)["Y"] @ weight
    nodes.append(helper.make_node("LayerNormalization", ["d3", "scale", "bias"], ["Y"], name="last", epsilon=1e-5))
    model = optimised(nodes, constants, {"Y": TensorProto.FLOAT})
    return Form("pre-norm-transformer", model, inputs, {"Y": layer_norm(d, constants)["Y"]}, fused=4)


def unknown_rank() -> Form:
    """X of a rank that only the run tells, twice through the operator, and a MatMul that looks at the rank."""
    inputs, d = inputs_of()
    constants = parameters(32, 8) | {"weight": normal((32, 8), 9) / 32, "axes": np.asarray([0], np.int64)}
    weights = {"scale": "scale", "bias": "bias"}
    nodes = [
        helper.make_node("Shape", ["X"], ["shape"]),
        helper.make_node("NonZero", ["shape"], ["positions"]),
        helper.make_node("Squeeze", ["positions", "axes"], ["which"]),
        helper.make_node("Gather", ["shape", "which"], ["same"]),
        helper.make_node("Reshape", ["X", "same"], ["x"]),
        fused_norm({"X": "x", **weights, "residual": "residual"}, ["n", "sum"], "first"),
        fused_norm({"X": "n", **weights}, ["Y"], "second"),
        helper.make_node("MatMul", ["Y", "weight"], ["P"]),
        helper.make_node("MatMul", ["sum", "weight"], ["Q"]),
    ]
    model = model_of(nodes, constants, {"P": TensorProto.FLOAT, "Q": TensorProto.FLOAT}, {})
    model.graph.value_info.append(helper.make_tensor_value_info("sum", TensorProto.FLOAT, None))
    weight = constants["weight"].astype(np.float64)
    y = layer_norm(layer_norm(d, constants)["Y"], constants)["Y"]
    return Form("unknown-rank", model, inputs, {"P": y @ weight, "Q": d @ weight}, fused=2)


def contradiction(output: str) -> Form:
    """A graph that holds another type than the node writes."""
    form = operator_form(OUTPUTS[1:], quantise=False, ranked=True)
    model = onnx.ModelProto.FromString(form.model.SerializeToString())
    for value in model.graph.output:
        if value.name == output:
            value.type.tensor_type.elem_type = TensorProto.FLOAT16
    return Form(f"float16-{output}", model, form.inputs, {}, fused=0)


def every_form() -> list[Form]:
    sets = [chosen for count in range(4) for chosen in itertools.combinations(OUTPUTS[1:], count)]
    forms = [operator_form(further, quantise, ranked=True) for further in sets for quantise in (False, True)]
    forms += [operator_form(("sum",), quantise, ranked=False) for quantise in (False, True)]
    return [*forms, quantised_chain(), transformer(), unknown_rank(), *(contradiction(name) for name in OUTPUTS)]


FORMS = every_form()


def write_forms(folder: Path) -> None:
    for form in FORMS:
        np.savez(folder / f"{form.name}.npz", **form.inputs)
        for route in ("custom", "both"):
            onnx.save(form.model, folder / f"{form.name}.{route}.onnx")
