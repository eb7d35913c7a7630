"""Each case of tests/corpus/sessions: what is made of a model for a session, and the numbers of the session.

The numbers are compared with ONNX Runtime's without any optimisation, which multiplies what the integers stand for in
float. Options of a case: ``as=`` one of WAYS, where the expected are described; ``apart=step``: numbers may be that far
away, in a fiftieth of the elements or a ``share``; ``saturates=0`` or ``1``: sums of uint8 and int8 do not, or do;
``without=`` keywords of InferenceSession that are False; ``nonfinite``: NaN and infinities, too. ``any`` is expected
where only the numbers count.
"""

from __future__ import annotations

import itertools
import json
import platform
import re
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
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
from rewrite_harness import assert_no_constant_is_unread, optimize, session_of
from spelling import SpellingBuilder

import normfuse
from normfuse.files.model_files import load_model
from normfuse.graph_rewrites.engine.passes import Context
from normfuse.graph_rewrites.quantization.product_times import are_faster_in_float
from normfuse.host.integer_products import sums_saturate
from normfuse.meaning import Array
from normfuse.sessions import AllowedChanges
from normfuse.sessions import session_model as session_models
from normfuse.sessions.layouts import CHANNELS_LAST
from normfuse.sessions.session_model import session_model

pytestmark = pytest.mark.without_vnni

X86 = platform.machine().lower() in ("x86_64", "amd64")
OF_INTEGERS = re.compile("QLinear(Conv|MatMul)|QGemm|.*Integer")
PRODUCTS = re.compile("(Fused)?(Conv|Gemm)$|MatMul(NBits)?$|QLinear(Conv|MatMul)$|QGemm$|MatMulIntegerToFloat$")
PAIR = {"QuantizeLinear": "Q", "DequantizeLinear": "D"}


class Made(NamedTuple):
    """What is made of a model, in words, the sessions that compute its numbers, and one that gives what is right."""

    found: str
    sessions: Sequence[onnxruntime.InferenceSession] = ()
    exact: onnxruntime.InferenceSession | None = None


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
        changed, _ = optimize(model, target="standard", fold_weights="session", products=products)
        assert_no_constant_is_unread(changed)
        return Made(operators(changed), [session_of(changed, optimized=False)])

    return way


def _written_out(model: onnx.ModelProto, _: Case, __: Path) -> Made:
    changed = ir.from_proto(model)
    Context(changed).run(CHANNELS_LAST[0])
    made = ir.to_proto(changed)
    return Made(operators(made), [session_of(made, optimized=False)])


def _running(model: onnx.ModelProto, case: Case, folder: Path) -> Made:
    """The products of integers that a session of ours runs."""
    chosen = dict.fromkeys(filter(None, case.options.get("without", "").split(",")), False)
    session = normfuse.InferenceSession(model, _profiled(folder), **chosen)
    found = [each for each in _ran(session, model, case) if OF_INTEGERS.match(each["op_name"])]
    types = (re.findall("u?int8", str(each["input_type_shape"]))[0] for each in found)
    names = (f"{each['op_name']} {kind}" for each, kind in zip(found, types, strict=True))
    return Made(", ".join(names), [session])


def _profiled(folder: Path) -> onnxruntime.SessionOptions:
    options = harness.session_options("cpu")
    # In a folder of its own: sessions of the same second would write to one file.
    options.enable_profiling, options.profile_file_prefix = True, f"{tempfile.mkdtemp(dir=folder)}/profile"
    return options


def _ran(session: onnxruntime.InferenceSession, model: onnx.ModelProto, case: Case) -> list[dict[str, Any]]:
    """The kernels of a run, as the profile has them."""
    harness.run(session, feeds_of(model, case, Family()))
    events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
    return [event["args"] for event in events if event["name"].endswith("_kernel_time")]


def _same_kernels(model: onnx.ModelProto, case: Case, folder: Path) -> Made:
    """Whether the kernels of products are those of the model, however functions are inlined and with normfuse."""
    changed, _ = optimize(model)
    sessions = [harness.create_session(model, options=_profiled(folder))]
    for late, extended in itertools.product("01", (False, True)):
        options = _profiled(folder)
        options.add_session_config_entry("session.disable_aot_function_inlining", late)
        options = normfuse.session_options(options) if extended else options
        sessions.append(harness.create_session(changed, options=options))
    ran = [(each["op_name"] for each in _ran(session, model, case)) for session in sessions]
    of_products = [Counter(name.removeprefix("Fused") for name in names if PRODUCTS.match(name)) for names in ran]
    assert of_products[0]
    found = "same" if all(each == of_products[0] for each in of_products) else str(of_products)
    return Made(found, sessions[1:], sessions[0])


def _planned(model: onnx.ModelProto, _: Case, __: Path) -> Made:
    """Its products of integers and the activations between them."""
    made = session_model(load_model(model), onnxruntime.SessionOptions(), AllowedChanges()).model
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
    "kernels": _same_kernels,
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
    if not comparable:
        return
    reference = made.exact or session_of(model, optimized=False)
    further = ("infinity", "NaN") if "nonfinite" in options else ()
    for family in ("noise", "ramp", "outlier", "zeros behind", "alternating", *further) if made.sessions else ():
        feeds = feeds_of(model, case, Family(family))
        exact = harness.run(reference, feeds)
        for session in made.sessions:
            got = harness.run(session, feeds)
            assert exact.keys() == got.keys()
            for name, array in exact.items():
                _check_near(got[name], array, options, f"{family}, {name}")


def _check_near(got: Array, exact: Array, options: Mapping[str, str], what: str) -> None:
    if "apart" not in options:
        np.testing.assert_array_equal(got, exact, what)
        return
    apart = np.abs(got.astype(np.float64) - exact.astype(np.float64)) / float(options["apart"])
    assert apart.max(initial=0.0) <= 1.01, what
    assert np.mean(apart > 0.1) <= float(options.get("share", 0.02)), what
