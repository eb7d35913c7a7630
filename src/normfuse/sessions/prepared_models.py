"""Models as sessions were created on them, kept on disk: the next session on the same model needs no rewriting.

An entry is one ONNX file, so that ONNX Runtime reads it from the disk itself. It begins with a field that ONNX does not
define and protobuf skips: a checksum of its name and all that follows, and the settings of the session's options; if
a model is used unchanged, that is the whole entry. A file whose field is missing or wrong is no entry. A large entry
does not store the weights that are also in the user's model (see `shared_weights`): a session is created on both
together, in a temporary file. An entry's name is a hash of everything that the prepared model depends on. Hashes use a
key that is stored in the folder, so that nobody else can make a file that is taken for an entry.

Nothing here imports onnx, onnx_ir or the rewriting pass: that is why a second start is quick. Faults of the
cache (no room, no permission) are reported in the log, and cost the entry only.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import logging
import os
import platform
import stat
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import IO, TYPE_CHECKING, BinaryIO, NamedTuple

from normfuse._version import __version__
from normfuse.host.config_entries import (
    EXTERNAL_DATA_FOLDER,
    QUANTIZATION_ENTRIES,
    disabled_optimizers,
    get_entry,
    users_disabled_optimizers,
    users_entry,
)
from normfuse.host.content_hash import SIZE, chunks_of, hash_of
from normfuse.host.native_library import get_library_path
from normfuse.host.needs import Needs
from normfuse.host.registration import instruction_set
from normfuse.host.session import OPTION_PREFIX
from normfuse.host.versions import distribution_folders, import_host
from normfuse.sessions.shared_weights import join, shared_weights, size_of, without

if TYPE_CHECKING:
    import onnxruntime

    from normfuse.sessions import AllowedChanges

VARIABLE = "NORMFUSE_CACHE"
"""Environment variable: the folder of the cache; 0, no, false or off: no cache."""
MOST_BYTES = 2 << 30
"""Limit for all entries; those that were used least recently are removed first."""
LARGEST = MOST_BYTES // 10
"""Limit of an entry: a larger one is stored without the weights that are in the user's model, or not at all."""
_LARGEST_GIVEN = 1 << 31
"""Bytes of a model as a user gives it; protobuf takes no more."""
_SUFFIX = ".prepared.onnx"
_UNFINISHED = ".unfinished"
_ABANDONED = 3600  # seconds after which an unfinished file belongs to a process that has ended
# An entry of TensorProto.external_data as protobuf writes its key.
_EXTERNAL = b"\x0a\x08location"
_KEY = "key"  # the file of that name, of so many bytes
_KEY_BYTES = 8
# Field 1000 of a ModelProto with a length of five bytes, as protobuf may write it: always that many.
_TAG, _LENGTH = b"\xc2\x3e", 5
_HEADER_BYTES = len(_TAG) + _LENGTH
# Session entries that the prepared model depends on.
_ENTRIES = (*QUANTIZATION_ENTRIES, f"{OPTION_PREFIX}compile")
_log = logging.getLogger("normfuse")


class Entry(NamedTuple):
    """A file of the cache."""

    path: Path
    size: int
    used: float
    """When a session was last created on it, in seconds since 1970."""


def cache_folder() -> Path | None:
    """Return the folder of the cache, by the platform's convention; None: there is no cache.

    This does what the package platformdirs does, for one folder.
    """
    given = os.environ.get(VARIABLE)
    if given:
        return None if given.lower() in ("0", "no", "false", "off") else Path(given).absolute()
    with contextlib.suppress(RuntimeError):  # no home
        if sys.platform == "win32":
            local = os.environ.get("LOCALAPPDATA")
            return (Path(local) if local else Path.home() / "AppData" / "Local") / "normfuse" / "Cache"
        if sys.platform == "darwin":
            return Path.home() / "Library" / "Caches" / "normfuse"
        base = os.environ.get("XDG_CACHE_HOME", "")
        return (Path(base) if Path(base).is_absolute() else Path.home() / ".cache") / "normfuse"
    return None


class Found(NamedTuple):
    """An entry that a session can be created on."""

    path: Path
    needs: Needs
    start: int
    """The offset of the model in it."""


class Origin:
    """A model, and everything that its prepared form depends on."""

    def __init__(self, folder: Path, name: bytes, key: int, model: object, seen: object) -> None:
        self._path, self._key, self._model, self._seen = folder / (name.hex() + _SUFFIX), key, model, seen
        self._beside: Path | None = None
        """The entry of a model with external data: another one for each folder."""
        if isinstance(model, (str, os.PathLike)):
            place = hash_of([name, os.fsencode(Path(model).absolute().parent)], key)
            self._beside = folder / (place.hex() + _SUFFIX)

    @classmethod
    def of(cls, model: object, options: onnxruntime.SessionOptions, allowed: AllowedChanges) -> Origin | None:
        """Return the origin; None: it is not cached (not all of it can be read, it is large, or there is no cache).

        Args:
            model: As a user gives it. Only files are cached, and bytes of models without external data.
            options: Those of the session, with the execution provider.
            allowed: The changes that may be made to the model.
        """
        try:
            folder = _usable_folder(make=True)
            if folder is None:
                return None
            key = _key_of(folder)
            seen = _look_at(model, key)
            if seen is None or users_entry(options, EXTERNAL_DATA_FOLDER) is not None:
                return None
            facts = {
                "model": seen[0].hex(),
                "allowed": allowed._asdict(),
                "level": str(options.graph_optimization_level),
                "saves": bool(options.optimized_model_filepath),
                "entries": [(each, get_entry(options, each), users_entry(options, each)) for each in _ENTRIES],
                "disabled": [sorted(disabled_optimizers(options)), sorted(users_disabled_optimizers(options))],
                "software": _software(),
                "processor": _processor(),
            }
        except (OSError, AttributeError) as error:  # AttributeError: another library, by NORMFUSE_LIBRARY
            _log.info("No prepared model is looked for: %s.", error)
            return None
        name = hash_of([json.dumps(facts, sort_keys=True).encode()], key)
        return cls(folder, name, key, model, seen)

    def find(self) -> Found | None:
        """Return the entry to create a session on; None: there is none. A damaged one is removed."""
        for path in filter(None, (self._path, self._beside)):
            try:
                found = _read(path, self._key)
                if found is None:
                    path.unlink()
                    _log.info("%s is damaged; it is made again.", path)
                elif all(_is_unchanged(each, self._key) for each in found.needs.contents):
                    with contextlib.suppress(OSError):  # a folder that is only read
                        os.utime(path)
                    return found
            except FileNotFoundError:
                pass
            except OSError as error:
                _log.info("A prepared model cannot be read: %s.", error)
        return None

    @contextlib.contextmanager
    def whole(self, found: Found) -> Iterator[Path]:
        """Yield a file with the complete prepared model, which exists within the context.

        Raises:
            OSError: The original model was changed in the meantime, or there is no room.
        """
        if not found.needs.whole:
            yield found.path
            return
        import tempfile

        with (
            _open(found.path) as rest,
            _as_file(self._model) as given,
            tempfile.NamedTemporaryFile(suffix=_UNFINISHED, dir=found.path.parent, delete=False) as file,
        ):
            path, opened = Path(file.name), Path(f"/proc/self/fd/{file.fileno()}")
            try:
                if is_nameless := opened.exists():
                    path.unlink()  # no file is left, even if this process is killed
                rest.seek(found.start)
                pieces = _tee(file.file, chunks_of(join(rest, given, found.needs.weights)))
                if hash_of(pieces, self._key).hex() != found.needs.whole:
                    raise OSError("the model that was given was changed in the meantime")
                file.flush() if is_nameless else file.close()  # on Windows nobody else can read an open file
                yield opened if is_nameless else path
            finally:
                with contextlib.suppress(OSError):
                    path.unlink()

    def keep(self, model: bytes | Path, needs: Needs, data: Mapping[str, object]) -> None:
        """Store the prepared model, unless the original has changed in the meantime.

        Args:
            model: The prepared model; b"" if that is the original itself.
            needs: Its settings.
            data: Files with external data of the original, and the `state_of` each before it was read.
        """
        path = self._beside if data else self._path
        if path is None:
            return
        try:
            if _look_at(self._model, self._key) != self._seen or (not data and _has_external_data(self._model)):
                return
            for each, state in data.items():
                content, now = _look_at_file(Path(each), self._key)
                if now != state:
                    return
                needs.contents.append([each, str(Path(each).resolve()), content.hex()])
            with _as_file(model) as made, _as_file(self._model) as given:
                size = size_of(made)
                if size > LARGEST:
                    whole = hash_of(chunks_of(made), self._key).hex()
                    needs = needs._replace(weights=shared_weights(made, given, self._key), whole=whole)
                if size - sum(stop - start for _, start, stop in needs.weights) > LARGEST:
                    return
                header = _header(path.name, without(made, needs.weights), needs, self._key)
                _write(path, chain([header], chunks_of(without(made, needs.weights))))
            prune(MOST_BYTES)
        except OSError as error:
            _log.info("A prepared model cannot be kept: %s.", error)


def entries() -> list[Entry]:
    """Return the entries, the last used first."""
    found = []
    for path in _files(_SUFFIX):
        with contextlib.suppress(OSError):
            status = path.lstat()
            found.append(Entry(path, status.st_size, status.st_mtime))
    return sorted(found, key=lambda each: each.used, reverse=True)


def prune(most_bytes: int) -> int:
    """Remove the least recently used entries until the rest takes at most so many bytes; return their number."""
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
    """Remove all entries; return their number."""
    return prune(-1)


def _files(suffix: str) -> list[Path]:
    folder = _usable_folder(make=False)
    return [] if folder is None else [path for path in folder.iterdir() if path.name.endswith(suffix)]


def _usable_folder(*, make: bool) -> Path | None:
    """Return the folder if it belongs to the user, and nobody else may write there; its files are private."""
    folder = cache_folder()
    if folder is None:
        return None
    try:
        if make and not os.path.lexists(folder):
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


def _key_of(folder: Path) -> int:
    """Return the key of this folder's hashes, which is made at its first use."""
    path = folder / _KEY
    for _ in range(2):
        with contextlib.suppress(FileNotFoundError), _open(path) as file:
            key = file.read(_KEY_BYTES + 1)
            if len(key) == _KEY_BYTES and _is_private(os.fstat(file.fileno())):
                return int.from_bytes(key, "little")
            path.unlink()  # damaged, so that all entries are void
        _write(path, [os.urandom(_KEY_BYTES)], replaces=False)
    raise OSError(f"{path} is not there")


def _open(path: Path) -> BinaryIO:
    return os.fdopen(os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)), "rb")


def _look_at(model: object, key: int) -> tuple[bytes, tuple[int, ...]] | None:
    """Return a hash of a model's content and the state of its file; None: it is not cached."""
    if isinstance(model, (bytes, bytearray, memoryview)):
        return hash_of(chunks_of(bytes(model)), key), ()
    if not isinstance(model, (str, os.PathLike)):
        return None
    path = Path(model)
    status = path.stat()
    if not stat.S_ISREG(status.st_mode) or status.st_size >= _LARGEST_GIVEN:
        return None
    return _look_at_file(path, key)


def _as_file(model: object) -> BinaryIO:
    """Return a model that is given as a path or as bytes, as an open file."""
    if isinstance(model, (str, os.PathLike)):
        return Path(model).open("rb")
    return io.BytesIO(bytes(model))  # type: ignore[call-overload] # no other; itself, if it is bytes


def _tee(file: IO[bytes], pieces: Iterable[memoryview]) -> Iterator[memoryview]:
    for piece in pieces:
        file.write(piece)
        yield piece


def _look_at_file(path: Path, key: int) -> tuple[bytes, tuple[int, ...]]:
    with path.open("rb") as file:
        state = state_of(file.fileno())
        return hash_of(chunks_of(file), key), state


def state_of(file: str | int) -> tuple[int, ...]:
    """Return the state of a file, which any change to it changes."""
    status = os.stat(file)  # noqa: PTH116 -- of an open one, too
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _is_unchanged(known: list[str], key: int) -> bool:
    """Whether a file has the same place and content as before."""
    path, resolved, content = known
    return str(Path(path).resolve()) == resolved and _look_at_file(Path(path), key)[0].hex() == content


def _has_external_data(model: object) -> bool:
    """Whether a model has external data, in files that are not read here."""
    if not isinstance(model, (str, os.PathLike)):
        return _EXTERNAL in bytes(model)  # type: ignore[call-overload]
    end = b""
    with Path(model).open("rb") as file:
        for chunk in chunks_of(file):
            data = end + chunk
            if _EXTERNAL in data:
                return True
            end = data[-len(_EXTERNAL) :]
    return False


def _software() -> list[object]:
    """Return what identifies the software that prepares and runs a model, editable installations included.

    A package that is installed again has at least other file times; nothing is imported to see that.
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
    """Return what distinguishes processors: layouts, and whether 8-bit sums saturate, depend on it."""
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

        # Like platform.processor(), without a query of Windows or a process on macOS.
        told += [os.environ.get("PROCESSOR_IDENTIFIER", ""), str(sums_saturate())]
    return told


def _header(name: str, model: BinaryIO, needs: Needs, key: int) -> bytes:
    """Return the field that an entry of that name begins with."""
    text = json.dumps(needs._asdict()).encode()
    size = SIZE + len(text)
    length = [size >> 7 * number & 0x7F | (0x80 if number < _LENGTH - 1 else 0) for number in range(_LENGTH)]
    return _TAG + bytes(length) + hash_of(chain([name.encode(), text], chunks_of(model)), key) + text


def _read(path: Path, key: int) -> Found | None:
    """Return an entry; None: it is damaged, or not this user's."""
    with _open(path) as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode) or not _is_private(status):
            return None
        head = file.read(_HEADER_BYTES)
        size = sum((byte & 0x7F) << 7 * number for number, byte in enumerate(head[len(_TAG) :]))
        if head[: len(_TAG)] != _TAG or not SIZE < size <= status.st_size:
            return None
        told = file.read(size)
        found = hash_of(chain([path.name.encode(), told[SIZE:]], chunks_of(file)), key)
    try:
        needs = Needs(**json.loads(told[SIZE:]))
        return Found(path, needs, _HEADER_BYTES + size) if found == told[:SIZE] else None
    except (ValueError, TypeError):
        return None


def _write(path: Path, parts: Iterable[bytes | memoryview], *, replaces: bool = True) -> None:
    """Write a file under another name, and rename it once it is on the disk."""
    import tempfile

    descriptor, name = tempfile.mkstemp(suffix=_UNFINISHED, dir=path.parent)  # for the owner alone
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.writelines(parts)
            file.flush()
            os.fsync(file.fileno())
        if replaces:
            Path(name).replace(path)
            return
        try:
            os.link(name, path)
            Path(name).unlink()
        except FileExistsError:  # another process was quicker
            Path(name).unlink()
        except OSError:  # a file system without links
            Path(name).replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(name).unlink()
        raise
