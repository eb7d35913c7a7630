"""The three results of a verification: agree, differ, undecided; the time it takes; and that sites decide."""

from __future__ import annotations

import copy
import json
import sys
import time
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import onnx
import onnx_ir as ir
import pytest
import tiny_bombs
from onnx import TensorProto, helper, numpy_helper

import normfuse
from normfuse import models
from normfuse.cli import console, main
from normfuse.cli.schema import json_schema
from normfuse.folders import optimize_folder
from normfuse.models.spellings import layer_norm
from normfuse.reports.files import json_text
from normfuse.sessions.creation import open_session
from normfuse.verification import runs, samples
from normfuse.verification.budget import OutOfTime
from normfuse.verification.diff_sites import diff_sites
from normfuse.verification.inputs import InputMaker

STEEP = np.float32(3e6)


def chaotic(*, weight: float = 1.0, scale: float = 1.0, length: bool = False) -> onnx.ModelProto:
    """A normalisation under a sine so steep that a unit in the last place goes through all of its values.

    The input is large enough for any other order of summation to show. With ``length`` the number of elements of the
    output depends on that, as that of speech synthesis does.
    """
    g = models.GraphBuilder(opset=13)
    x = g.input("x", [64, 64])
    matrix = np.random.default_rng(1).normal(0, weight / 8, (64, 64)).astype(np.float32)
    mixed = g.add("MatMul", x, matrix)
    n = layer_norm(g, mixed, np.full(64, scale, np.float32), g.weight(64), spelling="pow_div")
    # The Transpose keeps the factor out of the chain: with it inside, the rewritten model gives the same bits.
    y = g.add("Sin", g.add("Mul", g.add("Transpose", n), STEEP))
    if not length:
        g.output(y, [64, 64])
        return g.model("chaotic")
    total = g.add("ReduceSum", g.add("Abs", g.add("Mul", y, np.float32(100))), keepdims=0)
    size = g.add("Unsqueeze", g.add("Cast", total, to=TensorProto.INT64), [0])
    g.output(g.add("Expand", np.float32(1.0), size), ["samples"])
    return g.model("speech")


@pytest.mark.parametrize("length", [False, True])
def test_a_chaotic_model_is_compared_site_by_site(length: bool) -> None:
    report = normfuse.optimize(chaotic(length=length)).report
    assert len(report.fused) == 1
    verification = report.verification
    assert verification is not None
    assert verification.result == "agree", verification.message
    assert verification.error > 0.1
    assert not any(run.passed for run in verification.runs)
    assert "the model amplifies rounding" in verification.message
    found = verification.diff_sites
    assert found is not None
    assert (found.found, found.right, found.samples, found.first_difference) == (1, 1, 4, None)
    assert found.error < 1e-5
    schema = json_schema("report")
    jsonschema.validate(json.loads(json_text(report.to_dict())), schema)


@pytest.mark.parametrize("changed", [{"weight": 1.1}, {"scale": 1.1}])
@pytest.mark.parametrize("length", [False, True])
def test_noise_hides_no_changed_weight(changed: dict[str, float], length: bool) -> None:
    """The normalisation takes a factor of all its input out again: only site by site is that seen at all."""
    report = normfuse.verify(chaotic(length=length), chaotic(length=length, **changed))
    assert report.result == "differ"
    assert report.diff_sites is not None
    assert report.first_difference is not None
    assert report.first_difference in report.message


def test_no_time_is_undecided() -> None:
    model = models.transformer_encoder(layers=1, hidden=32)
    report = normfuse.verify(model, model, seconds=1e-3)
    assert report.result == "undecided"
    assert report.runs == ()
    assert "nothing could be compared within 0.001 s" in report.message
    assert "--verify-seconds" in report.message
    result = normfuse.optimize(model, verify_seconds=1e-3)
    assert result.report.verification is not None
    assert result.report.verification.result == "undecided"
    with pytest.raises(normfuse.OptionError, match="must be more than 0"):
        normfuse.verify(model, model, seconds=0)


def test_a_difference_that_there_was_no_time_to_understand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what is known to differ is refused; a difference in time that was not understood is undecided."""

    def too_late(*_: object) -> None:
        raise OutOfTime("the time is over")

    monkeypatch.setattr("normfuse.verification.site_comparison.run_all", too_late)
    report = normfuse.verify(chaotic(), chaotic(scale=1.1))
    assert report.result == "undecided"
    assert "were over before the rewritten sites were compared" in report.message
    assert report.diff_sites is None


def test_a_run_that_takes_too_long_is_stopped() -> None:
    """A loop of products that would go on for hours."""
    i = helper.make_tensor_value_info("i", TensorProto.INT64, [])
    go = helper.make_tensor_value_info("go", TensorProto.BOOL, [])
    a = helper.make_tensor_value_info("a", TensorProto.FLOAT, None)
    b = helper.make_tensor_value_info("b", TensorProto.FLOAT, None)
    go_on = helper.make_tensor_value_info("go_on", TensorProto.BOOL, [])
    nodes = [helper.make_node("MatMul", ["a", "a"], ["b"]), helper.make_node("Identity", ["go"], ["go_on"])]
    body = helper.make_graph(nodes, "body", [i, go, a], [go_on, b])
    constants = [
        numpy_helper.from_array(np.int64(10**9), "count"),
        numpy_helper.from_array(np.array(True), "true"),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [256, 256])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    loop = helper.make_node("Loop", ["count", "true", "x"], ["y"], body=body)
    graph = helper.make_graph([loop], "endless", [x], [y], initializer=constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    start = time.monotonic()
    report = normfuse.verify(model, model, seconds=1.0)
    assert report.result == "undecided"
    assert time.monotonic() - start < 60


def test_small_inputs_come_first() -> None:
    maker = InputMaker(ir.from_proto(models.transformer_encoder(layers=1, hidden=32)))
    sizes = [maker.make(profile, 0)["input_ids"].size for profile in range(4)]
    assert sizes == sorted(sizes)
    assert sizes[0] == 2


def too_large(shape: list[int]) -> onnx.ModelProto:
    g = models.GraphBuilder(opset=17)
    n = g.add("LayerNormalization", g.input("x", shape), g.weight(8), g.weight(8), axis=-1)
    g.output(g.add("Relu", n), shape)
    return g.model("large")


def test_the_command_line_writes_undecided_models(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    onnx.save(too_large([1 << 40, 8]), "large.onnx")

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["normfuse", *arguments])
        try:
            main()
        except SystemExit as stop:
            return int(stop.code or 0), *capsys.readouterr()
        return 0, *capsys.readouterr()

    for strict, code in (((), 0), (("--strict",), 3)):
        assert run("optimize", "large.onnx", "-o", "out.onnx", *strict)[0] == code
        done, _, err = run("verify", "large.onnx", "out.onnx", *strict)
        assert done == code
        assert "Warning: Undecided: nothing could be compared" in err
        assert run("check", "out.onnx", "--original", "large.onnx", *strict)[0] == code
        Path("out.onnx").unlink()
    rows = optimize_folder(tmp_path, tmp_path.parent / f"{tmp_path.name}.out", engine="local")
    assert [(row["status"], row["result"]) for row in rows] == [("written", "undecided")]
    assert run("optimize", ".", "-o", "../written", "--engine", "local", "--strict")[0] == 3
    onnx.save(chaotic(), "speech.onnx")
    onnx.save(chaotic(weight=1.1), "other.onnx")
    assert run("verify", "speech.onnx", "other.onnx")[0] == 1


def test_progress_into_a_pipe(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console, "_LINE_SECONDS", 0.02)
    with console.progress() as tell:
        tell("verifying: with normfuse, sample 1 of 4", 0, 0)
        time.sleep(0.5)
        tell("rewriting", 3, 7)
        time.sleep(0.5)
    lines = capsys.readouterr().err.splitlines()
    assert "normfuse: verifying: with normfuse, sample 1 of 4 (0 s)" in lines
    assert any(line.startswith("normfuse: rewriting, 3 of 7") for line in lines)


# --- the graphs' differences ---


def test_diff_sites_are_where_the_graphs_differ() -> None:
    original = ir.from_proto(models.transformer_encoder(layers=2, hidden=32))
    assert diff_sites(original, original.clone()) == ([], len(list(original.graph)))
    result = normfuse.optimize(original, verify=False)
    sites, same = diff_sites(original, result.model)
    assert len(sites) == len(result.report.fused)
    fused = sum(node.domain == "ai.normfuse" for node in result.model.graph)
    assert same == len(list(result.model.graph)) - fused


def test_a_changed_weight_attribute_or_subgraph_is_a_diff_site() -> None:
    def model(weight: float, alpha: float, inner: float) -> ir.Model:
        g = models.GraphBuilder(opset=17)
        x = g.add("Mul", g.input("x", [4]), np.full(4, weight, np.float32))
        y = g.add("LeakyRelu", x, alpha=alpha)
        branch = [helper.make_node("Constant", [], [f"{side} c"], value_float=inner) for side in ("then", "else")]
        graphs = [
            helper.make_graph(
                [node, helper.make_node("Add", [y, node.output[0]], [f"{node.output[0]} sum"])],
                "branch",
                [],
                [helper.make_tensor_value_info(f"{node.output[0]} sum", TensorProto.FLOAT, [4])],
            )
            for node in branch
        ]
        condition = g.add("Greater", g.add("ReduceSum", y, keepdims=0), np.float32(0))
        g.output(g.add("If", condition, then_branch=graphs[0], else_branch=graphs[1]), [4])
        return ir.from_proto(g.model("sites"))

    first = model(1.0, 0.1, 1.0)
    assert diff_sites(first, model(1.0, 0.1, 1.0))[0] == []
    for changed, operator in (((2.0, 0.1, 1.0), "Mul"), ((1.0, 0.2, 1.0), "LeakyRelu"), ((1.0, 0.1, 2.0), "If")):
        (site,) = diff_sites(first, model(*changed))[0]
        assert operator in [node.op_type for node in site.nodes]


def test_a_chain_that_runs_as_one_is_one_diff_site() -> None:
    g = models.GraphBuilder(opset=17)
    x = g.input("x", ["n", 8])
    g.output(g.add("Relu", g.add("Sigmoid", g.add("Add", x, g.weight(8)))), ["n", 8])
    model = ir.from_proto(g.model("chain"))
    chain = [node.name or "" for node in model.graph]
    (site,) = diff_sites(model, model.clone(), [chain])[0]
    assert site.inputs == ("x",)
    assert [node.op_type for node in site.nodes] == ["Relu", "Sigmoid", "Add"]


@pytest.mark.parametrize("shape", [[1 << 40, 8], [1 << 40, 1 << 40, 8]], ids=["32 TiB", "more than an address holds"])
def test_inputs_too_large_to_be_made(
    shape: list[int], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    onnx.save(too_large(shape), tmp_path / "large.onnx")
    written = tmp_path / "fused.onnx"
    arguments = ["normfuse", "optimize", str(tmp_path / "large.onnx"), "-o", str(written), "--strict"]
    monkeypatch.setattr(sys, "argv", arguments)
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 3
    assert written.exists()
    assert f"'x' of shape {shape} would take" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(("levels", "fits"), [(20, True), (41, False)])
def test_nothing_is_run_that_needs_more_memory_than_there_may_be(
    levels: int, fits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shape that is joined to itself again and again: ONNX Runtime would take what there is, and then fail."""
    opened = []

    def counted(*arguments: Any, **options: Any) -> Any:
        opened.append(arguments)
        return open_session(*arguments, **options)

    for module in (samples, runs):
        monkeypatch.setattr(module, "open_session", counted)
    model = tiny_bombs.model(f"{tiny_bombs.SHAPE} {tiny_bombs.doubling(levels)}")
    report = normfuse.optimize(model).report.verification
    assert report is not None
    assert report.result == ("agree" if fits else "undecided")
    assert bool(opened) == fits
    if not fits:
        assert "'s29' of shape [1073741824] would take 8 GiB of memory" in (report.undecided_because or "")


NUMPY = {"float": np.float32, "float16": np.float16}
# Of the values, of the scale, of the integers, and of what is dequantised.
MIXED = [
    ("float16", "float", "int8", "float16"),
    ("float", "float", "int8", "float16"),
    ("float", "float", "uint16", "float16"),
    ("float", "float16", "int16", "float"),
    ("float16", "float", "int16", "float"),
]


def quantised_silu(
    epsilon: float = 1e-5,
    scale: float = 0.0371,
    bound: float = 4.0,
    swap: bool = False,
    types: tuple[str, str, str, str] = MIXED[0],
) -> ir.Model:
    """Values of one type, a scale of another: LayerNormalization -> Clip -> Q/DQ pair -> SiLU."""
    values, of_scale, integers, back = types
    step = scale if integers == "int8" else scale / 128
    zero = 32768 if integers == "uint16" else 0
    model = onnx.parser.parse_model(
        f'<ir_version: 10, opset_import: ["": 24]> g ({values}[8,256] x) => ({back}[8,256] y) '
        f"{{ {'r = Gather<axis = 0>(x, o)' if swap else 'r = Identity(x)'} "
        f"n = LayerNormalization<epsilon = {epsilon}>(r, w, b) c = Clip(n, low, high) i = QuantizeLinear(c, s, z) "
        f"d = DequantizeLinear<output_dtype = {1 if back == 'float' else 10}>(i, s, z) g = Sigmoid(d) y = Mul(d, g) }}"
    )
    rng = np.random.default_rng(1)
    constants = {"w": rng.uniform(0.5, 2, 256), "b": rng.normal(0, 0.3, 256), "low": -bound, "high": bound}
    for name, value in constants.items():
        model.graph.initializer.append(numpy_helper.from_array(np.asarray(value, NUMPY[values]), name))
    others = {"s": NUMPY[of_scale](step), "z": np.dtype(integers).type(zero), "o": np.asarray([1, 0, 2, 3, 4, 5, 6, 7])}
    for name, value in others.items():
        model.graph.initializer.append(numpy_helper.from_array(np.asarray(value), name))
    return ir.from_proto(model)


def ramps(dtype: type = np.float16) -> dict[str, np.ndarray]:
    """Rows of a batch that are not alike: ramps, padding, a constant, an outlier, and faint ones."""
    rows = np.random.default_rng(2).normal(0, 1, (8, 256))
    rows[1] = np.linspace(0, 1, 256)
    rows[2] = np.linspace(3, -2, 256)
    rows[3, 40:] = 0
    rows[4] = 0.5
    rows[5, 0] = 30
    rows[6] *= 0.01
    return {"x": rows.astype(dtype)}


@pytest.mark.parametrize("structured", [False, True], ids=["made", "structured"])
@pytest.mark.parametrize("types", MIXED, ids="-".join)
def test_a_result_nearer_to_the_exact_one_is_no_difference(types: tuple[str, str, str, str], structured: bool) -> None:
    """The rewritten chain rounds once, where the original rounds in between to float16, or divides in it."""
    optimized = normfuse.optimize(quantised_silu(types=types), verify=False).model
    inputs = ramps(NUMPY[types[0]]) if structured else None
    report = normfuse.verify(quantised_silu(types=types), optimized, inputs=inputs)
    assert report.result == "agree", report.message


FAULTS: list[dict[str, Any]] = [{"epsilon": 1e-2}, {"scale": 0.0373}, {"bound": 3.5}, {"swap": True}]


# Where the original divides in float16 it is several steps off, and another scale moves values by half of one.
@pytest.mark.parametrize(
    ("fault", "types"),
    [(fault, types) for fault in FAULTS for types in MIXED if "scale" not in fault or types[1] != "float16"],
    ids=str,
)
def test_a_fault_among_values_that_round_otherwise_is_found(
    fault: dict[str, Any], types: tuple[str, str, str, str]
) -> None:
    faulty = normfuse.optimize(quantised_silu(**fault, types=types), verify=False).model
    assert normfuse.verify(quantised_silu(types=types), faulty, inputs=ramps(NUMPY[types[0]])).result == "differ"


@pytest.mark.parametrize("fault", ["scale", "alpha"])
def test_a_small_fault_of_float16_is_found(fault: str) -> None:
    """Of four units in the last place at most."""
    original = models.chain(["n", 16, 64], dtype="float16", activation_name="silu")
    faulty = normfuse.optimize(original, target="custom-op", verify=False).model
    assert normfuse.verify(original, faulty).result == "agree"
    (node,) = faulty.graph.node
    if fault == "alpha":
        (steps,) = (each for each in node.attribute if each.name == "steps")
        steps.s = steps.s.replace(b"alpha=1", b"alpha=1.01")
    else:
        scale = next(tensor for tensor in faulty.graph.initializer if tensor.name == node.input[1])
        wrong = numpy_helper.to_array(scale).astype(np.float32) * 1.002
        scale.CopyFrom(numpy_helper.from_array(wrong.astype(np.float16), scale.name))
    assert normfuse.verify(original, faulty).result == "differ"


def test_a_wrong_epsilon_before_a_quantiser_is_found() -> None:
    """It moves values by a thousandth of a step, which nothing but an activation may."""
    original = models.transformer_encoder(layers=1, hidden=32, quantized=True)
    faulty = normfuse.optimize(original, target="custom-op", verify=False).model
    node = [node for node in faulty.graph.node if node.domain == "ai.normfuse"][-1]
    (steps,) = (each for each in node.attribute if each.name == "steps")
    assert b"epsilon=1e-05" in steps.s
    steps.s = steps.s.replace(b"epsilon=1e-05", b"epsilon=0.0002")
    assert normfuse.verify(original, faulty).result == "differ"


def moments(epsilon: float = 1e-6, factor: float = 1.0, *, exact: bool = False) -> ir.Model:
    """A normalisation by E[x^2] - E[x]^2, which is inexact on rows that are nearly constant, or an exact one."""
    g = models.GraphBuilder(opset=17)
    x = g.input("x", [8, 256])
    weight = np.full(256, factor, np.float32)
    if exact:
        y = g.add("LayerNormalization", x, weight, g.weight(256), epsilon=epsilon)
    else:
        mean = g.add("ReduceMean", x, axes=[-1])
        squares = g.add("ReduceMean", g.add("Mul", x, x), axes=[-1])
        variance = g.add("Sub", squares, g.add("Mul", mean, mean))
        inverse = g.add("Reciprocal", g.add("Sqrt", g.add("Add", variance, np.float32(epsilon))))
        y = g.add("Add", g.add("Mul", g.add("Mul", g.add("Sub", x, mean), inverse), weight), g.weight(256))
    g.output(y, [8, 256])
    model = ir.from_proto(g.model("moments"))
    model.graph.outputs[0].name = "y"
    return model


def far_from_zero() -> dict[str, np.ndarray]:
    """A row whose mean is three hundred times its deviation among others: E[x^2] - E[x]^2 cancels."""
    rows = ramps(np.float32)["x"]
    rows[6] += 3
    return {"x": rows}


def test_an_inexact_variance_of_the_original_is_no_difference() -> None:
    report = normfuse.verify(moments(), moments(exact=True), inputs=far_from_zero())
    assert report.result == "agree", report.message
    assert not any(run.passed for run in report.runs)


@pytest.mark.parametrize("fault", [{"epsilon": 1e-3}, {"factor": 1.01}], ids=str)
def test_a_fault_beside_an_inexact_variance_is_found(fault: dict[str, Any]) -> None:
    report = normfuse.verify(moments(), moments(**fault, exact=True), inputs=far_from_zero())
    assert report.result == "differ"


def test_an_input_that_is_an_output_keeps_its_shape() -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17]> g (float[4,3] x, float[3] w) => (float[4,3] y, float[4,3] x) '
        "{ y = LayerNormalization(x, w) }"
    )
    model.graph.output[1].type.tensor_type.ClearField("shape")
    assert normfuse.verify(model, model).passed


def parsed(body: str, opset: int = 17, constants: str = "") -> onnx.ModelProto:
    header = f'<ir_version: 9, opset_import: ["": {opset}]> g (float[n,8] x) => (float[n,8] y) {constants}'
    return onnx.parser.parse_model(f"{header} {{ {body} }}")


def test_names_may_stand_for_other_values_in_two_files() -> None:
    """As of an exporter that numbers what it writes."""
    first = parsed("v1 = Relu(x) v2 = Neg(v1) v3 = Exp(v2) y = Sqrt(v3)")
    other = parsed("v1 = Identity(x) v2 = Relu(v1) v3 = Neg(v2) v4 = Exp(v3) y = Sqrt(v4)")
    report = normfuse.verify(first, other)
    assert report.result == "agree", report.message
    wrong = parsed("v1 = Identity(x) v2 = Relu(v1) v3 = Neg(v2) v4 = Sigmoid(v3) y = Sqrt(v4)")
    assert normfuse.verify(first, wrong).result == "differ"


def test_a_node_of_another_version_is_another_one() -> None:
    """Of [n, 2, 4] Softmax normalises all that follows axis 1 before opset 13, and that axis alone from then on."""
    body = "s = Constant<value_ints = [-1, 2, 4]>() t = Constant<value_ints = [-1, 8]>() "
    body += "r = Reshape(x, s) m = Softmax<axis = 1>(r) y = Reshape(m, t)"
    assert normfuse.verify(parsed(body, 12), parsed(body, 12)).result == "agree"
    assert normfuse.verify(parsed(body, 12), parsed(body, 13)).result == "differ"


@pytest.mark.parametrize("overridable", [False, True])
def test_another_constant_is_found_wherever_it_is(overridable: bool) -> None:
    """Also one that a run may replace, and an output that is one."""

    def model(number: float) -> onnx.ModelProto:
        made = parsed("y = Add(x, c)", constants=f"<float c = {{{number}}}>")
        kind = onnx.helper.make_tensor_value_info("c", TensorProto.FLOAT, [])
        (made.graph.input if overridable else made.graph.output).append(kind)
        return made

    assert normfuse.verify(model(1), model(1)).result == "agree"
    report = normfuse.verify(model(1), model(1.001))
    assert report.result == "differ"
    assert report.first_difference == "y"


def repeated(factor: float) -> onnx.ModelProto:
    """What float64 is not tried on: a loop."""
    body = f"next = Identity(on) f = Constant<value_float = {factor}>() z = Mul(a, f)"
    return parsed(
        "steps = Constant<value = int64 {3}>() go = Constant<value = bool {1}>() y = Loop(steps, go, x) "
        f"<body = b (int64 i, bool on, float[n,8] a) => (bool next, float[n,8] z) {{ {body} }}>"
    )


def test_of_what_cannot_be_computed_exactly_the_outputs_decide() -> None:
    assert normfuse.verify(repeated(0.5), repeated(0.5 + 1e-5)).result == "agree"
    report = normfuse.verify(repeated(0.5), repeated(0.5 + 1e-3))
    assert report.result == "differ"
    assert report.first_difference == "y"
    assert normfuse.verify(repeated(0.5), repeated(0.5 + 1e-3), max_error=0.01).result == "agree"


def test_sites_are_compared_in_batches_that_fit_into_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("normfuse.verification.memory._BATCH_BYTES", 20_000)
    original = models.transformer_encoder(layers=2, hidden=32)
    optimized = normfuse.optimize(original, verify=False).model
    report = normfuse.verify(original, optimized)
    assert report.diff_sites is not None
    assert (report.diff_sites.found, report.diff_sites.right, report.samples) == (9, 9, 4)
    faulty = onnx.ModelProto.FromString(optimized.SerializeToString())
    node = [node for node in faulty.graph.node if "LayerNormalization" in node.op_type][-1]
    scale = next(tensor for tensor in faulty.graph.initializer if tensor.name in node.input and len(tensor.dims))
    scale.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(scale) * np.float32(1.01), scale.name))
    assert normfuse.verify(original, faulty).first_difference == node.output[0]


MASKED = """<ir_version: 9, opset_import: ["": 20]> g (float[N, S, 32] x) => (float[N, S, 32] y) {{
    l = LayerNormalization <axis = -1> (x, scale, bias) y = {last} }}"""


@pytest.mark.parametrize("last", ["Where(keep, l, fill)", "Add(l, mask)"])
@pytest.mark.parametrize("fill", [-1e9, -3.4e38])
def test_what_fills_a_tensor_hides_no_fault(last: str, fill: float) -> None:
    keep = np.arange(32) < 20
    constants = {"keep": keep, "fill": np.float32(fill), "mask": np.where(keep, 0, fill).astype(np.float32)}
    model = onnx.parser.parse_model(MASKED.format(last=last))
    rng = np.random.default_rng(0)
    constants |= {name: rng.normal(size=32).astype(np.float32) for name in ("scale", "bias")}
    used = {name for node in model.graph.node for name in node.input}
    for name in used & constants.keys():
        model.graph.initializer.append(numpy_helper.from_array(np.asarray(constants[name]), name))
    for optimized in (normfuse.optimize(model, verify=False).model, copy.deepcopy(model)):
        assert normfuse.verify(model, optimized).result == "agree"
        (scale,) = (tensor for tensor in optimized.graph.initializer if tensor.name == "scale")
        scale.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(scale) * np.float32(1.5), "scale"))
        assert normfuse.verify(model, optimized).result == "differ"


def test_a_fault_that_no_output_shows_is_found_in_what_was_optimized() -> None:
    """The value has the original's name, and there it is another one."""
    text = """<ir_version: 9, opset_import: ["": 20]> g (float[N, 32] x) => (float[N, 32] y) <float six = {6}> {
        l = LayerNormalization <axis = -1> (x, scale, bias) s = Sub(l, x) t = Tanh(s) rare = Greater(x, six)
        y = Where(rare, t, x) }"""
    model = onnx.parser.parse_model(text)
    rng = np.random.default_rng(0)
    for name in ("scale", "bias"):
        model.graph.initializer.append(numpy_helper.from_array(rng.normal(size=32).astype(np.float32), name))
    faulty = normfuse.optimize(model, verify=False).model
    assert normfuse.verify(model, faulty).result == "agree"
    for tensor in faulty.graph.initializer:
        if tensor.name == "scale":
            tensor.CopyFrom(numpy_helper.from_array(-numpy_helper.to_array(tensor), "scale"))
    assert normfuse.verify(model, faulty).result == "differ"


def of_text(graph: str, **constants: Any) -> onnx.ModelProto:
    model = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["": 20]> g {graph}')
    for name, value in constants.items():
        model.graph.initializer.append(numpy_helper.from_array(np.asarray(value), name))
    return model


RNG = np.random.default_rng(0)
ONES, TABLE = np.ones(64, np.float32), RNG.normal(size=(30_000, 64)).astype(np.float32)
WRONG_ROW = np.where(np.arange(30_000)[:, None] == 12_345, TABLE[:, ::-1], TABLE)
NORM = "(float[N,64] x) => (float[N,64] y) {{ n = LayerNormalization<epsilon = {}>(x, w, w) y = Clip(n, low, high) }}"
LOOKED_UP = "(int64[N,S] ids) => (float[N,S,64] y) { e = Gather(t, ids) y = LayerNormalization(e, w, w) }"
BOUNDS = {"low": np.float32(-4), "high": np.float32(4)}
BRANCHES = """(float[N,64] x, bool[1] on) => (float[N,64] y) { h = Cast<to = 10>(x) f = Cast<to = 1>(h)
    n = If(on) <then_branch = t () => (float[N,64] a) { a = LayerNormalization(f, w, b) },
    else_branch = e () => (float[N,64] d) { d = LayerNormalization(f, w, b) }> y = Tanh(n) }"""
LOOPED = """(float[N,64] x) => (float[N,64] y) { k = Constant<value = int64 {3}>() go = Constant<value = bool {1}>()
    l = Loop(k, go, x) <body = b (int64 i, bool on, float[N,64] a) => (bool next, float[N,64] z) {
    next = Identity(on) z = LayerNormalization(a, w, b) }> h = Cast<to = 10>(l) y = Cast<to = 1>(h) }"""
SLIGHTLY_OTHER = ({"w": ONES, "b": ONES / 3}, {"w": ONES * np.float32(1.003), "b": ONES / 3})
# The original and the fault: text and constants of each.
NO_SAMPLE_SHOWS: dict[str, tuple[tuple[str, dict[str, Any]], tuple[str, dict[str, Any]], str]] = {
    "bound": (
        (NORM.format(1e-5), {"w": ONES, **BOUNDS}),
        (NORM.format(1e-5), {"w": ONES, **BOUNDS, "high": np.float32(80)}),
        "differ",
    ),
    "epsilon": (
        (NORM.format(1e-6), {"w": ONES, **BOUNDS}),
        (NORM.format(1e-12), {"w": ONES, **BOUNDS}),
        "differ",
    ),
    "row": ((LOOKED_UP, {"w": ONES, "t": TABLE}), (LOOKED_UP, {"w": ONES, "t": WRONG_ROW}), "differ"),
    "branch": ((BRANCHES, SLIGHTLY_OTHER[0]), (BRANCHES, SLIGHTLY_OTHER[1]), "differ"),
    # What is exact is not known in loops.
    "loop": ((LOOPED, SLIGHTLY_OTHER[0]), (LOOPED, SLIGHTLY_OTHER[1]), "undecided"),
}


@pytest.mark.parametrize("case", NO_SAMPLE_SHOWS)
def test_what_no_sample_shows_and_float16_elsewhere_hides_is_found(case: str) -> None:
    (text, constants), (other, its), expected = NO_SAMPLE_SHOWS[case]
    original, faulty = of_text(text, **constants), of_text(other, **its)
    assert normfuse.optimize(original).report.verification.result == "agree"  # type: ignore[union-attr]
    for model in (faulty, normfuse.optimize(faulty, verify=False).model):
        assert normfuse.verify(original, model).result == expected
