"""The table of reasons."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from types import MappingProxyType

from ._reading import read_table

# Of a field, in characters: names in a damaged model may have a million.
_LONGEST = 500


@dataclasses.dataclass(frozen=True, slots=True)
class Reason:
    """Why a site is left as it is."""

    code: str
    text: str
    advice: str

    def message(self, **fields: object) -> str:
        """Return the sentence with its ``{fields}`` filled in; a missing field is a KeyError."""
        return self.text.format(**{name: _shortened(str(field)) for name, field in fields.items()})


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


REASONS: Mapping[str, Reason] = MappingProxyType(
    {row["code"]: Reason(row["code"], row["text"], row["advice"]) for row in read_table("reasons")["reason"]}
)
