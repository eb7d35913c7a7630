"""What sessions become on a machine with a GPU, by each way of asking for the execution provider.

Started by test_gpu_device.py in a process of its own, with fake_gpu.cc's library as NORMFUSE_LIBRARY:
``python gpu_probe.py FAKE_DIRECTML``. Prints a JSON object: way -> what runs the chain and how far it is from
onnxruntime's result, or why there is no session.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

import normfuse
from normfuse import models

FAKE = sys.argv[1]
MODEL = models.chain([4, 64], activation_name="gelu", opset=20)
X = np.random.default_rng(0).standard_normal((4, 64)).astype(np.float32)
DIRECTML = {"backend": "directml", "directml_library": FAKE, "d3d12_library": FAKE}
WITH_DXCORE = {**DIRECTML, "dxcore_library": FAKE}

Options = dict[str, str]


def ours(options: Options) -> ort.InferenceSession:
    return session(normfuse.session_options(**options))


def by_devices(devices: list[ort.OrtEpDevice]) -> Callable[[Options], ort.InferenceSession]:
    def create(options: Options) -> ort.InferenceSession:
        settings = ort.SessionOptions()
        settings.add_provider_for_devices(devices, options)
        return session(settings)

    return create


def by_name(options: Options) -> ort.InferenceSession:
    return session(ort.SessionOptions(), providers=[(normfuse.get_ep_name(), options), "CPUExecutionProvider"])


def twice(options: Options) -> ort.InferenceSession:
    """The backend is changed on options that have the execution provider already."""
    return session(normfuse.session_options(normfuse.session_options(**WITH_DXCORE), **options))


def one_after_the_other(options: Options) -> ort.InferenceSession:
    """Both devices, each with options of its own."""
    settings = ort.SessionOptions()
    settings.add_provider_for_devices(normfuse.register(), options)
    settings.add_provider_for_devices(normfuse.register("directml"), WITH_DXCORE)
    return session(settings)


def session(settings: ort.SessionOptions, **selected: Any) -> ort.InferenceSession:
    return ort.InferenceSession(MODEL.SerializeToString(), sess_options=settings, enable_fallback=0, **selected)


def outcome(create: Callable[[Options], ort.InferenceSession], options: Options) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "claims.jsonl"
        try:
            made = create({"claim": "all", "claim_report": str(report), **options})
            difference = float(np.abs(made.run(None, {"x": X})[0] - EXPECTED).max())
        except Exception as error:  # what the test judges
            return {"error": f"{type(error).__name__}: {error}"}
        backends = {json.loads(line)["backend"] for line in report.read_text("utf-8").splitlines()}
        return {"backend": sorted(backends), "difference": difference}


os.chdir(Path(FAKE).parent)
normfuse.register()
BOTH = [device for device in ort.get_ep_devices() if device.ep_name == normfuse.get_ep_name()]
EXPECTED = ort.InferenceSession(MODEL.SerializeToString(), providers=["CPUExecutionProvider"]).run(None, {"x": X})[0]
GPU = normfuse.register("directml")
RELATIVE = {**WITH_DXCORE, "directml_library": f"./{Path(FAKE).name}", "d3d12_library": Path(FAKE).name}
WAYS = {
    "session_options": (ours, {}),
    "both devices": (by_devices(BOTH), {}),
    "registered": (by_devices(normfuse.register()), {}),
    "name": (by_name, {}),
    "GPU": (by_devices(GPU), {}),
    "back to auto": (twice, {"backend": "auto"}),
    "one after the other": (one_after_the_other, {}),
    "directml, nothing there": (ours, {"backend": "directml"}),
    "directml, no dxcore": (ours, DIRECTML),
    "directml": (ours, WITH_DXCORE),
    "directml, relative": (ours, RELATIVE),
    "directml, relative, plain": (by_devices(GPU), {**RELATIVE, "d3d12_library": FAKE}),
    "directml, both devices": (by_devices(BOTH), WITH_DXCORE),
    "directml, GPU": (by_devices(GPU), WITH_DXCORE),
    "directml, CPU device": (by_devices(normfuse.register()), DIRECTML),
    "directml, unknown LUID": (ours, {**WITH_DXCORE, "adapter_luid": "8"}),
    "directml, LUID": (ours, {**WITH_DXCORE, "adapter_luid": "0x7"}),
}
print(json.dumps({name: outcome(create, options) for name, (create, options) in WAYS.items()}, indent=1))
