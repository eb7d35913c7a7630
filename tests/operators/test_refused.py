"""Nodes that cannot be run: refused at session creation, or with a status at run time; never a crash."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import harness
import numpy as np
import oracle
import pytest
from onnx import AttributeProto, TensorProto, helper

from normfuse.spec import SPEC_VERSION

F32 = np.float32
X = np.arange(24, dtype=F32).reshape(2, 3, 4)
XQ = X.astype(np.int8)
ONE = np.array(1.0, F32)
HALF = np.array([0.5] * 3, np.float64)


def z(value: int, dtype: Any) -> np.ndarray:
    return np.array(value, dtype)


# (id, operator, inputs, attributes, words of the sentence besides the node's name)
REFUSED: list[tuple[str, str, dict[str, np.ndarray], dict[str, Any], list[str]]] = [
    ("axis out of range", "FusedNormalization", {"X": X}, {"axes": [3]}, ["axes", "3", "2, 3, 4"]),
    ("negative axis out of range", "FusedNormalization", {"X": X}, {"axes": [-4]}, ["axes", "-4", "2, 3, 4"]),
    ("an axis twice", "FusedNormalization", {"X": X}, {"axes": [1, -2]}, ["axes", "twice"]),
    ("no axes", "FusedNormalization", {"X": X}, {}, ["axes"]),
    ("axes and groups", "FusedNormalization", {"X": X}, {"axes": [1], "num_groups": 3}, ["axes", "num_groups"]),
    ("groups that do not divide", "FusedNormalization", {"X": X}, {"num_groups": 2}, ["3", "2", "2, 3, 4"]),
    ("negative groups", "FusedNormalization", {"X": X}, {"num_groups": -1}, ["num_groups"]),
    ("NaN epsilon", "FusedNormalization", {"X": X}, {"axes": [1], "epsilon": float("nan")}, ["epsilon"]),
    ("epsilon on what", "FusedNormalization", {"X": X}, {"axes": [1], "epsilon_on": "range"}, ["epsilon_on", "range"]),
    ("a flag of 2", "FusedNormalization", {"X": X}, {"axes": [1], "use_mean": 2}, ["use_mean", "2"]),
    ("align", "FusedNormalization", {"X": X, "scale": ONE}, {"axes": [1], "affine_align": "left"}, ["align", "left"]),
    (
        "scale shape",
        "FusedNormalization",
        {"X": X, "scale": np.ones(5, F32)},
        {"axes": [2]},
        ["scale", "[5]", "2, 3, 4"],
    ),
    ("bias shape", "FusedNormalization", {"X": X, "bias": np.ones((2, 4), F32)}, {"axes": [2]}, ["bias", "[2, 4]"]),
    (
        "scale of a higher rank",
        "FusedNormalization",
        {"X": X, "scale": np.ones((2, 2, 3, 4), F32)},
        {"axes": [2]},
        ["scale", "[2, 2, 3, 4]"],
    ),
    # Broadcasting as in ONNX would give Y the fourth dimension.
    *(
        (
            f"{name} of a higher rank with one element there",
            "FusedNormalization",
            {"X": X, name: np.ones((1, 2, 3, 4), F32)},
            {"axes": [2], **attributes},
            [name, "[1, 2, 3, 4]", "[2, 3, 4]"],
        )
        for name, attributes in (
            ("scale", {}),
            ("bias", {}),
            ("slope", {"activation": "PRelu"}),
            ("operand_0", {"steps_behind": "Mul"}),
        )
    ),
    (
        "channel scale",
        "FusedNormalization",
        {"X": X, "scale": np.ones(4, F32)},
        {"axes": [2], "affine_align": "channel"},
        ["scale", "4", "3"],
    ),
    ("scale type", "FusedNormalization", {"X": X, "scale": np.ones(4)}, {"axes": [2]}, ["scale", "float64"]),
    ("x type", "FusedNormalization", {"X": X.astype(np.float64)}, {"axes": [2]}, ["X", "float64"]),
    ("x needs scale", "FusedNormalization", {"X": XQ}, {"axes": [2]}, ["X", "int8", "x_scale"]),
    ("float x with scale", "FusedNormalization", {"X": X, "x_scale": ONE}, {"axes": [2]}, ["X", "float32", "x_scale"]),
    ("x scale type", "FusedActivation", {"X": XQ, "x_scale": HALF[0]}, {}, ["x_scale", "float64"]),
    ("x scale shape", "FusedActivation", {"X": XQ, "x_scale": np.ones(4, F32)}, {}, ["x_scale", "4", "2, 3, 4"]),
    ("x axis", "FusedActivation", {"X": XQ, "x_scale": np.ones(4, F32)}, {"x_axis": 5}, ["x_scale", "5", "2, 3, 4"]),
    (
        "zero point type",
        "FusedActivation",
        {"X": XQ, "x_scale": ONE, "x_zero_point": z(0, np.uint8)},
        {},
        ["x_zero_point", "uint8", "int8"],
    ),
    (
        "zero point shape",
        "FusedActivation",
        {"X": XQ, "x_scale": np.ones(3, F32), "x_zero_point": np.zeros(2, np.int8)},
        {},
        ["x_zero_point", "2", "3"],
    ),
    (
        "zero point of full rank",
        "FusedActivation",
        {"X": XQ, "x_scale": ONE, "x_zero_point": np.zeros((1, 2, 1), np.int8)},
        {},
        ["x_zero_point", "[1, 2, 1]", "[2, 3, 4]"],
    ),
    (
        "zero point of other blocks",
        "FusedActivation",
        {"X": XQ, "x_scale": np.ones((2, 3, 2), F32), "x_zero_point": np.zeros((2, 3, 1), np.int8)},
        {"x_axis": 2, "x_block_size": 2},
        ["x_zero_point", "[2, 3, 1]", "[2, 3, 2]"],
    ),
    (
        "blocks that do not fit",
        "FusedActivation",
        {"X": XQ, "x_scale": np.ones((2, 3, 3), F32)},
        {"x_axis": 2, "x_block_size": 2},
        ["x_scale", "[2, 3, 3]", "2, 3, 4"],
    ),
    ("negative blocks", "FusedActivation", {"X": XQ, "x_scale": ONE}, {"x_block_size": -2}, ["x_block_size"]),
    (
        "zero point without scale",
        "FusedActivation",
        {"X": X, "y_zero_point": z(0, np.int8)},
        {},
        ["y_zero_point", "y_scale"],
    ),
    ("y into int32", "FusedActivation", {"X": X, "y_scale": ONE}, {"y_dtype": int(TensorProto.INT32)}, ["Y", "int32"]),
    (
        "y into int8 without scale",
        "FusedActivation",
        {"X": X},
        {"y_dtype": int(TensorProto.INT8)},
        ["Y", "int8", "y_scale"],
    ),
    ("y into a string", "FusedActivation", {"X": X}, {"steps": "Store type=string"}, ["Store", "type", "string"]),
    ("y into nothing known", "FusedActivation", {"X": X}, {"steps": "Store type=float99"}, ["Store", "float99"]),
    ("unknown step", "FusedActivation", {"X": X}, {"activation": "Gleu"}, ["step", "Gleu"]),
    ("no steps", "FusedActivation", {"X": X}, {"steps": ""}, ["steps"]),
    ("steps that end in a semicolon", "FusedActivation", {"X": X}, {"steps": "Gelu;"}, ["step 2", "empty"]),
    ("steps in another order", "FusedActivation", {"X": X}, {"steps": "Store; Gelu"}, ["Gelu", "behind", "Store"]),
    ("a core too many", "FusedActivation", {"X": X}, {"steps": "Normalize axes=1"}, ["FusedNormalization"]),
    ("no core", "FusedNormalization", {"X": X}, {"steps": "Gelu"}, ["Normalize"]),
    ("a label twice", "FusedActivation", {"X": X, "s": ONE}, {"steps": "Mul s; Add s"}, ["step 2 (Add)", "s", "twice"]),
    ("a label without input", "FusedActivation", {"X": X}, {"steps": "Mul s"}, ["Mul", "s", "input 1"]),
    ("a tensor without label", "FusedActivation", {"X": X, "s": ONE}, {"steps": "Gelu"}, ["input 1", "steps"]),
    ("no label", "FusedActivation", {"X": X, "s": ONE}, {"steps": "Mul a.b"}, ["Mul", "a.b"]),
    ("no operand", "FusedActivation", {"X": X}, {"steps": "Mul"}, ["Mul", "operand"]),
    ("an argument twice", "FusedNormalization", {"X": X}, {"steps": "Normalize axes=1 axes=2"}, ["axes", "twice"]),
    ("an unknown argument", "FusedNormalization", {"X": X}, {"steps": "Normalize axis=1"}, ["Normalize", "axis"]),
    ("no number", "FusedNormalization", {"X": X}, {"steps": "Normalize axes=1 epsilon=1,5"}, ["epsilon", "1,5"]),
    ("no whole number", "FusedNormalization", {"X": X}, {"steps": "Normalize axes=1.5"}, ["axes", "1.5"]),
    *(
        (
            f"steps {steps}",
            "FusedNormalization" if "Normalize" in steps else "FusedActivation",
            {"X": X, **dict.fromkeys(names, ONE)},
            {"steps": steps},
            [sentence],
        )
        for steps, names, sentence in (
            ("Normalize axes=1; Softmax axes=1", "", "step 2 (Softmax) cannot stand behind step 1 (Normalize)"),
            ("Relu; Normalize axes=1", "", "step 2 (Normalize) cannot stand behind step 1 (Relu)"),
            ("Normalize axes=1; Emit", "", "step 2 (Emit) cannot stand behind step 1 (Normalize)"),
            ("Quantize scale=s; Relu", "s", "step 2 (Relu) cannot stand behind step 1 (Quantize)"),
            ("Quantize scale=s; Store type=float16", "s", "step 2 (Store) cannot stand behind step 1 (Quantize)"),
            ("Relu; Dequantize scale=s", "s", "step 2 (Dequantize) cannot stand behind step 1 (Relu)"),
            ("Requantize scale=s; Relu", "s", "step 1 (Requantize) stands before no normalisation"),
            ("Normalize x axes=1", "x", "step 1 (Normalize) has the operand x, but takes none"),
            ("Add scale=s r", "sr", "step 1 (Add): 'r' is no argument, key=value"),
            ("Add r =2", "r", "step 1 (Add) takes no argument "),
            ("Elu alpha=1 beta=1", "", "step 1 (Elu) takes no argument beta"),
            ("Elu alpha=one", "", "alpha is 'one', which is not a number"),
            ("Relu; ;Relu", "", "step 2 is empty"),
            ("relu", "", "the step 'relu', which"),
            ("PRelu", "", "step 1 (PRelu) has no operand, its slope"),
            ("Quantize scale=a-b", "a", "'a-b' is no label of a tensor"),
            ("Normalize", "", "axes is missing"),
            ("Normalize axes=1,", "", "axes is '1,', which is not a list of whole numbers"),
            ("Normalize axes=1; Mul a align=group", "a", "align=group, but num_groups is 0"),
            ("Mul a align=channel; Normalize axes=1", "a", "is of steps behind the normalisation"),
            ("Emit; Add a; Normalize axes=1", "a", "behind the step that makes the output sum"),
            ("Emit; Emit; Normalize axes=1", "", "step 2 (Emit) stands twice"),
        )
    ),
    ("no Dequantize", "FusedDequantizeLinear", {"X": X}, {"steps": "Relu"}, ["its steps have no Dequantize"]),
    (
        "too many parameters",
        "FusedActivation",
        {"X": X},
        {"activation": "Elu", "activation_params": [1.0, 2.0]},
        ["Elu", "further_0"],
    ),
    (
        "division by a parameter of 0",
        "FusedActivation",
        {"X": X},
        {"activation": "Celu", "activation_params": [0.0]},
        ["alpha", "Celu", "0"],
    ),
    ("slope missing", "FusedActivation", {"X": X}, {"activation": "PRelu"}, ["PRelu", "slope"]),
    ("slope too many", "FusedActivation", {"X": X, "slope": ONE}, {"activation": "Relu"}, ["Relu", "slope"]),
    (
        "slope shape",
        "FusedActivation",
        {"X": X, "slope": np.ones(3, F32)},
        {"activation": "PRelu"},
        ["slope", "[3]", "2, 3, 4"],
    ),
    ("newer version", "FusedActivation", {"X": X}, {"spec_version": 99}, ["version", "99", str(SPEC_VERSION)]),
    ("scale of dequantise missing", "FusedDequantizeLinear", {"X": XQ}, {}, ["x_scale"]),
    ("nine dimensions", "FusedActivation", {"X": X.reshape(2, 3, 4, 1, 1, 1, 1, 1, 1)}, {}, ["9", "8"]),
]


def model_of(op: str, inputs: dict[str, np.ndarray], attributes: dict[str, Any], *, constant: bool = True) -> Any:
    return harness.operator_model(
        op,
        inputs,
        attributes,
        {"Y": y_code(inputs, attributes)},
        constants=[name for name in inputs if name != "X"] if constant else (),
        name="encoder/block_7",
    )


def y_code(inputs: dict[str, np.ndarray], attributes: dict[str, Any]) -> int:
    """Y's type as the specification has it, so that ONNX Runtime's own check of types says nothing."""
    if attributes.get("y_dtype") in oracle.INTEGER_RANGE or attributes.get("y_dtype") == TensorProto.INT32:
        return int(attributes["y_dtype"])
    if "y_zero_point" in inputs:
        return oracle.dtype_code(inputs["y_zero_point"])
    return int(TensorProto.UINT8) if "y_scale" in inputs else oracle.dtype_code(inputs.get("x_scale", inputs["X"]))


@pytest.mark.parametrize(
    ("op", "inputs", "attributes", "words"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED]
)
def test_refused_at_session_creation(
    op: str, inputs: dict[str, np.ndarray], attributes: dict[str, Any], words: list[str]
) -> None:
    with pytest.raises(Exception) as raised:  # noqa: PT011 -- onnxruntime has a class of its own for each status
        harness.create_session(model_of(op, inputs, attributes), "custom")
    text = str(raised.value)
    assert "encoder/block_7" in text
    for word in words:
        assert any(part in text for part in word.split("|")), f"{word!r} is not in: {text}"


@pytest.mark.parametrize(
    ("op", "inputs", "attributes", "words"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED]
)
def test_declined_by_the_provider(
    op: str, inputs: dict[str, np.ndarray], attributes: dict[str, Any], words: list[str], tmp_path: Path
) -> None:
    """The same sentence in the claim report; the operator itself then refuses the session."""
    path = tmp_path / "claims.jsonl"
    with pytest.raises(Exception, match="encoder/block_7"):
        harness.create_session(model_of(op, inputs, attributes), "ep", claim_report=str(path))
    (entry,) = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    assert not entry["claimed"]
    assert entry["reason"]
    assert entry["advice"]
    for word in words:
        assert any(part in entry["message"] for part in word.split("|")), f"{word!r} is not in: {entry['message']}"


RUN_TIME: list[tuple[str, str, dict[str, np.ndarray], dict[str, Any], list[str]]] = [
    ("scale", "FusedNormalization", {"X": X, "scale": np.ones(5, F32)}, {"axes": [2]}, ["scale", "[5]"]),
    ("bias", "FusedNormalization", {"X": X, "bias": np.ones((3, 3), F32)}, {"axes": [2]}, ["bias", "[3, 3]"]),
    (
        "residual",
        "FusedNormalization",
        {"X": X, "residual": np.ones((2, 2, 4), F32)},
        {"axes": [2]},
        ["residual", "[2, 2, 4]"],
    ),
    (
        "residual bias",
        "FusedNormalization",
        {"X": X, "residual_bias": np.ones(3, F32)},
        {"axes": [2]},
        ["residual_bias", "[3]"],
    ),
    ("axis", "FusedNormalization", {"X": X}, {"axes": [3]}, ["3"]),
    ("groups", "FusedNormalization", {"X": X}, {"num_groups": 2}, ["3", "2"]),
    ("x scale", "FusedActivation", {"X": XQ, "x_scale": np.ones(4, F32)}, {}, ["x_scale", "4"]),
    (
        "y scale",
        "FusedActivation",
        {"X": X, "y_scale": np.ones(4, F32)},
        {"y_dtype": int(TensorProto.INT8)},
        ["y_scale", "4"],
    ),
    ("rank", "FusedNormalization", {"X": X, "scale": np.ones((1, 2, 3, 4), F32)}, {"axes": [2]}, ["[1, 2, 3, 4]"]),
    ("slope", "FusedActivation", {"X": X, "slope": np.ones(3, F32)}, {"activation": "PRelu"}, ["slope", "[3]"]),
    (
        "zero point",
        "FusedActivation",
        {"X": XQ, "x_scale": np.ones(3, F32), "x_zero_point": np.zeros(2, np.int8)},
        {},
        ["x_zero_point", "2"],
    ),
]


# The provider wants to know X's rank, so that an axis out of range is refused earlier (see above).
RUNS = [(row, provider) for row in RUN_TIME for provider in ("custom", "ep") if (row[0], provider) != ("axis", "ep")]


@pytest.mark.parametrize(("row", "provider"), RUNS, ids=[f"{row[0]}-{provider}" for row, provider in RUNS])
def test_impossible_shapes_at_run_time_are_a_status(row: Any, provider: str) -> None:
    """Nothing is known before the run: every input is a graph input of unknown shape."""
    _, op, inputs, attributes, words = row
    model = model_of(op, inputs, attributes, constant=False)
    for value in model.graph.input:
        value.type.tensor_type.ClearField("shape")
    if provider == "ep":
        shape = harness.value_info("X", 1, ["a", "b", "c"]).type.tensor_type.shape
        model.graph.input[0].type.tensor_type.shape.CopyFrom(shape)
    session = harness.create_session(model, provider)
    with pytest.raises(Exception) as raised:  # noqa: PT011
        harness.run(session, inputs)
    text = str(raised.value)
    assert "encoder/block_7" in text
    for word in words:
        assert word in text, f"{word!r} is not in: {text}"


@pytest.mark.parametrize("provider", ["custom", "ep"])
@pytest.mark.parametrize(
    ("steps", "shown"),
    [
        (b"Normalize axes=-1; Gelu\xff", "Gelu?"),
        (b"Normalize axes=-1; \xe2\x82\xac\xe2\x82", "€??"),
        (b"\xc0\xaf \xed\xa0\x80", "??"),
        (b"Normalize axes=-1 epsilon_on=\xf5range\xf0\x9f\x98\x80", "?range😀"),
        (b"Normalize axes=-1; Mul \xff", "'?'"),
    ],
)
def test_program_that_is_no_text_is_a_sentence(steps: bytes, shown: str, provider: str, tmp_path: Path) -> None:
    """What belongs to no character of UTF-8 is shown as '?', in ONNX Runtime's error and in the claim report."""
    model = model_of("FusedNormalization", {"X": X}, {"axes": [2]})
    del model.graph.node[0].attribute[:]
    model.graph.node[0].attribute.append(AttributeProto(name="steps", type=AttributeProto.STRING, s=steps))
    path = tmp_path / "claims.jsonl"
    options = {"claim_report": str(path)} if provider == "ep" else {}
    with pytest.raises(Exception, match="encoder/block_7") as raised:
        harness.create_session(model, provider, **options)
    assert not isinstance(raised.value, UnicodeError)
    assert shown in str(raised.value)
    if provider == "ep":
        (entry,) = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
        assert shown in entry["message"]


@pytest.mark.parametrize(
    ("op", "attributes"),
    [("FusedNormalization", {"axes": [2]}), ("FusedActivation", {}), ("FusedDequantizeLinear", {})],
)
@pytest.mark.parametrize("further", [1, 40])
def test_call_with_more_inputs_than_its_program_names_is_left_to_its_body(
    op: str, attributes: dict[str, Any], further: int, tmp_path: Path
) -> None:
    model = model_of(op, {"X": XQ, "x_scale": ONE}, attributes)
    (node,) = model.graph.node
    node.op_type = f"{op}_own"
    node.input.extend([""] * (further - 1) + ["x_scale"])
    inputs = [f"input_{index}" for index in range(2 + further)]
    body = [helper.make_node("Cast", inputs[:1], ["Y"], to=TensorProto.FLOAT)]
    opsets = [helper.make_opsetid("", 21)]
    model.functions.append(
        helper.make_function(harness.DOMAIN, node.op_type, inputs, ["Y"], body, opsets, attributes=["steps"])
    )
    path = tmp_path / "claims.jsonl"
    session = harness.create_session(model, "ep", claim_report=str(path))
    np.testing.assert_array_equal(harness.run(session, {"X": XQ})["Y"], X)
    entry = json.loads(path.read_text("utf-8").splitlines()[0])
    assert not entry["claimed"]
    assert f"input {1 + further} is given" in entry["message"]
