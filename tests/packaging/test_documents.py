"""Every code block of README and of the documentation runs, in order, in a folder that holds model.onnx."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from documents import DOCUMENTS, ROOT, run_blocks


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
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
