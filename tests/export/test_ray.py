"""A model on a local Ray cluster of two nodes, against one session."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import ray
import ray.data
from ray.cluster_utils import Cluster

from normfuse.folders import Engine, optimize_folder
from normfuse.integrations.ray import Predictor
from normfuse.models import transformer_encoder

ROWS, LENGTH = 96, 7


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[Cluster]:
    os.environ["RAY_DATA_DISABLE_PROGRESS_BARS"] = "1"
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
    cluster.add_node(num_cpus=2)
    # The workers import the classes of this file.
    here = {"env_vars": {"PYTHONPATH": str(Path(__file__).parent)}}
    ray.init(address=cluster.address, log_to_driver=False, runtime_env=here)
    yield cluster
    ray.shutdown()
    cluster.shutdown()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("ray") / "model.onnx"
    onnx.save(transformer_encoder(layers=2, hidden=64, vocabulary=50, positions=32), path)
    return path


@pytest.fixture(scope="module")
def rows() -> list[dict[str, object]]:
    rng = np.random.default_rng(0)
    ids, mask = rng.integers(0, 50, (ROWS, LENGTH)), np.ones((ROWS, LENGTH), np.int64)
    return [{"id": index, "input_ids": ids[index], "attention_mask": mask[index]} for index in range(ROWS)]


@pytest.fixture(scope="module")
def expected(model: Path, rows: list[dict[str, np.ndarray]]) -> np.ndarray:
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    feeds = {name: np.stack([row[name] for row in rows]) for name in ("input_ids", "attention_mask")}
    return session.run(["last_hidden_state"], feeds)[0]


def check(result: list[dict[str, np.ndarray]], expected: np.ndarray) -> None:
    """Every row is there once, with its own result."""
    assert sorted(int(row["id"]) for row in result) == list(range(ROWS))
    for row in result:
        np.testing.assert_allclose(row["last_hidden_state"], expected[int(row["id"])], atol=1e-5)


class Watched(Predictor):
    """Says who ran a batch, with how many threads."""

    def __call__(self, batch):
        count = len(batch["id"])
        threads = self.session.get_session_options().intra_op_num_threads
        providers = self.session.get_providers()
        return {
            **super().__call__(batch),
            "pid": np.full(count, os.getpid()),
            "threads": np.full(count, threads),
            "ours": np.full(count, "NormFuseExecutionProvider" in providers),
        }


@pytest.mark.parametrize("by", ["path", "reference"])
def test_two_workers_give_what_one_session_gives(
    by: str, model: Path, rows: list[dict[str, object]], expected: np.ndarray
) -> None:
    given = str(model) if by == "path" else ray.put(model.read_bytes())
    data = ray.data.from_items(rows, override_num_blocks=12)
    result = data.map_batches(
        Watched, fn_constructor_args=(given,), fn_constructor_kwargs={"claim": "all"}, concurrency=2, batch_size=8
    ).take_all()
    check(result, expected)
    # Sessions are made once a worker: as many processes as workers for the 12 batches.
    assert len({int(row["pid"]) for row in result}) <= 2
    assert {int(row["threads"]) for row in result} == {1}
    assert all(row["ours"] for row in result)


def test_threads_follow_the_workers_cpus(model: Path, rows: list[dict[str, object]], expected: np.ndarray) -> None:
    data = ray.data.from_items(rows, override_num_blocks=4)
    result = data.map_batches(Watched, fn_constructor_args=(str(model),), concurrency=1, num_cpus=2, batch_size=24)
    taken = result.take_all()
    check(taken, expected)
    assert {int(row["threads"]) for row in taken} == {2}


class Killed(Predictor):
    """The first worker that meets row 40 is killed in the middle of its batch, once."""

    def __init__(self, model, marker: str) -> None:
        super().__init__(model)
        self.marker = Path(marker)

    def __call__(self, batch):
        result = super().__call__(batch)
        if 40 in batch["id"] and not self.marker.exists():
            self.marker.write_text(str(os.getpid()))
            os.kill(os.getpid(), signal.SIGKILL)
        return result


def test_a_killed_worker_loses_and_doubles_nothing(
    model: Path, rows: list[dict[str, object]], expected: np.ndarray, tmp_path: Path
) -> None:
    marker = tmp_path / "killed"
    data = ray.data.from_items(rows, override_num_blocks=12)
    result = data.map_batches(Killed, fn_constructor_args=(str(model), str(marker)), concurrency=2, batch_size=8)
    check(result.take_all(), expected)
    assert marker.exists()


def test_a_missing_column_is_named(model: Path) -> None:
    data = ray.data.from_items([{"input_ids": np.zeros(LENGTH, np.int64)}])
    failing = data.map_batches(Predictor, fn_constructor_args=(str(model),), concurrency=1)
    with pytest.raises(Exception, match="has no column 'attention_mask'"):
        failing.take_all()


@pytest.mark.parametrize("engine", ["ray", "auto"])
def test_a_folder_of_models(engine: Engine, model: Path, tmp_path: Path) -> None:
    source, target = tmp_path / "in", tmp_path / "out"
    (source / "inner").mkdir(parents=True)
    (source / "a.onnx").write_bytes(model.read_bytes())
    (source / "inner" / "b.onnx").write_bytes(model.read_bytes())
    (source / "broken.onnx").write_bytes(model.read_bytes()[:1000])
    told: list[tuple[str, int, int]] = []
    rows = optimize_folder(source, target, engine=engine, progress=lambda *state: told.append(state))

    assert [(row["model"], row["status"]) for row in rows] == [
        ("a.onnx", "written"),
        ("broken.onnx", "invalid"),
        ("inner/b.onnx", "written"),
    ]
    assert "broken.onnx is truncated" in rows[1]["message"]
    for row in (rows[0], rows[2]):
        assert row["fused"] == row["sites"] == 7
        written = onnx.load(target / row["model"])
        assert sum(node.domain == "ai.normfuse" for node in written.graph.node) == 7
    assert sorted(path.name for path in target.rglob("*")) == [
        "a.onnx",
        "a.onnx.json",
        "b.onnx",
        "b.onnx.json",
        "inner",
    ]
    assert [done for _, done, _ in told] == [0, 1, 2, 3]
    assert ray.is_initialized()  # it was before, so it still is


def test_the_command_starts_a_ray_of_its_own(model: Path, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for name in ("a.onnx", "b.onnx"):
        (tmp_path / "in" / name).write_bytes(model.read_bytes())
    command = [str(Path(sys.executable).with_name("normfuse")), "optimize", "in", "-o", "out", "--engine", "ray"]
    done = subprocess.run([*command, "--json"], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [row["status"] for row in json.loads(done.stdout)["models"]] == ["written", "written"]
