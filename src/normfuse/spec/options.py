"""The table of options of the execution provider."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType

from ._reading import Row, read_table


@dataclasses.dataclass(frozen=True, slots=True)
class Option:
    """An option of the execution provider."""

    name: str
    kind: str
    """What a value is: "choice", "flag", "library", "report", "index", "luid" or "level"."""
    values: tuple[str, ...]
    """All values of a choice or a flag."""
    default: str
    """"" = not set."""
    expected: str
    """What a value may be, for people."""
    doc: str


def _listed(values: tuple[str, ...]) -> str:
    return f"{', '.join(values[:-1])} or {values[-1]}"


def _option(row: Row, expected: Mapping[str, str]) -> Option:
    kind = row["kind"]
    values = tuple(row["values"]) if kind == "choice" else ("0", "1") if kind == "flag" else ()
    words = _listed(values) if values else expected[kind]
    return Option(row["name"], kind, values, row["default"], words, row["doc"])


_TABLE = read_table("options")
_EXPECTED = {row["name"]: row["expected"] for row in _TABLE["kind"]}

OPTIONS: Mapping[str, Option] = MappingProxyType({row["name"]: _option(row, _EXPECTED) for row in _TABLE["option"]})
