"""The code blocks of README and of the documentation, and how they are run."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import onnx

from normfuse.models import transformer_encoder

ROOT = Path(__file__).resolve().parents[1]
# The commands that set an environment up are run by CI itself (.ci/run), as are the tests.
RUN_BY_CI = re.compile(r"python3 -m venv|pip install|tests/run\.py|\.ci/run|pytest|build_wheels\.py|ruff")
LANGUAGES = {"python", "sh", "cpp", "csharp", "java", "json", "text", "yaml"}
# Pages about other packages: their blocks run where these are installed, by `tests/run.py --step export`.
WITH_OTHER_PACKAGES = [ROOT / "docs" / "pages" / name for name in ("export.md", "pipelines.md")]
DOCUMENTS = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *(page for page in sorted((ROOT / "docs" / "pages").glob("*.md")) if page not in WITH_OTHER_PACKAGES),
]


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
        lines = [line for line in block.code.splitlines() if line and not RUN_BY_CI.search(line)]
        # A reader is in the repository's folder, the test is in one of its own.
        lines = [
            re.sub(r"\bbenchmarks/\w+\.py", lambda match: shlex.quote(str(ROOT / match[0])), line) for line in lines
        ]
        return [["sh", "-c", line] if ">" in line else shlex.split(line) for line in lines]
    return []


def run_blocks(document: Path, folder: Path) -> None:
    """Run the blocks of a document in order, in a folder that holds model.onnx; fail with the first that fails."""
    onnx.save(transformer_encoder(layers=1), folder / "model.onnx")
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    for block in blocks(document):
        assert block.language in LANGUAGES, f"line {block.line}"
        # What a block calls workflow.json and the like is there for the commands after it.
        name = re.match(r"// (\S+\.json)\n", block.code)
        if block.language == "json" and name:
            (folder / name[1]).write_text(block.code[name.end() :])
        for command in commands(block):
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, env=environment)
            assert done.returncode == 0, f"line {block.line}: {command}\n{done.stdout}{done.stderr}"
