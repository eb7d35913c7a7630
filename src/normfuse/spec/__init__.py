"""The operator specification as Python data: the TOML tables of ``ep/spec``, read once into frozen dataclasses.

The same tables become a C++ header at build time (``tools/generate_tables.py``), so the rewriting pass, the native
library, the documentation and the tests cannot disagree about a name, a default or a reason.
"""

from __future__ import annotations

import dataclasses
import tomllib
from importlib import resources
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "ACTIVATIONS",
    "ATTRIBUTES",
    "EDGES",
    "OPERATORS",
    "OPERATOR_DOMAIN",
    "OPSET_VERSION",
    "REASONS",
    "SPEC_VERSION",
    "Activation",
    "ActivationSpelling",
    "Attribute",
    "DirectMlActivation",
    "Edge",
    "Operator",
    "Reason",
]


@dataclasses.dataclass(frozen=True, slots=True)
class ActivationSpelling:
    """A single standard node that means an activation."""

    op_type: str
    domain: str
    since: int
    """First opset version of ``domain`` for which the spelling holds."""
    until: int | None
    """Last opset version, inclusive; None: no upper bound."""
    when: Mapping[str, str]
    """Attributes that must have a value."""
    attributes: Mapping[str, str]
    """Attribute of the node -> parameter of the activation."""
    inputs: tuple[str, ...]
    """Parameters given as the inputs 1, 2, ... of the node."""
    defaults: Mapping[str, float]
    """Value of every parameter that the node leaves out."""
    has_bias: bool
    """Input 1 is a bias that is added before the activation."""


@dataclasses.dataclass(frozen=True, slots=True)
class DirectMlActivation:
    """The DirectML operator of an activation."""

    op: str
    """``DML_OPERATOR_ACTIVATION_<op>``."""
    type: int
    level: str
    """Feature level of the operator, such as "2_1"."""
    fused: str
    """Feature level from which a normalisation takes it as ``FusedActivation``; "" = never."""
    fields: tuple[str, ...]
    """Parameter of each float field, in order."""


@dataclasses.dataclass(frozen=True, slots=True)
class Activation:
    """One row of the activation table."""

    name: str
    formula: str
    parameters: Mapping[str, float]
    """Name -> default, in the order of the attribute ``activation_params``."""
    kernel: str
    lipschitz: str
    """Bound of the derivative: a Python expression over the parameters (and ``slope``)."""
    has_slope: bool
    spellings: tuple[ActivationSpelling, ...]
    directml: DirectMlActivation | None


@dataclasses.dataclass(frozen=True, slots=True)
class Operator:
    """One operator of the domain ``ai.normfuse``."""

    name: str
    summary: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Attribute:
    """One attribute of the operators."""

    name: str
    type: str
    """int, ints, float, floats or string."""
    default: int | float | str | tuple[int, ...] | tuple[float, ...]
    values: tuple[str, ...]
    """The values a string attribute can have; empty: any."""
    operators: tuple[str, ...]
    """Names of the operators that take it."""
    doc: str


@dataclasses.dataclass(frozen=True, slots=True)
class Edge:
    """What holds at an edge of the operators' domain."""

    name: str
    operators: tuple[str, ...]
    """Names of the operators that it is about."""
    doc: str


@dataclasses.dataclass(frozen=True, slots=True)
class Reason:
    """Why a site is left as it is."""

    code: str
    text: str
    advice: str

    def message(self, **fields: object) -> str:
        """Return the sentence with its ``{fields}`` filled in; a missing field is a KeyError."""
        return self.text.format(**fields)


def _table(name: str) -> dict[str, Any]:
    return tomllib.loads(resources.files(__package__).joinpath(f"{name}.toml").read_text(encoding="utf-8"))


def _spelling(row: Mapping[str, Any], parameters: Mapping[str, float]) -> ActivationSpelling:
    return ActivationSpelling(
        op_type=row["op"],
        domain=row.get("domain", ""),
        since=row["since"],
        until=row.get("until"),
        when=MappingProxyType(row.get("when", {})),
        attributes=MappingProxyType(row.get("attributes", {})),
        inputs=tuple(row.get("inputs", ())),
        defaults=MappingProxyType(dict(parameters) | {k: float(v) for k, v in row.get("defaults", {}).items()}),
        has_bias=row.get("bias", False),
    )


def _activation(row: Mapping[str, Any]) -> Activation:
    parameters = MappingProxyType({name: float(default) for name, default in row.get("params", ())})
    directml = row.get("directml")
    return Activation(
        name=row["name"],
        formula=row["formula"],
        parameters=parameters,
        kernel=row["kernel"],
        lipschitz=row["lipschitz"],
        has_slope=row.get("slope", False),
        spellings=tuple(_spelling(spelling, parameters) for spelling in row.get("onnx", ())),
        directml=DirectMlActivation(**{**directml, "fields": tuple(directml["fields"])}) if directml else None,
    )


def _names(row: Mapping[str, Any], operators: Mapping[str, Operator]) -> tuple[str, ...]:
    return tuple(operators) if row["operators"] == "all" else tuple(row["operators"])


def _attribute(row: Mapping[str, Any], operators: Mapping[str, Operator]) -> Attribute:
    default = row["default"]
    return Attribute(
        name=row["name"],
        type=row["type"],
        default=tuple(default) if isinstance(default, list) else default,
        values=tuple(row.get("values", ())),
        operators=_names(row, operators),
        doc=row["doc"],
    )


_OPERATOR_TABLE = _table("operators")

OPERATOR_DOMAIN: str = _OPERATOR_TABLE["domain"]
OPSET_VERSION: int = _OPERATOR_TABLE["opset_version"]
SPEC_VERSION: int = _OPERATOR_TABLE["spec_version"]

ACTIVATIONS: Mapping[str, Activation] = MappingProxyType(
    {row["name"]: _activation(row) for row in _table("activations")["activation"]}
)
OPERATORS: Mapping[str, Operator] = MappingProxyType(
    {
        row["name"]: Operator(row["name"], row["summary"], tuple(row["inputs"]), tuple(row["outputs"]))
        for row in _OPERATOR_TABLE["operator"]
    }
)
ATTRIBUTES: Mapping[str, Attribute] = MappingProxyType(
    {row["name"]: _attribute(row, OPERATORS) for row in _OPERATOR_TABLE["attribute"]}
)
EDGES: Mapping[str, Edge] = MappingProxyType(
    {row["name"]: Edge(row["name"], _names(row, OPERATORS), row["doc"]) for row in _OPERATOR_TABLE["edge"]}
)
REASONS: Mapping[str, Reason] = MappingProxyType({row["code"]: Reason(**row) for row in _table("reasons")["reason"]})
