"""Microsoft's DirectML libraries, from the wheels that carry them, and the programs that they are shown to."""

import ctypes
import os
import subprocess
import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import cache_folder
from cache_folder import locked

ROOT = Path(__file__).resolve().parents[1]
CACHE = cache_folder.CACHE / "directml"
SANITIZED = ROOT / "build" / "native-sanitized"
WINDOWS = ROOT / "build" / "cross" / "win_amd64"
NATIVE = ROOT / "tests" / "native" / "directml"
FAKES = ROOT / "build" / "fake-directml"
# In the build folder of this platform's wheel, where tests/run.py builds the native tests.
NATIVE_FAKE = "build/py3-none-linux_*/native_tests/directml/libfake_directml.so"
FAKE_GPU = ROOT / "tests" / "packaging" / "fake_gpu.cc"
LINUX_TARGETS = ("directml_validate", "stand_in_d3d12", "stand_in_dxcore")


@dataclass(frozen=True)
class Library:
    """A DirectML inside a wheel."""

    feature_level: str
    requirement: str
    platform: str
    python: str
    member: str  # part of the file's name in the wheel, lower case
    file: str


OF_LINUX = ("manylinux2010_x86_64", "3.10", "libdirectml", "libdirectml.so")
LIBRARIES = {
    library.feature_level: library
    for library in (
        Library("5_0", "tensorflow-directml-plugin==0.4.0.dev230202", *OF_LINUX),
        Library("6_2", "torch-directml==0.2.5.dev240914", *OF_LINUX),
        Library("6_4", "onnxruntime-directml==1.24.4", "win_amd64", "3.11", "directml.dll", "DirectML.dll"),
    )
}


def fetch(feature_level: str) -> Path:
    """Path of the library with this feature level: from the cache, or from the package index into it."""
    library = LIBRARIES[feature_level]
    target = CACHE / feature_level / library.file
    with locked(CACHE / f"{feature_level}.lock"):
        if not target.exists():
            download = ["-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", "--dest", str(CACHE)]
            where = ["--python-version", library.python, "--platform", library.platform, library.requirement]
            subprocess.run([sys.executable, *download, *where], check=True, timeout=600)
            (wheel,) = CACHE.glob(library.requirement.split("==")[0].replace("-", "_") + "-*.whl")
            with zipfile.ZipFile(wheel) as archive:
                (member,) = [n for n in archive.namelist() if library.member in n.lower()]
                target.parent.mkdir(exist_ok=True)
                partial = target.with_suffix(".partial")
                partial.write_bytes(archive.read(member))
                partial.rename(target)
            wheel.unlink()
    return target


def build_native(targets: tuple[str, ...] = LINUX_TARGETS) -> Path:
    """Folder of the native DirectML tests, built with the sanitizers as tests/run.py builds them."""
    with locked(ROOT / "build" / "native-sanitized.lock"):
        if not (SANITIZED / "CMakeCache.txt").exists():
            options = ["-DNORMFUSE_BUILD_TESTS=ON", "-DNORMFUSE_SANITIZE=address,undefined", "-DNORMFUSE_KERNELS=best"]
            configure = ["cmake", "-S", "ep", "-B", str(SANITIZED), "-G", "Ninja", "-DCMAKE_BUILD_TYPE=RelWithDebInfo"]
            subprocess.run([*configure, *options], cwd=ROOT, check=True, timeout=120, capture_output=True)
        build = ["cmake", "--build", str(SANITIZED), "--target", *targets]
        subprocess.run(build, check=True, timeout=1800, capture_output=True)
    return SANITIZED / "native_tests" / "directml"


def build_fake() -> Path:
    """The fake DirectML, Direct3D 12 and DXCore in one library, without sanitizers: for loading into Python.

    That of the native tests where they were built since a file of it has changed: compiling takes 17 seconds.
    """
    sources = sorted(NATIVE.glob("fake_*.cc"))
    sources += [ROOT / "ep" / "cpu" / "run" / "elements.cc", NATIVE.parent / "scalar_conversions.cc"]
    changed = _newest([*sources, *_headers(), ROOT / "ep" / "spec" / "element_types.toml"])
    for built in ROOT.glob(NATIVE_FAKE):
        if built.stat().st_mtime > changed:
            return built
    generated = FAKES / "generated"
    with locked(FAKES / "generated.lock"):
        generator = [sys.executable, str(ROOT / "tools" / "generate_tables.py")]
        subprocess.run([*generator, str(ROOT / "ep" / "spec"), str(generated / "spec")], check=True, timeout=60)
    headers = [*_headers(), generated / "spec" / "element_types.h"]
    return _build(FAKES / "libfake_directml.so", sources, headers, ["-I", str(generated), "-I", str(NATIVE.parent)])


def counted(fake: str, name: str) -> int:
    """What the fake, loaded in this process, has counted so far."""
    counter = ctypes.CDLL(fake).FakeCounter
    counter.restype = ctypes.c_int64
    return int(counter(name.encode()))


def build_link_stub() -> Path:
    """A library of DXCore, Direct3D 12 and DirectML that creates nothing and says that it did."""
    return _build(FAKES / "liblink_stub.so", [NATIVE / "link_stub.cc"], [])


def build_fake_gpu() -> Path:
    """The library that stands before the one under test and adds a GPU to the devices that onnxruntime lists."""
    return _build(FAKES / "libfake_gpu.so", [FAKE_GPU], [ROOT / "ep" / "abi" / "ort_abi.h"])


def microsofts(feature_level: str) -> str:
    """For NORMFUSE_ASK_DIRECTML: the library with this feature level, behind stand-ins for what it loads."""
    files = []
    for name, flags in (("d3d12", [f"-Wl,--version-script={NATIVE / 'stand_in_d3d12.map'}"]), ("dxcore", [])):
        source = NATIVE / f"stand_in_{name}.cc"
        files.append(_build(FAKES / f"lib{name}.so", [source], _headers(), [f"-Wl,-soname,lib{name}.so", *flags]))
    return ":".join(map(str, [*files, fetch(feature_level)]))


def _headers() -> list[Path]:
    return [*NATIVE.glob("*.h"), *(ROOT / "ep" / "abi").glob("*.h")]


def _newest(paths: list[Path]) -> float:
    """When the last of them was changed."""
    return max(path.stat().st_mtime for path in paths)


def _build(target: Path, sources: list[Path], headers: list[Path], options: list[str] | None = None) -> Path:
    with locked(target.with_suffix(".lock")):
        if not target.exists() or target.stat().st_mtime < _newest([*sources, *headers]):
            compiler = os.environ.get("CXX", "c++")
            flags = ["-std=c++20", "-O1", "-fPIC", "-shared", "-fvisibility=hidden", "-pthread", *(options or [])]
            include = ["-I", str(ROOT / "ep"), "-I", str(NATIVE)]
            partial = target.with_suffix(".partial")
            objects = [target.with_name(f"{target.stem}_{source.stem}.o") for source in sources]
            compile_ = [compiler, *flags, *include, "-c"]
            commands = [[*compile_, str(a), "-o", str(b)] for a, b in zip(sources, objects, strict=True)]
            with ThreadPoolExecutor() as pool:  # tests of another process wait for it
                list(pool.map(lambda command: subprocess.run(command, check=True, timeout=600), commands))
            link = [compiler, *flags, *map(str, objects), "-o", str(partial), "-ldl"]
            subprocess.run(link, check=True, timeout=600)
            partial.rename(target)
    return target
