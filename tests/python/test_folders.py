"""A folder of models: each for itself, and nothing half-written."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import jsonschema
import onnx
import onnx_ir as ir
import pytest

import normfuse
from normfuse import folders, models
from normfuse.cli import main
from normfuse.cli.schema import json_schema
from normfuse.graph_rewrites.forms.functions import FunctionLibrary
from normfuse.graph_rewrites.spellings.decomposed_activations import DecomposedActivation


@pytest.fixture
def zoo(tmp_path: Path) -> Path:
    """Two models that can be optimised, one of them further down, and one that is truncated."""
    folder = tmp_path / "modèles"
    (folder / "inner").mkdir(parents=True)
    onnx.save(models.chain([2, 8], spelling="pow_div", opset=13), folder / "norm.onnx")
    onnx.save(models.chain([2, 8], None, activation_name="gelu_erf", opset=13), folder / "inner" / "gelu.onnx")
    (folder / "cut.onnx").write_bytes((folder / "norm.onnx").read_bytes()[:-50])
    (folder / "notes.txt").write_text("not a model")
    return folder


def files(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def command(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    monkeypatch.setattr(sys, "argv", ["normfuse", "optimize", *map(str, arguments)])
    monkeypatch.setenv("COLUMNS", "120")
    try:
        main()
    except SystemExit as stop:
        return int(stop.code or 0)
    return 0


def test_every_model_for_itself(zoo: Path, tmp_path: Path) -> None:
    before = files(zoo)
    told: list[tuple[str, int, int]] = []
    output = tmp_path / "out"
    rows = folders.optimize_folder(zoo, output, engine="local", progress=lambda *state: told.append(state))

    assert [(row["model"], row["status"], row["fused"]) for row in rows] == [
        ("cut.onnx", "invalid", 0),
        ("inner/gelu.onnx", "written", 1),
        ("norm.onnx", "written", 1),
    ]
    assert "cut.onnx is truncated" in rows[0]["message"]
    for row in rows[1:]:
        assert row["error"] is not None
        assert row["error"] < 1e-5
        assert row["bytes_written"] == (output / row["model"]).stat().st_size
        assert normfuse.verify(zoo / row["model"], output / row["model"]).passed
        report = json.loads((output / f"{row['model']}.json").read_text())
        assert report["operators_before"] != report["operators_after"]
    assert files(output) == ["inner/gelu.onnx", "inner/gelu.onnx.json", "norm.onnx", "norm.onnx.json"]
    assert files(zoo) == before
    assert told[0] == ("starting", 0, 3)
    assert [done for _, done, _ in told] == [0, 1, 2, 3]


def test_the_command_exits_with_the_worst(
    zoo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(monkeypatch, zoo, "-o", tmp_path / "out", "--engine", "local") == 2
    text = capsys.readouterr().out
    assert "cut.onnx is truncated" in text
    assert "inner/gelu.onnx" in text
    assert "Wrote 2 of 3 models" in text

    (zoo / "cut.onnx").unlink()
    assert command(monkeypatch, zoo, "-o", tmp_path / "all", "--engine", "local", "--json") == 0
    data = json.loads(capsys.readouterr().out)
    schema = json_schema("folder")
    jsonschema.validate(data, schema)
    assert [row["status"] for row in data["models"]] == ["written", "written"]

    assert command(monkeypatch, zoo, "-o", tmp_path / "none", "--engine", "local", "--require-fused", "2") == 1
    assert "1 sites are fused, and 2 were required" in capsys.readouterr().out
    assert files(tmp_path / "none") == []


@pytest.mark.parametrize("fault", [KeyError("y"), MemoryError()])
def test_a_fault_of_normfuse_is_that_of_one_model(
    zoo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], fault: Exception
) -> None:
    """A rule that raises leaves its site; whatever raises outside of the rules leaves its model."""
    (zoo / "cut.onnx").unlink()
    call = FunctionLibrary.call

    def failing(self: FunctionLibrary, node: ir.Node, opset: int) -> None:
        if node.op_type == "FusedActivation":
            raise fault
        call(self, node, opset)

    def broken(self: DecomposedActivation, *arguments: object, **named: object) -> None:
        raise fault

    monkeypatch.setattr(FunctionLibrary, "call", failing)
    assert command(monkeypatch, zoo, "-o", tmp_path / "out", "--engine", "local", "--json") == 1
    data = json.loads(capsys.readouterr().out)
    jsonschema.validate(data, json_schema("folder"))
    assert [(row["model"], row["status"]) for row in data["models"]] == [
        ("inner/gelu.onnx", "failed"),
        ("norm.onnx", "written"),
    ]
    message = data["models"][0]["message"]
    assert message.startswith(str(zoo / "inner" / "gelu.onnx"))
    assert ("KeyError: 'y'. This is a fault of normfuse" if isinstance(fault, KeyError) else "memory") in message
    assert files(tmp_path / "out") == ["norm.onnx", "norm.onnx.json"]

    monkeypatch.setattr(FunctionLibrary, "call", call)
    monkeypatch.setattr(DecomposedActivation, "check", broken)
    rows = folders.optimize_folder(zoo, tmp_path / "again", engine="local")
    assert [(row["status"], row["fused"], row["sites"]) for row in rows] == [("written", 0, 1), ("written", 1, 1)]


def test_results_do_not_come_to_lie_among_the_models(zoo: Path, tmp_path: Path) -> None:
    before = files(tmp_path)
    for output in (zoo, zoo / "inner", zoo / "new"):
        with pytest.raises(normfuse.OptionError, match="name another folder"):
            folders.optimize_folder(zoo, output)
    with pytest.raises(normfuse.OptionError, match=r"norm\.onnx is a file"):
        folders.optimize_folder(zoo / "inner", zoo / "norm.onnx")
    with pytest.raises(normfuse.OptionError, match="is not a folder"):
        folders.optimize_folder(tmp_path / "absent", tmp_path / "out")
    (tmp_path / "empty").mkdir()
    with pytest.raises(normfuse.OptionError, match=r"empty holds no \*\.onnx file"):
        folders.optimize_folder(tmp_path / "empty", tmp_path / "out")
    assert files(tmp_path) == before
    assert not (tmp_path / "out").exists()


def test_an_engine_that_is_not_there(zoo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folders, "find_spec", lambda name: None)
    with pytest.raises(normfuse.OptionError, match="Ray is not installed"):
        folders.optimize_folder(zoo, tmp_path / "out", engine="ray")
    assert len(folders.optimize_folder(zoo, tmp_path / "out")) == 3


@pytest.mark.parametrize("option", [("--inputs", "x.npz"), ("--report", "r.json"), ("--measure", "1")])
def test_options_for_one_model(
    option: tuple[str, str],
    zoo: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert command(monkeypatch, zoo, "-o", tmp_path / "out", *option) == 2
    assert f"{option[0]} is for one model" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
