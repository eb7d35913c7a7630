"""A C++ host application (host/) with the real ONNX Runtime library: on Linux, and as a Windows program under Wine."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from cases import RUNS, write_manifest
from hosts import CACHE

HERE = Path(__file__).parent
SOURCES = sorted((HERE / "host").glob("*.cc"))
WINDOWS_HOSTS = ("1.24.4", "1.31.1")


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_manifest(tmp_path_factory.mktemp("cases"))


def check_report(output: str, manifest: Path) -> None:
    """Every case ran and passed, and wrote what was claimed into a file of any name."""
    expected = [f"ok   {case.name} {route}" for case, route in RUNS]
    lines = output.replace("\r", "").splitlines()
    assert [line for line in lines if line.startswith(("ok ", "FAIL "))] == expected, output
    assert lines[-1] == f"{len(expected)} passed, 0 failed"
    claims = manifest.parent / "claims ß中.jsonl"
    assert {json.loads(line)["claimed"] for line in claims.read_text("utf-8").splitlines()} == {True}
    claims.unlink()


def test_linux_host(library: str, manifest: Path, tmp_path: Path) -> None:
    package = find_spec("onnxruntime")
    assert package is not None
    assert package.origin is not None
    (runtime,) = (Path(package.origin).parent / "capi").glob("libonnxruntime.so.*")
    program = tmp_path / "host"
    subprocess.run(["c++", "-std=c++20", "-O1", "-o", program, *SOURCES, "-ldl"], check=True)
    done = subprocess.run(
        [program, runtime, library, manifest], capture_output=True, text=True, timeout=300, check=False
    )
    check_report(done.stdout, manifest)
    assert done.returncode == 0


def windows_runtime(version: str) -> Path:
    """onnxruntime.dll out of the published Windows wheel."""
    folder = CACHE / f"onnxruntime-{version}-win_amd64"
    if not (folder / "onnxruntime.dll").exists():
        folder.mkdir(parents=True, exist_ok=True)
        download = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
        download += ["--platform", "win_amd64", "--python-version", "3.11", "--dest", folder]
        subprocess.run([*download, f"onnxruntime=={version}"], check=True)
        (wheel,) = folder.glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            (folder / "part").write_bytes(archive.read("onnxruntime/capi/onnxruntime.dll"))
        (folder / "part").rename(folder / "onnxruntime.dll")
        wheel.unlink()
    return folder / "onnxruntime.dll"


@pytest.fixture(scope="module")
def windows(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The host program and normfuse.dll, both cross-compiled; the library is the one of the Windows wheel."""
    assert shutil.which("wine"), "Wine is not installed (on Debian: apt-get install wine wine64)"
    folder = tmp_path_factory.mktemp("windows")
    (wheel,) = Path(os.environ["NORMFUSE_WHEELS"]).glob("normfuse-*-win_amd64.whl")
    with zipfile.ZipFile(wheel) as archive:
        library = Path(archive.extract("normfuse/ep/normfuse.dll", folder))
    program = folder / "host.exe"
    zig = [sys.executable, "-m", "ziglang", "c++", "-target", "x86_64-windows-gnu", "-std=c++20", "-O3"]
    subprocess.run([*zig, "-o", program, *SOURCES], check=True)
    return program, library


def wine(*command: Any, prefix: Path) -> subprocess.CompletedProcess[str]:
    """Output through a pipe and no input: with anything else Wine may hang."""
    environment = {**os.environ, "WINEDEBUG": "-all", "WINEPREFIX": str(prefix), "DISPLAY": ""}
    arguments = ["wine", *(f"Z:{part}" if isinstance(part, Path) else part for part in command)]
    return subprocess.run(
        arguments, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=environment, timeout=300, check=False
    )


@pytest.fixture(scope="module")
def prefix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wine")
    wine("wineboot", "--init", prefix=folder)
    return folder


@pytest.mark.cross
@pytest.mark.parametrize("version", WINDOWS_HOSTS)
def test_windows_host(windows: tuple[Path, Path], manifest: Path, prefix: Path, version: str) -> None:
    program, library = windows
    done = wine(program, windows_runtime(version), library, manifest, prefix=prefix)
    check_report(done.stdout, manifest)
    assert done.stdout.startswith(f"onnxruntime {version}")
    assert done.returncode == 0
