"""Safe writing of files: a new one, or the replacement of a regular file, completely or not at all."""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from normfuse.errors import OptionError


def file_to_write(path: Path) -> Path:
    """Return the file that writing to ``path`` makes or replaces, the target where it is a link; nothing is written.

    Raises:
        OptionError: It is a folder, a device, a pipe or the like, its folder does not exist, or permission is denied.
    """
    try:
        mode = _mode(path)
        target = Path(os.path.realpath(path)) if path.is_symlink() else path
        writable = os.access(target if mode is not None else target.absolute().parent, os.W_OK)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        raise OptionError(f"Cannot write {path}: {getattr(error, 'strerror', None) or error}.") from error
    if mode is not None and stat.S_ISDIR(mode):
        raise OptionError(f"Cannot write {path}: it is a folder; name a file in it.")
    if mode is not None and not stat.S_ISREG(mode):
        raise OptionError(f"Cannot write {path}: it is {_kind(mode)}, not a file; give the name of a file.")
    if not target.absolute().parent.is_dir():
        raise OptionError(f"Cannot write {path}: the folder {target.absolute().parent} does not exist.")
    if not writable:
        raise OptionError(f"Cannot write {path}: permission denied.")
    return target


def is_free_or_regular(path: Path) -> bool:
    """Return whether ``path`` does not exist, or is a file that may be replaced."""
    return not path.is_symlink() and (path.is_file() or not path.exists())


@contextlib.contextmanager
def scratch_folder(target: Path) -> Iterator[Path]:
    """Yield a folder beside ``target`` for its replacement, from which that can be renamed.

    Files that remain in the folder are removed; an OSError within becomes an OptionError that names the target.
    """
    try:
        with tempfile.TemporaryDirectory(dir=target.absolute().parent, prefix=".normfuse.") as folder:
            yield Path(folder)
    except OSError as error:
        raise OptionError(f"Cannot write {target}: {error.strerror or error}.") from error


def _mode(path: Path) -> int | None:
    """Return the file at the end of the path's links; None: there is none."""
    try:
        return path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return None


def _kind(mode: int) -> str:
    if stat.S_ISFIFO(mode):
        return "a pipe"
    if stat.S_ISSOCK(mode):
        return "a socket"
    return "a device"
