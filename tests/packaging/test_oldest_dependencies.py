"""The oldest versions that pyproject.toml allows, all at once: the commands work, and what they write is accepted."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import onnx
import pytest

from normfuse.models import transformer_encoder

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.cross


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment with the wheel and the lower bounds of what it needs."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    bounds = [*project["dependencies"], *project["optional-dependencies"]["onnxruntime"]]
    oldest = [bound.partition(",")[0].replace(">=", "==") for bound in bounds]
    # The first release of a series: 1.24 has no wheel of that number.
    exact = [entry.replace("onnxruntime==1.24", "onnxruntime==1.24.1") for entry in oldest]
    folder = tmp_path_factory.mktemp("oldest")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    (wheel,) = Path(os.environ["NORMFUSE_WHEELS"]).glob("normfuse-*-manylinux_2_28_x86_64.whl")
    interpreter = folder / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", interpreter, "install", "--quiet"]
    subprocess.run([*pip, wheel, *exact], check=True)
    return interpreter


def test_commands(python: Path, tmp_path: Path) -> None:
    onnx.save(transformer_encoder(layers=1, hidden=32), tmp_path / "model.onnx")

    def run(code: int, *arguments: str) -> str:
        command = [python.with_name("normfuse"), *arguments]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    run(0, "doctor")
    assert "normfuse optimize model.onnx" in run(0, "optimize", "--help")
    run(0, "optimize", "model.onnx", "-o", "fused.onnx", "--require-fused", "4", "--report", "report.html")
    run(0, "check", "fused.onnx", "--original", "model.onnx")
    run(0, "inspect", "model.onnx", "--backend", "directml")
    run(0, "bench", "model.onnx", "--seconds", "0.1")
    assert "normfuse: absent.onnx does not exist." in run(2, "inspect", "absent.onnx").splitlines()
    assert "--output" in run(2, "optimize", "model.onnx")
    check = "import onnx; onnx.checker.check_model('fused.onnx', full_check=True)"
    subprocess.run([python, "-c", check], cwd=tmp_path, check=True)
