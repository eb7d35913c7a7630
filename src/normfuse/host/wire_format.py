"""Just enough of protobuf's wire format to look into a model file without reading its weights.

Numbers are those of protobuf.dev/programming-guides/encoding, and of fields of onnx.proto.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO

MODEL_GRAPH, GRAPH_NODE, GRAPH_INITIALIZER, TENSOR_RAW_DATA = 7, 1, 5, 9
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_LONGEST_VARINT = 10


def read(file: BinaryIO, start: int, end: int) -> bytes:
    """Return the bytes of a range."""
    file.seek(start)
    return file.read(end - start)


def fields(file: BinaryIO, position: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Yield number, start and end of each field of bytes in the message of a range."""
    for field, value, start, stop in _parts(file, position, end):
        if value is None:
            yield field, start, stop


def first_number(file: BinaryIO, position: int, end: int, wanted: int) -> int | None:
    """Return the first number in field ``wanted`` of the message of a range; None: it has none."""
    numbers = (value for field, value, _, _ in _parts(file, position, end) if field == wanted and value is not None)
    return next(numbers, None)


def _parts(file: BinaryIO, position: int, end: int) -> Iterator[tuple[int, int | None, int, int]]:
    """Yield each field's number, and its value if that is a number, or where its bytes begin and end."""
    while position < end:
        head = read(file, position, position + 2 * _LONGEST_VARINT)
        key, used = _varint(head, 0)
        wire_type = key & 7
        if wire_type == _BYTES:
            size, used = _varint(head, used)
            start, position = position + used, position + used + size
            if position > end:
                return
            yield key >> 3, None, start, position
        elif wire_type == _VARINT:
            value, used = _varint(head, used)
            position += used
            yield key >> 3, value, position, position
        elif wire_type in (_FIXED64, _FIXED32):
            position += used + (8 if wire_type == _FIXED64 else 4)
        else:
            return


def _varint(data: bytes, start: int) -> tuple[int, int]:
    """Return the number that starts there and where it ends; one that is truncated ends with the data."""
    value, end = 0, start
    for byte in data[start : start + _LONGEST_VARINT]:
        value |= (byte & 0x7F) << 7 * (end - start)
        end += 1
        if byte < 0x80:
            break
    return value, end
