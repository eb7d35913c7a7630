"""The native library's hash of contents: as fast as memory, and without OpenSSL, which takes long to load."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any, BinaryIO

import numpy as np

from normfuse.host.native_library import get_library_path

#: Bytes of a hash.
SIZE = 16
_CHUNK = 1 << 20


def chunks_of(source: BinaryIO | bytes) -> Iterator[memoryview]:
    """Yield a content in pieces, a file from its position on; each piece is overwritten by the next one."""
    if isinstance(source, bytes):
        whole = memoryview(source)
        yield from (whole[begin : begin + _CHUNK] for begin in range(0, len(whole), _CHUNK))
        return
    buffer = memoryview(bytearray(_CHUNK))
    while size := source.readinto(buffer):  # type: ignore[attr-defined]
        yield buffer[:size]


def hash_of(pieces: Iterable[memoryview | bytes], key: int) -> bytes:
    """Return the hash of a content in pieces; without the key nobody can find another content with that hash."""
    hashes = b"".join(_hash(piece, key) for piece in pieces)
    return _hash(hashes, key)


def _hash(data: memoryview | bytes, key: int) -> bytes:
    digest = np.empty(SIZE, np.uint8)
    array = np.frombuffer(data, np.uint8) if len(data) else digest
    _function()(array.ctypes.data, len(data), key, digest.ctypes.data)
    return digest.tobytes()


@cache
def _function() -> Any:
    function = ctypes.CDLL(get_library_path()).NormfuseHashContent
    function.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint64, ctypes.c_void_p]
    function.restype = None
    return function
