"""What benchmarks/run.py measures: each job a small model, its inputs, and the operator that says what is right."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Array = np.ndarray[Any, Any]
Arrays = dict[str, Array]
SIZES = {np.dtype(np.float32): TensorProto.FLOAT, np.dtype(np.float16): TensorProto.FLOAT16}


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
    nodes: list[onnx.NodeProto]
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
        constants = [numpy_helper.from_array(v, k) for k, v in self.inputs.items() if k not in self.activations]
        graph_inputs = [
            helper.make_tensor_value_info(name, element_type(self.inputs[name]), self.inputs[name].shape)
            for name in self.activations
        ]
        outputs = [helper.make_empty_tensor_value_info(name) for name in self.outputs]
        graph = helper.make_graph(self.nodes, "job", graph_inputs, outputs, constants)
        opsets = [helper.make_opsetid("", self.opset)]
        return bytes(helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString())


def element_type(array: Array) -> int:
    return int(helper.np_dtype_to_tensor_dtype(array.dtype))


def node(op: str, inputs: str, outputs: str, **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(op, inputs.split(), outputs.split(), name=f"{op}_{outputs.split()[0]}", **attributes)


def label(array: Array) -> str:
    kind = {"float32": "f32", "float16": "f16"}.get(array.dtype.name, array.dtype.name)
    return f"{kind} [{','.join(map(str, array.shape))}]"


def normal(shape: Sequence[int], dtype: Any = np.float32, seed: int = 1, mean: float = 0.0) -> Array:
    return np.random.default_rng(seed).normal(mean, 1, shape).astype(dtype)


def affine(count: int, dtype: Any = np.float32) -> Arrays:
    return {"scale": normal([count], dtype, 2, 1.0), "bias": normal([count], dtype, 3)}


LAYER_NORM = {"axes": [-1], "epsilon": 1e-5}


def torch_layer_norm(functional: Any, t: dict[str, Any]) -> Any:
    return functional.layer_norm(t["X"], t["X"].shape[-1:], t["scale"], t["bias"], 1e-5)


def layer_norm(shape: Sequence[int], activation: str = "Identity", dtype: Any = np.float32) -> Job:
    x = normal(shape, dtype)
    nodes = [node("LayerNormalization", "X scale bias", "n" if activation != "Identity" else "Y", axis=-1)]
    torch: Callable[[Any, dict[str, Any]], Any] = torch_layer_norm
    if activation in ("Relu", "Gelu"):
        nodes.append(node(activation, "n", "Y"))
        name = activation.lower()
        torch = lambda f, t: getattr(f, name)(torch_layer_norm(f, t))  # noqa: E731
    elif activation == "Swish":
        nodes += [node("Sigmoid", "n", "s"), node("Mul", "n s", "Y")]
        torch = lambda f, t: f.silu(torch_layer_norm(f, t))  # noqa: E731
    suffix = "" if activation == "Identity" else f" -> {'SiLU' if activation == 'Swish' else activation}"
    return Job(
        f"LayerNorm{suffix} {label(x)}", "FusedNormalization", {**LAYER_NORM, "activation": activation},
        {"X": x, **affine(shape[-1], dtype)}, nodes, opset=20 if activation == "Gelu" else 17, torch=torch,
    )  # fmt: skip


def rms_norm(shape: Sequence[int]) -> Job:
    x = normal(shape)
    return Job(
        f"RMSNorm {label(x)}", "FusedNormalization", {**LAYER_NORM, "use_mean": 0},
        {"X": x, "scale": affine(shape[-1])["scale"]}, [node("RMSNormalization", "X scale", "Y", axis=-1)], opset=23,
        torch=lambda f, t: f.rms_norm(t["X"], t["X"].shape[-1:], t["scale"], 1e-5),
    )  # fmt: skip


def add_layer_norm(shape: Sequence[int], *, with_sum: bool) -> Job:
    x = normal(shape)
    nodes = [node("Add", "X residual", "sum"), node("LayerNormalization", "sum scale bias", "Y", axis=-1)]

    def torch(f: Any, t: dict[str, Any]) -> Any:
        total = t["X"] + t["residual"]
        return f.layer_norm(total, total.shape[-1:], t["scale"], t["bias"], 1e-5), total

    return Job(
        f"Add -> LayerNorm{' and the sum' if with_sum else ''} {label(x)}", "FusedNormalization", dict(LAYER_NORM),
        {"X": x, "residual": normal(shape, seed=4), **affine(shape[-1])}, nodes, torch=torch,
        outputs=("Y", "sum") if with_sum else ("Y",),
        variants={} if with_sum else {"ORT, SkipLayerNormFusion off": ["SkipLayerNormFusion"]},
    )  # fmt: skip


def mean_variance(shape: Sequence[int], axes: Sequence[int], sampled: int) -> Job:
    x = normal(shape)

    def torch(_f: Any, t: dict[str, Any]) -> Any:
        centred = t["X"] - t["X"].mean(axes, keepdim=True)
        return centred / (centred.square().mean(axes, keepdim=True).sqrt() + 1e-9)

    return Job(
        f"MVN axes {','.join(map(str, axes))} {label(x)}", "FusedNormalization",
        {"axes": list(axes), "epsilon": 1e-9, "epsilon_on": "stddev"}, {"X": x},
        [node("MeanVarianceNormalization", "X", "Y", axes=list(axes))], torch=torch, sampled=sampled,
    )  # fmt: skip


def instance_norm(shape: Sequence[int], activation: str = "Identity") -> Job:
    x = normal(shape)
    relu = activation == "Relu"
    nodes = [node("InstanceNormalization", "X scale bias", "n" if relu else "Y", epsilon=1e-5)]
    nodes += [node("Relu", "n", "Y")] if relu else []

    def torch(f: Any, t: dict[str, Any]) -> Any:
        y = f.instance_norm(t["X"], weight=t["scale"], bias=t["bias"], eps=1e-5)
        return f.relu(y) if relu else y

    attributes = {"axes": list(range(2, len(shape))), "epsilon": 1e-5, "affine_align": "channel"}
    return Job(
        f"InstanceNorm{' -> Relu' if relu else ''} {label(x)}", "FusedNormalization",
        {**attributes, "activation": activation}, {"X": x, **affine(shape[1])}, nodes, torch=torch,
    )  # fmt: skip


def group_norm(shape: Sequence[int], groups: int, activation: str = "Identity") -> Job:
    x = normal(shape)
    silu = activation == "Swish"
    nodes = [node("GroupNormalization", "X scale bias", "n" if silu else "Y", num_groups=groups, epsilon=1e-5)]
    nodes += [node("Sigmoid", "n", "s"), node("Mul", "n s", "Y")] if silu else []

    def torch(f: Any, t: dict[str, Any]) -> Any:
        y = f.group_norm(t["X"], groups, t["scale"], t["bias"], 1e-5)
        return f.silu(y) if silu else y

    attributes = {"num_groups": groups, "epsilon": 1e-5, "affine_align": "channel", "activation": activation}
    return Job(
        f"GroupNorm{' -> SiLU' if silu else ''}, {groups} groups {label(x)}", "FusedNormalization", attributes,
        {"X": x, **affine(shape[1])}, nodes, opset=21, torch=torch,
    )  # fmt: skip


def scalar(value: float, dtype: Any) -> Array:
    return np.asarray(value, dtype)


def random_int8(shape: Sequence[int]) -> Array:
    return np.random.default_rng(5).integers(-128, 128, shape, dtype=np.int8)


def quantised_layer_norm(shape: Sequence[int], activation: str = "Identity") -> Job:
    gelu = activation == "Gelu"
    nodes = [
        node("DequantizeLinear", "X x_scale x_zero_point", "d"),
        node("LayerNormalization", "d scale bias", "n", axis=-1),
        *([node("Gelu", "n", "a")] if gelu else []),
        node("QuantizeLinear", ("a" if gelu else "n") + " y_scale y_zero_point", "Y"),
    ]
    inputs = {
        "X": random_int8(shape), **affine(shape[-1]),
        "x_scale": scalar(0.02, np.float32), "x_zero_point": scalar(3, np.int8),
        "y_scale": scalar(0.03, np.float32), "y_zero_point": scalar(-7, np.int8),
    }  # fmt: skip
    return Job(
        f"DQ -> LayerNorm{' -> Gelu' if gelu else ''} -> Q {label(inputs['X'])}", "FusedNormalization",
        {**LAYER_NORM, "activation": activation}, inputs, nodes, opset=20,
    )  # fmt: skip


def softmax(shape: Sequence[int], axis: int = -1) -> Job:
    x = normal(shape)
    across = "" if axis == -1 else f" axis {axis}"
    return Job(
        f"Softmax{across} {label(x)}", "FusedNormalization", {"axes": [axis], "method": "softmax"}, {"X": x},
        [node("Softmax", "X", "Y", axis=axis)], torch=lambda f, t: f.softmax(t["X"], axis),
    )  # fmt: skip


def masked_softmax(shape: Sequence[int]) -> Job:
    x = normal(shape)
    mask = normal([1] * (len(shape) - 1) + [shape[-1]], seed=4)
    nodes = [node("Mul", "X operand_0", "m"), node("Add", "m residual", "a"), node("Softmax", "a", "Y", axis=-1)]
    return Job(
        f"Mul -> Add -> Softmax {label(x)}", "FusedNormalization",
        {"axes": [-1], "method": "softmax", "steps_before": "Mul"},
        {"X": x, "residual": mask, "operand_0": scalar(0.125, np.float32)}, nodes,
        torch=lambda f, t: f.softmax(t["X"] * t["operand_0"] + t["residual"], -1),
    )  # fmt: skip


def quantised_softmax(shape: Sequence[int]) -> Job:
    nodes = [
        node("DequantizeLinear", "X x_scale x_zero_point", "d"),
        node("Softmax", "d", "s", axis=-1),
        node("QuantizeLinear", "s y_scale y_zero_point", "Y"),
    ]
    inputs = {
        "X": random_int8(shape), "x_scale": scalar(0.1, np.float32), "x_zero_point": scalar(3, np.int8),
        "y_scale": scalar(1 / 256, np.float32), "y_zero_point": scalar(-128, np.int8),
    }  # fmt: skip
    attributes = {"axes": [-1], "method": "softmax"}
    return Job(f"DQ -> Softmax -> Q {label(inputs['X'])}", "FusedNormalization", attributes, inputs, nodes)


def dequantise(shape: Sequence[int], axis: int | None) -> Job:
    count = [] if axis is None else [shape[axis]]
    inputs = {
        "X": random_int8(shape),
        "x_scale": np.abs(normal(count, seed=6)) + np.float32(0.01),
        "x_zero_point": np.random.default_rng(7).integers(-9, 9, count).astype(np.int8),
    }
    inputs["x_scale"] = np.asarray(inputs["x_scale"], np.float32)
    attributes = {} if axis is None else {"axis": axis}
    where = "per tensor" if axis is None else f"axis {axis}"
    return Job(
        f"DequantizeLinear {where} {label(inputs['X'])}", "FusedDequantizeLinear",
        {} if axis is None else {"x_axis": axis}, inputs,
        [node("DequantizeLinear", "X x_scale x_zero_point", "Y", **attributes)],
    )  # fmt: skip


def constant_node(name: str, value: float) -> onnx.NodeProto:
    return helper.make_node("Constant", [], [name], value=numpy_helper.from_array(np.asarray(value, np.float32)))


def decomposed_gelu(shape: Sequence[int]) -> Job:
    nodes = [
        *(constant_node(name, value) for name, value in (("root", 2**0.5), ("one", 1.0), ("half", 0.5))),
        node("Div", "X root", "r"), node("Erf", "r", "e"), node("Add", "e one", "p"),
        node("Mul", "p half", "h"), node("Mul", "X h", "Y"),
    ]  # fmt: skip
    x = normal(shape)
    return Job(
        f"Gelu, decomposed {label(x)}", "FusedActivation", {"activation": "Gelu"}, {"X": x}, nodes, rewritten=True,
        torch=lambda f, t: f.gelu(t["X"]),
    )  # fmt: skip


def decomposed_hard_swish(shape: Sequence[int]) -> Job:
    nodes = [
        *(constant_node(name, value) for name, value in (("three", 3.0), ("zero", 0.0), ("six", 6.0))),
        node("Add", "X three", "a"), node("Clip", "a zero six", "c"),
        node("Mul", "X c", "m"), node("Div", "m six", "Y"),
    ]  # fmt: skip
    x = normal(shape)
    return Job(
        f"HardSwish, decomposed {label(x)}", "FusedActivation", {"activation": "HardSwish"}, {"X": x}, nodes,
        rewritten=True, torch=lambda f, t: f.hardswish(t["X"]),
    )  # fmt: skip


def all_jobs() -> list[Job]:
    sentence, batch, image = [1, 128, 768], [8, 512, 768], [8, 64, 128, 128]
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
        masked_softmax([1, 12, 384, 384]),
        softmax([1, 12, 384, 384], axis=1),
        quantised_softmax([1, 12, 384, 384]),
        dequantise([4096, 1024], None),
        dequantise([4096, 1024], 0),
        dequantise([4096, 1024], 1),
        decomposed_gelu([4096, 1024]),
        decomposed_hard_swish([4096, 1024]),
    ]
