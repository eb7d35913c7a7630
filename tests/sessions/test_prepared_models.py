"""The cache of prepared models: what it is keyed by, and that no attack makes a session run another model."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

import normfuse
from normfuse import models
from normfuse.host.content_hash import chunks_of, hash_of
from normfuse.host.plain_sessions import plain_session
from normfuse.sessions import prepared_models

X = np.linspace(-3, 3, 4 * 64, dtype=np.float32).reshape(4, 64)
on_posix = pytest.mark.skipif(sys.platform == "win32", reason="owners, links and signals of POSIX")


def chain(factor: float = 1.0) -> onnx.ModelProto:
    """LayerNormalization -> Gelu -> Mul by a factor."""
    g = models.GraphBuilder(opset=20)
    normal = g.add("LayerNormalization", g.input("x", (4, 64)), g.weight(64, mean=1.0), g.weight(64))
    g.output(g.add("Mul", g.add("Gelu", normal), np.float32(factor)), (4, 64))
    return g.model("chain")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(prepared_models.VARIABLE, str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    onnx.save(chain(), tmp_path / "model.onnx")
    return tmp_path / "model.onnx"


def run(model: Path | bytes, **options: object) -> np.ndarray:
    return normfuse.InferenceSession(model, **options).run(None, {"x": X})[0]


def plain(model: Path | bytes) -> np.ndarray:
    data = model if isinstance(model, bytes) else str(model)
    return onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"]).run(None, {"x": X})[0]


def kept(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.prepared.onnx"))


CHILD = """
import sys, json, normfuse, numpy as np
s = normfuse.InferenceSession(sys.argv[1])
x = np.linspace(-3, 3, 4 * 64, dtype=np.float32).reshape(4, 64)
names = ["onnx", "onnx_ir", "normfuse.graph_rewrites", "normfuse.sessions.creation", "importlib.metadata", "tomllib"]
names += ["hashlib"]
heavy = [name for name in names if name in sys.modules]
print(json.dumps({"y": s.run(None, {"x": x})[0].tolist(), "heavy": heavy, "providers": s.get_providers()}))
"""


def child(path: Path) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", CHILD, path], stdout=subprocess.PIPE, text=True)


def answer(process: subprocess.Popen[str]) -> dict[str, object]:
    out, _ = process.communicate(timeout=120)
    assert process.returncode == 0
    return json.loads(out)


def test_a_second_session_imports_neither_onnx_nor_the_pass(folder: Path, path: Path) -> None:
    first, second = answer(child(path)), answer(child(path))
    assert first["heavy"]
    assert not second["heavy"]
    assert first["y"] == second["y"]
    assert first["providers"] == second["providers"]
    assert len(kept(folder)) == 1
    if sys.platform != "win32":
        assert folder.stat().st_mode & 0o777 == 0o700
        assert kept(folder)[0].stat().st_mode & 0o777 == 0o600


def test_a_session_on_an_entry_is_one_on_the_users_model(folder: Path, path: Path) -> None:
    run(path)
    session = normfuse.InferenceSession(path)
    assert session._model_path == str(path.resolve())
    meta = session.get_modelmeta()
    assert meta.graph_name == "chain"
    assert not meta.custom_metadata_map
    session.set_providers(["CPUExecutionProvider"])
    np.testing.assert_array_equal(session.run(None, {"x": X})[0], plain(path))


def test_bytes_and_files_share_entries_and_nothing_else_is_kept(folder: Path, path: Path) -> None:
    expected = run(path)
    data = path.read_bytes()
    for same in (data, bytearray(data), memoryview(np.repeat(np.frombuffer(data, np.uint8), 2))[::2]):
        np.testing.assert_array_equal(run(same), expected)
        assert len(kept(folder)) == 1
    run(chain())
    assert len(kept(folder)) == 1


def reference_hash(data: bytes, key: int) -> bytes:
    """NH in a tree, by Python's own integers."""
    mask, level = 2**64 - 1, 0
    while True:
        keys = []
        for _ in range(256):
            key = key + 0x9E3779B97F4A7C15 & mask
            z = (key ^ key >> 30) * 0xBF58476D1CE4E5B9 & mask
            z = (z ^ z >> 27) * 0x94D049BB133111EB & mask
            keys.append(z ^ z >> 31)
        result = b""
        for begin in range(0, len(data), 2048):
            block = data[begin : begin + 2048].ljust(2048, b"\0")
            words = [int.from_bytes(block[at : at + 8], "little") for at in range(0, 2048, 8)]
            sums = [word + key & mask for word, key in zip(words, keys, strict=True)]
            total = sum(a * b for a, b in zip(sums[::2], sums[1::2], strict=True))
            result += (total & (1 << 128) - 1).to_bytes(16, "little")
        if level and len(result) == 16:
            return result
        data = result if level else result + len(data).to_bytes(16, "little")
        level += 1


@pytest.mark.parametrize("size", [0, 1, 2047, 2048, 2049, 2**18 + 5, 2**20, 2**21 + 2**20 // 2 + 3])
def test_hashes_are_those_of_the_definition(tmp_path: Path, size: int) -> None:
    data = np.arange(size, dtype=np.uint32).astype(np.uint8).tobytes()
    key = 0xFEDCBA9876543210
    pieces = [data[begin : begin + 2**20] for begin in range(0, size, 2**20)]
    expected = reference_hash(b"".join(reference_hash(piece, key) for piece in pieces), key)
    assert hash_of(chunks_of(data), key) == expected
    (tmp_path / "file").write_bytes(data)
    with (tmp_path / "file").open("rb") as file:
        assert hash_of(chunks_of(file), key) == expected
    assert hash_of(chunks_of(data + b"\0"), key) != expected
    for at in {0, size // 2, size - 1} if size else ():
        changed = data[:at] + bytes([data[at] ^ 0x80]) + data[at + 1 :]
        assert hash_of(chunks_of(changed), key) != expected


def test_entries_of_many_pieces(folder: Path, tmp_path: Path) -> None:
    g = models.GraphBuilder(opset=20)
    normal = g.add("LayerNormalization", g.input("x", (4, 64)), g.weight(64, mean=1.0), g.weight(64))
    g.output(g.add("MatMul", g.add("Gelu", normal), g.weight(64, 12000)), (4, 12000))
    data = g.model("wide").SerializeToString()
    expected = run(data)
    (entry,) = kept(folder)
    made = entry.stat().st_ino
    np.testing.assert_array_equal(run(data), expected)
    assert [each.stat().st_ino for each in kept(folder)] == [made]
    intact = entry.read_bytes()
    with entry.open("r+b") as file:
        file.seek(-(2**20), os.SEEK_END)
        file.write(bytes([intact[-(2**20)] ^ 1]))
    assert entry.read_bytes() != intact
    np.testing.assert_array_equal(run(data), expected)
    assert [each.read_bytes() for each in kept(folder)] == [intact]


@pytest.mark.parametrize("content", [b"", b"1234567", b"123456789"])
def test_a_damaged_key_is_made_again(folder: Path, path: Path, content: bytes) -> None:
    expected = run(path)
    (folder / "key").write_bytes(content)
    np.testing.assert_array_equal(run(path), expected)
    assert len((folder / "key").read_bytes()) == 8
    assert len(kept(folder)) == 2  # the other one has a name that nobody asks for


def write_over(path: Path, data: bytes) -> None:
    """Write into the same file: inode, size and time stay."""
    status = path.stat()
    assert len(data) == status.st_size
    with path.open("r+b") as file:
        file.write(data)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def test_another_model_of_the_same_name_size_and_time(folder: Path, path: Path) -> None:
    run(path)
    write_over(path, chain(2.0).SerializeToString())
    np.testing.assert_allclose(run(path), plain(path), atol=1e-5)


@pytest.mark.parametrize(
    "change",
    [
        lambda data: b"",
        lambda data: data[: len(data) // 2],
        lambda data: data[:-1],
        lambda data: data + b"\0",
        lambda data: data[:60] + bytes([data[60] ^ 1]) + data[61:],
        lambda data: data[:-9] + bytes([data[-9] ^ 1]) + data[-8:],
        lambda data: bytes(600) + data[600:],
        lambda data: data.replace(b'"keeps_weights": false', b'"keeps_weights": 0    '),
        lambda data: bytes(len(data)),
        lambda data: chain(5.0).SerializeToString(),
    ],
    ids=["empty", "half", "cut", "longer", "a bit ahead", "a bit", "no beginning", "needs", "zeros", "a model"],
)
def test_a_damaged_entry_is_made_again(folder: Path, path: Path, change: Callable[[bytes], bytes]) -> None:
    expected = run(path)
    (entry,) = kept(folder)
    good = entry.read_bytes()
    entry.write_bytes(change(good))
    assert entry.read_bytes() != good
    np.testing.assert_array_equal(run(path), expected)
    np.testing.assert_array_equal(run(path), expected)
    assert [each.stat().st_size for each in kept(folder)] == [len(good)]


def test_an_entry_under_another_name_is_none(folder: Path, path: Path) -> None:
    expected = run(path)
    (entry,) = kept(folder)
    other = chain(2.0).SerializeToString()
    run(other)
    (second,) = set(kept(folder)) - {entry}
    second.write_bytes(entry.read_bytes())
    np.testing.assert_allclose(run(other), 2 * expected, rtol=1e-6)


@pytest.mark.parametrize("is_external", [False, True])
def test_nothing_to_gain_is_kept_without_the_model(folder: Path, path: Path, is_external: bool) -> None:
    g = models.GraphBuilder(opset=20)
    g.output(g.add("MatMul", g.input("x", (4, 64)), g.weight(64, 512)), (4, 512))
    onnx.save(g.model("product"), path, save_as_external_data=is_external, location="weights", size_threshold=0)
    first, second = answer(child(path)), answer(child(path))
    assert first["heavy"]
    assert not second["heavy"]
    assert first["y"] == second["y"]
    assert kept(folder)[0].stat().st_size < 2048
    np.testing.assert_array_equal(run(path), plain(path))
    if not is_external:
        np.testing.assert_array_equal(run(path.read_bytes()), plain(path))
    assert len(kept(folder)) == 1


@pytest.mark.parametrize(
    ("ours", "users", "count"),
    [
        ({"fold_weights": False}, {}, 2),
        ({"choose_products": False}, {}, 2),
        ({"blocked_layout": False}, {}, 2),
        ({"compile": 0}, {}, 2),
        ({}, {"intra_op_num_threads": 1}, 1),
        ({}, {"graph_optimization_level": onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC}, 2),
        ({}, {"session.disable_quant_qdq": "1"}, 2),
        ({}, {"optimization.disable_specified_optimizers": "ConstantFolding"}, 2),
    ],
    ids=str,
)
def test_options_that_change_what_is_made_have_entries_of_their_own(
    folder: Path, path: Path, ours: dict[str, object], users: dict[str, object], count: int
) -> None:
    run(path)
    for _ in range(2):
        options = onnxruntime.SessionOptions()
        for name, value in users.items():
            options.add_session_config_entry(name, value) if "." in name else setattr(options, name, value)
        np.testing.assert_allclose(run(path, sess_options=options, **ours), plain(path), atol=1e-5)
    assert len(kept(folder)) == count


def test_initializers_given_by_options_are_used(folder: Path, path: Path) -> None:
    """An entry has those of the model, and a session with others is not created on it."""
    run(path)
    (weight,) = (each.name for each in onnx.load(path).graph.initializer if onnx.numpy_helper.to_array(each).ndim == 0)
    three = onnxruntime.OrtValue.ortvalue_from_numpy(np.array(3, np.float32))
    options = onnxruntime.SessionOptions()
    options.add_initializer(weight, three)
    with pytest.warns(UserWarning, match="give 1 of the model's initializers"):
        got = run(path, sess_options=options)
    np.testing.assert_allclose(got, 3 * plain(path), atol=1e-5)
    assert len(kept(folder)) == 1


def test_sessions_of_applications_are_on_entries(folder: Path, path: Path) -> None:
    code = (
        "import normfuse; normfuse.install(); normfuse.InferenceSession = __import__('onnxruntime').InferenceSession\n"
    )
    run(path)
    (entry,) = kept(folder)
    before = entry.stat().st_mtime_ns
    process = subprocess.Popen([sys.executable, "-c", code + CHILD, path], stdout=subprocess.PIPE, text=True)
    told = answer(process)
    assert not told["heavy"]
    np.testing.assert_array_equal(np.array(told["y"], np.float32), run(path))
    assert [each.stat().st_mtime_ns > before for each in kept(folder)] == [True]


@pytest.mark.parametrize("what", ["_software", "_processor"])
def test_another_version_or_processor(folder: Path, path: Path, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    run(path)
    monkeypatch.setattr(prepared_models, what, lambda: ["another"])
    run(path)
    assert len(kept(folder)) == 2


@pytest.fixture
def external(tmp_path: Path) -> Path:
    """The model in a folder of its own, with all weights but small ones in a file beside it."""
    path = tmp_path / "external" / "model.onnx"
    path.parent.mkdir()
    g = models.GraphBuilder(opset=20)
    normal = g.add("LayerNormalization", g.input("x", (4, 64)), g.weight(64, mean=1.0), g.weight(64))
    g.output(g.add("Mul", g.add("MatMul", g.add("Gelu", normal), g.weight(64, 64)), np.float32(2)), (4, 64))
    onnx.save(g.model("external"), path, save_as_external_data=True, location="weights", size_threshold=0)
    return path


def test_external_data_stays_where_it_is(folder: Path, external: Path) -> None:
    first, second = answer(child(external)), answer(child(external))
    assert first["heavy"]
    assert not second["heavy"]
    assert first["y"] == second["y"]
    (entry,) = kept(folder)
    assert entry.stat().st_size < (external.parent / "weights").stat().st_size
    session = normfuse.InferenceSession(external)
    assert session._model_path == str(external)


def changed_data(external: Path) -> None:
    """Other numbers of the same size and time, large ones and those of a scalar that ONNX Runtime gets in the model."""
    weights = external.parent / "weights"
    write_over(weights, (np.fromfile(weights, np.float32) / 2).tobytes())


def other_link(external: Path) -> None:
    weights = external.parent / "weights"
    data = np.fromfile(weights, np.float32)
    weights.rename(external.parent / "first")
    (data * 3).tofile(external.parent / "second")
    weights.symlink_to("second")


@pytest.mark.parametrize("change", [changed_data, pytest.param(other_link, marks=on_posix)])
def test_other_external_data(folder: Path, external: Path, change: Callable[[Path], None]) -> None:
    before = run(external)
    change(external)
    for _ in range(2):
        np.testing.assert_allclose(run(external), plain(external), rtol=1e-4, atol=1e-5)
    assert np.abs(run(external) - before).max() > 0.1


def test_the_same_model_with_other_external_data_elsewhere(folder: Path, external: Path, tmp_path: Path) -> None:
    other = tmp_path / "other" / "model.onnx"
    other.parent.mkdir()
    other.write_bytes(external.read_bytes())
    (np.fromfile(external.parent / "weights", np.float32) / 4).tofile(other.parent / "weights")
    for path in (external, other, external, other):
        np.testing.assert_allclose(run(path), plain(path), rtol=1e-4, atol=1e-5)
    assert len(kept(folder)) == 2
    (external.parent / "weights").unlink()
    with pytest.raises(normfuse.InvalidModelError):
        run(external)


@on_posix
def test_external_data_by_links(folder: Path, external: Path, tmp_path: Path) -> None:
    """As in the cache of Hugging Face's hub: what has the names are links to files with others."""
    blobs = tmp_path / "blobs"
    external.parent.rename(blobs)
    (blobs / "weights").rename(blobs / "4711")
    external.parent.mkdir()
    external.symlink_to(blobs / "model.onnx")
    (external.parent / "weights").symlink_to(blobs / "4711")
    first, second = answer(child(external)), answer(child(external))
    assert first["y"] == second["y"]
    assert not second["heavy"]


def test_external_data_of_bytes_is_not_kept(folder: Path, external: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(external.parent)
    run(external.read_bytes())
    assert kept(folder) == []


@pytest.mark.parametrize("word", ["0", "no", "Off"])
def test_off(word: str, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(prepared_models.VARIABLE, word)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    run(path)
    assert not (tmp_path / "xdg").exists()
    assert not (tmp_path / word).exists()
    assert prepared_models.entries() == []


@on_posix
def test_by_convention(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(prepared_models.VARIABLE)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", "not absolute")
    run(path)
    assert len(prepared_models.entries()) == 1
    assert tmp_path in prepared_models.entries()[0].path.parents


@on_posix
@pytest.mark.parametrize("how", ["a link", "others may write", "a file", "somebody else's"])
def test_a_folder_that_is_not_the_users_own_is_not_used(
    folder: Path, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    real = tmp_path / "real"
    real.mkdir(mode=0o700)
    if how == "a link":
        folder.symlink_to(real)
    elif how == "a file":
        folder.write_text("")
    else:
        folder.mkdir(mode=0o700)
        if how == "others may write":
            folder.chmod(0o770)
        else:
            monkeypatch.setattr(os, "geteuid", lambda: folder.stat().st_uid + 1)
    np.testing.assert_allclose(run(path), plain(path), atol=1e-5)
    assert not any(real.iterdir())
    assert how == "a file" or not any(folder.iterdir())


@on_posix
def test_a_link_in_the_place_of_an_entry_is_not_followed(folder: Path, path: Path, tmp_path: Path) -> None:
    expected = run(path)
    (entry,) = kept(folder)
    other = tmp_path / "other.onnx"
    entry.rename(other)
    entry.symlink_to(other)
    before = other.read_bytes()
    np.testing.assert_array_equal(run(path), expected)
    assert not entry.is_symlink()
    assert other.read_bytes() == before


@on_posix
@pytest.mark.parametrize("is_large", [False, True])
def test_no_room(folder: Path, path: Path, request: pytest.FixtureRequest, is_large: bool) -> None:
    """A write fails half-way, of an entry or of one with its weights: the session is there, and nothing else."""
    if is_large:
        run(request.getfixturevalue("large"))
    before = kept(folder)
    code = (
        "import resource, signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN);"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, (70000 if {is_large} else 700,) * 2);" + CHILD
    )
    done = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert np.allclose(json.loads(done.stdout)["y"], plain(path), atol=1e-4)
    assert list(folder.glob("*.*")) == before  # and the key


@pytest.mark.parametrize("is_large", [False, True])
def test_many_processes_at_once(folder: Path, path: Path, request: pytest.FixtureRequest, is_large: bool) -> None:
    expected = run(request.getfixturevalue("large")).tolist() if is_large else None
    answers = [answer(process) for process in [child(path) for _ in range(3)]]
    assert all(each["y"] == (expected or answers[0]["y"]) for each in answers)
    assert not (is_large and any(each["heavy"] for each in answers))
    assert len(kept(folder)) == 1
    assert sorted(folder.iterdir()) == [*kept(folder), folder / "key"]


@on_posix
@pytest.mark.parametrize("call", [1, 2])
@pytest.mark.parametrize(
    "step", ["tempfile.mkstemp", "os.fsync", "os.link", "pathlib.Path.replace", "p.prune", "p._read"]
)
def test_killed_while_it_writes(folder: Path, path: Path, step: str, call: int) -> None:
    """Whatever a process left behind, the next one has its session, and what was unfinished goes later."""
    code = f"""
import os, pathlib, tempfile, itertools
from normfuse.sessions import prepared_models as p
before, calls = {step}, itertools.count(1)
def killed(*arguments, **named):
    if next(calls) == {call}:
        os.kill(os.getpid(), {int(signal.SIGKILL)})
    return before(*arguments, **named)
{step} = killed
"""
    done = subprocess.run([sys.executable, "-c", code + CHILD, path], stdout=subprocess.DEVNULL, timeout=120)
    assert done.returncode == (0 if call == 2 and step not in ("tempfile.mkstemp", "os.fsync", "p._read") else -9)
    assert np.allclose(answer(child(path))["y"], plain(path), atol=1e-5)
    for left in folder.glob("*.unfinished"):
        os.utime(left, (time.time() - 7200,) * 2)
    prepared_models.prune(prepared_models.MOST_BYTES)
    assert sorted(folder.iterdir()) == [*kept(folder), folder / "key"]
    assert len(kept(folder)) == 1


@pytest.mark.parametrize("is_damaged", [False, True])
def test_a_disk_that_is_only_read(folder: Path, path: Path, monkeypatch: pytest.MonkeyPatch, is_damaged: bool) -> None:
    expected = run(path)
    (entry,) = kept(folder)
    if is_damaged:
        entry.write_bytes(entry.read_bytes()[:-1])

    def refuse(*_: object, **_named: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    content = entry.read_bytes()
    for module, name in ((os, "utime"), (os, "link"), (tempfile, "mkstemp"), (Path, "unlink"), (Path, "mkdir")):
        monkeypatch.setattr(module, name, refuse)
    seen = []
    monkeypatch.setattr(
        "normfuse.sessions.cached.plain_session", lambda *a, **n: (seen.append(a), plain_session(*a, **n))[1]
    )
    np.testing.assert_array_equal(run(path), expected)
    assert [a[0] for a in seen] == ([] if is_damaged else [str(entry)])
    assert entry.read_bytes() == content


def test_least_recently_used_goes_first(folder: Path, tmp_path: Path) -> None:
    data = [chain(factor).SerializeToString() for factor in (1.0, 2.0, 3.0)]
    made: list[Path] = []
    for number, each in enumerate(data):
        run(each)
        made += set(kept(folder)) - set(made)
        os.utime(made[-1], (1000 + number,) * 2)
    run(data[0])  # a hit is a use
    size = made[0].stat().st_size
    assert prepared_models.prune(2 * size + 64) == 1
    assert set(kept(folder)) == {made[0], made[2]}
    assert prepared_models.clear() == 2
    assert kept(folder) == []


def test_large_models_are_not_kept(folder: Path, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepared_models, "LARGEST", path.stat().st_size - 1)
    run(path)  # without a weight that is large enough to be left out
    assert kept(folder) == []


def wide(factor: float = 1.0) -> bytes:
    """LayerNormalization -> Gelu -> MatMul, twice with the same weights of 1.5 MB, once with others."""
    g = models.GraphBuilder(opset=20)
    x = g.input("x", (4, 64))
    normal = g.add("Gelu", g.add("LayerNormalization", x, g.weight(64, mean=1.0), g.weight(64)))
    weights = np.linspace(-factor, factor, 64 * 6000, dtype=np.float32).reshape(64, 6000)
    products = [g.add("MatMul", normal, each) for each in (weights, weights.copy(), 2 * weights)]
    g.output(g.add("Concat", *products, axis=1), (4, 18000))
    return g.model("wide").SerializeToString()


@pytest.fixture
def large(folder: Path, path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model that is kept without its large weights; nothing that is unfinished is left behind."""
    monkeypatch.setattr(prepared_models, "LARGEST", 200_000)
    path.write_bytes(wide())
    return path


def created_on(folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Return a list that says of each session to come whether it is on a prepared model of the folder."""
    seen: list[bool] = []

    def session(model: object, *arguments: object, **named: object) -> onnxruntime.InferenceSession:
        seen.append(str(model).startswith((str(folder), "/proc/self/fd/")))
        return plain_session(model, *arguments, **named)

    for module in ("cached", "creation"):
        monkeypatch.setattr(f"normfuse.sessions.{module}.plain_session", session)
    return seen


@pytest.mark.parametrize("options", [{}, {"allow_requantization_removal": True}])
def test_large_weights_stay_in_the_users_model(
    folder: Path, large: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, object]
) -> None:
    expected = run(large, **options)
    (entry,) = kept(folder)
    assert entry.stat().st_size < 20_000
    content, seen = entry.read_bytes(), created_on(folder, monkeypatch)
    for model in (large, large.read_bytes()):
        np.testing.assert_array_equal(run(model, **options), expected)
    session = normfuse.InferenceSession(large, **options)
    large.write_bytes(bytes(large.stat().st_size))  # in place, and the session goes on
    np.testing.assert_array_equal(session.run(None, {"x": X})[0], expected)
    assert seen == [True] * 3
    if options:
        session.set_providers(["CPUExecutionProvider"])
        np.testing.assert_allclose(session.run(None, {"x": X})[0], expected, rtol=1e-4, atol=1e-4)
    assert [each.read_bytes() for each in kept(folder)] == [content]
    assert sorted(folder.iterdir()) == [entry, folder / "key"]


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the file has a name, and goes an hour later")
def test_killed_while_large_weights_are_read(folder: Path, large: Path) -> None:
    run(large)
    before = sorted(folder.iterdir())
    code = f"import os; from normfuse.sessions import prepared_models as p; p._tee = lambda *_: os._exit(9)\n{CHILD}"
    assert subprocess.run([sys.executable, "-c", code, large], check=False).returncode == 9
    assert sorted(folder.iterdir()) == before


def written_over(path: Path) -> None:
    write_over(path, wide(3.0))


def replaced(path: Path) -> None:
    other = path.with_name("other")
    other.write_bytes(wide(3.0))
    other.replace(path)


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


LATE = pytest.mark.parametrize("is_late", [False, True], ids=["before", "while it is read"])


@LATE
@pytest.mark.parametrize("change", [written_over, pytest.param(replaced, marks=on_posix), cut])
def test_large_weights_that_change(
    folder: Path, large: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[Path], None], is_late: bool
) -> None:
    run(large)
    (entry,) = kept(folder)
    before, seen, joined = entry.read_bytes(), created_on(folder, monkeypatch), prepared_models.join

    def late(*arguments: object) -> object:
        change(large)
        return joined(*arguments)

    if is_late:
        monkeypatch.setattr(prepared_models, "join", late)
    else:
        change(large)
    if change is cut:
        with pytest.raises(normfuse.InvalidModelError):
            run(large)
    else:
        is_old = is_late and change is replaced  # the old file is open, and has what the entry was made of
        np.testing.assert_allclose(run(large), plain(wide() if is_old else large), rtol=1e-4, atol=1e-4)
        assert seen == [is_old]
    assert entry.read_bytes() == before
    assert not list(folder.glob("*.unfinished"))


def test_the_command(folder: Path, path: Path) -> None:
    run(path)

    def command(*arguments: str) -> str:
        line = [sys.executable, "-m", "normfuse", "cache", *arguments]
        return subprocess.run(line, capture_output=True, text=True, check=True, timeout=120).stdout

    told = json.loads(command("--json"))
    assert told["folder"] == str(folder)
    assert [each["name"] for each in told["entries"]] == [kept(folder)[0].name]
    assert "1 prepared models" in command("--prune", "1")
    assert json.loads(command("--prune", "0", "--json"))["removed"] == 1
    run(path)
    assert "1 removed" in command("--clear")
    assert kept(folder) == []
