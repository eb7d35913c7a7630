"""A machine with a GPU: nothing but ``backend="directml"`` makes DirectML run the chains, and it says what it lacks.

test_probes.py runs this in a process of its own, with fake_gpu.cc's library as NORMFUSE_LIBRARY: it adds a GPU to the
devices that onnxruntime lists. DirectML is fake, too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import directml_libraries as libraries
import numpy as np
import onnxruntime as ort
import pytest

import normfuse
from normfuse import models
from normfuse.selftest.diagnosis import diagnose

FAKE, STUB = str(libraries.build_fake()), str(libraries.build_link_stub())
MODEL = models.chain([4, 64], activation_name="gelu", opset=20)
X = np.random.default_rng(0).standard_normal((4, 64)).astype(np.float32)
DIRECTML = {"backend": "directml", "directml_library": FAKE, "d3d12_library": FAKE}
WITH_DXCORE = {**DIRECTML, "dxcore_library": FAKE}
RELATIVE = {**WITH_DXCORE, "directml_library": f"./{Path(FAKE).name}", "d3d12_library": Path(FAKE).name}

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


CPU, GPU = normfuse.register(), normfuse.register("directml")
BOTH = [device for device in ort.get_ep_devices() if device.ep_name == normfuse.get_ep_name()]
Way = tuple[Callable[[Options], ort.InferenceSession], Options, str]
# How a session is made, with which options, and what runs the chain.
WAYS: dict[str, Way] = {
    "session_options": (ours, {}, "cpu"),
    "both devices": (by_devices(BOTH), {}, "cpu"),
    "registered": (by_devices(CPU), {}, "cpu"),
    "name": (by_name, {}, "cpu"),
    "GPU": (by_devices(GPU), {}, "cpu"),
    "back to auto": (twice, {"backend": "auto"}, "cpu"),
    "directml": (ours, WITH_DXCORE, "directml"),
    "directml, relative": (ours, RELATIVE, "directml"),
    "directml, relative, plain": (by_devices(GPU), {**RELATIVE, "d3d12_library": FAKE}, "directml"),
    "directml, both devices": (by_devices(BOTH), WITH_DXCORE, "directml"),
    "directml, GPU": (by_devices(GPU), WITH_DXCORE, "directml"),
    "directml, CPU device": (by_devices(CPU), DIRECTML, "directml"),
    "directml, LUID": (ours, {**WITH_DXCORE, "adapter_luid": "0x7"}, "directml"),
}
MISSING = [
    f"cannot load lib{name}.so (name the library by the option {name}_library)"
    for name in ("dxcore", "d3d12", "directml")
]
# And why there is no session, as an expression. onnxruntime keeps one set of options for both devices: it does not run
# with the other one's.
REFUSED: dict[str, Way] = {
    "nothing there": (
        ours,
        {"backend": "directml"},
        "^Option backend is 'directml': " + ".*".join(map(re.escape, MISSING)) + ".*; or use backend=cpu.$",
    ),
    "no dxcore": (ours, DIRECTML, r"^((?!d3d12).)*libdxcore\.so((?!d3d12).)*$"),
    "unknown LUID": (ours, {**WITH_DXCORE, "adapter_luid": "8"}, "GetAdapterByLuid failed"),
    "one after the other": (one_after_the_other, {}, "already been registered"),
    # Libraries to link with, which a package may bring along and LD_LIBRARY_PATH find.
    **{
        f"a stub of {library}": (
            ours,
            {**WITH_DXCORE, f"{library}_library": STUB},
            f"{function} of {STUB} says that it succeeded, but gives no object.* by the option {library}_library",
        )
        for library, function in (
            ("d3d12", "D3D12CreateDevice"),
            ("directml", "DMLCreateDevice1"),
            ("dxcore", "DXCoreCreateAdapterFactory"),
        )
    },
}


@pytest.mark.parametrize("way", WAYS)
def test_what_runs_the_chain(way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    create, options, backend = WAYS[way]
    monkeypatch.chdir(Path(FAKE).parent)
    report = tmp_path / "claims.jsonl"
    (y,) = create({"claim": "all", "claim_report": str(report), **options}).run(None, {"x": X})
    plain = ort.InferenceSession(MODEL.SerializeToString(), providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(y, plain.run(None, {"x": X})[0], rtol=0, atol=1e-5)
    assert {json.loads(line)["backend"] for line in report.read_text("utf-8").splitlines()} == {backend}


@pytest.mark.parametrize("way", REFUSED)
def test_what_is_missing_is_named(way: str) -> None:
    create, options, why = REFUSED[way]
    with pytest.raises(Exception, match=re.compile(why, re.DOTALL)):
        create({"claim": "all", **options})


def test_doctor_is_content() -> None:
    findings = {finding.name: finding for finding in diagnose()}
    assert [name for name, finding in findings.items() if not finding.ok] == []
    assert findings["instruction set"].text
    assert "GPU" in findings["registration"].text
