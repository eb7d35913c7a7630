"""Hosts without normfuse: rewritten models run there by their functions' bodies. onnxruntime-node loads no provider.

When one of the refusals here is gone, a newer onnxruntime-node can do more, and docs/pages/hosts.md has to say so.
"""

import json
import math
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from cache_folder import CACHE, locked
from hosts import host_python

import normfuse
from normfuse import models

pytestmark = pytest.mark.slow
PACKAGES = ("onnxruntime-node@1.30.0", "onnxruntime-web@1.30.0", "onnxruntime-common@1.30.0")
# Older than any that normfuse's library runs in.
OLD_HOSTS = ("1.17.3", "1.20.1", "1.23.2")
SCRIPT = Path(__file__).with_name("node_host.js")
X = np.random.default_rng(3).standard_normal((4, 64)).astype(np.float32)


def unpack(archive: Path, target: Path) -> None:
    """An npm package, without what it brings for other systems."""
    with tarfile.open(archive) as package:
        members = [m for m in package.getmembers() if "/bin/" not in m.name or "/linux/" in m.name]
        for member in members:
            member.name = member.name.removeprefix("package/")
        if hasattr(tarfile, "data_filter"):
            package.extractall(target, members, filter="data")
        else:  # Python 3.11.0 to 3.11.3, Debian 12's among them
            package.extractall(target, members)
    archive.unlink()


@pytest.fixture(scope="module")
def node_modules() -> Path:
    """A folder with the packages, from the npm registry once. No install script runs: these fetch GPU libraries."""
    assert shutil.which("node"), "Node.js is not installed (on Debian: apt-get install nodejs npm)"
    folder = CACHE / "node-hosts-1.30.0"
    with locked(folder.with_suffix(".lock")):
        if not (folder / "ready").exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            for package in PACKAGES:
                command = ["npm", "pack", "--silent", "--ignore-scripts", package]
                name = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout.split()[
                    -1
                ]
                unpack(folder / name, folder / "node_modules" / package.partition("@")[0])
            (folder / "ready").touch()
    return folder / "node_modules"


@pytest.fixture(scope="module")
def chain() -> onnx.ModelProto:
    """LayerNormalization and GELU in elementary operators; the scale and bias of the normalisation are in the model."""
    return models.chain([4, 64], spelling="pow_div", activation_name="gelu", opset=20)


def run(
    node_modules: Path, model: Path, x: np.ndarray = X, package: str = "onnxruntime-node", provider: str = "cpu"
) -> subprocess.CompletedProcess[str]:
    x.tofile(model.with_name("x.bin"))
    files = [model, model.with_name("x.bin"), model.with_name("y.bin")]
    command = ["node", SCRIPT, package, *files, json.dumps(x.shape), provider]
    environment = {**os.environ, "NODE_PATH": str(node_modules)}
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=environment)


def expected(model: onnx.ModelProto) -> np.ndarray:
    arrays = (onnx.numpy_helper.to_array(each).astype(np.float64) for each in model.graph.initializer)
    scale, bias = (array for array in arrays if array.shape == X.shape[1:])
    x = X.astype(np.float64)
    d = x - x.mean(-1, keepdims=True)
    n = d / np.sqrt((d * d).mean(-1, keepdims=True) + 1e-5) * scale + bias
    return 0.5 * n * (1 + np.vectorize(math.erf)(n / math.sqrt(2)))


def test_a_portable_model_runs_without_normfuse(node_modules: Path, chain: onnx.ModelProto, tmp_path: Path) -> None:
    result = normfuse.optimize(chain)
    assert result.report.fused
    result.save(tmp_path / "model.onnx")
    done = run(node_modules, tmp_path / "model.onnx")
    assert (done.returncode, done.stdout) == (0, "onnxruntime-node 1.30.0\n"), done.stderr
    y = np.fromfile(tmp_path / "y.bin", np.float32).reshape(X.shape)
    np.testing.assert_allclose(y, expected(chain), rtol=1e-5, atol=2e-6)


# Networks of convolutions: HardSwish and LayerNormalization in their nodes, and GroupNormalization and SiLU.
NETWORKS = {
    "ocr": (models.ocr_block, {}, (2, 3, 48, 64)),
    "diffusion": (models.diffusion_resblock, {"channels": 32, "size": 16}, (1, 32, 16, 16)),
}


@pytest.fixture(scope="module", params=NETWORKS)
def network(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, np.ndarray]:
    """A network, what optimize writes for it by default, and an input: ramps beside noise, and a border of zeros."""
    build, options, shape = NETWORKS[request.param]
    folder = tmp_path_factory.mktemp(request.param)
    model = build(**options)
    onnx.save(model, folder / "original.onnx")
    result = normfuse.optimize(model)
    assert result.report.fused
    result.save(folder / "optimised.onnx")
    x = np.random.default_rng(5).standard_normal(shape) + np.linspace(-4, 4, shape[-1])
    x[..., :3] = 0
    return folder / "original.onnx", folder / "optimised.onnx", x.astype(np.float32)


RUNS_BOTH = """
import sys, numpy as np, onnxruntime
onnxruntime.set_default_logger_severity(3)
for model in sys.argv[2:]:
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    np.save(model + ".npy", session.run(None, {session.get_inputs()[0].name: np.load(sys.argv[1])})[0])
print(onnxruntime.__version__)
"""


@pytest.mark.parametrize("version", OLD_HOSTS)
def test_a_portable_model_runs_in_older_hosts(network: tuple[Path, Path, np.ndarray], version: str) -> None:
    """Where the library would be refused, and the original runs."""
    if version == "1.17.3" and sys.version_info >= (3, 13):
        pytest.skip("onnxruntime 1.17 has no wheel for this Python")
    original, optimised, x = network
    np.save(original.with_name("x.npy"), x)
    command = [host_python(version), "-c", RUNS_BOTH, original.with_name("x.npy"), original, optimised]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, f"{version}\n"), done.stderr
    before, after = (np.load(f"{model}.npy") for model in (original, optimised))
    np.testing.assert_allclose(after, before, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("package", ["onnxruntime-node", "onnxruntime-web"])
def test_a_portable_model_runs_in_javascript(
    node_modules: Path, network: tuple[Path, Path, np.ndarray], package: str
) -> None:
    """In the wasm of onnxruntime-web, too; and what came out is what Python's onnxruntime makes of the original."""
    original, optimised, x = network
    done = run(node_modules, optimised, x, package)
    assert (done.returncode, done.stdout) == (0, f"{package} 1.30.0\n"), done.stderr
    session = onnxruntime.InferenceSession(original, providers=["CPUExecutionProvider"])
    before = session.run(None, {session.get_inputs()[0].name: x})[0]
    after = np.fromfile(optimised.with_name("y.bin"), np.float32).reshape(before.shape)
    np.testing.assert_allclose(after, before, rtol=1e-4, atol=2e-5)


def test_the_execution_provider_cannot_be_chosen(node_modules: Path, chain: onnx.ModelProto, tmp_path: Path) -> None:
    onnx.save(chain, tmp_path / "model.onnx")
    done = run(node_modules, tmp_path / "model.onnx", provider=normfuse.get_ep_name())
    assert done.returncode == 1
    assert f"executionProviders[0] is unsupported: '{normfuse.get_ep_name()}'" in done.stderr


def test_plain_custom_operators_have_no_library(node_modules: Path, chain: onnx.ModelProto, tmp_path: Path) -> None:
    normfuse.optimize(chain, target="custom-op").save(tmp_path / "model.onnx")
    done = run(node_modules, tmp_path / "model.onnx")
    assert done.returncode == 1
    assert "is not a registered function/op" in done.stderr
