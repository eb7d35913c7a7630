"""Scales, biases and gates beside a fused node join it, in every order; what changes its shape or type does not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rewrite_harness import SpellingBuilder, check_fused, configuration, fused_nodes, optimize

from normfuse.spec import MOST_STEP_TENSORS

SHAPE = (2, 5, 8)
Build = Callable[[SpellingBuilder, str], str]
RNG = np.random.default_rng(5)


def _norm(g: SpellingBuilder, x: str) -> str:
    return g.add("LayerNormalization", x, g.weight(8, mean=1.0), g.weight(8))


def _silu(g: SpellingBuilder, x: str) -> str:
    return g.add("Mul", x, g.add("Sigmoid", x))


def _feeds(g: SpellingBuilder) -> dict[str, Any]:
    shapes = {each.name: [d.dim_value for d in each.type.tensor_type.shape.dim] for each in g.model("m").graph.input}
    return {name: RNG.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def _check(build: Build, operator: str, expected: dict[str, Any], swap: bool = False) -> None:
    g = SpellingBuilder(20, swap=swap)
    g.output(build(g, g.input("x", SHAPE)), SHAPE)
    check_fused(g.model("m"), _feeds(g), operator, expected)


# Behind


def modulation(g: SpellingBuilder, x: str) -> str:
    """AdaLN behind an affine of its own."""
    return g.add("Add", g.add("Mul", _norm(g, x), g.input("scale", (2, 1, 8))), g.input("shift", (2, 1, 8)))


def affine_around_an_activation(g: SpellingBuilder, x: str) -> str:
    """PP-OCRv5's."""
    scaled = g.add("Add", g.add("Mul", x, 1.5), -0.25)
    return g.add("Add", g.add("Mul", _silu(g, scaled), 1.25), 0.5)


def channels_behind_an_activation(g: SpellingBuilder, x: str) -> str:
    return g.add("Mul", _silu(g, x), g.weight(5, 1))


def gated_linear_unit(g: SpellingBuilder, x: str) -> str:
    return g.add("Mul", _silu(g, x), g.input("other", SHAPE))


def constants_taken_away(g: SpellingBuilder, x: str) -> str:
    return g.add("Div", g.add("Sub", _silu(g, x), 0.5), 3.0)


@pytest.mark.parametrize("swap", [False, True])
@pytest.mark.parametrize(
    ("build", "operator", "steps"),
    [
        (modulation, "FusedNormalization", "Mul Add"),
        (affine_around_an_activation, "FusedActivation", "Mul Add"),
        (channels_behind_an_activation, "FusedActivation", "Mul"),
        (gated_linear_unit, "FusedActivation", "Mul"),
        (constants_taken_away, "FusedActivation", "Add Mul"),
    ],
)
def test_steps_behind(build: Build, operator: str, steps: str, swap: bool) -> None:
    of = {"axes": [-1]} if operator == "FusedNormalization" else {"activation": "Swish", "activation_params": [1.0]}
    _check(build, operator, {**of, "steps_behind": steps}, swap)


def test_activation_behind_a_modulation() -> None:
    """AdaGN -> SiLU, as in the ResBlocks of diffusion models."""

    def build(g: SpellingBuilder, x: str) -> str:
        return g.add("HardSigmoid", modulation(g, x), alpha=0.25)

    expected = {"axes": [-1], "steps_behind": "Mul Add HardSigmoid", "step_params": [0.25, 0.5]}
    _check(build, "FusedNormalization", expected)
    _check(
        lambda g, x: _silu(g, modulation(g, x)),
        "FusedNormalization",
        {"axes": [-1], "steps_behind": "Mul Add Swish", "step_params": [1.0]},
    )


def test_step_behind_a_dequantised_activation() -> None:
    """Without the step it would be a FusedDequantizeLinear, which has no steps."""
    g = SpellingBuilder(20)
    x = g.input("x", SHAPE, np.int8)
    d = g.add("DequantizeLinear", x, g.constant(np.array(0.05, np.float32)))
    g.output(g.add("Mul", g.add("Relu", d), 1.25), SHAPE)
    feeds = {"x": RNG.integers(-128, 127, SHAPE).astype(np.int8)}
    check_fused(g.model("m"), feeds, "FusedActivation", {"activation": "Relu", "steps_behind": "Mul"})


@given(words=st.lists(st.sampled_from(["Mul", "Add", "Sub", "Div"]), min_size=1, max_size=6), data=st.data())
def test_any_affine_steps(words: Sequence[str], data: st.DataObject) -> None:
    """Behind a normalisation that has its own scale and bias, on operands of any shape that fits."""
    shapes: list[tuple[int, ...]] = [(), (1,), (8,), (5, 1), (1, 8), (2, 1, 1), (2, 1, 8)]
    drawn = [data.draw(st.sampled_from(shapes)) for _ in words]
    at_run_time = [data.draw(st.booleans()) for _ in words]

    def build(g: SpellingBuilder, x: str) -> str:
        y = _norm(g, x)
        for i, (word, shape, given_late) in enumerate(zip(words, drawn, at_run_time, strict=True)):
            if given_late and word in ("Mul", "Add"):
                operand = g.input(f"t{i}", shape)
            else:
                operand = g.constant((RNG.random(shape) + 0.5).astype(np.float32))
            y = g.add(word, y, operand)
        return y

    steps = " ".join({"Sub": "Add", "Div": "Mul"}.get(word, word) for word in words)
    _check(build, "FusedNormalization", {"axes": [-1], "steps_behind": steps}, data.draw(st.booleans()))


def snake(alpha: Any, beta: Any) -> Build:
    def build(g: SpellingBuilder, x: str) -> str:
        square = g.add("Pow", g.add("Sin", g.add("Mul", x, g.constant(alpha))), 2.0)
        return g.add("Add", x, g.add("Mul", square, g.constant(beta)))

    return build


ALPHA = RNG.uniform(0.5, 2, (5, 1)).astype(np.float32)


@pytest.mark.parametrize("swap", [False, True])
@pytest.mark.parametrize("beta", [1 / ALPHA, 1 / (ALPHA[::-1] + np.float32(1e-9)), np.float32(0.5)])
def test_snake(beta: Any, swap: bool) -> None:
    """x + sin(alpha x)^2 / beta, of each channel: X is read once more, as the operand of the last step."""
    expected = {"activation": "SinSquared", "steps_behind": "Mul Add"}
    _check(snake(ALPHA, np.asarray(beta)), "FusedActivation", expected, swap)
    g = SpellingBuilder(20, swap=swap)
    g.output(snake(ALPHA, np.asarray(beta))(g, g.input("x", SHAPE)), SHAPE)
    (node,) = fused_nodes(optimize(g.model("m"))[0])
    assert [name for name in node.input if name].count("x") == 2


def test_snake_divided() -> None:
    def build(g: SpellingBuilder, x: str) -> str:
        sine = g.add("Sin", g.add("Mul", g.constant(ALPHA), x))
        return g.add("Add", g.add("Div", g.add("Mul", sine, sine), g.constant(ALPHA)), x)

    _check(build, "FusedActivation", {"activation": "SinSquared", "steps_behind": "Mul Add"})


# Before


@pytest.mark.parametrize("swap", [False, True])
@pytest.mark.parametrize("gate", [(2, 1, 8), (8,), (2, 1, 1), "constant", SHAPE])
@pytest.mark.parametrize("on_first", [False, True])
def test_gated_residual(gate: Any, on_first: bool, swap: bool) -> None:
    def build(g: SpellingBuilder, x: str) -> str:
        other = g.weight(8) if gate == "constant" else g.input("gate", gate)
        gated, residual = g.add("Mul", x, other), g.input("residual", SHAPE)
        return _norm(g, g.add("Add", *((gated, residual) if on_first else (residual, gated))))

    _check(build, "FusedNormalization", {"axes": [-1], "steps_before": "Mul"}, swap)


# Left alone


def _optimized(build: Build) -> onnx.ModelProto:
    g = SpellingBuilder(20)
    g.output(g.add("Flatten", build(g, g.input("x", SHAPE)), axis=0), ["rows", "elements"])
    return optimize(g.model("m"))[0]


def _operators(build: Build) -> list[str]:
    model = _optimized(build)
    return [node.op_type for node in model.graph.node]


NEAR_MISSES: dict[str, Build] = {
    "an operand that widens": lambda g, x: g.add("Mul", _silu(g, x), g.input("wide", (3, 2, 5, 8))),
    "an operand that widens a dimension": lambda g, x: g.add(
        "Mul", _silu(g, g.add("Slice", x, [0], [1], [1])), g.constant(np.ones((5, 1), np.float32))
    ),
    "the next residual connection": lambda g, x: g.add("Add", _norm(g, x), g.input("other", SHAPE)),
    "a snake of another tensor": lambda g, x: g.add("Add", g.input("other", SHAPE), g.add("Pow", g.add("Sin", x), 2.0)),
    "a sine times another one": lambda g, x: g.add(
        "Add", x, g.add("Mul", g.add("Sin", x), g.add("Sin", g.add("Mul", x, 2.0)))
    ),
    "a difference the other way round": lambda g, x: g.add("Sub", 1.0, _silu(g, x)),
    "a quotient the other way round": lambda g, x: g.add("Div", 1.0, _silu(g, x)),
    "a division by 0": lambda g, x: g.add("Div", _silu(g, x), 0.0),
    "a division by what has a subnormal inverse": lambda g, x: g.add("Div", _silu(g, x), 3e38),
    "a division by what is computed": lambda g, x: g.add("Div", _silu(g, x), g.input("t", (8,))),
    "a factor that MatMul takes": lambda g, x: g.add("MatMul", g.add("Mul", _silu(g, x), 0.125), g.weight(8, 8)),
}


@pytest.mark.parametrize("case", NEAR_MISSES)
def test_near_misses(case: str) -> None:
    assert not any("steps_behind" in configuration(node) for node in fused_nodes(_optimized(NEAR_MISSES[case])))


PARTS = pytest.mark.parametrize("kind", ["Erf", "Exp", "Sin"])


@PARTS
def test_a_part_of_formulas_ends_a_normalisation_alone(kind: str) -> None:
    _check(lambda g, x: g.add(kind, _norm(g, x)), "FusedNormalization", {"axes": [-1], "activation": kind})
    before_a_product = _optimized(lambda g, x: g.add("MatMul", g.add(kind, _norm(g, x)), g.weight(8, 8)))
    assert [configuration(node)["activation"] for node in fused_nodes(before_a_product)] == [kind]


def _quantized(g: SpellingBuilder, x: str) -> str:
    scale, zero_point = np.float32(0.05), np.int8(3)
    return g.add("DequantizeLinear", g.add("QuantizeLinear", x, scale, zero_point), scale, zero_point)


PARTS_OF_FORMULAS: dict[str, Callable[[SpellingBuilder, str, str], str]] = {
    "a GELU of another root": lambda g, x, kind: g.add("Mul", g.add("Add", g.add(kind, _norm(g, x)), 1.0), 0.5),
    "a quantised one": lambda g, x, kind: g.add("Add", _quantized(g, g.add(kind, _norm(g, x))), 1.0),
    "between quantisations": lambda g, x, kind: g.add("Add", _quantized(g, g.add(kind, _quantized(g, x))), 1.0),
    "by itself": lambda g, x, kind: g.add("Mul", g.add(kind, x), g.weight(8)),
}


@PARTS
@pytest.mark.parametrize("case", PARTS_OF_FORMULAS)
def test_a_part_of_a_formula_stays_with_it(kind: str, case: str) -> None:
    model = _optimized(lambda g, x: PARTS_OF_FORMULAS[case](g, x, kind))
    assert kind in [node.op_type for node in model.graph.node]
    assert not any(configuration(node).get("activation") == kind for node in fused_nodes(model))


def test_no_more_operands_than_inputs() -> None:
    def build(g: SpellingBuilder, x: str) -> str:
        y = _silu(g, x)
        for _ in range(MOST_STEP_TENSORS + 2):
            y = g.add("Mul", y, g.weight(8))
        return y

    assert _operators(build) == ["FusedActivation_Activation", "Mul", "Mul", "Flatten"]


def test_half_written_activation_is_no_gate() -> None:
    """The last product of a formula that is no GELU stays beside the normalisation behind it."""

    def build(g: SpellingBuilder, x: str) -> str:
        almost = g.add("Add", g.add("Erf", g.add("Div", x, 1.5)), 1.0)
        return _norm(g, g.add("Mul", g.add("Mul", x, almost), 0.5))

    assert _operators(build)[-3:] == ["Mul", "FusedNormalization_LayerNormalization", "Flatten"]
