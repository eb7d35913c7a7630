"""A command reads each model file once, and rewrites it once."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import onnx
import pytest
from typer.testing import CliRunner

import normfuse.graph_rewrites
from normfuse import models
from normfuse.cli import app
from normfuse.files import model_files


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often files were read and models rewritten."""
    counted: Counter[str] = Counter()

    def count(where: Any, name: str, called: str) -> None:
        original = getattr(where, name)

        def counting(*arguments: Any, **options: Any) -> Any:
            counted[called] += 1
            return original(*arguments, **options)

        monkeypatch.setattr(where, name, counting)

    count(model_files, "_read", "read")
    count(normfuse.graph_rewrites, "rewrite", "rewritten")
    return counted


@pytest.mark.parametrize(
    ("command", "read", "rewritten"),
    [
        (["optimize", "{model}", "-o", "{out}"], 1, 1),
        (["optimize", "{model}", "-o", "{out}", "--measure", "0.1"], 1, 2),  # the profile's, with names of its own
        (["inspect", "{model}"], 1, 1),
        (["inspect", "{model}", "--backend", "directml"], 1, 1),
        (["check", "{model}"], 1, 1),
        (["check", "{model}", "--original", "{original}"], 2, 1),
    ],
    ids=lambda value: " ".join(value[:1] + value[2:]) if isinstance(value, list) else "",
)
def test_commands(calls: Counter[str], tmp_path: Path, command: list[str], read: int, rewritten: int) -> None:
    model = models.transformer_encoder(layers=1, hidden=64)
    for name in ("model", "original"):
        onnx.save(model, tmp_path / f"{name}.onnx")
    names = {name: str(tmp_path / f"{name}.onnx") for name in ("model", "original", "out")}
    done = CliRunner().invoke(app, [argument.format(**names) for argument in command])
    assert done.exit_code in (0, 1), done.output  # check: the model is not optimised
    assert calls == {"read": read, "rewritten": rewritten}
