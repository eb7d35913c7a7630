"""Print the branches of the native library that no test takes: ``python tools/coverage.py [--python] [--isas]``.

Builds it by gcc with NORMFUSE_COVERAGE into ``build/coverage``, runs the native tests (with ``--python`` also the
operator tests, on that library) and prints for each file of `FOLDERS` how many branches were taken, then each line with
one that never was. What only throws does not count. Kernels are compiled for each instruction set and several types: a
branch was taken where any of them took it; ``--isas`` also lists what only one of the instruction sets that have it
took. ``--report`` prints what an earlier run has counted.
"""

import argparse
import json
import math
import os
import re
import subprocess
import sys
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "coverage"
FOLDERS = ("ep/cpu/", "ep/chain/", "ep/plugin/")
# Other lines have the branches of what is inlined there.
CONDITION = re.compile(r"\b(?:if|for|while|switch|case|do)\b|\?|&&|\|\||&=|\|=")
ISA = re.compile(r"(?:kernels|isa_functions)_(\w+?)[./]")


@dataclass
class Line:
    """What is known of one line."""

    runs: int = 0
    # By the instruction set and the number of branches of each instance of a template: which of them were taken.
    instances: dict[tuple[str, int], list[bool]] = field(default_factory=dict)

    def branches(self) -> list[set[str]]:
        """Of each branch who took it.

        What is inlined several times has as many branches at its line: their common divisor is what the line has. Of
        kernels no instance may have them once: there a line counts as one condition.
        """
        counts = {2 * (isa != "any") or count for isa, count in self.instances}
        takers: list[set[str]] = [set() for _ in range(math.gcd(*counts))]
        for (isa, _), taken in self.instances.items():
            for i, was_taken in enumerate(taken):
                if was_taken:
                    takers[i % len(takers)].add(isa)
        return takers


def run(*command: str | Path, **variables: str) -> None:
    """Run a command in the repository; tests that fail have counted, too."""
    done = subprocess.run(list(map(str, command)), cwd=ROOT, env={**os.environ, **variables}, check=False)
    if done.returncode:
        print(f"exit code {done.returncode}: {' '.join(map(str, command))}", file=sys.stderr)


def count(with_python: bool) -> None:
    """Build, and run the tests."""
    flags = ["-DNORMFUSE_BUILD_TESTS=ON", "-DNORMFUSE_COVERAGE=ON", "-DCMAKE_BUILD_TYPE=Coverage"]
    run("cmake", "-S", "ep", "-B", BUILD, "-G", "Ninja", *flags)
    run("ninja", "-C", BUILD, "native_tests", "normfuse")
    for counted in BUILD.rglob("*.gcda"):
        counted.unlink()
    run("ctest", "--test-dir", BUILD, "--output-on-failure")
    if with_python:
        tests = ("tests/operators", "-q", "-n", "2", "-m", "not slow and not cross")
        run(sys.executable, "-m", "pytest", *tests, NORMFUSE_LIBRARY=str(BUILD / "libnormfuse.so"))


def read() -> dict[str, dict[int, Line]]:
    """By file and number, the lines of all that was compiled."""
    lines: dict[str, dict[int, Line]] = defaultdict(lambda: defaultdict(Line))
    for notes in sorted(BUILD.rglob("*.gcno")):
        isa = found[1] if (found := ISA.search(str(notes.relative_to(BUILD)))) else "any"
        command = ["gcov", "--json-format", "--stdout", "--branch-probabilities", str(notes)]
        text = subprocess.run(command, capture_output=True, check=True, text=True).stdout
        for source in json.loads(text)["files"] if text else ():
            path = os.path.relpath(BUILD / source["file"], ROOT)
            if path.startswith(FOLDERS):
                for line in source["lines"]:
                    _add(lines[path][line["line_number"]], line, isa)
    return lines


def _add(line: Line, counted: dict[str, Any], isa: str) -> None:
    line.runs += counted["count"]
    taken = [branch["count"] > 0 for branch in counted["branches"] if not branch["throw"]]
    if len(taken) > 1:
        before = line.instances.get((isa, len(taken)), taken)
        line.instances[isa, len(taken)] = [a or b for a, b in zip(before, taken, strict=True)]


def report(lines: dict[str, dict[int, Line]], with_isas: bool) -> None:
    """Print the table and the list."""
    found: list[str] = []
    for path, of_path in sorted(lines.items()):
        text = (ROOT / path).read_text(encoding="utf-8").splitlines()
        total = taken = 0
        for number, line in sorted(of_path.items()):
            source = text[number - 1].strip()
            branches = line.branches() if CONDITION.search(source) else []
            never = branches.count(set())
            total += len(branches)
            taken += len(branches) - never
            only = {min(takers) for takers in branches if len(takers) == 1} - {"any"}
            if not line.runs and source.strip("{};)"):
                found.append(f"{path}:{number}: never run: {source}")
            elif never:
                found.append(f"{path}:{number}: {never} of {len(branches)} never taken: {source}")
            elif with_isas and only and len({isa for isa, _ in line.instances}) > 1:
                found.append(f"{path}:{number}: only on {', '.join(sorted(only))}: {source}")
        print(f"{path:40} {taken:6,} of {total:6,} branches")
    print(*found, sep="\n")


def main() -> None:
    """Count, then report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", action="store_true", help="the operator tests, too")
    parser.add_argument("--isas", action="store_true", help="list what only one instruction set took")
    parser.add_argument("--report", action="store_true", help="only print what was counted before")
    arguments = parser.parse_args()
    if not arguments.report:
        count(arguments.python)
    report(read(), arguments.isas)


if __name__ == "__main__":
    main()
