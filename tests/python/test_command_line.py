"""The command normfuse: exit codes, one sentence for each mistake, and nothing left behind."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import instruction_sets
import jsonschema
import ml_dtypes
import numpy as np
import onnx
import pytest

import normfuse
from normfuse import models
from normfuse.cli import main
from normfuse.cli.console import console
from normfuse.cli.schema import DocumentName, json_schema


@dataclasses.dataclass
class Done:
    code: int
    out: str
    err: str


Run = Callable[..., Done]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """Run the command in the test's folder, in this process."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "150")

    def call(*arguments: object) -> Done:
        monkeypatch.setattr(sys, "argv", ["normfuse", *map(str, arguments)])
        code = 0
        try:
            main()
        except SystemExit as stop:
            code = int(stop.code or 0)
        captured = capsys.readouterr()
        return Done(code, captured.out, captured.err)

    return call


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.onnx"
    onnx.save(models.transformer_encoder(layers=1, hidden=32), path)
    return path


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_installed_command() -> None:
    """Without subcommand and with one; both names are entered by one function."""
    done = subprocess.run([sys.executable, "-m", "normfuse", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"normfuse {normfuse.__version__}\n"
    command = [Path(sys.executable).with_name("normfuse"), "verify", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "normfuse verify [OPTIONS] " in done.stdout.splitlines()[0]


NAMES = ("optimize", "inspect", "verify", "bench", "check", "doctor", "cache", "schema", "demo")


@pytest.mark.parametrize("command", NAMES)
def test_every_command_has_help_with_an_example(run: Run, command: str) -> None:
    done = run(command, "--help")
    assert done.code == 0
    assert f"normfuse {command}" in done.out.partition("Example")[2]


def test_help_names_the_commands(run: Run) -> None:
    done = run("--help")
    assert done.code == 0
    for command in NAMES:
        assert f" {command} " in done.out


def test_optimize_writes_a_verified_model(run: Run, model: Path, tmp_path: Path) -> None:
    before = model.read_bytes()
    done = run("optimize", "model.onnx", "-o", "fused modèle.onnx")
    assert done.code == 0, done.err
    assert files(tmp_path) == ["fused modèle.onnx", "model.onnx"]
    assert model.read_bytes() == before
    assert normfuse.verify(model, tmp_path / "fused modèle.onnx").passed
    for words in ("ReduceMean", "LayerNormalization", "without normfuse", "4 of 4 sites fused"):
        assert words in done.out


def test_names_in_any_script(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "größe 中"
    folder.mkdir()
    given = models.transformer_encoder(layers=1, hidden=32)
    onnx.save(given, folder / "modèle.onnx", save_as_external_data=True, location="poids é.bin", size_threshold=0)
    done = run("optimize", folder / "modèle.onnx", "-o", folder / "результат.onnx", "--report", folder / "отчёт.html")
    assert done.code == 0, done.err
    assert files(folder) == sorted(
        ["modèle.onnx", "poids é.bin", "отчёт.html", "результат.onnx", "результат.onnx.data"]
    )
    normfuse.InferenceSession(folder / "результат.onnx", claim="all", claim_report=folder / "報告.jsonl")
    # Two normalisations with their residuals, one at the end, an activation, and the attention's Softmax.
    assert len((folder / "報告.jsonl").read_text().splitlines()) == 5


STEERING = "\x1b[2J\x9b31m\u202ered"


@pytest.mark.parametrize("arguments", [["inspect", "--all"], ["optimize", "-o", "out.onnx"], ["check"]])
def test_names_do_not_steer_the_terminal(run: Run, tmp_path: Path, arguments: list[str]) -> None:
    """Names come out of models of anybody: what a terminal would obey is printed as a substitute."""
    given = models.chain([2, 8])
    for node in given.graph.node:
        node.name = STEERING
    given.graph.output[0].name = given.graph.node[-1].output[0] = STEERING
    onnx.save(given, tmp_path / "model.onnx")
    done = run(arguments[0], tmp_path / "model.onnx", *arguments[1:])
    assert "\u241b[2J\ufffd31m\ufffdred" in done.out + done.err
    assert not set("\x1b\x9b\u202e") & set(done.out + done.err)
    broken = onnx.ModelProto.FromString(given.SerializeToString())
    broken.graph.node[0].input[0] = STEERING
    onnx.save(broken, tmp_path / "broken.onnx")
    done = run("inspect", tmp_path / "broken.onnx")
    assert done.code == 2
    assert "\x1b" not in done.err


def test_nothing_is_written_beside_the_package(run: Run, model: Path) -> None:
    """Site-packages may be read-only."""

    def state() -> list[tuple[str, int]]:
        packages = [Path(normfuse.__file__).parent, Path(normfuse.get_library_path()).parent]
        found = [path for package in packages for path in package.rglob("*") if "__pycache__" not in path.parts]
        return sorted((str(path), path.stat().st_mtime_ns) for path in found)

    before = state()
    assert run("doctor").code == 0
    assert run("optimize", model, "-o", "out.onnx", "--report", "out.html", "--measure", "0.1").code == 0
    assert state() == before


def test_output_that_cannot_show_a_name(model: Path, tmp_path: Path) -> None:
    """A pipe on Windows, or the C locale: no character set of the terminal's keeps a model from being written."""
    command = [Path(sys.executable).with_name("normfuse"), "optimize", model, "-o", tmp_path / "größe ≤ 1.onnx"]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    done = subprocess.run(command, capture_output=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    assert b"gr\\xf6\\xdfe \\u2264 1.onnx" in done.stdout
    assert (tmp_path / "größe ≤ 1.onnx").exists()
    done = subprocess.run([*command, "--json", "--no-verify"], capture_output=True, check=False, env=environment)
    assert json.loads(done.stdout)["output"] == str(tmp_path / "größe ≤ 1.onnx")
    command[-1] = tmp_path / "größe"
    command[-1].mkdir()
    done = subprocess.run(command, capture_output=True, check=False, env=environment)
    assert done.returncode == 2
    assert b"it is a folder" in done.stderr


def test_optimize_reports_as_data(run: Run, model: Path, tmp_path: Path) -> None:
    done = run("optimize", model, "-o", "out.onnx", "--report", "report.json", "--json")
    assert done.code == 0, done.err
    data = json.loads(done.out)
    assert data == json.loads((tmp_path / "report.json").read_text())
    jsonschema.validate(data, json_schema("report"))
    assert data["bytes_written"] == (tmp_path / "out.onnx").stat().st_size
    assert data["output"] == "out.onnx"


def test_optimize_tunes_and_says_what_it_measured(run: Run, model: Path, tmp_path: Path) -> None:
    arguments = ("optimize", model, "-o", "out.onnx", "--tune", "--tune-seconds", "0.3", "--samples", "1")
    done = run(*arguments, "--json", "--measure", "0.1")
    assert done.code == 0, done.err
    data = json.loads(done.out)
    jsonschema.validate(data, json_schema("report"))
    assert sum(group["sites"] for group in data["tuning"]["groups"]) >= 4
    stored = {entry.key: entry.value for entry in onnx.load(tmp_path / "out.onnx").metadata_props}
    assert stored["ai.normfuse.tuning"].startswith("version 1\nisa ")
    (tmp_path / "out.onnx").unlink()
    done = run(*arguments)
    assert done.code == 0, done.err
    assert re.search(r"group +sites +decision +cost model +gain +\+/-", done.out)
    for words in (
        "FusedNormalization_",
        "the original once more (noise)",
        "elsewhere the cost model decides",
    ):
        assert words in done.out


def test_a_tuning_that_is_stopped_leaves_nothing(
    run: Run, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("normfuse.tuning.tune.take_turns", stop)
    done = run("optimize", model, "-o", "out.onnx", "--tune")
    assert (done.code, done.err.splitlines()[-1]) == (130, "normfuse: stopped.")
    assert files(tmp_path) == ["model.onnx"]


def test_options_of_tuning_that_do_not_fit(run: Run, model: Path, tmp_path: Path) -> None:
    for arguments, message in (
        (("--tune-seconds", "5"), "--tune-seconds is for --tune, which is not given"),
        (("--tune-threads", "0"), "--tune-threads is for --tune, which is not given"),
        (("--tune", "--target", "custom-op"), "use the target portable or standard"),
    ):
        done = run("optimize", model, "-o", "out.onnx", *arguments)
        assert done.code == 2
        assert message in done.err
    done = run("optimize", tmp_path, "-o", "out", "--tune")
    assert done.code == 2
    assert "--tune is for one model" in done.err


def test_optimize_without_verification_says_so(run: Run, model: Path) -> None:
    done = run("optimize", model, "-o", "out.onnx", "--no-verify")
    assert done.code == 0
    assert "not compared with the original" in done.err


def test_a_failed_verification_writes_the_report_and_no_model(run: Run, model: Path, tmp_path: Path) -> None:
    done = run("optimize", model, "-o", "out.onnx", "--max-error", "0", "--report", "report.json")
    assert done.code == 1
    assert done.err.startswith(f"normfuse: {model}: Output 'last_hidden_state' differs")
    assert files(tmp_path) == ["model.onnx", "report.json"]
    assert json.loads((tmp_path / "report.json").read_text())["verification"]["passed"] is False


def test_too_few_fused_sites(run: Run, model: Path, tmp_path: Path) -> None:
    done = run("optimize", model, "-o", "out.onnx", "--require-fused", "5")
    assert done.code == 1
    assert done.err == f"normfuse: {model}: 4 sites are fused, and 5 were required.\n"
    assert files(tmp_path) == ["model.onnx"]
    assert run("optimize", model, "-o", "out.onnx", "--require-fused", "all").code == 0


def test_a_model_with_nothing_to_fuse_is_written_all_the_same(run: Run, tmp_path: Path) -> None:
    g = models.GraphBuilder(opset=17)
    g.output(g.add("Abs", g.input("x", ["n"])), ["n"])
    onnx.save(g.model("plain"), tmp_path / "plain.onnx")
    done = run("optimize", "plain.onnx", "-o", "out.onnx")
    assert done.code == 0, done.err
    assert "0 of 0 sites fused" in done.out
    assert run("inspect", "plain.onnx").code == 0


def test_optimize_says_that_einsum_became_matmul(run: Run, tmp_path: Path) -> None:
    """No site: the gate lets the original pass as well."""
    g = models.GraphBuilder(opset=17)
    x, w = g.input("x", [2, 8, 9]), g.weight(2, 8, 9)
    g.output(g.add("Einsum", x, w, equation="bij,bkj->bik"), [2, 8, 8])
    g.output(g.add("Einsum", x, w, equation="bij,bkj->bki"), [2, 8, 8])
    onnx.save(g.model("attention"), tmp_path / "model.onnx")
    done = run("optimize", "model.onnx", "-o", "out.onnx", "--report", "report.json", "--report", "report.html")
    assert done.code == 0, done.err
    assert "2 Einsum are written as MatMul" in done.out
    assert json.loads((tmp_path / "report.json").read_text())["rules"] == {"EinsumAsMatMul": 2}
    assert "EinsumAsMatMul" in (tmp_path / "report.html").read_text(encoding="utf-8")
    assert sum(node.op_type == "MatMul" for node in onnx.load(tmp_path / "out.onnx").graph.node) == 2
    done = run("check", "out.onnx", "--original", "model.onnx")
    assert done.code == 0, done.out + done.err
    assert run("check", "model.onnx").code == 0
    assert "written as MatMul" not in run("optimize", "out.onnx", "-o", "again.onnx").out


def test_optimize_says_that_sub_became_add(run: Run, tmp_path: Path) -> None:
    g = models.GraphBuilder(opset=17)
    y = g.add("Conv", g.input("x", [1, 3, 4, 4]), g.weight(5, 3, 1, 1))
    g.output(g.add("Sub", y, g.weight(5, 1, 1)), [1, 5, 4, 4])
    onnx.save(g.model("normalized"), tmp_path / "model.onnx")
    done = run("optimize", "model.onnx", "-o", "out.onnx")
    assert done.code == 0, done.err
    assert "1 Sub is written as Add" in done.out


def test_unsupported_sites_are_left_with_their_reason(run: Run, tmp_path: Path) -> None:
    g = models.GraphBuilder(opset=17)
    x = g.input("x", ["n", 8], np.float64)
    y = g.add("LayerNormalization", x, np.ones(8), np.zeros(8))
    g.output(y, ["n", 8], np.float64)
    onnx.save(g.model("double"), tmp_path / "double.onnx")
    done = run("optimize", "double.onnx", "-o", "out.onnx", "--json")
    assert done.code == 0, done.err
    sites = json.loads(done.out)["sites"]
    assert [site["reason"] for site in sites] == ["unsupported_type"]
    data = json.loads(run("inspect", "double.onnx", "--json").out)
    jsonschema.validate(data, json_schema("inspection"))
    assert data["sites"] == sites
    text = run("inspect", "double.onnx").out
    assert "is left" in text
    assert data["session_plan"] in " ".join(text.split())
    assert sites[0]["advice"] in text


BAD_INPUT = [
    (["missing.onnx"], "missing.onnx does not exist"),
    (["folder"], "folder"),
    (["text.onnx"], "text.onnx is not an ONNX model"),
    (["cut.onnx"], "cut.onnx is truncated"),
    (["empty.onnx"], "empty.onnx is empty"),
]
COMMANDS = [["optimize", "-o", "out.onnx"], ["inspect"], ["verify", "model.onnx"], ["check"], ["bench"]]


@pytest.mark.parametrize(("arguments", "words"), BAD_INPUT)
@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
def test_bad_models(
    run: Run, model: Path, tmp_path: Path, command: list[str], arguments: list[str], words: str
) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "text.onnx").write_text("certainly not a model")
    (tmp_path / "cut.onnx").write_bytes(model.read_bytes()[:-100])
    (tmp_path / "empty.onnx").write_bytes(b"")
    before = files(tmp_path)
    done = run(*command, *arguments)
    assert done.code == 2
    assert words in done.err
    assert done.err.startswith("normfuse: ")
    assert done.err.count("\n") == 1
    assert files(tmp_path) == before


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["optimize", "model.onnx", "-o", "model.onnx"], "is the input itself"),
        (["optimize", "model.onnx", "-o", "./model.onnx"], "is the input itself"),
        (["optimize", "model.onnx", "-o", "."], "it is a folder"),
        (["optimize", "model.onnx", "-o", "none/out.onnx"], "does not exist"),
        (["optimize", "model.onnx", "-o", "/proc/out.onnx"], "Cannot write /proc/out.onnx"),
        (["optimize", "model.onnx", "-o", "out.onnx", "--report", "report.txt"], "name it *.json"),
        (["optimize", "model.onnx", "-o", "out.onnx", "--report", "none/report.json"], "does not exist"),
        (["optimize", "model.onnx", "-o", "out.onnx", "--inputs", "absent.npz"], "absent.npz does not exist"),
        (["optimize", "model.onnx", "-o", "out.onnx", "--require-fused", "some"], "takes a number from 0 on, or all"),
        (["optimize", "model.onnx"], "output"),
        (["optimize", "model.onnx", "-o", "out.onnx", "--target", "fast"], "'fast'"),
        (["optimize", "model.onnx", "-o", "out.onnx", "--samples", "0"], "samples"),
        (["optimize", "model.onnx", "-o", "out.onnx", "--frobnicate"], "--frobnicate"),
        (["bench", "model.onnx", "--dim", "batch"], "it takes NAME=SIZE"),
        (["bench", "model.onnx", "--dim", "depth=3"], "no symbolic dimension 'depth'; it has batch, sequence"),
        (["bench", "model.onnx", "--backend", "cuda"], "Option backend is 'cuda'; it takes auto, cpu or directml"),
        (["check", "model.onnx", "--max-error", "1"], "name that as well"),
        (["inspect", "model.onnx", "--backend", "cuda"], "'directml'"),
        (["inspect", "model.onnx", "--backend", "directml", "--directml-level", "6.2"], "it is written like 6_2"),
        (["inspect", "model.onnx", "--directml-level", "6_2"], "give that as well"),
        (["demo", "-o", "none"], "none is not a folder"),
        (["demo", "--threads", "100000"], "less than or equal to 1024"),
        (["fuse", "model.onnx"], "fuse"),
    ],
)
def test_bad_usage(run: Run, model: Path, tmp_path: Path, arguments: list[str], words: str) -> None:
    done = run(*arguments)
    assert done.code == 2
    assert words in done.err
    assert "Traceback" not in done.err
    assert files(tmp_path) == ["model.onnx"]


def test_what_the_system_refuses_is_a_sentence(run: Run, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that may not be looked into; root, who runs tests, may look everywhere."""

    def refuse(path: Path) -> bool:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "is_dir", refuse)
    for command in (["inspect", "model.onnx"], ["optimize", "model.onnx", "-o", "out.onnx"]):
        done = run(*command)
        assert done.code == 2
        assert done.err.startswith("normfuse: ")
        assert "model.onnx: Permission denied." in done.err
        assert done.err.count("\n") == 1


@pytest.mark.parametrize("loaded_last", ["normfuse.cli", "typer", "normfuse.cli.verify"])
def test_a_command_is_stopped_while_it_is_loaded(loaded_last: str) -> None:
    """Loading takes the first third of a second, in which a user notices what was mistyped."""
    code = f"""
import sys
from importlib.metadata import entry_points

class Stopped:
    def find_spec(self, name, path, target=None):
        if name == "{loaded_last}":
            raise KeyboardInterrupt

sys.meta_path.insert(0, Stopped())
(command,) = entry_points(group="console_scripts", name="normfuse")
command.load()()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (130, "normfuse: stopped.\n")


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (AttributeError("'NoneType' object\nhas no attribute 'dim'"), 70, "AttributeError: 'NoneType' object\\nhas no"),
        (RecursionError("maximum recursion depth exceeded"), 70, "a fault of normfuse: please report it, with what"),
        (KeyError(3), 70, "normfuse --debug inspect 'a model.onnx'"),
        (
            MemoryError("Unable to allocate 29 TiB"),
            2,
            "of this machine is not enough (Unable to allocate 29 TiB)",
        ),
        (KeyboardInterrupt(), 130, "normfuse: stopped."),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
def test_whatever_happens_is_a_sentence(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, error: BaseException, code: int, words: str
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    onnx.save(models.transformer_encoder(layers=1), tmp_path / "a model.onnx")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("normfuse.optimization.optimize.inspect_with_claims", fail)
    done = run("inspect", "a model.onnx")
    assert done.code == code
    assert words in done.err
    assert done.err.startswith("normfuse: ")
    assert done.err.count("\n") == 1
    if code != 130:
        for arguments in (["--debug", "inspect", "a model.onnx"], ["inspect", "a model.onnx", "--debug"]):
            done = run(*arguments)
            assert done.code == code
            assert "Traceback" in done.err
            assert words in done.err.splitlines()[-1]


@pytest.mark.parametrize(("arguments", "code"), [(["inspect", "--json"], 0), (["check"], 1)])
def test_a_reader_that_goes_away_changes_no_exit_code(model: Path, arguments: list[str], code: int) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "normfuse", *arguments, str(model)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    assert process.stderr.read() == b""
    assert process.wait() == code


def test_schemas_are_strict(run: Run, model: Path) -> None:
    """A document with a field more, a field less or a value out of range is refused; each schema is one itself."""
    for name in DocumentName:
        schema = json.loads(run("schema", name).out)
        jsonschema.Draft202012Validator.check_schema(schema)
        assert schema == json_schema(name)
    data = json.loads(run("inspect", "model.onnx", "--json").out)
    valid = jsonschema.Draft202012Validator(json_schema("inspection")).is_valid
    assert valid(data)
    assert not valid(data | {"more": 1})
    assert not valid({name: value for name, value in data.items() if name != "quantization"})
    assert not valid(data | {"claims": data["claims"] | {"run": -1}})
    assert not valid(data | {"sites": [data["sites"][0] | {"nodes": "one"}]})
    kinds = json_schema("inspection")["$defs"]["claims.PairNodes"]["properties"]["becomes"]["enum"]
    assert "repeated" in kinds


def test_verify_exits_with_1_for_other_results(run: Run, model: Path, tmp_path: Path) -> None:
    onnx.save(models.transformer_encoder(layers=1, hidden=32, seed=1), tmp_path / "other.onnx")
    done = run("verify", "model.onnx", "other.onnx", "--json")
    assert done.code == 1
    data = json.loads(done.out)
    jsonschema.validate(data, json_schema("verification"))
    assert (data["schema_version"], data["original"], data["optimized"]) == (1, "model.onnx", "other.onnx")
    assert data["passed"] is False
    assert data["first_difference"] in ("Gather_0_0", "Gather_4_0")  # the two tables, neither computed from the other
    assert run("verify", "model.onnx", "model.onnx").code == 0


def test_check_is_a_gate(run: Run, model: Path, tmp_path: Path) -> None:
    assert run("optimize", "model.onnx", "-o", "fused.onnx", "--no-verify").code == 0
    done = run("check", "model.onnx")
    assert done.code == 1
    assert done.out.count("run normfuse optimize") == 4
    done = run("check", "fused.onnx", "--require-fused", "4", "--original", "model.onnx")
    assert done.code == 0, done.out + done.err
    assert "passed; 4 sites are fused" in done.out
    assert run("check", "fused.onnx", "--require-fused", "5").code == 1
    assert run("check", "fused.onnx", "--original", "model.onnx", "--max-error", "0").code == 1
    compared = run("check", "fused.onnx", "--original", "model.onnx", "--json")
    data = json.loads(run("check", "model.onnx", "--json").out)
    for written in (json.loads(compared.out), data):
        jsonschema.validate(written, json_schema("check"))
    assert data["passed"] is False
    assert len(data["sites"]) == 4


def test_check_annotates_for_github(run: Run, tmp_path: Path) -> None:
    onnx.save(models.chain([2, 8], spelling="pow_div", opset=13), tmp_path / "a,b.onnx")
    done = run("check", "a,b.onnx", "--format", "github")
    assert done.code == 1
    (line,) = done.out.splitlines()
    assert line.startswith("::error file=a%2Cb.onnx,title=not fused::'")


def test_inspect_as_data(run: Run, model: Path, tmp_path: Path) -> None:
    data = json.loads(run("inspect", "model.onnx", "--json").out)
    assert [site["kind"] for site in data["sites"]].count("LayerNormalization") == 3
    assert files(tmp_path) == ["model.onnx"]


def test_inspect_lists_what_stands_alone_on_request(run: Run, tmp_path: Path) -> None:
    g = models.GraphBuilder(opset=17)
    g.output(g.add("Neg", g.add("Relu", g.add("Neg", g.input("x", ["n", 8])))), ["n", 8])
    onnx.save(g.model("alone"), tmp_path / "alone.onnx")
    assert "is left" not in run("inspect", "alone.onnx").out
    assert "Relu_1" in run("inspect", "alone.onnx", "--all").out


def test_inspect_shows_the_directml_operators(run: Run, tmp_path: Path) -> None:
    """DirectML has GELU from 5_1 on, and fuses it into a normalisation."""
    onnx.save(
        models.chain([2, 8], activation_name="gelu", input_type="int8", output_type="int8"), tmp_path / "chain.onnx"
    )
    schema = json_schema("lowering")
    quantised = "ELEMENT_WISE_DEQUANTIZE_LINEAR", "ELEMENT_WISE_QUANTIZE_LINEAR"
    composed = "MEAN_VARIANCE_NORMALIZATION1, ELEMENT_WISE_ERF, ACTIVATION_LINEAR, ELEMENT_WISE_MULTIPLY"
    for level, gelu in (("5_1", "MEAN_VARIANCE_NORMALIZATION1 with ACTIVATION_GELU fused in"), ("5_0", composed)):
        arguments = "inspect", "chain.onnx", "--backend", "directml", "--directml-level", level
        data = json.loads(run(*arguments, "--json").out)
        jsonschema.validate(data, schema)
        assert data["level"] == level
        (site,) = data["sites"]
        assert ", ".join(site["operators"]) == f"{quantised[0]}, {gelu}, {quantised[1]}"
        assert [step["operator"] for step in site["program"]["operators"]] == [
            name.partition(" ")[0] for name in site["operators"]
        ]
        text = run(*arguments).out
        assert "(DequantizeLinear -> LayerNormalization -> Gelu -> QuantizeLinear)" in text
        assert all(f"    {name}: " in text for name in site["operators"])
        assert f"1 site runs on DirectML {level}, 0 stay on the CPU path." in text
    assert json.loads(run("inspect", "chain.onnx", "--backend", "directml", "--json").out)["level"] == "6_4"


def test_inspect_says_what_directml_does_not_take(run: Run, tmp_path: Path) -> None:
    g = models.GraphBuilder(opset=21)
    x = g.add("DequantizeLinear", g.input("x", [2, 8], ml_dtypes.int4), np.float32(0.5))
    g.output(g.add("LayerNormalization", x, np.ones(8, np.float32)), [2, 8])
    onnx.save(g.model("int4"), tmp_path / "int4.onnx")
    arguments = "inspect", "int4.onnx", "--backend", "directml", "--directml-level"
    data = json.loads(run(*arguments, "6_2", "--json").out)
    jsonschema.validate(data, json_schema("lowering"))
    (site,) = data["sites"]
    assert (site["reason"], site["operators"], site["program"]) == ("directml_level", [], None)
    text = run(*arguments, "6_2").out
    assert "(DequantizeLinear -> LayerNormalization) stays on the CPU path: " in text
    assert site["advice"] in text
    assert "0 sites run on DirectML 6_2, 1 stays on the CPU path." in text
    (site,) = json.loads(run(*arguments, "6_3", "--json").out)["sites"]
    assert site["operators"] == ["DEQUANTIZE", "MEAN_VARIANCE_NORMALIZATION1"]


def test_bench_measures_four_ways(run: Run, model: Path, tmp_path: Path) -> None:
    done = run("bench", "model.onnx", "--seconds", "0.1", "--dim", "batch=3", "--dim", "sequence=5", "--json")
    assert done.code == 0, done.err
    data = json.loads(done.out)
    assert data["inputs"] == {"input_ids": [3, 5], "attention_mask": [3, 5]}
    names = [timing["name"] for timing in data["timings"]]
    assert names == ["original", "original + normfuse", "rewritten", "rewritten + normfuse"]
    for timing in data["timings"]:
        low, high = timing["quartiles_ms"]
        assert 0 < timing["best_ms"] <= low <= timing["median_ms"] <= high
        assert timing["error"] < 1e-4
        assert timing["runs"] >= 5
        slow, fast = timing["speedup_quartiles"]
        assert 0 < slow <= timing["speedup"] <= fast
        assert (timing["fused_share"] is not None) == ("normfuse" in timing["name"])
    assert 0 < data["chain_share"] < 1
    assert data["bound"] == pytest.approx(1 / (1 - data["chain_share"]))
    text = run("bench", "model.onnx", "--seconds", "0.1").out
    assert "rewritten + normfuse" in text
    for words in ("Kernel time by operator", "products", "MatMul", "around them"):
        assert words in text
    assert re.search(
        r"With normfuse [\d.]+% of the kernel time is in products, .* around them: \w+ [\d.]+% \(\d+ node", text
    )
    assert re.search(r"The chains that are fused take [\d.]+% of .* would run [\d.]+ times as fast\.", text)
    assert files(tmp_path) == ["model.onnx"]


def test_bench_measures_the_session_in_memory_where_it_dequantises_weights(run: Run, tmp_path: Path) -> None:
    graph = """(float[32, 64] x) => (float[32, 64] y)
        <float scale = {0.01}, int8 zero = {0}>
        { w = DequantizeLinear (weights, scale, zero) p = MatMul (x, w) y = Relu (p) }"""
    model = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["" : 17]> g {graph}')
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.full((64, 64), 3, np.int8), "weights"))
    onnx.save(model, tmp_path / "model.onnx")
    done = run("bench", "model.onnx", "--seconds", "0.1", "--json")
    assert done.code == 0, done.err
    data = json.loads(done.out)
    jsonschema.validate(data, json_schema("benchmark"))
    *_, before, last = data["timings"]
    assert (before["name"], last["name"]) == ("rewritten + normfuse", "normfuse.InferenceSession")
    assert last["error"] < 1e-6
    left = {each["name"] for each in data["operators"] if each["after_nodes"]}
    assert "MatMul" in left
    assert not left & {"DequantizeLinear", "MatMulNBits"}


def test_bench_of_a_model_that_gives_an_output_another_rank(run: Run, tmp_path: Path) -> None:
    """ONNX Runtime runs it, and binds no tensor to such an output."""
    graph = "(float[n,1,8] x, int64[k] axes) => (float[a,b,c] y) { s = Squeeze (x, axes) y = Relu (s) }"
    model = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["" : 17]> g {graph}')
    onnx.save(model, tmp_path / "model.onnx")
    np.savez(tmp_path / "inputs.npz", x=np.ones((3, 1, 8), np.float32), axes=np.array([1]))
    done = run("bench", "model.onnx", "--seconds", "0.1", "--inputs", "inputs.npz", "--json")
    assert done.code == 0, done.err


def test_doctor_finds_a_healthy_installation(run: Run) -> None:
    done = run("doctor", "--json")
    assert done.code == 0, done.out
    data = json.loads(done.out)
    assert data["ok"] is True
    assert [finding["name"] for finding in data["findings"]][-2:] == ["session", "custom operators"]


def test_doctor_names_the_first_problem(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NORMFUSE_LIBRARY", str(tmp_path / "nothing.so"))
    done = run("doctor")
    assert done.code == 1
    assert "problem native library: NORMFUSE_LIBRARY names" in done.out
    assert "session" not in done.out


@instruction_sets.each(*instruction_sets.OF_ARCHITECTURE)
def test_instruction_set_can_be_forced(isa: str) -> None:
    code = "from normfuse.selftest.diagnosis import diagnose; print([f.text for f in diagnose() if 'instr' in f.name])"
    done = instruction_sets.python("-c", code, isa=isa)
    assert done.stdout.strip() == f"['{isa} (NORMFUSE_ISA={isa})']", done.stderr


@pytest.mark.slow  # what README's first command does
def test_demo_ends_with_a_table(run: Run, tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    done = run("demo", "--seconds", "0.1", "-o", "kept")
    assert done.code == 0, done.err
    assert done.out.count("he results agree on") == 5
    assert "220 -> 111" in done.out
    assert len(files(tmp_path / "kept")) == 10
    rows = re.findall(r" ([0-9.]+) +([0-9.]+) +([0-9.]+)x ", done.out)
    assert len(rows) == 5
    for before, after, ratio in rows:  # each has three digits
        assert float(ratio) == pytest.approx(float(before) / float(after), rel=0.015, abs=0.006)


@pytest.mark.parametrize("width", [20, 40, 80])
def test_tables_keep_all_columns(width: int, model: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wrapped headings first, then lines longer than the terminal."""
    monkeypatch.setattr(console, "_width", width)
    done = run("optimize", model, "-o", "fused.onnx", "--samples", "1")
    words = done.out.split()
    assert "with" in words  # of the heading "nothing to fuse with"
    for heading in ("fused", "left", "before", "after", "allowed", "absolute", "ULP"):
        assert heading in words
    assert done.code == 0
