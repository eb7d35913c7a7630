"""A folder of models: each is optimised, verified and written for itself, whatever becomes of the others."""

from __future__ import annotations

import functools
import os
import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, TypedDict

from normfuse.documents import Seconds
from normfuse.errors import NormfuseError, OptionError, VerificationError
from normfuse.optimization.optimize import OptimizationError, optimize
from normfuse.reports.files import write_report

Engine = Literal["auto", "ray", "local"]


class Row(TypedDict):
    """What became of one model."""

    model: str
    """Path below the folder."""
    status: Literal["written", "failed", "invalid"]
    """failed: it does not verify, too few sites are fused, or normfuse itself failed; invalid: it cannot be read, or
    not written there."""
    message: str
    """Why it was not written, or what the verification could not decide; "" where it agrees."""
    result: Literal["agree", "differ", "undecided"] | None
    """Of the verification; None: not verified."""
    fused: int
    sites: int
    """Fused or left; those that have nothing beside them to be fused with do not count."""
    error: float | None
    """The largest of the verification; None: not verified."""
    bytes_before: int
    bytes_written: int
    seconds: Seconds


def optimize_folder(
    folder: str | os.PathLike[str],
    output: str | os.PathLike[str],
    *,
    engine: Engine = "auto",
    progress: Callable[[str, int, int], None] | None = None,
    **options: Any,
) -> list[Row]:
    """Optimise every ``*.onnx`` file of a folder and of those in it.

    Args:
        folder: The folder to read.
        output: The folder to write to, with the same names; a report ``<name>.json`` lies beside each model. It is
            created if it does not exist.
        engine: "ray": one model to a task of a Ray cluster (RAY_ADDRESS, or one on this machine), with a file system
            that all workers share; "local": one after the other in this process; "auto": Ray where it is installed
            and there is more than one model.
        progress: Called with (what is being done, models done, models in all).
        options: Of :func:`normfuse.optimize`.

    Returns:
        A row for each model, by name.

    Raises:
        OptionError: There is no such folder, no model in it, or the results would lie among the models.
    """
    read, written = Path(folder).resolve(), Path(output).resolve()
    names = _names(read, written)
    tell = progress or (lambda what, done, total: None)
    rows: list[Row] = []
    tell("starting", 0, len(names))
    work = functools.partial(optimize_file, read, written, options)
    for row in _engine(engine, names)(work, names):
        rows.append(row)
        tell(row["model"], len(rows), len(names))
    return sorted(rows, key=lambda row: row["model"])


def optimize_file(folder: Path, written: Path, options: Mapping[str, Any], name: str) -> Row:
    """Optimise the model ``name`` of a folder into another one, and say what became of it."""
    start = time.perf_counter()
    row = Row(
        model=name,
        status="written",
        message="",
        result=None,
        fused=0,
        sites=0,
        error=None,
        bytes_before=0,
        bytes_written=0,
        seconds=0,
    )
    path = written / name
    try:
        result = optimize(folder / name, **options)
        path.parent.mkdir(parents=True, exist_ok=True)
        row["bytes_written"] = result.save(path)
        write_report(result.report.to_dict(), path.with_name(f"{path.name}.json"))
    except VerificationError as error:
        row["status"], row["message"] = "failed", str(error)
        report = error.report if isinstance(error, OptimizationError) else None
    except (NormfuseError, OSError) as error:
        row["status"], row["message"] = "invalid", str(error)
        report = None
    except Exception as error:  # whatever it is, the other models can be optimised
        row["status"], row["message"] = "failed", _fault(folder / name, path, error)
        report = None
    else:
        report = result.report
    if report is not None:
        row["fused"], row["sites"] = len(report.fused), len(report.fused) + len(report.left)
        row["bytes_before"] = report.bytes_before
        if report.verification is not None:
            row["result"] = report.verification.result
            if report.verification.result == "undecided":
                row["message"] = report.verification.message
            row["error"] = max((o.error for run in report.verification.runs for o in run.outputs), default=None)
    row["seconds"] = time.perf_counter() - start
    return row


def _fault(model: Path, written: Path, error: Exception) -> str:
    """Return the sentence for an exception that nobody expected."""
    if isinstance(error, MemoryError):
        return f"{model}: the memory of this machine is not enough."
    again = shlex.join(["normfuse", "--debug", "optimize", str(model), "-o", str(written)])
    what = NormfuseError(f"{model}: {type(error).__name__}: {error}")  # in one line
    return f"{what}. This is a fault of normfuse: please report it, with what this prints: {again}"


def _names(folder: Path, written: Path) -> list[str]:
    if not folder.is_dir():
        raise OptionError(f"{folder} is not a folder.")
    names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.onnx") if path.is_file())
    if not names:
        raise OptionError(f"{folder} holds no *.onnx file.")
    if written.exists() and not written.is_dir():
        raise OptionError(f"{written} is a file; the results of a folder go into a folder.")
    if any(folder in (written / name).parents for name in names):
        raise OptionError(f"{written} would mix the results with the models of {folder}; name another folder.")
    try:
        written.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OptionError(f"Cannot create {written}: {error.strerror or error}.") from error
    return names


Run = Callable[[Callable[[str], Row], Sequence[str]], Iterator[Row]]


def _engine(engine: Engine, names: Sequence[str]) -> Run:
    installed = find_spec("ray") is not None
    if engine not in ("auto", "ray", "local"):
        raise OptionError(f"engine is '{engine}'; it must be auto, ray or local.")
    if engine == "ray" and not installed:
        raise OptionError("engine is 'ray', and Ray is not installed: pip install 'ray[data]'.")
    if engine == "local" or not installed or (engine == "auto" and len(names) == 1):
        return map
    from normfuse.integrations.ray import run_tasks

    return run_tasks
