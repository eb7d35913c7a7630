"""What ended the process: sessions that outlive the library's registration, and a fault of ONNX Runtime with float16.

Each runs in a child process, whose exit code tells.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import harness
import numpy as np
import onnx
import onnxruntime
import pytest
from covering import parametrize_covering, parametrize_spread
from onnx import TensorProto, helper

ROWS = (2, 3, 16)
X = np.random.default_rng(7).normal(0, 1, ROWS).astype(np.float32)

UNREGISTER = """
import gc, sys
import numpy as np, onnxruntime
import normfuse
x = np.ones((2, 3, 16), np.float32)
for turn in range(2):
    normfuse.register()
    sessions = [onnxruntime.InferenceSession(sys.argv[1], normfuse.session_options(claim="all")) for _ in range(2)]
    before = sessions[0].run(None, {"X": x})[0]
    assert "NormFuseExecutionProvider" in sessions[0].get_providers()
    onnxruntime.unregister_execution_provider_library("NormFuseExecutionProvider")
    assert np.array_equal(sessions[0].run(None, {"X": x})[0], before)
    del sessions[0]
    gc.collect()
    assert np.array_equal(sessions[0].run(None, {"X": x})[0], before)
    del sessions
    gc.collect()
print("alive")
"""

SESSION = """
import sys
import numpy as np, onnxruntime
import normfuse
path, how, claim, out, disabled = sys.argv[1:]
x = np.random.default_rng(7).normal(0, 1, (2, 3, 16)).astype(np.float16)
options = onnxruntime.SessionOptions()
options.log_severity_level = 3
options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
if disabled:
    options.add_session_config_entry("optimization.disable_specified_optimizers", disabled)
if how == "name":
    normfuse.register()
    providers = [("NormFuseExecutionProvider", {"claim": claim}), "CPUExecutionProvider"]
    session = onnxruntime.InferenceSession(path, options, providers=providers, enable_fallback=0)
elif how == "options":
    session = onnxruntime.InferenceSession(path, normfuse.session_options(options, claim=claim), enable_fallback=0)
elif how == "model":
    options = normfuse.session_options(options, model=path, claim=claim)
    session = onnxruntime.InferenceSession(path, options, enable_fallback=0)
else:
    session = normfuse.InferenceSession(path, options, claim=claim)
groups = session.get_provider_graph_assignment_info()
ours = [node.op_type for group in groups if group.ep_name == "NormFuseExecutionProvider" for node in group.get_nodes()]
np.savez(out, y=session.run(None, {"X": x})[0], ours=np.array(ours, dtype=str))
"""


def child(code: str, *arguments: Any) -> str:
    command = [sys.executable, "-c", code, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=200)
    assert done.returncode == 0, f"exit code {done.returncode}\n{done.stderr[-3000:]}"
    return done.stdout


def model(nodes: list[onnx.NodeProto], code: int, constants: dict[str, Any]) -> onnx.ModelProto:
    x = X.astype(np.float16 if code == TensorProto.FLOAT16 else np.float32)
    return harness.build_model(nodes, {"X": x}, {"Y": code}, constants, opset=17)


def test_sessions_outlive_the_registration(tmp_path: Path) -> None:
    constants = {"g": np.ones(16, np.float32)}
    nodes = [
        helper.make_node("LayerNormalization", ["X", "g"], ["n"], name="norm"),
        helper.make_node("Relu", ["n"], ["r"], name="relu"),
        helper.make_node("Neg", ["r"], ["m"], name="neg"),
        helper.make_node("LayerNormalization", ["m", "g"], ["Y"], name="alone"),
    ]
    onnx.save(model(nodes, TensorProto.FLOAT, constants), tmp_path / "model.onnx")
    assert child(UNREGISTER, tmp_path / "model.onnx").split()[-1] == "alive"


# What may lie between the chain's end and the Transpose, and between that and the MatMul. On most of them ONNX Runtime
# ends the process without any execution provider too; on these it does so only where a chain is claimed.
BY_CLAIM = ("nothing", "expand")
MOVES: dict[str, tuple[list[tuple[str, list[str], dict[str, Any]]], list[tuple[str, list[str], dict[str, Any]]]]] = {
    "nothing": ([], []),
    "reshape": ([("Reshape", ["shape"], {})], []),
    "concat": ([("Concat", [], {"axis": 0})], []),
    "squeeze": ([("Unsqueeze", ["axes"], {}), ("Squeeze", ["axes"], {})], []),
    "expand": ([("Expand", ["shape"], {})], []),
    "cast": ([], [("Cast", [], {"to": TensorProto.FLOAT})]),
}


def float16_chain(between: str) -> onnx.ModelProto:
    """Add -> Relu -> ... -> Transpose of the rows -> ... -> MatMul with constant weights, all float16."""
    before, behind = MOVES[between]
    nodes = [
        helper.make_node("Add", ["X", "b"], ["a"], name="add"),
        helper.make_node("Relu", ["a"], ["v0"], name="relu"),
    ]
    steps = [*before, ("Transpose", [], {"perm": [1, 0, 2]}), *behind]
    for index, (op_type, inputs, attributes) in enumerate(steps):
        nodes.append(
            helper.make_node(op_type, [f"v{index}", *inputs], [f"v{index + 1}"], name=f"step{index}", **attributes)
        )
    # Weights next to a Cast of the model's own are float32.
    kind = np.float32 if behind else np.float16
    nodes.append(helper.make_node("MatMul", [f"v{len(steps)}", "w"], ["Y"], name="matmul"))
    constants = {
        "b": np.full(16, 0.5, np.float16),
        "w": np.linspace(-1, 1, 64).reshape(16, 4).astype(kind),
        "shape": np.asarray(ROWS, np.int64),
        "axes": np.asarray([0], np.int64),
    }
    used = {name for node in nodes for name in node.input}
    built = model(nodes, TensorProto.FLOAT16, {name: value for name, value in constants.items() if name in used})
    built.graph.output[0].type.tensor_type.elem_type = TensorProto.FLOAT if behind else TensorProto.FLOAT16
    return built


def expected(model: onnx.ModelProto) -> np.ndarray:
    x = X.astype(np.float16).astype(np.float64)
    weights = next(harness.to_array(t) for t in model.graph.initializer if t.name == "w").astype(np.float64)
    return np.maximum(x + 0.5, 0).transpose(1, 0, 2) @ weights


@parametrize_covering("between,how,claim", BY_CLAIM, ["name", "options"], ["all", "profitable"])
def test_float16_through_a_transpose_into_a_matmul(between: str, how: str, claim: str, tmp_path: Path) -> None:
    source, out = float16_chain(between), tmp_path / "out.npz"
    onnx.save(source, tmp_path / "model.onnx")
    child(SESSION, tmp_path / "model.onnx", how, claim, out, "")
    with np.load(out) as got:
        assert np.abs(got["y"] - expected(source)).max() < 0.05


@pytest.mark.parametrize("disabled", ["MatmulTransposeFusion", "Other;FuseFp16InitializerToFp32NodeTransformer"])
def test_float16_is_claimed_where_the_fault_cannot_happen(disabled: str, tmp_path: Path) -> None:
    source, out = float16_chain("nothing"), tmp_path / "out.npz"
    onnx.save(source, tmp_path / "model.onnx")
    child(SESSION, tmp_path / "model.onnx", "name", "all", out, disabled)
    with np.load(out) as got:
        assert list(got["ours"]) == ["Add", "Relu"]
        assert np.abs(got["y"] - expected(source)).max() < 0.05


@parametrize_spread("between,how", list(MOVES), ["model", "InferenceSession"], each=1)
def test_options_for_a_model_keep_the_chain_and_the_process(between: str, how: str, tmp_path: Path) -> None:
    source, out = float16_chain(between), tmp_path / "out.npz"
    onnx.save(source, tmp_path / "model.onnx")
    child(SESSION, tmp_path / "model.onnx", how, "all", out, "GeluFusionL1")
    with np.load(out) as got:
        assert len(got["ours"]) > 0
        assert np.abs(got["y"] - expected(source)).max() < 0.05


def test_only_where_it_must_and_beside_what_is_off_already() -> None:
    import normfuse

    def disabled(model: Any, before: str = "") -> str:
        options = onnxruntime.SessionOptions()
        options.add_session_config_entry("optimization.disable_specified_optimizers", before)
        normfuse.session_options(options, model=model)
        return str(options.get_session_config_entry("optimization.disable_specified_optimizers"))

    faulty = float16_chain("nothing")
    assert disabled(faulty) == disabled(faulty.SerializeToString()) == "MatmulTransposeFusion"
    assert disabled(faulty, "A;B") == "A;B;MatmulTransposeFusion"
    assert disabled(faulty, "FuseFp16InitializerToFp32NodeTransformer") == "FuseFp16InitializerToFp32NodeTransformer"
    nodes = [helper.make_node("Transpose", ["X"], ["t"], perm=[1, 0, 2]), helper.make_node("MatMul", ["t", "w"], ["Y"])]
    in_float32 = model(nodes, TensorProto.FLOAT, {"w": np.ones((16, 4), np.float32)})
    assert disabled(in_float32) == disabled(in_float32.SerializeToString()) == ""


def test_float16_without_the_transpose_is_claimed() -> None:
    nodes = [helper.make_node("Relu", ["X"], ["r"], name="relu"), helper.make_node("MatMul", ["r", "w"], ["Y"])]
    source = model(nodes, TensorProto.FLOAT16, {"w": np.ones((16, 4), np.float16)})
    assert harness.fused_types(harness.create_session(source)) == [["Relu"]]


def test_reason_names_what_helps(tmp_path: Path) -> None:
    options = harness.session_options("ep", claim_report=str(tmp_path / "claims.jsonl"))
    onnxruntime.InferenceSession(float16_chain("nothing").SerializeToString(), options, enable_fallback=0)
    text = (tmp_path / "claims.jsonl").read_text("utf-8")
    assert '"unsupported_type"' in text
    assert "MatmulTransposeFusion" in text
