"""A question about a model in any form that a session takes, answered without reading weights."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, TypeAlias, TypeVar, cast

from normfuse.errors import InvalidModelError

if TYPE_CHECKING:
    import onnx
    import onnx_ir as ir

ModelForm: TypeAlias = "str | os.PathLike[str] | bytes | onnx.ModelProto | ir.Model"
_Answer = TypeVar("_Answer")


def ask_model(
    model: ModelForm,
    file: Callable[[BinaryIO], _Answer],
    proto: Callable[[onnx.ModelProto], _Answer],
    graph: Callable[[ir.Model], _Answer],
) -> _Answer:
    """Return the answer of the function for the model's form: a file or bytes, a ModelProto, an onnx_ir model.

    Raises:
        InvalidModelError: The file cannot be read.
    """
    if isinstance(model, (str, os.PathLike)):
        try:
            with Path(model).open("rb") as opened:
                return file(opened)
        except OSError as error:
            raise InvalidModelError(f"Cannot read {os.fspath(model)}: {error.strerror or error}.") from error
    if isinstance(model, (bytes, bytearray, memoryview)):
        return file(io.BytesIO(model))
    if hasattr(model, "opset_import"):
        return proto(cast("onnx.ModelProto", model))
    return graph(cast("ir.Model", model))
