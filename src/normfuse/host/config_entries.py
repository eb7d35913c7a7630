"""Configuration entries of ONNX Runtime's session options."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import onnxruntime

__all__ = [
    "EXTERNAL_DATA_FOLDER",
    "disable_optimizer",
    "disabled_optimizers",
    "get_entry",
    "set_entry",
    "switch_optimizer",
]

#: Where the external data of a model lies that is given as bytes.
EXTERNAL_DATA_FOLDER = "session.model_external_initializers_file_folder_path"
_DISABLED = "optimization.disable_specified_optimizers"
_CHOSEN = "normfuse.disabled_optimizer."  # begins a key: an optimizer that was switched off by us, not by the user


def get_entry(options: onnxruntime.SessionOptions, key: str) -> str | None:
    """Return the value of an entry; None: there is no such entry."""
    try:
        return str(options.get_session_config_entry(key))
    except Exception:  # the only way ONNX Runtime has to say that there is no such entry
        return None


def set_entry(options: onnxruntime.SessionOptions, key: str, value: str) -> None:
    """Give an entry a value. ONNX Runtime warns of an entry that is set again, so an equal one is left alone."""
    if get_entry(options, key) != value:
        options.add_session_config_entry(key, value)


def disabled_optimizers(options: onnxruntime.SessionOptions) -> list[str]:
    """Return the names of ONNX Runtime's own graph transformers that are switched off."""
    return [name for name in (get_entry(options, _DISABLED) or "").split(";") if name]


def disable_optimizer(options: onnxruntime.SessionOptions, *names: str) -> None:
    """Switch some of ONNX Runtime's own graph transformers off; what is off already stays so."""
    disabled = disabled_optimizers(options)
    if not set(names) <= set(disabled):
        set_entry(options, _DISABLED, ";".join(dict.fromkeys([*disabled, *names])))


def switch_optimizer(options: onnxruntime.SessionOptions, name: str, *, off: bool) -> None:
    """Switch an optimizer off, or on again if this function switched it off; what the user switched off stays so."""
    disabled, chosen = disabled_optimizers(options), get_entry(options, _CHOSEN + name) == "1"
    if off and name not in disabled:
        disable_optimizer(options, name)
        set_entry(options, _CHOSEN + name, "1")
    elif chosen and not off:
        set_entry(options, _DISABLED, ";".join(each for each in disabled if each != name))
        set_entry(options, _CHOSEN + name, "0")
