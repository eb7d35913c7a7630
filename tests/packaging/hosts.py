"""Environments with one version of onnxruntime each, made once and kept in the test cache."""

import subprocess
import sys
from pathlib import Path

from cache_folder import CACHE, locked


def host_python(version: str) -> Path:
    """The interpreter of an environment that holds onnxruntime ``version`` and numpy, nothing else."""
    environment = CACHE / f"onnxruntime-{version}"
    python = environment / "bin" / "python"
    ready = environment / "ready"
    with locked(CACHE / f"onnxruntime-{version}.lock"):
        if not ready.exists():
            subprocess.run([sys.executable, "-m", "venv", "--clear", "--without-pip", environment], check=True)
            # Those before 1.19 were built with the first NumPy.
            numpy = "numpy<2" if tuple(map(int, version.split("."))) < (1, 19) else "numpy"
            install = ["install", "--quiet", "--no-deps", "--only-binary=:all:", f"onnxruntime=={version}", numpy]
            subprocess.run([sys.executable, "-m", "pip", "--python", python, *install], check=True)
            ready.touch()
    return python
