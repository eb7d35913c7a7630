"""Models are compared with exact sums of integers, also where ONNX Runtime's own saturate (x86 without VNNI)."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from command import Run
from onnx import numpy_helper

import normfuse
from normfuse.cli.schema import json_schema
from normfuse.files.model_files import load_model
from normfuse.host.integer_products import integer_products
from normfuse.measuring.benchmark import benchmark
from normfuse.reports.files import json_text
from normfuse.sessions import AllowedChanges
from normfuse.sessions.creation import Level, open_session
from normfuse.sessions.exact_products import with_exact_sums
from normfuse.sessions.session_model import session_model

pytestmark = pytest.mark.without_vnni

ROWS, DEPTH, COLUMNS = 4, 32, 8
HEADER = '<ir_version: 9, opset_import: ["" : 21, "com.microsoft" : 1]> g '
Array = np.ndarray[Any, Any]


def activations() -> Array:
    """So large that every sum of two products with ``weights`` is beyond 16 bits."""
    a = np.random.default_rng(0).integers(200, 256, (ROWS, DEPTH), np.uint8)
    a[0, 0] = 255  # the end of the range that is found, where it is
    return a


def weights() -> Array:
    """Of one sign in each column."""
    w = np.random.default_rng(1).integers(90, 128, (DEPTH, COLUMNS), np.int8)
    w[:, ::2] *= -1
    return w


@dataclasses.dataclass
class Case:
    """A product of uint8 and int8: operators, and what is computed of the exact sums."""

    nodes: str
    zero: int = 0
    """The zero point of the weights."""
    feed: str = "uint8[4, 32] a"
    result: str = "float[4, 8] y"
    step: float = 1.0
    """What a result may be off by."""


STATIC = "<uint8 z = {0}, float one = {1}, float s = {16384}, uint8 m = {128}, int8 wz = {0}>"
CASES = {
    "MatMulInteger": Case("i = MatMulInteger(a, w) y = Cast<to = 1>(i)", step=0),
    "MatMulInteger, zero point": Case("i = MatMulInteger(a, w, z, wz) y = Cast<to = 1>(i)", zero=3, step=0),
    "MatMulInteger, computed": Case("v = Identity(w) i = MatMulInteger(a, v) y = Cast<to = 1>(i)", step=0),
    "MatMulInteger in a branch": Case(
        """yes = Constant<value = bool {1}>() y = If(yes) <
        then_branch = t () => (float[4, 8] p) { i = MatMulInteger(a, w) p = Cast<to = 1>(i) },
        else_branch = e () => (float[4, 8] n) { j = MatMulInteger(a, w) n = Cast<to = 1>(j) }>""",
        step=0,
    ),
    "MatMulIntegerToFloat": Case("y = com.microsoft.MatMulIntegerToFloat(a, w, one, one, z)", step=0),
    "DynamicQuantizeMatMul": Case("y = com.microsoft.DynamicQuantizeMatMul(a, w, one)", feed="float[4, 32] a", step=1),
    "QLinearMatMul": Case(
        "q = QLinearMatMul(a, one, z, w, one, wz, s, m) y = DequantizeLinear(q, s, m)", zero=-2, step=8193
    ),
    "QLinearConv": Case(
        """shape = Constant<value_ints = [4, 32, 1, 1]>() x = Reshape(a, shape) k = Transpose<perm = [1, 0]>(w)
        kernel = Constant<value_ints = [8, 32, 1, 1]>() v = Reshape(k, kernel)
        q = QLinearConv(x, one, z, v, one, wz, s, m) d = DequantizeLinear(q, s, m)
        flat = Constant<value_ints = [4, 8]>() y = Reshape(d, flat)""",
        step=8193,
    ),
    "QGemm": Case("q = com.microsoft.QGemm(a, one, z, w, one, wz, , s, m) y = DequantizeLinear(q, s, m)", step=8193),
    "pairs": Case(
        """d = DequantizeLinear(a, one, z) f = DequantizeLinear(w, one, wz) p = MatMul(d, f)
        q = QuantizeLinear(p, s, m) y = DequantizeLinear(q, s, m)""",
        zero=5,
        step=8193,
    ),
    "pairs, columns": Case(
        """d = DequantizeLinear(a, one, z) f = DequantizeLinear<axis = 1>(w, ones) p = MatMul(d, f)
        q = QuantizeLinear(p, s, m) y = DequantizeLinear(q, s, m)""",
        step=8193,
    ),
    "pairs, weights quantised in each run": Case(
        """d = DequantizeLinear(a, one, z) v = QuantizeLinear(wf, one, wz) f = DequantizeLinear(v, one, wz)
        p = MatMul(d, f) q = QuantizeLinear(p, s, m) y = DequantizeLinear(q, s, m)""",
        step=8193,
    ),
}


def model_of(case: Case, w: Array) -> onnx.ModelProto:
    model = onnx.parser.parse_model(f"{HEADER} ({case.feed}) => ({case.result}) {STATIC} {{ {case.nodes} }}")
    arrays = {"w": w, "wf": w.astype(np.float32), "ones": np.ones(COLUMNS, np.float32)}
    model.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in arrays.items())
    for tensor in model.graph.initializer:
        if tensor.name == "wz":
            tensor.CopyFrom(numpy_helper.from_array(np.array(case.zero, np.int8), "wz"))
    return model


def feeds_of(case: Case) -> dict[str, Array]:
    return {"a": activations().astype(np.float32 if case.feed.startswith("float") else np.uint8)}


def exact_sums(case: Case, w: Array) -> Array:
    return activations().astype(np.int64) @ (w.astype(np.int64) - case.zero)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("level", ["disable", "all"])
def test_products_of_the_copy_are_exact(name: str, level: Level) -> None:
    case = CASES[name]
    model = ir.from_proto(model_of(case, weights()))
    before = ir.to_proto(model).SerializeToString(deterministic=True)
    (copy,) = with_exact_sums(model)
    (y,) = open_session(copy, name, level=level).run(None, feeds_of(case))
    assert np.abs(y - exact_sums(case, weights())).max() <= case.step
    assert ir.to_proto(model).SerializeToString(deterministic=True) == before


@pytest.mark.parametrize("name", CASES)
def test_products_of_a_session_are_exact_where_asked(name: str) -> None:
    case = CASES[name]
    session = normfuse.InferenceSession(model_of(case, weights()), exact_products=True)
    (y,) = session.run(None, feeds_of(case))
    assert np.abs(y - exact_sums(case, weights())).max() <= case.step


@pytest.mark.parametrize("saturates", [True, False])
@pytest.mark.parametrize("zero_point", ["m", "z8"])
def test_weights_are_uint8_only_where_sums_saturate(
    monkeypatch: pytest.MonkeyPatch, saturates: bool, zero_point: str
) -> None:
    """Of activations of uint8, and of int8, which become uint8 anyhow."""
    monkeypatch.setattr("normfuse.sessions.session_model.sums_saturate", lambda: saturates)
    case = Case(
        f"""q = QuantizeLinear(a, s, {zero_point}) d = DequantizeLinear(q, s, {zero_point})
        f = DequantizeLinear(w, one, wz) p = MatMul(d, f) y = Mul(p, one)""",
        feed="float[4, 32] a",
    )
    model = model_of(case, weights())
    model.graph.initializer.append(numpy_helper.from_array(np.array(0, np.int8), "z8"))
    source, options = load_model(model), onnxruntime.SessionOptions()
    allowed = [AllowedChanges(exact_products=asked, fold_weights=False) for asked in (False, True)]
    usual, exact = (session_model(source, options, chosen).model for chosen in allowed)
    tensors = [value.const_value for value in exact.graph.initializers.values()]
    types = {tensor.dtype for tensor in tensors if tensor is not None and tensor.shape == (DEPTH, COLUMNS)}
    assert (ir.DataType.UINT8 in types) == saturates
    if not saturates:
        assert ir.to_proto(exact).SerializeToString(True) == ir.to_proto(usual).SerializeToString(True)


def test_a_model_that_is_left_is_refused_where_products_are_to_be_exact() -> None:
    value = onnxruntime.OrtValue.ortvalue_from_numpy(weights())
    options = onnxruntime.SessionOptions()
    options.add_initializer("w", value)
    with pytest.raises(normfuse.OptionError, match="exact_products=True needs it rewritten"):
        normfuse.InferenceSession(model_of(CASES["MatMulInteger"], weights()), options, exact_products=True)


def test_two_models_share_what_they_shared() -> None:
    model = ir.from_proto(model_of(CASES["MatMulInteger"], weights()))
    first, second = with_exact_sums(model, model.clone())
    shifted = [each.graph.initializers["w + 128"].const_value for each in (first, second)]
    assert shifted[0] is shifted[1]
    np.testing.assert_array_equal(shifted[0].numpy(), weights().astype(np.int16) + 128)


def test_products_of_other_types_stay() -> None:
    text = HEADER + "(int8[4, 32] a, uint8[4, 32] b) => (int32[4, 8] y, int32[4, 8] x) { y = MatMulInteger(a, w) "
    model = onnx.parser.parse_model(text + "x = MatMulInteger(b, u) }")
    model.graph.initializer.append(numpy_helper.from_array(weights(), "w"))
    model.graph.initializer.append(numpy_helper.from_array(weights().view(np.uint8), "u"))
    (copy,) = with_exact_sums(ir.from_proto(model))
    assert [[value.name for value in node.inputs] for node in copy.graph] == [["a", "w"], ["b", "u"]]


def verified(first: onnx.ModelProto, second: onnx.ModelProto, case: Case) -> normfuse.VerificationReport:
    report = normfuse.verify(first, second, inputs=[feeds_of(case)])
    # Said is that these sums saturate, where they do.
    assert (report.saturation is not None) == integer_products().saturates
    assert any("saturate" in warning for warning in report.warnings) == integer_products().saturates
    if report.saturation is not None:
        assert (report.saturation.products, report.saturation.inexact) == (1, 0)
    return report


@pytest.mark.parametrize("name", [name for name in CASES if "computed" not in name and "branch" not in name])
def test_saturation_hides_no_wrong_weights(name: str) -> None:
    """Sums of two saturate with these weights as with the right ones, to the same number."""
    case = CASES[name]
    wrong = weights().copy()
    wrong[wrong > 0] = 127
    wrong[wrong < 0] = -127
    assert verified(model_of(case, weights()), model_of(case, wrong), case).result == "differ"


def test_saturation_hides_no_wrong_factor() -> None:
    """Nor a value in front of the product that is not right."""
    text = """(float[4, 32] x) => (float[4, 8] y) <float factor = {1}> {
        f = Mul(x, factor) q, s, z = DynamicQuantizeLinear(f) i = MatMulInteger(q, w, z) y = Cast<to = 1>(i) }"""
    model = onnx.parser.parse_model(HEADER + text)
    model.graph.initializer.append(numpy_helper.from_array(weights(), "w"))
    wrong = onnx.ModelProto.FromString(model.SerializeToString())
    wrong.graph.initializer[0].CopyFrom(
        numpy_helper.from_array(np.linspace(0.95, 1, DEPTH, dtype=np.float32), "factor")
    )
    feeds = {"x": activations().astype(np.float32)}
    assert normfuse.verify(model, model, inputs=[feeds]).result == "agree"
    assert normfuse.verify(model, wrong, inputs=[feeds]).result == "differ"


@pytest.mark.parametrize("name", ["MatMulInteger", "QLinearMatMul", "pairs"])
def test_what_saturates_here_agrees_with_what_does_not(name: str) -> None:
    """The same products in float, as of weights that were dequantised once."""
    case = CASES[name]
    nodes = case.nodes.replace("DequantizeLinear(w, one, wz)", "Sub(wf, zero)")
    nodes = nodes.replace(
        "i = MatMulInteger(a, w)", "d = Cast<to = 1>(a) p = MatMul(d, wf) i = Cast<to = 6>(p)"
    ).replace(
        "q = QLinearMatMul(a, one, z, w, one, wz, s, m)",
        "d = Cast<to = 1>(a) f = Sub(wf, zero) p = MatMul(d, f) q = QuantizeLinear(p, s, m)",
    )
    in_float = model_of(dataclasses.replace(case, nodes=nodes), weights())
    in_float.graph.initializer.append(numpy_helper.from_array(np.float32(case.zero), "zero"))
    assert verified(model_of(case, weights()), in_float, case).result == "agree"


def test_what_the_provider_takes_is_that_of_the_model_as_it_is(tmp_path: Path) -> None:
    """Also where forms of it are compared; and a report with all of it is valid."""
    text = """(float[4, 32] x) => (float[4, 8] y) <float s = {0.01}> {
        n = LayerNormalization(x, scale) g = Gelu(n) q, qs, qz = DynamicQuantizeLinear(g)
        i = MatMulInteger(q, w, qz) c = Cast<to = 1>(i) f = Mul(qs, s) y = Mul(c, f) }"""
    model = onnx.parser.parse_model(HEADER.replace("g ", "g " + text))
    arrays = {"w": weights(), "scale": np.linspace(0.5, 2, DEPTH, dtype=np.float32)}
    model.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in arrays.items())
    done = normfuse.optimize(model)
    assert done.report.verification.passed
    assert done.report.claims is not None
    unverified = normfuse.optimize(model, verify=False).with_claims()
    assert done.report.claims == unverified.report.claims
    schema = json_schema("report")
    measured = benchmark(model, optimized=done.in_memory, seconds=0.1)
    jsonschema.validate(json.loads(json_text(done.report.to_dict() | {"benchmark": measured.to_dict()})), schema)


def test_bench_says_what_saturation_makes_of_the_errors(run: Run, tmp_path: Path) -> None:
    case, path = CASES["DynamicQuantizeMatMul"], tmp_path / "model.onnx"
    onnx.save(model_of(case, weights()), path)
    np.savez(tmp_path / "inputs.npz", **feeds_of(case))
    report = benchmark(path, seconds=0.1, inputs=tmp_path / "inputs.npz")
    saturates = integer_products().saturates
    exact = [timing for timing in report.timings if "exact_products" in timing.name]
    assert len(exact) == saturates
    assert all(timing.error <= 1 for timing in exact)
    assert all((timing.error > 1000) == saturates for timing in report.timings if timing not in exact)
    assert (report.saturation is not None) == saturates
    if report.saturation is not None:
        assert (report.saturation.products, report.saturation.error <= 1) == (1, True)
        assert report.saturation.moved == report.timings[0].error
        assert report.to_dict()["saturation"]["message"] == report.saturation.message
    done = run("bench", path, "--seconds", "0.1", "--inputs", "inputs.npz")
    assert ("may saturate in 1 of the products" in done.out) == saturates
    said = run("inspect", path).out
    assert ("exact_products=True" in said) == ("outputs are off by" in said) == saturates
