"""Models as sessions were created on them, kept on disk: the next session on the same model needs no rewriting.

An entry is one ONNX file, so that ONNX Runtime reads it from the disk itself. It begins with a field that ONNX does not
know, and that protobuf skips: a checksum of all that follows, and what the session's options need. A file that lacks
it, or does not agree with it, is no entry. An entry's name is a hash of all that it was made from and for.

Nothing here imports onnx, onnx_ir or the rewriting pass: that is what makes a second start quick. What goes wrong with
the cache (no room, no permission) is said in a line of the log, and costs the entry only.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import logging
import os
import platform
import stat
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from normfuse._version import __version__
from normfuse.host.config_entries import (
    OF_INTEGERS,
    disabled_optimizers,
    get_entry,
    users_disabled_optimizers,
    users_entry,
)
from normfuse.host.native_library import get_library_path
from normfuse.host.needs import Needs
from normfuse.host.registration import instruction_set
from normfuse.host.session import OPTION_PREFIX
from normfuse.host.versions import distribution_folders, import_host

if TYPE_CHECKING:
    import onnxruntime

__all__ = ["LARGEST", "MOST_BYTES", "VARIABLE", "Entry", "Origin", "cache_folder", "clear", "entries", "prune"]

VARIABLE = "NORMFUSE_CACHE"
"""Environment variable: the folder of the cache; 0: no cache."""
MOST_BYTES = 2 << 30
"""Of all entries; those that were used least recently go first."""
LARGEST = MOST_BYTES // 10
"""Bytes of a model, or of what is made of it, beyond which it is not kept."""
_SUFFIX = ".prepared.onnx"
_UNFINISHED = ".unfinished"
_ABANDONED = 3600  # seconds after which a file that was being written belongs to a process that is gone
_CHUNK = 1 << 20
# An entry of TensorProto.external_data as protobuf writes its key.
_EXTERNAL = b"\x0a\x08location"
# Field 1000 of a ModelProto with a length of five bytes, as protobuf may write it: always that many.
_TAG, _LENGTH, _CHECKSUM = b"\xc2\x3e", 5, hashlib.sha256().digest_size
_BEGINNING = len(_TAG) + _LENGTH
# Session entries that a model is prepared by.
_ENTRIES = (*OF_INTEGERS, f"{OPTION_PREFIX}compile")
_log = logging.getLogger("normfuse")


class Entry(NamedTuple):
    """A file of the cache."""

    path: Path
    size: int
    used: float
    """When a session was last created on it, in seconds since 1970."""


def cache_folder() -> Path | None:
    """Return where prepared models are kept, by the platform's convention; None: nowhere.

    The three lines are what the package platformdirs does for one folder.
    """
    given = os.environ.get(VARIABLE)
    if given:
        return None if given == "0" else Path(given).absolute()
    with contextlib.suppress(RuntimeError):  # no home
        if sys.platform == "win32":
            local = os.environ.get("LOCALAPPDATA")
            return (Path(local) if local else Path.home() / "AppData" / "Local") / "normfuse" / "Cache"
        if sys.platform == "darwin":
            return Path.home() / "Library" / "Caches" / "normfuse"
        base = os.environ.get("XDG_CACHE_HOME", "")
        return (Path(base) if Path(base).is_absolute() else Path.home() / ".cache") / "normfuse"
    return None


class Origin:
    """What a session is to be created from: a model and all that decides what is made of it."""

    def __init__(self, key: str, model: object, seen: object) -> None:
        self._key, self._model, self._seen = key, model, seen

    @classmethod
    def of(cls, model: object, options: onnxruntime.SessionOptions, choices: Mapping[str, bool]) -> Origin | None:
        """Return the origin; None: it is not to be kept, since not all of it can be seen, or it is large, or no cache.

        Args:
            model: As a user gives it. Only files and bytes without external data are kept.
            options: Those of the session, with the execution provider.
            choices: What may be done to the model.
        """
        if cache_folder() is None:
            return None
        try:
            seen = _look_at(model)
            if seen is None:
                return None
            facts = {
                "model": seen[0],
                "choices": dict(choices),
                "level": str(options.graph_optimization_level),
                "saves": bool(options.optimized_model_filepath),
                "entries": [(key, get_entry(options, key), users_entry(options, key)) for key in _ENTRIES],
                "disabled": [sorted(disabled_optimizers(options)), sorted(users_disabled_optimizers(options))],
                "software": _software(),
                "processor": _processor(),
            }
        except OSError as error:
            _log.info("No prepared model is looked for: %s.", error)
            return None
        key = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
        return cls(key, model, seen)

    def find(self) -> tuple[Path, Needs] | None:
        """Return the file to create a session on and what that needs; None: there is none. A broken one is removed."""
        folder = _usable_folder(make=False)
        if folder is None:
            return None
        path = folder / (self._key + _SUFFIX)
        try:
            needs = _read(path)
            if needs is None:
                path.unlink()
                _log.info("%s is damaged; it is made again.", path)
                return None
            os.utime(path)
        except FileNotFoundError:
            return None
        except OSError as error:
            _log.info("A prepared model cannot be read: %s.", error)
            return None
        return path, needs

    def keep(self, model: bytes, needs: Needs) -> None:
        """Keep what was made of the model, unless the model is another one by now."""
        if len(model) > LARGEST:
            return
        try:
            folder = _usable_folder(make=True)
            if folder is None or _look_at(self._model) != self._seen:
                return
            _write(folder / (self._key + _SUFFIX), model, needs)
            prune(MOST_BYTES)
        except OSError as error:
            _log.info("A prepared model cannot be kept: %s.", error)


def entries() -> list[Entry]:
    """Return what is kept, the last used first."""
    found = []
    for path in _files(_SUFFIX):
        with contextlib.suppress(OSError):
            status = path.lstat()
            found.append(Entry(path, status.st_size, status.st_mtime))
    return sorted(found, key=lambda each: each.used, reverse=True)


def prune(most_bytes: int) -> int:
    """Remove the least recently used entries until the rest takes so many bytes at most; return how many went."""
    for path in _files(_UNFINISHED):
        with contextlib.suppress(OSError):
            if time.time() - path.lstat().st_mtime > _ABANDONED:
                path.unlink()
    total = removed = 0
    for entry in entries():
        total += entry.size
        if total > most_bytes:
            with contextlib.suppress(OSError):
                entry.path.unlink()
                removed += 1
    return removed


def clear() -> int:
    """Remove all entries; return how many there were."""
    return prune(-1)


def _files(suffix: str) -> list[Path]:
    folder = _usable_folder(make=False)
    return [] if folder is None else [path for path in folder.iterdir() if path.name.endswith(suffix)]


def _usable_folder(*, make: bool) -> Path | None:
    """Return the folder if it is the user's own, and nobody else may write there; its files nobody else may read."""
    folder = cache_folder()
    if folder is None:
        return None
    try:
        if make:
            folder.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(FileExistsError):
                folder.mkdir(mode=0o700)
        status = folder.lstat()
    except FileNotFoundError:
        return None
    except OSError as error:
        _log.info("There is no cache of prepared models: %s.", error)
        return None
    if not stat.S_ISDIR(status.st_mode) or not _is_private(status):
        _log.info(
            "%s is not used as the cache of prepared models: it must be a folder, no link, of this user, that nobody "
            "else may write to (chmod 700).",
            folder,
        )
        return None
    return folder


def _is_private(status: os.stat_result) -> bool:
    if not hasattr(os, "geteuid"):
        return True  # Windows: the user's own profile is private by its access list
    return status.st_uid == os.geteuid() and not status.st_mode & 0o022


def _look_at(model: object) -> tuple[str, tuple[int, ...]] | None:
    """Return a hash of a model's content and what tells that the file was not touched; None: it is not to be kept."""
    if isinstance(model, (bytes, bytearray, memoryview)):
        return _hashed(iter([bytes(model)]), ()) if len(model) <= LARGEST else None
    if not isinstance(model, (str, os.PathLike)):
        return None
    path = Path(model)
    status = path.stat()
    if not stat.S_ISREG(status.st_mode) or status.st_size > LARGEST:
        return None
    with path.open("rb") as file:
        status = os.fstat(file.fileno())
        touched = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
        return _hashed(iter(lambda: file.read(_CHUNK), b""), touched)


def _hashed(chunks: Iterator[bytes], touched: tuple[int, ...]) -> tuple[str, tuple[int, ...]] | None:
    digest, end = hashlib.sha256(), b""
    for chunk in chunks:
        digest.update(chunk)
        if _EXTERNAL in chunk or _EXTERNAL in end + chunk[: len(_EXTERNAL)]:
            return None  # its weights lie in another file, which is not looked at here
        end = chunk[-len(_EXTERNAL) :]
    return digest.hexdigest(), touched


def _software() -> list[object]:
    """Return what tells the programs apart that prepare a model and run it, editable installations included.

    A package that is installed again has other times, if it has no other version; nothing is imported to see it.
    """
    host = import_host()
    native = Path(sys.modules[f"{host.__name__}.capi.onnxruntime_pybind11_state"].__file__ or "")
    files, folders = [Path(get_library_path()), native], [str(Path(__file__).parent)]
    for name in ("onnx", "onnx_ir", "numpy", "normfuse.graph_rewrites"):
        found = importlib.util.find_spec(name)
        if found is None or found.origin is None:
            raise OSError(f"{name} is not there")
        files.append(Path(found.origin))
    folders.append(str(files[-1].parent))
    states = [(str(path), status.st_size, status.st_mtime_ns) for path in files for status in [path.stat()]]
    states += [(each.path, each.stat().st_size, each.stat().st_mtime_ns) for each in _sources(folders)]
    versions = distribution_folders("onnx-", "onnx_ir-", "onnxruntime", "numpy-")
    return [__version__, host.__version__, host.get_build_info(), versions, sorted(states)]


def _sources(folders: list[str]) -> Iterator[os.DirEntry[str]]:
    while folders:
        for each in os.scandir(folders.pop()):
            if each.name.endswith(".py"):
                yield each
            elif each.is_dir():
                folders.append(each.path)


def _processor() -> list[str]:
    """Return what tells processors apart: layouts, and whether sums of integers saturate, depend on it."""
    told = [platform.machine(), instruction_set(), os.environ.get("NORMFUSE_ISA", "")]
    try:
        with Path("/proc/cpuinfo").open(encoding="utf-8", errors="replace") as file:
            for line in file:
                if not line.strip():
                    break  # the other processors
                if line.startswith(("vendor_id", "cpu family", "model", "flags", "Features", "CPU ")):
                    told.append(line)
    except FileNotFoundError:
        from normfuse.host.integer_products import sums_saturate

        told += [platform.processor(), str(sums_saturate())]
    return told


def _beginning(model: bytes, needs: Needs) -> bytes:
    """Return the field that an entry begins with."""
    text = json.dumps(needs._asdict()).encode()
    size = _CHECKSUM + len(text)
    length = [size >> 7 * number & 0x7F | (0x80 if number < _LENGTH - 1 else 0) for number in range(_LENGTH)]
    digest = hashlib.sha256(text)
    digest.update(model)
    return _TAG + bytes(length) + digest.digest() + text


def _read(path: Path) -> Needs | None:
    """Return what a session on an entry needs; None: the entry is damaged, or not this user's."""
    file_descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0))
    with os.fdopen(file_descriptor, "rb") as file:
        status = os.fstat(file_descriptor)
        if not stat.S_ISREG(status.st_mode) or not _is_private(status):
            return None
        head = file.read(_BEGINNING)
        size = sum((byte & 0x7F) << 7 * number for number, byte in enumerate(head[len(_TAG) :]))
        if head[: len(_TAG)] != _TAG or not _CHECKSUM < size <= status.st_size:
            return None
        told = file.read(size)
        digest = hashlib.sha256(told[_CHECKSUM:])
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    try:
        return Needs(**json.loads(told[_CHECKSUM:])) if digest.digest() == told[:_CHECKSUM] else None
    except (ValueError, TypeError):
        return None


def _write(path: Path, model: bytes, needs: Needs) -> None:
    """Write an entry under another name, and rename it once it is on the disk."""
    import tempfile

    descriptor, name = tempfile.mkstemp(suffix=_UNFINISHED, dir=path.parent)  # for the owner alone
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(_beginning(model, needs))
            file.write(model)
            file.flush()
            os.fsync(file.fileno())
        Path(name).replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(name).unlink()
        raise
