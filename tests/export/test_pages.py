"""The code blocks of the pages about PyTorch, Olive and Ray."""

from pathlib import Path

import pytest
from documents import WITH_OTHER_PACKAGES, run_blocks


@pytest.mark.parametrize("document", WITH_OTHER_PACKAGES, ids=lambda path: path.name)
def test_blocks_run_in_order(document: Path, tmp_path: Path) -> None:
    run_blocks(document, tmp_path)
