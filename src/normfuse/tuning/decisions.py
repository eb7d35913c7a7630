"""What tuning decided, as a model carries it and the execution provider reads it (``ep/plugin/tuning.h``)."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import onnx_ir as ir

TUNING_KEY = "ai.normfuse.tuning"
"""The entry of a model's ``metadata_props`` that holds the decisions."""
_VERSION = "1"
Others = Literal["cost", "on", "off"]
"""What becomes of groups that are not listed: what the cost model says, claimed, or left to ONNX Runtime."""


@dataclasses.dataclass(frozen=True)
class Decisions:
    """Which groups of chains are claimed, and where this holds: elsewhere the cost model decides."""

    isa: str
    """The instruction set of the kernels."""
    onnxruntime: str
    """The version of the host; its first two numbers count."""
    others: Others = "cost"
    groups: Mapping[str, bool] = dataclasses.field(default_factory=dict)
    """Group -> whether its chains are claimed."""

    def deciding(self, groups: Collection[str], on: bool) -> Decisions:
        """Return these decisions with other ones for some groups."""
        return dataclasses.replace(self, groups={**self.groups, **dict.fromkeys(groups, on)})

    def text(self) -> str:
        """Return the value of the model's entry."""
        head = [f"version {_VERSION}", f"isa {self.isa}", f"onnxruntime {self.onnxruntime}", f"others {self.others}"]
        return "\n".join([*head, *(f"{'on' if on else 'off'} {group}" for group, on in self.groups.items()), ""])

    def store(self, model: ir.Model) -> None:
        """Write them into a model, in the place of others."""
        model.metadata_props[TUNING_KEY] = self.text()


def stored_decisions(model: ir.Model) -> dict[str, list[str]]:
    """Return the lines that a model carries, by their first words; nothing where it was not tuned."""
    found: dict[str, list[str]] = {}
    for line in model.metadata_props.get(TUNING_KEY, "").splitlines():
        word, _, rest = line.partition(" ")
        found.setdefault(word, []).append(rest)
    return found
