"""A model as ONNX Runtime's CPU provider optimises it alone, for passes that run before a session is created."""

from __future__ import annotations

import functools
import logging
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import onnx_ir as ir

from normfuse.collection import give_back_memory
from normfuse.files.model_files import find_external_data, runnable
from normfuse.graph_rewrites.engine.traversal import graphs_of
from normfuse.host.config_entries import (
    EXTERNAL_DATA_FOLDER,
    QUANTIZATION_ENTRIES,
    disable_optimizer,
    set_entry,
    users_disabled_optimizers,
    users_entry,
)
from normfuse.host.messages import words_of
from normfuse.host.native_library import get_library_path
from normfuse.host.plain_sessions import plain_session
from normfuse.host.versions import import_host
from normfuse.spec import OPERATOR_DOMAIN

if TYPE_CHECKING:
    import onnxruntime

_log = logging.getLogger("normfuse")

FUSES_CHAINS = """
    AttentionFusion BiasDropoutFusion BiasGeluFusion BiasSkipLayerNormFusion BiasSoftmaxFusion EmbedLayerNormFusion
    FastGeluFusion GeluFusionL2 LayerNormFusionL2 MatMulNBitsFusion QuickGeluFusion SimplifiedLayerNormFusion
    SkipLayerNormFusion
""".split()  # noqa: SIM905 -- a list is one name a line, when formatted
"""ONNX Runtime's optimizers that fuse nodes of chains: they are left to the session itself, where they run after
normfuse's provider has claimed its chains."""

_FAILURES: list[str] = []
_WEIGHTS_FILE = "session.optimized_model_external_initializers_file_name"
_WEIGHTS_LEAST = "session.optimized_model_external_initializers_min_size_in_bytes"


def count_failures() -> int:
    """Return how often ONNX Runtime could not do it: next time it may succeed (there may be room for the file)."""
    return len(_FAILURES)


def optimize_by_host(
    model: ir.Model, options: onnxruntime.SessionOptions, disabled: Iterable[str], *, frees_weights: bool = False
) -> ir.Model | None:
    """Return the model as ONNX Runtime's CPU provider would run it on this processor.

    Args:
        model: It may contain normfuse's custom operators.
        options: Those of the session that is to be created; they are not changed. The user's own settings of
            quantisation and optimizers apply; those that an earlier session on them needed do not.
        disabled: Names of ONNX Runtime's optimizers that are disabled as well; unknown ones are ignored.
        frees_weights: Nothing else needs the model: its weights are freed before ONNX Runtime loads them.

    Returns:
        None if ONNX Runtime cannot do it alone: it may have custom operators of the user, whose library cannot be
        read from the session's options; or there is no room for a temporary file. A line of the log says why.
    """
    host = import_host()
    own = host.SessionOptions()
    own.log_severity_level = 4
    own.intra_op_num_threads = 1
    disable_optimizer(own, *disabled, *users_disabled_optimizers(options))
    for key in QUANTIZATION_ENTRIES:
        if (value := users_entry(options, key)) is not None:
            set_entry(own, key, value)
    own.add_session_config_entry("session.disable_prepacking", "1")
    if any(node.domain == OPERATOR_DOMAIN for node in model.graph):
        own.register_custom_ops_library(get_library_path())
    try:
        with (
            tempfile.TemporaryDirectory(prefix="normfuse.") as folder,
            runnable(model, in_file=True) as (data, data_folder),
        ):
            if not isinstance(data, bytes) and data.with_name(f"{data.name}.data").exists():
                return None  # external data in a temporary file would be lost
            if frees_weights:
                for initializer in (each for graph in graphs_of(model.graph) for each in graph.initializers.values()):
                    initializer.const_value = None
            path = Path(folder) / "optimized.onnx"
            own.optimized_model_filepath = str(path)
            if data_folder is not None:
                own.add_session_config_entry(EXTERNAL_DATA_FOLDER, data_folder)
            else:  # written one by one: inside the model all would be in memory once more
                own.add_session_config_entry(_WEIGHTS_FILE, "weights")
                own.add_session_config_entry(_WEIGHTS_LEAST, "1024")
            give_back_memory()
            plain_session(
                data if isinstance(data, bytes) else str(data),
                own,
                providers=["CPUExecutionProvider"],
                enable_fallback=0,
            )
            give_back_memory()
            return _read(path, data_folder)
    except Exception as error:
        _FAILURES.append(type(error).__name__)
        _say_once(words_of(error).splitlines()[0])
        return None  # the session that is created instead reports what is wrong, and needs no file


def _read(path: Path, unchanged: str | None) -> ir.Model:
    """Return an optimised model, with the external data beside it in memory; data in a user's folder stays there."""
    model = ir.load(path)
    if unchanged is not None:
        find_external_data(model, unchanged)
        return model
    for value in (each for graph in graphs_of(model.graph) for each in graph.initializers.values()):
        tensor = value.const_value
        if isinstance(tensor, ir.ExternalTensor):
            value.const_value = ir.Tensor(tensor.numpy().copy(), dtype=tensor.dtype, name=tensor.name)
            tensor.release()
    return model


@functools.cache  # it is called for each form of the model that is tried
def _say_once(answer: str) -> None:
    _log.info(
        "ONNX Runtime cannot optimise the model by itself, so chains between its convolutions gain less: %s "
        "(operators of a library that is registered with the session's options are not known there.)",
        answer,
    )
