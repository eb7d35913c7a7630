"""The tables of ``ep/spec`` as Python data, each read into frozen dataclasses when it is first used.

The same tables become C++ headers at build time (``tools/generate_tables.py``), so the rewriting pass, the native
library, the documentation and the tests cannot disagree about a name, a default or a price.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .activations import (
        ACTIVATIONS,
        Activation,
        ActivationBody,
        ActivationSpelling,
        DirectMlActivation,
        Parameter,
    )
    from .directml import DIRECTML_ASSUMPTIONS, DIRECTML_OPERATORS, DirectMlOperator
    from .element_types import ELEMENT_TYPES, ElementType, types_stored_by
    from .host_operators import HOST_OPERATORS, OperatorList
    from .normalizations import NORMALIZATIONS, Axes, Normalization, find_normalization
    from .operators import (
        ARGUMENTS,
        ATTRIBUTES,
        EDGES,
        MOST_DIMENSIONS,
        MOST_STEP_TENSORS,
        MOST_TENSORS,
        OPERATOR_DOMAIN,
        OPERATORS,
        OPSET_VERSION,
        STEPS,
        UNNAMED_DIMENSION,
        Argument,
        Attribute,
        Edge,
        Operator,
        Step,
    )
    from .options import OPTIONS, Option
    from .prices import CALLS, PRICES, PRODUCTS, TYPICAL, Call, Price, ProductPrice
    from .program import (
        SPEC_VERSION,
        ProgramError,
        ProgramStep,
        UnknownStepError,
        labels_of,
        read_program,
        spec_version_of,
        write_program,
    )
    from .reasons import REASONS, Reason
    from .validation import TooManyTensorsError, check_program

__all__ = [
    "ACTIVATIONS",
    "ARGUMENTS",
    "ATTRIBUTES",
    "CALLS",
    "DIRECTML_ASSUMPTIONS",
    "DIRECTML_OPERATORS",
    "EDGES",
    "ELEMENT_TYPES",
    "HOST_OPERATORS",
    "MOST_DIMENSIONS",
    "MOST_STEP_TENSORS",
    "MOST_TENSORS",
    "NORMALIZATIONS",
    "OPERATORS",
    "OPERATOR_DOMAIN",
    "OPSET_VERSION",
    "OPTIONS",
    "PRICES",
    "PRODUCTS",
    "REASONS",
    "SPEC_VERSION",
    "STEPS",
    "TYPICAL",
    "UNNAMED_DIMENSION",
    "Activation",
    "ActivationBody",
    "ActivationSpelling",
    "Argument",
    "Attribute",
    "Axes",
    "Call",
    "DirectMlActivation",
    "DirectMlOperator",
    "Edge",
    "ElementType",
    "Normalization",
    "Operator",
    "OperatorList",
    "Option",
    "Parameter",
    "Price",
    "ProductPrice",
    "ProgramError",
    "ProgramStep",
    "Reason",
    "Step",
    "TooManyTensorsError",
    "UnknownStepError",
    "check_program",
    "find_normalization",
    "labels_of",
    "read_program",
    "spec_version_of",
    "types_stored_by",
    "write_program",
]

_MODULES = {
    "activations": "ACTIVATIONS Activation ActivationBody ActivationSpelling DirectMlActivation Parameter",
    "directml": "DIRECTML_ASSUMPTIONS DIRECTML_OPERATORS DirectMlOperator",
    "element_types": "ELEMENT_TYPES ElementType types_stored_by",
    "host_operators": "HOST_OPERATORS OperatorList",
    "normalizations": "NORMALIZATIONS Axes Normalization find_normalization",
    "operators": (
        "ARGUMENTS ATTRIBUTES EDGES MOST_DIMENSIONS MOST_STEP_TENSORS MOST_TENSORS OPERATOR_DOMAIN OPERATORS "
        "OPSET_VERSION STEPS UNNAMED_DIMENSION Argument Attribute Edge Operator Step"
    ),
    "options": "OPTIONS Option",
    "prices": "CALLS PRICES PRODUCTS TYPICAL Call Price ProductPrice",
    "program": (
        "SPEC_VERSION ProgramError ProgramStep UnknownStepError labels_of read_program spec_version_of write_program"
    ),
    "reasons": "REASONS Reason",
    "validation": "TooManyTensorsError check_program",
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names.split()}


if not TYPE_CHECKING:  # a type checker would take any name for one that there is

    def __getattr__(name: str) -> Any:
        if name not in _MODULE_OF:
            raise AttributeError(f"module 'normfuse.spec' has no attribute '{name}'")
        value = getattr(importlib.import_module(f"normfuse.spec.{_MODULE_OF[name]}"), name)
        globals()[name] = value
        return value
