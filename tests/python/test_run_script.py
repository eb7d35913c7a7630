"""tests/run.py: which steps it runs."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).resolve().parents[1] / "run.py"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script, with steps that only note that they ran."""
    spec = importlib.util.spec_from_file_location("run_script", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.ran = []
    for name in module.STEPS:
        monkeypatch.setitem(module.STEPS, name, lambda rest, name=name: module.ran.append((name, rest)))
    monkeypatch.setattr(module, "check_tools", lambda: None)
    monkeypatch.setenv("NORMFUSE_TEST_CACHE", "unused")
    return module


@pytest.mark.parametrize(
    ("arguments", "steps"),
    [
        ([], ["install", "native", "pytest"]),
        (["--all"], ["install", "native", "pytest", "sanitized", "wheels", "cross", "slow", "isas", "vnni", "export"]),
        (["--step", "windows"], ["windows"]),
        (["--step", "pytest", "--step", "install"], ["pytest", "install"]),
    ],
)
def test_steps(script: ModuleType, monkeypatch: pytest.MonkeyPatch, arguments: list[str], steps: list[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["run.py", *arguments, "-x"])
    script.main()
    assert script.ran == [(step, ["-x"]) for step in steps]


def test_unknown_step_names_those_that_there_are(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["run.py", "--step", "everything"])
    with pytest.raises(SystemExit):
        script.main()
    message = capsys.readouterr().err
    assert all(step in message for step in script.STEPS)
    assert script.ran == []
