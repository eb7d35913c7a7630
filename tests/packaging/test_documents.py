"""Every code block of README and of the documentation runs, in order, in a folder that holds model.onnx."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from documents import DOCUMENTS, ROOT, run_blocks

# Measurements, demonstrations and a quantiser's calibration, each for 10 seconds and more. README has the first steps.
SLOW = ("benchmarks.md", "index.md", "quantisation.md")


@pytest.mark.parametrize(
    "document",
    [pytest.param(each, id=each.name, marks=[pytest.mark.slow] * (each.name in SLOW)) for each in DOCUMENTS],
)
def test_blocks_run_in_order(document: Path, tmp_path: Path) -> None:
    run_blocks(document, tmp_path)


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


def test_messages_are_what_the_code_says() -> None:
    """Each part of a message on that page stands in a source file, whichever lines its text is spread over."""
    written = [*ROOT.glob("src/**/*.py"), *ROOT.glob("ep/**/*.py"), *ROOT.glob("ep/**/*.cmake")]
    source = re.sub(r'"\s*\n?\s*f?"', "", "\n".join(path.read_text(encoding="utf-8") for path in written))
    source = re.sub(r"\{[^{}]*\}|\$\{[^{}]*\}", "...", source)
    native = "\n".join(path.read_text(encoding="utf-8") for path in ROOT.glob("ep/**/*.cc"))
    source += re.sub(r'"\s*\n?\s*"', "", native)
    page = (ROOT / "docs" / "pages" / "messages.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (.*?) \| ", page.partition("## When results differ")[0], re.MULTILINE)
    messages = [row for row in rows if row != "message" and not row.startswith("Package")]  # that one is pip's
    assert len(messages) > 15
    for message in messages:
        for part in re.split(r"\.\.\.|; |, |'", message):
            words = part.strip().removeprefix("NORMFUSE_LIBRARY ")  # in the source by its constant
            assert words in source or not words[4:], f"no source says '{words}' ({message})"
