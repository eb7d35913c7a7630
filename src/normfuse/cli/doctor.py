"""``normfuse doctor``: is everything there, and does it work?"""

from __future__ import annotations

import dataclasses
from typing import Annotated

import typer

from normfuse.cli import options
from normfuse.cli.console import console, print_json, say


def doctor_command(
    backend: Annotated[str, typer.Option(metavar="BACKEND", help="directml: check DirectML, too.")] = "auto",
    as_json: options.Json = False,
) -> None:
    """Check the installation: versions, library, instruction set, registration, and a small session.

    Exits with 1 if something does not work.
    """
    from normfuse.selftest.diagnosis import diagnose

    findings = []
    for finding in diagnose(backend):
        findings.append(finding)
        if not as_json:
            mark = "[green]ok[/]     " if finding.ok else "[red]problem[/]"
            console.print(f"{mark} [bold]{finding.name}:[/]", end=" ")
            say(finding.text)
    healthy = all(finding.ok for finding in findings)
    if as_json:
        data = {"schema_version": 1, "ok": healthy, "findings": [dataclasses.asdict(f) for f in findings]}
        print_json(data)
    if not healthy:
        raise typer.Exit(1)
