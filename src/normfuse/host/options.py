"""The options of the execution provider: checked here, before ONNX Runtime is called, and once more in the library."""

from __future__ import annotations

import ctypes
import os
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from normfuse import spec
from normfuse.errors import OptionError

if TYPE_CHECKING:
    from normfuse.spec import Option


def _is_file(value: str) -> bool:
    return Path(value).is_file()


def _is_writable_path(value: str) -> bool:
    path = Path(value)
    return bool(value) and path.absolute().parent.is_dir() and not path.is_dir()


def _is_index(value: str) -> bool:
    return value.isascii() and value.isdigit() and len(value) < 10


def _is_luid(value: str) -> bool:
    return re.fullmatch(r"-?\d+|0[xX][0-9a-fA-F]{1,16}", value) is not None


def _is_level(value: str) -> bool:
    return re.fullmatch(r"[2-9]_[0-9]", value) is not None


# What the DirectML path loads, in its order: option, usual name on Windows and elsewhere, the function that it calls.
_DIRECTML_LIBRARIES = (
    ("dxcore_library", "dxcore.dll", "libdxcore.so", "DXCoreCreateAdapterFactory"),
    ("d3d12_library", "d3d12.dll", "libd3d12.so", "D3D12CreateDevice"),
    ("directml_library", "DirectML.dll", "libdirectml.so", "DMLCreateDevice1"),
)


def check_directml(options: Mapping[str, str], *, on_gpu_device: bool) -> None:
    """Load what DirectML needs, as the native code does: ONNX Runtime's Python wrapper hides that something is missing.

    Args:
        options: The options of a session, checked.
        on_gpu_device: Whether the session is given a GPU, which is found by its LUID. DXCore is needed for that, and
            where an option chooses the adapter.

    Raises:
        OptionError: A library is missing or is another one; it names all of them.
    """
    chooses = on_gpu_device or any(name.startswith(("adapter_", "dxcore_")) for name in options)
    problems = []
    for option, on_windows, elsewhere, symbol in _DIRECTML_LIBRARIES:
        if option == "dxcore_library" and not chooses:
            continue
        library = options.get(option) or (on_windows if sys.platform == "win32" else elsewhere)
        try:
            if not hasattr(ctypes.CDLL(library), symbol):
                problems.append(f"{library} does not export {symbol} (name another library by the option {option})")
        except OSError as error:
            problems.append(f"cannot load {library} (name the library by the option {option}): {error}")
    if problems:
        raise OptionError(f"Option backend is 'directml': {'; '.join(problems)}; or use backend=cpu.")


# What a value must be, by the kind of the option; a choice or a flag has its values in the table.
_ACCEPTS: Mapping[str, Callable[[str], bool]] = {
    "library": _is_file,
    "report": _is_writable_path,
    "index": _is_index,
    "luid": _is_luid,
    "level": _is_level,
}


def accepts(option: Option, value: str) -> bool:
    """True if the option takes the value."""
    return value in option.values if option.values else _ACCEPTS[option.kind](value)


def validate_options(values: Mapping[str, object]) -> dict[str, str]:
    """Return the options as ONNX Runtime takes them: strings, without those that have their default.

    Args:
        values: Option name -> value. None means not given.

    Raises:
        OptionError: An option is unknown, or its value is not one that it takes.
    """
    checked: dict[str, str] = {}
    for name, value in values.items():
        if value is None:
            continue
        option = spec.OPTIONS.get(name)
        if option is None:
            import difflib

            close = difflib.get_close_matches(name, spec.OPTIONS, n=1)
            hint = f"did you mean {close[0]}?" if close else f"known are {', '.join(spec.OPTIONS)}."
            raise OptionError(f"normfuse has no option '{name}'; {hint}")
        text = os.fspath(value) if isinstance(value, os.PathLike) else str(value)
        if not isinstance(text, str) or not accepts(option, text):
            raise OptionError(f"Option {name} is '{text!s}'; it takes {option.expected}.")
        # The loader takes neither relative paths nor, on Windows, forward slashes.
        checked[name] = str(Path(text).absolute()) if option.kind == "library" else text
    adapters = [name for name in checked if name.startswith("adapter_")]
    if len(adapters) > 1:
        raise OptionError(f"Options {adapters[0]} and {adapters[1]} both choose an adapter; give one of them.")
    return {name: text for name, text in checked.items() if text != spec.OPTIONS[name].default}
