"""Every code block of README and of the documentation runs, in a folder that holds the file model.onnx."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import onnx
import pytest

from normfuse.models import transformer_encoder

ROOT = Path(__file__).resolve().parents[2]
# The commands that set an environment up are run by CI itself (.ci/run), as are the tests.
RUN_BY_CI = re.compile(
    r"python3 -m venv|pip install|tests/run\.py|\.ci/run|pytest|benchmarks/run\.py|build_wheels\.py|ruff"
)


class Block(NamedTuple):
    file: str
    line: int
    language: str
    code: str


def blocks() -> Iterator[Block]:
    for path in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))):
        text = path.read_text(encoding="utf-8")
        for match in re.finditer(r"^```(\w*)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE):
            line = text.count("\n", 0, match.start()) + 1
            yield Block(str(path.relative_to(ROOT)), line, match[1], match[2])


BLOCKS = list(blocks())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    onnx.save(transformer_encoder(layers=1), tmp_path / "model.onnx")
    return tmp_path


def of(language: str) -> list[object]:
    return [pytest.param(b.code, id=f"{b.file}:{b.line}") for b in BLOCKS if b.language == language]


@pytest.mark.parametrize("code", of("python"))
def test_python_block(code: str, folder: Path) -> None:
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("code", of("sh"))
def test_shell_block(code: str, folder: Path) -> None:
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    for command in filter(None, code.splitlines()):
        if RUN_BY_CI.search(command):
            continue
        done = subprocess.run(
            shlex.split(command), cwd=folder, capture_output=True, text=True, check=False, env=environment
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"


def test_there_are_blocks_of_each_kind() -> None:
    assert (
        {"python", "sh"}
        <= {block.language for block in BLOCKS}
        <= {"python", "sh", "cpp", "csharp", "java", "", "toml", "json"}
    )


def test_links_inside_the_repository_lead_somewhere() -> None:
    for path in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))):
        for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", path.read_text(encoding="utf-8")):
            assert (path.parent / target).exists(), f"{path.name} links to {target}"
