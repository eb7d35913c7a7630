"""normfuse.optimize and normfuse.inspect: every form of model, nothing changed that was given."""

from __future__ import annotations

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
from onnx import helper, numpy_helper

import normfuse
from normfuse import models
from normfuse.cli.schema import json_schema
from normfuse.optimization.checking import check
from normfuse.optimization.optimize import Target
from normfuse.reports.files import json_text, write_report


def schema() -> Any:
    return json_schema("report")


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
    for given, kind in [
        (path, onnx.ModelProto),
        (str(path), onnx.ModelProto),
        (path.read_bytes(), bytes),
        (transformer, onnx.ModelProto),
        (ir.from_proto(transformer), ir.Model),
    ]:
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
    assert report.verification is not None
    assert report.verification.passed
    jsonschema.validate(json.loads(json_text(report.to_dict())), schema())


def test_a_failed_report_fits_the_schema_too(transformer: onnx.ModelProto, tmp_path: Path) -> None:
    with pytest.raises(normfuse.OptimizationError) as raised:
        normfuse.optimize(transformer, max_error=0.0)
    write_report(raised.value.report.to_dict(), tmp_path / "report.json")
    data = json.loads((tmp_path / "report.json").read_text())
    jsonschema.validate(data, schema())
    assert data["verification"]["passed"] is False
    assert [p.name for p in tmp_path.iterdir()] == ["report.json"]


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
    assert result.report.verification is not None
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
    ("arguments", "words"),
    [
        ({"target": "fastest"}, "target is 'fastest'; it must be portable, custom-op or standard"),
        ({"require_fused": -1}, "require_fused is '-1'"),
        ({"samples": 0}, "samples is 0"),
        ({"max_error": -1.0}, "max_error is -1.0"),
        ({"max_error": float("nan")}, "max_error is nan"),
        ({"inputs": []}, "inputs is empty"),
    ],
)
def test_bad_arguments(transformer: onnx.ModelProto, arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(normfuse.OptionError, match=words):
        normfuse.optimize(transformer, **arguments)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"verify": "no"}, r"verify is 'no' \(str\); it must be True or False"),
        ({"samples": "4"}, r"samples is '4' \(str\); it must be a whole number or None"),
        ({"samples": True}, r"samples is True \(bool\)"),
        ({"max_error": "1e-3"}, r"max_error is '1e-3' \(str\); it must be a number or None"),
        ({"verify_seconds": None}, r"verification is None \(NoneType\); it must be a number\."),
        ({"allow_requantization_removal": 1}, r"allow_requantization_removal is 1 \(int\)"),
        ({"progress": "bar"}, r"progress is 'bar' \(str\); it must be a function or None"),
        ({"inputs": 3}, r"inputs is or holds 3 \(int\); it must be a path"),
        ({"inputs": [np.zeros(3)]}, r"inputs is or holds array\(.*\) \(ndarray\)"),
    ],
)
def test_arguments_of_wrong_types(transformer: onnx.ModelProto, arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(TypeError, match=words) as raised:
        normfuse.optimize(transformer, **arguments)
    assert isinstance(raised.value, normfuse.OptionError)


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
    nodes = [helper.make_node("LayerNormalization", ["a", "scale"], ["n"]), helper.make_node("Gelu", ["n"], ["b"])]
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid("local", 1)]
    function = helper.make_function("local", "Block", ["a", "scale"], ["b"], nodes, opsets[:1])
    call = helper.make_node("Block", ["x", "scale"], ["y"], domain="local")
    x, y = (helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["n", 16]) for name in "xy")
    scale = numpy_helper.from_array(np.ones(16, np.float32), "scale")
    graph = helper.make_graph([call], "main", [x], [y], [scale])
    model = helper.make_model(graph, opset_imports=opsets, functions=[function], ir_version=9)
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
        assert report.verification is not None
        assert report.verification.passed
        assert len(report.fused) >= 3


def test_models_too_large_for_one_message(
    transformer: onnx.ModelProto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit of 2 GB, lowered to what a test can afford: weights go through files, not through one message."""
    monkeypatch.setattr("normfuse.files.model_files.PROTOBUF_LIMIT", 10_000)
    result = normfuse.optimize(ir.from_proto(transformer))
    assert result.report.verification is not None
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


@pytest.mark.parametrize("typed", [True, False])
@pytest.mark.parametrize("external", [True, False])
def test_outputs_that_are_maps_stay_maps(typed: bool, external: bool, tmp_path: Path) -> None:
    """Classifiers of scikit-learn end in a ZipMap; onnx_ir has no maps."""
    g = models.GraphBuilder(opset=17)
    x = g.input("x", [4, 32])
    n = g.add("LayerNormalization", g.add("MatMul", x, g.weight(32, 32)), g.weight(32), g.weight(32), axis=-1)
    g.output(g.add("Relu", n), [4, 32])
    model = g.model("m")
    (y,) = (output.name for output in model.graph.output)
    node = helper.make_node("ZipMap", [y], ["classes"], domain="ai.onnx.ml", classlabels_int64s=list(range(32)))
    model.graph.node.append(node)
    model.opset_import.append(helper.make_opsetid("ai.onnx.ml", 1))
    output = model.graph.output.add(name="classes")
    if typed:
        one = output.type.sequence_type.elem_type.map_type
        one.key_type, one.value_type.tensor_type.elem_type = onnx.TensorProto.INT64, onnx.TensorProto.FLOAT
    path = tmp_path / "model.onnx"
    onnx.save(model, path, save_as_external_data=external, location="weights", size_threshold=100)
    result = normfuse.optimize(path)
    assert result.report.verification is not None
    assert result.report.verification.result == "agree"
    assert len(result.report.fused) == 1
    result.save(tmp_path / "fused.onnx")
    for written in (result.model, onnx.load(tmp_path / "fused.onnx")):
        assert written.graph.output[1] == output
    given = {"x": np.ones((4, 32), np.float32)}
    expected = onnxruntime.InferenceSession(path).run(["classes"], given)[0]
    for session in (normfuse.InferenceSession(path), onnxruntime.InferenceSession(tmp_path / "fused.onnx")):
        found = session.run(["classes"], given)[0]
        assert [list(one) for one in found] == [list(one) for one in expected]
        np.testing.assert_allclose(
            [list(one.values()) for one in found], [list(one.values()) for one in expected], 1e-4
        )


def test_inputs_that_are_maps_stay_maps() -> None:
    g = models.GraphBuilder(opset=17)
    x = g.input("x", ["batch", 32])
    g.output(g.add("Relu", g.add("LayerNormalization", x, g.weight(32), g.weight(32), axis=-1)), ["batch", 32])
    model = g.model("m")
    model.opset_import.append(helper.make_opsetid("ai.onnx.ml", 1))
    model.graph.node.insert(
        0, helper.make_node("CastMap", ["words"], ["x"], domain="ai.onnx.ml", map_form="SPARSE", max_map=32)
    )
    model.graph.input[0].name = "words"
    model.graph.input[0].type.map_type.key_type = onnx.TensorProto.INT64
    model.graph.input[0].type.map_type.value_type.tensor_type.elem_type = onnx.TensorProto.FLOAT
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
