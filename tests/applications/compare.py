"""Applications from the package index, with normfuse and without: same results, and what it gains and costs.

``python compare.py PYTHON [--lean] [NAME ...]``, where PYTHON has normfuse[all-applications]: tests/run.py makes it.
Times are those of the fastest calls, speed the first through the second. Start is until the first result: without
normfuse, with it, and with what it then has on disk; memory, likewise, is the most that one process had.
"""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PROGRAMS = Path(__file__).with_name("programs.py")


@dataclass(frozen=True)
class Application:
    """One of programs.py, and what is expected of it."""

    name: str
    sessions: int
    """That run with normfuse, those of its processes together."""
    lean: bool = True
    command: tuple[str, ...] = ()
    """Of normfuse, instead of NORMFUSE=1."""
    tolerance: float = 1e-3
    """Between numbers. Text, labels, boxes and counts are equal."""


APPLICATIONS = (
    Application("rapidocr", 3),
    Application("rapidocr_onnxruntime", 3),
    Application("magika", 1),
    Application("ddddocr", 2),
    Application("fastembed", 1),
    Application("service", 2, command=("-m", "normfuse", "run")),
    Application("faster_whisper", 1, lean=False),
    Application("silero_vad", 1, lean=False),
    Application("sentence_transformers", 1, lean=False),
    Application("optimum", 1, lean=False, command=("-m", "normfuse", "run")),
)


class Run:
    """A process of an application, up to its first result."""

    def __init__(self, application: Application, python: str, cache: Path, *, normfuse: bool, whole: ExitStack) -> None:
        self._log = whole.enter_context((cache / f"log{time.monotonic_ns()}").open("w+"))
        variables = {key: value for key, value in os.environ.items() if not key.startswith("NORMFUSE")}
        variables |= {"HF_HUB_OFFLINE": "1", "NORMFUSE_CACHE": str(cache / "prepared"), "NORMFUSE_LOG": "info"}
        before = application.command if normfuse else ()
        if normfuse and not before:
            variables["NORMFUSE"] = "1"
        began = time.perf_counter()
        self._process = subprocess.Popen(
            [python, *before, str(PROGRAMS), application.name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=variables,
            text=True,
        )
        whole.callback(self._process.kill)
        self.result = self._answer()["result"]
        self.start = time.perf_counter() - began

    def call(self) -> float:
        """Seconds of one call, whose result is as the first one's."""
        self._ask()
        answer = self._answer()
        require_same(self.result, answer["result"], 1e-6)
        return float(answer["seconds"])

    def end(self) -> float:
        """Return its memory in MiB."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        memory = float(self._answer()["memory"])
        assert self._process.wait(60) == 0, self.log()
        return memory

    def log(self) -> str:
        self._log.seek(0)
        return self._log.read()

    def _ask(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"it ended with {self._process.wait()}:\n{self.log()}"
        answer: dict[str, Any] = json.loads(line)
        return answer


def require_same(plain: Any, ours: Any, tolerance: float, where: str = "result") -> None:
    """The same value, with numbers of floating point within a tolerance."""
    if isinstance(plain, list) and isinstance(ours, list):
        assert len(plain) == len(ours), f"{where}: {len(ours)} for {len(plain)}"
        for i, (one, other) in enumerate(zip(plain, ours, strict=True)):
            require_same(one, other, tolerance, f"{where}[{i}]")
    elif isinstance(plain, float) and isinstance(ours, float):
        assert math.isclose(plain, ours, rel_tol=tolerance, abs_tol=tolerance), f"{where}: {ours} for {plain}"
    else:
        assert plain == ours, f"{where}: {ours!r} for {plain!r}"


def compared(application: Application, python: str, seconds: float) -> list[str]:
    """Run one and return its row."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as whole:
        plain, first, second = (
            Run(application, python, Path(folder), normfuse=normfuse, whole=whole) for normfuse in (False, True, True)
        )
        runs = (plain, first, second)
        for run in (first, second):
            require_same(plain.result, run.result, application.tolerance)
        memories = [first.end()]
        fastest = list(map(min, in_turns(plain, second, seconds)))
        memories = [plain.end(), *memories, second.end()]
        assert "normfuse" not in plain.log()
        for run in (first, second):
            taken = len(re.findall(r"^normfuse: runs ", run.log(), re.MULTILINE))
            assert taken == application.sessions, f"{taken} of {application.sessions} sessions with it:\n{run.log()}"
    return [
        application.name,
        *(f"{1000 * each:.1f}" for each in fastest),
        f"{fastest[0] / fastest[1]:.2f}",
        *(f"{run.start:.1f}" for run in runs),
        *(f"{memory:.0f}" for memory in memories),
    ]


def in_turns(plain: Run, ours: Run, seconds: float) -> tuple[list[float], list[float]]:
    """Times of calls, one and the other in turns, so that a machine's load meets both."""
    times: tuple[list[float], list[float]] = [], []
    began = time.perf_counter()
    while len(times[0]) < 4 or (len(times[0]) < 100 and time.perf_counter() - began < seconds):
        turn = list(zip((plain, ours), times, strict=True))
        for run, of in turn if len(times[0]) % 2 else turn[::-1]:  # threads of the one before may spin for a while
            of.append(run.call())
    return times


HEADER = "application", "ms", "normfuse", "speed", "start s", "1st", "2nd", "MiB", "1st", "2nd"


def main() -> int:
    """Print the table; 1 where an application broke, or had another result."""
    python, *rest = sys.argv[1:]
    names = [argument for argument in rest if not argument.startswith("-")]  # others are pytest's
    lean = "--lean" in rest
    broken = []
    row = "{:22}" + "{:>10}" * (len(HEADER) - 1)
    print(row.format(*HEADER), flush=True)
    for application in APPLICATIONS:
        if application.name in names if names else application.lean or not lean:
            try:
                print(row.format(*compared(application, python, 1 if lean else 10)), flush=True)
            except AssertionError as error:
                broken.append(application.name)
                print(f"{application.name} BROKE: {error}", flush=True)
    print(f"\n{len(broken)} broke{': ' * bool(broken)}{', '.join(broken)}")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
