"""What `normfuse optimize --tune` stored in a model, and when the execution provider goes by it."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import harness
import numpy as np
import onnx
import onnxruntime
import pytest
from checking import session_and_report
from instruction_sets import IN_USE
from onnx import parser

KEY = "ai.normfuse.tuning"
HOST = onnxruntime.__version__
HEADER = '<ir_version: 10, opset_import: ["": 20, "ai.normfuse": 1]>'
# Large enough for the cost model to claim the normalisation; it leaves the QuantizeLinear.
CHAINS = """g (float[64,512] X, float[512] w) => (float[64,512] Y, uint8[64,512] Q)
    <float s = {0.1}, uint8 z = {3}>
    { Y = LayerNormalization<axis = -1>(X, w)  Q = QuantizeLinear(X, s, z) }"""
NORM, QUANTIZE = "LayerNormalization float32[64,512]", "QuantizeLinear float32[64,512]"
CALL = """g (float[64,512] X, float[512] w) => (float[64,512] Y)
    { Y = ai.normfuse.FusedNormalization_ln(X, w) }
    <domain: "ai.normfuse", opset_import: ["": 20]>
    FusedNormalization_ln (X, w) => (Y) { Y = LayerNormalization<axis = -1>(X, w) }"""
BRANCHES = """g (float[64,512] X, float[512] w, bool c) => (float[64,512] Y) {
    Y = If (c) <
      then_branch = t () => (float[64,512] a) { a = LayerNormalization<axis = -1>(X, w) },
      else_branch = e () => (float[64,512] b) { b = Neg(X) }
    >
}"""


def record(*lines: str, version: str = "1", isa: str = IN_USE, host: str = HOST, others: str = "cost") -> str:
    return "\n".join([f"version {version}", f"isa {isa}", f"onnxruntime {host}", f"others {others}", *lines, ""])


def model(text: str, tuning: str | None) -> onnx.ModelProto:
    proto = parser.parse_model(HEADER + text)
    for node in proto.graph.node:
        if node.domain == "ai.normfuse":
            node.attribute.append(onnx.helper.make_attribute("steps", "Normalize axes=-1; Mul scale"))
    if tuning is not None:
        onnx.helper.set_model_props(proto, {KEY: tuning})
    return proto


def claims(folder: Path, text: str, stored: str | None, **options: Any) -> dict[str, dict[str, Any]]:
    """Group -> the last line of the claim report."""
    _, lines = session_and_report(model(text, stored), folder, **{"claim": "profitable", **options})
    return {line["group"]: line for line in lines if "group" in line}


def test_without_tuning_the_cost_model_decides(tmp_path: Path) -> None:
    found = claims(tmp_path, CHAINS, None)
    assert {group: line["claimed"] for group, line in found.items()} == {NORM: True, QUANTIZE: False}
    assert {line["decided"] for line in found.values()} == {"by the cost model"}


def test_groups_are_on_and_off_as_they_were_tuned(tmp_path: Path) -> None:
    found = claims(tmp_path, CHAINS, record(f"off {NORM}", f"on {QUANTIZE}"))
    assert {group: line["claimed"] for group, line in found.items()} == {NORM: False, QUANTIZE: True}
    assert {line["decided"] for line in found.values()} == {"by tuning"}
    assert found[NORM]["reason"] == "tuned_off"


@pytest.mark.parametrize(("others", "claimed"), [("on", True), ("off", False)])
def test_other_groups(tmp_path: Path, others: str, claimed: bool) -> None:
    found = claims(tmp_path, CHAINS, record("on something else", others=others))
    assert {line["claimed"] for line in found.values()} == {claimed}


def test_calls_of_functions_and_the_nodes_of_their_bodies(tmp_path: Path) -> None:
    """A call that is off leaves its body to ONNX Runtime, whose nodes are sites again."""
    call = "FusedNormalization_ln float32[64,512]"
    assert claims(tmp_path, CALL, record())[call]["claimed"]
    found = claims(tmp_path, CALL, record(f"off {call}", f"off {NORM}"))
    assert {group: line["claimed"] for group, line in found.items()} == {call: False, NORM: False}


def test_branches_go_by_the_tuning_of_their_model(tmp_path: Path) -> None:
    assert claims(tmp_path, BRANCHES, None)[NORM]["claimed"]
    assert claims(tmp_path, BRANCHES, record(f"off {NORM}"))[NORM]["decided"] == "by tuning"


@pytest.mark.parametrize("host", [HOST, ".".join(HOST.split(".")[:2]), ".".join([*HOST.split(".")[:2], "99"])])
def test_a_patch_of_the_host_changes_nothing(tmp_path: Path, host: str) -> None:
    assert claims(tmp_path, CHAINS, record(f"off {NORM}", host=host))[NORM]["decided"] == "by tuning"


@pytest.mark.parametrize(
    "tuning",
    [
        record(f"off {NORM}", isa="sse2"),
        record(f"off {NORM}", host="1.2.3"),
        record(f"off {NORM}", host=HOST.replace(".", "", 1)),
        record(f"off {NORM}", version="2"),
        f"off {NORM}",
        "",
        "\n\n \noff",
        "version 1\nversion\n",
    ],
)
def test_what_was_made_elsewhere_or_cannot_be_read_is_not_used(tmp_path: Path, tuning: str) -> None:
    found = claims(tmp_path, CHAINS, tuning)
    assert {group: line["claimed"] for group, line in found.items()} == {NORM: True, QUANTIZE: False}
    assert {line["decided"] for line in found.values()} == {"by the cost model"}


def test_options_come_before_tuning(tmp_path: Path) -> None:
    tuning = record(f"off {NORM}", f"off {QUANTIZE}")
    found = claims(tmp_path, CHAINS, tuning, tuning="0")
    assert found[NORM]["decided"] == "by the cost model"
    found = claims(tmp_path, CHAINS, tuning, claim="all")
    assert {(line["claimed"], line["decided"]) for line in found.values()} == {(True, "by the option claim")}


def test_what_is_on_computes_the_same(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(0, 3, (64, 512)).astype(np.float32)
    feeds = {"X": x, "w": np.ones(512, np.float32)}
    off, on = (
        harness.run(harness.create_session(model(CHAINS, record(others=others)), "ep", claim="profitable"), feeds)
        for others in ("off", "on")
    )
    deviation = np.sqrt(x.astype(np.float64).var(1, keepdims=True) + 1e-5)
    expected = (x - x.astype(np.float64).mean(1, keepdims=True)) / deviation
    for results in (off, on):
        np.testing.assert_allclose(results["Y"], expected, atol=2e-6)
        np.testing.assert_array_equal(results["Q"], np.clip(np.rint(x / np.float32(0.1)) + 3, 0, 255))


def test_what_would_take_too_long_to_compile_is_not_said_to_be_tuned(tmp_path: Path) -> None:
    names = ["X", *(f"v{number}" for number in range(159)), "Y"]
    nodes = "\n".join(f"{after} = Gelu({before})" for before, after in itertools.pairwise(names))
    found = claims(tmp_path, f"g (float[64,512] X) => (float[64,512] Y) {{ {nodes} }}", record(others="on"))
    (line,) = found.values()
    assert (line["claimed"], line["reason"], line["decided"]) == (False, "not_profitable", "by the cost model")
