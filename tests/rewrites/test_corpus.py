"""Each case of tests/corpus, in several forms, by every target: what is found, what is left, and the numbers."""

from __future__ import annotations

import ast
import contextlib
import inspect
import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import harness
import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from corpus_reader import Case, cases, feeds_of, read
from families import Family
from hypothesis import given
from hypothesis import strategies as st
from rewrite_harness import (
    CONSTANT_FORMS,
    DOMAIN,
    SpellingBuilder,
    assert_no_constant_is_unread,
    close,
    fused_nodes,
    meaning_of,
    optimize,
    repeat,
    round_trip,
    session_of,
)

import normfuse
from normfuse import graph_rewrites
from normfuse.graph_rewrites import RewriteResult
from normfuse.graph_rewrites.engine.passes import Context, Pass
from normfuse.optimization.float_network import unrounded
from normfuse.sessions.layouts import IN_BLOCKS
from normfuse.sessions.session_model import PAIRS
from normfuse.spec import REASONS


class Changed(NamedTuple):
    """A model that was changed, one that computes the same, and why pairs stay."""

    model: onnx.ModelProto
    reference: onnx.ModelProto
    reasons: Sequence[str] = ()


Way = Callable[[onnx.ModelProto], Changed]

#: Of rows that a normalisation in float32, by any formula, gets right.
FAMILIES = ("noise", "ramp", "ramp down", "outlier", "sorted", "pink", "smooth", "zeros in front", "zeros behind")
FORMS = 4
#: Of a constant.
STEP_OF = {"Sub": "Add", "Div": "Mul"}
#: What may stand between any two nodes of a chain: it is found as without them.
REPEATERS = ("Identity", "Identity", "Dropout", "Cast")


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
        model = case.build(g, dynamic, front)
        if re.fullmatch(r"\[[^\]]*\]", expected) and "plain" not in options and draw.random() < 0.25:
            repeat(model, draw.choice(REPEATERS), draw.choice((1, 2)))
        return model, expected


CASES = list(cases())


def _forms(*, in_other_ways: bool) -> Iterator[Any]:
    """Every case in one form, and in the others in the slow part."""
    for place, case in enumerate(CASES):
        if ("as" in case.options) == in_other_ways:
            forms = 1 if in_other_ways else int(case.options.get("forms", FORMS))
            for number in range(forms):
                marks = () if number == place % min(forms, 2) else pytest.mark.slow
                yield pytest.param(Form(case, number), id=f"{case.name}-{number}", marks=marks)


@pytest.mark.parametrize("form", list(_forms(in_other_ways=False)))
def test_case(form: Form, tmp_path: Path) -> None:
    _check_case(form, tmp_path)


@given(words=st.lists(st.sampled_from(["Mul", "Add", "Sub", "Div"]), min_size=1, max_size=6), data=st.data())
def test_any_affine_steps(words: Sequence[str], data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Behind a normalisation that has its own scale and bias, on operands of any shape that fits."""
    text, steps = "LayerNormalization(x, scale[8], bias[8])", "Normalize axes=-1 epsilon=1e-05; Mul scale; Add bias"
    for i, word in enumerate(words):
        shape = data.draw(st.sampled_from([(), (1,), (8,), (5, 1), (1, 8), (2, 1, 1), (2, 1, 8)]))
        given_late = word in ("Mul", "Add") and data.draw(st.booleans())
        operand = f"t{i}[{str(shape).strip('(,)') or ()}]" if given_late else f"float32(integers(1, 9, {list(shape)}))"
        text, steps = f"{word}({text}, {operand})", f"{steps}; {STEP_OF.get(word, word)} operand_{i}"
    (case,) = read(f"affine (x=2,5,8 opset=20): {text} -> [{steps}]")
    _check_case(Form(case, data.draw(st.integers(0, 99))), tmp_path_factory.getbasetemp())


def _check_case(form: Form, folder: Path) -> None:
    model, expected = form.build()
    expected, hosted = _and_hosted(expected)
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
    assert again.SerializeToString(deterministic=True) == round_trip(portable).SerializeToString(deterministic=True)
    custom, _ = optimize(model, target="custom-op")
    assert "no_standard_form" in left or _steps(custom) == _steps(portable)
    standard, _ = optimize(model, target="standard")
    again, _ = optimize(optimize(standard, target="standard")[0], target="standard")
    assert fused_nodes(model) or not (fused_nodes(standard) or fused_nodes(again))
    assert not hosted or _hosted(portable, folder) == hosted.strip()
    _check_numbers(form, model, portable, custom, standard)


def _of_options(**options: Any) -> Way:
    def way(model: onnx.ModelProto) -> Changed:
        changed, result = optimize(model, **options)
        removed = result.quantization
        if not options.get("remove_quantization"):
            return Changed(changed, model)
        if removed.kept:
            return Changed(changed, model, [pair.reason for pair in removed.kept])
        return Changed(changed, ir.to_proto(unrounded(ir.from_proto(model), (), removed.unclipped)))

    return way


def _of_pass(each: Pass) -> Way:
    def way(model: onnx.ModelProto) -> Changed:
        changed = ir.from_proto(model)
        if Context(changed).run(each):
            assert_no_constant_is_unread(ir.to_proto(changed))
        return Changed(ir.to_proto(changed), model)

    return way


#: What else is made of models.
WAYS: dict[str, Way] = {
    "folded": _of_options(target="standard", fold_weights="session"),
    "session": _of_options(fold_weights="session"),
    "file": _of_options(fold_weights="file"),
    "unrepeated": _of_options(fold_weights="session", drop_redundant_pairs=True),
    "unquantized": _of_options(target="standard", fold_weights="file", remove_quantization=True),
    "shapes": _of_options(shapes_before_dequantization=True),
    "requantizing": _of_options(allow_requantization_removal=True),
    "pairs": _of_pass(PAIRS),
    "joined": _of_pass(IN_BLOCKS[0]),
}


def test_every_reason_that_the_pass_gives_has_its_case() -> None:
    """The codes that the sources of the pass give are the first arguments of Declined(...) and Reason(...)."""
    calls = [
        call
        for file in Path(inspect.getfile(graph_rewrites)).parent.rglob("*.py")
        for call in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id in ("Declined", "Reason")
    ]
    given = {call.args[0].value for call in calls if isinstance(call.args[0], ast.Constant)}
    found = set(re.findall(r"\bleft (\w+)", "\n".join(case.expected for case in CASES)))
    assert given == found | {"rule_failed"}  # no model is known that has one: see test_rule_failures.py
    assert found <= set(REASONS)


@pytest.mark.parametrize("form", list(_forms(in_other_ways=True)))
def test_other_ways(form: Form, tmp_path: Path) -> None:
    """The operators, the bits of the original and, where pairs are removed, the network without their rounding."""
    model, expected = form.build()
    expected, hosted = _and_hosted(expected)
    operators, says, words = expected.partition("says ")
    way = form.case.options["as"]
    changed, reference, reasons = WAYS[way](model)
    assert _steps(changed, every=True) == operators.strip(), reasons
    assert not says or any(words.strip('"') in reason for reason in reasons), reasons
    onnx.checker.check_model(changed, full_check=True)
    assert not hosted or _hosted(changed, tmp_path) == hosted.strip()
    if "unrun" in form.case.options:
        return
    sessions = [session_of(each, optimized=False) for each in (reference, changed)]
    if way == "pairs":
        sessions.append(normfuse.InferenceSession(model, harness.session_options("cpu")))
    for turn, family in enumerate(("noise", "ramp", "outlier", "zeros behind")):
        feeds = feeds_of(model, form.case, Family(family), turn)
        exact, *others = (harness.run(session, feeds) for session in sessions)
        apart = float(form.case.options.get("apart", 0))
        if way == "requantizing" and apart and turn:
            # Rows of nearly equal numbers amplify the rounding that was removed: the fused node's own value is exact.
            (node,) = fused_nodes(changed)
            exact, apart = {node.output[0]: meaning_of(node, changed, feeds)["Y"].array()}, 0.0
        for got in others:
            assert exact.keys() == got.keys()
            for name, array in exact.items():
                if way in ("unquantized", "requantizing") or "apart" in form.case.options:
                    close(got[name], array, f"{family}, {name}", apart)
                else:
                    np.testing.assert_array_equal(got[name], array, f"{family}, {name}")


def _and_hosted(expected: str) -> tuple[str, str]:
    """What is expected of the rewritten model, and of what ONNX Runtime makes of it."""
    ours, *hosted = re.split(r" runs (?=[A-Z])", expected)
    return ours, "".join(hosted)


def _hosted(model: onnx.ModelProto, folder: Path) -> str:
    """The operators that ONNX Runtime makes of a model, before layouts that are the processor's."""
    options = harness.session_options("cpu")
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = str(folder / "optimized.onnx")
    harness.create_session(model, "cpu", options)
    return _steps(onnx.load(options.optimized_model_filepath))


def _steps(model: onnx.ModelProto, *, every: bool = False) -> str:
    """The operators of a graph, of ours the steps; without ``every`` those that its inputs reach, and no Shape."""
    constant = {"", *(tensor.name for tensor in model.graph.initializer)} - {each.name for each in model.graph.input}
    functions = {each.name: each for each in model.functions if each.domain != DOMAIN}
    parts = [_of_graph(model.graph, constant, {}, every)]
    parts += [iter([f"{name} ({', '.join(_of_graph(each, {''}, {}, every))})"]) for name, each in functions.items()]
    return ", ".join(name for part in parts for name in part)


def _of_graph(
    graph: onnx.GraphProto | onnx.FunctionProto, constant: set[str], made_by: dict[str, str], every: bool
) -> Iterator[str]:
    for node in graph.node:
        made_by |= dict.fromkeys(node.output, node.op_type)
        graphs = [attribute.g for attribute in node.attribute if attribute.HasField("g")]
        if set(node.input) <= constant and not graphs and not every:
            constant |= set(node.output)
        elif node.domain == DOMAIN and (steps := [each for each in node.attribute if each.name == "steps"]):
            yield f"[{str(steps[0].s, 'utf-8')}]"
        elif node.op_type in ("Shape", "Size"):
            if every:
                yield f"{node.op_type} of {made_by.get(node.input[0], 'an input')}"
        elif graphs:
            parts = (", ".join(_of_graph(each, set(constant), made_by, every)) for each in graphs)
            yield f"{node.op_type} ({' | '.join(parts)})"
        elif node.op_type not in ("Identity", "Constant"):
            yield node.op_type


def _check_left(result: RewriteResult, reason: str, kind: str = "", words: str = "") -> None:
    if kind.startswith('"'):
        kind, words = "", f"{kind} {words}".strip()
    sites = [site for site in result.sites if site.reason == reason and site.kind.startswith(kind)]
    assert sites, result.sites
    assert any(words.strip('"') in site.message for site in sites), sites
    assert sites[0].advice == REASONS[reason].advice


def _check_numbers(
    form: Form, model: onnx.ModelProto, portable: onnx.ModelProto, custom: onnx.ModelProto, standard: onnx.ModelProto
) -> None:
    """Against the float64 meaning of the steps where they are the whole model, and against the original's numbers."""
    nodes, kernelless = fused_nodes(portable), "kernelless" in form.case.options
    if "unrun" in form.case.options or (kernelless and not nodes):
        return
    options = harness.session_options("ep")
    if "unoptimized" in form.case.options:  # where what ONNX Runtime makes of the original is wrong
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    levels = ("ORT_DISABLE_ALL", "ORT_ENABLE_BASIC", "ORT_ENABLE_EXTENDED") if "all_levels" in form.case.options else ()
    levels = levels[:1] if "unoptimized" in form.case.options else levels
    sessions = {
        **{f"portable model at {level}": session_of(portable, level=level) for level in levels},
        **({"standard model": session_of(standard, optimized=False)} if levels else {}),
        "portable model": session_of(portable, optimized="unoptimized" not in form.case.options),
        "provider": harness.create_session(custom if nodes else model, "ep", options),
        **({"custom operators": harness.create_session(custom, "custom")} if model.functions else {}),
        **({} if kernelless else {"original model": session_of(model, optimized=False)}),
    }
    for turn, family in enumerate(("noise", *random.Random(form.number).sample(FAMILIES[1:], 2))):
        feeds = feeds_of(model, form.case, Family(family), turn)
        results = {way: harness.run(session, feeds) for way, session in sessions.items()}
        exact = results.get("original model", {})
        if len(nodes) == 1 and [value.name for value in portable.graph.output] == [nodes[0].output[0]]:
            with contextlib.suppress(KeyError):  # an input that is computed
                exact = {portable.graph.output[0].name: meaning_of(nodes[0], portable, feeds)["Y"].array()}
        for way, got in results.items():
            for name, value in exact.items():
                close(got[name], value, f"{way}, {family}, {name}", float(form.case.options.get("apart", 0)))
