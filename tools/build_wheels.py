"""Build a wheel for every supported platform on one Linux machine: ``python tools/build_wheels.py [--output dist]``.

The native library is cross-compiled by zig, which brings the C and C++ runtime of every target. Needs the packages of
the extra ``wheels`` (``pip install '.[wheels]'``). The first build for a target also builds zig's C++ runtime for it,
which takes one to three minutes; it is cached for the next.
"""

import argparse
import importlib.util
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# Platform tag of the wheel -> target of zig. The number in a target is the oldest glibc or macOS, as in the tag.
TARGETS = {
    "manylinux_2_28_x86_64": "x86_64-linux-gnu.2.28",
    "win_amd64": "x86_64-windows-gnu",
    "manylinux_2_28_aarch64": "aarch64-linux-gnu.2.28",
    "macosx_11_0_arm64": "aarch64-macos.11.0",
    "macosx_10_15_x86_64": "x86_64-macos.10.15",
}


def zig() -> Path:
    """The compiler of the installed package ziglang."""
    package = importlib.util.find_spec("ziglang")
    if package is None or package.origin is None:
        sys.exit("build_wheels.py: the packages of the extra 'wheels' are needed: pip install '.[wheels]'")
    return Path(package.origin).with_name("zig")


def build(platform_tag: str, output: Path, build_directory: Path, kernels: str) -> Path:
    """Build the wheel for ``platform_tag`` and put it into ``output``; returns its path."""
    settings = {
        "build-dir": str(build_directory / platform_tag),
        "cmake.define.CMAKE_TOOLCHAIN_FILE": str(ROOT / "ep" / "cmake" / "zig.cmake"),
        "cmake.define.NORMFUSE_ZIG": str(zig()),
        "cmake.define.NORMFUSE_ZIG_TARGET": TARGETS[platform_tag],
        # zig's linker strips, and the machine's own `strip` does not know the target's files.
        "install.strip": "false",
        "cmake.define.NORMFUSE_BUILD_TESTS": "OFF",
        "cmake.define.NORMFUSE_KERNELS": kernels,
    }
    options = [f"--config-settings={key}={value}" for key, value in settings.items()]
    with tempfile.TemporaryDirectory() as scratch:
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--quiet", "--no-deps"]
        pip += ["--no-build-isolation"]  # the same cmake and ninja each time, so that an unchanged object stays
        if subprocess.run([*pip, "--wheel-dir", scratch, *options, ROOT], check=False).returncode:
            sys.exit(f"build_wheels.py: the build for {platform_tag} failed; its log is above")
        (wheel,) = Path(scratch).glob("*.whl")
        tags = [sys.executable, "-m", "wheel", "tags", "--remove", "--platform-tag", platform_tag, wheel]
        subprocess.run(tags, check=True, stdout=subprocess.DEVNULL)
        (wheel,) = Path(scratch).glob("*.whl")
        output.mkdir(parents=True, exist_ok=True)
        return Path(shutil.move(wheel, output / wheel.name))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition(":")[0])
    parser.add_argument("--output", type=Path, default=ROOT / "dist", help="folder of the wheels (default: dist)")
    parser.add_argument("--build-directory", type=Path, default=ROOT / "build" / "wheels", help="kept between runs")
    parser.add_argument("--platform", choices=TARGETS, action="append", help="only this one; may be given again")
    tests = "best: what this machine runs, for tests on it, in half the time (default: all)"
    parser.add_argument("--kernels", choices=("all", "best"), default="all", help=tests)
    arguments = parser.parse_args()
    for platform_tag in arguments.platform or TARGETS:
        directory = arguments.build_directory.resolve()
        print(build(platform_tag, arguments.output, directory, arguments.kernels), flush=True)


if __name__ == "__main__":
    main()
