"""What runs the command normfuse in tests: see the fixture `run`."""

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from normfuse.cli import main
from normfuse.cli.schema import json_schema


@dataclasses.dataclass
class Done:
    code: int
    out: str
    err: str


@dataclasses.dataclass
class Run:
    capsys: pytest.CaptureFixture[str]
    monkeypatch: pytest.MonkeyPatch

    def __call__(self, *arguments: object) -> Done:
        self.monkeypatch.setattr(sys, "argv", ["normfuse", *map(str, arguments)])
        code = 0
        try:
            main()
        except SystemExit as stop:
            code = int(stop.code or 0)
        captured = self.capsys.readouterr()
        return Done(code, captured.out, captured.err)

    def document(self, schema: str, *arguments: object, code: int = 0) -> Any:
        """What a command prints with --json, which has to be as its schema says."""
        done = self(*arguments, "--json")
        assert done.code == code, done.out + done.err
        data = json.loads(done.out)
        jsonschema.validate(data, json_schema(schema))
        return data


def files(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
