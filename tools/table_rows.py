"""Rows of a TOML table, read key by key: whatever is wrong is said with table, row and key."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

_REQUIRED: Any = object()


class TableError(Exception):
    """A table is not as it should be; the message names table, row and key."""


def quoted(values: Iterable[object]) -> str:
    """Return names for a sentence: 'a', 'b' or 'c'."""
    *first, last = [f"'{value}'" for value in values]
    return f"{', '.join(first)} or {last}" if first else last


class Row:
    """A row, or a table inside one. Each key is taken once; ``end`` refuses those that nobody took."""

    def __init__(self, where: str, values: dict[str, Any]) -> None:
        self.where = where
        self._values = dict(values)
        self._keys = list(values)

    def error(self, text: str) -> TableError:
        """Return an error about this row."""
        return TableError(f"{self.where}: {text}")

    def has(self, key: str) -> bool:
        """True if the key is there and was not taken yet."""
        return key in self._values

    def _take(self, key: str, kinds: tuple[type, ...], what: str, default: Any) -> Any:
        if key not in self._values:
            if default is _REQUIRED:
                raise self.error(f"no key '{key}'")
            return default
        value = self._values.pop(key)
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            raise self.error(f"key '{key}' is {value!r}, which is not {what}")
        return value

    def text(self, key: str, default: str = _REQUIRED, among: Sequence[str] = ()) -> str:
        """Take a string, one of ``among`` if given."""
        value = str(self._take(key, (str,), "a text", default))
        if among and value not in among:
            raise self.error(f"key '{key}' is '{value}', which is not {quoted(among)}")
        return value

    def integer(self, key: str, default: int = _REQUIRED) -> int:
        """Take a whole number."""
        return int(self._take(key, (int,), "a whole number", default))

    def number(self, key: str, default: float = _REQUIRED) -> float:
        """Take a number; infinities are written as texts."""
        value = self._take(key, (int, float, str), "a number", default)
        try:
            return float(value)
        except ValueError:
            raise self.error(f"key '{key}' is {value!r}, which is not a number") from None

    def flag(self, key: str, default: bool = _REQUIRED) -> bool:
        """Take true or false."""
        return bool(self._take(key, (bool,), "true or false", default))

    def elements(self, key: str, default: list[Any] = _REQUIRED) -> list[Any]:
        """Take a list."""
        return list(self._take(key, (list,), "a list", default))

    def names(self, key: str, default: Sequence[str] = _REQUIRED) -> tuple[str, ...]:
        """Take a list of texts."""
        values = self.elements(key, default if default is _REQUIRED else list(default))
        if not all(isinstance(value, str) for value in values):
            raise self.error(f"key '{key}' is {values!r}, which is not a list of texts")
        return tuple(values)

    def either(self, key: str, default: Any = _REQUIRED) -> Any:
        """Take a value of any kind."""
        return self._take(key, (object,), "", default)

    def row(self, key: str) -> Row:
        """Take a table inside this row."""
        return Row(f"{self.where}: {key}", self._take(key, (dict,), "a table", _REQUIRED))

    def texts(self, key: str) -> dict[str, Any]:
        """Take a table inside this row as it is; empty where it is left out."""
        return dict(self._take(key, (dict,), "a table", {}))

    def rows(self, key: str) -> list[Row]:
        """Take a list of tables; empty where it is left out."""
        rows = []
        for number, each in enumerate(self.elements(key, []), 1):
            if not isinstance(each, dict):
                raise self.error(f"key '{key}' is not a list of tables")
            rows.append(Row(f"{self.where}: {key} {number}", each))
        return rows

    def end(self) -> None:
        """Refuse keys that nobody took."""
        for key in self._values:
            known = [each for each in self._keys if each not in self._values]
            raise self.error(f"unknown key '{key}'; known here: {', '.join(known)}")


class Table:
    """A file of rows."""

    def __init__(self, folder: Path, name: str) -> None:
        self.name = f"{name}.toml"
        try:
            self.top = Row(self.name, tomllib.loads((folder / self.name).read_text(encoding="utf-8")))
        except (OSError, tomllib.TOMLDecodeError) as error:
            raise TableError(f"{self.name}: {error}") from error

    def rows(self, kind: str, key: str = "name") -> list[tuple[str, Row]]:
        """Take the rows of a kind, each with its name; no name may be there twice where ``key`` is "name"."""
        found: list[tuple[str, Row]] = []
        for number, values in enumerate(self.top.elements(kind), 1):
            row = Row(f"{self.name}: {kind} {number}", values)
            name = row.text(key)
            row.where = f"{self.name}: {name}"
            if key != "op" and name in (each for each, _ in found):
                raise row.error("there are two rows of this name")
            found.append((name, row))
        return found
