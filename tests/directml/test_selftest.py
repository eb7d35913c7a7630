"""The self-test tells right from wrong, and runs through the execution provider on each backend.

DirectML is a fake here that computes on the CPU (tests/native/directml): the options, claims, lowering, upload, graph
and readback are the real ones.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import directml_libraries as libraries
import numpy as np
import pytest
from directml_islands import FakeGpu

from normfuse import selftest
from normfuse.meaning import Expected, evaluate
from normfuse.selftest.cases import cases, error_of
from normfuse.selftest.islands import island_cases
from normfuse.spec.directml import DIRECTML_OPERATORS


@pytest.fixture(scope="module")
def fake() -> str:
    return str(libraries.build_fake())


def test_cpu_is_right(capsys: pytest.CaptureFixture[str]) -> None:
    assert selftest.main(["--backend", "cpu"]) == 0
    output = capsys.readouterr().out
    assert f"{len(cases())} cases ({len(cases())} on cpu), 0 wrong" in output
    assert "MISS" not in output


@pytest.mark.parametrize(
    ("level", "on_cpu"),
    [
        ("0x6400", 1),
        pytest.param("0x6200", 9, marks=pytest.mark.slow),
        pytest.param("0x5000", 10, marks=pytest.mark.slow),
        ("0x2100", 10),
    ],
)
def test_directml_is_right(
    fake: str, level: str, on_cpu: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What a level lacks runs on the CPU path: bfloat16 at any, 4-bit tensors below 6_3, statistics below 6_2. Two
    comparisons came with 3_0: below it ONNX Runtime writes them with others."""
    monkeypatch.setenv("NORMFUSE_FAKE_DIRECTML_LEVEL", level)
    # Loaded once in a process, the fake keeps its level: a copy is another library.
    copy = Path(fake).with_name(f"libfake_directml_{level}.so")
    copy.write_bytes(Path(fake).read_bytes())
    given = ["--directml-library", str(copy), "--d3d12-library", str(copy)]
    assert selftest.main(["--backend", "directml", *given]) == 0
    output = capsys.readouterr().out
    total = len(cases()) + len(island_cases())
    assert f"{total} cases ({on_cpu} on cpu, {total - on_cpu} on directml), 0 wrong" in output, output
    reasons = [line for line in output.splitlines() if " cpu " in line]
    assert all("DirectML" in line for line in reasons), reasons


def test_one_device_for_all_cases_and_rows_as_they_come(gpu: FakeGpu) -> None:
    """Opening a GPU takes seconds; on a slow one a case does as well."""
    rows = selftest.run(backend="directml", **gpu.options)
    first = next(rows)
    assert (first.right, gpu["devices"]) == (True, 1)
    assert all(row.right for row in rows)
    assert gpu["devices"] == 1


def test_backend_that_cannot_be_opened(fake: str, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--directml-library", fake, "--d3d12-library", fake, "--dxcore-library", fake, "--adapter-index", "9"]
    assert selftest.main(["--backend", "directml", *given]) == 2
    assert capsys.readouterr().err.startswith("selftest: DirectML path: there is no adapter 9; this machine has: 0:")


def test_missing_library(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    library = tmp_path / "libdirectml.so"
    library.write_bytes(b"not a library")
    assert selftest.main(["--backend", "directml", "--directml-library", str(library)]) == 2
    message = capsys.readouterr().err
    assert "cannot load" in message
    assert message.count("\n") == 1


def test_library_that_is_another_one(fake: str, capsys: pytest.CaptureFixture[str]) -> None:
    import normfuse

    other = normfuse.get_library_path()
    assert selftest.main(["--backend", "directml", "--directml-library", other, "--d3d12-library", fake]) == 2
    assert "does not export DMLCreateDevice1" in capsys.readouterr().err


def test_unknown_case(capsys: pytest.CaptureFixture[str]) -> None:
    assert selftest.main(["--filter", "no such case"]) == 2
    assert "no such case" in capsys.readouterr().err


def test_wrong_numbers_are_found(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def off(*given: Any) -> dict[str, Expected]:
        right = evaluate(*given).items()
        return {name: replace(e, exact=e.exact + 3e-3 * (1 + np.abs(e.exact))) for name, e in right}

    monkeypatch.setattr(selftest, "evaluate", off)
    assert selftest.main(["--filter", "GroupNorm"]) == 1
    output = capsys.readouterr().out
    assert output.count("MISS") == 2
    assert "2 cases (2 on cpu), 2 wrong" in output


def test_nan_is_wrong() -> None:
    right = evaluate("Relu", {"X": np.array([1.0, 2.0], np.float32)})["Y"]
    assert error_of(right, np.array([1.0, np.nan], np.float32)) == np.inf
    assert error_of(right, np.array([[1.0, 2.0]], np.float32)) == np.inf
    assert error_of(right, np.array([1.0, 2.0], np.float32)) == 0.0


def test_every_operator_of_an_island_has_a_case() -> None:
    assert sorted(case.operator for case in island_cases()) == sorted(DIRECTML_OPERATORS)


def test_every_case_is_named_once() -> None:
    names = [case.name for case in (*cases(), *island_cases())]
    assert len(set(names)) == len(names)
