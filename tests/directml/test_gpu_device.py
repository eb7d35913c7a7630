"""A machine with a GPU: nothing but ``backend="directml"`` makes DirectML run the chains, and it says what it lacks.

The GPU is fake (tests/packaging/fake_gpu.cc adds it to the devices that onnxruntime lists), and so is DirectML.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import directml_libraries as libraries
import pytest


def environment(library: str) -> dict[str, str]:
    shim = str(libraries.build_fake_gpu())
    return {**os.environ, "NORMFUSE_LIBRARY": shim, "NORMFUSE_BEHIND_FAKE_GPU": library}


@pytest.fixture(scope="module")
def probe(library: str) -> dict[str, Any]:
    """Outcome of each way of gpu_probe.py."""
    command = [sys.executable, Path(__file__).with_name("gpu_probe.py"), libraries.build_fake()]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(library), check=False)
    assert done.returncode == 0, done.stderr
    outcomes: dict[str, Any] = json.loads(done.stdout)
    return outcomes


def check_runs_on(outcome: dict[str, Any], backend: str) -> None:
    assert outcome.get("backend") == [backend], outcome
    assert outcome["difference"] < 1e-5


@pytest.mark.parametrize("way", ["session_options", "both devices", "registered", "name", "GPU", "back to auto"])
def test_auto_is_the_cpu(probe: dict[str, Any], way: str) -> None:
    check_runs_on(probe[way], "cpu")


WAYS = ["", ", relative", ", relative, plain", ", both devices", ", GPU", ", CPU device", ", LUID"]


@pytest.mark.parametrize("way", [f"directml{how}" for how in WAYS])
def test_directml_runs_where_it_is_asked_for(probe: dict[str, Any], way: str) -> None:
    check_runs_on(probe[way], "directml")


def test_all_that_is_missing_is_named_at_once(probe: dict[str, Any]) -> None:
    message = probe["directml, nothing there"]["error"]
    assert message.startswith("OptionError: Option backend is 'directml': cannot load libdxcore.so")
    for option, library in (("dxcore", "libdxcore.so"), ("d3d12", "libd3d12.so"), ("directml", "libdirectml.so")):
        assert f"cannot load {library} (name the library by the option {option}_library)" in message
    assert message.endswith("; or use backend=cpu.")
    missing = probe["directml, no dxcore"]["error"]
    assert "libdxcore.so" in missing
    assert "d3d12" not in missing


def test_the_adapter_is_the_devices_or_the_options(probe: dict[str, Any]) -> None:
    assert "GetAdapterByLuid failed" in probe["directml, unknown LUID"]["error"]


def test_two_devices_with_options_of_their_own_are_refused(probe: dict[str, Any]) -> None:
    """onnxruntime keeps one set of options for both: it does not run with the other one's."""
    assert "already been registered" in probe["one after the other"]["error"]


def test_doctor_is_content(library: str) -> None:
    command = [sys.executable, "-m", "normfuse", "doctor", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(library), check=False)
    findings = {finding["name"]: finding for finding in json.loads(done.stdout)["findings"]}
    assert [name for name, finding in findings.items() if not finding["ok"]] == []
    assert findings["instruction set"]["text"]
    assert "GPU" in findings["registration"]["text"]
