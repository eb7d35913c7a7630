"""normfuse.optimize and normfuse.inspect: every form of model, nothing changed that was given."""

import hashlib
import json
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from onnx import numpy_helper

import normfuse
from normfuse import models
from normfuse.cli.schema import json_schema
from normfuse.optimization.checking import check
from normfuse.optimization.extraction import extract_site
from normfuse.optimization.optimize import Target
from normfuse.reports.files import json_text
from normfuse.verification.between import values_between
from normfuse.verification.samples import reference


@pytest.fixture(scope="module")
def transformer() -> onnx.ModelProto:
    return models.transformer_encoder(layers=1, hidden=32)


def digest(model: Any) -> str:
    proto = ir.to_proto(model) if isinstance(model, ir.Model) else model
    return hashlib.sha256(proto.SerializeToString(deterministic=True)).hexdigest()


def fused_nodes(proto: onnx.ModelProto) -> int:
    return sum(node.domain == "ai.normfuse" for node in proto.graph.node)


def test_every_form_of_model_gives_its_own_kind(transformer: onnx.ModelProto, tmp_path: Path) -> None:
    path = tmp_path / "modèle.onnx"
    onnx.save(transformer, path)
    for given in (path, str(path), path.read_bytes(), transformer, ir.from_proto(transformer)):
        kind = onnx.ModelProto if isinstance(given, str | Path) else type(given)
        before = digest(given) if not isinstance(given, (str, bytes, Path)) else ""
        result = normfuse.optimize(given, verify=False)
        assert isinstance(result.model, kind)
        assert result.model is not given
        if before:
            assert digest(given) == before
        model = result.model
        proto = ir.to_proto(model) if isinstance(model, ir.Model) else model
        proto = onnx.ModelProto.FromString(proto) if isinstance(proto, bytes) else proto
        assert fused_nodes(proto) == len(result.report.fused) == 4
        onnx.checker.check_model(proto)
    assert path.read_bytes() == transformer.SerializeToString()


def test_an_exported_program_gives_a_program(transformer: onnx.ModelProto, tmp_path: Path) -> None:
    class Program:  # what torch.onnx.export returns, as far as it matters here
        def __init__(self, model: ir.Model) -> None:
            self.model = model
            self.exported_program = "kept"

    program = Program(ir.from_proto(transformer))
    model, before = program.model, digest(program.model)
    result = normfuse.optimize(program, verify=False)  # type: ignore[arg-type]
    assert isinstance(result.model, Program)
    assert result.model.exported_program == "kept"
    assert fused_nodes(ir.to_proto(result.model.model)) == 4
    assert program.model is model
    assert digest(model) == before
    result.save(tmp_path / "out.onnx")
    assert fused_nodes(onnx.load(tmp_path / "out.onnx")) == 4


def test_the_report_says_what_was_done(transformer: onnx.ModelProto, tmp_path: Path) -> None:
    result = normfuse.optimize(transformer)
    report = result.report
    assert len(report.fused) == 4
    assert report.operators_before["ReduceMean"] == 6
    assert "ReduceMean" not in report.operators_after
    assert sum(report.operators_after.values()) < sum(report.operators_before.values())
    assert report.bytes_before == transformer.ByteSize()
    assert report.bytes_after == result.save(tmp_path / "out.onnx") == (tmp_path / "out.onnx").stat().st_size
    assert report.verification.passed
    with pytest.raises(normfuse.OptimizationError) as raised:
        normfuse.optimize(transformer, max_error=0.0)
    for each, passed in ((report, True), (raised.value.report, False)):
        data = json.loads(json_text(each.to_dict()))
        jsonschema.validate(data, json_schema("report"))
        assert data["verification"]["passed"] is passed


def test_optimising_twice_changes_nothing(transformer: onnx.ModelProto) -> None:
    once = normfuse.optimize(transformer, verify=False).model
    twice = normfuse.optimize(once, verify=False)
    assert twice.report.operators_before == twice.report.operators_after
    assert digest(twice.model) == digest(once)


def test_external_data_stays_external(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    model = models.transformer_encoder(layers=1, hidden=64)
    onnx.save(model, path, save_as_external_data=True, location="weights.bin", size_threshold=512)
    weights = (tmp_path / "weights.bin").read_bytes()
    result = normfuse.optimize(path)
    assert result.report.verification.passed
    assert any(t.data_location == onnx.TensorProto.EXTERNAL for t in result.model.graph.initializer)
    target = tmp_path / "elsewhere" / "out.onnx"
    target.parent.mkdir()
    result.save(target)
    assert target.stat().st_size < 40_000
    assert normfuse.verify(path, target).passed
    assert (tmp_path / "weights.bin").read_bytes() == weights


def test_requirements_on_the_number_of_sites(transformer: onnx.ModelProto) -> None:
    assert normfuse.optimize(transformer, verify=False, require_fused=4).report
    assert normfuse.optimize(transformer, verify=False, require_fused="all").report
    with pytest.raises(normfuse.OptimizationError, match="4 sites are fused, and 5 were required") as raised:
        normfuse.optimize(transformer, require_fused=5)
    assert len(raised.value.report.fused) == 4


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"target": "fastest"}, ValueError, "target is 'fastest'; it must be portable, custom-op or standard"),
        ({"require_fused": -1}, ValueError, "require_fused is '-1'"),
        ({"samples": 0}, ValueError, "samples is 0"),
        ({"max_error": -1.0}, ValueError, "max_error is -1.0"),
        ({"max_error": float("nan")}, ValueError, "max_error is nan"),
        ({"inputs": []}, ValueError, "inputs is empty"),
        ({"verify": "no"}, TypeError, r"verify is 'no' \(str\); it must be True or False"),
        ({"samples": "4"}, TypeError, r"samples is '4' \(str\); it must be a whole number or None"),
        ({"samples": True}, TypeError, r"samples is True \(bool\)"),
        ({"max_error": "1e-3"}, TypeError, r"max_error is '1e-3' \(str\); it must be a number or None"),
        ({"verify_seconds": None}, TypeError, r"verification is None \(NoneType\); it must be a number\."),
        ({"allow_requantization_removal": 1}, TypeError, r"allow_requantization_removal is 1 \(int\)"),
        ({"progress": "bar"}, TypeError, r"progress is 'bar' \(str\); it must be a function or None"),
        ({"inputs": 3}, TypeError, r"inputs is or holds 3 \(int\); it must be a path"),
        ({"inputs": [np.zeros(3)]}, TypeError, r"inputs is or holds array\(.*\) \(ndarray\)"),
        ({"tune": 0.0}, ValueError, "tune is 0.0; it must be a number of seconds above 0"),
        ({"tune": float("inf")}, ValueError, "tune is inf"),
        ({"tune": "long"}, ValueError, "tune is 'long'"),
        ({"tune": 1.0, "tune_threads": -1}, ValueError, "tune_threads is -1"),
        ({"tune": 1.0, "tune_threads": 100_000}, ValueError, "is 100000; it must be a number from 0 .* to 1024"),
        ({"tune": 1.0, "target": "custom-op"}, ValueError, "use the target portable or standard"),
    ],
)
def test_bad_arguments(
    transformer: onnx.ModelProto, arguments: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(normfuse.OptionError, match=words) as raised:
        normfuse.optimize(transformer, **arguments)
    assert isinstance(raised.value, error)


def test_numbers_of_numpy_are_numbers(transformer: onnx.ModelProto) -> None:
    given = {"samples": np.int64(1), "max_error": np.float32(0.01), "verify_seconds": np.float64(60)}
    assert normfuse.optimize(transformer, **given).report.verification is not None


def test_results_are_shown_in_one_line(transformer: onnx.ModelProto) -> None:
    result = normfuse.optimize(transformer, samples=1)
    assert repr(result) == (
        "<OptimizationResult: <OptimizationReport of the model: target portable, 4 of 4 sites fused, "
        "verification: agree>>"
    )
    for report in (result.report, result.report.verification, check(result.model, original=transformer)):
        assert len(repr(report)) < 200


def test_check_takes_fused_nodes_without_names() -> None:
    """Also such as are only there for another output than the first."""
    g = models.GraphBuilder(opset=17)
    x = g.add("Add", g.input("x", [2, 8]), g.input("residual", [2, 8]))
    g.output(x, [2, 8])
    n = g.add("LayerNormalization", x, g.weight(8), g.weight(8), axis=-1)
    g.output(g.add("Relu", n), [2, 8])
    fused = normfuse.optimize(g.model("sum"), verify=False, target="custom-op").model
    (node,) = fused.graph.node
    node.name = ""
    del fused.graph.output[1]
    node.output[0] = ""
    for name in ("", "named"):
        node.name = name
        report = check(fused, require_fused=1)
        assert report.passed, report.remarks
        assert report.fused == 1


@pytest.mark.parametrize("target", ["portable", "custom-op"])
def test_check_finds_fused_nodes_in_functions(target: Target) -> None:
    model = onnx.parser.parse_model("""<ir_version: 9, opset_import: ["": 20, "local": 1]>
        g (float[n, 16] x, float[16] s) => (float[n, 16] y) { y = local.Block (x, s) }
        <opset_import: ["": 20], domain: "local"> Block (a, s) => (b) { n = LayerNormalization (a, s) b = Gelu (n) }""")
    assert not check(model).passed
    report = check(normfuse.optimize(model, verify=False, target=target).model, require_fused=1)
    assert report.passed, report.remarks
    assert report.fused == 1


@pytest.mark.parametrize("steps", ["Normalize axes=-1; Mul s; Add s", "Normalise axes=-1"])
def test_check_does_not_count_nodes_that_cannot_be_run(steps: str) -> None:
    g = models.GraphBuilder(opset=17)
    x, scale = g.input("x", [2, 8]), g.weight(8)
    g.output(g.add("FusedNormalization", x, scale, scale, domain="ai.normfuse", steps=steps), [2, 8])
    report = check(g.model("wrong"), require_fused="all")
    assert not report.passed
    assert report.fused == 0
    (site,) = report.sites
    assert site.reason in ("invalid_configuration", "unknown_step")


def test_bad_weights_give_a_warning_and_masks_do_not(transformer: onnx.ModelProto) -> None:
    broken = onnx.ModelProto.FromString(transformer.SerializeToString())
    tensor = next(t for t in broken.graph.initializer if t.name == "word_embeddings")
    array = numpy_helper.to_array(tensor).copy()
    array[0, 0] = np.nan
    tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    mask = np.where(np.tri(4), 0, -np.inf).astype(np.float32)
    broken.graph.initializer.append(numpy_helper.from_array(mask, "mask"))
    report = normfuse.optimize(broken).report
    assert report.warnings == ("NaN or infinity in 'word_embeddings': if that is not meant, the file may be damaged.",)
    assert normfuse.optimize(transformer, verify=False).report.warnings == ()


def test_inspect_lists_sites_and_changes_nothing(transformer: onnx.ModelProto) -> None:
    before = digest(transformer)
    sites = normfuse.inspect(transformer)
    assert digest(transformer) == before
    assert [site.kind for site in sites].count("LayerNormalization") == 3
    assert all(isinstance(site, normfuse.Site) for site in sites)
    assert sites == list(normfuse.optimize(transformer, verify=False).report.sites)


def test_float16_and_quantised_models() -> None:
    for arguments in ({"dtype": "float16"}, {"quantized": True}):
        report = normfuse.optimize(models.transformer_encoder(layers=1, hidden=32, **arguments)).report
        assert report.verification.passed
        assert len(report.fused) >= 3


def test_models_too_large_for_one_message(
    transformer: onnx.ModelProto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit of 2 GB, lowered to what a test can afford: weights go through files, not through one message."""
    monkeypatch.setattr("normfuse.files.model_files.PROTOBUF_LIMIT", 10_000)
    result = normfuse.optimize(ir.from_proto(transformer))
    assert result.report.verification.passed
    assert isinstance(result.model, ir.Model)
    size = result.save(tmp_path / "large.onnx")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["large.onnx", "large.onnx.data"]
    assert size == sum(p.stat().st_size for p in tmp_path.iterdir())
    with pytest.raises(normfuse.OptionError, match="more than 2 GB"):
        _ = normfuse.optimize(transformer, verify=False).model
    monkeypatch.undo()
    assert normfuse.verify(transformer, tmp_path / "large.onnx").passed


def test_sites_that_stand_alone_are_not_missing() -> None:
    g = models.GraphBuilder(opset=17)
    g.output(g.add("Neg", g.add("Relu", g.add("Neg", g.input("x", ["n", 8])))), ["n", 8])
    report = normfuse.optimize(g.model("alone"), verify=False, require_fused="all").report
    assert [site.reason for site in report.sites] == ["nothing_to_fuse"]
    assert report.left == ()
    assert report.fused == ()


NORM = "m = MatMul (x, w) n = LayerNormalization (m, s, s)"
MAPS = '<ir_version: 9, opset_import: ["": 17, "ai.onnx.ml": 1]> g'


@pytest.mark.parametrize("typed", [True, False])
@pytest.mark.parametrize("external", [True, False])
def test_outputs_that_are_maps_stay_maps(typed: bool, external: bool, tmp_path: Path) -> None:
    """Classifiers of scikit-learn end in a ZipMap; onnx_ir has no maps."""
    zipped = f"c = ai.onnx.ml.ZipMap <classlabels_int64s = {list(range(32))}> (y)"
    model = onnx.parser.parse_model(f"{MAPS} (float[4, 32] x) => (float[4, 32] y) {{ {NORM} y = Relu (n) {zipped} }}")
    for name, array in {"w": np.eye(32, dtype=np.float32), "s": np.ones(32, np.float32)}.items():
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    output = model.graph.output.add(name="c")
    if typed:
        one = output.type.sequence_type.elem_type.map_type
        one.key_type, one.value_type.tensor_type.elem_type = onnx.TensorProto.INT64, onnx.TensorProto.FLOAT
    path = tmp_path / "model.onnx"
    onnx.save(model, path, save_as_external_data=external, location="weights", size_threshold=100)
    result = normfuse.optimize(path)
    assert result.report.verification.result == "agree"
    assert len(result.report.fused) == 1
    result.save(tmp_path / "fused.onnx")
    for written in (result.model, onnx.load(tmp_path / "fused.onnx")):
        assert written.graph.output[1] == output
    given = {"x": np.ones((4, 32), np.float32)}
    plain, ours, fused = (
        session.run(["c"], given)[0]
        for session in (
            *(onnxruntime.InferenceSession(path), normfuse.InferenceSession(path)),
            onnxruntime.InferenceSession(tmp_path / "fused.onnx"),
        )
    )
    for found in (ours, fused):
        for row, expected in zip(found, plain, strict=True):
            assert row == pytest.approx(expected, rel=1e-4)


def test_inputs_that_are_maps_stay_maps() -> None:
    cast = 'x = ai.onnx.ml.CastMap <map_form = "SPARSE", max_map = 32> (words)'
    norm = "n = LayerNormalization (x, s, s) y = Relu (n)"
    model = onnx.parser.parse_model(f"{MAPS} (map(int64, float) words) => (float[b, 32] y) {{ {cast} {norm} }}")
    model.graph.initializer.append(numpy_helper.from_array(np.ones(32, np.float32), "s"))
    result = normfuse.optimize(model, verify=False)
    assert result.model.graph.input[0] == model.graph.input[0]
    with pytest.raises(normfuse.VerificationError, match="'words' is not a tensor"):
        normfuse.optimize(model)
    given = {"words": {1: 0.5, 7: 2.0}}
    expected = onnxruntime.InferenceSession(model.SerializeToString()).run(None, given)[0]
    np.testing.assert_allclose(normfuse.InferenceSession(model).run(None, given)[0], expected, rtol=1e-4, atol=1e-5)


def test_before_version_4_of_the_ir_no_initializer_can_be_fed() -> None:
    """Though each is among the inputs there; a newer version would let it be."""
    model = onnx.parser.parse_model(
        """<ir_version: 3, opset_import: ["": 13]> g (float[2, 4] x, float[4] k) => (float[2, 4] y) <
        float[4] k = {1, 2, 3, 4}> { s = Sigmoid(x) a = Mul(s, x) y = Add(a, k) }"""
    )
    optimized = normfuse.optimize(model).model
    assert [value.name for value in optimized.graph.input] == ["x"]
    session = normfuse.InferenceSession(model.SerializeToString())
    assert not session.get_overridable_initializers()


# --- one site as a model of its own, with the inputs that it has in the whole model ---


@pytest.fixture(scope="module")
def spelled_out() -> onnx.ModelProto:
    return models.transformer_encoder(layers=1, hidden=32, opset=13)


@pytest.mark.parametrize("index", range(4))
def test_a_site_computes_what_it_computes_in_the_whole_model(
    spelled_out: onnx.ModelProto, index: int, tmp_path: Path
) -> None:
    model = spelled_out
    site = [site for site in normfuse.inspect(model) if site.fused_into is not None][index]
    extracted = extract_site(model, site.name)
    assert extracted.site == site
    saved = extracted.save(tmp_path / "site.onnx")
    part = onnx.load(tmp_path / "site.onnx")
    onnx.checker.check_model(part)
    assert {node.name for node in part.graph.node} >= set(site.nodes)
    assert len(part.graph.node) < len(model.graph.node) / 2
    feeds = dict(np.load(saved))
    assert feeds.keys() == {value.name for value in part.graph.input}
    (name,) = extracted.outputs
    whole = ir.from_proto(model)
    fed, _ = reference(whole, "the model", None, 1, 0, typical=True)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(part.SerializeToString(), options)
    np.testing.assert_array_equal(session.run([name], feeds)[0], values_between(whole, [name], fed[0])[name])
    result = normfuse.optimize(tmp_path / "site.onnx", inputs=saved, require_fused=1)
    assert [fused.description for fused in result.report.fused] == [site.description]


def test_sites_that_are_left_and_names_that_numpy_cannot_write(tmp_path: Path) -> None:
    g = models.GraphBuilder(opset=17)
    x = g.add("Neg", g.input("allow_pickle", ["n", 8], np.float64), output="/file")
    g.output(g.add("LayerNormalization", x, np.ones(8), np.zeros(8)), ["n", 8], np.float64)
    model = g.model("double")
    (site,) = normfuse.inspect(model)
    assert site.fused_into is None
    saved = extract_site(model, site.name, inputs={"allow_pickle": np.ones((3, 8))}).save(tmp_path / "left.onnx")
    with np.load(saved) as arrays:
        assert arrays["/file"].tolist() == (-np.ones((3, 8))).tolist()
    assert normfuse.verify(tmp_path / "left.onnx", tmp_path / "left.onnx", inputs=saved).passed


def test_what_cannot_be_extracted(
    spelled_out: onnx.ModelProto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk leaves neither file."""
    name = normfuse.inspect(spelled_out)[0].name
    with pytest.raises(normfuse.OptionError, match=f"no site '{name}x'; did you mean '"):
        extract_site(spelled_out, f"{name}x")
    branched = onnx.parser.parse_model("""<ir_version: 9, opset_import: ["": 17]>
        g (float[4, 8] x, bool c) => (float[4, 8] y) <float[8] s = {1, 1, 1, 1, 2, 2, 2, 2}> {
            y = If (c) <then_branch = t () => (float[4, 8] r) { n = LayerNormalization (x, s) r = Relu (n) },
                else_branch = e () => (float[4, 8] i) { i = Identity (x) }> }""")
    site = next(site for site in normfuse.inspect(branched) if site.graph)
    with pytest.raises(normfuse.OptionError, match="only sites of the main graph"):
        extract_site(branched, site.name)

    def full(path: Path, _: object) -> None:
        path.write_bytes(b"PK")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("normfuse.optimization.extraction._save_arrays", full)
    with pytest.raises(normfuse.OptionError, match=r"Cannot write .*site.npz: No space left on device"):
        extract_site(spelled_out, name).save(tmp_path / "site.onnx")
    assert not list(tmp_path.iterdir())
