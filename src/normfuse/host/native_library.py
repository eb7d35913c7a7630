"""Where the native library is, and what its execution provider is called."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from normfuse.errors import LibraryLoadError

EP_NAME = "NormFuseExecutionProvider"
LIBRARY_VARIABLE = "NORMFUSE_LIBRARY"
"""Environment variable: path of a library to use instead of the packaged one (a debug build, for instance)."""

_FILE_NAMES = {"win32": "normfuse.dll", "darwin": "libnormfuse.dylib"}


def get_library_path() -> str:
    """Return the absolute path of the native library (execution provider and custom operators in one file).

    Raises:
        LibraryLoadError: The file is not there.
    """
    override = os.environ.get(LIBRARY_VARIABLE)
    if override:
        if not Path(override).is_file():
            raise LibraryLoadError(f"{LIBRARY_VARIABLE} names '{override}', which is not a file.")
        return str(Path(override).resolve())
    name = _FILE_NAMES.get(sys.platform, "libnormfuse.so")
    # An editable install has the Python sources in the checkout and the library in site-packages.
    found = [path for folder in sys.modules["normfuse"].__path__ if (path := Path(folder) / name).is_file()]
    if not found:
        raise LibraryLoadError(
            f"{name} is missing from the installed package normfuse; install normfuse again, with pip install "
            "--force-reinstall and the checkout or wheel that it came from."
        )
    return str(found[0].resolve())


def get_ep_name() -> str:
    """Return the name of the execution provider."""
    return EP_NAME


def get_ep_names() -> list[str]:
    """Return the names of all execution providers of the library (one)."""
    return [EP_NAME]
