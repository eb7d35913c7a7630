"""Configuration entries of ONNX Runtime's session options.

Entries that a session needs are set in the user's options. ONNX Runtime cannot remove an entry, and warns of each that
is set again: so it is recorded which ones are the user's, and the others change only if the next session on the same
options needs another value.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import onnxruntime

#: The folder of the external data of a model that is given as bytes.
EXTERNAL_DATA_FOLDER = "session.model_external_initializers_file_folder_path"
#: "1": functions are inlined where no execution provider wants them, see host.inlining.
INLINE_LATE = "session.disable_aot_function_inlining"
#: "1": ONNX Runtime makes no QLinear operators of Q/DQ pairs.
LEAVES_QDQ = "session.disable_quant_qdq"
QUANTIZATION_ENTRIES = """
    session.disable_double_qdq_remover session.disable_qdq_constant_folding session.disable_quant_qdq
    session.enable_dq_matmulnbits_fusion session.enable_quant_qdq_cleanup session.qdq_matmulnbits_accuracy_level
    session.qdq_matmulnbits_block_size session.qdqisint8allowed session.x64quantprecision
""".split()  # noqa: SIM905 -- a list is one name a line, when formatted
"""A user's settings of ONNX Runtime's quantised operators."""
_DISABLED = "optimization.disable_specified_optimizers"
# Prefixes of keys: an entry that normfuse set, and an optimizer that normfuse disabled, not the user.
_CHOSEN = "normfuse.chose."
_SWITCHED_OFF = "normfuse.disabled_optimizer."


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


def users_entry(options: onnxruntime.SessionOptions, key: str) -> str | None:
    """Return the value of an entry; None: there is none, or :func:`choose_entry` made it."""
    return get_entry(options, key) if get_entry(options, _CHOSEN + key) is None else None


def choose_entry(options: onnxruntime.SessionOptions, key: str, value: str) -> None:
    """Give an entry the value that the next session needs; a user's own is not changed."""
    if users_entry(options, key) is None:
        set_entry(options, key, value)
        set_entry(options, _CHOSEN + key, "1")


def disabled_optimizers(options: onnxruntime.SessionOptions) -> list[str]:
    """Return the names of ONNX Runtime's own graph transformers that are switched off."""
    return [name for name in (get_entry(options, _DISABLED) or "").split(";") if name]


def users_disabled_optimizers(options: onnxruntime.SessionOptions) -> list[str]:
    """Return the names of those that :func:`switch_optimizer` has not switched off."""
    return [name for name in disabled_optimizers(options) if get_entry(options, _SWITCHED_OFF + name) != "1"]


def disable_optimizer(options: onnxruntime.SessionOptions, *names: str) -> None:
    """Switch some of ONNX Runtime's own graph transformers off; what is off already stays so."""
    disabled = disabled_optimizers(options)
    if not set(names) <= set(disabled):
        set_entry(options, _DISABLED, ";".join(dict.fromkeys([*disabled, *names])))


def switch_optimizer(options: onnxruntime.SessionOptions, name: str, *, off: bool) -> None:
    """Switch an optimizer off, or on again if this function switched it off; what the user switched off stays so."""
    disabled, chosen = disabled_optimizers(options), get_entry(options, _SWITCHED_OFF + name) == "1"
    if off and name not in disabled:
        disable_optimizer(options, name)
        set_entry(options, _SWITCHED_OFF + name, "1")
    elif chosen and not off:
        set_entry(options, _DISABLED, ";".join(each for each in disabled if each != name))
        set_entry(options, _SWITCHED_OFF + name, "0")
