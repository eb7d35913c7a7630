"""Weights of a prepared model that are also in the user's model: a cache entry does not store them.

They are read, never mapped: a program that writes over the user's file must not change a session that is running.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO

from normfuse.host.content_hash import chunks_of, hash_of
from normfuse.host.wire_format import GRAPH_INITIALIZER, MODEL_GRAPH, TENSOR_RAW_DATA, fields

Weights = list[tuple[int, int, int]]
"""Of each, in order: its start in the prepared model, its start and its end in the user's model."""

_LEAST = 1 << 16


def shared_weights(made: BinaryIO, given: BinaryIO, key: int) -> Weights:
    """Return the weights of a prepared model that are also in the original model."""
    known = {(stop - start, _hash(given, start, stop, key)): (start, stop) for start, stop in _weights(given)}
    places = ((start, known.get((stop - start, _hash(made, start, stop, key)))) for start, stop in _weights(made))
    return [(position, *place) for position, place in places if place is not None]


def without(made: BinaryIO, weights: Weights) -> BinaryIO:
    """Return a prepared model without these weights, as a stream that is read once."""
    ranges, end = [], 0
    for position, start, stop in weights:
        ranges.append((made, end, position))
        end = position + stop - start
    return _concatenated([*ranges, (made, end, size_of(made))])


def join(rest: BinaryIO, given: BinaryIO, weights: Weights) -> BinaryIO:
    """Return a prepared model with its weights, as a stream that is read once; `rest` is read from its position."""
    ranges, end, at = [], 0, rest.tell()
    for position, start, stop in weights:
        ranges += [(rest, at, at + position - end), (given, start, stop)]
        at, end = at + position - end, position + stop - start
    return _concatenated([*ranges, (rest, at, size_of(rest))])


def _weights(model: BinaryIO) -> Iterator[tuple[int, int]]:
    """Yield where the bytes of large initializers begin and end."""
    for graph in _fields(model, 0, size_of(model), MODEL_GRAPH):
        for tensor in _fields(model, *graph, GRAPH_INITIALIZER):
            for start, stop in _fields(model, *tensor, TENSOR_RAW_DATA):
                if stop - start >= _LEAST:
                    yield start, stop


def _fields(file: BinaryIO, start: int, stop: int, wanted: int) -> Iterator[tuple[int, int]]:
    return ((begin, end) for field, begin, end in fields(file, start, stop) if field == wanted)


def size_of(file: BinaryIO) -> int:
    """Return the size of a file; its position does not change."""
    position = file.tell()
    size = file.seek(0, os.SEEK_END)
    file.seek(position)
    return size


def _hash(file: BinaryIO, start: int, stop: int, key: int) -> bytes:
    return hash_of(chunks_of(_concatenated([(file, start, stop)])), key)


def _concatenated(ranges: Iterable[tuple[BinaryIO, int, int]]) -> BinaryIO:
    return io.BufferedReader(_Ranges(ranges))


class _Ranges(io.RawIOBase):
    """Ranges of files, one after the other; it ends early if a file does."""

    def __init__(self, ranges: Iterable[tuple[BinaryIO, int, int]]) -> None:
        self._ranges = iter(ranges)
        self._file: Any = None
        self._left = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._left:
            following = next(self._ranges, None)
            if following is None:
                return 0
            self._file, start, stop = following
            self._file.seek(start)
            self._left = stop - start
        size: int = self._file.readinto(memoryview(buffer)[: self._left])
        self._left = self._left - size if size else 0
        if not size:
            self._ranges = iter(())
        return size
