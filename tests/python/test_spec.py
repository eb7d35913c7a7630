"""normfuse.spec against what the tables promise."""

import math
import runpy
import string
from pathlib import Path

import onnx
import pytest

from normfuse import spec
from normfuse.spec.formulas import evaluate

ROOT = Path(__file__).resolve().parents[2]
#: What each version of the specification has added, as it was released. A released line never changes.
VERSIONS = {
    1: """
    Dequantize Add Mul Requantize Emit Normalize Softmax LogSoftmax Store Quantize
    scale zero_point axis block_size align type saturate axes num_groups epsilon epsilon_on use_mean
    normalize_variance
    Identity Relu LeakyRelu PRelu Elu Celu Selu Gelu GeluTanh Swish HardSwish HardSigmoid Sigmoid Tanh Erf Exp
    Sin SinSquared ScaledTanh Softplus ParametricSoftplus Softsign ThresholdedRelu Shrink Mish Clip Linear
    """,
    2: "FakeQuantize Div",
}


def test_rows_refer_to_each_other() -> None:
    assert set(spec.OPERATORS) == {"FusedNormalization", "FusedActivation", "FusedDequantizeLinear"}
    for operator in spec.OPERATORS.values():
        assert len(set(operator.outputs)) == len(operator.outputs)
        assert operator.outputs[0] == "Y"
    python_type = {"int": int, "float": float, "flag": int, "word": str, "type": str, "ints": tuple}
    for argument in spec.ARGUMENTS.values():
        assert isinstance(argument.default, python_type.get(argument.type, type(None))), argument.name
        assert (argument.type == "word") == bool(argument.values)
        assert not argument.values or argument.default in argument.values
    assert not spec.STEPS.keys() & spec.ACTIVATIONS.keys()
    assert {argument for step in spec.STEPS.values() for argument in step.arguments} == set(spec.ARGUMENTS)


def test_each_name_came_with_its_version() -> None:
    rows = {name: row for table in (spec.STEPS, spec.ARGUMENTS, spec.ACTIVATIONS) for name, row in table.items()}
    came = {name: version for version, names in VERSIONS.items() for name in names.split()}
    assert {name: row.since for name, row in rows.items()} == came
    assert max(VERSIONS) == spec.SPEC_VERSION


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


def test_reason_message_fills_every_field() -> None:
    for reason in spec.REASONS.values():
        fields = {name: "<" + name + ">" for _, name, _, _ in string.Formatter().parse(reason.text) if name}
        message = reason.message(**fields)
        assert all(value in message for value in fields.values())
        assert reason.advice.endswith(".")
    with pytest.raises(KeyError):
        spec.REASONS["attribute_value"].message()


@pytest.mark.parametrize("activation", spec.ACTIVATIONS.values(), ids=lambda a: a.name)
def test_activation_has_all_that_it_needs(activation: spec.Activation) -> None:
    """A price on each instruction set, ranges to draw from, and something that a portable model can write."""
    price = activation.price
    assert min(price.ort, price.avx512, price.avx2, price.baseline) > 0
    assert evaluate(activation.lipschitz, {"x": 1.0, "slope": 0.25, **activation.parameters}) > 0
    for name, each in activation.drawn.items():
        assert -math.inf < each.low < each.high < math.inf, name
    lasting = [each for each in activation.spellings if not each.domain and each.until is None]
    assert lasting or activation.bodies
    always = [each for each in activation.bodies if each.since == 1 and not each.defaults]
    assert lasting or always, "no body for all parameters at every opset"
    assert not (activation.directml and activation.composed)


def test_reference_pages_hold_every_row() -> None:
    pages = {name: make() for name, make in runpy.run_path(str(ROOT / "docs" / "generate.py"))["PAGES"].items()}
    for name, activation in spec.ACTIVATIONS.items():
        # The table of operators, that of bodies and that of prices.
        assert pages["activations"].count(f"| `{name}` |") == 3
        assert f"`{activation.formula}`".replace("|", "\\|") in pages["activations"]
    rows = {
        "prices": [*spec.PRICES, *spec.CALLS, *spec.HOST_OPERATORS],
        "options": list(spec.OPTIONS),
        "reasons": list(spec.REASONS),
        "operators": [
            *spec.ATTRIBUTES,
            *spec.ARGUMENTS,
            *(f"{s.name}{' operand' * s.has_operand}" for s in spec.STEPS.values()),
        ],
    }
    for page, names in rows.items():
        assert not [name for name in names if f"| `{name}` |" not in pages[page]], page
    normalizations = [f"{row.domain}::{row.op_type}".removeprefix("::") for row in spec.NORMALIZATIONS]
    assert not [name for name in normalizations if f"| `{name}` |" not in pages["normalizations"]]
    assert not [edge for edge in spec.EDGES if f"| {edge} |" not in pages["operators"]]
    navigation = (ROOT / "docs" / "mkdocs.yml").read_text("utf-8")
    assert not [name for name in pages if f"reference/{name}.md" not in navigation]


@pytest.mark.parametrize("name", spec.HOST_OPERATORS)
def test_list_of_operators_names_what_onnx_has(name: str) -> None:
    listed = spec.HOST_OPERATORS[name].names
    assert list(listed) == sorted(set(listed))
    known = {schema.name for schema in onnx.defs.get_all_schemas() if schema.domain == ""}
    assert set(listed) <= known


@pytest.mark.parametrize("expression", ["x +", "open(x)", "__import__('os')"])
def test_expressions_call_only_what_the_table_knows(expression: str) -> None:
    with pytest.raises((SyntaxError, ValueError)):
        evaluate(expression, {"x": 1.0})


@pytest.mark.parametrize("row", spec.NORMALIZATIONS, ids=lambda row: f"{row.op_type}-{row.since}")
def test_normalization_is_as_onnx_has_it(row: spec.Normalization) -> None:
    overlapping = [
        other
        for other in spec.NORMALIZATIONS
        if (other.domain, other.op_type) == (row.domain, row.op_type) and other is not row and other.since >= row.since
    ]
    assert all(row.until is not None and row.until < other.since for other in overlapping)
    assert row.inputs[0] == "X"
    assert row.outputs[0] == "Y"
    if row.domain or row.op_type == "SimplifiedLayerNormalization":  # ONNX Runtime's own
        return
    schema = onnx.defs.get_schema(row.op_type, row.until or onnx.defs.onnx_opset_version(), "")
    assert len(row.inputs) <= len(schema.inputs)
    assert len(row.outputs) <= len(schema.outputs)
    assert ("stash_type" in schema.attributes) == row.has_stash_type
    if row.epsilon_is_attribute:
        assert math.isclose(schema.attributes["epsilon"].default_value.f, row.epsilon, rel_tol=1e-6)
    elif row.op_type == "MeanVarianceNormalization":
        constants = [a.t for node in schema.function_body.node for a in node.attribute if a.name == "value"]
        assert any(math.isclose(onnx.numpy_helper.to_array(t).item(), row.epsilon, rel_tol=1e-6) for t in constants)
    if row.axes.attribute and not row.axes.in_groups:
        default = schema.attributes[row.axes.attribute].default_value
        assert (
            (default.i == row.axes.first) if row.axes.first is not None else (tuple(default.ints) == row.axes.default)
        )


def test_normalization_is_found_by_its_version() -> None:
    group = [spec.find_normalization("", "GroupNormalization", version) for version in (17, 18, 20, 21, 25)]
    assert [row and row.affine_align for row in group] == [None, "group", "group", "channel", "channel"]
    assert spec.find_normalization("", "MeanVarianceNormalization", 8) is None
