"""Reports as files. One function a format; the name's ending chooses it."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from normfuse.errors import OptionError
from normfuse.files.output_files import file_to_write, scratch_folder
from normfuse.reports.page import html_text


def check_report_path(path: Path) -> Path:
    """Return the file that a report is written to, the target if ``path`` is a link; nothing is written.

    Raises:
        OptionError: No report can be written there.
    """
    if path.suffix not in _WRITERS:
        raise OptionError(
            f"A report cannot be written as '{path.name}'; name it {' or '.join('*' + s for s in _WRITERS)}."
        )
    return file_to_write(path)


def write_report(report: dict[str, Any], path: Path) -> None:
    """Write a report under a temporary name, then rename.

    Raises:
        OptionError: The file cannot be written there.
    """
    target = check_report_path(path)
    text = _WRITERS[path.suffix](report)
    with scratch_folder(target) as folder:
        written = folder / target.name
        written.write_text(text, encoding="utf-8")
        written.replace(target)


def finite(data: Any) -> Any:
    """Return data with infinities and NaN, which JSON does not have, as the texts "inf", "-inf" and "nan"."""
    if isinstance(data, float) and not math.isfinite(data):
        return str(data)
    if isinstance(data, dict):
        return {str(key): finite(value) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [finite(value) for value in data]
    return data


def json_text(report: dict[str, Any], *, ascii_only: bool = False) -> str:
    """Return a report as JSON; ``normfuse schema report`` describes it."""
    return json.dumps(finite(report), indent=2, ensure_ascii=ascii_only) + "\n"


_WRITERS: Mapping[str, Callable[[dict[str, Any]], str]] = {".json": json_text, ".html": html_text}
