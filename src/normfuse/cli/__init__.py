"""The command ``normfuse``.

Exit codes: 0 done, 1 a verification or check failed, 2 bad input or usage, 3 undecided and --strict, 70 a fault
of normfuse, 130 Ctrl-C.
"""

from __future__ import annotations

import io
import shlex
import sys
import traceback
from collections.abc import Callable

import typer

from normfuse._version import __version__
from normfuse.applications.running import main as run_program
from normfuse.cli.bench import bench_command
from normfuse.cli.cache import cache_command
from normfuse.cli.check import check_command
from normfuse.cli.demo import demo_command
from normfuse.cli.doctor import doctor_command
from normfuse.cli.inspect import inspect_command
from normfuse.cli.optimize import optimize_command
from normfuse.cli.output import forgiving_output
from normfuse.cli.printable import printable
from normfuse.cli.schema import schema_command
from normfuse.cli.verify import verify_command
from normfuse.errors import NormfuseError, VerificationError

__all__ = ["app", "main"]

app = typer.Typer(
    name="normfuse",
    help="Fuse normalisation chains in ONNX models and run them faster in ONNX Runtime.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # with markup, long options are truncated in the help
    context_settings={"help_option_names": ["-h", "--help"]},
)

_DEBUG = "--debug"
_STOPPED = 130

# Name, function, what the list of commands says, examples.
_COMMANDS: tuple[tuple[str, Callable[..., None], str, tuple[str, ...]], ...] = (
    (
        "optimize",
        optimize_command,
        "Fuse chains, verify the result, write it.",
        (
            "normfuse optimize model.onnx -o model.fused.onnx",
            "normfuse optimize model.onnx -o fused.onnx --inputs real.npz --report report.html",
            "normfuse optimize model.onnx -o fused.onnx --require-fused all --max-error 1e-3",
            "normfuse optimize model.onnx -o tuned.onnx --tune --inputs real.npz",
            "normfuse optimize models/ -o optimised/ --engine local",
        ),
    ),
    (
        "inspect",
        inspect_command,
        "List what can be fused, and why the rest cannot.",
        (
            "normfuse inspect model.onnx",
            "normfuse inspect model.onnx --json > sites.json",
            "normfuse inspect model.onnx --extract /layer.0/LayerNorm/Div -o site.onnx",
            "normfuse inspect model.onnx --backend directml --directml-level 6_2",
        ),
    ),
    (
        "verify",
        verify_command,
        "Compare the results of two versions of a model.",
        ("normfuse verify model.onnx model.fused.onnx --inputs real.npz",),
    ),
    (
        "bench",
        bench_command,
        "Measure speed and error with and without normfuse.",
        ("normfuse bench model.onnx --dim batch=8 --dim sequence=128 --threads 2",),
    ),
    (
        "check",
        check_command,
        "Fail if a model is not fused as required (for CI).",
        (
            "normfuse check model.fused.onnx --require-fused 12",
            "normfuse check model.fused.onnx --original model.onnx --max-error 1e-3 --format github",
        ),
    ),
    (
        "doctor",
        doctor_command,
        "Check the installation.",
        ("normfuse doctor", "NORMFUSE_ISA=avx2 normfuse doctor"),
    ),
    (
        "cache",
        cache_command,
        "List or remove the models that sessions keep.",
        ("normfuse cache", "normfuse cache --prune 500", "normfuse cache --clear"),
    ),
    ("schema", schema_command, "Print the JSON schema of what a command writes.", ("normfuse schema report",)),
    ("demo", demo_command, "Optimise, verify and measure reference models.", ("normfuse demo --threads 2",)),
)
for _name, _function, _summary, _examples in _COMMANDS:
    # \b keeps the lines of its paragraph as they are.
    _epilog = "\b\nExamples:\n" + "\n".join(f"  {line}" for line in _examples)
    app.command(_name, short_help=_summary, epilog=_epilog)(_function)


@app.command(
    "run",
    short_help="Run a Python program, its sessions with normfuse.",
    epilog="\b\nExamples:\n  normfuse run app.py --port 8000\n  normfuse run -m uvicorn service:app --workers 2",
    add_help_option=False,
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
)
def _run(context: typer.Context) -> None:
    """Run a Python program, each onnxruntime.InferenceSession that it creates with normfuse."""
    run_program(context.args)  # reached where the command is not the first argument: see __main__.py


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"normfuse {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(
        False, "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
    ),
    debug: bool = typer.Option(False, _DEBUG, help="Show the traceback of errors; also allowed after the command."),
) -> None:
    pass


def main() -> None:
    """Run the command line; every error is one sentence on standard error, with --debug behind its traceback."""
    for stream in (sys.stdout, sys.stderr):
        # Windows pipes and the C locale cannot show every file's name: a substitute is better than a crash.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    command, debug = list(sys.argv), _DEBUG in sys.argv
    sys.argv[1:] = [argument for argument in command[1:] if argument != _DEBUG]
    try:
        with forgiving_output():
            app()
    except SystemExit as stop:
        if stop.code == _STOPPED:  # typer's code for Ctrl-C, of which it says nothing
            print("normfuse: stopped.", file=sys.stderr)
        raise
    except (KeyboardInterrupt, Exception) as error:
        if debug:
            traceback.print_exc()
        code, message = _explained(error, command)
        print(f"normfuse: {printable(message)}", file=sys.stderr)
        sys.exit(code)


def _explained(error: BaseException, command: list[str]) -> tuple[int, str]:
    """Return the exit code and the sentence for what ended a command."""
    if isinstance(error, KeyboardInterrupt):
        return _STOPPED, "stopped."
    if isinstance(error, VerificationError):
        return 1, str(error)
    if isinstance(error, NormfuseError):
        return 2, str(error)
    if isinstance(error, OSError):
        # A path that cannot even be looked at, a full disk: whatever it is, the system's own words.
        return 2, f"{error.filename or 'The system says'}: {error.strerror or error}."
    if isinstance(error, MemoryError):
        return 2, f"the memory of this machine is not enough ({str(error).rstrip('.') or 'MemoryError'})."
    again = shlex.join(["normfuse", _DEBUG, *(argument for argument in command[1:] if argument != _DEBUG)])
    what = NormfuseError(f"{type(error).__name__}: {error}")  # in one line
    return 70, f"{what}. This is a fault of normfuse: please report it, with what this prints: {again}"
