"""Formulas in all their algebraically equal forms are found, and what differs in one place stays what it is."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from typing import Any

import harness
import numpy as np
import onnx
import pytest
from algebra import MOST_NODES, REDUCTIONS, Draw, Emitter, Speller, Tree, changed, operators, places, value
from hypothesis import settings
from rewrite_harness import SpellingBuilder, fused_nodes, only_fused, optimize, run

SHAPE = (3, 5, 8)
FACTOR = math.sqrt(2 / math.pi)
CUBIC = ("+", "x", ("*", 0.044715, ("cube", "x")))
TWICE_CUBIC = ("*", "x", ("+", 2 * FACTOR, ("*", 2 * FACTOR * 0.044715, ("square", "x"))))
MISH = ("*", ("Exp", "x"), ("+", ("Exp", "x"), 2.0))

#: Formula -> words of the steps that it becomes.
ACTIVATIONS: dict[str, tuple[Tree, str]] = {
    "gelu": (("*", 0.5, "x", ("+", 1.0, ("erf", ("*", "x", math.sqrt(0.5))))), "Gelu"),
    "tanh gelu": (("*", 0.5, "x", ("+", 1.0, ("tanh", ("*", FACTOR, CUBIC)))), "GeluTanh"),
    "sigmoid gelu": (("*", "x", ("sigmoid", ("*", 2 * FACTOR, CUBIC))), "GeluTanh"),
    "factored gelu": (("*", "x", ("sigmoid", TWICE_CUBIC)), "GeluTanh"),
    "silu": (("*", "x", ("sigmoid", "x")), "Swish"),
    "quick gelu": (("*", "x", ("sigmoid", ("*", 1.702, "x"))), "Swish"),
    "mish": (("*", "x", ("tanh", ("softplus", "x"))), "Mish"),
    "mish by exponential": (("*", "x", ("*", MISH, ("inverse", ("+", MISH, 2.0)))), "Mish"),
    "hard swish": (("*", "x", 1 / 6, ("held", ("+", "x", 3.0), 6.0)), "HardSwish"),
    "hard swish of 1": (("*", "x", ("held", ("+", ("*", 1 / 6, "x"), 0.5), 1.0)), "HardSwish"),
    "leaky relu": (("+", ("Relu", "x"), ("*", -0.1, ("Relu", ("neg", "x")))), "LeakyRelu"),
}
LAYER, RMS = "", "use_mean=0"
INVERSE = ("inverse root", ("+", ("variance", "x"), 1e-5))
FOLDED = ("+", ("*", "x", INVERSE, "scale"), "bias", ("neg", ("*", ("mean", "x"), INVERSE, "scale")))
SHIFTED_SQUARE = ("+", ("mean square", "x"), 1e-5)
DEVIATION_OF_X = ("root", ("mean square", ("deviation", "x")))
NORMALIZATIONS: dict[str, tuple[Tree, str]] = {
    "layer": (("*", ("deviation", "x"), INVERSE), LAYER),
    "layer with scale": (("*", ("deviation", "x"), INVERSE, "scale"), LAYER),
    "layer with affine": (("+", ("*", ("deviation", "x"), INVERSE, "scale"), "bias"), LAYER),
    "layer folded": (FOLDED, LAYER),
    "layer divided": (("*", ("deviation", "x"), ("inverse", ("root", ("+", ("variance", "x"), 1e-5)))), LAYER),
    "layer without epsilon": (("*", ("deviation", "x"), ("inverse", DEVIATION_OF_X)), "epsilon=0"),
    "epsilon beside": (("*", ("deviation", "x"), ("inverse", ("+", DEVIATION_OF_X, 1e-5))), "epsilon_on=stddev"),
    "rms": (("*", "x", ("inverse root", SHIFTED_SQUARE)), RMS),
    "rms with scale": (("*", "x", ("inverse root", SHIFTED_SQUARE), "scale"), RMS),
    "rms divided": (("*", "x", ("inverse", ("root", SHIFTED_SQUARE))), RMS),
    "rms without epsilon": (("*", "x", ("inverse root", ("mean square", "x"))), RMS + " epsilon=0"),
    "rms, epsilon beside": (
        *(("*", "x", ("inverse", ("+", ("root", ("mean square", "x")), 1e-5))), RMS + " epsilon_on=stddev"),
    ),
}
FORMULAS = ACTIVATIONS | NORMALIZATIONS
#: Forms of each formula that are tried.
FORMS = range(settings().max_examples // 4)
#: What takes an operator's place.
MISTAKEN = {"Max": "Min", "Min": "Max", "Relu": "Abs", "Sigmoid": "Tanh", "Tanh": "Sigmoid", "Exp": "Abs"}


def _draw(seed: int) -> tuple[random.Random, Draw]:
    """Choices that are plain in most places, in some or in none."""
    choices = random.Random(seed)
    wild = choices.choice((0.15, 0.4, 0.9))
    return choices, lambda count: choices.randrange(count) if choices.random() < wild else 0


def _tensors(axis: int) -> dict[str, Any]:
    """Rows with other means and deviations each; z is what x is mistaken for."""
    rng = np.random.default_rng(3)
    rows = np.linspace(0.2, 3, SHAPE[0] * SHAPE[1]).reshape(*SHAPE[:2], 1)
    x = np.moveaxis((rng.standard_normal(SHAPE) + 0.5) * rows, -1, axis).astype(np.float32)
    scale, bias = (rng.uniform(0.5, 1.5, 8).astype(np.float32) for _ in range(2))
    back = [8] + [1] * (-axis - 1)
    z = np.flip(x, axis).copy()
    return {"x": x, "z": z, "scale": scale.reshape(back), "bias": bias.reshape(back)}


def _model(tree: Tree, draw: Draw, tensors: dict[str, Any], axis: int, dims: tuple[Any, ...]) -> onnx.ModelProto:
    g = SpellingBuilder(18 if draw(2) else 13)
    used = {part for _, part in places(tree) if isinstance(part, str)}
    for name in ("x", *sorted(used & {"z"})):
        g.input(name, dims)
    for name in ("scale", "bias"):
        g.constant(tensors[name], name)
    g.output(Emitter(g, draw, dims, axis).emit(tree), dims)
    return g.model("m")


def _form(name: str, seed: int) -> tuple[Tree, Draw, int, tuple[Any, ...]]:
    """A spelling of a formula, the axis that it reduces, and x's dimensions."""
    choices, draw = _draw(seed)
    while True:
        tree = Speller(draw, SHAPE[-1]).spell(FORMULAS[name][0])
        if operators(tree) <= MOST_NODES:
            break
    axis = choices.choice((-1, -1, -2))
    shape = _tensors(axis)["x"].shape
    named = tuple(size if size == 8 else name for size, name in zip(shape, ("batch", "row", "column"), strict=True))
    return tree, draw, axis, choices.choice((shape, named))


def _feeds(model: onnx.ModelProto, tensors: dict[str, Any]) -> dict[str, Any]:
    return {given.name: tensors[given.name] for given in model.graph.input}


def _result(model: onnx.ModelProto, tensors: dict[str, Any]) -> Any:
    return next(iter(run(model, _feeds(model, tensors), optimized=False).values()))


@pytest.mark.parametrize("name", FORMULAS)
def test_every_form_is_found(name: str) -> None:
    for seed in FORMS:
        tree, draw, axis, dims = _form(name, seed)
        tensors = _tensors(axis)
        optimized, result = optimize(_model(tree, draw, tensors, axis, dims))
        assert len(fused_nodes(optimized)) == 1, (seed, tree, result.sites)
        words = harness.read_node(only_fused(optimized)).steps.replace(";", "").split()
        assert set(FORMULAS[name][1].split()) <= set(words), (seed, tree)
        got, exact = _result(optimized, tensors), value(tree, tensors, axis)
        np.testing.assert_allclose(got, exact, rtol=1e-4, atol=3e-5, err_msg=f"{seed}: {tree}")


def _near_misses(tree: Tree) -> Iterator[Tree]:
    """Every tree with one number, tensor, operator or axis changed."""
    for path, part in places(tree):
        if isinstance(part, float):
            yield changed(tree, path, part * 1.01)
        elif part == "x":
            yield changed(tree, path, "z")
        elif isinstance(part, tuple) and part[0] in REDUCTIONS:
            yield changed(tree, path, (f"{part[0]} axis 0", *part[1:]))
        elif isinstance(part, tuple) and part[0] in MISTAKEN:
            yield changed(tree, path, (MISTAKEN[part[0]], *part[1:]))


@pytest.mark.parametrize("name", FORMULAS)
def test_what_is_changed_in_one_place_computes_what_it_did(name: str) -> None:
    compared = 0
    for seed in FORMS:
        tree, draw, axis, dims = _form(name, seed)
        near_misses = list(_near_misses(tree))
        near_miss = near_misses[seed * 7 % len(near_misses)]
        tensors = _tensors(axis)
        model = _model(near_miss, draw, tensors, axis, dims)
        optimized, _ = optimize(model)
        exact = value(near_miss, tensors, axis)
        # A difference of large numbers may have lost its digits, and a root of a negative number has none.
        kept = np.abs(_result(model, tensors) - exact) < 1e-5 * np.maximum(1, np.abs(exact))
        got = np.broadcast_to(_result(optimized, tensors), kept.shape)
        np.testing.assert_allclose(got[kept], exact[kept], rtol=1e-4, atol=3e-5, err_msg=f"{seed}: {near_miss}")
        compared += kept.any()
    assert compared > len(FORMS) / 2
