"""A C++ host application (host/) with the real ONNX Runtime library: on Linux, and as a Windows program under Wine."""

import json
import os
import shutil
import subprocess
import sys
import zipfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import directml_libraries as libraries
import pytest
from cache_folder import CACHE
from cases import RUNS, write_manifest

HERE = Path(__file__).parent
SOURCES = sorted((HERE / "host").glob("*.cc"))
WINDOWS_HOSTS = ("1.24.4", "1.31.1")
# -s as in ep/cmake/zig.cmake: zig would build its C++ runtime once more for a program that is not stripped.
ZIG = [sys.executable, "-m", "ziglang", "c++", "-target", "x86_64-windows-gnu", "-std=c++20", "-O3", "-s"]

# Compiled by one worker.
LINUX_HOST = pytest.mark.xdist_group("linux host")


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_manifest(tmp_path_factory.mktemp("cases"))


def check_report(output: str, manifest: Path, backend: str = "cpu") -> None:
    """Every case ran and passed, and wrote what was claimed, and for which backend, into a file of any name."""
    expected = [f"ok   {case.name} {route}" for case, route in RUNS]
    lines = output.replace("\r", "").splitlines()
    assert [line for line in lines if line.startswith(("ok ", "FAIL "))] == expected, output
    assert lines[-1] == f"{len(expected)} passed, 0 failed"
    claims = manifest.parent / "claims ß中.jsonl"
    written = [json.loads(line) for line in claims.read_text("utf-8").splitlines()]
    assert {(line["claimed"], line["backend"]) for line in written} == {(True, backend)}
    claims.unlink()


@pytest.fixture(scope="module")
def linux_host(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """The host program and the library of the installed onnxruntime."""
    package = find_spec("onnxruntime")
    assert package.origin is not None
    (runtime,) = (Path(package.origin).parent / "capi").glob("libonnxruntime.so.*")
    program = tmp_path_factory.mktemp("linux") / "host"
    subprocess.run(["c++", "-std=c++20", "-O1", "-o", program, *SOURCES, "-ldl"], check=True)
    return [program, runtime]


def run_linux(command: list[Any], **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **variables}
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False, env=environment)


@LINUX_HOST
def test_linux_host(linux_host: list[Any], library: str, manifest: Path) -> None:
    done = run_linux([*linux_host, library, manifest])
    check_report(done.stdout, manifest)
    assert done.returncode == 0


def directml_options(fake: str, relative: str) -> list[str]:
    """A device is chosen by its LUID, so all three libraries are needed."""
    names = {"directml_library": relative, "d3d12_library": fake, "dxcore_library": fake}
    return ["backend=directml", *(f"{option}={path}" for option, path in names.items())]


@LINUX_HOST
@pytest.mark.parametrize("backend", ["cpu", "directml"])
def test_linux_host_with_a_gpu(linux_host: list[Any], library: str, manifest: Path, backend: str) -> None:
    fake = libraries.build_fake()
    options = directml_options(str(fake), os.path.relpath(fake)) if backend == "directml" else []
    command = [*linux_host, libraries.build_fake_gpu(), manifest, *options]
    done = run_linux(command, NORMFUSE_BEHIND_FAKE_GPU=library)
    check_report(done.stdout, manifest, backend)


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
        library = Path(archive.extract("normfuse/normfuse.dll", folder))
    program = folder / "host.exe"
    subprocess.run([*ZIG, "-o", program, *SOURCES], check=True)
    return program, library


def wine(*command: Any, prefix: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Output through a pipe and no input: with anything else Wine may hang."""
    environment = {**os.environ, "WINEDEBUG": "-all", "WINEPREFIX": str(prefix), "DISPLAY": "", **variables}
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


@pytest.fixture(scope="module")
def windows_gpu(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """fake_gpu.dll."""
    target = tmp_path_factory.mktemp("windows-gpu") / "fake_gpu.dll"
    include = ["-I", libraries.ROOT / "ep"]
    subprocess.run([*ZIG, "-shared", *include, "-o", target, libraries.FAKE_GPU], check=True)
    return target


@pytest.mark.cross
@pytest.mark.parametrize("backend", ["cpu", "directml"])
@pytest.mark.parametrize("version", WINDOWS_HOSTS)
def test_windows_host_with_a_gpu(
    windows: tuple[Path, Path], windows_gpu: Path, manifest: Path, prefix: Path, version: str, backend: str
) -> None:
    """The library itself offers the GPU here. Paths with forward slashes and relative ones find their library."""
    program, library = windows
    fake = libraries.WINDOWS / "native_tests" / "directml" / "fake_directml.dll"
    options = directml_options(f"Z:{fake}", os.path.relpath(fake)) if backend == "directml" else []
    command = [program, windows_runtime(version), windows_gpu, manifest, *options]
    done = wine(*command, prefix=prefix, NORMFUSE_BEHIND_FAKE_GPU=f"Z:{library}")
    check_report(done.stdout, manifest, backend)
