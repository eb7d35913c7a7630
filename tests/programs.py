"""The tests' own notation for a node of the domain ai.normfuse, and the program (attribute ``steps``) that it is.

A case names the tensors and numbers of a chain: ``{"X": x, "scale": s, "residual": r}`` and
``{"axes": [-1], "activation": "Gelu"}``; the tensors' names become the labels of the program.
"""

from collections.abc import Collection, Iterator, Mapping
from typing import Any

import numpy as np

from normfuse import meaning
from normfuse.meaning import Array, Expected
from normfuse.spec import ACTIVATIONS, ELEMENT_TYPES

OPERANDS = [f"operand_{index}" for index in range(6)]
_X = ["X", "x_scale", "x_zero_point"]
_Y = ["y_scale", "y_zero_point"]
#: The tensors that a case of each operator may have, in an order of its own.
INPUTS = {
    "FusedNormalization": [
        *(*_X, "scale", "bias", "residual", "residual_bias", "residual_scale", "residual_zero_point", *_Y),
        *("scale_scale", "scale_zero_point", "bias_scale", "bias_zero_point", "slope", "sum_scale", "sum_zero_point"),
        *OPERANDS,
    ],
    "FusedActivation": [*_X, "scale", "bias", *_Y, "slope", *OPERANDS],
    "FusedDequantizeLinear": [*_X, "slope"],
}
#: What else a case may say, with what holds where it does not.
DEFAULTS: dict[str, Any] = {
    "axes": [],
    "method": "standard",
    "num_groups": 0,
    "use_mean": 1,
    "normalize_variance": 1,
    "epsilon": 1e-5,
    "epsilon_on": "variance",
    "affine_align": "trailing",
    "activation": "Identity",
    "activation_params": [],
    "steps_before": "",
    "steps_behind": "",
    "step_params": [],
    "x_axis": 1,
    "x_block_size": 0,
    "residual_axis": 1,
    "residual_block_size": 0,
    "scale_axis": 0,
    "bias_axis": 0,
    "y_axis": 1,
    "y_block_size": 0,
    "y_dtype": 0,
    "y_saturate": 1,
    "sum_dtype": 0,
}
COMBINATIONS = ("Mul", "Add", "Div")
_METHODS = {"softmax": "Softmax", "log_softmax": "LogSoftmax"}
_CORES = ("Normalize", *_METHODS.values())
_CORE = ("axes", "num_groups", "epsilon", "epsilon_on", "use_mean", "normalize_variance")
_TYPES = {each.number: name for name, each in ELEMENT_TYPES.items()}


def type_name(code: int) -> str:
    """The name of an element type in a program; its number where it has none."""
    return _TYPES.get(code, str(code))


def number(value: float) -> str:
    """The shortest text that gives the float32 back."""
    return str(np.float32(value)).removesuffix(".0")


def write(op: str, tensors: Collection[str], attributes: Mapping[str, Any]) -> tuple[str, list[str]]:
    """The program of a case, and the tensors in the order of the node's inputs, X first."""
    program = "; ".join(_Writer(tensors, attributes).steps(op)) or "Identity"
    words = program.replace(";", " ").split()
    labels = [word.partition("=")[2] or word for word in words]
    ordered = [label for label in labels if label in tensors and label != "X"]
    assert sorted([*ordered, "X"]) == sorted({"X", *tensors}), f"{op} with {sorted(tensors)} is not '{program}'"
    return program, ["X"] * ("X" in tensors) + ordered


class _Writer:
    def __init__(self, tensors: Collection[str], attributes: Mapping[str, Any]) -> None:
        self._tensors = tensors
        self._given = attributes
        self._operands = iter(OPERANDS)
        self._numbers = iter(attributes.get("step_params", []))

    def steps(self, op: str) -> Iterator[str]:
        if {"x_scale", "x_zero_point"} & set(self._tensors):
            yield "Dequantize" + self._quantization("x")
        if op == "FusedNormalization":
            yield from self._further("steps_before")
            yield from self._operation("Add", "residual")
            yield from self._operation("Add", "residual_bias")
            yield from self._sum()
            yield self._core()
        align = f" align={self._given['affine_align']}" if "affine_align" in self._given else ""
        yield from self._operation("Mul", "scale", align)
        yield from self._operation("Add", "bias", align)
        if "activation" in self._given or "slope" in self._tensors:
            yield self._activation(self._given.get("activation", "Identity"), self._given.get("activation_params", []))
        yield from self._further("steps_behind")
        if {"y_scale", "y_zero_point"} & set(self._tensors):
            saturate = f" saturate={self._given['y_saturate']}" if "y_saturate" in self._given else ""
            yield "Quantize" + self._quantization("y") + self._type("y_dtype") + saturate
        elif self._given.get("y_dtype"):
            yield "Store" + self._type("y_dtype")

    def _quantization(self, prefix: str) -> str:
        text = "".join(
            f" {name}={prefix}_{name}" for name in ("scale", "zero_point") if f"{prefix}_{name}" in self._tensors
        )
        for name in ("axis", "block_size") if text and prefix != "sum" else ():
            value = self._given.get(f"{prefix}_{name}", DEFAULTS.get(f"{prefix}_{name}", 0))
            text += f" {name}={value}" if value != DEFAULTS[f"x_{name}"] else ""
        return text

    def _operation(self, name: str, tensor: str, more: str = "") -> Iterator[str]:
        if tensor in self._tensors:
            yield f"{name} {tensor}{self._quantization(tensor)}{more}"

    def _type(self, name: str) -> str:
        return f" type={type_name(self._given[name])}" if self._given.get(name) else ""

    def _sum(self) -> Iterator[str]:
        if {"sum_scale", "sum_zero_point"} & set(self._tensors):
            yield "Requantize" + self._quantization("sum") + self._type("sum_dtype")
        elif self._given.get("sum_dtype"):
            yield "Emit" + self._type("sum_dtype")

    def _core(self) -> str:
        name = _METHODS.get(self._given.get("method", ""), "Normalize")
        given = {key: self._given[key] for key in _CORE if key in self._given}
        return name + "".join(f" {key}={_text(value)}" for key, value in given.items() if value != [])

    def _activation(self, name: str, values: list[float]) -> str:
        keys = list(ACTIVATIONS[name].drawn) if name in ACTIVATIONS else []
        keys += [f"further_{index}" for index in range(len(values))]
        slope = " slope" if "slope" in self._tensors else ""
        return name + slope + "".join(f" {key}={number(value)}" for key, value in zip(keys, values, strict=False))

    def _further(self, which: str) -> Iterator[str]:
        for name in self._given.get(which, "").split():
            if name in COMBINATIONS:
                yield f"{name} {next(self._operands)}"
                continue
            drawn = ACTIVATIONS[name].drawn if name in ACTIVATIONS else ()
            yield name + "".join(f" {each}={number(next(self._numbers))}" for each in drawn)


def evaluate(op: str, inputs: Mapping[str, Array | None], attributes: Mapping[str, Any]) -> dict[str, Expected]:
    """What operator ``op`` gives: one Expected per output name of operators.toml."""
    given = {name: value for name, value in inputs.items() if value is not None}
    return meaning.evaluate(write(op, given, attributes)[0], given)


def _text(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ",".join(map(str, value))
    return number(value) if isinstance(value, float) else str(value)
