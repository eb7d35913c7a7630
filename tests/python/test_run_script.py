"""tests/run.py: which steps it runs, and what it leaves running."""

import contextlib
import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).resolve().parents[1] / "run.py"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script, with steps that only note that they ran."""
    spec = importlib.util.spec_from_file_location("run_script", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.ran = []
    for name in module.STEPS:
        monkeypatch.setitem(module.STEPS, name, lambda rest, name=name: module.ran.append((name, rest)))
    monkeypatch.setattr(module, "check_tools", lambda: None)
    module.fetching = []

    @contextlib.contextmanager
    def models_are_fetched() -> Iterator[None]:
        module.fetching.append(list(module.ran))
        try:
            yield
        finally:
            module.fetching.append(list(module.ran))

    monkeypatch.setattr(module, "models_are_fetched", models_are_fetched)
    monkeypatch.setenv("NORMFUSE_TEST_CACHE", "unused")
    return module


@pytest.mark.parametrize(
    ("arguments", "steps"),
    [
        ("", "install native pytest"),
        ("--all", "install native pytest sanitized wheels cross slow isas vnni export applications"),
        ("--step windows", "windows"),
        ("--step pytest --step install", "pytest install"),
        ("--step everything", ""),
    ],
)
def test_steps(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: str, steps: str
) -> None:
    """An unknown one names those that there are."""
    monkeypatch.setattr(sys, "argv", ["run.py", *arguments.split(), "-x"])
    with contextlib.nullcontext() if steps else pytest.raises(SystemExit):
        script.main()
    assert script.ran == [(step, ["-x"]) for step in steps.split()]
    message = capsys.readouterr().err
    assert steps or all(step in message for step in script.STEPS)


def test_models_are_fetched_behind_the_installation(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until the end, or a step that fails."""
    monkeypatch.setattr(sys, "argv", ["run.py"])
    script.main()
    assert [[name for name, _ in ran] for ran in script.fetching] == [["install"], ["install", "native", "pytest"]]
    script.fetching.clear()
    script.ran.clear()
    monkeypatch.setitem(script.STEPS, "native", lambda rest: script.end_if_failed(3, "native"))
    with pytest.raises(SystemExit):
        script.main()
    assert [[name for name, _ in ran] for ran in script.fetching] == [["install"], ["install"]]


@pytest.mark.parametrize("at_interruption", ["", "exit"])
def test_a_process_ends_with_what_it_started(script: ModuleType, at_interruption: str) -> None:
    """Also what ignores that it is interrupted. The pipe ends when nobody holds it any more."""
    command = ["sh", "-c", f"trap '' INT; sleep 60 & trap '{at_interruption}' INT; echo begun; wait; sleep 60"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True)
    with process.stdout:
        os.read(process.stdout.fileno(), 6)
        script.end_group(process, patience=0.2)
        assert process.stdout.read() == b""
    assert process.returncode is not None
