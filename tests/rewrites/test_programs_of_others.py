"""Nodes of our domain whose programs no rule writes: rules extend them all the same, in front and behind."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable

import harness
import numpy as np
import onnx
import pytest
from rewrite_harness import DOMAIN, SpellingBuilder, optimize

from normfuse import meaning
from normfuse.meaning import Array
from normfuse.spec import labels_of, read_program

SHAPE = (2, 6, 8)
X = np.random.default_rng(1).normal(0, 1, SHAPE).astype(np.float32)
GATE = np.random.default_rng(2).uniform(0.5, 2, 8).astype(np.float32)


def gelu(x: Array) -> Array:
    return meaning.activate("Gelu", x, [], None)


def prelu(x: Array, slope: Array) -> Array:
    return np.where(x < 0, x * slope, x)


def normal(x: Array, *axes: int) -> Array:
    return (x - x.mean(axes, keepdims=True)) / np.sqrt(x.var(axes, keepdims=True) + 1e-5)


@dataclasses.dataclass(frozen=True)
class Foreign:
    """A program, as somebody may write it, and what it computes of X and its tensors."""

    operator: str
    steps: str
    shapes: tuple[tuple[int, ...], ...]
    meaning: Callable[..., Array]
    written: str
    """The program, with "; Mul" of one more operand behind it."""

    def tensors(self) -> dict[str, Array]:
        """Those that the program names: labels with "codes" are of int8."""
        random = np.random.default_rng(3)
        labels = labels_of(read_program(self.steps))
        return {
            label: random.integers(-9, 9, shape).astype(np.int8)
            if "codes" in label
            else random.uniform(0.5, 1.5, shape).astype(np.float32)
            for label, shape in zip(labels, self.shapes, strict=True)
        }


FOREIGN = [
    Foreign("FusedActivation", "Gelu; PRelu s", ((8,),), lambda x, s: prelu(gelu(x), s), "Gelu; PRelu operand_0"),
    Foreign(
        *("FusedActivation", "Gelu; Mul s align=channel", ((6,),)),
        lambda x, s: gelu(x) * s[:, None],
        "Gelu; Mul operand_0 align=channel",
    ),
    Foreign(
        *("FusedActivation", "Gelu; Add codes scale=t axis=-1", ((6, 8), (8,))),
        lambda x, s, t: gelu(x) + s * t,
        "Gelu; Add operand_0 scale=operand_0_scale axis=-1",
    ),
    Foreign(
        *("FusedActivation", "Mul codes scale=t; Relu", ((8,), ())),
        lambda x, s, t: np.maximum(x * s * t, 0),
        "Mul scale scale=scale_scale; Relu",
    ),
    Foreign(
        *("FusedActivation", "Elu alpha=0.5; Identity; Softplus", ()),
        lambda x: np.log1p(np.exp(np.where(x < 0, 0.5 * np.expm1(x), x))),
        "Elu alpha=0.5; Softplus",
    ),
    Foreign(
        *(
            "FusedNormalization",
            "Mul a; Add b; Mul c; Add d; Normalize axes=-1; Add e; Mul f; Mul h; Mul i; Mul j; Mul k",
        ),
        (SHAPE, (8,), (1,), SHAPE, (8,), (8,), (8,), (1,), (1,), (1,)),
        lambda x, a, b, c, d, e, f, h, i, j, k: (normal((x * a + b) * c + d, -1) + e) * f * h * i * j * k,
        "Mul operand_0; Add operand_1; Mul operand_2; Add residual; Normalize axes=-1 epsilon=1e-05; Add bias; "
        "Mul operand_3; Mul operand_4; Mul operand_5; Mul operand_6; Mul operand_7",
    ),
    Foreign(
        *("FusedNormalization", "Normalize axes=1,2; Relu; Mul codes zero_point=codes_z scale=t align=channel; Add b"),
        ((6,), (), (), (6, 8)),
        lambda x, s, z, t, b: np.maximum(normal(x, 1, 2), 0) * ((s - z) * t)[:, None] + b,
        "Normalize axes=1,2 epsilon=1e-05; Relu; "
        "Mul operand_0 scale=operand_0_scale zero_point=operand_0_zero_point align=channel; Add operand_1",
    ),
]


def model_of(foreign: Foreign) -> onnx.ModelProto:
    """The program, and a Mul behind it."""
    g = SpellingBuilder(21)
    parameters = [g.constant(tensor) for tensor in foreign.tensors().values()]
    node = g.add(foreign.operator, g.input("x", SHAPE), *parameters, domain=DOMAIN, steps=foreign.steps)
    g.output(g.add("Mul", node, g.constant(GATE)), SHAPE)
    model = g.model("foreign")
    # ONNX's shape inference does not know the operator.
    model.graph.value_info.append(onnx.helper.make_tensor_value_info(node, onnx.TensorProto.FLOAT, SHAPE))
    return model


@pytest.mark.parametrize("foreign", FOREIGN, ids=lambda each: each.steps)
def test_program_of_somebody_else_is_extended(foreign: Foreign) -> None:
    expected = foreign.meaning(X.astype(np.float64), *(t.astype(np.float64) for t in foreign.tensors().values())) * GATE
    model = model_of(foreign)
    for target, provider in (("portable", "cpu"), ("portable", "ep"), ("custom-op", "custom"), ("standard", "cpu")):
        optimized, result = optimize(model, target=target)
        (site,) = result.sites
        assert site.fused_into == foreign.operator
        if target != "standard":
            (node,) = optimized.graph.node
            steps = next(each.s for each in node.attribute if each.name == "steps").decode()
            last = max(map(int, re.findall(r"operand_(\d)", foreign.written)), default=-1) + 1
            assert steps == f"{foreign.written}; Mul operand_{last}"
        session = harness.create_session(optimized, provider)
        np.testing.assert_allclose(session.run(None, {"x": X})[0], expected, rtol=0, atol=2e-5, err_msg=target)


def test_rule_in_front_keeps_the_order_of_steps() -> None:
    """A gate in front of others becomes the first step, and the tensors keep to theirs."""
    g = SpellingBuilder(21)
    x, residual = g.input("x", SHAPE), g.input("r", SHAPE)
    steps = "Add r; Emit type=float16; Normalize axes=-1; Relu; Mul m; Add n; PRelu p"
    tensors = [g.weight(8, mean=float(index)) for index in range(1, 4)]
    added = [g.add("Mul", x, g.weight(1, 1, 8)), residual, *tensors]
    g.output(g.add("FusedNormalization", *added, domain=DOMAIN, steps=steps), SHAPE)
    optimized, _ = optimize(g.model("gated"))
    (node,) = optimized.graph.node
    written = next(each.s for each in node.attribute if each.name == "steps").decode()
    assert written == (
        "Mul operand_0; Add residual; Emit type=float16; Normalize axes=-1 epsilon=1e-05; Relu; Mul operand_1; "
        "Add operand_2; PRelu operand_3"
    )
    assert list(node.input)[2:] == ["r", *tensors]
