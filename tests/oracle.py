"""What the tests hold results against: normfuse.meaning, of a case in the notation of `programs`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import programs

from normfuse import meaning
from normfuse.meaning import (
    FLOAT8,
    INTEGER_RANGE,
    Array,
    Expected,
    activate,
    activation_parameters,
    dequantize,
    dtype_code,
    dtype_of,
    expand_parameter,
    quantize,
    round_to_type,
    ulp32,
)
from normfuse.spec import ACTIVATIONS

__all__ = [
    "ACTIVATIONS",
    "FLOAT8",
    "INTEGER_RANGE",
    "Array",
    "Expected",
    "activate",
    "activation_parameters",
    "dequantize",
    "dtype_code",
    "dtype_of",
    "evaluate",
    "expand_parameter",
    "quantize",
    "round_to_type",
    "ulp32",
]


def evaluate(op: str, inputs: Mapping[str, Array | None], attributes: Mapping[str, Any]) -> dict[str, Expected]:
    """What operator ``op`` gives: one Expected per output name of operators.toml."""
    given = {name: value for name, value in inputs.items() if value is not None}
    return meaning.evaluate(programs.write(op, given, attributes)[0], given)
