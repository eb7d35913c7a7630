"""The search for the best decisions: pure, over whatever is measured.

First the whole model with every group off, with what the cost model takes, and with every group on; the fastest of
them is where the search starts. Then one set of groups after the other is turned the other way: first all shapes of a
kind of chain together, then, as long as there is time, halves of these. A change stays if the model is faster by more
than the noise, and is so again in two new sessions: where a session's memory happens to lie moves a model, too.
"""

from __future__ import annotations

import collections
import dataclasses
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from normfuse.measuring.timing import Ratio, Rounds, ratio_of
from normfuse.tuning.decisions import Decisions, Others
from normfuse.tuning.report import Written

LEAST_NOISE = 0.003
"""A smaller difference is never believed."""
_STARTS: tuple[Others, ...] = ("off", "cost", "on")
# Parts of the whole time.
_FOR_STARTS, _UNTIL_FINAL = 0.25, 0.75
_TRIAL_SECONDS = 0.3, 3.0


@dataclasses.dataclass(frozen=True)
class GroupSites:
    """A group in a session."""

    sites: int
    claimed: bool


@dataclasses.dataclass(frozen=True)
class Way:
    """A way of running the model: a session."""

    run: Callable[[], None]
    groups: Mapping[str, GroupSites]
    """What the execution provider saw; nothing for a session without it."""


class Bench(Protocol):
    """What runs the model."""

    def original(self) -> Way:
        """Return the original without normfuse."""

    def rewritten(self, decisions: Decisions) -> Way:
        """Return the rewritten model with normfuse and these decisions."""

    def untouched(self, decisions: Decisions) -> Way:
        """Return the original with normfuse and these decisions."""

    def measure(self, ways: Sequence[Way], seconds: float) -> list[Rounds]:
        """Run them in turn for so long."""

    def elapsed(self) -> float:
        """Return the seconds since the bench was made."""


@dataclasses.dataclass(frozen=True)
class Trial:
    """Some groups turned on or off together."""

    groups: tuple[str, ...]
    on: bool
    ratio: Ratio
    """How many times as fast the model became."""

    @property
    def gain(self) -> float:
        """How many times as fast the model is with them on as with them off."""
        return self.ratio.median if self.on else 1 / self.ratio.median


@dataclasses.dataclass(frozen=True)
class Found:
    """What the search found."""

    decisions: Decisions
    written: Written
    noise: float
    starts: Mapping[str, Ratio]
    by_cost_model: Mapping[str, GroupSites]
    claimed: Mapping[str, bool]
    """Group -> what became of it."""
    trials: tuple[Trial, ...]
    original_again: Ratio
    speedup: Ratio


def search(bench: Bench, empty: Decisions, seconds: float) -> Found:
    """Look for the decisions with which the model is fastest, and compare the result with the original.

    Args:
        bench: What runs the model.
        empty: Decisions that only say where they hold.
        seconds: How long it may take.
    """
    return _Search(bench, empty, seconds).found()


def parts_of(groups: Mapping[str, object]) -> list[tuple[str, ...]]:
    """Return groups that differ in their shapes alone together, the smallest shapes first."""
    families = collections.defaultdict(list)
    for group in groups:
        families[re.sub(r"\[[^\[\]]*\]", "", group)].append(group)
    return [tuple(sorted(family, key=_size)) for family in families.values()]


def _size(group: str) -> int:
    shape = re.search(r"\[([^\[\]]*)\]", group)
    return math.prod(int(dim) for dim in shape[1].split(",") if dim.isdigit()) if shape else 0


class _Search:
    def __init__(self, bench: Bench, empty: Decisions, seconds: float) -> None:
        self._bench = bench
        self._empty = empty
        self._seconds = seconds
        self._noise = LEAST_NOISE
        self._trials: list[Trial] = []

    def found(self) -> Found:
        decisions, starts, ways = self._start()
        seen: dict[str, GroupSites] = {}
        for way in ways.values():
            for group, sites in way.groups.items():
                seen[group] = max(seen.get(group, sites), sites, key=lambda one: one.sites)
        by_cost_model = {
            group: ways["cost"].groups.get(group, GroupSites(of.sites, claimed=False)) for group, of in seen.items()
        }
        current = ways[decisions.others]
        ways.clear()  # sessions take memory
        decisions = self._try_groups(decisions, current, seen)
        del current
        result, written, again, speedup = self._final(decisions)
        claimed = {group: sites.claimed for group, sites in result.groups.items()}
        if written == "rewritten":
            # What was not tried is as it is by what `others` says.
            tried = {group for trial in self._trials for group in trial.groups} & set(claimed)
            decided = {**decisions.groups, **{group: claimed[group] for group in claimed if group in tried}}
            decisions = dataclasses.replace(decisions, groups=decided)
        else:
            decisions, claimed = dataclasses.replace(self._empty, others="off"), dict.fromkeys(seen, False)
        return Found(
            decisions, written, self._noise, starts, by_cost_model, claimed, tuple(self._trials), again, speedup
        )

    def _start(self) -> tuple[Decisions, dict[str, Ratio], dict[str, Way]]:
        """Return the decisions to start with, the speed of all that were tried, and their sessions."""
        ways: dict[str, Way] = {
            start: self._bench.rewritten(dataclasses.replace(self._empty, others=start)) for start in _STARTS
        }
        originals = [self._bench.original(), self._bench.original()]
        first, again, *others = self._bench.measure([*originals, *ways.values()], self._seconds * _FOR_STARTS)
        self._noise = noise_of(ratio_of(first, again))
        starts: dict[str, Ratio] = {start: ratio_of(first, rounds) for start, rounds in zip(ways, others, strict=True)}
        best: Others = "cost"
        for start in _STARTS:
            # The cost model stays unless another start is better for certain.
            if starts[start].median > starts[best].median * (1 + max(self._noise, starts[start].error)):
                best = start
        return dataclasses.replace(self._empty, others=best), starts, ways

    def _try_groups(self, decisions: Decisions, current: Way, seen: Mapping[str, GroupSites]) -> Decisions:
        parts = parts_of(seen)
        parts.sort(key=lambda part: -sum(seen[group].sites for group in part))
        queue = collections.deque(parts)
        left = self._seconds * _UNTIL_FINAL - self._bench.elapsed()
        least, most = _TRIAL_SECONDS
        slice_seconds = max(least, min(most, left / (2 * max(1, len(parts)))))
        hidden: list[tuple[str, ...]] = []
        while queue and self._bench.elapsed() < self._seconds * _UNTIL_FINAL:
            part = queue.popleft()
            for on in (True, False):
                states = {current.groups[group].claimed for group in part if group in current.groups}
                if not states and part not in hidden:
                    hidden.append(part)  # in the body of a function whose call is claimed
                if states <= {on}:
                    continue
                changed = decisions.deciding(part, on)
                way = self._try(decisions, current, changed, (part, on), slice_seconds)
                if way is not None:
                    decisions, current = changed, way
                    queue += hidden
                    hidden.clear()
            if len(part) > 1 and part not in hidden:
                queue += [part[: len(part) // 2], part[len(part) // 2 :]]
        return decisions

    def _try(
        self,
        decisions: Decisions,
        current: Way,
        changed: Decisions,
        trial: tuple[tuple[str, ...], bool],
        seconds: float,
    ) -> Way | None:
        """Return the session with the change if it is faster, twice."""
        way = self._bench.rewritten(changed)
        ratio = self._ratio(current, way, seconds)
        if self._is_faster(ratio):
            way = self._bench.rewritten(changed)
            ratio = self._ratio(self._bench.rewritten(decisions), way, seconds)
        self._trials.append(Trial(*trial, ratio))
        return way if self._is_faster(ratio) else None

    def _ratio(self, base: Way, other: Way, seconds: float) -> Ratio:
        before, after = self._bench.measure([base, other], seconds)
        return ratio_of(before, after)

    def _is_faster(self, ratio: Ratio) -> bool:
        return ratio.median > 1 + max(self._noise, ratio.error)

    def _final(self, decisions: Decisions) -> tuple[Way, Written, Ratio, Ratio]:
        """Compare what is to be written with the original; what is slower is not written."""
        seconds = self._seconds * (1 - _UNTIL_FINAL)
        written: Written = "rewritten"
        result = self._bench.rewritten(decisions)
        again, speedup = self._against_original(result, seconds)
        if speedup.median < 1 - max(noise_of(again), speedup.error):
            result, written = self._bench.untouched(dataclasses.replace(self._empty, others="off")), "original"
            again, speedup = self._against_original(result, seconds)
        return result, written, again, speedup

    def _against_original(self, way: Way, seconds: float) -> tuple[Ratio, Ratio]:
        originals = [self._bench.original(), self._bench.original()]
        first, again, rounds = self._bench.measure([*originals, way], seconds)
        return ratio_of(first, again), ratio_of(first, rounds)


def noise_of(again: Ratio) -> float:
    """Return what two sessions on the same model differ by."""
    return max(abs(again.median - 1), again.error, LEAST_NOISE)
