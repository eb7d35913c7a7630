"""Tuning a rewritten model: real sessions for the search, and the report on what it found."""

from __future__ import annotations

import dataclasses
import math
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import onnx_ir as ir

from normfuse.arguments import NUMBER, check_threads, check_type
from normfuse.errors import OptionError
from normfuse.files.model_files import Source
from normfuse.host.registration import instruction_set
from normfuse.host.versions import import_host
from normfuse.inspection.claims import read_claim_report
from normfuse.measuring.timing import Clock, Progress, Ratio, Rounds, bound_run, clock_for, ratio_of, take_turns
from normfuse.sessions.creation import open_session
from normfuse.tuning.decisions import Decisions
from normfuse.tuning.report import GroupResult, TuningReport
from normfuse.tuning.search import Found, GroupSites, Way, noise_of, search
from normfuse.verification import Inputs, Sample
from normfuse.verification.samples import reference

TUNE_SECONDS = 60.0
# Of the whole time, for finding out whether folded weights are worth their bytes.
_FOR_WEIGHTS = 0.15


@dataclasses.dataclass(frozen=True)
class Tuned:
    """A tuned model, which carries its decisions."""

    model: ir.Model
    report: TuningReport
    folded: bool = False
    """Whether the model is the one with folded weights."""
    gain_of_folding: Ratio | None = None
    """Its speed against the one without, with normfuse; None: there is only one."""


def check_tuning(seconds: float | None, threads: int, target: str) -> None:
    """Raise OptionError where the arguments of a tuning have a value that they cannot have."""
    check_type("tune", seconds, NUMBER, optional=True)
    check_threads("tune_threads", threads)
    if seconds is None:
        return
    if not 0 < seconds < math.inf:
        raise OptionError(f"tune is {seconds}; it must be a number of seconds above 0.")
    if target == "custom-op":
        raise OptionError(
            "tune chooses between normfuse's kernels and ONNX Runtime's, and custom operators have normfuse's alone; "
            "use the target portable or standard."
        )


def tune_model(
    source: Source,
    rewritten: ir.Model,
    *,
    folded: ir.Model | None = None,
    seconds: float = TUNE_SECONDS,
    threads: int = 1,
    inputs: Inputs | None = None,
    progress: Progress | None = None,
) -> Tuned:
    """Measure which groups of chains make the model faster, and store the decisions in a copy of it.

    Args:
        source: The original; what the result is compared with.
        rewritten: What the rewriting pass made of it; it is not changed.
        folded: The same with weights that are dequantised once; taken where it is faster for certain.
        seconds: How long to measure; sessions that take long to create can make it longer.
        threads: Threads inside an operator; 0: ONNX Runtime's default.
        inputs: As for :func:`normfuse.optimize`; the first sample is used.
        progress: Called with (what is being done, steps done, steps in all).

    Raises:
        InvalidModelError: ONNX Runtime cannot load the model.
        VerificationError: No input could be made that the model accepts.
    """
    tell = progress or (lambda what, done, total: None)
    empty = Decisions(instruction_set(), import_host().__version__)
    tell("tuning: making inputs", 0, 0)
    samples, _ = reference(source.model, source.name, inputs, 1, 0, typical=True)
    clock, counted = clock_for(threads)
    copies = {"rewritten": rewritten.clone(), "original": source.model.clone()}
    bench = _ModelBench(source, copies, samples[0], threads, clock, seconds, tell)
    is_folded, gain = (False, None) if folded is None else bench.choose_weights(folded.clone(), empty)
    found = search(bench, empty, seconds)
    model = copies[found.written]
    found.decisions.store(model)
    report = TuningReport(
        isa=empty.isa,
        onnxruntime=empty.onnxruntime,
        threads=threads,
        clock=counted,
        seconds=bench.elapsed(),
        noise=found.noise,
        others=found.decisions.others,
        starts=found.starts,
        groups=_group_results(found),
        written=found.written,
        original_again=found.original_again,
        speedup=found.speedup,
    )
    return Tuned(model, report, is_folded and found.written == "rewritten", gain)


def _group_results(found: Found) -> tuple[GroupResult, ...]:
    trials = {group: trial for trial in found.trials for group in trial.groups}  # the last one, of the fewest groups
    results = [
        GroupResult(
            group=group,
            sites=found.by_cost_model[group].sites if group in found.by_cost_model else 0,
            on=on,
            by_cost_model=group in found.by_cost_model and found.by_cost_model[group].claimed,
            gain=trials[group].gain if group in trials else None,
            error=max(found.noise, trials[group].ratio.error) if group in trials else None,
            measured_with=len(trials[group].groups) if group in trials else 0,
        )
        for group, on in found.claimed.items()
    ]
    return tuple(sorted(results, key=lambda one: (-(one.gain or 0), -one.sites, one.group)))


@dataclasses.dataclass
class _ModelBench:
    """Runs a model in sessions of onnxruntime."""

    source: Source
    copies: dict[str, ir.Model]
    """The models that take decisions, by what is written of them."""
    sample: Sample
    threads: int
    clock: Clock
    seconds: float
    tell: Progress
    start: float = dataclasses.field(default_factory=time.monotonic)

    def original(self) -> Way:
        """Return the original without normfuse."""
        session = open_session(self.source.model, self.source.name, threads=self.threads)
        return Way(bound_run(session, self.sample), {})

    def rewritten(self, decisions: Decisions) -> Way:
        """Return the rewritten model with normfuse and these decisions."""
        return self._deciding(self.copies["rewritten"], decisions)

    def untouched(self, decisions: Decisions) -> Way:
        """Return the original with normfuse and these decisions."""
        return self._deciding(self.copies["original"], decisions)

    def choose_weights(self, folded: ir.Model, empty: Decisions) -> tuple[bool, Ratio]:
        """Take a copy with folded weights for the rewritten one if it is faster; return whether, and its speed."""
        ways = [self.rewritten(empty), self.rewritten(empty), self._deciding(folded, empty)]
        first, again, other = self.measure(ways, self.seconds * _FOR_WEIGHTS)
        ratio = ratio_of(first, other)
        is_faster = ratio.median > 1 + max(noise_of(ratio_of(first, again)), ratio.error)
        if is_faster:
            self.copies["rewritten"] = folded
        return is_faster, ratio

    def measure(self, ways: Sequence[Way], seconds: float) -> list[Rounds]:
        """Run them in turn for so long."""
        runs = [way.run for way in ways]
        return take_turns(runs, seconds, lambda *_: self._tell_time(), self.clock)

    def elapsed(self) -> float:
        """Return the seconds since this was made."""
        return time.monotonic() - self.start

    def _deciding(self, model: ir.Model, decisions: Decisions) -> Way:
        self._tell_time()
        decisions.store(model)
        with tempfile.TemporaryDirectory(prefix="normfuse.") as folder:
            report = Path(folder) / "claims.jsonl"
            options = {"claim_report": report}
            session = open_session(model, self.source.name, ep_options=options, threads=self.threads)
            sites = {(line["graph"], line["node"]): line for line in read_claim_report(report) if "group" in line}
        counts = Counter(line["group"] for line in sites.values())
        claimed = {line["group"] for line in sites.values() if line["claimed"]}
        groups = {group: GroupSites(count, group in claimed) for group, count in counts.items()}
        return Way(bound_run(session, self.sample), groups)

    def _tell_time(self) -> None:
        done, total = int(self.elapsed() * 10), int(self.seconds * 10)
        self.tell("tuning", min(done, total), total)
