"""Reports as files. One function a format; the name's ending chooses it."""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from normfuse.errors import OptionError
from normfuse.report_html import html_text

__all__ = ["check_report_path", "finite", "write_report"]


def check_report_path(path: Path) -> None:
    """Raise OptionError if no report can be written to ``path``, without writing anything."""
    if path.suffix not in _WRITERS:
        raise OptionError(
            f"A report cannot be written as '{path.name}'; name it {' or '.join('*' + s for s in _WRITERS)}."
        )
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise OptionError(f"Cannot write {path}: it is a folder, or the folder that it should be in does not exist.")


def write_report(report: dict[str, Any], path: Path) -> None:
    """Write a report under a temporary name, then rename.

    Raises:
        OptionError: The file cannot be written there.
    """
    check_report_path(path)
    text = _WRITERS[path.suffix](report)
    try:
        with tempfile.TemporaryDirectory(dir=path.absolute().parent, prefix=f".{path.name}.") as folder:
            written = Path(folder) / path.name
            written.write_text(text, encoding="utf-8")
            written.replace(path)
    except OSError as error:
        raise OptionError(f"Cannot write {path}: {error.strerror or error}.") from error


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
    """Return a report as JSON; ``schemas/report.schema.json`` describes it."""
    return json.dumps(finite(report), indent=2, ensure_ascii=ascii_only) + "\n"


_WRITERS: Mapping[str, Callable[[dict[str, Any]], str]] = {".json": json_text, ".html": html_text}
