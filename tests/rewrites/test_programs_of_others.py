"""Nodes of our domain whose programs no rule writes: rules extend them all the same, in front and behind."""

from __future__ import annotations

import re

import harness
import numpy as np
import onnx
import pytest
from families import Family, fill
from rewrite_harness import DOMAIN, SpellingBuilder, optimize

from normfuse.meaning import Array, evaluate
from normfuse.spec import labels_of, read_program

SHAPE = (2, 6, 8)
FAMILIES = ("noise", "ramp", "outlier", "zeros behind")
GATE = np.random.default_rng(2).uniform(0.5, 2, 8).astype(np.float32)
#: A program as somebody may write it, the shapes of its tensors (labels with "codes" are of int8), and what is written.
FOREIGN: list[tuple[str, tuple[tuple[int, ...], ...], str]] = [
    ("Gelu; PRelu s", ((8,),), "Gelu; PRelu operand_0"),
    ("Gelu; Mul s align=channel", ((6,),), "Gelu; Mul operand_0 align=channel"),
    (
        "Gelu; Add codes scale=t axis=-1",
        ((6, 8), (8,)),
        "Gelu; Add operand_0 scale=operand_0_scale axis=-1",
    ),
    ("Mul codes scale=t; Relu", ((8,), ()), "Mul scale scale=scale_scale; Relu"),
    ("Elu alpha=0.5; Identity; Softplus", (), "Elu alpha=0.5; Softplus"),
    (
        "Mul a; Add b; Mul c; Add d; Normalize axes=-1; Add e; Mul f; Mul h; Mul i; Mul j; Mul k",
        (SHAPE, (8,), (1,), SHAPE, (8,), (8,), (8,), (1,), (1,), (1,)),
        "Mul operand_0; Add operand_1; Mul operand_2; Add residual; Normalize axes=-1 epsilon=1e-05; Add bias; "
        "Mul operand_3; Mul operand_4; Mul operand_5; Mul operand_6; Mul operand_7",
    ),
    (
        "Normalize axes=1,2; Relu; Mul codes zero_point=codes_z scale=t align=channel; Add b",
        ((6,), (), (), (6, 8)),
        "Normalize axes=1,2 epsilon=1e-05; Relu; "
        "Mul operand_0 scale=operand_0_scale zero_point=operand_0_zero_point align=channel; Add operand_1",
    ),
]


def tensors_of(steps: str, shapes: tuple[tuple[int, ...], ...]) -> dict[str, Array]:
    random = np.random.default_rng(3)
    return {
        label: random.integers(-9, 9, shape).astype(np.int8)
        if "codes" in label
        else random.uniform(0.5, 1.5, shape).astype(np.float32)
        for label, shape in zip(labels_of(read_program(steps)), shapes, strict=True)
    }


@pytest.mark.parametrize(("steps", "shapes", "written"), FOREIGN, ids=lambda each: each if ";" in each else "")
def test_program_of_somebody_else_is_extended(steps: str, shapes: tuple[tuple[int, ...], ...], written: str) -> None:
    """By a Mul of one more operand behind it."""
    tensors, operator = tensors_of(steps, shapes), "FusedNormalization" if "Normalize" in steps else "FusedActivation"
    g = SpellingBuilder(21)
    node = g.add(operator, g.input("x", SHAPE), *map(g.constant, tensors.values()), domain=DOMAIN, steps=steps)
    g.output(g.add("Mul", node, g.constant(GATE)), SHAPE)
    model = g.model("foreign")
    # ONNX's shape inference does not know the operator.
    model.graph.value_info.append(onnx.helper.make_tensor_value_info(node, onnx.TensorProto.FLOAT, SHAPE))
    for target, provider in (("portable", "cpu"), ("portable", "ep"), ("custom-op", "custom"), ("standard", "cpu")):
        optimized, result = optimize(model, target=target)
        (site,) = result.sites
        assert site.fused_into == operator
        if target != "standard":
            (fused,) = optimized.graph.node
            last = max(map(int, re.findall(r"operand_(\d)", written)), default=-1) + 1
            assert harness.read_node(fused).steps == f"{written}; Mul operand_{last}"
        session = harness.create_session(optimized, provider)
        for family in FAMILIES:
            x = fill(Family(family), np.random.default_rng(1), SHAPE, np.float32)
            expected = evaluate(steps, {"X": x, **tensors})["Y"].exact * GATE
            bound = 2e-6 * max(10.0, float(np.abs(expected).max()))
            np.testing.assert_allclose(session.run(None, {"x": x})[0], expected, rtol=0, atol=bound, err_msg=target)


def test_rule_in_front_keeps_the_order_of_steps() -> None:
    """A residual in front of others becomes the first step, and the tensors keep to theirs."""
    g = SpellingBuilder(21)
    x, residual = g.input("x", SHAPE), g.input("r", SHAPE)
    steps = "Normalize axes=-1; Relu; Mul m; Add n; PRelu p"
    tensors = [g.weight(8, mean=float(index)) for index in range(1, 4)]
    added = [g.add("Add", x, residual), *tensors]
    g.output(g.add("FusedNormalization", *added, domain=DOMAIN, steps=steps), SHAPE)
    optimized, _ = optimize(g.model("sum"))
    (node,) = optimized.graph.node
    written = next(each.s for each in node.attribute if each.name == "steps").decode()
    assert written == (
        "Add residual; Normalize axes=-1 epsilon=1e-05; Relu; Mul operand_0; Add operand_1; PRelu operand_2"
    )
    assert list(node.input) == ["x", "r", *tensors]
