"""Microsoft's own DirectML accepts what we lower, and refuses what our table of rules calls impossible.

No Direct3D 12 is needed: ``directml_validate`` hands the library a stand-in device, which CreateOperator only asks for
features (tests/native/directml). Feature levels 5_0 and 6_2 are Linux libraries; 6_4 is DirectML.dll, under Wine.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import directml_libraries as libraries
import pytest

SUMMARY = re.compile(r"feature level (\S+): (\d+) operators created, (\d+) lowerings accepted, (\d+) declined")


def check(output: str, feature_level: str, *, accepted: int) -> None:
    match = SUMMARY.search(output)
    assert match, output
    assert match[1] == feature_level
    assert int(match[3]) >= accepted, output
    assert output.rstrip().endswith("0 misses"), output


def validate(command: list[str], **variables: str) -> str:
    done = subprocess.run(
        command,
        check=False,
        capture_output=True,
        text=True,
        timeout=540,
        stdin=subprocess.DEVNULL,
        env={**os.environ, **variables},
    )
    output = done.stdout + done.stderr
    assert done.returncode in (0, 1), output
    return output


@pytest.mark.slow
@pytest.mark.parametrize(("feature_level", "accepted"), [("5_0", 1400), ("6_2", 2000)])
def test_linux_library(feature_level: str, accepted: int) -> None:
    programs = libraries.build_native()
    stand_ins = programs / "stand_ins"
    command = [
        *(str(programs / "directml_validate"), feature_level, "3000"),
        *(str(stand_ins / "libd3d12.so"), str(stand_ins / "libdxcore.so"), str(libraries.fetch(feature_level))),
    ]
    # 4-bit tensors came with 6_3, and up to half of the random chains has one; statistics as outputs are avoided
    # below 6_2; nothing else is declined.
    output = validate(command)
    check(output, feature_level, accepted=accepted)
    reasons = re.findall(r"declined +\d+: (.*)", output)
    assert reasons
    known = re.compile("int4.* 6_3|inverse standard deviation.* 6_2")
    assert all(known.search(reason) for reason in reasons), reasons


@pytest.mark.cross
def test_windows_library() -> None:
    programs = libraries.WINDOWS / "native_tests" / "directml"
    library = libraries.fetch("6_4")

    def windows(path: Path) -> str:
        return "Z:" + str(path).replace("/", "\\")

    command = [
        *("wine", str(programs / "directml_validate.exe"), "6_4", "3000"),
        *(windows(programs / "stand_ins" / "dxcore.dll"), windows(library)),
    ]
    prefix = str(libraries.ROOT / "build" / "wine")
    output = validate(command, WINEDEBUG="-all", WINEPREFIX=prefix, DISPLAY="")
    check(output, "6_4", accepted=3000)
