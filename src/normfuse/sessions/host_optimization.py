"""A model as ONNX Runtime's CPU provider optimises it by itself, for what a session does before it is created."""

from __future__ import annotations

import functools
import logging
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import onnx
import onnx_ir as ir

from normfuse.files.model_files import find_external_data, runnable
from normfuse.graph_rewrites.engine.traversal import graphs_of
from normfuse.host.config_entries import (
    EXTERNAL_DATA_FOLDER,
    OF_INTEGERS,
    disable_optimizer,
    set_entry,
    users_disabled_optimizers,
    users_entry,
)
from normfuse.host.messages import words_of
from normfuse.host.native_library import get_library_path
from normfuse.host.plain_sessions import plain_session
from normfuse.host.versions import import_host
from normfuse.host.wire_format import MODEL_GRAPH, fields, read
from normfuse.spec import OPERATOR_DOMAIN

if TYPE_CHECKING:
    import onnxruntime

__all__ = ["FUSES_CHAINS", "failures", "optimized_by_host"]

_log = logging.getLogger("normfuse")

FUSES_CHAINS = """
    AttentionFusion BiasDropoutFusion BiasGeluFusion BiasSkipLayerNormFusion BiasSoftmaxFusion EmbedLayerNormFusion
    FastGeluFusion GeluFusionL2 LayerNormFusionL2 MatMulNBitsFusion QuickGeluFusion SimplifiedLayerNormFusion
    SkipLayerNormFusion
""".split()  # noqa: SIM905 -- a list is one name a line, when formatted
"""ONNX Runtime's optimizers that make other nodes of those of chains, once providers have claimed theirs: to be done
when ours are claimed, as ever."""

_FAILURES: list[str] = []
_PIECE = 1 << 20


def failures() -> int:
    """Return how often ONNX Runtime could not do it: the reason may be gone next time (no room for the file)."""
    return len(_FAILURES)


def optimized_by_host(
    model: ir.Model, options: onnxruntime.SessionOptions, disabled: Iterable[str], *, gives_up: bool = False
) -> ir.Model | None:
    """Return the model as ONNX Runtime's CPU provider would run it on this processor.

    Args:
        model: It may hold normfuse's custom operators.
        options: Those of the session that is to be created; they are not changed. What the user says there about
            integers and about optimizers is done; what an earlier session on them needed is not.
        disabled: Names of ONNX Runtime's optimizers that are left out as well; unknown ones are ignored.
        gives_up: Nothing else has need of the model: its weights go before ONNX Runtime has them.

    Returns:
        None where ONNX Runtime cannot do it alone: the user's own operators, perhaps, whose library only the options of
        the session know, which do not say it; or no room for a temporary file. A line of the log says why.
    """
    host = import_host()
    own = host.SessionOptions()
    own.log_severity_level = 4
    own.intra_op_num_threads = 1
    disable_optimizer(own, *disabled, *users_disabled_optimizers(options))
    for key in OF_INTEGERS:
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
                return None  # what stays in a temporary file is found nowhere later
            if gives_up:
                for initializer in (each for graph in graphs_of(model.graph) for each in graph.initializers.values()):
                    initializer.const_value = None
            path = Path(folder) / "optimized.onnx"
            own.optimized_model_filepath = str(path)
            if data_folder is not None:
                own.add_session_config_entry(EXTERNAL_DATA_FOLDER, data_folder)
            plain_session(
                data if isinstance(data, bytes) else str(data),
                own,
                providers=["CPUExecutionProvider"],
                enable_fallback=0,
            )
            optimized = ir.from_proto(_read_in_pieces(path))
            if data_folder is not None:  # weights that it did not change are still there
                find_external_data(optimized, data_folder)
            return optimized
    except Exception as error:
        _FAILURES.append(type(error).__name__)
        _say_once(words_of(error).splitlines()[0])
        return None  # the session that is created instead says what is wrong, and needs no file


def _read_in_pieces(path: Path) -> onnx.ModelProto:
    """Read a model without having its bytes in memory at once; its graph is one field, but is merged from many."""
    model = onnx.ModelProto()
    done = 0
    with path.open("rb") as opened:
        for field, start, end in fields(opened, 0, path.stat().st_size):
            if field != MODEL_GRAPH:
                continue
            head = 1 + max(1, -(-(end - start).bit_length() // 7))
            model.MergeFromString(read(opened, done, start - head))
            done = start
            for _, _, stop in fields(opened, start, end):
                if stop - done >= _PIECE:
                    model.graph.MergeFromString(read(opened, done, stop))
                    done = stop
            model.graph.MergeFromString(read(opened, done, end))
            done = end
        model.MergeFromString(read(opened, done, path.stat().st_size))
    return model


@functools.cache  # it is asked for each form that a model may take
def _say_once(answer: str) -> None:
    _log.info(
        "ONNX Runtime cannot optimise the model by itself, so chains between its convolutions gain less: %s "
        "(operators of a library that is registered with the session's options are not known there.)",
        answer,
    )
