"""The command ``normfuse``.

Exit codes: 0 done, 1 a verification or check failed, 2 bad input or usage.
"""

from __future__ import annotations

import sys

import typer

from normfuse._version import __version__
from normfuse.cli.bench import bench_command
from normfuse.cli.check import check_command
from normfuse.cli.demo import demo_command
from normfuse.cli.doctor import doctor_command
from normfuse.cli.inspect import inspect_command
from normfuse.cli.optimize import optimize_command
from normfuse.cli.verify import verify_command
from normfuse.errors import NormfuseError, VerificationError

__all__ = ["app", "main"]

app = typer.Typer(
    name="normfuse",
    help="Fuse normalisation chains in ONNX models, and run them faster inside ONNX Runtime.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("optimize")(optimize_command)
app.command("inspect")(inspect_command)
app.command("verify")(verify_command)
app.command("bench")(bench_command)
app.command("check")(check_command)
app.command("doctor")(doctor_command)
app.command("demo")(demo_command)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"normfuse {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(
        False, "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
    ),
) -> None:
    pass


def main() -> None:
    """Run the command line; every error that a user can cause is one sentence on standard error."""
    try:
        app()
    except VerificationError as error:
        print(f"normfuse: {error}", file=sys.stderr)
        sys.exit(1)
    except NormfuseError as error:
        print(f"normfuse: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("normfuse: stopped.", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(2)
