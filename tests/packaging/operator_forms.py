"""Nodes of the domain ai.normfuse with each set of outputs, and what `optimize` makes of chains whose sum is used."""

import itertools
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from cases import DOMAIN, LAYER_NORM, Arrays, normal, parameters
from onnx import TensorProto, helper, numpy_helper

import normfuse
from normfuse.spec import labels_of, read_program

OUTPUTS = ("Y", "sum", "mean", "inv_std_dev")
SKIP_LAYER_NORM = f"Add residual; {LAYER_NORM}"
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


def model_of(nodes: str, constants: Arrays, outputs: str) -> onnx.ModelProto:
    model = onnx.parser.parse_model(
        f'<ir_version: 9, opset_import: ["": 17, "{DOMAIN}": 1]> form (float[N, 4, 32] X, float[N, 4, 32] residual) '
        f"=> ({outputs}) {{ {nodes} }}"
    )
    model.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in constants.items())
    return model


def quantisation() -> Arrays:
    return {"y_scale": np.asarray(STEP, np.float32), "y_zero_point": np.asarray(ZERO, np.int8)}


def inputs_of() -> tuple[Arrays, np.ndarray]:
    inputs = {"X": normal((3, 4, 32), 1), "residual": normal((3, 4, 32), 2)}
    return inputs, sum(value.astype(np.float64) for value in inputs.values())  # type: ignore[return-value]


def fused_norm(x: str, outputs: str, steps: str) -> str:
    inputs = ", ".join([x, *labels_of(read_program(steps))])
    return f'{outputs} = {DOMAIN}.FusedNormalization <steps = "{steps}"> ({inputs})'


def operator_form(further: tuple[str, ...], quantise: bool, ranked: bool) -> Form:
    """A node by hand, with the outputs of the graph as the only place that tells their types."""
    inputs, d = inputs_of()
    constants = parameters(32, 3)
    expected = {**layer_norm(d, constants), "sum": d}
    if quantise:
        constants |= quantisation()
        expected["Y"] = quantised(expected["Y"])
    used = ("Y", *further)
    steps = SKIP_LAYER_NORM + "; Quantize scale=y_scale zero_point=y_zero_point" * quantise
    last = max(map(OUTPUTS.index, used)) + 1
    node = fused_norm("X", ", ".join(n if n in used else '""' for n in OUTPUTS[:last]), steps)
    shapes = {n: f"[N, 4, {1 if n in OUTPUTS[2:] else 32}]" if ranked else "[]" for n in used}
    outputs = ", ".join(f"{'int8' if quantise and n == 'Y' else 'float'}{shapes[n]} {n}" for n in used)
    name = f"{'-'.join(used)}{'-int8' * quantise}{'-unranked' * (not ranked)}"
    return Form(name, model_of(f"[fused] {node}", constants, outputs), inputs, {n: expected[n] for n in used}, fused=1)


def optimised(nodes: str, constants: Arrays, outputs: str) -> onnx.ModelProto:
    result = normfuse.optimize(model_of(nodes, constants, outputs), target="custom-op", verify=False).model
    assert any(node.domain == DOMAIN and len(node.output) > 1 for node in result.graph.node)
    return result


NORM = "LayerNormalization <epsilon = 1e-05> ({}, scale, bias)"


def quantised_chain() -> Form:
    """Add -> LayerNormalization -> QuantizeLinear with the sum used by another operator."""
    inputs, d = inputs_of()
    constants = parameters(32, 4) | quantisation() | {"weight": normal((32, 8), 5) / 32}
    nodes = f"""[add] d = Add (X, residual) [norm] n = {NORM.format("d")}
        [quantise] Y = QuantizeLinear (n, y_scale, y_zero_point) [project] P = MatMul (d, weight)"""
    model = optimised(nodes, constants, "int8[] Y, float[] P")
    expected = {"Y": quantised(layer_norm(d, constants)["Y"]), "P": d @ constants["weight"].astype(np.float64)}
    return Form("sum-behind-int8", model, inputs, expected, fused=1)


def transformer() -> Form:
    """Pre-norm blocks: each sum is normalised and is the next residual, with the batch size open."""
    inputs, d = inputs_of()
    constants = parameters(32, 6) | {"weight": normal((32, 32), 7) / 32}
    nodes = "[add0] d0 = Add (X, residual)"
    weight = constants["weight"].astype(np.float64)
    for i in range(3):
        nodes += f" [norm{i}] n{i} = {NORM.format(f'd{i}')} [project{i}] p{i} = MatMul (n{i}, weight)"
        nodes += f" [add{i + 1}] d{i + 1} = Add (d{i}, p{i})"
        d = d + layer_norm(d, constants)["Y"] @ weight
    model = optimised(f"{nodes} [last] Y = {NORM.format('d3')}", constants, "float[] Y")
    return Form("pre-norm-transformer", model, inputs, {"Y": layer_norm(d, constants)["Y"]}, fused=4)


def unknown_rank() -> Form:
    """X of a rank that only the run tells, twice through the operator, and a MatMul that looks at the rank."""
    inputs, d = inputs_of()
    constants = parameters(32, 8) | {"weight": normal((32, 8), 9) / 32, "axes": np.asarray([0], np.int64)}
    nodes = f"""shape = Shape (X) positions = NonZero (shape) which = Squeeze (positions, axes)
        same = Gather (shape, which) x = Reshape (X, same)
        [first] {fused_norm("x", "n, sum", SKIP_LAYER_NORM)}
        [second] {fused_norm("n", "Y", LAYER_NORM)} P = MatMul (Y, weight) Q = MatMul (sum, weight)"""
    model = model_of(nodes, constants, "float[] P, float[] Q")
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
