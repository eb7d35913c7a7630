"""Nodes that cannot be run: refused at session creation, or with a status at run time; never a crash."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, NamedTuple

import harness
import numpy as np
import onnx
import pytest
from onnx import AttributeProto, TensorProto, helper
from parsed_models import parse
from programs import number

from normfuse.spec import SPEC_VERSION

X = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
NODE = "encoder/block_7"
# Operator and tensors (X is float[2,3,4] if not said otherwise) | program | words of the sentence
REFUSED = """
Normalization | Normalize axes=3 | axes & 3 & 2, 3, 4
Normalization | Normalize axes=-4 | axes & -4 & 2, 3, 4
Normalization | Normalize axes=1,-2 | axes & twice
Normalization | Normalize | axes
Normalization | Normalize axes=1 num_groups=3 | axes & num_groups
Normalization | Normalize num_groups=2 | 3 & 2 & 2, 3, 4
Normalization | Normalize num_groups=-1 | num_groups
Normalization | Normalize axes=1 epsilon=nan | epsilon
Normalization | Normalize axes=1 epsilon_on=range | epsilon_on & range
Normalization | Normalize axes=1 use_mean=2 | use_mean & 2
Normalization scale=float[] | Normalize axes=1; Mul scale align=left | align & left
Normalization scale=float[5] | Normalize axes=2; Mul scale | scale & [5] & 2, 3, 4
Normalization bias=float[2,4] | Normalize axes=2; Add bias | bias & [2, 4]
Normalization scale=float[2,2,3,4] | Normalize axes=2; Mul scale | scale & [2, 2, 3, 4]
Normalization scale=float[1,2,3,4] | Normalize axes=2; Mul scale | scale & [1, 2, 3, 4] & [2, 3, 4]
Normalization bias=float[1,2,3,4] | Normalize axes=2; Add bias | bias & [1, 2, 3, 4] & [2, 3, 4]
Normalization slope=float[1,2,3,4] | Normalize axes=2; PRelu slope | slope & [1, 2, 3, 4] & [2, 3, 4]
Normalization operand_0=float[1,2,3,4] | Normalize axes=2; Mul operand_0 | operand_0 & [1, 2, 3, 4] & [2, 3, 4]
Normalization scale=float[4] | Normalize axes=2; Mul scale align=channel | scale & 4 & 3
Normalization scale=double[4] | Normalize axes=2; Mul scale | scale & float64
Normalization X=double[2,3,4] | Normalize axes=2 | X & float64
Normalization X=int8[2,3,4] | Normalize axes=2 | X & int8 & x_scale
Normalization s=float[] | Dequantize scale=s; Normalize axes=2 | X & float32 & x_scale
Activation X=int8[2,3,4] s=double[] | Dequantize scale=s | x_scale & float64
Activation X=int8[2,3,4] s=float[4] | Dequantize scale=s | x_scale & 4 & 2, 3, 4
Activation X=int8[2,3,4] s=float[4] | Dequantize scale=s axis=5 | x_scale & 5 & 2, 3, 4
Activation X=int8[2,3,4] s=float[] z=uint8[] | Dequantize scale=s zero_point=z | x_zero_point & uint8 & int8
Activation X=int8[2,3,4] s=float[3] z=int8[2] | Dequantize scale=s zero_point=z | x_zero_point & 2 & 3
Activation X=int8[2,3,4] s=float[] z=int8[1,2,1] | Dequantize scale=s zero_point=z | x_zero_point & [1, 2, 1]
Activation X=int8[2,3,4] s=float[2,3,2] z=int8[2,3,1] | Dequantize scale=s zero_point=z axis=2 block_size=2 | [2, 3, 1]
Activation X=int8[2,3,4] s=float[2,3,3] | Dequantize scale=s axis=2 block_size=2 | x_scale & [2, 3, 3] & 2, 3, 4
Activation X=int8[2,3,4] s=float[] | Dequantize scale=s block_size=-2 | x_block_size
Activation y_zero_point=int8[] | Quantize zero_point=y_zero_point | y_zero_point & y_scale
Activation y_scale=float[] | Quantize scale=y_scale type=int32 | Y & int32
Activation | Store type=int8 | Y & int8 & y_scale
Activation | Store type=string | Store & type & string
Activation | Store type=float99 | Store & float99
Activation | Gleu | step & Gleu
Activation |  | steps
Activation | Gelu; | step 2 & empty
Activation | Store; Gelu | Gelu & behind & Store
Activation | Normalize axes=1 | FusedNormalization
Normalization | Gelu | Normalize
Activation s=float[] | Mul s; Add s | step 2 (Add) & s & twice
Activation | Mul s | Mul & s & input 1
Activation s=float[] | Gelu | input 1 & steps
Activation s=float[] | Mul a.b | Mul & a.b
Activation | Mul | Mul & operand
Normalization | Normalize axes=1 axes=2 | axes & twice
Normalization | Normalize axis=1 | Normalize & axis
Normalization | Normalize axes=1 epsilon=1,5 | epsilon & 1,5
Normalization | Normalize axes=1.5 | axes & 1.5
Normalization | Normalize axes=1; Softmax axes=1 | step 2 (Softmax) cannot stand behind step 1 (Normalize)
Normalization | Relu; Normalize axes=1 | step 2 (Normalize) cannot stand behind step 1 (Relu)
Normalization | Normalize axes=1; Emit | step 2 (Emit) cannot stand behind step 1 (Normalize)
Activation s=float[] | Quantize scale=s; Relu | step 2 (Relu) cannot stand behind step 1 (Quantize)
Activation s=float[] | Quantize scale=s; Store type=float16 | step 2 (Store) cannot stand behind step 1 (Quantize)
Activation s=float[] | Relu; Dequantize scale=s | step 2 (Dequantize) cannot stand behind step 1 (Relu)
Activation s=float[] | Requantize scale=s; Relu | step 1 (Requantize) stands before no normalisation
Normalization x=float[] | Normalize x axes=1 | step 1 (Normalize) has the operand x, but takes none
Activation s=float[] r=float[] | Add scale=s r | step 1 (Add): 'r' is no argument, key=value
Activation r=float[] | Add r =2 | step 1 (Add) takes no argument
Activation | Elu alpha=1 beta=1 | step 1 (Elu) takes no argument beta
Activation | Elu alpha=one | alpha is 'one', which is not a number
Activation | Relu; ;Relu | step 2 is empty
Activation | relu | the step 'relu', which
Activation | PRelu | step 1 (PRelu) has no operand, its slope
Activation a=float[] | Quantize scale=a-b | 'a-b' is no label of a tensor
Normalization | Normalize | axes is missing
Normalization | Normalize axes=1, | axes is '1,', which is not a list of whole numbers
Normalization a=float[] | Normalize axes=1; Mul a align=group | align=group, but num_groups is 0
Normalization a=float[] | Mul a align=channel; Normalize axes=1 | is of steps behind the normalisation
Normalization a=float[] | Emit; Add a; Normalize axes=1 | behind the step that makes the output sum
Normalization | Emit; Emit; Normalize axes=1 | step 2 (Emit) stands twice
DequantizeLinear | Relu | its steps have no Dequantize
Activation | FakeQuantize | scale
Activation s=float[] | FakeQuantize scale=s type=int32 | int32
Activation s=float[3] | FakeQuantize scale=s axis=5 | axis 5 is out of range
Activation s=float[] z=int8[] | FakeQuantize scale=s zero_point=z type=uint8 | int8
Activation | Elu alpha=1 further_0=2 | Elu & further_0
Activation | Celu alpha=0 | alpha & Celu & 0
Activation | PRelu | PRelu & slope
Activation slope=float[] | Relu slope | Relu & slope
Activation slope=float[3] | PRelu slope | slope & [3] & 2, 3, 4
DequantizeLinear X=int8[2,3,4] | Identity | x_scale
Activation X=float[2,3,4,1,1,1,1,1,1] | Identity | 9 & 8
Normalization | Hardmax axes=-1 | the step 'Hardmax', which this library does not know
Normalization | Softmax axes=-1 use_mean=0 | Softmax & takes no argument use_mean
Normalization | Softmax num_groups=1 | Softmax & takes no argument num_groups
""".strip().splitlines()
NO_FLOATS = "- +1 .5 5. 1e 1e+ 1e+-5 1e5.0 0x10 1,5 1_0 NaN -nan infinity +inf Inf --1 1e5e5 1e--5 e5 1f 1E5 1e+400"
NO_FLOATS += " 1e1000001 1e-1000001"
NO_INTS = "- +1 1.0 1e3 0x1 9223372036854775808 1,, ,1"
REFUSED += [f"Activation | Elu alpha={text} | alpha is '{text}', which is not a number" for text in NO_FLOATS.split()]
REFUSED += [f"Normalization | Normalize axes={text} | axes is '{text}', which" for text in NO_INTS.split()]
# Nothing is known before the run: every input is a graph input of unknown shape.
AT_RUN_TIME = """
Normalization scale=float[5] | Normalize axes=2; Mul scale | scale & [5]
Normalization bias=float[3,3] | Normalize axes=2; Add bias | bias & [3, 3]
Normalization residual=float[2,2,4] | Add residual; Normalize axes=2 | residual & [2, 2, 4]
Normalization residual_bias=float[3] | Add residual_bias; Normalize axes=2 | residual_bias & [3]
Normalization | Normalize axes=3 | 3
Normalization | Normalize num_groups=2 | 3 & 2
Activation X=int8[2,3,4] s=float[4] | Dequantize scale=s | x_scale & 4
Activation y_scale=float[4] | Quantize scale=y_scale type=int8 | y_scale & 4
Normalization scale=float[1,2,3,4] | Normalize axes=2; Mul scale | [1, 2, 3, 4]
Activation slope=float[3] | PRelu slope | slope & [3]
Activation X=int8[2,3,4] s=float[3] z=int8[2] | Dequantize scale=s zero_point=z | x_zero_point & 2
""".strip().splitlines()


class Row(NamedTuple):
    """A node and what is said of it."""

    op: str
    inputs: dict[str, np.ndarray]
    steps: str
    words: list[str]

    def check(self, text: str) -> None:
        for word in self.words:
            assert word in text, f"{word!r} is not in: {text}"


def parse_row(text: str) -> Row:
    tensors, steps, words = (part.strip() for part in text.split("|"))
    op, *given = tensors.split()
    inputs = {"X": X}
    for each in given:
        name, kind, dims = re.fullmatch(r"(\w+)=(\w+)\[(.*)\]", each).groups()  # type: ignore[union-attr]
        shape = [int(dim) for dim in dims.split(",") if dim]
        values = (
            np.resize(X, shape) if name == "X" else np.zeros(shape) if name in ("z", "y_zero_point") else np.ones(shape)
        )
        inputs[name] = values.astype({"float": "float32"}.get(kind, kind))
    return Row(f"Fused{op}", inputs, steps, [word for word in words.split(" & ") if word])


def model_of(row: Row, *, constant: bool = True) -> onnx.ModelProto:
    constants = [name for name in row.inputs if name != "X"] if constant else ()
    types = {"Y": y_code(row)}
    attributes = {"steps": row.steps}
    return harness.operator_model(row.op, row.inputs, attributes, types, constants=constants, name=NODE)


def y_code(row: Row) -> int:
    """Y's type as the specification has it, so that ONNX Runtime's own check of types says nothing."""
    last = row.steps.rpartition("; ")[2]
    if match := re.search(r"^[QS].* type=(int32|int8)", last):
        return TensorProto.DataType.Value(match[1].upper())
    if {"y_scale", "y_zero_point"} & set(row.inputs):
        return TensorProto.INT8 if "y_zero_point" in row.inputs else TensorProto.UINT8
    first = row.inputs["s" if row.steps.startswith("Dequantize") else "X"]
    return helper.np_dtype_to_tensor_dtype(first.dtype)


@pytest.mark.parametrize("text", REFUSED)
def test_refused_at_session_creation(text: str) -> None:
    row = parse_row(text)
    with pytest.raises(Exception, match=NODE) as raised:
        harness.create_session(model_of(row), "custom")
    row.check(str(raised.value))


@pytest.mark.parametrize("text", REFUSED)
def test_declined_by_the_provider(text: str, tmp_path: Path) -> None:
    """The same sentence in the claim report; the operator itself then refuses the session."""
    row, path = parse_row(text), tmp_path / "claims.jsonl"
    with pytest.raises(Exception, match=NODE):
        harness.create_session(model_of(row), "ep", claim_report=str(path))
    (entry,) = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    assert not entry["claimed"]
    assert entry["reason"]
    assert entry["advice"]
    row.check(entry["message"])


@pytest.mark.parametrize(
    ("attributes", "outputs", "sentence"),
    [
        ({"steps": "Gelu", "spec_version": 99}, ("Y",), f"version.*99.*{SPEC_VERSION}"),
        ({"steps": "Softmax axes=-1"}, ("Y", "mean"), "no outputs mean and inv_std_dev"),
    ],
)
def test_what_a_program_has_not(attributes: dict[str, Any], outputs: tuple[str, ...], sentence: str) -> None:
    op = "FusedNormalization" if "mean" in outputs else "FusedActivation"
    types = dict.fromkeys(outputs, int(TensorProto.FLOAT))
    with pytest.raises(Exception, match=sentence):
        harness.create_session(harness.operator_model(op, {"X": X}, attributes, types), "custom")


def test_every_number_is_read_as_it_was_written() -> None:
    """The ends of every power of two, and any bits, in the shortest text and in others."""
    signs, powers, rests = np.array([0, 1]) << 31, np.arange(255) << 23, np.array([0, 1, 0x400000, 0x7FFFFF])
    ends = signs[:, None, None] | powers[:, None] | rests
    bits = np.append(ends, np.random.default_rng(1).integers(0, 255 << 23, 1000)).astype(np.uint32)
    wanted = bits.view(np.float32).tolist() + [1e-5] * 4 + [np.inf, -np.inf, 0]
    texts = [*map(number, wanted[:-7]), "0.00001", "10e-6", "1.0000000e-005", "0.0000001e2", "inf", "-inf", "1e-400"]
    x = np.zeros(1, np.float32)
    nodes = [
        helper.make_node(
            "FusedActivation", ["X"], [f"Y{i}"], domain=harness.DOMAIN, steps=f"Linear alpha=0 beta={text}"
        )
        for i, text in enumerate(texts)
    ]
    nodes.append(helper.make_node("Concat", [f"Y{i}" for i in range(len(texts))], ["Y"], axis=0))
    model = harness.build_model(nodes, {"X": x}, {"Y": TensorProto.FLOAT}, {}, shapes={"Y": (len(texts),)})
    got = harness.run(harness.create_session(model, "custom"), {"X": x})["Y"]
    np.testing.assert_array_equal(got, np.array(wanted, np.float32))


def test_scales_of_a_quantised_sum_are_constants() -> None:
    steps = "Add r; Requantize scale=s zero_point=z; Normalize axes=-1"
    call = f'Y = ai.normfuse.FusedNormalization<steps = "{steps}">(X, r, s, z)'
    model = parse(f"g (float[2,4] X, float[2,4] r, float s, int8 z) => (float[2,4] Y) {{ {call} }}")
    model.opset_import.append(helper.make_opsetid(harness.DOMAIN, 1))
    with pytest.raises(Exception, match="sum_scale and sum_zero_point must be constants of one element"):
        harness.create_session(model, "custom")


# The provider wants to know X's rank, so that an axis out of range is refused earlier (see above).
@pytest.mark.parametrize(
    ("text", "provider"),
    [(row, way) for row in AT_RUN_TIME for way in ("custom", "ep") if way == "custom" or "axes=3" not in row],
)
def test_impossible_shapes_at_run_time_are_a_status(text: str, provider: str) -> None:
    row = parse_row(text)
    model = model_of(row, constant=False)
    for value in model.graph.input:
        value.type.tensor_type.ClearField("shape")
    if provider == "ep":
        shape = harness.value_info("X", 1, ["a", "b", "c"]).type.tensor_type.shape
        model.graph.input[0].type.tensor_type.shape.CopyFrom(shape)
    session = harness.create_session(model, provider)
    with pytest.raises(Exception, match=NODE) as raised:
        harness.run(session, row.inputs)
    row.check(str(raised.value))


@pytest.mark.parametrize("provider", ["custom", "ep"])
@pytest.mark.parametrize(
    ("steps", "shown"),
    [
        (b"Normalize axes=-1; Gelu\xff", "Gelu?"),
        (b"Normalize axes=-1; \xe2\x82\xac\xe2\x82", "€??"),
        (b"\xc0\xaf \xed\xa0\x80", "??"),
        # the last that are too long, the first beyond Unicode, and their neighbours
        (b"\xe0\x9f\xbf\xe0\xa0\x80\xed\x9f\xbf", "???\u0800\ud7ff"),
        (b"\xf0\x8f\xbf\xbf\xf0\x90\x80\x80\xf4\x8f\xbf\xbf\xf4\x90\x80\x80", "????\U00010000\U0010ffff????"),
        (b"N" * 498 + "€€".encode(), "N" * 498 + "..."),
        (b"Normalize axes=-1 epsilon_on=\xf5range\xf0\x9f\x98\x80", "?range😀"),
        (b"Normalize axes=-1; Mul \xff", "'?'"),
    ],
)
def test_program_that_is_no_text_is_a_sentence(steps: bytes, shown: str, provider: str, tmp_path: Path) -> None:
    """What belongs to no character of UTF-8 is shown as '?', in ONNX Runtime's error and in the claim report."""
    model = model_of(parse_row("Normalization | Identity | "))
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
    "row",
    [
        "Normalization X=int8[2,3,4] s=float[] | Dequantize scale=s; Normalize axes=2 | ",
        "Activation X=int8[2,3,4] s=float[] | Dequantize scale=s | ",
        "DequantizeLinear X=int8[2,3,4] s=float[] | Dequantize scale=s | ",
    ],
)
@pytest.mark.parametrize("further", [1, 40])
def test_call_with_more_inputs_than_its_program_names_is_left_to_its_body(
    row: str, further: int, tmp_path: Path
) -> None:
    model = model_of(parse_row(row))
    (node,) = model.graph.node
    node.op_type += "_own"
    node.input.extend([""] * (further - 1) + ["s"])
    inputs = [f"input_{index}" for index in range(2 + further)]
    body = [helper.make_node("Cast", inputs[:1], ["Y"], to=TensorProto.FLOAT)]
    opsets = [helper.make_opsetid("", 21)]
    model.functions.append(
        helper.make_function(harness.DOMAIN, node.op_type, inputs, ["Y"], body, opsets, attributes=["steps"])
    )
    path = tmp_path / "claims.jsonl"
    session = harness.create_session(model, "ep", claim_report=str(path))
    np.testing.assert_array_equal(harness.run(session, {"X": X.astype(np.int8)})["Y"], X)
    entry = json.loads(path.read_text("utf-8").splitlines()[0])
    assert not entry["claimed"]
    assert f"input {1 + further} is given" in entry["message"]
