"""What the commands share: printing and progress."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.measure import measure_renderables
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from normfuse.cli.printable import PrintingConsole
from normfuse.reports.files import json_text

console = PrintingConsole(highlight=False, soft_wrap=False)
_errors = PrintingConsole(stderr=True, highlight=False)

_LINE_SECONDS = 5.0
# A column of a table that may be wrapped has at least so many characters, if it holds as many.
_NARROWEST = 12


def print_json(data: Any) -> None:
    """Print data as JSON on standard output, in ASCII: a pipe may have any encoding."""
    sys.stdout.write(json_text(data, ascii_only=True))


def say(text: str, *, style: str | None = None) -> None:
    """Print a text as it is, however long its lines are."""
    console.print(text, style=style, markup=False, soft_wrap=True)


def say_of(group: Sequence[Any], text: str, name: str | None = None) -> None:
    """Print a text behind the name of the first of a group, and how many more there are."""
    console.print(Text.assemble((f"{name or group[0].name}{and_more(group)}", "bold"), text), soft_wrap=True)


def and_more(group: Sequence[Any]) -> str:
    """Return how many there are behind the first."""
    return f" and {len(group) - 1} more" if len(group) > 1 else ""


def warn(message: str) -> None:
    """Print a warning on standard error."""
    _errors.print(f"[yellow]Warning:[/] {escape(message)}", soft_wrap=True)


@contextlib.contextmanager
def progress() -> Iterator[Callable[[str, int, int], None]]:
    """Show what is being done: a bar on a terminal, elsewhere a line every few seconds. Python warnings are lines, too.

    Yields:
        A function that takes (what, steps done, steps in all or 0).
    """
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_, **__: warn(str(message))
        if not _errors.is_terminal:
            with _lines() as tell:
                yield tell
            return
        columns = SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn()
        with Progress(*columns, console=_errors, transient=True) as bar:
            task = bar.add_task("reading the model", total=None)
            yield lambda what, done, total: bar.update(task, description=what, completed=done, total=total or None)


@contextlib.contextmanager
def _lines() -> Iterator[Callable[[str, int, int], None]]:
    """Print what is being done every few seconds, also while a step takes long."""
    now = ["reading the model"]
    done = threading.Event()
    start = time.monotonic()

    def print_lines() -> None:
        while not done.wait(_LINE_SECONDS):
            print(f"normfuse: {now[0]} ({time.monotonic() - start:.0f} s)", file=sys.stderr, flush=True)

    def tell(what: str, step: int, total: int) -> None:
        now[0] = f"{what}, {step} of {total}" if total else what

    thread = threading.Thread(target=print_lines, daemon=True)
    thread.start()
    try:
        yield tell
    finally:
        done.set()
        thread.join()


def table(title: str, *columns: str, numeric: int = 0, wraps: str | None = None) -> Table:
    """Return an empty table.

    Args:
        title: Above the table.
        columns: Their headings.
        numeric: How many of the last columns are set flush right.
        wraps: The one column that is wrapped where the terminal is narrow; "" = none; None: all that hold text.
    """
    result = Table(title=title, title_justify="left", title_style="bold", header_style="bold", box=SIMPLE_HEAD)
    for index, column in enumerate(columns):
        right = index >= len(columns) - numeric
        result.add_column(
            column,
            justify="right" if right else "left",
            overflow="fold",
            no_wrap=right if wraps is None else wraps != column,
        )
    return result


def print_table(rows: Table) -> None:
    """Print a table without losing a column, however narrow the terminal is.

    Where the columns do not fit, their headings are wrapped, and if that does not do, the lines are longer.
    """
    if _least_width(rows) > console.width:
        for column in rows.columns:
            column.header = str(column.header).replace(" ", "\n")
    if _least_width(rows) > console.width:
        rows.width = _least_width(rows)
    console.print(rows, crop=False)


def _least_width(rows: Table) -> int:
    unlimited = console.options.update(width=sys.maxsize)
    widths = [
        measure_renderables(console, unlimited, [column.header, *column.cells]).maximum for column in rows.columns
    ]
    columns = zip(rows.columns, widths, strict=True)
    # One space on each side of a column, and one for each line between and around them.
    return sum((w if column.no_wrap else min(w, _NARROWEST)) + 3 for column, w in columns) + 1


def number(value: float | None) -> str:
    """Return a measured number with three significant digits."""
    if value is None:
        return ""
    return f"{value:.0f}" if 100 <= value < 1e6 else f"{value:.3g}"
