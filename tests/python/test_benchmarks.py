"""benchmarks/: what run.py writes and refuses, and an onnxruntime without AVX-512."""

import json
import os
import platform
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
JOB = "LayerNorm f32 [1,128,768]"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(BENCHMARKS / "run.py"), "--quick", *arguments], capture_output=True, text=True
    )


def test_repeated_runs_are_reported_by_the_median_one(tmp_path: Path) -> None:
    done = run("--threads", "1", "--jobs", JOB, "--repeat", "3", "--output", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert [f"run {number} of 3" in done.stdout.splitlines() for number in range(5)] == [False, True, True, True, False]
    (result,) = json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))["results"]
    assert result["job"] == JOB
    assert result["runs"] == sorted(result["runs"])
    assert len(result["runs"]) == 3
    assert result["ratios"]["ORT"] == result["runs"][1]
    assert result["rows"]["normfuse"]["error"] < 1e-6
    assert f"| {JOB} |" in (tmp_path / "results.md").read_text(encoding="utf-8")
    assert JOB in (tmp_path / "results.svg").read_text(encoding="utf-8")


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], dict[str, Any]]:
    """What a script defines, which may change the path of modules."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    return lambda name: runpy.run_path(str(BENCHMARKS / name))


def test_what_cannot_be_measured_is_refused(
    script: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    main = script("run.py")["main"]
    monkeypatch.setattr(sys, "argv", ["run.py", "--repeat", "0"])
    with pytest.raises(SystemExit):
        main()
    assert "0 is not a number of runs" in capsys.readouterr().err
    monkeypatch.setattr(sys, "argv", ["run.py", "--jobs", "Sin"])
    assert main() == 2
    assert "no job's name contains 'Sin'" in capsys.readouterr().err


@pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() != "x86_64", reason="the registers of x86-64, in a library of Linux"
)
def test_an_onnxruntime_that_sees_neither_avx512_nor_vnni(tmp_path: Path) -> None:
    """The copy asks nothing any more, its products of uint8 and int8 saturate, and normfuse runs in it.

    On a processor that has neither, too.
    """
    script = BENCHMARKS / "onnxruntime_without_avx512.py"
    subprocess.run([sys.executable, script, tmp_path], check=True)
    run = f"""if 1:
        import numpy as np, onnx, onnxruntime, normfuse
        assert onnxruntime.__file__.startswith({str(tmp_path)!r}), onnxruntime.__file__
        model = onnx.parser.parse_model('<ir_version: 10, opset_import: ["": 17]> g (float[64, 64] x, float[64] s)'
            ' => (float[64, 64] y) {{ p = MatMul(x, x) n = LayerNormalization(p, s) y = Relu(n) }}')
        x = np.random.default_rng(1).normal(size=(64, 64)).astype(np.float32)
        session = normfuse.InferenceSession(model.SerializeToString())
        (y,) = session.run(None, {{"x": x, "s": np.ones(64, np.float32)}})
        p = x.astype(np.float64) @ x
        expected = (p - p.mean(1, keepdims=True)) / np.sqrt(p.var(1, keepdims=True) + 1e-5)
        np.testing.assert_allclose(y, np.maximum(expected, 0), atol=1e-5)
        model = onnx.parser.parse_model('<ir_version: 10, opset_import: ["": 17]> g (uint8[8, 64] a, int8[64, 16] b)'
            ' => (int32[8, 16] y) {{ y = MatMulInteger(a, b) }}')
        a, b = np.full((8, 64), 255, np.uint8), np.full((64, 16), 127, np.int8)
        (y,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {{"a": a, "b": b}})
        assert (y == 64 // 2 * 32767).all(), y  # of each pair of products
    """
    subprocess.run([sys.executable, "-c", run], check=True, env={**os.environ, "PYTHONPATH": str(tmp_path)})
    without_avx512 = runpy.run_path(str(script))["without_avx512"]
    for library in (tmp_path / "onnxruntime" / "capi").glob("*.so*"):
        assert without_avx512(library.read_bytes())[1:] == (0, 0)


def test_rows_are_kept_from_run_to_run_in_the_order_of_the_models(
    script: Any, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    rows = script("measure.py")

    def row(model: str, threads: int, ratio: float) -> dict[str, Any]:
        return {"model": model, "threads": threads, "normfuse": {"ratio": ratio, "low": ratio, "high": ratio}}

    def collect(*measured: dict[str, Any]) -> list[dict[str, Any]]:
        kept: list[dict[str, Any]] = rows["collected"](measured, ("a", "b"), lambda _: "told", tmp_path / "rows.json")
        assert json.loads((tmp_path / "rows.json").read_text(encoding="utf-8"))["rows"] == kept
        return kept

    first, second, again = row("b", 1, 1.5), row("a", 2, 0.5), row("b", 1, 0.97)
    assert collect(first) == [first]
    assert collect(row("a", 1, 1.1), second) == [row("a", 1, 1.1), first, second]
    found = collect(again)
    assert found == [row("a", 1, 1.1), again, second]
    assert rows["exit_code"](found[:1], ["normfuse", "of another run"]) == 0
    capsys.readouterr()
    assert rows["exit_code"](found, ["normfuse"]) == 1
    assert capsys.readouterr().err.splitlines() == [
        "b, 1 thread(s), normfuse: 0.970 is below 0.98",
        "a, 2 thread(s), normfuse: 0.500 is below 0.98",
    ]
    with pytest.raises(SystemExit, match="Nothing was measured"):
        collect()
    ratios = [{"ratio": 1.0, "low": 0.9, "high": 1.3}, {"ratio": 1.4, "low": 1.1, "high": 1.5}]
    assert rows["over_processes"](ratios) == {"ratio": 1.2, "low": 0.9, "high": 1.5}  # the outermost quartiles
