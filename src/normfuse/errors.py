"""The exceptions of normfuse. Each message is one sentence that names what is wrong and what to do about it."""

from __future__ import annotations

_VISIBLE = {code: repr(chr(code))[1:-1] for code in (*range(0x20), 0x7F, 0x85, 0x2028, 0x2029)}


class NormfuseError(Exception):
    """Base class of every exception that normfuse raises on purpose. Its message is one line."""

    def __init__(self, message: str) -> None:
        # Names out of damaged files can hold anything.
        super().__init__(message.translate(_VISIBLE))


class InvalidModelError(NormfuseError, ValueError):
    """A model cannot be read, or breaks a rule of the ONNX format."""


class OptionError(NormfuseError, ValueError):
    """An argument or option is unknown, has a value outside its range, or contradicts another one."""


class OptionTypeError(OptionError, TypeError):
    """An argument is of a type that it cannot have."""


class HostVersionError(NormfuseError, RuntimeError):
    """ONNX Runtime is missing, or too old to load the execution provider."""


class LibraryLoadError(NormfuseError, RuntimeError):
    """The native library is missing or cannot be loaded."""


class VerificationError(NormfuseError):
    """The optimised model does not do what was required of it, or that could not be found out."""
