"""Every code block of README and of the documentation runs, in order, in a folder that holds model.onnx."""

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


DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs" / "pages").glob("*.md"))]
LANGUAGES = {"python", "sh", "cpp", "csharp", "java", "text"}


class Block(NamedTuple):
    line: int
    language: str
    code: str


def blocks(document: Path) -> Iterator[Block]:
    text = document.read_text(encoding="utf-8")
    for match in re.finditer(r"^```(\w*)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE):
        yield Block(text.count("\n", 0, match.start()) + 1, match[1], match[2])


def commands(block: Block) -> list[list[str]]:
    if block.language == "python":
        return [[sys.executable, "-c", block.code]]
    if block.language == "sh":
        return [shlex.split(line) for line in block.code.splitlines() if line and not RUN_BY_CI.search(line)]
    return []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_blocks_run_in_order(document: Path, tmp_path: Path) -> None:
    onnx.save(transformer_encoder(layers=1), tmp_path / "model.onnx")
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    for block in blocks(document):
        assert block.language in LANGUAGES, f"line {block.line}"
        for command in commands(block):
            done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, env=environment)
            assert done.returncode == 0, f"line {block.line}: {command}\n{done.stdout}{done.stderr}"


def test_site_builds_without_a_warning(tmp_path: Path) -> None:
    """Links between pages are checked by mkdocs itself."""
    options = ["build", "--quiet", "--strict", "--config-file", ROOT / "docs" / "mkdocs.yml", "--site-dir", tmp_path]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", *options], capture_output=True, text=True, check=False, env=environment
    )
    assert (done.returncode, done.stderr) == (0, "")
    rules = (tmp_path / "reference" / "rules" / "index.html").read_text(encoding="utf-8")
    assert "DecomposedLayerNormalization" in rules


def test_links_of_the_readme_lead_somewhere() -> None:
    for path in DOCUMENTS[:2]:
        for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", path.read_text(encoding="utf-8")):
            assert (path.parent / target).exists(), f"{path.name} links to {target}"
