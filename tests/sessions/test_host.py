"""Installations that are not as they should be: each gives one sentence that says what to do."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import onnx
import pytest

import normfuse
import normfuse.models
from normfuse.host.messages import words_of
from normfuse.host.versions import installed_flavours

CALLS = """
import normfuse, normfuse.models
for call in ("register()", "session_options()", "InferenceSession(normfuse.models.chain([2, 8]))"):
    try:
        eval(f"normfuse.{call}")
    except normfuse.NormfuseError as error:
        print(type(error).__name__, error)
"""
WITHOUT = "import sys; sys.modules['onnxruntime'] = None\n"


def python(code: str, path: Path | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    variables = {**os.environ, "PATH": "", **({"PYTHONPATH": str(path)} if path else {}), **environment}
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=variables)


def command(*arguments: str, path: Path | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    code = f"import sys; from normfuse.cli import main; sys.argv = ['normfuse', *{arguments!r}]; main()"
    return python(code, path, **environment)


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """The first line of a package that is called onnxruntime, and found first."""
    (tmp_path / "onnxruntime").mkdir()
    return tmp_path / "onnxruntime" / "__init__.py"


def test_without_onnxruntime() -> None:
    """Rewriting needs none."""
    words = "HostVersionError onnxruntime is not installed: pip install onnxruntime, or another flavour"
    assert words in python(WITHOUT + CALLS).stdout
    code = WITHOUT + (
        "import normfuse, normfuse.models\n"
        "model = normfuse.models.chain([2, 8], spelling='pow_div', opset=13)\n"
        "print(len(normfuse.optimize(model, verify=False).report.fused), len(normfuse.inspect(model)))\n"
    )
    assert python(code).stdout.split() == ["1", "1"]


def test_host_that_is_too_old(package: Path, tmp_path: Path) -> None:
    package.write_text("__version__ = '1.23.2'\n")
    words = f"normfuse {normfuse.__version__} needs onnxruntime 1.24 or newer, and this is onnxruntime 1.23.2"
    assert words in python(CALLS, tmp_path).stdout
    onnx.save(normfuse.models.chain([2, 8]), tmp_path / "model.onnx")
    done = command("bench", str(tmp_path / "model.onnx"), path=tmp_path)
    assert done.returncode == 2, done.stdout + done.stderr
    assert words in " ".join(done.stderr.split())


def test_half_removed_onnxruntime(package: Path, tmp_path: Path) -> None:
    package.touch()
    printed = python(CALLS, tmp_path).stdout
    assert "two flavours installed over each other" in printed
    assert "pip install --force-reinstall onnxruntime" in printed
    package.write_text("import no_such_module_anywhere")
    assert "is installed but cannot be imported: No module named 'no_such" in python(CALLS, tmp_path).stdout


@pytest.mark.parametrize(
    ("content", "words"),
    [(None, "names '.*', which is not a file"), (b"not a library", "could not load .*libnormfuse")],
)
def test_a_library_that_cannot_be_loaded(tmp_path: Path, content: bytes | None, words: str) -> None:
    library, model = tmp_path / "libnormfuse.so", tmp_path / "model.onnx"
    if content is not None:
        library.write_bytes(content)
    printed = python(CALLS, NORMFUSE_LIBRARY=str(library)).stdout
    assert len(re.findall(f"LibraryLoadError .*{words}", printed)) == 3, printed
    onnx.save(normfuse.models.chain([2, 8]), model)
    done = command("bench", str(model), NORMFUSE_LIBRARY=str(library))
    assert done.returncode == 2, done.stdout
    assert "libnormfuse.so" in done.stderr.replace("\n", "")
    assert "Traceback" not in done.stderr


def test_two_flavours_at_once(tmp_path: Path) -> None:
    assert list(installed_flavours()) == ["onnxruntime"]
    info = tmp_path / "onnxruntime_gpu-1.31.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: onnxruntime-gpu\nVersion: 1.31.0\n")
    (info / "RECORD").write_text("onnxruntime/__init__.py,,\n")
    done = python("from normfuse.host.versions import load_host; load_host(); load_host()", tmp_path)
    assert done.returncode == 0
    assert done.stderr.count("are installed at once") == 1
    assert "onnxruntime-gpu 1.31.0" in done.stderr
    assert "pip uninstall -y onnxruntime onnxruntime-gpu, then pip install --force-reinstall onnxruntime" in done.stderr
    done = command("doctor", path=tmp_path)
    assert done.returncode == 1
    assert "pip uninstall -y onnxruntime onnxruntime-gpu" in done.stdout


def test_an_instruction_set_that_is_not_there() -> None:
    words = "OptionError The environment variable NORMFUSE_ISA is 'sse9'; this machine has: "
    assert python(CALLS, NORMFUSE_ISA="sse9").stdout.count(words) == 3


def test_a_session_prints_nothing() -> None:
    """ONNX Runtime warns of nodes that its own CPU provider keeps, which most models have: not a user's first sight."""
    code = (
        "import normfuse, normfuse.models, onnxruntime as ort\n"
        "model = normfuse.models.transformer_encoder(layers=1, hidden=16)\n"
        "normfuse.InferenceSession(model)\n"
        "ort.InferenceSession(model.SerializeToString(), normfuse.session_options())\n"
        "own = ort.SessionOptions()\n"
        "own.log_severity_level = 2\n"
        "print(normfuse.session_options().log_severity_level, normfuse.session_options(own).log_severity_level)\n"
    )
    done = python(code)
    assert (done.stdout, done.stderr) == ("3 2\n", "")


@pytest.mark.parametrize(
    ("code", "printed"),
    [
        ("import normfuse; print([m for m in ('numpy', 'onnx', 'onnx_ir', 'onnxruntime') if m in sys.modules])", "[]"),
        (
            "import normfuse; normfuse.InferenceSession, normfuse.optimize, normfuse.verify\n"
            "import onnx_ir; assert 'sympy' not in sys.modules\n"
            "print(onnx_ir.SymbolicDim('n') + 1); import sympy; print(sympy.Integer(2))",
            "n + 1\n2",
        ),
    ],
)
def test_importing_loads_nothing_heavy(code: str, printed: str) -> None:
    assert python(f"import sys; {code}").stdout.strip() == printed


def test_the_public_surface() -> None:
    for name in normfuse.__all__:
        assert getattr(normfuse, name) is not None
        assert name in dir(normfuse)
    with pytest.raises(AttributeError, match="no attribute 'optimise'"):
        _ = normfuse.optimise  # type: ignore[attr-defined]
    errors = [getattr(normfuse, name) for name in normfuse.__all__ if name.endswith("Error")]
    assert all(issubclass(error, normfuse.NormfuseError) for error in errors)
    assert issubclass(normfuse.InvalidModelError, ValueError)


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (
            "[ONNXRuntimeError] : 1 : FAIL : /onnxruntime_src/onnxruntime/core/graph/model.cc:256 onnxruntime::Model::"
            "Model(onnx::ModelProto&&, const std::function<void(int)>&) const Unsupported model IR version: 99",
            "Unsupported model IR version: 99",
        ),
        (
            "[ONNXRuntimeError] : 9 : NOT_IMPLEMENTED : Could not find an implementation for Sub(6) node with name ''",
            "Could not find an implementation for Sub(6) node with name ''",
        ),
        (
            "[ONNXRuntimeError] : 6 : RUNTIME_EXCEPTION : Exception during initialization: D:\\a\\_work\\graph.cc:7 "
            "Graph::Resolve() it is broken",
            "Exception during initialization: it is broken",
        ),
        ("of another kind", "of another kind"),
        ("", "RuntimeError"),
    ],
)
def test_messages_of_onnxruntime_name_no_place_in_its_source(said: str, words: str) -> None:
    assert words_of(RuntimeError(said)) == words
