"""What benchmarks/run.py measures: each job a small model, its inputs, and the operator that says what is right."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

Array = np.ndarray[Any, Any]
Arrays = dict[str, Array]


@dataclass(frozen=True)
class Job:
    """One row of the table.

    ``operator``, ``attributes`` and ``inputs`` are the operator of ai.normfuse that the nodes amount to: the float64
    oracle of the tests says from them what the result must be. ``sampled`` is a dimension that the job does not reduce:
    the error of a large job is measured on its first entries only.
    """

    name: str
    operator: str
    attributes: dict[str, Any]
    inputs: Arrays
    nodes: str
    opset: int = 17
    outputs: tuple[str, ...] = ("Y",)
    torch: Callable[[Any, dict[str, Any]], Any] | None = None
    rewritten: bool = False  # normfuse.optimize goes first: the chain is in a decomposed spelling
    variants: dict[str, list[str]] = field(default_factory=dict)  # further rows of ORT: name -> optimisers left out
    sampled: int = 0

    @property
    def activations(self) -> tuple[str, ...]:
        """The inputs that are the model's own inputs; all others are constants."""
        return tuple(name for name in ("X", "residual") if name in self.inputs)

    def model(self) -> bytes:
        made = onnx.parser.parse_model(
            f'<ir_version: 10, opset_import: ["": {self.opset}]> job () => () {{ {self.nodes} }}'
        )
        for name, array in self.inputs.items():
            if name in self.activations:
                kind = helper.np_dtype_to_tensor_dtype(array.dtype)
                made.graph.input.append(helper.make_tensor_value_info(name, kind, array.shape))
            else:
                made.graph.initializer.append(numpy_helper.from_array(array, name))
        made.graph.output.extend(map(helper.make_empty_tensor_value_info, self.outputs))
        return bytes(made.SerializeToString())


def label(array: Array) -> str:
    kind = {"float32": "f32", "float16": "f16"}.get(array.dtype.name, array.dtype.name)
    return f"{kind} [{','.join(map(str, array.shape))}]"


def normal(shape: Sequence[int], dtype: Any = np.float32, seed: int = 1, mean: float = 0.0) -> Array:
    return np.random.default_rng(seed).normal(mean, 1, shape).astype(dtype)


def affine(count: int, dtype: Any = np.float32) -> Arrays:
    return {"scale": normal([count], dtype, 2, 1.0), "bias": normal([count], dtype, 3)}


def integers(shape: Sequence[int]) -> Array:
    return np.random.default_rng(5).integers(-128, 128, shape, dtype=np.int8)


def pairs(x_scale: float, y_scale: float, y_zero_point: int) -> Arrays:
    numbers = {"x_scale": np.float32(x_scale), "x_zero_point": np.int8(3), "y_scale": np.float32(y_scale)}
    return {name: np.asarray(value) for name, value in (numbers | {"y_zero_point": np.int8(y_zero_point)}).items()}


LAYER_NORM = {"axes": [-1], "epsilon": 1e-5}
LAYER_NORMALIZATION = "LayerNormalization <axis = -1> ({}, scale, bias)"
SOFTMAX = {"axes": [-1], "method": "softmax"}
READS, WRITES = "d = DequantizeLinear (X, x_scale, x_zero_point)", "Y = QuantizeLinear ({}, y_scale, y_zero_point)"
# Behind n: what its jobs are called, its nodes, and PyTorch's function.
ACTIVATIONS = {
    "Identity": ("", "", ""),
    "Relu": (" -> Relu", "Y = Relu (n)", "relu"),
    "Gelu": (" -> Gelu", "Y = Gelu (n)", "gelu"),
    "Swish": (" -> SiLU", "s = Sigmoid (n) Y = Mul (n, s)", "silu"),
}


def job(name: str, attributes: dict[str, Any], inputs: Arrays, nodes: str, **more: Any) -> Job:
    operator = more.pop("operator", "FusedNormalization")
    return Job(f"{name} {label(inputs['X'])}", operator, attributes, inputs, nodes, **more)


def norm(
    name: str, attributes: dict[str, Any], inputs: Arrays, node: str, activation: str = "Identity", **more: Any
) -> Job:
    """A normalisation with an activation behind it; {} in its name is what that is called."""
    suffix, nodes, function = ACTIVATIONS[activation]
    made = f"{'n' if nodes else 'Y'} = {node} {nodes}"
    plain = more.pop("torch")
    torch = (lambda f, t: getattr(f, function)(plain(f, t))) if function else plain
    return job(name.format(suffix), attributes | {"activation": activation}, inputs, made, torch=torch, **more)


def layer_norm(shape: Sequence[int], activation: str = "Identity", dtype: Any = np.float32) -> Job:
    return norm(
        "LayerNorm{}", LAYER_NORM, {"X": normal(shape, dtype), **affine(shape[-1], dtype)},
        LAYER_NORMALIZATION.format("X"), activation, opset=20 if activation == "Gelu" else 17,
        torch=lambda f, t: f.layer_norm(t["X"], t["X"].shape[-1:], t["scale"], t["bias"], 1e-5),
    )  # fmt: skip


def rms_norm(shape: Sequence[int]) -> Job:
    return norm(
        "RMSNorm", {**LAYER_NORM, "use_mean": 0}, {"X": normal(shape), "scale": affine(shape[-1])["scale"]},
        "RMSNormalization <axis = -1> (X, scale)", opset=23,
        torch=lambda f, t: f.rms_norm(t["X"], t["X"].shape[-1:], t["scale"], 1e-5),
    )  # fmt: skip


def instance_norm(shape: Sequence[int], activation: str = "Identity") -> Job:
    return norm(
        "InstanceNorm{}", {"axes": list(range(2, len(shape))), "epsilon": 1e-5, "affine_align": "channel"},
        {"X": normal(shape), **affine(shape[1])},
        "InstanceNormalization <epsilon = 1e-05> (X, scale, bias)", activation,
        torch=lambda f, t: f.instance_norm(t["X"], weight=t["scale"], bias=t["bias"], eps=1e-5),
    )  # fmt: skip


def group_norm(shape: Sequence[int], groups: int, activation: str = "Identity") -> Job:
    node = f"GroupNormalization <num_groups = {groups}, epsilon = 1e-05> (X, scale, bias)"
    return norm(
        f"GroupNorm{{}}, {groups} groups", {"num_groups": groups, "epsilon": 1e-5, "affine_align": "channel"},
        {"X": normal(shape), **affine(shape[1])}, node, activation, opset=21,
        torch=lambda f, t: f.group_norm(t["X"], groups, t["scale"], t["bias"], 1e-5),
    )  # fmt: skip


def add_layer_norm(shape: Sequence[int], *, with_sum: bool) -> Job:
    def torch(f: Any, t: dict[str, Any]) -> Any:
        total = t["X"] + t["residual"]
        return f.layer_norm(total, total.shape[-1:], t["scale"], t["bias"], 1e-5), total

    return job(
        f"Add -> LayerNorm{' and the sum' * with_sum}", dict(LAYER_NORM),
        {"X": normal(shape), "residual": normal(shape, seed=4), **affine(shape[-1])},
        f"sum = Add (X, residual) Y = {LAYER_NORMALIZATION.format('sum')}", torch=torch,
        outputs=("Y", "sum") if with_sum else ("Y",),
        variants={} if with_sum else {"ORT, SkipLayerNormFusion off": ["SkipLayerNormFusion"]},
    )  # fmt: skip


def mean_variance(shape: Sequence[int], axes: Sequence[int], sampled: int) -> Job:
    def torch(_f: Any, t: dict[str, Any]) -> Any:
        centred = t["X"] - t["X"].mean(axes, keepdim=True)
        return centred / (centred.square().mean(axes, keepdim=True).sqrt() + 1e-9)

    return job(
        f"MVN axes {','.join(map(str, axes))}", {"axes": list(axes), "epsilon": 1e-9, "epsilon_on": "stddev"},
        {"X": normal(shape)}, f"Y = MeanVarianceNormalization <axes = {list(axes)}> (X)", torch=torch, sampled=sampled,
    )  # fmt: skip


def quantised_layer_norm(shape: Sequence[int], activation: str = "Identity") -> Job:
    suffix, last = (
        (" -> Gelu", f"a = Gelu (n) {WRITES.format('a')}") if activation == "Gelu" else ("", WRITES.format("n"))
    )
    return job(
        f"DQ -> LayerNorm{suffix} -> Q", {**LAYER_NORM, "activation": activation},
        {"X": integers(shape), **affine(shape[-1]), **pairs(0.02, 0.03, -7)},
        f"{READS} n = {LAYER_NORMALIZATION.format('d')} {last}", opset=20,
    )  # fmt: skip


def softmax(shape: Sequence[int], axis: int) -> Job:
    nodes = f"Y = Softmax <axis = {axis}> (X)"
    torch = lambda f, t: f.softmax(t["X"], axis)  # noqa: E731
    return job(f"Softmax axis {axis}", SOFTMAX | {"axes": [axis]}, {"X": normal(shape)}, nodes, torch=torch)


def masked_softmax(shape: Sequence[int]) -> Job:
    mask = normal([1] * (len(shape) - 1) + [shape[-1]], seed=4)
    return job(
        "Mul -> Add -> Softmax", SOFTMAX | {"steps_before": "Mul"},
        {"X": normal(shape), "residual": mask, "operand_0": np.asarray(0.125, np.float32)},
        "m = Mul (X, operand_0) a = Add (m, residual) Y = Softmax <axis = -1> (a)",
        torch=lambda f, t: f.softmax(t["X"] * t["operand_0"] + t["residual"], -1),
    )  # fmt: skip


def quantised_softmax(shape: Sequence[int]) -> Job:
    nodes = f"{READS} s = Softmax <axis = -1> (d) {WRITES.format('s')}"
    return job("DQ -> Softmax -> Q", SOFTMAX, {"X": integers(shape), **pairs(0.1, 1 / 256, -128)}, nodes)


def dequantise(shape: Sequence[int], axis: int | None) -> Job:
    count = [] if axis is None else [shape[axis]]
    scale = np.asarray(np.abs(normal(count, seed=6)) + np.float32(0.01), np.float32)
    zero_point = np.random.default_rng(7).integers(-9, 9, count).astype(np.int8)
    inputs = {"X": integers(shape), "x_scale": scale, "x_zero_point": np.asarray(zero_point)}
    where = "per tensor" if axis is None else f"axis {axis}"
    nodes = f"Y = DequantizeLinear {'' if axis is None else f'<axis = {axis}>'} (X, x_scale, x_zero_point)"
    attributes = {} if axis is None else {"x_axis": axis}
    return job(f"DequantizeLinear {where}", attributes, inputs, nodes, operator="FusedDequantizeLinear")


def decomposed(name: str, shape: Sequence[int], nodes: str, **numbers: float) -> Job:
    """An activation in a spelling that `normfuse.optimize` finds."""
    constants = " ".join(f"{key} = Constant <value = float {{{value!r}}}> ()" for key, value in numbers.items())
    more: dict[str, Any] = {"operator": "FusedActivation", "rewritten": True}
    more["torch"] = lambda f, t: getattr(f, name.lower())(t["X"])
    return job(f"{name}, decomposed", {"activation": name}, {"X": normal(shape)}, f"{constants} {nodes}", **more)


def all_jobs() -> list[Job]:
    sentence, batch, image, matrix = [1, 128, 768], [8, 512, 768], [8, 64, 128, 128], [4096, 1024]
    scores = [1, 12, 384, 384]
    gelu = "r = Div (X, root) e = Erf (r) p = Add (e, one) h = Mul (p, half) Y = Mul (X, h)"
    hard_swish = "a = Add (X, three) c = Clip (a, zero, six) m = Mul (X, c) Y = Div (m, six)"
    return [
        layer_norm(sentence),
        layer_norm(batch),
        layer_norm([32, 512, 1024]),
        layer_norm(batch, dtype=np.float16),
        rms_norm(batch),
        layer_norm(batch, "Relu"),
        layer_norm(batch, "Gelu"),
        layer_norm(batch, "Swish"),
        add_layer_norm([1, 128, 384], with_sum=False),
        add_layer_norm(batch, with_sum=False),
        add_layer_norm(batch, with_sum=True),
        mean_variance(image, (0, 2, 3), sampled=1),
        mean_variance(image, (2, 3), sampled=0),
        mean_variance(image, (1, 2, 3), sampled=0),
        instance_norm(image),
        instance_norm(image, "Relu"),
        group_norm([2, 320, 64, 64], 32),
        group_norm([2, 320, 64, 64], 32, "Swish"),
        quantised_layer_norm(batch),
        quantised_layer_norm(batch, "Gelu"),
        masked_softmax(scores),
        softmax(scores, axis=1),
        quantised_softmax(scores),
        *(dequantise(matrix, axis) for axis in (None, 0, 1)),
        decomposed("Gelu", matrix, gelu, root=2**0.5, one=1.0, half=0.5),
        decomposed("HardSwish", matrix, hard_swish, three=3.0, zero=0.0, six=6.0),
    ]
