"""A folder of models: each for itself, and nothing half-written."""

import json
from pathlib import Path
from typing import Any

import onnx
import pytest
from command import Run, files

import normfuse
from normfuse import folders, models
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


def test_every_model_for_itself(zoo: Path, tmp_path: Path) -> None:
    before, output = files(zoo), tmp_path / "out"
    told: list[tuple[str, int, int]] = []
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


def test_the_command_exits_with_the_worst(run: Run, zoo: Path, tmp_path: Path) -> None:
    done = run("optimize", zoo, "-o", "out", "--engine", "local")
    assert done.code == 2
    for words in ("cut.onnx is truncated", "inner/gelu.onnx", "Wrote 2 of 3 models"):
        assert words in done.out
    (zoo / "cut.onnx").unlink()
    data = run.document("folder", "optimize", zoo, "-o", "all", "--engine", "local")
    assert [row["status"] for row in data["models"]] == ["written", "written"]
    done = run("optimize", zoo, "-o", "none", "--engine", "local", "--require-fused", "2")
    assert done.code == 1
    assert "1 sites are fused, and 2 were required" in done.out
    assert files(tmp_path / "none") == []


@pytest.mark.parametrize("fault", [KeyError("y"), MemoryError()])
def test_a_fault_of_normfuse_is_that_of_one_model(
    run: Run, zoo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: Exception
) -> None:
    """A rule that raises leaves its site; whatever raises outside of the rules leaves its model."""
    (zoo / "cut.onnx").unlink()
    call = FunctionLibrary.call

    def failing(library: FunctionLibrary, node: Any, opset: int) -> None:
        if node.op_type == "FusedActivation":
            raise fault
        call(library, node, opset)

    def broken(*_: object, **__: object) -> None:
        raise fault

    monkeypatch.setattr(FunctionLibrary, "call", failing)
    data = run.document("folder", "optimize", zoo, "-o", "out", "--engine", "local", code=1)
    found = [(row["model"], row["status"]) for row in data["models"]]
    assert found == [("inner/gelu.onnx", "failed"), ("norm.onnx", "written")]
    message = data["models"][0]["message"]
    assert message.startswith(str(zoo / "inner" / "gelu.onnx"))
    assert ("KeyError: 'y'. This is a fault of normfuse" if isinstance(fault, KeyError) else "memory") in message
    assert files(tmp_path / "out") == ["norm.onnx", "norm.onnx.json"]

    monkeypatch.setattr(FunctionLibrary, "call", call)
    monkeypatch.setattr(DecomposedActivation, "check", broken)
    rows = folders.optimize_folder(zoo, tmp_path / "again", engine="local")
    assert [(row["status"], row["fused"], row["sites"]) for row in rows] == [("written", 0, 1), ("written", 1, 1)]


def test_folders_that_do_not_fit(zoo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "empty").mkdir()
    before = files(tmp_path)
    for source, output, words in (
        *((zoo, output, "name another folder") for output in (zoo, zoo / "inner", zoo / "new")),
        (zoo / "inner", zoo / "norm.onnx", r"norm\.onnx is a file"),
        (tmp_path / "absent", tmp_path / "out", "is not a folder"),
        (tmp_path / "empty", tmp_path / "out", r"empty holds no \*\.onnx file"),
    ):
        with pytest.raises(normfuse.OptionError, match=words):
            folders.optimize_folder(source, output)
    monkeypatch.setattr(folders, "find_spec", lambda name: None)
    with pytest.raises(normfuse.OptionError, match="Ray is not installed"):
        folders.optimize_folder(zoo, tmp_path / "out", engine="ray")
    assert files(tmp_path) == before
    assert len(folders.optimize_folder(zoo, tmp_path / "out")) == 3


@pytest.mark.parametrize("option", [("--inputs", "x.npz"), ("--report", "r.json"), ("--measure", "1"), ("--tune",)])
def test_options_for_one_model(run: Run, zoo: Path, tmp_path: Path, option: tuple[str, ...]) -> None:
    done = run("optimize", zoo, "-o", "out", *option)
    assert done.code == 2
    assert f"{option[0]} is for one model" in done.err
    assert not (tmp_path / "out").exists()
