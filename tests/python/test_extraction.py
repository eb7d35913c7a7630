"""normfuse inspect --extract: one site as a model of its own, with the inputs that it has in the whole model."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

import normfuse
from normfuse import models
from normfuse.cli import main
from normfuse.optimization.extraction import extract_site
from normfuse.verification.between import values_between
from normfuse.verification.samples import reference


@pytest.fixture(scope="module")
def model() -> onnx.ModelProto:
    return models.transformer_encoder(layers=1, hidden=32, opset=13)


@pytest.mark.parametrize("index", range(4))
def test_a_site_computes_what_it_computes_in_the_whole_model(
    model: onnx.ModelProto, index: int, tmp_path: Path
) -> None:
    sites = [site for site in normfuse.inspect(model) if site.fused_into is not None]
    site = sites[index]
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
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(part.SerializeToString(), options)
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


def test_a_full_disk_leaves_neither_file(
    model: onnx.ModelProto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, _: object) -> None:
        path.write_bytes(b"PK")
        raise OSError(28, "No space left on device")

    extracted = extract_site(model, normfuse.inspect(model)[0].name)
    monkeypatch.setattr("normfuse.optimization.extraction._save_arrays", full)
    with pytest.raises(normfuse.OptionError, match=r"Cannot write .*site.npz: No space left on device"):
        extracted.save(tmp_path / "site.onnx")
    assert not list(tmp_path.iterdir())


def test_what_cannot_be_extracted(model: onnx.ModelProto) -> None:
    name = normfuse.inspect(model)[0].name
    with pytest.raises(normfuse.OptionError, match=f"no site '{name}x'; did you mean '"):
        extract_site(model, f"{name}x")
    g = models.GraphBuilder(opset=17)
    x = g.input("x", [4, 8])
    inner = helper.make_graph(
        [
            helper.make_node("LayerNormalization", [x, g.weight(8)], ["n"], name="inner"),
            helper.make_node("Relu", ["n"], ["r"], name="relu"),
        ],
        "branch",
        [],
        [helper.make_tensor_value_info("r", TensorProto.FLOAT, [4, 8])],
    )
    other = helper.make_graph(
        [helper.make_node("Identity", [x], ["i"])],
        "other",
        [],
        [helper.make_tensor_value_info("i", TensorProto.FLOAT, [4, 8])],
    )
    g.output(g.add("If", g.input("c", [], np.bool_), then_branch=inner, else_branch=other), [4, 8])
    branched = g.model("branched")
    site = next(site for site in normfuse.inspect(branched) if site.graph)
    with pytest.raises(normfuse.OptionError, match="only sites of the main graph"):
        extract_site(branched, site.name)


def test_the_command(
    model: onnx.ModelProto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    onnx.save(model, "model.onnx")
    name = next(site.name for site in normfuse.inspect(model) if site.fused_into is not None)
    monkeypatch.setattr(sys, "argv", ["normfuse", "inspect", "model.onnx", "--extract", name, "-o", "site.onnx"])
    with pytest.raises(SystemExit) as stop:
        main()
    assert not stop.value.code
    out = capsys.readouterr().out
    assert "normfuse optimize site.onnx -o site.fused.onnx --inputs site.npz" in out
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.onnx", "site.npz", "site.onnx"]
    monkeypatch.setattr(sys, "argv", ["normfuse", "inspect", "model.onnx", "-o", "site.onnx"])
    with pytest.raises(SystemExit) as stop:
        main()
    assert stop.value.code == 2
    assert "are for --extract" in capsys.readouterr().err
