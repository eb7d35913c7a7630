"""Calls and nodes whose program is any text: it is run, or left alone with a reason, and C++ and Python agree on which.

NORMFUSE_FUZZ_EXAMPLES=10000 tries more of them (tests/run.py --step slow: 500). A child process runs the models.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import harness
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from normfuse.spec import ACTIVATIONS, ARGUMENTS, STEPS, ProgramError, UnknownStepError, read_program

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
RUN = """
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


def model(cases: Sequence[tuple[str, str]], suffix: str) -> onnx.ModelProto:
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
    onnx.save(model(cases, "call"), paths[0])
    onnx.save(model(cases, ""), paths[1])
    command = [sys.executable, "-c", RUN, *map(str, paths)]
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
