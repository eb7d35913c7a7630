"""The DirectML that the tests run on."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from pathlib import Path

import directml_libraries as libraries
import pytest
from directml_islands import FakeGpu

OF_LINUX = ("6_2", "5_0")


@pytest.fixture(scope="module", params=["6_4", *(pytest.param(level, marks=pytest.mark.slow) for level in OF_LINUX)])
def fake(request: pytest.FixtureRequest) -> Iterator[dict[str, str]]:
    """Options for the fake DirectML. At the levels of Microsoft's Linux libraries these are asked, too.

    That they are is shown by test_islands.py: not every test that a process may be given has anything to ask.
    """
    path = str(libraries.build_fake())
    with pytest.MonkeyPatch.context() as patch:
        if request.param in OF_LINUX:
            patch.setenv("NORMFUSE_FAKE_DIRECTML_LEVEL", f"0x{request.param.replace('_', '')}00")
            patch.setenv("NORMFUSE_ASK_DIRECTML", libraries.microsofts(request.param))
        options = {"directml_library": path, "d3d12_library": path}
        # test_probes.py runs the tests so.
        yield {**options, "device_memory": "1"} if os.environ.get("NORMFUSE_DEVICE_MEMORY") == "1" else options
        assert libraries.counted(path, "violations") == 0


@pytest.fixture
def gpu(tmp_path: Path) -> Iterator[FakeGpu]:
    """One of the test's own, which breaks no rule of DirectML, and of which nothing is left behind the test."""
    gpu = FakeGpu(tmp_path)
    yield gpu
    gc.collect()
    assert (gpu["violations"], gpu["live_objects"]) == (0, 0)
