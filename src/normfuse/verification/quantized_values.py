"""The values that two versions of a model both quantise, and what of the original says how these were rounded."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx_ir as ir

__all__ = ["QuantizedValue", "as_float", "quantized_values"]

Values = Mapping[str, Any]

_QUANTIZING = ("QuantizeLinear", "DynamicQuantizeLinear")
# How far from a whole number of steps a float may be that was dequantised.
_OFF_GRID = 0.02


@dataclasses.dataclass(frozen=True)
class QuantizedValue:
    """A value that both models quantise, or a scale or a zero point that both find for one.

    Attributes:
        quantizer: The node of the original.
        output: Which of its outputs the value is, or is dequantised from.
        zero_point: Name of the zero point that is found for it; "": it is not found.
        scale: Of what is dequantised at once, and compared as that; 0: the integers are there.
    """

    quantizer: ir.Node
    output: int = 0
    zero_point: str = ""
    scale: float = 0.0

    @property
    def operands(self) -> tuple[ir.Value, ir.Value]:
        """The value before it is rounded, and the scale."""
        node = self.quantizer
        x, scale = node.inputs[0], node.outputs[1] if node.op_type == "DynamicQuantizeLinear" else node.inputs[1]
        assert x is not None
        assert scale is not None
        return x, scale

    def codes(self, values: np.ndarray) -> np.ndarray:
        """Return the integers, those of a dequantised tensor less their zero point; itself where it is no such one."""
        if not self.scale:
            return values
        with np.errstate(invalid="ignore"):
            steps = values.astype(np.float64) / self.scale
            codes = np.rint(steps)
            is_grid = bool(np.all(np.abs(steps - codes) <= _OFF_GRID))
        return codes.astype(np.int64) if is_grid else values

    def bits(self, values: np.ndarray) -> int:
        """Return how many the integers have; ``values`` are those of the original, dequantised or not."""
        if values.dtype.kind in "iu":
            return 8 * values.dtype.itemsize
        zero_point = self.quantizer.inputs[2] if len(self.quantizer.inputs) > 2 else None
        code = self.quantizer.attributes.get_int("output_dtype", 0)
        dtype = zero_point.dtype if zero_point is not None else ir.DataType(code)
        return dtype.bitwidth if dtype else ir.DataType.UINT8.bitwidth

    def unrounded(self, known: Values, where: np.ndarray) -> np.ndarray:
        """Return the chosen elements before they were rounded, in steps."""
        x, scale = (_array(value, known) for value in self.operands)
        if self.output:  # the zero point of DynamicQuantizeLinear
            x = np.asarray(-min(x.min(initial=0.0), 0.0))
        elif scale.size > 1:
            axis = self.quantizer.attributes.get_int("axis", 1)
            block = self.quantizer.attributes.get_int("block_size", 0)
            if block:
                scale = np.repeat(scale, block, axis).take(range(x.shape[axis]), axis)
            else:
                scale = scale.reshape([-1 if i == axis % x.ndim else 1 for i in range(x.ndim)])
        scale = np.broadcast_to(scale.reshape(()) if scale.size == 1 else scale, x.shape)
        with np.errstate(all="ignore"):
            steps: np.ndarray = x[where].astype(np.float64) / scale[where].astype(np.float64)
        return steps


def as_float(name: str) -> str:
    """Return the name of a value of the original as float32."""
    return f"{name} as float32"


def quantized_values(original: ir.Model, optimized: ir.Model) -> dict[str, QuantizedValue]:
    """Return the quantised values that the main graphs of both compute, by name.

    Where only the original has the integers, what alone reads them and dequantises stands for them.
    """
    common = {value.name for node in optimized.graph for value in node.outputs}
    names: dict[str, QuantizedValue] = {}
    for node in original.graph:
        if node.op_type not in _QUANTIZING:
            continue
        found = [value.name if value.name in common else None for value in node.outputs]
        zero_point = found[2] if len(found) > 2 else None
        for index, name in enumerate(found):
            if name:
                names[name] = QuantizedValue(node, index, zero_point or "" if index == 0 else "")
        scale = _number(node.inputs[1]) if node.op_type == "QuantizeLinear" and not found[0] else None
        readers = node.outputs[0].consumers()
        if scale and len(readers) == 1 and readers[0].op_type == "DequantizeLinear":
            name = readers[0].outputs[0].name
            if name in common and name is not None:
                names[name] = QuantizedValue(node, scale=scale)
    return names


def _number(value: ir.Value | None) -> float | None:
    """Return a constant of one element."""
    tensor = None if value is None else ir.convenience.get_const_tensor(value)
    return float(tensor.numpy().ravel()[0]) if tensor is not None and tensor.size == 1 else None


def _array(value: ir.Value, known: Values) -> np.ndarray:
    tensor = ir.convenience.get_const_tensor(value)
    if tensor is not None:
        return np.asarray(tensor.numpy())
    name = value.name or ""
    return np.asarray(known[as_float(name)] if as_float(name) in known else known[name])
