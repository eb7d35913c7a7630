"""The DirectML that the tests run on."""

from __future__ import annotations

import os
from collections.abc import Iterator

import directml_libraries as libraries
import pytest

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
