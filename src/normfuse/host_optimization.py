"""A model as ONNX Runtime's CPU provider optimises it by itself, for what a session does before it is created."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from pathlib import Path

import onnx_ir as ir

from normfuse.host.config_entries import EXTERNAL_DATA_FOLDER, disable_optimizer
from normfuse.host.native_library import get_library_path
from normfuse.host.versions import import_host
from normfuse.model_files import runnable
from normfuse.spec import OPERATOR_DOMAIN

__all__ = ["optimized_by_host"]


def optimized_by_host(model: ir.Model, disabled: Iterable[str]) -> ir.Model | None:
    """Return the model as ONNX Runtime's CPU provider would run it on this processor.

    Args:
        model: It may hold normfuse's custom operators, and is not changed.
        disabled: Names of ONNX Runtime's optimizers that are left out; unknown ones are ignored.

    Returns:
        None where ONNX Runtime cannot do it alone: the user's own operators, perhaps, or no room for a temporary file.
    """
    host = import_host()
    options = host.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    disable_optimizer(options, *disabled)
    options.add_session_config_entry("session.disable_prepacking", "1")
    if any(node.domain == OPERATOR_DOMAIN for node in model.graph):
        options.register_custom_ops_library(get_library_path())
    try:
        with tempfile.TemporaryDirectory(prefix="normfuse.") as folder, runnable(model) as (data, data_folder):
            path = Path(folder) / "optimized.onnx"
            options.optimized_model_filepath = str(path)
            if data_folder is not None:
                options.add_session_config_entry(EXTERNAL_DATA_FOLDER, data_folder)
            host.InferenceSession(data, options, providers=["CPUExecutionProvider"], enable_fallback=0)
            return ir.load(path)
    except Exception:
        return None  # the session that is created instead says what is wrong, and needs no file
