"""benchmarks/run.py: what it writes, and what it refuses."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "run.py"
JOB = "LayerNorm f32 [1,128,768]"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(SCRIPT), "--quick", *arguments], capture_output=True, text=True)


def test_repeated_runs_are_reported_by_the_median_one(tmp_path: Path) -> None:
    done = run("--threads", "1", "--jobs", JOB, "--peers", "--repeat", "3", "--output", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert [f"run {number} of 3" in done.stdout.splitlines() for number in range(5)] == [False, True, True, True, False]
    (result,) = json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))["results"]
    assert result["job"] == JOB
    assert result["runs"] == sorted(result["runs"])
    assert len(result["runs"]) == 3
    assert result["ratios"]["ORT"] == result["runs"][1]
    assert result["rows"]["normfuse"]["error"] < 1e-6
    assert f"| {JOB} |" in (tmp_path / "results.md").read_text(encoding="utf-8")
    assert JOB in (tmp_path / "results.svg").read_text(encoding="utf-8")


def test_what_cannot_be_measured_is_refused() -> None:
    assert "0 is not a number of runs" in run("--repeat", "0").stderr
    unknown = run("--jobs", "Sin")
    assert unknown.returncode == 2
    assert "no job's name contains 'Sin'" in unknown.stderr
