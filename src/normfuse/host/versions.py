"""The ONNX Runtime that hosts the execution provider: is it there, is it new enough, is it the only one?"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import warnings
from functools import cache
from typing import Any

from normfuse._version import __version__
from normfuse.errors import HostVersionError

MINIMUM_VERSION = (1, 24)
"""First ONNX Runtime that can load the execution provider."""
BY_NAME_VERSION = (1, 25)
"""First ONNX Runtime whose Python package knows plug-in providers in ``providers=[...]``."""
NEWEST_TESTED = (1, 32)
"""Newest ONNX Runtime that the tests run. Newer ones are accepted: its C interface promises to keep what it has."""
_FLAVOURS = ("onnxruntime", "ort-", "ort_")  # how the names of its distributions begin


def import_host() -> Any:
    """Import onnxruntime, of any version, and return it.

    Raises:
        HostVersionError: It is not installed or cannot be imported.
    """
    try:
        import onnxruntime
    except ImportError as error:
        if isinstance(error, ModuleNotFoundError) and error.name == "onnxruntime":
            raise HostVersionError(
                "onnxruntime is not installed: pip install onnxruntime, or another flavour of it (onnxruntime-gpu, "
                "onnxruntime-directml, ...) from version 1.24 on."
            ) from None
        raise HostVersionError(f"onnxruntime is installed but cannot be imported: {error}.") from error
    host_version(onnxruntime)
    _warn_about_flavours()
    return onnxruntime


def load_host() -> Any:
    """Import onnxruntime and return it.

    Raises:
        HostVersionError: It is not installed, cannot be imported, or is too old for the execution provider.
    """
    onnxruntime = import_host()
    if host_version(onnxruntime) < MINIMUM_VERSION:
        raise HostVersionError(
            f"normfuse {__version__} needs onnxruntime 1.24 or newer, and this is onnxruntime "
            f"{onnxruntime.__version__}: pip install --upgrade onnxruntime."
        )
    return onnxruntime


def host_version(onnxruntime: Any) -> tuple[int, int]:
    """Return major and minor version of an imported onnxruntime module."""
    match = re.match(r"(\d+)\.(\d+)", getattr(onnxruntime, "__version__", ""))
    if match is None:
        raise HostVersionError(
            "The installed onnxruntime has no version: two flavours installed over each other leave such a "
            f"half-removed package; {how_to_keep_one()}."
        )
    return int(match[1]), int(match[2])


def distribution_folders(*beginnings: str) -> list[str]:
    """Return the folders of the metadata of installed distributions whose names begin so: to read all takes long."""
    found = []
    for folder in sys.path:
        with contextlib.suppress(OSError):  # an archive, or nothing
            found += [
                each.path
                for each in os.scandir(folder or os.curdir)
                if each.name.lower().startswith(beginnings) and each.name.endswith((".dist-info", ".egg-info"))
            ]
    return sorted(found)


def installed_flavours() -> dict[str, str]:
    """Return name -> version of every installed distribution that provides the import package ``onnxruntime``."""
    flavours: dict[str, str] = {}
    from importlib import metadata

    for distribution in map(metadata.Distribution.at, distribution_folders(*_FLAVOURS)):
        name = str(distribution.metadata["Name"])
        if name.lower().replace("_", "-").startswith(("onnxruntime", "ort-")) and any(
            file.as_posix() == "onnxruntime/__init__.py" for file in distribution.files or ()
        ):
            flavours.setdefault(name, distribution.version)  # the first one on the path is the one that is imported
    return flavours


def how_to_keep_one() -> str:
    """Return what to do about several flavours, or about what is left of them, as commands."""
    names = sorted(installed_flavours())
    remove = f"pip uninstall -y {' '.join(names)}, then " if names else ""
    return (
        f"{remove}pip install --force-reinstall {names[0] if names else 'onnxruntime'} (or the flavour that you want)"
    )


@cache
def _warn_about_flavours() -> None:
    if len(distribution_folders(*_FLAVOURS)) < 2:
        return  # without reading their lists of files
    flavours = installed_flavours()
    if len(flavours) > 1:
        names = " and ".join(f"{name} {version}" for name, version in sorted(flavours.items()))
        message = (
            f"{names} are installed at once and overwrite each other's files; keep one of them: {how_to_keep_one()}."
        )
        warnings.warn(message, stacklevel=3)
