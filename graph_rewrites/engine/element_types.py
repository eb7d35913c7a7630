"""The table of element types (``normfuse.spec``) in the types of onnx_ir."""

from __future__ import annotations

import onnx_ir as ir

from normfuse.spec import ELEMENT_TYPES

_TYPE_OF = {name: ir.DataType(each.number) for name, each in ELEMENT_TYPES.items()}
_NAME_OF = {dtype: dtype.name.lower() for dtype in ir.DataType} | {dtype: name for name, dtype in _TYPE_OF.items()}


def _of_kind(kind: str) -> tuple[ir.DataType, ...]:
    return tuple(_TYPE_OF[name] for name, each in ELEMENT_TYPES.items() if each.kind == kind)


#: The float types that the operators take. float64 is left to ONNX Runtime.
FLOAT_TYPES = _of_kind("float")
FLOAT8_TYPES = _of_kind("float8")


def integers_of(bits: int) -> tuple[ir.DataType, ...]:
    """Return the types of quantised tensors that are integers of so many bits."""
    return tuple(dtype for dtype in _of_kind("integer") if ELEMENT_TYPES[type_name(dtype)].bits == bits)


def type_name(dtype: ir.DataType) -> str:
    """Return what an element type is called in programs."""
    return _NAME_OF[dtype]


def type_of(name: str) -> ir.DataType:
    """Return the element type that programs call so."""
    return _TYPE_OF[name]
