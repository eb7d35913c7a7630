"""One library file in every supported onnxruntime: the same models through the EP and through the operators."""

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from cases import RUNS, Case, impossible_model, many_nodes_case, write_models
from hosts import host_python
from operator_forms import FORMS, Form, write_forms

pytestmark = pytest.mark.slow
HOSTS = ("1.24.4", "1.26.0", "1.28.0", "1.30.0", "1.31.1", "1.32.0")
TOO_OLD = "1.23.2"
OLDEST = "1.24"
HERE = Path(__file__).parent
ROOT = HERE.parents[1]
# Declared, but asked of GPU devices only, which ORT reports on Windows, for operators between chains on one (tensors as
# attributes), or for a call that a GPU fails.
GPU_ONLY = {
    "GetKeyValue",
    "HardwareDevice_Metadata",
    "KernelContext_GetLogger",
    "OpAttr_GetTensorAttributeAsOrtValue",
}
# Called where the environment asks for memory of the GPU (tests/directml/test_probes.py).
DEVICE_MEMORY_ONLY = {
    "CreateMemoryInfo_V2",
    "EpDevice_AddAllocatorInfo",
    "GetTensorSizeInBytes",
    "MemoryDevice_GetDeviceType",
    "MemoryDevice_GetVendorId",
    "MemoryInfo_GetMemoryDevice",
}


def run_probe(version: str, library: str | Path, folder: Path, **environment: str) -> dict[str, Any]:
    """The report of host_probe.py in this version of onnxruntime."""
    write_models(folder)
    write_forms(folder)
    command = [host_python(version), HERE / "host_probe.py", library, folder]
    variables = {**os.environ, **environment}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, env=variables)
    assert done.returncode == 0, f"onnxruntime {version}: exit code {done.returncode}\n{done.stdout}{done.stderr}"
    report = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    assert report["version"] == version
    return report


@pytest.fixture(scope="module")
def probe(library: str, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """probe(version) -> (folder with results, report); each version is run once."""

    @cache
    def run(version: str) -> tuple[Path, dict[str, Any]]:
        folder = tmp_path_factory.mktemp(f"onnxruntime-{version}")
        return folder, run_probe(version, library, folder)

    return run


@pytest.mark.parametrize(("case", "route"), RUNS, ids=[f"{case.name}-{route}" for case, route in RUNS])
@pytest.mark.parametrize(
    "version", [pytest.param(version, marks=pytest.mark.xdist_group(version)) for version in HOSTS]
)
def test_model(probe: Any, version: str, route: str, case: Case) -> None:
    folder, report = probe(version)
    assert "error" not in report["register"]
    result = report[f"{case.name}.{route}"]
    assert "error" not in result, result
    if route == "plugin":
        ours = [ops for provider, ops in result["assigned"] if provider == "NormFuseExecutionProvider"]
        assert ours == [case.claimed]
    with np.load(folder / f"{case.name}.{route}.result.npz") as outputs:
        case.expected.check(outputs["Y"], f"onnxruntime {version}, {route}")


@pytest.mark.parametrize("route", ["custom", "both"])
@pytest.mark.parametrize("form", FORMS, ids=[form.name for form in FORMS])
@pytest.mark.parametrize(
    "version", [pytest.param(version, marks=pytest.mark.xdist_group(version)) for version in HOSTS]
)
def test_operator_form(probe: Any, version: str, route: str, form: Form) -> None:
    """Each set of outputs loads and runs, by the operators alone and with the execution provider; a lie is refused."""
    folder, report = probe(version)
    result = report[f"{form.name}.{route}"]
    if not form.expected:
        assert "float16" in result["error"]
        return
    assert "error" not in result, result
    if route == "both":
        ours = [op for provider, ops in result["assigned"] if provider == "NormFuseExecutionProvider" for op in ops]
        assert ours.count("FusedNormalization") == form.fused
    with np.load(folder / f"{form.name}.{route}.result.npz") as outputs:
        form.check(dict(outputs))


@pytest.mark.xdist_group(TOO_OLD)
@pytest.mark.parametrize("step", ["register", "float.custom"])
def test_host_below_the_floor_is_refused(probe: Any, step: str) -> None:
    """The message names the version that is needed and the version that is there."""
    _, report = probe(TOO_OLD)
    message = report[step].get("error", "")
    assert "normfuse" in message
    assert OLDEST in message
    assert TOO_OLD in message


def test_what_a_session_says_of_its_inputs_and_outputs() -> None:
    """In the oldest onnxruntime what it says by itself, as in the one that all tests run in."""
    python = host_python(HOSTS[0])
    where = [python, "-c", "import onnxruntime; print(onnxruntime.__path__[0])"]
    packages = Path(subprocess.run(where, capture_output=True, text=True, check=True).stdout).parent
    tests = [ROOT / "tests" / "python" / "test_described_values.py", "-q", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", "-n", "0", *tests]
    environment = {**os.environ, "PYTHONPATH": str(packages)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=ROOT)
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"


@pytest.fixture(scope="module")
def slot_guard(tmp_path_factory: pytest.TempPathFactory) -> Path:
    library = tmp_path_factory.mktemp("slot_guard") / "libslot_guard.so"
    options = ["-std=c++20", "-shared", "-fPIC", "-O1", "-I", ROOT / "ep"]
    subprocess.run(["c++", *options, "-o", library, HERE / "slot_guard.cc", "-ldl"], check=True)
    return library


@pytest.mark.parametrize("version", [HOSTS[0], HOSTS[-1]])
def test_every_slot_is_declared_and_called(library: str, slot_guard: Path, version: str, tmp_path: Path) -> None:
    """slot_guard.cc ends the process on a slot that the header does not declare, and counts those that it does."""
    onnx.save(impossible_model(), tmp_path / "impossible.custom.onnx")
    many = many_nodes_case()
    onnx.save(many.models["plugin"], tmp_path / "many.plugin.onnx")
    np.savez(tmp_path / "many.npz", **many.inputs)
    report = run_probe(version, slot_guard, tmp_path, NORMFUSE_GUARDED_LIBRARY=library)
    assert "fused: axes [9]" in report["impossible.custom"]["error"]
    assert [name for name in (f"{c.name}.{r}" for c, r in RUNS) if "error" in report[name]] == []
    with np.load(tmp_path / "many.plugin.result.npz") as outputs:
        many.expected.check(outputs["Y"], "many nodes")
    counts = {line.split()[1]: int(line.split()[2]) for line in report["slots"]}
    assert {name for name, calls in counts.items() if calls == 0} == GPU_ONLY | DEVICE_MEMORY_ONLY
