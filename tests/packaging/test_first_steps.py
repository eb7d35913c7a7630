"""What a newcomer's machine may lack: each time one sentence that says what to do."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# A compiler that CMake takes for an old gcc, or for one that it does not know.
WRAPPER = '#!/bin/sh\nexec {compiler} -Wno-builtin-macro-redefined {macros} "$@"\n'


def configure(build: Path, **variables: str) -> str:
    """Return what CMake prints when it configures the build and fails, in one line."""
    cmake, ninja = shutil.which("cmake"), shutil.which("ninja")
    assert cmake is not None
    assert ninja is not None
    command = [cmake, "-S", str(ROOT / "ep"), "-B", str(build), "-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={ninja}"]
    environment = {name: value for name, value in os.environ.items() if name not in ("CXX", "CC")} | variables
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode != 0
    return " ".join((done.stdout + done.stderr).split())


@pytest.mark.parametrize("variables", [{}, {"CXX": "/no/such/compiler"}], ids=["none", "wrong CXX"])
def test_without_a_compiler(variables: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    printed = configure(tmp_path / "build", PATH=str(tmp_path / "bin"), **variables)
    assert "normfuse needs a C++20 compiler, and none was found. On Debian and Ubuntu: apt-get install g++" in printed


@pytest.mark.parametrize(
    ("macros", "sentence"),
    [
        ("-U__GNUC__ -D__GNUC__=9", "normfuse needs GNU 12 or newer for C++20, and this is 9."),
        ("-D__INTEL_LLVM_COMPILER=20230000", "built by gcc 12 or clang 16 or newer, and this compiler is IntelLLVM"),
    ],
)
def test_with_another_compiler(macros: str, sentence: str, tmp_path: Path) -> None:
    wrapper = tmp_path / "c++"
    wrapper.write_text(WRAPPER.format(compiler=shutil.which("c++"), macros=macros))
    wrapper.chmod(0o755)
    assert sentence in configure(tmp_path / "build", CXX=str(wrapper))


@pytest.mark.cross
def test_on_a_processor_without_avx2() -> None:
    """All of it, ONNX Runtime included, on an emulated processor of 2008: no instruction may be too new."""
    assert shutil.which("qemu-x86_64"), "qemu is not installed (on Debian: apt-get install qemu-user)"
    code = "import sys; from normfuse.cli import main; sys.argv = ['normfuse', 'doctor', '--json']; main()"
    command = ["qemu-x86_64", "-cpu", "Nehalem", sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    findings = {finding["name"]: finding for finding in json.loads(done.stdout)["findings"]}
    assert findings["instruction set"]["text"] == "baseline"
    assert findings["session"]["ok"]
    assert done.returncode == 0
