"""Each case of tests/corpus/provider: the groups that the provider makes, what it leaves and why, and the numbers.

In brackets stand the operators of a group, outside of them what is left to ONNX Runtime (``none`` where no group is,
``...`` where they are not said);
``left reason "words"`` is a site of the claim report. Options: ``claim=profitable`` (else all), ``vector`` (claims
none without vector kernels), ``bits`` (those of ONNX Runtime node by node; else near them, in one of a hundred
elements a step, or with ``near=4`` in all four), ``others`` (says nothing of
what is left), ``any`` (data of every family, else such that float32 is right by any formula), ``static`` or ``dynamic``
shapes, operands ``ordered`` as written, ``unrun``, ``rewritten`` by the pass before. Where the pass makes one node of
the model, results of the provider and of that node as custom operator lie in the interval of its float64 meaning, too.
On another path, and on one thread, results have the same bits.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import harness
import instruction_sets
import numpy as np
import onnx
import onnxruntime
import pytest
from checking import node_by_node, session_and_report
from corpus_reader import FOLDER, Case, cases, feeds_of
from families import TABLE, Array, Family
from spelling import SpellingBuilder

import normfuse
from normfuse.meaning import Expected, evaluate

pytestmark = [pytest.mark.every_isa, pytest.mark.without_vnni]
USUAL = ("noise", "ramp", "ramp down", "outlier", "sorted", "pink", "smooth", "zeros in front", "zeros behind")
PATHS = ("blocks", "input", "nontemporal", "nontemporal,blocks")
FORMS = 2


@dataclass(frozen=True)
class Form:
    """A case with one choice of versions, unknown dimensions, and the order of operands."""

    case: Case
    number: int

    @property
    def draw(self) -> random.Random:
        return random.Random(f"{self.case.name} {self.number}")

    def build(self) -> onnx.ModelProto:
        draw, options = self.draw, self.case.options
        dynamic = "dynamic" in options or ("static" not in options and self.number % 2 == 1)
        g = SpellingBuilder(
            draw.choice(self.case.opsets),
            options.get("dtype", "float32"),
            swap="ordered" not in options and draw.random() < 0.5,
        )
        return self.case.build(g, dynamic)

    def families(self) -> list[Family]:
        names, draw = list(TABLE) if "any" in self.case.options else list(USUAL), self.draw
        names.remove("noise")
        return [Family(), *(Family(name, draw.choice([None, draw.randrange(70)])) for name in draw.sample(names, 2))]


def _forms() -> Iterator[Any]:
    """Every case in one form, and in the others in the slow part."""
    for place, case in enumerate(cases(FOLDER / "provider")):
        for number in range(FORMS):
            marks = () if (place + number) % FORMS == 0 else pytest.mark.slow
            yield pytest.param(Form(case, number), id=f"{case.name}-{number}", marks=marks)


@pytest.mark.parametrize("form", list(_forms()))
def test_case(form: Form, tmp_path: Path) -> None:
    model, options = form.build(), form.case.options
    if "rewritten" in options:
        model = normfuse.optimize(model, verify=False).model
    session, report = session_and_report(model, tmp_path, claim=options.get("claim", "all"))
    expected, _, left = form.case.expected.partition("left ")
    if "vector" in options and instruction_sets.IN_USE == "baseline":
        assert not any(line["claimed"] for line in report), report
    else:
        groups = sorted(sorted(group.split()) for group in re.findall(r"\[(.*?)\]", expected))
        assert "..." in expected or harness.fused_types(session) == groups
        rest = sorted(re.findall(r"\w+", re.sub(r"\[.*?\]|none", "", expected)))
        assert "..." in expected or "others" in options or harness.cpu_types(session) == rest
        if left:
            _check_left(report, *left.split(" ", 1))
    if "unrun" not in options:
        _check_numbers(form, model, session)


def _check_left(report: list[dict[str, Any]], reason: str, words: str = "") -> None:
    words = words.strip(' "')
    sites = [line for line in report if not line["claimed"] and line["reason"] == reason]
    assert any(words in line["message"] for line in sites), report
    assert all(line["message"].strip() and line["advice"].strip() for line in sites)


def _check_numbers(form: Form, model: onnx.ModelProto, session: Any) -> None:
    rewritten, custom = _as_one_node(model)
    reference = node_by_node(model)
    forced = _forced(model, form)
    # Nodes that the pass wrote are claimed, too; it may join steps, which round once.
    portable = harness.create_session(normfuse.optimize(model, verify=False).model) if form.number else session
    loose = {word: value for word, value in form.case.options.items() if word != "bits"}
    for family in form.families():
        feeds = feeds_of(model, form.case, family)
        got, plain = harness.run(session, feeds), harness.run(reference, feeds)
        for name, value in harness.run(forced, feeds).items():
            assert value.tobytes() == got[name].tobytes(), f"another path, {family}: {name}"
        for name, value in plain.items():
            _compare(got[name], value, f"{family}: {name}", form.case.options)
            _compare(harness.run(portable, feeds)[name], value, f"rewritten, {family}: {name}", loose)
        if rewritten is not None:
            ways = {"provider": got, "custom operator": harness.run(custom, feeds)}
            for name, expected in _meaning(rewritten, feeds).items():
                for way, value in ways.items():
                    expected.check(value[name], f"{way}, {family}: {name}")


def _forced(model: onnx.ModelProto, form: Form) -> onnxruntime.InferenceSession:
    """A session on one thread, and on another path than the one that the library chooses."""
    options = harness.session_options("ep", claim=form.case.options.get("claim", "all"))
    options.intra_op_num_threads = 1
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NORMFUSE_PATH", form.draw.choice(PATHS))
        return harness.create_session(model, options=options)


def _compare(got: Array, plain: Array, what: str, options: Mapping[str, str]) -> None:
    """ONNX Runtime rounds after each node, which may move a value across a tie."""
    assert (got.dtype, got.shape) == (plain.dtype, plain.shape), what
    if "bits" in options:
        np.testing.assert_array_equal(got, plain, what)
        return
    a, b = got.astype(np.float64), plain.astype(np.float64)
    if got.dtype.kind in "iu":
        assert np.abs(a - b).max(initial=0) <= int(options.get("near", 1)), what
        assert "near" in options or np.count_nonzero(a != b) <= 2 + 0.01 * a.size, what
        return
    tolerance = 1e-2 if got.dtype.itemsize == 2 else 2e-5
    np.testing.assert_allclose(
        a, b, rtol=tolerance, atol=tolerance * np.abs(b[np.isfinite(b)]).max(initial=1), err_msg=what
    )


def _as_one_node(model: onnx.ModelProto) -> tuple[onnx.ModelProto | None, Any]:
    """The model as one node of ours and a session on it, where the rewriting pass makes one."""
    rewritten = normfuse.optimize(model, verify=False, target="custom-op").model
    nodes = [node for node in rewritten.graph.node if node.op_type not in ("Constant", "Shape")]
    if len(nodes) != 1 or nodes[0].domain != harness.DOMAIN or len(nodes[0].output) != len(model.graph.output):
        return None, None
    return rewritten, harness.create_session(rewritten, "custom")


def _meaning(model: onnx.ModelProto, feeds: dict[str, Array]) -> dict[str, Expected]:
    """The results of a model of one node of ours in float64, by their names."""
    known = {tensor.name: harness.to_array(tensor) for tensor in model.graph.initializer} | feeds
    node = harness.read_node(next(node for node in model.graph.node if node.domain == harness.DOMAIN))
    every = evaluate(node.steps, {label: known[value] for label, value in node.inputs.items()})
    return {value: every[name] for name, value in node.outputs.items()}
