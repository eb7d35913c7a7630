"""Check the numbers of a backend on this machine: ``python -m normfuse.selftest --backend directml``.

Runs every kind of fused operator through onnxruntime and the execution provider, on DirectML also every operator that
joins an island, and compares it with float64. Prints a row for each case as soon as it is done; the exit code is 0 when
all are right, 1 when any is not, 2 when the backend cannot be had.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import math
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import onnx
from onnx import TensorProto, helper

from normfuse.errors import NormfuseError
from normfuse.host.plain_sessions import plain_session
from normfuse.host.session import session_options
from normfuse.meaning import Array, Expected, dtype_code, dtype_of, evaluate
from normfuse.selftest.cases import DIRECTML_MEAN_ROUNDING, Case, cases, error_of, limit_of
from normfuse.selftest.islands import IslandCase, island_cases
from normfuse.spec import (
    ELEMENT_TYPES,
    OPERATOR_DOMAIN,
    OPERATORS,
    OPSET_VERSION,
    labels_of,
    read_program,
    spec_version_of,
)

__all__ = ["Row", "main", "run"]

FOUR_BIT = [each.number for each in ELEMENT_TYPES.values() if each.bits == 4]
AnyCase = TypeVar("AnyCase", Case, IslandCase)
# The highest that every supported ONNX Runtime reads.
IR_VERSION = 10


class Row(NamedTuple):
    """Outcome of a case."""

    name: str
    backend: str
    """"directml" or "cpu"; why it is "cpu" where DirectML was asked for stands in ``note``."""
    error: float
    allowed: float
    note: str

    @property
    def right(self) -> bool:
        return self.error <= self.allowed


def _bytes(array: Array) -> bytes:
    """As ONNX stores it: two 4-bit elements a byte, the first one lowest."""
    if dtype_code(array) not in FOUR_BIT:
        return np.ascontiguousarray(array).tobytes()
    flat = array.reshape(-1).astype(np.int8).view(np.uint8) & 15
    flat = np.concatenate([flat, np.zeros(len(flat) % 2, np.uint8)])
    return (flat[::2] | flat[1::2] << 4).astype(np.uint8).tobytes()


def _array(data: bytes, code: int, shape: Sequence[int]) -> Array:
    dtype = dtype_of(code)
    if code not in FOUR_BIT:
        return np.frombuffer(data, dtype=dtype).reshape(shape)
    packed = np.frombuffer(data, np.uint8)
    values = np.stack([packed & 15, packed >> 4], axis=-1).reshape(-1)[: math.prod(shape)].astype(np.int8)
    if code == TensorProto.INT4:
        values = np.where(values >= 8, values - 16, values)
    return values.astype(dtype).reshape(shape)


def _model(case: Case, results: Mapping[str, Expected]) -> onnx.ModelProto:
    """One node; run-time inputs have open dimensions, so that the shapes are seen at run time only."""
    outputs = list(OPERATORS[case.op_type].outputs)
    wanted = outputs[: max(outputs.index(name) for name in case.outputs) + 1]
    program = read_program(case.steps)
    node = helper.make_node(
        case.op_type,
        ["X", *labels_of(program)],
        [name if name in case.outputs else "" for name in wanted],
        name=case.name,
        domain=OPERATOR_DOMAIN,
        steps=case.steps,
        spec_version=spec_version_of(program),
    )
    open_shape = {name: [f"{name}_{i}" for i in range(case.inputs[name].ndim)] for name in case.runtime}
    graph = helper.make_graph(
        [node],
        "selftest",
        [helper.make_tensor_value_info(n, dtype_code(case.inputs[n]), open_shape[n]) for n in case.runtime],
        [helper.make_tensor_value_info(n, results[n].code, [None] * results[n].exact.ndim) for n in case.outputs],
        [
            helper.make_tensor(name, dtype_code(value), value.shape, _bytes(value), raw=True)
            for name, value in case.inputs.items()
            if name not in case.runtime
        ],
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid(OPERATOR_DOMAIN, OPSET_VERSION)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION)


def _open(model: onnx.ModelProto, options: Mapping[str, Any]) -> Any:
    settings = session_options(claim="all", **options)
    settings.log_severity_level = 4  # what goes wrong is raised, and belongs into the table
    return plain_session(model.SerializeToString(), sess_options=settings, enable_fallback=0)


def _run_session(session: Any, case: Case) -> dict[str, Array]:
    import onnxruntime

    feeds = {}
    for name in case.runtime:
        array = case.inputs[name]
        feeds[name] = onnxruntime.OrtValue.ortvalue_from_shape_and_type(list(array.shape), dtype_code(array))
        data = _bytes(array)
        ctypes.memmove(feeds[name].data_ptr(), data, len(data))
    values = session.run_with_ort_values(list(case.outputs), feeds)
    return {
        name: _array(ctypes.string_at(v.data_ptr(), v.tensor_size_in_bytes()), v.element_type(), v.shape())
        for name, v in zip(case.outputs, values, strict=True)
    }


def _run_case(case: Case, options: Mapping[str, Any], report: Path) -> Row:
    results = evaluate(case.steps, case.inputs)
    report.unlink(missing_ok=True)
    try:
        got = _run_session(_open(_model(case, results), {**options, "claim_report": report}), case)
    except Exception as error:  # onnxruntime has no common base class of its errors
        return Row(case.name, "-", math.inf, 0.0, _first_line(error))
    site = json.loads(report.read_text(encoding="utf-8").splitlines()[0])
    if not site["claimed"]:
        return Row(case.name, "-", math.inf, 0.0, f"not run by the execution provider: {site['message']}")
    note = site.get("backend_reason", {}).get("message", "")
    slack = case.offset * DIRECTML_MEAN_ROUNDING if site["backend"] == "directml" else 0.0
    worst, allowed = 0.0, 1.0
    for name in case.outputs:
        distance, limit = error_of(results[name], got[name]), limit_of(results[name]) + slack
        if distance / limit >= worst / allowed:
            worst, allowed = distance, limit
    return Row(case.name, site["backend"], worst, allowed, note)


def _run_island(case: IslandCase, options: Mapping[str, Any], report: Path) -> Row:
    report.unlink(missing_ok=True)
    try:
        session = _open(case.model(IR_VERSION), {**options, "directml_report": report})
        (got,) = session.run(None, {name: case.inputs[name] for name in case.runtime})
    except Exception as error:  # onnxruntime has no common base class of its errors
        return Row(case.name, "-", math.inf, 0.0, _first_line(error))
    backend = "directml" if report.exists() else "cpu"
    note = "" if report.exists() else f"{case.operator} is left to ONNX Runtime"
    return Row(case.name, backend, error_of(case.expected, got), limit_of(case.expected), note)


def run(pattern: str = "", **options: Any) -> Iterator[Row]:
    """Run the cases whose name contains ``pattern`` and yield a row for each.

    Args:
        pattern: Part of the case's name; "" for all.
        options: As for :func:`normfuse.session_options`, ``backend`` among them.

    Raises:
        NormfuseError: An option is wrong, or onnxruntime, the native library or the backend cannot be had.
    """
    chosen, islands = _chosen(cases(), pattern), _islands(pattern, options)
    if not chosen and not islands:
        return
    # A GPU is open as long as a session uses it, and opening it takes long: this one holds it until the last case.
    held = _open_backend(options)
    with tempfile.TemporaryDirectory() as folder:
        for case in chosen:
            yield _run_case(case, options, Path(folder) / "claims.jsonl")
        for island in islands:
            yield _run_island(island, options, Path(folder) / "calls.jsonl")
    del held


def _open_backend(options: Mapping[str, Any]) -> Any:
    """A session that holds the backend; its model does nothing."""
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "nothing", values[:1], values[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=IR_VERSION)
    try:
        return _open(model, options)
    except NormfuseError:
        raise
    except Exception as error:  # onnxruntime has no common base class of its errors
        raise NormfuseError(_first_line(error)) from error


def _chosen(given: Sequence[AnyCase], pattern: str) -> list[AnyCase]:
    return [case for case in given if pattern.lower() in case.name.lower()]


def _islands(pattern: str, options: Mapping[str, Any]) -> list[IslandCase]:
    return _chosen(island_cases(), pattern) if options.get("backend") == "directml" else []


def _first_line(error: Exception) -> str:
    line = str(error).strip().splitlines()[0]
    return line[max(line.find("DirectML path: "), 0) :]  # without onnxruntime's words around ours


def _print_while_running(rows: Iterable[Row], width: int) -> list[Row]:
    printed: list[Row] = []
    for row in rows:
        if not printed:
            print(f"{'case':{width}}  backend   error     allowed")
        verdict = "" if row.right else "  MISS"
        note = f"  ({row.note})" if row.note else ""
        print(f"{row.name:{width}}  {row.backend:8}  {row.error:8.1e}  {row.allowed:8.1e}{verdict}{note}", flush=True)
        printed.append(row)
    return printed


def _print_sum(rows: Sequence[Row]) -> None:
    missed = sum(not row.right for row in rows)
    where = ", ".join(f"{sum(r.backend == b for r in rows)} on {b}" for b in sorted({r.backend for r in rows}))
    print(f"\n{len(rows)} cases ({where}), {missed} wrong")


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m normfuse.selftest", description=__doc__)
    parser.add_argument("--backend", choices=["cpu", "directml"], default="cpu")
    parser.add_argument("--filter", default="", metavar="TEXT", help="only cases whose name contains TEXT")
    for name in ("directml_library", "d3d12_library", "dxcore_library"):
        parser.add_argument(
            f"--{name.replace('_', '-')}", metavar="FILE", help="library to use instead of the system's"
        )
    parser.add_argument("--adapter-index", metavar="N", help="graphics adapter, by its position in the system's list")
    parser.add_argument("--adapter-luid", metavar="LUID", help="graphics adapter, by its LUID")
    parser.add_argument("--adapter-preference", choices=["high_performance", "minimum_power"])
    given = vars(parser.parse_args(arguments))
    pattern = given.pop("filter")
    names = [case.name for case in _chosen(cases(), pattern)] + [case.name for case in _islands(pattern, given)]
    width = max(map(len, names), default=0)
    if not width:
        print(f"selftest: no case has '{pattern}' in its name", file=sys.stderr)
        return 2
    try:
        rows = _print_while_running(run(pattern, **{k: v for k, v in given.items() if v is not None}), width)
    except NormfuseError as error:
        print(f"selftest: {error}", file=sys.stderr)
        return 2
    _print_sum(rows)
    return 0 if all(row.right for row in rows) else 1
