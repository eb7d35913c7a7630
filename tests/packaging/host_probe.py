"""Runs models in one version of onnxruntime, with the library under test, and reports what happened.

Started by test_version_matrix.py in an environment that holds onnxruntime and numpy only:
``python host_probe.py LIBRARY FOLDER``. The folder holds ``<name>.onnx`` and ``<name>.npz`` (inputs) for every case;
``<name>.<route>.result.npz`` (outputs) and ``report.json`` are written there. With slot_guard.cc's library between,
the report also holds its counts.
"""

import ctypes
import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

EP_NAME = "NormFuseExecutionProvider"


def plugin_session(library: str, model: Path) -> onnxruntime.InferenceSession:
    devices = [device for device in onnxruntime.get_ep_devices() if device.ep_name == EP_NAME]
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    claims = str(model.with_suffix(".claims.jsonl"))
    options.add_provider_for_devices(devices[:1], {"claim": "all", "claim_report": claims})
    return onnxruntime.InferenceSession(model, sess_options=options, enable_fallback=0)


def custom_op_session(library: str, model: Path) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.register_custom_ops_library(library)
    return onnxruntime.InferenceSession(model, sess_options=options, providers=["CPUExecutionProvider"])


def both_session(library: str, model: Path) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    options.register_custom_ops_library(library)
    devices = [device for device in onnxruntime.get_ep_devices() if device.ep_name == EP_NAME]
    options.add_provider_for_devices(devices[:1], {"claim": "all"})
    return onnxruntime.InferenceSession(model, sess_options=options, enable_fallback=0)


ROUTES = {"plugin": plugin_session, "custom": custom_op_session, "both": both_session}


def run(library: str, model: Path) -> dict[str, Any]:
    route = model.name.split(".")[-2]
    session = ROUTES[route](library, model)
    with np.load(model.with_suffix("").with_suffix(".npz")) as inputs:
        names = [value.name for value in session.get_outputs()]
        outputs = session.run(names, dict(inputs))
    np.savez(model.with_suffix(".result.npz"), **dict(zip(names, outputs, strict=True)))
    if route == "custom":
        return {}
    return {
        "assigned": [
            [subgraph.ep_name, [node.op_type for node in subgraph.get_nodes()]]
            for subgraph in session.get_provider_graph_assignment_info()
        ]
    }


def attempt(step: Any, *arguments: Any) -> dict[str, Any]:
    try:
        return step(*arguments) or {}
    except Exception as error:  # the report is what the test judges
        return {"error": f"{type(error).__name__}: {error}"}


def main() -> None:
    library, folder = sys.argv[1], Path(sys.argv[2])
    report: dict[str, Any] = {"version": onnxruntime.__version__}
    report["register"] = attempt(onnxruntime.register_execution_provider_library, "normfuse", library)
    for model in sorted(folder.glob("*.onnx")):
        report[model.stem] = attempt(run, library, model)
    if "NORMFUSE_GUARDED_LIBRARY" in os.environ:
        counts = ctypes.CDLL(library).SlotCounts
        counts.restype = ctypes.c_char_p
        report["slots"] = counts().decode().splitlines()
    (folder / "report.json").write_text(json.dumps(report, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
