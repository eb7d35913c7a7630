"""Each case of tests/corpus/sessions: what is made of a model for a session, and the numbers of the session.

The numbers are compared with ONNX Runtime's without any optimisation, which multiplies what the integers stand for in
float. Options of a case: ``as=`` one of WAYS, where the expected are described; ``apart=step``: numbers may be that far
away, in a fiftieth of the elements or a ``share``; ``saturates=0`` or ``1``: sums of uint8 and int8 do not, or do;
``without=`` keywords of InferenceSession that are False; ``nonfinite``: NaN and infinities, too. ``any`` is expected
where only the numbers count.
"""

from __future__ import annotations

import json
import platform
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import harness
import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from corpus_reader import FOLDER, Case, cases, feeds_of
from families import Family
from parsed_models import results
from rewrite_harness import optimize
from spelling import SpellingBuilder

import normfuse
from normfuse.files.model_files import load_model
from normfuse.graph_rewrites import Treatment
from normfuse.graph_rewrites.quantization.product_times import are_faster_in_float
from normfuse.graph_rewrites.quantization.qlinear_elementwise import write_elementwise
from normfuse.host.integer_products import sums_saturate
from normfuse.sessions import session_model as session_models
from normfuse.sessions.creation import Choices, session_model

pytestmark = pytest.mark.without_vnni

X86 = platform.machine().lower() in ("x86_64", "amd64")
PAIR = {"QuantizeLinear": "Q", "DequantizeLinear": "D"}


class Made(NamedTuple):
    """What is made of a model, in words, and what computes its numbers."""

    found: str
    run: Callable[[dict[str, Any]], dict[str, Any]] | None = None


Way = Callable[[onnx.ModelProto, Case, Path], Made]


def operators(model: onnx.ModelProto) -> str:
    """Operators in order, those of a pair with the type of their integers."""
    held = {each.name: onnx.numpy_helper.to_array(each).dtype for each in model.graph.initializer}
    nodes = [node for node in model.graph.node if node.op_type not in ("Constant", "Identity")]
    names = (PAIR.get(node.op_type, node.op_type) for node in nodes)
    types = (held.get(([*node.input[2:], node.input[0]])[0], "") if node.op_type in PAIR else "" for node in nodes)
    return ", ".join(f"{name} {kind}".strip() for name, kind in zip(names, types, strict=True))


def _of_products(products: str) -> Way:
    def way(model: onnx.ModelProto, _: Case, __: Path) -> Made:
        """Operators in order, those of a pair with the type of their integers."""
        treatment = Treatment(fold_weights="session", products=products)  # type: ignore[arg-type]
        changed, _ = optimize(model, target="standard", treatment=treatment)
        inner = [node for each in changed.graph.node for attribute in each.attribute for node in attribute.g.node]
        read = {name for node in (*changed.graph.node, *inner) for name in node.input}
        assert {each.name for each in changed.graph.initializer} <= read  # what nothing reads is not kept
        return Made(operators(changed), lambda feeds: results(changed, feeds))

    return way


def _written_out(model: onnx.ModelProto, _: Case, __: Path) -> Made:
    changed = ir.from_proto(model)
    write_elementwise(changed.graph)
    made = ir.to_proto(changed)
    return Made(operators(made), lambda feeds: results(made, feeds))


def _running(model: onnx.ModelProto, case: Case, folder: Path) -> Made:
    """The products of integers that a session of ours runs."""
    options = harness.session_options("cpu")
    options.enable_profiling, options.profile_file_prefix = True, str(folder / "profile")
    chosen = dict.fromkeys(filter(None, case.options.get("without", "").split(",")), False)
    session = normfuse.InferenceSession(model, options, **chosen)
    harness.run(session, feeds_of(model, case, Family()))
    events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
    ran = [event["args"] for event in events if event["name"].endswith("kernel_time")]
    found = [each for each in ran if re.match("QLinear(Conv|MatMul)|QGemm|.*Integer", each["op_name"])]
    types = (re.findall("u?int8", str(each["input_type_shape"]))[0] for each in found)
    names = (f"{each['op_name']} {kind}" for each, kind in zip(found, types, strict=True))
    return Made(", ".join(names), lambda feeds: harness.run(session, feeds))


def _planned(model: onnx.ModelProto, _: Case, __: Path) -> Made:
    """Its products of integers and the activations between them."""
    made = session_model(load_model(model), onnxruntime.SessionOptions(), Choices()).model
    found = [node.op_type for node in made.graph]
    assert found.count("Transpose") <= 2  # the channels are last from the first convolution to the last one
    return Made(", ".join(name for name in found if re.match("QLinear|Sigmoid|Softmax", name)))


def _estimated(model: onnx.ModelProto, _: Case, __: Path) -> Made:
    return Made("float" if are_faster_in_float(ir.from_proto(model)) else "integers")


WAYS: dict[str, Way] = {
    "integer": _of_products("integer"),
    "exact": _of_products("exact integer"),
    "written": _written_out,
    "runs": _running,
    "planned": _planned,
    "estimate": _estimated,
}


@pytest.mark.skipif(not X86, reason="int8 is what integer kernels take on this processor")
@pytest.mark.parametrize("case", list(cases(FOLDER / "sessions")), ids=lambda case: case.name)
def test_case(case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = case.options
    comparable = options.get("saturates", "1") == "1" or not sums_saturate()
    if "saturates" in options:
        monkeypatch.setattr(session_models, "sums_saturate", lambda: options["saturates"] == "1")
    model = case.build(SpellingBuilder(case.opsets[0]), "dynamic" in options)
    made = WAYS[options["as"]](model, case, tmp_path)
    assert case.expected.strip() in (made.found, "any")
    if made.run is None or not comparable:
        return
    further = ("infinity", "NaN") if "nonfinite" in options else ()
    for family in ("noise", "ramp", "outlier", "zeros behind", *further):
        feeds = feeds_of(model, case, Family(family))
        exact, got = results(model, feeds), made.run(feeds)
        assert exact.keys() == got.keys()
        for name, array in exact.items():
            what = f"{family}, {name}"
            if "apart" not in options:
                np.testing.assert_array_equal(got[name], array, what)
                continue
            apart = np.abs(got[name].astype(np.float64) - array.astype(np.float64)) / float(options["apart"])
            assert apart.max(initial=0.0) <= 1.01, what
            assert np.mean(apart > 0.1) <= float(options.get("share", 0.02)), what
