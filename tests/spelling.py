"""A graph builder with the freedoms of an exporter."""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any
from unittest import mock

import numpy as np
import onnx
from onnx import helper, numpy_helper

from normfuse.models.graph_builder import GraphBuilder

COMMUTATIVE = ("Add", "Mul", "Max")
#: The ways in which exporters write down a constant of one element.
CONSTANT_FORMS = ("initializer", "constant node", "vector", "cast", "identity", "filled", "reshaped")


class SpellingBuilder(GraphBuilder):
    """A graph builder that writes the same graph with other constants, operand orders and axes.

    Args:
        constants: One of CONSTANT_FORMS, for numbers.
        swap: Write the operands of commutative operators the other way round.
    """

    def __init__(
        self, opset: int, dtype: str = "float32", constants: str = "initializer", swap: bool = False, seed: int = 0
    ) -> None:
        super().__init__(opset, dtype, seed)
        self._form = constants
        self._swap = swap
        self._scope = self._scopes = 0

    def add(self, op_type: str, *inputs: Any, output: str | None = None, domain: str = "", **attributes: Any) -> str:
        given = [self.number(value) if isinstance(value, float) else value for value in inputs]
        if self._swap and op_type in COMMUTATIVE and len(given) == 2:
            given.reverse()
        if not self._scope:
            return super().add(op_type, *given, output=output, domain=domain, **attributes)
        output = output or f"{op_type}_{self._scope}_{len(self._nodes)}_0"
        super().add(op_type, *given, output=output, domain=domain, **attributes)
        self._nodes[-1].name = output
        return output

    @contextlib.contextmanager
    def nested(self) -> Iterator[list[onnx.NodeProto]]:
        """Collects what is added as the nodes of a subgraph."""
        outer, scope = self._nodes, self._scope
        self._nodes, self._scopes = [], self._scopes + 1
        self._scope = self._scopes
        yield self._nodes
        self._nodes, self._scope = outer, scope

    @contextlib.contextmanager
    def function(self) -> Iterator[list[onnx.NodeProto]]:
        """Collects what is added as the nodes of a function, which has its constants as nodes."""
        outer, self._initializers = self._initializers, {}
        with self.nested() as nodes:
            yield nodes
        constants = [helper.make_node("Constant", [], [name], value=each) for name, each in self._initializers.items()]
        nodes[:0], self._initializers = constants, outer

    def number(self, value: float, dtype: Any = None) -> str:
        """A constant of one element, in the builder's form."""
        array = np.array(value, dtype or self.dtype)
        if self._form == "constant node":
            return self.add("Constant", value=numpy_helper.from_array(array))
        if self._form == "vector":
            return self.constant(array.reshape(1))
        if self._form == "cast":
            return self.add("Cast", self.constant(array.astype(np.float64)), to=self.onnx_type(array.dtype))
        if self._form == "identity":
            return self.add("Identity", self.constant(array))
        if self._form == "filled":
            shape = self.constant(np.array([1], np.int64))
            return self.add("ConstantOfShape", shape, value=numpy_helper.from_array(array.reshape(1)))
        if self._form == "reshaped":
            return self.add("Reshape", self.constant(array.reshape(1)), self.constant(np.array([], np.int64)))
        return self.constant(array)

    def reduce(self, op_type: str, x: str, axes: Sequence[int], keepdims: int = 1) -> str:
        """A reduction, its axes an attribute or an input as the opset has it."""
        if self.opset >= (13 if op_type == "ReduceSum" else 18):
            return self.add(op_type, x, np.asarray(axes, np.int64), keepdims=keepdims)
        return self.add(op_type, x, axes=list(axes), keepdims=keepdims)

    def reduce_mean(self, x: str, axes: Sequence[int]) -> str:
        return self.reduce("ReduceMean", x, axes)

    def more_outputs(self, names: Sequence[str]) -> None:
        """Give the last node outputs behind its first."""
        self._nodes[-1].output.extend(names)

    def untyped(self, outputs: Sequence[str]) -> onnx.ModelProto:
        """The model with outputs whose types and shapes are left open."""
        with mock.patch.object(onnx.checker, "check_model"):  # it refuses outputs of no type, and deprecated operators
            model = super().model("m")
        model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in outputs)
        return model

    def default(self, value: Any) -> str:
        """A constant that a caller can override."""
        array = np.asarray(value, self.dtype if isinstance(value, float) else None)
        return self.input(self.constant(array), array.shape, array.dtype)

    def array(self, name: str) -> np.ndarray[Any, Any]:
        """An initialiser's value."""
        return numpy_helper.to_array(self._initializers[name])
