"""``normfuse cache``: the prepared models that sessions keep."""

from __future__ import annotations

import datetime
from typing import Annotated

import typer

from normfuse.cli import options
from normfuse.cli.console import print_json, say
from normfuse.reports.page import size_text


def cache_command(
    prune: Annotated[
        int | None,
        typer.Option("--prune", min=0, metavar="MIB", help="Remove the least recently used beyond so many MiB."),
    ] = None,
    clear: Annotated[bool, typer.Option("--clear", help="Remove all of them.")] = False,
    as_json: options.Json = False,
) -> None:
    """List, prune or clear the models that normfuse.InferenceSession has prepared and keeps for the next start.

    NORMFUSE_CACHE=FOLDER keeps them elsewhere, NORMFUSE_CACHE=0 nowhere.
    """
    from normfuse.sessions import prepared_models

    removed = prepared_models.clear() if clear else 0 if prune is None else prepared_models.prune(prune << 20)
    folder, entries = prepared_models.cache_folder(), prepared_models.entries()
    total = sum(each.size for each in entries)
    if as_json:
        rows = [{"name": each.path.name, "size": each.size, "used": each.used} for each in entries]
        place = None if folder is None else str(folder)
        print_json({"schema_version": 1, "folder": place, "size": total, "removed": removed, "entries": rows})
        return
    for each in entries:
        used = datetime.datetime.fromtimestamp(each.used).astimezone().isoformat(" ", "seconds")
        say(f"{used}  {size_text(each.size):>10}  {each.path.name}")
    place = f"in {folder}" if folder is not None else f"no cache ({prepared_models.VARIABLE}=0, or no home folder)"
    gone = f", {removed} removed" if clear or prune is not None else ""
    say(f"{len(entries)} prepared models, {size_text(total)}{gone}: {place}")
