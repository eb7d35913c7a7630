"""The table of activations."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from ._reading import Row, made, read_table
from .formulas import evaluate
from .prices import Price, price_of


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ActivationSpelling:
    """A single standard node that means an activation."""

    op_type: str = dataclasses.field(metadata={"key": "op"})
    domain: str = ""
    since: int
    """First opset version of ``domain`` for which the spelling holds."""
    until: int | None = None
    """Last opset version, inclusive; None: no upper bound."""
    when: Mapping[str, str]
    """Attributes that must have a value."""
    attributes: Mapping[str, str]
    """Attribute of the node -> parameter of the activation."""
    inputs: tuple[str, ...] = ()
    """Parameters given as the inputs 1, 2, ... of the node."""
    defaults: Mapping[str, float]
    """Value of every parameter that the node leaves out."""
    has_bias: bool = dataclasses.field(default=False, metadata={"key": "bias"})
    """Input 1 is a bias that is added before the activation."""
    is_part: bool = dataclasses.field(default=False, metadata={"key": "part"})
    """Formulas are written with it: it begins no chain, and ends one only where nothing computes further."""


@dataclasses.dataclass(frozen=True, slots=True)
class ActivationBody:
    """What the function of a portable model writes for an activation."""

    nodes: str
    """A Python expression: a call is an ONNX node, an arithmetic operator one of its own, a number a constant."""
    since: int = 1
    """First opset version of ONNX for which it holds."""
    defaults: bool = False
    """It holds only for parameters that have their defaults."""


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
class Parameter:
    """A number that an activation takes."""

    default: float
    low: float
    """Tests draw from here ..."""
    high: float
    """... to here."""
    nonzero: bool
    """The formula divides by it."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Activation:
    """One row of the activation table."""

    name: str
    formula: str
    """An expression over ``x``, the parameters and ``slope``, see :mod:`normfuse.spec.formulas`."""
    drawn: Mapping[str, Parameter]
    """The parameters, in the order of the table."""
    kernel: str
    price: Price
    lipschitz: str
    """Bound of the derivative: an expression over the parameters (and ``slope``), or over ``x`` where there is none."""
    has_slope: bool = dataclasses.field(default=False, metadata={"key": "slope"})
    spellings: tuple[ActivationSpelling, ...]
    bodies: tuple[ActivationBody, ...]
    """The first that holds is written; none: the spelling that the opset has."""
    directml: DirectMlActivation | None
    since: int = 1
    """The version of the specification that it came with."""
    composed: bool
    """DirectML has it by way of other operators only; False without ``directml``: not at all."""

    @property
    def parameters(self) -> Mapping[str, float]:
        """Name -> default, in the order of the table."""
        return MappingProxyType({name: parameter.default for name, parameter in self.drawn.items()})

    def __call__(self, x: Any, parameters: Sequence[float], slope: Any = None) -> Any:
        """Return the activation of float64 numbers."""
        return evaluate(self.formula, {"x": x, "slope": slope, **dict(zip(self.drawn, parameters, strict=True))})


def _parameters(row: Row) -> Mapping[str, Parameter]:
    found = {}
    for each in row.get("params", ()):
        low, high = map(float, each["range"])
        found[each["name"]] = Parameter(float(each["default"]), low, high, each.get("nonzero", False))
    return MappingProxyType(found)


def _spelling(row: dict[str, Any], parameters: Mapping[str, Parameter]) -> ActivationSpelling:
    defaults = {name: each.default for name, each in parameters.items()}
    defaults |= {name: float(value) for name, value in row.get("defaults", {}).items()}
    return made(ActivationSpelling, {"when": {}, "attributes": {}} | row, defaults=MappingProxyType(defaults))


def _activation(row: Row) -> Activation:
    parameters, directml = _parameters(row), row["directml"]
    return made(
        Activation,
        row,
        drawn=parameters,
        price=price_of(row["price"]),
        spellings=tuple(_spelling(spelling, parameters) for spelling in row.get("onnx", ())),
        bodies=tuple(made(ActivationBody, body) for body in row.get("body", ())),
        directml=made(DirectMlActivation, directml) if isinstance(directml, dict) else None,
        composed=directml == "composed",
    )


ACTIVATIONS: Mapping[str, Activation] = MappingProxyType(
    {row["name"]: _activation(row) for row in read_table("activations")["activation"]}
)
