"""CONTRIBUTING's recipes for an activation and for steps are complete: they alone give what works everywhere."""

import shutil
import site
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2400)]
ROOT = Path(__file__).resolve().parents[2]

ROW = """
[[activation]]
name = "GentleSign"
since = 9
formula = "x / (1 + bend * abs(x))"
params = [{ name = "bend", default = 0.5, range = [0.25, 2.0] }]
kernel = "GentleSign"
price = { ort = 0.5, avx512 = 0.12, avx2 = 0.12, baseline = 0.23 }
lipschitz = "1"
body = [{ nodes = "x / (Abs(x) * bend + 1)" }]
directml = "not there"
"""
FUNCTOR = """
struct GentleSign {
  NORMFUSE_INLINE explicit GentleSign(const float* params) : bend(Set(params[0])) {}
  NORMFUSE_INLINE V operator()(V x) const { return x / Fma(bend, Abs(x), Set(1.0f)); }
  V bend;
};
"""

# A chain that the cost model takes and one that it leaves, as nodes and, without normfuse, as functions.
USE = """
import json, sys
import harness, normfuse, numpy as np, onnx, onnxruntime, programs
from pathlib import Path

def model(x, op, **attributes):
    attributes |= {"activation": "GentleSign", "activation_params": [0.75]}
    made = harness.operator_model(op, {"X": x}, attributes, {"Y": onnx.TensorProto.FLOAT})
    return made, programs.evaluate(op, {"X": x}, attributes)["Y"]

report = Path(sys.argv[1])
for rows in (512, 1):
    x = np.random.default_rng(1).normal(0, 3, (rows, 37)).astype(np.float32)
    for op, attributes in (("FusedActivation", {}), ("FusedNormalization", {"axes": [-1]})):
        made, expected = model(x, op, **attributes)
        portable = normfuse.optimize(made, verify=False).model
        plain = onnxruntime.InferenceSession(portable.SerializeToString(), providers=["CPUExecutionProvider"])
        expected.check(plain.run(None, {"X": x})[0], op)
        report.unlink(missing_ok=True)
        options = normfuse.session_options(claim="profitable", claim_report=report)
        session = onnxruntime.InferenceSession(portable.SerializeToString(), options)
        expected.check(session.run(None, {"X": x})[0], op)
        claimed = [json.loads(line)["claimed"] for line in report.read_text("utf-8").splitlines()]
        print(op, rows, "claimed" if all(claimed) else "left")
"""

# A step that combines d with a tensor. It is run as nodes and, without normfuse, as functions: in front of a
# normalisation, behind one and without one; and DirectML has an operator for it.
STEP = """
[[step]]
name = "Max"
since = 9
place = "beside"
operand = true
kernel = "Larger"
directml = "ELEMENT_WISE_MAX"
arguments = ["scale", "zero_point", "axis", "block_size", "align"]
doc = "the larger one of d and operand, dequantised where it has a scale"

"""
COMBINATION = """
struct Larger {
  NORMFUSE_INLINE V operator()(V d, V operand) const { return Max(d, operand); }
};

"""
USE_STEP = """
import harness, normfuse, numpy as np, onnx, onnxruntime
from normfuse.inspection.lowering import lower

random = np.random.default_rng(1)
x, a, b = (random.normal(0, 1, shape).astype(np.float32) for shape in ((64, 37), (64, 37), 37))
d = np.maximum(x.astype(np.float64) + a, b)
n = (d - d.mean(1, keepdims=True)) / np.sqrt(d.var(1, keepdims=True) + 1e-5)
cases = {
    ("FusedNormalization", "Add a; Max b; Normalize axes=-1 epsilon=1e-05"): n,
    ("FusedNormalization", "Add a; Max b; Normalize axes=-1 epsilon=1e-05; Relu; Max c; Mul e"): np.maximum(n, 0.5) * 3,
    ("FusedActivation", "Add a; Max b; Elu"): np.where(d > 0, d, np.expm1(d)),
}
for (op, steps), expected in cases.items():
    inputs = {"X": x, "a": a, "b": b}
    if "Max c" in steps:
        inputs |= {"c": np.full(37, 0.5, np.float32), "e": np.full(1, 3, np.float32)}
    made = harness.operator_model(op, inputs, {"steps": steps}, {"Y": onnx.TensorProto.FLOAT})
    portable = normfuse.optimize(made, verify=False).model
    for model, provider in ((made, "custom"), (made, "ep"), (portable, "cpu"), (portable, "ep")):
        session = harness.create_session(model, provider)
        if provider == "ep":
            assert len(harness.fused_types(session)) == 1, harness.cpu_types(session)
        np.testing.assert_allclose(session.run(None, inputs)[0], expected, rtol=0, atol=1e-5, err_msg=steps)
    [node] = portable.graph.node
    assert [each.i for each in node.attribute if each.name == "spec_version"] == [9]
    [site] = lower(made).sites
    print(" ".join(site.operators).count("ELEMENT_WISE_MAX"), site.message)
"""

# Steps that store an output, as it is and quantised: rows alone. They are run as nodes and, without normfuse, as
# functions, and DirectML has them.
STORING = """
[[step]]
name = "Snapshot"
since = 9
place = "before"
output = "sum"
arguments = ["type"]
doc = "the output sum is d as it is here"

[[step]]
name = "Regrid"
since = 9
place = "before"
output = "sum"
arguments = ["scale", "zero_point", "type"]
doc = "the output sum is d as it is here, quantised; d goes on as that"

"""
USE_STORING = """
import harness, normfuse, numpy as np, onnx
from normfuse.inspection.lowering import lower

random = np.random.default_rng(1)
inputs = {"X": random.normal(0, 1, (64, 37)).astype(np.float32), "a": random.normal(0, 1, 37).astype(np.float32)}
step = np.array(0.05, np.float32)
d = inputs["X"] + inputs["a"]
grid = np.clip(np.rint(d / step), -128, 127)
cases = {
    "Snapshot type=float16": (onnx.TensorProto.FLOAT16, d, d),
    "Regrid scale=s zero_point=z": (onnx.TensorProto.INT8, grid, grid * step),
}
for storing, (code, stored, going_on) in cases.items():
    going_on = going_on.astype(np.float64)
    n = (going_on - going_on.mean(1, keepdims=True)) / np.sqrt(going_on.var(1, keepdims=True) + 1e-5)
    constants = {"s": step, "z": np.array(0, np.int8)} if "scale" in storing else {}
    given = inputs | constants
    steps = f"Add a; {storing}; Normalize axes=-1 epsilon=1e-05"
    outputs = {"Y": onnx.TensorProto.FLOAT, "sum": code}
    made = harness.operator_model("FusedNormalization", given, {"steps": steps}, outputs, constants=constants)
    portable = normfuse.optimize(made, verify=False).model
    assert portable.graph.node[0].op_type in {function.name for function in portable.functions}
    for model, provider in ((made, "custom"), (made, "ep"), (portable, "cpu"), (portable, "ep")):
        y, total = harness.create_session(model, provider).run(None, inputs)
        np.testing.assert_allclose(y, n, rtol=0, atol=1e-5, err_msg=provider)
        np.testing.assert_allclose(total, stored, rtol=0.5e-3, atol=1e-6, err_msg=provider)
    [site] = lower(made).sites
    print(storing, total.dtype, site.operators.count("MEAN_VARIANCE_NORMALIZATION1"), site.message)

wrong = harness.operator_model(
    "FusedNormalization",
    inputs,
    {"steps": "Add a; Snapshot type=int8; Normalize axes=-1 epsilon=1e-05"},
    {"Y": onnx.TensorProto.FLOAT, "sum": onnx.TensorProto.INT8},
)
for provider in ("custom", "ep"):
    try:
        harness.create_session(wrong, provider)
    except Exception as error:
        print("which Snapshot does not store" in str(error))
"""


def insert(path: Path, text: str, before: str) -> None:
    """In front of each place that begins so, or, where that is a namespace's end or nothing, once behind all."""
    content = path.read_text(encoding="utf-8")
    if before.startswith(('"', "[")):
        assert before in content
        changed = content.replace(before, text.lstrip("\n") + before)
    else:
        at = content.rindex(before) if before else len(content)
        changed = content[:at] + text + content[at:]
    path.write_text(changed, encoding="utf-8")


def copy_of_the_repository(target: Path) -> Path:
    names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for name in names.rstrip("\0").split("\0"):
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, target / name)
    return target


def environment(folder: Path) -> Path:
    """The interpreter of an environment that sees the packages of this one, but none of its .pth files: no normfuse."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    own = Path(sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)}))
    (own / "outer.pth").write_text("\n".join(site.getsitepackages()) + "\n", encoding="utf-8")
    return folder / "bin" / "python"


def run(*command: str | Path, cwd: Path) -> str:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=1500, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """An interpreter with a normfuse that has all of them, and its source."""
    folder = tmp_path_factory.mktemp("recipe")
    tree = copy_of_the_repository(folder / "tree")
    for name, text, before in (
        ("ep/spec/activations.toml", ROW, ""),
        ("ep/cpu/kernels/activations-inl.h", FUNCTOR, "}  // namespace"),
        ("ep/spec/operators.toml", STEP, '[[step]]\nname = "Requantize"'),
        ("ep/cpu/kernels/combinations-inl.h", COMBINATION, "}  // namespace"),
        ("src/normfuse/meaning.py", '"Max": np.maximum, ', '"Mul": np.multiply,'),
        ("ep/spec/operators.toml", STORING, '[[step]]\nname = "Normalize"'),
        ("ep/spec/element_types.toml", '"Snapshot", ', '"Emit", "Store"]'),
        ("ep/spec/element_types.toml", '"Regrid", ', '"Requantize", "FakeQuantize", "Quantize"]'),
    ):
        insert(tree / name, text, before)
    python = environment(folder / "environment")
    strict = ["-C", "cmake.define.CMAKE_COMPILE_WARNING_AS_ERROR=ON", "-C", "cmake.define.NORMFUSE_KERNELS=best"]
    # -O1: warnings need some optimisation, and what is computed is the same.
    strict += ["-C", "cmake.build-type=RelWithDebInfo", "-C", "cmake.define.CMAKE_CXX_FLAGS_RELWITHDEBINFO=-O1"]
    run(python, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", *strict, tree, cwd=tree)
    return python, tree


def test_activation_recipe(built: tuple[Path, Path], tmp_path: Path) -> None:
    python, tree = built
    table = run(python, "-m", "normfuse.selftest", "--filter", "GentleSign", cwd=tmp_path)
    assert "2 cases (2 on cpu), 0 wrong" in table
    tests = ("operators/test_activation_table.py", "operators/test_accuracy.py", "python/test_spec.py")
    options = ["-q", "-p", "no:cacheprovider", "-k", "GentleSign"]
    assert " passed" in run(python, "-m", "pytest", *options, *(f"tests/{name}" for name in tests), cwd=tree)


@pytest.mark.parametrize(
    ("use", "printed"),
    [
        (
            USE,
            "FusedActivation 512 claimed; FusedNormalization 512 claimed; "
            "FusedActivation 1 left; FusedNormalization 1 claimed",  # by what the normalisation gains
        ),
        (USE_STEP, "1 ; 2 ; 1 "),
        (USE_STORING, "Snapshot type=float16 float16 1 ; Regrid scale=s zero_point=z int8 1 ; True; True"),
    ],
    ids=["activation", "step", "step that stores"],
)
def test_what_is_added_works_everywhere(built: tuple[Path, Path], tmp_path: Path, use: str, printed: str) -> None:
    python, tree = built
    used = run(python, "-c", use, tmp_path / "claims.jsonl", cwd=tree / "tests")
    assert "; ".join(used.splitlines()) == printed
