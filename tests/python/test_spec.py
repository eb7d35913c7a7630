"""normfuse.spec against what the tables promise."""

from __future__ import annotations

import math
import string

import onnx
import pytest

from normfuse import spec


def test_operators_name_inputs_and_outputs_once() -> None:
    assert spec.OPERATOR_DOMAIN == "ai.normfuse"
    assert set(spec.OPERATORS) == {"FusedNormalization", "FusedActivation", "FusedDequantizeLinear"}
    for operator in spec.OPERATORS.values():
        assert len(set(operator.inputs)) == len(operator.inputs)
        assert operator.inputs[0] == "X"
        assert operator.outputs[0] == "Y"


def test_attribute_defaults_have_their_type() -> None:
    python_type = {"int": int, "float": float, "string": str, "ints": tuple, "floats": tuple}
    for attribute in spec.ATTRIBUTES.values():
        assert isinstance(attribute.default, python_type[attribute.type]), attribute.name
        assert set(attribute.operators) <= set(spec.OPERATORS)
        if attribute.values:
            assert attribute.default in attribute.values


@pytest.mark.parametrize("activation", spec.ACTIVATIONS.values(), ids=lambda a: a.name)
def test_activation_spellings_exist_in_onnx(activation: spec.Activation) -> None:
    for spelling in activation.spellings:
        assert set(spelling.defaults) == set(activation.parameters)
        assert set(spelling.attributes.values()) <= set(activation.parameters)
        assert set(spelling.inputs) <= set(activation.parameters)
        if spelling.domain or spelling.until == 9:  # com.microsoft; ScaledTanh and others that left onnx after opset 9
            continue
        schema = onnx.defs.get_schema(spelling.op_type, spelling.until or onnx.defs.onnx_opset_version(), "")
        for name, parameter in spelling.attributes.items():
            default = schema.attributes[name].default_value
            if default.type == onnx.AttributeProto.FLOAT and spelling.op_type != "Clip":
                assert math.isclose(default.f, spelling.defaults[parameter], rel_tol=1e-7)


def test_lipschitz_expressions_are_numbers() -> None:
    for activation in spec.ACTIVATIONS.values():
        names = {"max": max, "abs": abs, "slope": 0.25} | dict(activation.parameters)
        assert eval(activation.lipschitz, {"__builtins__": {}}, names) > 0


def test_reason_message_fills_every_field() -> None:
    for reason in spec.REASONS.values():
        fields = {name: "<" + name + ">" for _, name, _, _ in string.Formatter().parse(reason.text) if name}
        message = reason.message(**fields)
        assert all(value in message for value in fields.values())
        assert reason.advice.endswith(".")
    with pytest.raises(KeyError):
        spec.REASONS["attribute_value"].message()


def test_tables_are_read_only() -> None:
    with pytest.raises(TypeError):
        spec.ACTIVATIONS["Relu"].parameters["alpha"] = 1.0  # type: ignore[index]
    with pytest.raises(AttributeError):
        spec.OPERATORS["FusedActivation"].name = "other"  # type: ignore[misc]
