"""A short way of writing ONNX graphs: nodes are added in order, names are made, constants are passed as arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

Dim = int | str


class GraphBuilder:
    """Collects the nodes of one graph.

    Args:
        opset: Version of the ai.onnx operators.
        dtype: Floating-point type of weights and constants, float32 or float16.
        seed: Of the weights.
    """

    def __init__(self, opset: int, dtype: str = "float32", seed: int = 0) -> None:
        self.opset = opset
        self.dtype = np.dtype(dtype)
        self._rng = np.random.default_rng(seed)
        self._nodes: list[onnx.NodeProto] = []
        self._initializers: dict[str, onnx.TensorProto] = {}
        self._inputs: list[onnx.ValueInfoProto] = []
        self._outputs: list[onnx.ValueInfoProto] = []
        self._domains = {"": opset}

    @property
    def node_count(self) -> int:
        """How many nodes were added so far."""
        return len(self._nodes)

    def input(self, name: str, shape: Sequence[Dim], dtype: Any = None) -> str:
        """Add an input of the graph; the element type is the graph's own unless given."""
        self._inputs.append(helper.make_tensor_value_info(name, self.onnx_type(dtype or self.dtype), shape))
        return name

    def output(self, value: str, shape: Sequence[Dim] | None, dtype: Any = None, name: str | None = None) -> None:
        """Make a value an output of the graph, under another name if one is given."""
        if name is not None:
            value = self.add("Identity", value, output=name)
        self._outputs.append(helper.make_tensor_value_info(value, self.onnx_type(dtype or self.dtype), shape))

    def weight(self, *shape: int, scale: float | None = None, mean: float = 0.0, name: str | None = None) -> str:
        """Add a weight of normally distributed numbers; the default scale keeps a matrix product's variance."""
        scale = 1.0 / np.sqrt(shape[0]) if scale is None else scale
        return self.constant((mean + scale * self._rng.standard_normal(shape)).astype(self.dtype), name)

    def constant(self, value: Any, name: str | None = None) -> str:
        """Add an initialiser; a Python float gets the graph's type, Python integers int64."""
        array = np.asarray(value)
        if not isinstance(value, (np.ndarray, np.generic)):
            array = array.astype(self.dtype if array.dtype.kind == "f" else np.int64)
        name = name or f"constant_{len(self._initializers)}"
        self._initializers[name] = numpy_helper.from_array(array, name)
        return name

    def add(self, op_type: str, *inputs: Any, output: str | None = None, domain: str = "", **attributes: Any) -> str:
        """Add a node and return the name of its output.

        Inputs are names, '' for an absent one, or arrays and numbers, which become initialisers.
        """
        index = len(self._nodes)
        names = [name if isinstance(name, str) else self.constant(name) for name in inputs]
        result = output or f"{op_type}_{index}_0"
        self._domains.setdefault(domain, 1)
        self._nodes.append(
            helper.make_node(op_type, names, [result], name=f"{op_type}_{index}", domain=domain, **attributes)
        )
        return result

    def reduce_mean(self, x: str, axes: Sequence[int]) -> str:
        """ReduceMean with keepdims, whose axes became an input in opset 18."""
        return (
            self.add("ReduceMean", x, axes=list(axes), keepdims=1)
            if self.opset < 18
            else self.add("ReduceMean", x, np.asarray(axes, np.int64), keepdims=1)
        )

    def model(self, name: str) -> onnx.ModelProto:
        """Return the model, checked by onnx."""
        graph = helper.make_graph(
            self._nodes, name, self._inputs, self._outputs, initializer=list(self._initializers.values())
        )
        model = helper.make_model(
            graph,
            opset_imports=[helper.make_opsetid(domain, version) for domain, version in self._domains.items()],
            ir_version=8 if self.opset < 19 else 10,
            producer_name="normfuse.models",
        )
        onnx.checker.check_model(model)
        return model

    @staticmethod
    def onnx_type(dtype: Any) -> int:
        """Return the number of an element type in ONNX."""
        return helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
