"""Batch scoring and batch optimising on a Ray cluster.

:class:`Predictor` is for ``ray.data.Dataset.map_batches``; :func:`run_tasks` is how
:func:`normfuse.folders.optimize_folder` spreads its models over a cluster.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import onnxruntime
import ray
import ray.data
import ray.exceptions

from normfuse.errors import NormfuseError, OptionError
from normfuse.sessions.inference_session import InferenceSession

Row = TypeVar("Row", bound=Mapping[str, Any])
"""What JSON can hold."""


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


def run_tasks(work: Callable[[str], Row], names: Sequence[str]) -> Iterator[Row]:
    """Call ``work`` with each name, in a task of its own, and yield the results as they come.

    Uses the Ray that this process is connected to; otherwise the cluster of RAY_ADDRESS, or one on this machine, which
    ends with the last row.

    Raises:
        NormfuseError: Ray cannot be started or reached, or lost its workers for good.
    """
    own = not ray.is_initialized()
    if own:
        local = {} if os.environ.get("RAY_ADDRESS") else {"address": "local", "include_dashboard": False}
        try:
            ray.init(log_to_driver=False, logging_level=logging.ERROR, **local)
        except Exception as error:  # Ray raises what its parts raise
            raise NormfuseError(
                f"Ray cannot be started or reached: {_first_line(error)}; --engine local works without it."
            ) from error
        logging.getLogger("ray.data").setLevel(logging.ERROR)
    try:
        ray.data.DataContext.get_current().enable_progress_bars = False
        rows = ray.data.from_items([{"name": name} for name in names], override_num_blocks=len(names))
        done = rows.map(lambda row: {"json": json.dumps(work(row["name"]))}, num_cpus=1)
        # As text: a column of Ray's has one type, and what is not known is null.
        yield from (json.loads(row["json"]) for row in done.iter_rows())
    except ray.exceptions.RayError as error:
        raise NormfuseError(f"Ray failed: {_first_line(error)}; --engine local works without it.") from error
    finally:
        if own:
            ray.shutdown()


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
