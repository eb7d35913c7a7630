"""The table of the operators that are a normalisation by themselves."""

from __future__ import annotations

import dataclasses

from ._reading import Row, made, read_table


@dataclasses.dataclass(frozen=True, slots=True)
class Axes:
    """What is normalised: dimensions from one on, some dimensions, or the channels of groups."""

    attribute: str
    """Attribute that says so; "" = none, the default always."""
    first: int | None
    """All dimensions from this one on."""
    is_single: bool
    """That one alone."""
    default: tuple[int, ...]
    """Some dimensions."""

    @property
    def in_groups(self) -> bool:
        """True if the attribute is a number of groups."""
        return self.first is None and not self.default


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Normalization:
    """One row: an operator in some versions of its domain."""

    op_type: str = dataclasses.field(metadata={"key": "op"})
    domain: str = ""
    since: int
    until: int | None = None
    """Last version, inclusive; None: no upper bound."""
    axes: Axes
    epsilon: float | None
    """None: the method has none."""
    epsilon_is_attribute: bool
    epsilon_on: str
    method: str = "standard"
    use_mean: bool = True
    affine_align: str = "trailing"
    has_stash_type: bool = dataclasses.field(default=False, metadata={"key": "stash_type"})
    inputs: tuple[str, ...]
    """By position, by the names that FusedNormalization has for them."""
    outputs: tuple[str, ...]


def _axes(row: Row) -> Axes:
    default = row.get("default")
    if "from" in row:
        return Axes("", row["from"], False, ())
    return Axes(
        row["attribute"],
        default if isinstance(default, int) else None,
        row.get("single", False),
        tuple(default) if isinstance(default, list) else (),
    )


def _normalization(row: Row) -> Normalization:
    epsilon = row.get("epsilon", {})
    number = epsilon.get("default", epsilon.get("fixed"))
    return made(
        Normalization,
        row,
        axes=_axes(Row(row.where, row["axes"])),
        epsilon=None if number is None else float(number),
        epsilon_is_attribute="default" in epsilon,
        epsilon_on=epsilon.get("on", "variance"),
    )


NORMALIZATIONS: tuple[Normalization, ...] = tuple(map(_normalization, read_table("normalizations")["normalization"]))


def find_normalization(domain: str, op_type: str, version: int) -> Normalization | None:
    """Return the row of an operator in a version of its domain."""
    for row in NORMALIZATIONS:
        if (row.domain, row.op_type) == (domain, op_type) and row.since <= version <= (row.until or version):
            return row
    return None
