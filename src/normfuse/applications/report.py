"""The report of an application's sessions, where ``normfuse run --report FILE`` or NORMFUSE_REPORT asks for one."""

from __future__ import annotations

import atexit
import functools
import os
import sys
import time
from typing import Any

from normfuse.applications.log import logger

_VARIABLE = "NORMFUSE_REPORT"
_RUNS = ("run", "run_with_iobinding", "run_with_ort_values")
_RECORD = "_normfuse_record"
_RECORDS: list[dict[str, Any]] = []


def note(session: Any, model: str, created: float, reason: str | None) -> None:
    """Note a session; ``reason``: why it runs without normfuse."""
    if not os.environ.get(_VARIABLE):
        return
    from normfuse.host.needs import SUMMARY

    if not _RECORDS:
        _write_at_the_end()
    record = {
        "process": os.getpid(),
        "model": str(model),
        "normfuse": reason is None,
        "reason": reason,
        "prepared": getattr(session, "_normfuse_prepared", None) if reason is None else None,
        **{key: getattr(session, SUMMARY, {}).get(key) for key in ("plan", "fused")},
        "created_seconds": round(created, 4) if reason is None else None,
        "runs": 0,
        "run_seconds": 0.0,
    }
    _RECORDS.append(record)
    setattr(session, _RECORD, record)


def time_runs(host: Any) -> None:
    """Let sessions of onnxruntime's class measure the time of their runs, if a report is requested."""
    if not os.environ.get(_VARIABLE):
        return
    for name in _RUNS:
        method = getattr(host, name, None)
        if method is not None and not hasattr(method, "__wrapped__"):
            setattr(host, name, _timed(method))


def _timed(method: Any) -> Any:
    @functools.wraps(method)
    def run(self: Any, *arguments: Any, **named: Any) -> Any:
        began = time.perf_counter()
        try:
            return method(self, *arguments, **named)
        finally:
            record = getattr(self, _RECORD, None)
            if record is not None:
                record["runs"] += 1
                record["run_seconds"] += time.perf_counter() - began

    return run


def _write_at_the_end() -> None:
    atexit.register(_write)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_RECORDS.clear)  # the parent writes what it has
    if "multiprocessing.util" in sys.modules:  # whose processes end without atexit
        sys.modules["multiprocessing.util"].Finalize(None, _write, exitpriority=0)


def _write() -> None:
    records, _RECORDS[:] = list(_RECORDS), []
    target = os.environ.get(_VARIABLE)
    if not records or not target:
        return
    if target == "-":
        print("normfuse   created, s       runs  in runs, s  model", *map(_row, records), sep="\n", file=sys.stderr)
        return
    import json
    from pathlib import Path

    try:
        # One write, so that lines of processes that end at the same time do not mix.
        with Path(target).open("a", encoding="utf-8") as file:
            file.write("".join(f"{json.dumps(each)}\n" for each in records))
    except OSError as error:
        logger().warning("no report: %s", error)


def _row(record: dict[str, Any]) -> str:
    way = ("prepared" if record["prepared"] else "first") if record["normfuse"] else "no"
    reason = f": {record['reason']}" if record["reason"] else ""
    numbers = f"{record['created_seconds'] or 0:12.2f} {record['runs']:10} {record['run_seconds']:11.2f}"
    fused = ", ".join(f"{count} {kind}" for kind, count in (record["fused"] or {}).items())
    return f"{way:8} {numbers}  {record['model']}{reason}{fused and f' ({fused})'}"
