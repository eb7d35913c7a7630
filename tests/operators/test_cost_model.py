"""claim=profitable: the cases of tests/corpus/costs, and on which instruction sets each is claimed."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import harness
import instruction_sets
import onnx
import onnxruntime
import pytest
from checking import session_and_report
from corpus_reader import FOLDER, Case, cases
from spelling import SpellingBuilder

CASES = {case.name: case for case in cases(FOLDER / "costs")}


def model(case: Case) -> onnx.ModelProto:
    return case.build(SpellingBuilder(case.opsets[-1]), "dynamic" in case.options)


def decisions(claim: str) -> dict[str, list[str]]:
    """The reasons of every case's sites; an empty one for what is claimed. (Also run by itself, in a process.)"""
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, case in CASES.items():
            _, report = session_and_report(model(case), Path(folder), claim=claim)
            # ONNX Runtime expands an operator that has no kernel and asks again.
            found[name] = sorted({"" if site["claimed"] else site["reason"] for site in report})
    return found


def test_everything_with_claim_all() -> None:
    assert {name: found for name, found in decisions("all").items() if found != [""]} == {}


@instruction_sets.each("avx512", "avx2", "baseline")
def test_what_is_faster_with_claim_profitable(isa: str) -> None:
    script = (
        f"import sys; sys.path[:0] = {[str(Path(__file__).parent), str(Path(__file__).parent.parent)]!r}\n"
        "import json, test_cost_model\nprint(json.dumps(test_cost_model.decisions('profitable')))"
    )
    done = instruction_sets.python("-c", script, isa=isa)
    assert done.returncode == 0, done.stderr
    expected = {name: [""] if isa in case.expected.split() else ["not_profitable"] for name, case in CASES.items()}
    assert json.loads(done.stdout.splitlines()[-1]) == expected


@pytest.mark.parametrize("name", [name for name in CASES if "integers" in name])
def test_a_dequantisation_that_onnxruntime_takes_away_is_known(name: str, tmp_path: Path) -> None:
    """Not by a session with the provider: nothing is compiled where a model is saved, and nothing would be claimed."""
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
    harness.create_session(model(CASES[name]), options=options)
    nodes = onnx.load(options.optimized_model_filepath).graph.node
    assert "DequantizeLinear" not in {node.op_type for node in nodes}
