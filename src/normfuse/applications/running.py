"""The command ``normfuse run``: any Python program, each of its sessions with normfuse.

It sets NORMFUSE=1 and replaces itself by ``python app.py``: arguments, ``__main__``, standard input, signals and exit
code are that program's own. A line in site-packages (normfuse.pth) does the rest, also in processes that it starts.
"""

from __future__ import annotations

import os
import shutil
import site
import subprocess
import sys
import sysconfig
from pathlib import Path

_HELP = """\
Usage: normfuse run [OPTION] PROGRAM [ARGUMENTS]

  Run a Python program, each onnxruntime.InferenceSession that it creates with normfuse.

  PROGRAM is a file of Python, an installed command, or with -m a module, with -c
  code, as for python. All behind it is the program's own. Processes that it starts
  are run in the same way; the variable NORMFUSE=1 does that for services.

Options:
  --log LEVEL       debug, info (a line for each session), warning (default), error
                    or off: sets NORMFUSE_LOG.
  --exclude MODELS  Leave models alone: patterns of their paths or file names, and
                    @dynamic for dynamically quantised ones, with ':' (on Windows ';')
                    between them: sets NORMFUSE_EXCLUDE.
  --report FILE     Append a line of JSON for each session when the program ends: whether
                    it ran with normfuse or why not, on a prepared model or not, how
                    long creation and all runs took; '-': a table, to standard error.
                    Sets NORMFUSE_REPORT.
  -h, --help        Show this message and exit.

Examples:
  normfuse run app.py --port 8000
  normfuse run --log info app.py
  normfuse run -m uvicorn service:app --workers 2
  normfuse run gunicorn service:app
  normfuse run --exclude '*voice*.onnx:@dynamic' app.py
"""
_VARIABLES = {"--log": "NORMFUSE_LOG", "--exclude": "NORMFUSE_EXCLUDE", "--report": "NORMFUSE_REPORT"}
_AS_PYTHON = ("-m", "-c", "-")
_USAGE, _NOT_FOUND = 2, 127


def main(arguments: list[str]) -> None:
    """Replace this process by the program."""
    environment = {**os.environ, "NORMFUSE": "1"}
    rest = list(arguments)
    while rest and rest[0].startswith("-") and rest[0] not in _AS_PYTHON:
        name, equals, value = rest.pop(0).partition("=")
        if name in ("-h", "--help"):
            print(_HELP, end="")
            return
        if name not in _VARIABLES or not (equals or rest):
            _fail(f"{'no value for' if name in _VARIABLES else 'there is no option'} {name}")
        value = value if equals else rest.pop(0)
        environment[_VARIABLES[name]] = str(Path(value).absolute()) if name == "--report" and value != "-" else value
    if not rest:
        _fail("which program?")
    if not any((Path(folder) / "normfuse.pth").exists() for folder in _site_folders()):
        _fail(f"normfuse is not installed for {sys.executable}, there is no normfuse.pth in its site-packages")
    _become(_command(rest), environment)


def _fail(text: str, code: int = _USAGE) -> None:
    print(f"normfuse run: {text} (normfuse run --help)", file=sys.stderr)
    sys.exit(code)


def _site_folders() -> list[str]:
    return [*site.getsitepackages(), *([site.getusersitepackages()] if site.ENABLE_USER_SITE else [])]


def _command(arguments: list[str]) -> list[str]:
    """Return the command to start: this Python with the file, or a command that is found on the path."""
    program = arguments[0]
    path = Path(program)
    is_folder = path.is_dir() and (path / "__main__.py").exists()
    if program in _AS_PYTHON or is_folder or (path.is_file() and not _is_command(path)):
        return [sys.executable, *arguments]
    # On Windows commands have a folder of their own, beside Python.
    here = [str(Path(sys.executable).parent), sysconfig.get_path("scripts"), os.environ.get("PATH", os.defpath)]
    found = shutil.which(program, path=os.pathsep.join(here))
    if found is None:
        _fail(f"there is no file and no command {program}", _NOT_FOUND)
    return [str(found), *arguments[1:]]


def _is_command(path: Path) -> bool:
    """Whether a file names its own interpreter."""
    if os.name == "nt":  # where any file may be executed
        return path.suffix.lower() in os.environ.get("PATHEXT", ".exe;.bat;.cmd").lower().split(";")
    return path.suffix not in (".py", ".pyw", ".pyz", ".zip") and os.access(path, os.X_OK) and os.sep in str(path)


def _become(command: list[str], environment: dict[str, str]) -> None:
    sys.stdout.flush()
    if os.name != "nt":
        os.execve(command[0], command, environment)
    # On Windows the shell would not wait for a process that replaces this one.
    process = subprocess.Popen(command, env=environment)
    while True:
        try:
            sys.exit(process.wait())
        except KeyboardInterrupt:
            continue  # it has received it, too
