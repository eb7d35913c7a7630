"""The tables of ``ep/spec`` as Python data, each read into frozen dataclasses when it is first used.

The same tables become C++ headers at build time (``tools/generate_tables.py``), so the rewriting pass, the native
library, the documentation and the tests cannot disagree about a name, a default or a price.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

# Name -> the module that has it; a module is imported with its first name.
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

if TYPE_CHECKING:  # which takes what each module names in its __all__
    from .activations import *  # noqa: F403
    from .directml import *  # noqa: F403
    from .element_types import *  # noqa: F403
    from .host_operators import *  # noqa: F403
    from .normalizations import *  # noqa: F403
    from .operators import *  # noqa: F403
    from .options import *  # noqa: F403
    from .prices import *  # noqa: F403
    from .program import *  # noqa: F403
    from .reasons import *  # noqa: F403
    from .validation import *  # noqa: F403
else:
    __all__ = sorted(_MODULE_OF)

    def __getattr__(name: str) -> Any:
        if name not in _MODULE_OF:
            raise AttributeError(f"module 'normfuse.spec' has no attribute '{name}'")
        value = getattr(importlib.import_module(f"normfuse.spec.{_MODULE_OF[name]}"), name)
        globals()[name] = value
        return value
