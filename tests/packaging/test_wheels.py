"""The wheels of all platforms, made by tools/build_wheels.py: tags, contents, library."""

import os
import re
import subprocess
import zipfile
from collections.abc import Callable
from email.parser import HeaderParser
from pathlib import Path, PurePosixPath

import pytest
from binaries import ADDED_FOR_MACOS, ENTRY_POINTS, GLIBC, LARGEST, Binary, read_elf, read_macho, read_pe

ROOT = Path(__file__).resolve().parents[2]
PLATFORMS = {
    "manylinux_2_28_x86_64": ("x64", "libnormfuse.so"),
    "manylinux_2_28_aarch64": ("AArch64", "libnormfuse.so"),
    "win_amd64": ("IMAGE_FILE_MACHINE_AMD64", "normfuse.dll"),
    "macosx_11_0_arm64": ("ARM64", "libnormfuse.dylib"),
    "macosx_10_15_x86_64": ("x86_64", "libnormfuse.dylib"),
}
# Where the Python files of each package lie in the repository.
SOURCES = {
    "normfuse": "src/normfuse",
    "normfuse/spec": "ep/spec",
    "normfuse/graph_rewrites": "graph_rewrites",
    "normfuse/models": "models",
}
DATA_SUFFIXES = {".py", ".toml", ".typed", ".json", ".html", ".css", ".js", ".svg"}


pytestmark = pytest.mark.cross


@pytest.fixture(scope="module", params=PLATFORMS)
def wheel(request: pytest.FixtureRequest) -> tuple[str, zipfile.ZipFile]:
    """Platform tag and the opened wheel, from the folder NORMFUSE_WHEELS, which tools/build_wheels.py has filled."""
    (path,) = Path(os.environ["NORMFUSE_WHEELS"]).glob(f"normfuse-*-{request.param}.whl")
    return request.param, zipfile.ZipFile(path)


def extract_library(wheel: tuple[str, zipfile.ZipFile], folder: Path) -> Path:
    platform, archive = wheel
    return Path(archive.extract(f"normfuse/{PLATFORMS[platform][1]}", folder))


def python_files() -> set[str]:
    """Every Python and data file of the repository's packages, by its name in the wheel."""
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True).stdout.split()
    return {
        str(PurePosixPath(package) / PurePosixPath(name).relative_to(source))
        for package, source in SOURCES.items()
        for name in tracked
        if name.startswith(f"{source}/") and PurePosixPath(name).suffix in DATA_SUFFIXES
    }


def test_tag_matches_the_name(wheel: tuple[str, zipfile.ZipFile]) -> None:
    platform, archive = wheel
    (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/WHEEL"))
    metadata = HeaderParser().parsestr(archive.read(name).decode())
    assert metadata.get_all("Tag") == [f"py3-none-{platform}"]
    assert metadata["Root-Is-Purelib"] == "false"
    assert archive.testzip() is None


def test_holds_all_python_below_one_package_and_nothing_else(wheel: tuple[str, zipfile.ZipFile]) -> None:
    platform, archive = wheel
    contents = {name for name in archive.namelist() if not name.startswith("normfuse-") and not name.endswith("/")}
    assert contents == python_files() | {f"normfuse/{PLATFORMS[platform][1]}", "normfuse.pth"}  # see applications.md


def test_metadata_forces_no_onnxruntime(wheel: tuple[str, zipfile.ZipFile]) -> None:
    _, archive = wheel
    (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
    metadata = HeaderParser().parsestr(archive.read(name).decode())
    required = [value for value in metadata.get_all("Requires-Dist", []) if "extra ==" not in value]
    assert required
    assert not [value for value in required if value.startswith("onnxruntime")]
    assert metadata["License-Expression"] == "Apache-2.0"


def test_library(wheel: tuple[str, zipfile.ZipFile], tmp_path: Path) -> None:
    platform = wheel[0]
    path = extract_library(wheel, tmp_path)
    system, *version = platform.partition("_")[0], *re.findall(r"(?<=_)\d+(?=_)", platform)
    read: dict[str, Callable[[Path], Binary]] = {"win": read_pe, "macosx": read_macho, "manylinux": read_elf}
    binary = read[system](path)
    assert binary.machine == PLATFORMS[platform][0]
    assert binary.exports == ENTRY_POINTS | (ADDED_FOR_MACOS if system == "macosx" else set())
    assert path.stat().st_size < LARGEST
    if system == "win":
        foreign = {name for name in binary.needs if name != "kernel32.dll" and not name.startswith("api-ms-win-crt-")}
        assert not foreign
    elif system == "macosx":
        assert binary.needs == {"/usr/lib/libSystem.B.dylib"}
        assert binary.system == tuple(map(int, version))
    else:
        assert binary.needs <= GLIBC
        assert binary.system <= (2, 28)
