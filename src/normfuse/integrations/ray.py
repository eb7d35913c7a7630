"""Batch scoring and batch optimising on a Ray cluster.

:class:`Predictor` is for ``ray.data.Dataset.map_batches``; :func:`optimize_folder` is :func:`normfuse.optimize` for
every model of a folder, also as ``python -m normfuse.integrations.ray SOURCE TARGET``.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import ray
import ray.data

from normfuse.errors import NormfuseError, OptionError
from normfuse.model_files import check_target
from normfuse.optimization import optimize
from normfuse.report_files import write_report
from normfuse.sessions import InferenceSession

__all__ = ["Predictor", "optimize_folder"]


class Predictor:
    """Runs a model on the batches of a Ray dataset, in a session that each worker creates once.

    For ``dataset.map_batches(Predictor, fn_constructor_args=(model,), concurrency=workers, num_cpus=cpus)``. The
    session runs on as many threads as the worker has CPUs, so that workers do not crowd each other.

    Args:
        model: A path that every worker can read, the bytes of a model, or a ``ray.ObjectRef`` to them
            (``ray.put(bytes)``): then no shared file system is needed.
        ep_options: Options of the execution provider, see :func:`normfuse.session_options`.

    Raises:
        InvalidModelError: The model cannot be read, or ONNX Runtime cannot load it.
        OptionError: An option is unknown or has a value that it does not take.
    """

    def __init__(self, model: str | os.PathLike[str] | bytes | ray.ObjectRef, **ep_options: Any) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = _worker_threads()
        options.inter_op_num_threads = 1
        given = ray.get(model) if isinstance(model, ray.ObjectRef) else model
        self.session = InferenceSession(given, options, **ep_options)
        self._inputs = [value.name for value in self.session.get_inputs()]
        self._outputs = [value.name for value in self.session.get_outputs()]

    def __call__(self, batch: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return the batch with the model's outputs added under their names; columns that are no inputs are kept.

        Raises:
            OptionError: A column that the model reads is missing.
        """
        missing = [name for name in self._inputs if name not in batch]
        if missing:
            raise OptionError(f"The dataset has no column '{missing[0]}', which the model reads; it has {list(batch)}.")
        results = self.session.run(self._outputs, {name: batch[name] for name in self._inputs})
        return {**batch, **dict(zip(self._outputs, results, strict=True))}


def _worker_threads() -> int:
    """Return the number of CPUs that Ray gave this worker, at least 1."""
    return max(1, int(ray.get_runtime_context().get_assigned_resources().get("CPU", 1)))


def optimize_folder(
    source: str | os.PathLike[str], target: str | os.PathLike[str], **options: Any
) -> list[dict[str, Any]]:
    """Optimise every ``*.onnx`` file of a folder and of those in it, one model to a Ray task.

    Args:
        source: The folder to read, on a file system that all workers share.
        target: The folder to write to, with the same names; a report ``<name>.json`` lies beside each model.
        options: Of :func:`normfuse.optimize`.

    Returns:
        For each model its "model" (path below source), "fused", "sites", and "error": "" or the sentence that says why
        this one was not written. One model that fails does not keep the others back.

    Raises:
        OptionError: There is no such folder, no model in it, or source and target are the same.
    """
    folder, written = Path(source).resolve(), Path(target).resolve()
    models = sorted(path.relative_to(folder) for path in folder.rglob("*.onnx"))
    if not models:
        raise OptionError(f"{folder} holds no *.onnx file.")
    if folder in (written, *written.parents):
        raise OptionError(f"{written} lies in the folder that is read; name another one.")

    def optimize_one(row: dict[str, Any]) -> dict[str, Any]:
        result = {"model": row["model"], "fused": 0, "sites": 0, "error": ""}
        path = written / row["model"]
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            check_target(path)
            optimized = optimize(folder / row["model"], **options)
            optimized.save(path)
            write_report(optimized.report.to_dict(), path.with_name(f"{path.name}.json"))
        except (NormfuseError, OSError) as error:
            return result | {"error": str(error)}
        report = optimized.report
        return result | {"fused": len(report.fused), "sites": len(report.fused) + len(report.left)}

    rows = ray.data.from_items([{"model": str(path)} for path in models], override_num_blocks=len(models))
    return sorted(rows.map(optimize_one, num_cpus=1).take_all(), key=lambda row: str(row["model"]))


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python -m normfuse.integrations.ray SOURCE TARGET")
    done = optimize_folder(sys.argv[1], sys.argv[2])
    print(json.dumps(done, indent=2))
    sys.exit(any(row["error"] for row in done))
