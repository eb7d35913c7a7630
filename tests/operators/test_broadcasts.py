"""Chains of standard nodes in which an operand widens X: in any dimension, by rank, and where shapes are symbolic.

What such a chain computes is NumPy's broadcasting in float64; whether the execution provider claims it is its choice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import harness
import numpy as np
import onnx
import oracle
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper
from oracle import Array
from strategies import Numbers, broadcast_shapes

pytestmark = pytest.mark.every_isa
EXAMPLES = settings().max_examples
F32 = np.float32
MIDDLES = ("Gelu", "Silu", "PRelu", "LayerNormalization", "RMSNormalization", "MeanVarianceNormalization")


@dataclass(frozen=True)
class Widened:
    """[DequantizeLinear] -> [Add bias] -> [Add residual [+ its bias]] -> middle -> [activation] -> [QuantizeLinear].

    `tensors`: x, then those that are there of b (added to x), r (added to both), c (added to r before) and slope.
    """

    middle: str
    tensors: Mapping[str, Array]
    constants: frozenset[str]
    quantized: bool = False  # x
    quantizes: bool = False
    emits_sum: bool = False
    # Dimensions of inputs that the model leaves open.
    symbolic: frozenset[tuple[str, int]] = frozenset()

    def __repr__(self) -> str:
        shapes = {name: list(array.shape) for name, array in self.tensors.items()}
        flags = [flag for flag in ("quantized", "quantizes", "emits_sum") if getattr(self, flag)]
        return f"{self.middle}({shapes}, constant {sorted(self.constants)}, open {sorted(self.symbolic)}, {flags})"

    def model(self) -> onnx.ModelProto:
        nodes: list[onnx.NodeProto] = []

        def add(op_type: str, inputs: Sequence[str], **attributes: Any) -> str:
            nodes.append(helper.make_node(op_type, inputs, [f"v{len(nodes)}"], name=f"n{len(nodes)}", **attributes))
            return f"v{len(nodes) - 1}"

        y = add("DequantizeLinear", ["x", "xs"]) if self.quantized else "x"
        if "b" in self.tensors:
            y = add("Add", [y, "b"])
        if "r" in self.tensors:
            y = add("Add", [y, add("Add", ["r", "c"]) if "c" in self.tensors else "r"])
        total = y
        if self.middle == "Silu":
            y = add("Mul", [y, add("Sigmoid", [y])])
        elif self.middle == "PRelu":
            y = add("PRelu", [y, "slope"])
        elif self.middle == "Gelu":
            y = add("Gelu", [y])
        elif self.middle == "MeanVarianceNormalization":
            y = add("Relu", [add(self.middle, [y], axes=[-1])])
        else:
            y = add("Relu", [add(self.middle, [y, "one"], axis=-1)])
        if self.quantizes:
            y = add("QuantizeLinear", [y, "ys", "yz"])
        outputs = {"Y": y} | ({"total": total} if self.emits_sum and total not in ("x", y) else {})
        for name, value in outputs.items():
            nodes.append(helper.make_node("Identity", [value], [name], name=f"to_{name}"))
        constants = {name: self.tensors[name] for name in self.constants}
        scalars = {"xs": F32(0.0625), "ys": F32(0.03125), "yz": np.int8(3), "one": np.ones(1, F32)}
        used = {name for node in nodes for name in node.input}
        inputs = {name: array for name, array in self.tensors.items() if name not in self.constants}
        return harness.build_model(
            nodes,
            inputs,
            {name: self.expected()[name].code for name in outputs},
            constants | {name: np.asarray(value) for name, value in scalars.items() if name in used},
            opset=23,
            shapes={name: self._shape(name, array) for name, array in inputs.items()},
        )

    def _shape(self, name: str, array: Array) -> list[int | str]:
        return [f"{name}{i}" if (name, i) in self.symbolic else dim for i, dim in enumerate(array.shape)]

    def expected(self) -> dict[str, oracle.Expected]:
        """What the nodes compute one after the other, in float64, as far as float32 may be away from it."""
        tensors = {name: array.astype(np.float64) for name, array in self.tensors.items()}
        d = tensors["x"] * (0.0625 if self.quantized else 1.0)
        for name in ("b", "r", "c"):
            d = d + tensors.get(name, 0.0)
        slack = 2e-6 * (1 + np.abs(d))
        total = oracle.Expected(d, d - slack, d + slack, onnx.TensorProto.FLOAT)
        with np.errstate(all="ignore"):
            y = self._middle(d, tensors.get("slope"))
        slack = np.broadcast_to(3e-5 * (1 + np.abs(np.nan_to_num(y))), y.shape)
        if not self.quantizes:
            return {"Y": oracle.Expected(y, y - slack, y + slack, onnx.TensorProto.FLOAT), "total": total}
        steps = y * 32
        stored = oracle.Expected(steps, steps - 32 * slack, steps + 32 * slack, onnx.TensorProto.INT8, 3.0)
        return {"Y": stored, "total": total}

    def _middle(self, d: Array, slope: Array | None) -> Array:
        if self.middle == "Gelu":
            return oracle.activate("Gelu", d, ())
        if self.middle == "Silu":
            return d / (1 + np.exp(-d))
        if slope is not None:
            return np.where(d >= 0, d, d * slope)
        if d.size == 0:
            return d
        centred = d if self.middle == "RMSNormalization" else d - d.mean(-1, keepdims=True)
        deviation = np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
        if self.middle == "MeanVarianceNormalization":
            deviation = np.sqrt((centred**2).mean(-1, keepdims=True)) + 1e-9
        return np.maximum(centred / deviation, 0)

    def feeds(self) -> dict[str, Array]:
        return {name: array for name, array in self.tensors.items() if name not in self.constants}

    def check(self, claim: str) -> None:
        session = harness.create_session(self.model(), "ep", claim=claim)
        got = harness.run(session, self.feeds())
        for name, expected in self.expected().items():
            if name in got:
                expected.check(got[name], f"claim={claim}: {name} of {self}")


def numbers(shape: Sequence[int], seed: int = 0) -> Array:
    return np.random.default_rng(seed).normal(0.3, 1.0, shape).astype(F32)


def codes(shape: Sequence[int]) -> Array:
    return np.random.default_rng(7).integers(-100, 100, shape).astype(np.int8)


NAMED = {
    "a bias of 768 on one column": Widened("Gelu", {"x": numbers((512, 1)), "b": numbers((768,), 1)}, frozenset({"b"})),
    "and a residual of one column": Widened(
        "LayerNormalization",
        {"x": numbers((512, 1)), "b": numbers((768,), 1), "r": numbers((512, 1), 2)},
        frozenset({"b"}),
    ),
    "a dequantised column": Widened(
        "Gelu", {"x": codes((5, 1)), "b": numbers((96,), 1)}, frozenset({"b"}), quantized=True
    ),
    "one element in all": Widened("Silu", {"x": numbers((1,)), "b": numbers((96,), 1)}, frozenset({"b"})),
    "no dimensions": Widened("Gelu", {"x": numbers(()), "b": numbers((96,), 1)}, frozenset({"b"})),
    "X and residual widen each other": Widened(
        "LayerNormalization", {"x": numbers((64, 1, 256)), "r": numbers((1, 8, 256), 1)}, frozenset()
    ),
    "the residual has the higher rank": Widened(
        "RMSNormalization", {"x": numbers((8, 256)), "r": numbers((3, 8, 1), 1)}, frozenset()
    ),
    "no rows": Widened("Gelu", {"x": numbers((0, 1)), "b": numbers((96,), 1)}, frozenset({"b"})),
    "a slope": Widened("PRelu", {"x": numbers((64, 1)), "slope": numbers((96,), 1)}, frozenset({"slope"})),
}


@pytest.mark.parametrize("shapes", ["static", "symbolic"])
@pytest.mark.parametrize("claim", ["profitable", "all"])
@pytest.mark.parametrize("name", NAMED)
def test_named(name: str, claim: str, shapes: str) -> None:
    case = NAMED[name]
    if shapes == "symbolic":
        opened = {(key, i) for key, array in case.feeds().items() for i in range(array.ndim)}
        case = Widened(case.middle, case.tensors, case.constants, case.quantized, symbolic=frozenset(opened))
    case.check(claim)


def test_bias_behind_a_product_of_one_column() -> None:
    """MatMul[N, 1] + b[100] -> Gelu: the sum is a matrix, though the product is a column."""
    x, weight, bias = numbers((300, 16)), numbers((16, 1), 1), numbers((100,), 2)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["p"], name="p"),
        helper.make_node("Add", ["p", "b"], ["s"], name="s"),
        helper.make_node("Gelu", ["s"], ["Y"], name="y"),
    ]
    d = x.astype(np.float64) @ weight.astype(np.float64) + bias.astype(np.float64)
    exact = oracle.activate("Gelu", d, ())
    for rows in (300, "rows"):
        model = harness.build_model(
            nodes, {"x": x}, {"Y": 1}, {"w": weight, "b": bias}, opset=20, shapes={"x": (rows, 16)}
        )
        got = harness.run(harness.create_session(model, "ep", claim="profitable"), {"x": x})["Y"]
        oracle.Expected(exact, exact - 1e-4, exact + 1e-4, onnx.TensorProto.FLOAT).check(got)


@st.composite
def widened(draw: st.DrawFn) -> Widened:
    """Every operand of any shape that broadcasts with the others."""
    dims = draw(st.lists(st.sampled_from([1, 2, 3, 5, 17, 64, 0]), min_size=1, max_size=4))
    if len(dims) > 2:
        dims = [min(dim, 5) for dim in dims[:-1]] + dims[-1:]
    middle = draw(st.sampled_from(MIDDLES))
    names = ["b", "r", "c"] if draw(st.booleans()) else ["b"]
    names = [name for name in names if draw(st.booleans())]
    if "r" not in names and "c" in names:
        names.remove("c")
    if middle == "PRelu":
        names.append("slope")
    source = Numbers(draw(st.integers(0, 2**32 - 1)))
    quantized = draw(st.booleans())
    shape = draw(broadcast_shapes(dims))
    x = source.codes(shape, np.int8) if quantized else source.normal(shape, F32)
    tensors = {"x": x}
    for name in names:
        tensors[name] = source.normal(draw(broadcast_shapes(dims)), F32)
    common = np.broadcast_shapes(*(array.shape for array in tensors.values()))
    if "Normalization" in middle and (not common or common[-1] in (0, 1)):
        middle = "Silu"
    constants = [name for name in names if draw(st.booleans())]
    free = [(name, i) for name, array in tensors.items() if name not in constants for i in range(array.ndim)]
    opened = draw(st.lists(st.sampled_from(free), unique=True)) if free else []
    return Widened(
        middle,
        tensors,
        frozenset(constants),
        quantized,
        quantizes=draw(st.booleans()),
        emits_sum=draw(st.booleans()),
        symbolic=frozenset(opened),
    )


@settings(max_examples=4 * EXAMPLES)
@given(case=widened(), claim=st.sampled_from(["profitable", "all", "all"]))
def test_any_operand_widens_x(case: Widened, claim: str) -> None:
    case.check(claim)
