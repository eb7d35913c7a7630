"""Tuning: the search on a made-up machine, and what a real one stores in a model and goes by."""

import dataclasses
import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import instruction_sets
import onnx
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import normfuse
from normfuse import models
from normfuse.files.model_files import load_model
from normfuse.measuring.timing import Rounds, clock_for, ratio_of, take_turns
from normfuse.tuning import TUNING_KEY, Decisions, GroupResult, TuningReport, stored_decisions, tune
from normfuse.tuning.search import GroupSites, Way, parts_of, search

EMPTY = Decisions("avx2", "1.31.1")


# --- the search, on a machine whose times are known ---


@dataclasses.dataclass
class Machine:
    """A bench on which each group that is on makes the model so many times as slow."""

    factors: Mapping[str, float]
    cost_model: frozenset[str] = frozenset()
    body: float = 1.0
    """What the rewritten model takes with every group off; the original takes 1."""
    inside: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Group -> the group of the call that hides it while that is claimed."""
    noise: float = 0.0
    now: float = 0.0
    measured: list[str] = dataclasses.field(default_factory=list)

    def _way(self, name: str, seconds: float, groups: Mapping[str, GroupSites]) -> Way:
        def run() -> float:
            self.measured.append(name)
            return seconds

        return Way(run, groups)  # type: ignore[arg-type]

    def original(self) -> Way:
        return self._way("original", 1.0, {})

    def untouched(self, decisions: Decisions) -> Way:
        assert decisions.others == "off"
        return self._way("untouched", 1.0, {group: GroupSites(1, claimed=False) for group in self.factors})

    def rewritten(self, decisions: Decisions) -> Way:
        def on(group: str) -> bool:
            others = {"on": True, "off": False, "cost": group in self.cost_model}
            return decisions.groups.get(group, others[decisions.others])

        seen = [group for group in self.factors if not (group in self.inside and on(self.inside[group]))]
        seconds = self.body * math.prod(self.factors[group] for group in seen if on(group))
        return self._way("rewritten", seconds, {group: GroupSites(1, on(group)) for group in seen})

    def measure(self, ways: Sequence[Way], seconds: float) -> list[Rounds]:
        self.now += seconds
        shakes = [1 + self.noise * step for step in (-1, 1, 0, 1, -1, 0, 1, -1)]
        times: list[float] = [way.run() for way in ways]  # type: ignore[func-returns-value]
        return [
            [[time * shakes[(index * 3 + number) % len(shakes)]] * 3 for number in range(len(shakes))]
            for index, time in enumerate(times)
        ]

    def elapsed(self) -> float:
        return self.now


def decided(machine: Machine) -> dict[str, bool]:
    return dict(search(machine, EMPTY, 1000).claimed)


def test_a_group_that_loses_is_off_and_one_that_gains_is_on() -> None:
    machine = Machine({"slow": 1.1, "fast": 0.9, "also fast": 0.8}, cost_model=frozenset({"slow", "fast"}))
    found = search(machine, EMPTY, 1000)
    assert found.claimed == {"slow": False, "fast": True, "also fast": True}
    assert found.speedup.median == pytest.approx(1 / 0.72)
    gains = {trial.groups: trial.gain for trial in found.trials}
    assert gains["slow",] == pytest.approx(1 / 1.1)
    assert gains["also fast",] == pytest.approx(1 / 0.8)
    assert found.decisions.groups == found.claimed


GROUPS = [
    f"{name} float32[?,{width}]{place}" for name in "ab" for width in (8, 64) for place in ("", " among convolutions")
]


@settings(max_examples=60, deadline=None)
@given(
    factors=st.fixed_dictionaries({group: st.sampled_from([0.8, 0.9, 1.0, 1.1, 1.3]) for group in GROUPS}),
    on=st.frozensets(st.sampled_from(GROUPS)),
    body=st.sampled_from([0.9, 1.0, 1.2]),
)
def test_with_time_enough_every_group_is_as_it_is_faster(
    factors: dict[str, float], on: frozenset[str], body: float
) -> None:
    machine = Machine(factors, cost_model=on, body=body)
    found = search(machine, EMPTY, 1000)
    best = body * math.prod(min(factor, 1.0) for factor in factors.values())
    assert found.speedup.median == pytest.approx(1 / best if best <= 1 else 1)
    assert found.written == ("rewritten" if best <= 1 else "original")
    if best <= 1:
        assert all(found.claimed[group] == (factor < 1) for group, factor in factors.items() if factor != 1)


def test_what_lies_within_the_noise_stays_as_the_cost_model_has_it() -> None:
    machine = Machine({"a": 1.01, "b": 0.99}, cost_model=frozenset({"a"}), noise=0.03)
    assert decided(machine) == {"a": True, "b": False}


def test_a_rewritten_model_that_is_slower_is_not_written() -> None:
    found = search(Machine({"a": 1.2}, cost_model=frozenset({"a"}), body=1.1), EMPTY, 1000)
    assert found.written == "original"
    assert found.decisions == dataclasses.replace(EMPTY, others="off")
    assert found.claimed == {"a": False}
    assert found.speedup.median == 1


def test_what_a_claimed_call_hides_is_tried_once_the_call_is_off() -> None:
    machine = Machine({"call": 1.2, "body": 0.9}, cost_model=frozenset({"call"}), inside={"body": "call"})
    assert decided(machine) == {"call": False, "body": True}


def test_when_the_time_is_over_the_rest_stays_as_it_was() -> None:
    factors = {f"group {number}": 1.0 for number in range(200)} | {"last": 1.5}
    machine = Machine(factors, cost_model=frozenset(factors))
    found = search(machine, EMPTY, 20)
    assert 0 < len(found.trials) < 100
    # What was not tried is not said to be decided.
    assert set(found.decisions.groups) == {group for trial in found.trials for group in trial.groups}
    assert machine.now < 25
    assert machine.measured.count("original") == 4  # a pair at the start, a pair at the end


def test_shapes_of_one_kind_are_tried_together_first() -> None:
    groups = ["Gelu float32[8,640]", "Gelu float32[8,64]", "Gelu float32[8,64] among convolutions", "Mish float32"]
    parts = parts_of(dict.fromkeys(groups))
    assert parts == [("Gelu float32[8,64]", "Gelu float32[8,640]"), (groups[2],), (groups[3],)]


# --- measuring ---


def test_ways_take_turns_and_are_timed_by_the_clock_given() -> None:
    now, order = [0.0], []

    def way(name: str, seconds: float) -> Callable[[], None]:
        def run() -> None:
            order.append(name)
            now[0] += seconds

        return run

    rounds = take_turns([way("a", 1.0), way("b", 2.0)], 0.0, lambda *_: None, clock=lambda: now[0])
    assert set(order) == {"a", "b"}
    ratio = ratio_of(*rounds)
    assert ratio.median == pytest.approx(0.5)
    assert ratio.error == pytest.approx(0)


def test_several_threads_are_measured_by_the_time_that_passes() -> None:
    assert clock_for(4)[1] == "time that passes"
    assert clock_for(0)[1] == "time that passes"


# --- real models ---


@pytest.fixture
def slow_chains(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Have sessions take as long as one would on which each chain that is claimed costs so many seconds."""

    def fake(cost: float) -> None:
        def measure(bench: Any, ways: Sequence[Way], seconds: float) -> list[Rounds]:
            del bench, seconds
            sites = [sum(of.sites for of in way.groups.values() if of.claimed) for way in ways]
            return [[[1 + cost * count] * 3 for _ in range(8)] for count in sites]

        monkeypatch.setattr(tune._ModelBench, "measure", measure)
        monkeypatch.setattr(tune._ModelBench, "elapsed", lambda _: 0.0)  # time for everything

    return fake


def encoder() -> onnx.ModelProto:
    return models.transformer_encoder(layers=1, hidden=256)


def claims(path: Path, **options: Any) -> dict[str, dict[str, Any]]:
    """Group -> the last line of the claim report of a session on a file."""
    report = path.with_suffix(".jsonl")
    report.unlink(missing_ok=True)
    onnxruntime.InferenceSession(path, normfuse.session_options(claim_report=report, **options))
    return {line["group"]: line for line in map(json.loads, report.read_text("utf-8").splitlines()) if "group" in line}


def tuned(folder: Path, **options: Any) -> tuple[Path, TuningReport]:
    path = folder / "tuned.onnx"
    result = normfuse.optimize(encoder(), tune=0.5, samples=1, **options)
    result.save(path)
    assert result.report.tuning is not None
    return path, result.report.tuning


def test_decisions_are_stored_and_gone_by(tmp_path: Path, slow_chains: Callable[[float], None]) -> None:
    slow_chains(-0.01)
    path, report = tuned(tmp_path)
    assert report.speedup.median > 1
    assert report.written == "rewritten"
    stored = stored_decisions(load_model(path).model)
    assert (stored["isa"], stored["onnxruntime"]) == ([instruction_sets.IN_USE], [onnxruntime.__version__])
    assert set(stored["on"]) == {one.group for one in report.groups}
    found = claims(path)
    assert {(line["claimed"], line["decided"]) for line in found.values()} == {(True, "by tuning")}
    assert set(found) == {one.group for one in report.groups}
    assert {line["decided"] for line in claims(path, tuning="0").values()} == {"by the cost model"}


def test_where_all_chains_lose_none_is_run(tmp_path: Path, slow_chains: Callable[[float], None]) -> None:
    slow_chains(0.01)
    path, report = tuned(tmp_path)
    assert report.speedup.median == 1
    assert not any(one.on for one in report.groups)
    assert {(line["claimed"], line["reason"]) for line in claims(path).values()} == {(False, "tuned_off")}


def test_another_instruction_set_goes_by_the_cost_model(tmp_path: Path, slow_chains: Callable[[float], None]) -> None:
    slow_chains(0.01)
    path, _ = tuned(tmp_path)
    if instruction_sets.IN_USE == "baseline":  # then every other one is another
        model = onnx.load(path)
        next(entry for entry in model.metadata_props if entry.key == TUNING_KEY).value = Decisions(
            "avx2", onnxruntime.__version__, "off"
        ).text()
        onnx.save(model, path)
    code = (
        "import sys, normfuse, onnxruntime\n"
        "onnxruntime.InferenceSession(sys.argv[1], normfuse.session_options(claim_report=sys.argv[2]))\n"
    )
    report = tmp_path / "claims.jsonl"
    done = instruction_sets.python("-c", code, str(path), str(report), isa="baseline")
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in report.read_text("utf-8").splitlines()]
    assert {line["decided"] for line in lines if "group" in line} == {"by the cost model"}
    assert any(line["claimed"] for line in lines)


def test_a_rewritten_model_slower_than_the_original_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def measure(bench: Any, ways: Sequence[Way], seconds: float) -> list[Rounds]:
        del bench, seconds
        # Of a session on the rewritten model the provider has seen calls of functions.
        return [[[1.2 if any("Fused" in group for group in way.groups) else 1.0] * 3] * 8 for way in ways]

    monkeypatch.setattr(tune._ModelBench, "measure", measure)
    original = encoder()
    result = normfuse.optimize(original, tune=0.5, samples=1)
    assert result.report.tuning.written == "original"
    assert not result.report.fused
    assert {site.reason for site in result.report.sites} <= {"tuned_off", "nothing_to_fuse", "not_profitable"}
    assert [node.op_type for node in result.model.graph.node] == [node.op_type for node in original.graph.node]
    assert result.report.operators_after == result.report.operators_before
    assert not result.report.rules
    path = tmp_path / "left.onnx"
    result.save(path)
    assert not any(line["claimed"] for line in claims(path).values())
    with pytest.raises(normfuse.OptimizationError, match="0 sites are fused"):
        normfuse.optimize(original, tune=0.5, samples=1, require_fused=1)


def test_real_times_give_a_whole_report(tmp_path: Path) -> None:
    """Nothing is said about speed here: only that everything is there, and computes the same."""
    path, report = tuned(tmp_path)
    assert report.groups
    assert all(isinstance(one, GroupResult) for one in report.groups)
    assert set(report.starts) == {"off", "cost", "on"}
    assert json.loads(json.dumps(report.to_dict()))["final_noise"] == report.final_noise
    assert report.final_noise > 0
    found = claims(path)
    decided_on = {one.group for one in report.groups if one.on}
    assert {group for group, line in found.items() if line["claimed"]} == decided_on & set(found)
