"""Each case of tests/corpus, in several forms, by every target: what is found, what is left, and the numbers."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import harness
import onnx
import pytest
from corpus_reader import Case, cases, feeds_of
from families import Family
from oracle import Array, evaluate
from rewrite_harness import (
    CONSTANT_FORMS,
    DOMAIN,
    SpellingBuilder,
    close,
    configuration,
    fused_nodes,
    inputs_of,
    optimize,
    round_trip,
    session_of,
)

from normfuse.graph_rewrites import RewriteResult

#: Of rows that a normalisation in float32, by any formula, gets right.
FAMILIES = ("noise", "ramp", "ramp down", "outlier", "sorted", "pink", "smooth", "zeros in front", "zeros behind")
FORMS, MORE_FORMS = 2, 4


@dataclass(frozen=True)
class Form:
    """A case as one exporter might write it."""

    case: Case
    number: int

    def build(self) -> tuple[onnx.ModelProto, str]:
        """The model, and what is expected of it."""
        draw, case = random.Random(f"{self.case.name} {self.number}"), self.case
        options = case.options
        half = "half" in options and "float" not in options and self.number % 2 == 1
        dtype = options.get("dtype", "float16" if half else "float32")
        opset, constants = draw.choice(case.opsets), draw.choice(CONSTANT_FORMS)
        constants = "vector" if opset < 9 and constants == "filled" else constants  # no ConstantOfShape
        g = SpellingBuilder(opset, dtype, constants=constants, swap=draw.random() < 0.5)
        dynamic = draw.random() < 0.5 or "dynamic" in options
        front = "front" in options and case.expected.startswith("[") and draw.random() < 0.3
        expected = case.expected.replace("[", "[Add bias; ", 1) if front else case.expected
        return case.build(g, dynamic, front), expected


def _forms() -> Iterator[Any]:
    for case in cases():
        for number in range(MORE_FORMS):
            marks = () if number < FORMS else pytest.mark.slow
            yield pytest.param(Form(case, number), id=f"{case.name}-{number}", marks=marks)


@pytest.mark.parametrize("form", list(_forms()))
def test_case(form: Form) -> None:
    model, expected = form.build()
    operators, _, left = f" {expected} ".partition(" left ")
    operators, says, words = operators.partition(" says ")
    portable, result = optimize(model)
    if operators.strip():
        assert _steps(portable) == operators.strip(), result.sites
    else:
        assert portable == round_trip(model), result.sites
    if left.strip():
        _check_left(result, *left.strip().split(" ", 2))
    if says:
        messages = [site.message for site in result.sites if site.fused_into]
        assert any(words.strip(' "') in message if words.strip(' "') else not message for message in messages), messages
    onnx.checker.check_model(portable, full_check=True)
    again, _ = optimize(portable)
    assert again.SerializeToString(deterministic=True) == portable.SerializeToString(deterministic=True)
    custom, _ = optimize(model, target="custom-op")
    assert _steps(custom) == _steps(portable)
    standard, _ = optimize(model, target="standard")
    assert not fused_nodes(standard)
    again, _ = optimize(optimize(standard, target="standard")[0], target="standard")
    assert not fused_nodes(again)
    _check_numbers(form, model, portable, custom)


def _steps(model: onnx.ModelProto) -> str:
    """The operators of a graph that its inputs reach; of ours, the steps."""
    constant, kept = {"", *(tensor.name for tensor in model.graph.initializer)}, []
    for node in model.graph.node:
        if set(node.input) <= constant:
            constant |= set(node.output)
        elif node.domain == DOMAIN:
            kept.append(f"[{_attribute(node, 'steps')}]")
        elif node.op_type not in ("Identity", "Shape"):
            kept.append(node.op_type)
    return ", ".join(kept)


def _attribute(node: onnx.NodeProto, name: str) -> str:
    (value,) = (onnx.helper.get_attribute_value(each) for each in node.attribute if each.name == name)
    return str(value, "utf-8")


def _check_left(result: RewriteResult, reason: str, kind: str = "", words: str = "") -> None:
    if kind.startswith('"'):
        kind, words = "", f"{kind} {words}".strip()
    sites = [site for site in result.sites if site.reason == reason and site.kind.startswith(kind)]
    assert sites, result.sites
    assert any(words.strip('"') in site.message for site in sites), sites
    assert sites[0].advice


def _check_numbers(form: Form, model: onnx.ModelProto, portable: onnx.ModelProto, custom: onnx.ModelProto) -> None:
    """Against the float64 meaning of the steps where they are the whole model, and against the original's numbers."""
    nodes, kernelless = fused_nodes(portable), "kernelless" in form.case.options
    if "unrun" in form.case.options or (kernelless and not nodes):
        return
    sessions = {
        "portable model": session_of(portable),
        "provider": harness.create_session(custom if nodes else model),
        **({} if kernelless else {"original model": session_of(model, optimized=False)}),
    }
    for family in ("noise", *random.Random(form.number).sample(FAMILIES[1:], 2)):
        feeds = feeds_of(model, form.case, Family(family))
        results = {way: harness.run(session, feeds) for way, session in sessions.items()}
        exact = results.get("original model", {})
        if len(nodes) == 1 and [value.name for value in portable.graph.output] == [nodes[0].output[0]]:
            with contextlib.suppress(KeyError):  # an input that is computed
                exact = {portable.graph.output[0].name: _meaning(nodes[0], portable, feeds)}
        for way, got in results.items():
            for name, value in exact.items():
                close(got[name], value, f"{way}, {family}, {name}")


def _meaning(node: onnx.NodeProto, model: onnx.ModelProto, feeds: dict[str, Array]) -> Array:
    """The exact value of a node."""
    operator = node.op_type.partition("_")[0]
    return evaluate(operator, inputs_of(node, model, feeds), configuration(node))["Y"].array()
