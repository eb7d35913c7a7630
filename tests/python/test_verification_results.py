"""The three results of a verification: agree, differ, undecided; the time it takes; and that sites decide."""

import json
import time
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import onnx
import onnx_ir as ir
import pytest
import tiny_bombs
from command import Run
from onnx import TensorProto
from parsed_models import parse

import normfuse
from normfuse import models
from normfuse.cli import console
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
    assert verification.result == "agree", verification.message
    assert verification.error > 0.1
    assert not any(run.passed for run in verification.runs)
    assert "the model amplifies rounding" in verification.message
    found = verification.diff_sites
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
    model = parse(
        """g (float[256,256] x) => (float[256,256] y) { y = Loop(count, true, x) <
        body = b (int64 i, bool go, float[256,256] a) => (bool go_on, float[256,256] c) {
        c = MatMul(a, a) go_on = Identity(go) }> }""",
        17,
        count=np.array(10**9),
        true=np.array(True),
    )
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


def test_the_command_line_writes_undecided_models(run: Run, tmp_path: Path) -> None:
    onnx.save(too_large([1 << 40, 8]), "large.onnx")
    for strict, code in (((), 0), (("--strict",), 3)):
        assert run("optimize", "large.onnx", "-o", "out.onnx", *strict).code == code
        done = run("verify", "large.onnx", "out.onnx", *strict)
        assert done.code == code
        assert "Warning: Undecided: nothing could be compared" in done.err
        assert run("check", "out.onnx", "--original", "large.onnx", *strict).code == code
        Path("out.onnx").unlink()
    rows = optimize_folder(tmp_path, tmp_path.parent / f"{tmp_path.name}.out", engine="local")
    assert [(row["status"], row["result"]) for row in rows] == [("written", "undecided")]
    assert run("optimize", ".", "-o", "../written", "--engine", "local", "--strict").code == 3
    onnx.save(chaotic(), "speech.onnx")
    onnx.save(chaotic(weight=1.1), "other.onnx")
    assert run("verify", "speech.onnx", "other.onnx").code == 1


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
        text = f"""g (float[4] x) => (float[4] z) {{ m = Mul(x, w) y = LeakyRelu<alpha = {alpha}>(m)
            t = ReduceSum<keepdims = 0>(y) condition = Greater(t, zero) z = If(condition) <
            then_branch = a () => (float[4] u) {{ c = Constant<value_float = {inner}>() u = Add(y, c) }},
            else_branch = b () => (float[4] v) {{ d = Constant<value_float = {inner}>() v = Add(y, d) }}> }}"""
        return ir.from_proto(parse(text, 17, w=np.full(4, weight, np.float32), zero=np.array(0, np.float32)))

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
def test_inputs_too_large_to_be_made(shape: list[int], run: Run, tmp_path: Path) -> None:
    onnx.save(too_large(shape), tmp_path / "large.onnx")
    done = run("optimize", "large.onnx", "-o", "fused.onnx", "--strict")
    assert done.code == 3
    assert (tmp_path / "fused.onnx").exists()
    assert f"'x' of shape {shape} would take" in " ".join(done.err.split())


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
    assert report.result == ("agree" if fits else "undecided")
    assert bool(opened) == fits
    if not fits:
        assert "'s29' of shape [1073741824] would take 8 GiB of memory" in (report.undecided_because or "")
