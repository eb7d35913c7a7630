"""Applications that create their sessions by onnxruntime.InferenceSession, and the class that stands in for it."""

from __future__ import annotations

import json
import os
import pickle
import re
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest

import normfuse

EP = normfuse.get_ep_name()
CPU = "CPUExecutionProvider"
TEXT = """<ir_version: 10, opset_import: ["" : 20]>
norm (float[N, 64] x) => (float[N, 64] y)
<float[64] scale = {@SCALE@}> {
  n = LayerNormalization <axis = -1> (x, scale)
  y = Gelu (n)
}"""
MODEL = onnx.parser.parse_model(TEXT.replace("@SCALE@", ", ".join(["1.5"] * 64))).SerializeToString()
# One usual row, a constant one, and one with an outlier.
ROWS = np.stack([np.linspace(-1, 1, 64), np.full(64, 3.0), np.eye(64)[3] * 50]).astype(np.float32)


def expected() -> np.ndarray:
    from math import erf

    x = ROWS.astype(np.float64)
    n = (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-5) * 1.5
    return n * 0.5 * (1 + np.vectorize(erf)(n / np.sqrt(2)))


def check(session: Any) -> None:
    np.testing.assert_allclose(session.run(None, {"x": ROWS})[0], expected(), atol=1e-5)


def runs_with_normfuse(session: Any) -> bool:
    """What the session says is what a plain one would say; ONNX Runtime itself knows."""
    return EP in session._sess.get_providers()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "norm.onnx"
    file.write_bytes(MODEL)
    return file


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.delenv("NORMFUSE_EXCLUDE", raising=False)
    normfuse.install()
    yield
    normfuse.uninstall()


class Subclass(ort.InferenceSession):  # imported before anything is installed
    def __init__(self, model: Any, **named: Any) -> None:
        super().__init__(model, **named)

    def __getstate__(self) -> bytes:
        return self._model_bytes

    def __setstate__(self, state: bytes) -> None:
        self.__init__(state)


WAYS = [
    ((), {}),
    ((None, [CPU]), {}),
    ((None, [CPU], [{"arena_extend_strategy": "kSameAsRequested"}]), {}),
    ((), {"providers": [(CPU, {"a": "b"})], "enable_fallback": 0}),
    ((), {"providers": ["AzureExecutionProvider", CPU]}),
    ((), {"disabled_optimizers": ["GeluFusion"]}),
]


@pytest.mark.parametrize(("arguments", "named"), WAYS)
def test_installed_sessions_say_what_plain_ones_say(installed: None, arguments: Any, named: Any) -> None:
    session = ort.InferenceSession(MODEL, *arguments, **named)
    normfuse.uninstall()
    plain = ort.InferenceSession(MODEL, *arguments, **named)
    assert runs_with_normfuse(session)
    assert not runs_with_normfuse(plain)
    for asked in ("get_providers", "get_provider_options"):
        assert getattr(session, asked)() == getattr(plain, asked)()
    assert [each.shape for each in session.get_outputs()] == [each.shape for each in plain.get_outputs()]
    check(session)
    check(plain)


@pytest.mark.parametrize(("arguments", "named"), WAYS)
def test_the_class_takes_the_arguments_of_the_other(arguments: Any, named: Any) -> None:
    session = normfuse.InferenceSession(MODEL, *arguments, **named)
    assert runs_with_normfuse(session)
    assert isinstance(session, ort.InferenceSession)
    assert isinstance(ort.InferenceSession(MODEL), normfuse.InferenceSession)
    assert not isinstance(3, normfuse.InferenceSession)
    check(session)


def test_the_class_can_stand_in_the_place_of_the_other(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ort, "InferenceSession", normfuse.InferenceSession)
    session = ort.InferenceSession(path, ort.SessionOptions(), providers=[CPU])
    assert session.get_providers()[0] == CPU
    assert runs_with_normfuse(session)
    check(session)

    class Own(normfuse.InferenceSession):
        pass

    assert isinstance(Own(MODEL), Own)
    assert not isinstance(session, Own)
    session.set_providers([CPU])  # a plain session, as it says
    assert not runs_with_normfuse(session)
    check(session)


def test_install_and_uninstall_are_idempotent() -> None:
    original = vars(ort.InferenceSession)["_create_inference_session"]
    try:
        normfuse.install()
        normfuse.install()
        assert runs_with_normfuse(ort.InferenceSession(MODEL))
    finally:
        normfuse.uninstall()
        normfuse.uninstall()
    assert vars(ort.InferenceSession)["_create_inference_session"] is original
    assert not runs_with_normfuse(ort.InferenceSession(MODEL))


def test_what_an_installed_session_is_asked_for(installed: None, path: Path) -> None:
    session = Subclass(path)
    assert runs_with_normfuse(session)
    assert Path(session._model_path) == path
    session.disable_fallback()
    session.set_providers([CPU])
    assert runs_with_normfuse(session)
    check(session)
    binding = session.io_binding()
    binding.bind_cpu_input("x", ROWS)
    binding.bind_output("y")
    session.run_with_iobinding(binding, ort.RunOptions())
    np.testing.assert_allclose(binding.copy_outputs_to_cpu()[0], expected(), atol=1e-5)
    check(pickle.loads(pickle.dumps(Subclass(MODEL))))
    with pytest.raises(TypeError, match="pickle"):
        pickle.dumps(ort.InferenceSession(MODEL))


def test_a_hundred_sessions_from_threads(installed: None) -> None:
    from concurrent.futures import ThreadPoolExecutor

    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    with ThreadPoolExecutor(8) as pool:
        sessions = list(pool.map(lambda _: ort.InferenceSession(MODEL, options), range(100)))
    assert all(map(runs_with_normfuse, sessions))
    check(sessions[-1])


@pytest.mark.parametrize("create", [ort.InferenceSession, normfuse.InferenceSession])
@pytest.mark.filterwarnings("ignore:Specified")
def test_an_unknown_provider_fails_where_nothing_falls_back(installed: None, create: Any) -> None:
    assert runs_with_normfuse(create(MODEL, providers=["NoSuchProvider", CPU]))
    with pytest.raises(RuntimeError, match="Unknown Provider Type"):
        create(MODEL, providers=["NoSuchProvider", CPU], enable_fallback=0)


class Watched(ort.SessionOptions):
    """Says what is set in it."""

    def __setattr__(self, name: str, value: Any) -> None:
        SET.append(name)
        super().__setattr__(name, value)


SET: list[str] = []


def options_with(**values: Any) -> ort.SessionOptions:
    options = Watched()
    for name, value in values.items():
        setattr(options, name, value)
    return options


def test_options_stay_as_they_are(installed: None, tmp_path: Path) -> None:
    options = options_with(log_severity_level=4, enable_profiling=True, profile_file_prefix=str(tmp_path / "profile"))
    SET.clear()
    for create in (ort.InferenceSession, normfuse.InferenceSession):
        assert create(MODEL, ort.SessionOptions()).get_session_options().log_severity_level == 3
        session = create(MODEL, options)
        assert runs_with_normfuse(session)
        assert session.get_session_options().log_severity_level == 4
        assert Path(session.end_profiling()).exists()
    assert not options.has_providers()
    assert not SET  # not even for a moment: other threads may create sessions
    with pytest.raises(Exception, match="normfuse"):
        options.get_session_config_entry("normfuse.session_options")
    assert len(list(tmp_path.glob("profile*"))) == 2  # none for a copy


def with_providers(tmp_path: Path) -> ort.SessionOptions:
    options = ort.SessionOptions()
    options.add_provider_for_devices([each for each in ort.get_ep_devices() if each.ep_name == CPU][:1], {})
    return options


DISABLED = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
LEFT = {
    "its options have providers": lambda tmp: {"sess_options": with_providers(tmp)},
    "its options switch": lambda tmp: {"sess_options": options_with(graph_optimization_level=DISABLED)},
    "optimized_model_filepath": lambda tmp: {"sess_options": options_with(optimized_model_filepath=str(tmp / "o"))},
    "CUDAExecutionProvider, which is not there": lambda tmp: {"providers": ["CUDAExecutionProvider"]},
}


@pytest.mark.parametrize("reason", LEFT)
@pytest.mark.filterwarnings("ignore:Specified")
def test_what_is_left_alone(installed: None, reason: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "normfuse")
    session = ort.InferenceSession(MODEL, **LEFT[reason](tmp_path))
    assert not runs_with_normfuse(session)
    assert reason in caplog.text
    check(session)


def test_all_providers_that_are_there_may_be_asked_for(installed: None, path: Path) -> None:
    """Ours is among them from the first session on."""
    for _ in range(3):
        session = ort.InferenceSession(path, providers=ort.get_available_providers())
        assert runs_with_normfuse(session)
        assert session.get_providers()[-1] == "CPUExecutionProvider"


@pytest.mark.skipif(os.name == "nt", reason="named pipes of POSIX")
def test_a_pipe_is_read_once(installed: None, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NORMFUSE_EXCLUDE", "@dynamic")
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=lambda: pipe.write_bytes(path.read_bytes()))
    writer.start()
    ort.InferenceSession(pipe)
    writer.join()


def test_a_provider_that_is_not_there_is_warned_of_and_left_out(installed: None) -> None:
    with pytest.warns(UserWarning, match="Specified provider 'CUDAExecutionProvider'") as warned:
        session = ort.InferenceSession(MODEL, providers=["CUDAExecutionProvider", CPU])
    assert len(warned) == 1
    assert session.get_providers() == [CPU]
    assert runs_with_normfuse(session)


@pytest.mark.parametrize("patterns", ["norm.onnx", "*/norm.*", "other.onnx:no*.onnx"])
def test_excluded_models(installed: None, path: Path, monkeypatch: pytest.MonkeyPatch, patterns: str) -> None:
    monkeypatch.setenv("NORMFUSE_EXCLUDE", patterns.replace(":", os.pathsep))
    assert not runs_with_normfuse(ort.InferenceSession(path))
    assert runs_with_normfuse(ort.InferenceSession(MODEL))


def test_dynamically_quantised_models_can_be_excluded(installed: None, monkeypatch: pytest.MonkeyPatch) -> None:
    text = """<ir_version: 10, opset_import: ["" : 20]> g (float[N, 64] x) => (uint8[N, 64] y, float s, uint8 z) {
      y, s, z = DynamicQuantizeLinear (x)
    }"""
    model = onnx.parser.parse_model(text).SerializeToString()
    assert runs_with_normfuse(ort.InferenceSession(model))
    monkeypatch.setenv("NORMFUSE_EXCLUDE", "@dynamic")
    assert not runs_with_normfuse(ort.InferenceSession(model))
    assert runs_with_normfuse(ort.InferenceSession(MODEL))


def test_whatever_fails_gets_what_onnxruntime_gives(installed: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def outcome(model: Any, **named: Any) -> type[BaseException]:
        with pytest.raises(Exception) as raised:  # noqa: PT011 -- compared below
            ort.InferenceSession(model, **named)
        return raised.type

    bad = [((b"no model",), {}), (("/no/such/file.onnx",), {}), ((3,), {})]
    found = [outcome(*model, **named) for model, named in bad]
    normfuse.uninstall()
    assert found == [outcome(*model, **named) for model, named in bad]
    normfuse.install()
    monkeypatch.setattr("normfuse.sessions.cached.create_session", lambda *_, **_named: 1 / 0)
    check(ort.InferenceSession(MODEL))


APPLICATION = """
import sys, importlib.util
assert "onnxruntime" not in sys.modules and "onnx" not in sys.modules and "numpy" not in sys.modules
importlib.util.find_spec("onnxruntime")
from onnxruntime import InferenceSession
def runs(_=None):
    return "NormFuseExecutionProvider" in InferenceSession(sys.argv[1])._sess.get_providers()
if __name__ == "__main__":
    {first}
    print(runs(), sys.argv[2:], __name__, sys.stdin.read(), flush=True)
    if sys.argv[2:]:  # not in a child
        {more}
    sys.exit(7)
"""
CHILDREN = {
    "none": "pass",
    "subprocess": "import subprocess; subprocess.run([sys.executable, '-I', __file__, sys.argv[1]], input=b'')",
    "spawn": "import multiprocessing as m; print(m.get_context('spawn').Pool(1).map(runs, [0]))",
    # Before it has a session: a child forked later hangs in ONNX Runtime, with normfuse or without.
    "fork": "import multiprocessing as m; print(m.get_context('fork').Pool(1).map(runs, [0]), flush=True)",
}


def run(*command: str, path: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("NORMFUSE")}
    return subprocess.run(
        [sys.executable, *command],
        cwd=path.parent,
        env={**environment, **variables},
        input="typed",
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("children", [name for name in CHILDREN if name != "fork" or hasattr(os, "fork")])
def test_a_whole_application(path: Path, children: str) -> None:
    application = path.with_name("application.py")
    application.write_text(
        textwrap.dedent(APPLICATION).format(
            first=CHILDREN[children] if children == "fork" else "pass",
            more=CHILDREN[children] if children != "fork" else "pass",
        )
    )
    line = "True ['--port', '-1'] __main__ typed\n"
    more = {"none": "", "subprocess": "True [] __main__ \n"}.get(children, "[True]\n")
    arguments = (str(path), "--port", "-1")
    ways = {
        ("-m", "normfuse", "run", "application.py"): {},
        ("-m", "normfuse", "run", "-m", "application"): {},
        ("application.py",): {"NORMFUSE": "1"},
    }
    for way, variables in ways.items() if children == "none" else list(ways.items())[:1]:
        done = run(*way, *arguments, path=path, **variables)
        assert (done.stdout, done.returncode) == (more + line if children == "fork" else line + more, 7), done.stderr
        assert done.stderr == ""
    for off in ("0", "no", "False", "OFF", "") if children == "none" else ():
        assert run("application.py", *arguments, path=path, NORMFUSE=off).stdout == line.replace("True", "False")


def test_run_finds_commands_and_says_what_it_cannot_do(path: Path) -> None:
    command = path.with_name("command")
    command.write_text(f"#!{sys.executable}\nimport os, sys; print(os.environ['NORMFUSE'], sys.argv[1:])\n")
    command.chmod(0o755)
    if os.name != "nt":
        found = run("-m", "normfuse", "run", "command", "-x", path=path, PATH=f"{path.parent}:{os.environ['PATH']}")
        assert found.stdout == "1 ['-x']\n"
    code = "import os, sys; print(os.environ['NORMFUSE_LOG'], sys.argv)"
    assert run("-m", "normfuse", "run", "--log=info", "-c", code, "a", path=path).stdout == "info ['-c', 'a']\n"
    told = run("-m", "normfuse", "run", "normfuse", "--version", path=path, PATH="")  # beside Python
    assert told.stdout.strip().endswith(normfuse.__version__), told.stderr
    told = run("-m", "normfuse", "run", "--help", path=path)
    assert "normfuse run -m uvicorn service:app" in told.stdout
    assert told.returncode == 0
    for arguments, words, exit_code in (
        ((), "which program", 2),
        (("--nosuch", "a.py"), "no option --nosuch", 2),
        (("nosuch",), "no file and no command nosuch", 127),
    ):
        done = run("-m", "normfuse", "run", *arguments, path=path)
        assert words in done.stderr
        assert done.returncode == exit_code


def test_the_log_says_what_became_of_each_session(path: Path) -> None:
    code = (
        "import onnxruntime as o, sys; o.InferenceSession(sys.argv[1]); o.InferenceSession(sys.argv[1], providers=[])"
    )
    done = run("-c", code, str(path), path=path, NORMFUSE="1", NORMFUSE_LOG="info")
    assert re.findall(r"normfuse: runs .*norm\.onnx; created in", done.stderr) != []
    assert run("-c", code, str(path), path=path, NORMFUSE="1").stderr == ""


REPORTED = """
import multiprocessing as m, os, sys
import numpy as np, onnxruntime as o
def once(path, **options):
    return o.InferenceSession(path, **options).run(None, {"x": np.ones((3, 64), np.float32)})
if __name__ == "__main__":
    pool = m.get_context(sys.argv[2]).Pool(1)
    pool.map(once, [sys.argv[1]] * 2)
    pool.close()
    pool.join()
    os.chdir("/")
    once(sys.argv[1], providers=["CPUExecutionProvider"])
    once(sys.argv[1], providers=["CUDAExecutionProvider"])
"""


@pytest.mark.parametrize("children", ["spawn", *(["fork"] if hasattr(os, "fork") else [])])
def test_the_report_has_each_session(path: Path, children: str) -> None:
    path.with_name("app.py").write_text(REPORTED)
    command = ("-m", "normfuse", "run", "--report")
    done = run(*command, "report.jsonl", "app.py", str(path), children, path=path, NORMFUSE_CACHE=str(path.parent))
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in path.with_name("report.jsonl").read_text().splitlines()]
    assert [line["normfuse"] for line in lines] == [True, True, True, False]
    assert [line["prepared"] for line in lines] == [False, True, True, None]
    assert [line["runs"] for line in lines] == [1] * 4
    assert lines[-1]["reason"] == "it asks for CUDAExecutionProvider, which is not there"
    assert len({line["process"] for line in lines}) == 2
    assert [line["fused"] for line in lines] == [*[{"LayerNormalization": 1}] * 3, None]
    assert all(line["plan"].startswith("session plan: ") for line in lines[:3])
    assert all(line["run_seconds"] > 0 and line["model"] == str(path) for line in lines)
    table = run(*command, "-", "app.py", str(path), children, path=path, NORMFUSE_CACHE="0").stderr
    assert table.count("\nfirst ") == 3
    assert re.search(r"\nno +0.00 +1 +0.\d\d  .*norm.onnx: it asks for CUDA", table)


@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
def test_a_signal_reaches_the_application_itself(path: Path) -> None:
    code = "import os, signal; os.kill(os.getpid(), signal.SIGTERM)"
    assert run("-m", "normfuse", "run", "-c", code, path=path).returncode == -signal.SIGTERM
