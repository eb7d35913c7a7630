"""Models that say what is not so: functions whose attributes contradict their bodies, and programs of any text.

Of functions in our domain whose attributes name other outputs than their bodies give ONNX Runtime allocates what the
body says, and the attributes say what would be written: no such node may be claimed, and the body runs. A program of
any text is run, or left alone with a reason, and C++ and Python agree on which. NORMFUSE_FUZZ_EXAMPLES=10000 tries more
of them (tests/run.py --step slow: 500). Child processes run the models, which writing out of bounds would end.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import harness
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from normfuse.spec import ACTIVATIONS, ARGUMENTS, STEPS, ProgramError, UnknownStepError, read_program

SHAPE = (64, 4096)
FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16)
STORED = (TensorProto.INT8, TensorProto.UINT8, TensorProto.INT16, TensorProto.UINT16, TensorProto.FLOAT8E4M3FN)
# Names of a registered kernel and of a node that is compiled.
NAMES = ("FusedNormalization_LayerNormalization", "FusedNormalization_of_mine")
RUN = """
import json, sys
import numpy as np
import harness
x = np.random.default_rng(1).normal(3, 2, (64, 4096)).astype(np.float32)
for line in sys.stdin:
    path, outputs = json.loads(line)
    results = []
    for provider in ("ep", "cpu"):
        session = harness.create_session(path, provider)
        calls = [node for group in harness.fused_types(session) for node in group if node.startswith("Fused")]
        assert not calls, calls
        got = session.run_with_ort_values(outputs, {"X": harness.to_ort(x)})
        results.append([(value.element_type(), harness.from_ort(value).astype(np.float64)) for value in got])
    for (ours, a), (theirs, b) in zip(*results):
        assert ours == theirs and a.shape == b.shape, (ours, theirs, a.shape, b.shape)
        # The body's LayerNormalization may be ours; a cast to an integer then turns rounding into a step.
        assert np.abs(a - b).max() <= 1, np.abs(a - b).max()
    print("as the body says", flush=True)
"""


def hostile(output: str, body: list[onnx.NodeProto], name: str, **attributes: Any) -> onnx.ModelProto:
    """A function whose result ``output`` is the value "r" of ``body``; the others are as they should be."""
    results = ["Y", "sum", "mean", "inv_std_dev"]
    nodes = [
        helper.make_node("LayerNormalization", ["X", "g"], ["y", "m", "i"], axis=-1, epsilon=1e-5),
        *body,
        *(helper.make_node("Identity", [{"sum": "X"}.get(r, r[0].lower())], [r]) for r in results if r != output),
        helper.make_node("Identity", ["r"], [output]),
    ]
    attributes = {"spec_version": 1, "axes": [-1], "epsilon": 1e-5, **attributes}
    opsets = [helper.make_opsetid("", 21)]
    names = ["spec_version", "steps"]
    function = helper.make_function(harness.DOMAIN, name, ["X", "g"], results, nodes, opsets, attributes=names)
    given = {"X": "X", "scale": "g"}
    if attributes.get("y_dtype", 0) not in (0, *FLOATS):  # Y is quantised only where the attributes say so
        given["y_scale"] = "y_scale"
    call = harness.operator_node(name, given, attributes, {result: result for result in results})
    function.input[:] = list(call.input)
    x = np.zeros(SHAPE, np.float32)
    constants = {"g": np.ones(SHAPE[-1], np.float32), "y_scale": np.asarray(0.1, np.float32)}
    model = harness.build_model([call], {"X": x}, {output: 0}, constants, functions=[function])
    del model.graph.output[:]
    model.graph.output.extend(helper.make_empty_tensor_value_info(r) for r in results)
    return model


def cast(source: str, code: int) -> list[onnx.NodeProto]:
    return [helper.make_node("Cast", [source], ["r"], to=code)]


def resized(source: str, shape: list[int]) -> list[onnx.NodeProto]:
    """Another shape, which shape inference finds out."""
    return [
        helper.make_node("Constant", [], ["starts"], value_ints=[0] * len(SHAPE)),
        helper.make_node("Constant", [], ["ends"], value_ints=shape),
        helper.make_node("Slice", [source, "starts", "ends"], ["r"]),
    ]


def models() -> list[tuple[str, onnx.ModelProto]]:
    found = []
    for i, name in enumerate(NAMES):
        kind = name.rsplit("_", 1)[1]
        for j, says in enumerate((*FLOATS, *STORED)):
            for k, gives in enumerate((*FLOATS, *STORED)):
                if says != gives and (i + j + k) % 2:  # each pair of types by one of the two names
                    found.append((f"Y {says} {gives} {kind}", hostile("Y", cast("y", gives), name, y_dtype=says)))
        for gives in (*FLOATS[1:], *STORED):
            for output in ("sum", "mean", "inv_std_dev"):
                body = cast({"sum": "X"}.get(output, output[0]), gives)
                found.append((f"{output} {gives} {kind}", hostile(output, body, name)))
        for says in FLOATS[1:]:
            body = cast("X", TensorProto.FLOAT)
            found.append((f"sum says {says} {kind}", hostile("sum", body, name, sum_dtype=says)))
        for output in ("Y", "sum", "mean", "inv_std_dev"):
            source = {"sum": "X"}.get(output, output[0].lower())
            found.append((f"{output} rows {kind}", hostile(output, resized(source, [3, 9000]), name)))
            squeeze = [helper.make_node("ReduceMax", [source], ["r"], keepdims=0)]
            found.append((f"{output} rank {kind}", hostile(output, squeeze, name)))
    return found


def test_body_runs_where_the_attributes_say_something_else(tmp_path: Path) -> None:
    cases = models()
    requests = []
    for index, (_, model) in enumerate(cases):
        path = tmp_path / f"{index}.onnx"
        onnx.save(model, path)
        requests.append(json.dumps([str(path), [value.name for value in model.graph.output]]))
    command = [sys.executable, "-c", RUN]
    folder = Path(harness.__file__).parent
    done = subprocess.run(
        command, input="\n".join(requests), capture_output=True, text=True, check=False, cwd=folder, timeout=500
    )
    answers = done.stdout.splitlines()
    where = cases[min(len(answers), len(cases) - 1)][0]
    assert done.returncode == 0, f"at {where}: exit code {done.returncode}\n{done.stderr[-2000:]}"
    assert answers == ["as the body says"] * len(cases)


@pytest.mark.parametrize("name", NAMES)
def test_consistent_function_is_claimed(name: str) -> None:
    """The models above are claimed when body and attributes agree: it is the contradiction that is refused."""
    session = harness.create_session(hostile("Y", cast("y", TensorProto.FLOAT16), name, y_dtype=TensorProto.FLOAT16))
    assert harness.fused_types(session) == [[name]]


def test_function_without_y_is_left_to_its_body() -> None:
    model = hostile("Y", cast("y", TensorProto.FLOAT), NAMES[0])
    model.graph.node[0].output[0] = ""
    del model.graph.output[0]
    session = harness.create_session(model)
    assert harness.fused_types(session) == [["LayerNormalization"]]
    x = np.ones(SHAPE, np.float32)
    assert np.array_equal(harness.run(session, {"X": x})["sum"], x)


# --- programs of any text -----------------------------------------------------------------------------------------

EXAMPLES = int(os.environ.get("NORMFUSE_FUZZ_EXAMPLES", "100"))
TENSORS = ("a", "b")
OPERATORS = {"FusedNormalization": "Normalize axes=-1", "FusedActivation": "Relu"}
PROGRAMS = [
    "Mul a; Add b; Gelu",
    "Mul a; Elu alpha=0.5; Max b",
    "Add a scale=b; Relu",
    "Add a; Normalize axes=-1 epsilon=1e-05; Mul b",
    "Normalize axes=-1; Mul a; Add b; Elu alpha=2; Store type=float16",
    "Normalize axes=-1 epsilon=nan; Mul a; Add b",
    "Normalize axes=-1 epsilon=1e5; Mul a; Add b",
    "Normalize axes=-1 epsilon=1E5; Mul a; Add b",
    "Normalize axes=-1 epsilon=1e99; Mul a; Add b",
    "Normalize axes=9223372036854775808; Mul a; Add b",
    "Normalize axes=9223372036854775807; Mul a; Add b",
    "Normalize axes=-1,-1; Mul a; Add b",
    "Normalize axes=,; Mul a; Add b",
    "Normalize axes=-1; Mul a; Add a",
    "Normalize axes=-1; Mul \u00e4; Add b",
    "Normalize axes=-1\0; Mul a; Add b",
    "Mul a; Add b;",
    ";Mul a; Add b",
    "",
    " \t\r\n",
    "=",
    "Mul =a; Add =b",
    "Mul a; Add b; " * 1000 + "Relu",
    "Mul a; Add b; " + "Relu; " * 10_000 + "Relu",
    "Mul a; Add b; Elu alpha=" + "1" * 10_000,
    "Mul a; Add b; Elu alpha=0." + "0" * 100_000 + "1e100000",
    "Mul a; Add b; Elu alpha=1e-99999999999999999999",
    "Mul a; Add b;" + " " * 1_000_000 + "Relu",
    "A" * 1_000_000,
]
RUN_PROGRAMS = """
import json, sys
from pathlib import Path
import harness, numpy as np, onnx

called, plain, report = map(Path, sys.argv[1:4])
session = harness.create_session(called, "ep", claim_report=report)
x = np.random.default_rng(1).normal(3, 2, (4, 8)).astype(np.float32)
feeds = {"X": x, "a": x[:1], "b": x[1:2]}
results = session.run(None, feeds)
claimed = {}
for line in report.read_text("utf-8").splitlines():
    entry = json.loads(line)
    claimed[entry["node"]] = entry.get("reason", "")
    assert len(entry.get("message", "")) < 2000, entry["node"]
for output, result in zip(session.get_outputs(), results):
    assert result.shape == x.shape
    if claimed["n" + output.name[1:]]:
        assert np.array_equal(result, x), output.name
for node in onnx.load(plain).graph.node:
    model = harness.build_model([node], feeds, {node.output[0]: 0}, {})
    model.graph.output[0].CopyFrom(onnx.helper.make_empty_tensor_value_info(node.output[0]))
    try:
        harness.create_session(model, "custom").run(None, feeds)
    except Exception as error:
        assert any(name in str(error) for name in (node.name, node.op_type)), error
        assert len(str(error)) < 5000, node.name
print(json.dumps(claimed))
"""


def pieces() -> list[str]:
    found = ["; ", ";", " ", "=", ",", *TENSORS, "-1", "0", "1", "1e-05", "inf", "-inf", "nan", "float16", "channel"]
    found += [f"; {name} " for name in (*STEPS, *ACTIVATIONS)]
    return found + [f" {name}=" for name in ARGUMENTS]


def texts() -> list[tuple[str, str]]:
    """Operators and programs: those above, and pieces of programs put together at random."""
    rng, parts = random.Random(1), pieces()
    found = [(op, text) for text in PROGRAMS for op in OPERATORS]
    for _ in range(EXAMPLES):
        op = rng.choice(list(OPERATORS))
        text = OPERATORS[op] + "".join(rng.choices(parts, k=rng.randrange(8)))
        if rng.random() < 0.2:
            text = text.replace(rng.choice(text), rng.choice(";= ,aZ0\u00e4\0"), 1)
        found.append((op, text))
    return found


def model_of(cases: Sequence[tuple[str, str]], suffix: str) -> onnx.ModelProto:
    """A node or a call for each program; bodies give X as it is."""
    nodes = []
    for index, (op, text) in enumerate(cases):
        inputs = ["X", *(name for name in TENSORS if name in text)]
        name = f"{op}_{len(inputs)}" if suffix else op
        nodes.append(helper.make_node(name, inputs, [f"Y{index}"], f"n{index}", domain=harness.DOMAIN, steps=text))
    opsets = [helper.make_opsetid("", 21)]
    functions = [
        helper.make_function(
            harness.DOMAIN,
            f"{op}_{count}",
            ["X", *TENSORS][:count],
            ["Y"],
            [helper.make_node("Identity", ["X"], ["Y"])],
            opsets,
            attributes=["steps"],
        )
        for op in OPERATORS
        for count in (1, 2, 3)
    ]
    row = np.zeros((1, 8), np.float32)
    return harness.build_model(
        nodes,
        {"X": np.zeros((4, 8), np.float32), "a": row, "b": row},
        {f"Y{index}": TensorProto.FLOAT for index in range(len(cases))},
        {},
        functions=functions if suffix else [],
    )


def problem(text: str) -> str:
    """Why it is no program, as Python sees it: a code of reasons, or "" where its form is right."""
    try:
        read_program(text)
    except UnknownStepError:
        return "unknown_step"
    except ProgramError:
        return "invalid_configuration"
    return ""


@pytest.mark.fuzz
def test_program_of_any_text(tmp_path: Path) -> None:
    cases = texts()
    paths = [tmp_path / name for name in ("called.onnx", "plain.onnx", "claims.jsonl")]
    onnx.save(model_of(cases, "call"), paths[0])
    onnx.save(model_of(cases, ""), paths[1])
    command = [sys.executable, "-c", RUN_PROGRAMS, *map(str, paths)]
    folder = Path(harness.__file__).parent
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder, timeout=1000)
    assert done.returncode == 0, f"exit code {done.returncode}\n{done.stderr[-2000:]}"
    reasons = json.loads(done.stdout)
    for index, (op, text) in enumerate(cases):
        reason, expected = reasons[f"n{index}"], problem(text)
        # What is of the right form may still mean nothing. Of several defects each side may name another one.
        assert reason or not expected, (op, text[:200], expected)
        assert expected or reason != "unknown_step", (op, text[:200])
    assert any(not reason for reason in reasons.values())
