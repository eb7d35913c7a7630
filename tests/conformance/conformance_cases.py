"""The node cases of onnx.backend.test that fall into the field of normfuse, made loadable by the host."""

import dataclasses
import functools
import importlib
import re
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.backend.test.case import node

from normfuse.meaning import Array
from normfuse.spec import ACTIVATIONS

# What onnxruntime 1.31 loads. onnx writes newer versions; the operators here mean the same at this one.
HOST_IR_VERSION = 13
HOST_OPSET = 26

NORMALIZATIONS = (
    "LayerNormalization",
    "RMSNormalization",
    "MeanVarianceNormalization",
    "GroupNormalization",
    "InstanceNormalization",
    "BatchNormalization",
    "LpNormalization",
)
QUANTIZATION = ("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear")
ACTIVATION_OPERATORS = {
    s.op_type for row in ACTIVATIONS.values() for s in row.spellings if not s.domain and not s.is_part
}
FIELD = {*NORMALIZATIONS, *QUANTIZATION, *ACTIVATION_OPERATORS}


# Not run by normfuse, and why. The provider gives a reason for what lies in its field; other operators it passes over.
NO_OPERATOR_OF_OURS = {
    "LpNormalization": "divides by a norm of its own, without mean, variance or epsilon",
    "DynamicQuantizeLinear": "has its quantisation parameters as results",
    "BatchNormalization": "has its statistics as inputs: a scale and a bias that ORT folds into a convolution",
}
# Case -> (reason code of the claim report, what stands behind it).
_FLOAT4 = (
    "unsupported_type",
    "float4 is no type of DirectML's operators, and ONNX Runtime has no kernel for it either",
)
_INTEGER_CLIP = ("unsupported_type", "limits integers; an activation is a function of floats")
DECLINED = {
    "test_dequantizelinear_float4e2m1": _FLOAT4,
    "test_quantizelinear_float4e2m1": _FLOAT4,
    "test_clip_default_int8_inbounds": _INTEGER_CLIP,
    "test_clip_default_int8_max": _INTEGER_CLIP,
    "test_clip_default_int8_min": _INTEGER_CLIP,
}
# onnxruntime 1.31 refuses these before any provider is asked: it has no Celu of opset 28, nor kernels for its body.
HOST_REFUSES = {"test_celu_float16", "test_celu_bfloat16", "test_celu_bfloat16_expanded"}

# Operator -> expanded cases in which the rewriting pass finds it again.
EXPANDED_FUSED = {
    "Gelu": 4,
    "GroupNormalization": 2,
    "HardSwish": 1,
    "LayerNormalization": 38,
    "LeakyRelu": 3,
    "MeanVarianceNormalization": 2,
    "Mish": 1,
    "RMSNormalization": 19,
    "Softplus": 2,
    "Swish": 1,
}

_SELECTION = "a comparison and a Where, or Max and Min of constants made by CastLike, as no exporter writes it"
# Operator -> why its body is not found. None of these looks like a site, so that the pass's report says nothing.
EXPANDED_LEFT = {
    "DynamicQuantizeLinear": "finds its quantisation parameters, as the operator itself",
    "Softsign": "a division and an addition, which ONNX Runtime runs",
    **dict.fromkeys(("Celu", "Clip", "Elu", "HardSigmoid", "PRelu"), _SELECTION),
    **dict.fromkeys(("Relu", "Selu", "Shrink", "ThresholdedRelu"), _SELECTION),
}


@dataclass(frozen=True)
class NodeCase:
    """One case: a model, its inputs and what comes out."""

    name: str
    op_type: str
    """Operator that the case is about."""
    model: onnx.ModelProto
    data: list[tuple[dict[str, Array], dict[str, Array]]]
    rtol: float
    atol: float
    expanded: bool
    """The operator's function body instead of the operator."""


@functools.cache
def node_cases() -> tuple[NodeCase, ...]:
    """Every case about an operator of the field, expanded ones included; about 300."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        collected = _collected()
    plain = {c.name: c.model.graph.node[0].op_type for c in collected if len(c.model.graph.node) == 1}
    cases = []
    for case in collected:
        base = case.name.split("_expanded")[0]
        op_type = plain.get(base)
        if op_type in FIELD:
            cases.append(_node_case(case, op_type, base != case.name))
    return tuple(sorted(cases, key=lambda c: c.name))


def _collected() -> list[Any]:
    """What `node.collect_testcases` gives of the field: that computes the cases of every operator, for ten seconds."""
    named = re.compile(f'"({"|".join(FIELD)})"')
    for path in sorted(Path(node.__file__).parent.glob("*.py")):
        if path.stem != "__init__" and named.search(path.read_text("utf-8")):
            importlib.import_module(f"{node.__name__}.{path.stem}")
    return node._NodeTestCases


def ours(case: NodeCase) -> bool:
    return case.op_type not in NO_OPERATOR_OF_OURS and case.name not in DECLINED


def _node_case(case: Any, op_type: str, expanded: bool) -> NodeCase:
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    model.ir_version = min(model.ir_version, HOST_IR_VERSION)
    for opset in model.opset_import:
        if opset.domain == "":
            opset.version = min(opset.version, HOST_OPSET)
    # Quantised cases put their parameters into inputs like everything else; they stay inputs.
    data = [(_named(model.graph.input, i), _named(model.graph.output, o)) for i, o in case.data_sets]
    return NodeCase(case.name, op_type, model, data, case.rtol, case.atol, expanded)


def _named(values: Any, arrays: Any) -> dict[str, Array]:
    # 4-bit and smaller values come as TensorProto.
    return {
        value.name: numpy_helper.to_array(array) if isinstance(array, onnx.TensorProto) else np.asarray(array)
        for value, array in zip(values, arrays, strict=True)
    }


def with_constant_limits(case: NodeCase) -> NodeCase:
    """Clip with its limits as initialisers, as models have them; the case has them as graph inputs."""
    ((inputs, outputs),) = case.data
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    data = model.graph.input[0]
    del model.graph.input[1:]
    model.graph.initializer.extend(
        numpy_helper.from_array(array, name) for name, array in inputs.items() if name != data.name
    )
    return dataclasses.replace(case, model=model, data=[({data.name: inputs[data.name]}, outputs)])


def assert_close(case: NodeCase, got: dict[str, Array], expected: dict[str, Array]) -> None:
    """The tolerance of the case itself, for integers equality."""
    for name, value in expected.items():
        assert got[name].dtype == value.dtype, name
        assert got[name].shape == value.shape, name
        integer = "int" in value.dtype.name
        np.testing.assert_allclose(
            got[name].astype(np.float64),
            value.astype(np.float64),
            rtol=0 if integer else case.rtol,
            atol=0 if integer else case.atol,
            err_msg=f"{case.name}: {name}",
        )


PLAIN = tuple(case for case in node_cases() if not case.expanded and case.name not in HOST_REFUSES)
EXPANDED = tuple(case for case in node_cases() if case.expanded and case.name not in HOST_REFUSES)
