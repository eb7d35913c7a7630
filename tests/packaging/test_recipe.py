"""CONTRIBUTING's recipe for an activation is complete: its three steps alone give one that works."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

ROW = """
[[activation]]
name = "GentleSign"
formula = "x / (1 + bend * |x|)"
params = [["bend", 0.5]]
kernel = "GentleSign"
lipschitz = "1"
"""
FUNCTOR = """
struct GentleSign {
  NORMFUSE_INLINE explicit GentleSign(const float* params) : bend(Set(params[0])) {}
  NORMFUSE_INLINE V operator()(V x) const { return x / Fma(bend, Abs(x), Set(1.0f)); }
  V bend;
};
"""
FORMULA = '\nFORMULAS["GentleSign"] = lambda x, bend: x / (1.0 + bend * np.abs(x))\n'

USE = """
import sys
import numpy as np, onnx, onnxruntime, oracle
from onnx import helper

x = np.random.default_rng(1).normal(0, 3, (5, 37)).astype(np.float32)
for op, attributes in (("FusedActivation", {}), ("FusedNormalization", {"axes": [-1]})):
    attributes |= {"activation": "GentleSign", "activation_params": [0.75]}
    node = helper.make_node(op, ["X"], ["Y"], domain="ai.normfuse", spec_version=1, **attributes)
    values = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, x.shape) for name in "XY"]
    model = helper.make_model(helper.make_graph([node], "g", values[:1], values[1:]), ir_version=9,
                              opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("ai.normfuse", 1)])
    options = onnxruntime.SessionOptions()
    options.register_custom_ops_library(sys.argv[1])
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    oracle.evaluate(op, {"X": x}, attributes)["Y"].check(session.run(None, {"X": x})[0], op)
    print(op, "ok")
"""


def append(path: Path, text: str, before: str = "") -> None:
    content = path.read_text(encoding="utf-8")
    at = content.rindex(before) if before else len(content)
    path.write_text(content[:at] + text.lstrip("\n") + "\n" + content[at:], encoding="utf-8")


def copy_of_the_repository(target: Path) -> Path:
    names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for name in names.rstrip("\0").split("\0"):
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, target / name)
    return target


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_activation_recipe(tmp_path: Path) -> None:
    tree = copy_of_the_repository(tmp_path / "tree")
    append(tree / "ep" / "spec" / "activations.toml", ROW)
    append(tree / "ep" / "cpu" / "activations-inl.h", FUNCTOR, before="}  // namespace")
    append(tree / "tests" / "oracle.py", FORMULA)

    build = tmp_path / "build"
    # Without optimisation: this test is about completeness, and the compiler is quicker that way.
    configure = ["cmake", "-S", tree / "ep", "-B", build, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Debug"]
    for command in (configure, ["cmake", "--build", build, "--target", "normfuse"]):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]

    use = [sys.executable, "-c", USE, build / "libnormfuse.so"]
    done = subprocess.run(use, cwd=tree / "tests", capture_output=True, text=True, timeout=300, check=False)
    assert done.stdout.split() == ["FusedActivation", "ok", "FusedNormalization", "ok"], done.stderr
