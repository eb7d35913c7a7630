"""The command normfuse: exit codes, one sentence for each mistake, and nothing left behind."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import instruction_sets
import jsonschema
import ml_dtypes
import numpy as np
import onnx
import pytest
from command import Done, Run, files

import normfuse
from normfuse import models
from normfuse.cli.console import console
from normfuse.cli.schema import DocumentName, json_schema

COMMAND = Path(sys.executable).with_name("normfuse")
NAMES = ("optimize", "inspect", "verify", "bench", "check", "doctor", "cache", "schema", "demo")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.onnx"
    onnx.save(models.transformer_encoder(layers=1, hidden=32), path)
    return path


def save(path: Path, graph: str, opset: int = 17, **weights: np.ndarray) -> None:
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": {opset}]> g {graph}')
    model.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in weights.items())
    onnx.save(model, path)


# --- all commands ---


def test_installed_command() -> None:
    """Without subcommand and with one; both names are entered by one function."""
    done = subprocess.run([sys.executable, "-m", "normfuse", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"normfuse {normfuse.__version__}\n"
    done = subprocess.run([COMMAND, "verify", "--help"], capture_output=True, text=True, check=True)
    assert "normfuse verify [OPTIONS] " in done.stdout.splitlines()[0]


def test_every_command_has_help_with_an_example(run: Run) -> None:
    whole = run("--help")
    assert whole.code == 0
    for command in NAMES:
        assert f" {command} " in whole.out
        done = run(command, "--help")
        assert done.code == 0
        assert f"normfuse {command}" in done.out.partition("Example")[2]


STEERING = "\x1b[2J\x9b31m\u202ered"


@pytest.mark.parametrize("arguments", [["inspect", "--all"], ["optimize", "-o", "out.onnx"], ["check"]])
def test_names_do_not_steer_the_terminal(run: Run, tmp_path: Path, arguments: list[str]) -> None:
    """Names come out of models of anybody: what a terminal would obey is printed as a substitute."""
    given = models.chain([2, 8])
    for node in given.graph.node:
        node.name = STEERING
    given.graph.output[0].name = given.graph.node[-1].output[0] = STEERING
    onnx.save(given, tmp_path / "model.onnx")
    done = run(arguments[0], "model.onnx", *arguments[1:])
    assert "\u241b[2J\ufffd31m\ufffdred" in done.out + done.err
    assert not set("\x1b\x9b\u202e") & set(done.out + done.err)
    given.graph.node[0].input[0] = STEERING
    onnx.save(given, tmp_path / "broken.onnx")
    done = run("inspect", "broken.onnx")
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
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}

    def optimize(target: Path, *options: str) -> subprocess.CompletedProcess[bytes]:
        command = [COMMAND, "optimize", model, "-o", target, *options]
        return subprocess.run(command, capture_output=True, check=False, env=environment)

    target = tmp_path / "größe ≤ 1.onnx"
    done = optimize(target)
    assert done.returncode == 0, done.stderr
    assert b"gr\\xf6\\xdfe \\u2264 1.onnx" in done.stdout
    assert target.exists()
    assert json.loads(optimize(target, "--json", "--no-verify").stdout)["output"] == str(target)
    (tmp_path / "größe").mkdir()
    done = optimize(tmp_path / "größe")
    assert done.returncode == 2
    assert b"it is a folder" in done.stderr


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "does not exist"),
        ("folder", "holds no *.onnx file|is a folder"),
        (b"certainly not a model", "bad.onnx is not an ONNX model"),
        ("cut", "bad.onnx is truncated"),
        (b"", "bad.onnx is empty"),
    ],
)
@pytest.mark.parametrize("command", ["optimize -o out.onnx", "inspect", "verify model.onnx", "check", "bench"])
def test_bad_models(run: Run, model: Path, tmp_path: Path, command: str, content: Any, words: str) -> None:
    if content == "folder":
        (tmp_path / "bad.onnx").mkdir()
    elif content is not None:
        (tmp_path / "bad.onnx").write_bytes(model.read_bytes()[:-100] if content == "cut" else content)
    before = files(tmp_path)
    done = run(*command.split(), "bad.onnx")
    assert done.code == 2
    assert any(each in done.err for each in words.split("|"))
    assert done.err.startswith("normfuse: ")
    assert done.err.count("\n") == 1
    assert files(tmp_path) == before


OPTIMIZE = "optimize model.onnx -o out.onnx"


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("optimize model.onnx -o model.onnx", "is the input itself"),
        ("optimize model.onnx -o ./model.onnx", "is the input itself"),
        ("optimize model.onnx -o .", "it is a folder"),
        ("optimize model.onnx -o none/out.onnx", "does not exist"),
        ("optimize model.onnx -o /proc/out.onnx", "Cannot write /proc/out.onnx"),
        (f"{OPTIMIZE} --report report.txt", "name it *.json"),
        (f"{OPTIMIZE} --report none/report.json", "does not exist"),
        (f"{OPTIMIZE} --inputs absent.npz", "absent.npz does not exist"),
        (f"{OPTIMIZE} --require-fused some", "takes a number from 0 on, or all"),
        ("optimize model.onnx", "output"),
        (f"{OPTIMIZE} --target fast", "'fast'"),
        (f"{OPTIMIZE} --samples 0", "samples"),
        (f"{OPTIMIZE} --frobnicate", "--frobnicate"),
        (f"{OPTIMIZE} --tune-seconds 5", "--tune-seconds is for --tune, which is not given"),
        (f"{OPTIMIZE} --tune-threads 0", "--tune-threads is for --tune, which is not given"),
        (f"{OPTIMIZE} --tune --target custom-op", "use the target portable or standard"),
        ("bench model.onnx --dim batch", "it takes NAME=SIZE"),
        ("bench model.onnx --dim depth=3", "no symbolic dimension 'depth'; it has batch, sequence"),
        ("bench model.onnx --backend cuda", "Option backend is 'cuda'; it takes auto, cpu or directml"),
        ("check model.onnx --max-error 1", "name that as well"),
        ("inspect model.onnx --backend cuda", "'directml'"),
        ("inspect model.onnx --backend directml --directml-level 6.2", "it is written like 6_2"),
        ("inspect model.onnx --directml-level 6_2", "give that as well"),
        ("inspect model.onnx -o site.onnx", "are for --extract"),
        ("demo -o none", "none is not a folder"),
        ("demo --threads 100000", "less than or equal to 1024"),
        ("fuse model.onnx", "fuse"),
    ],
)
def test_bad_usage(run: Run, model: Path, tmp_path: Path, command: str, words: str) -> None:
    done = run(*command.split())
    assert done.code == 2
    assert words in done.err
    assert "Traceback" not in done.err
    assert files(tmp_path) == ["model.onnx"]


def test_what_the_system_refuses_is_a_sentence(run: Run, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder that may not be looked into; root, who runs tests, may look everywhere."""

    def refuse(path: Path) -> bool:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "is_dir", refuse)
    for command in ("inspect model.onnx", OPTIMIZE):
        done = run(*command.split())
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
        (MemoryError("Unable to allocate 29 TiB"), 2, "of this machine is not enough (Unable to allocate 29 TiB)"),
        (KeyboardInterrupt(), 130, "normfuse: stopped."),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
def test_whatever_happens_is_a_sentence(
    run: Run, monkeypatch: pytest.MonkeyPatch, model: Path, error: BaseException, code: int, words: str
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    model.rename(model.with_name("a model.onnx"))
    monkeypatch.setattr("normfuse.optimization.optimize.inspect_with_claims", fail)
    done = run("inspect", "a model.onnx")
    assert done.code == code
    assert words in done.err
    assert done.err.startswith("normfuse: ")
    assert done.err.count("\n") == 1
    for arguments in (["--debug", "inspect", "a model.onnx"], ["inspect", "a model.onnx", "--debug"]):
        done = run(*arguments)
        assert done.code == code
        assert code == 130 or "Traceback" in done.err
        assert words in done.err.splitlines()[-1]


@pytest.mark.parametrize(("arguments", "code"), [(["inspect", "--json"], 0), (["check"], 1)])
def test_a_reader_that_goes_away_changes_no_exit_code(model: Path, arguments: list[str], code: int) -> None:
    command = [sys.executable, "-m", "normfuse", *arguments, str(model)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdout.close()
    assert process.stderr.read() == b""
    assert process.wait() == code


def test_schemas_are_strict(run: Run, model: Path) -> None:
    """A document with a field more, a field less or a value out of range is refused; each schema is one itself."""
    for name in DocumentName:
        schema = json.loads(run("schema", name).out)
        jsonschema.Draft202012Validator.check_schema(schema)
        assert schema == json_schema(name)
    data = run.document("inspection", "inspect", model)
    valid = jsonschema.Draft202012Validator(json_schema("inspection")).is_valid
    assert not valid(data | {"more": 1})
    assert not valid({name: value for name, value in data.items() if name != "quantization"})
    assert not valid(data | {"claims": data["claims"] | {"run": -1}})
    assert not valid(data | {"sites": [data["sites"][0] | {"nodes": "one"}]})
    kinds = json_schema("inspection")["$defs"]["claims.PairNodes"]["properties"]["becomes"]["enum"]
    assert "repeated" in kinds


@pytest.mark.parametrize("width", [20, 40, 80])
def test_tables_keep_all_columns(width: int, model: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wrapped headings first, then lines longer than the terminal."""
    monkeypatch.setattr(console, "_width", width)
    done = run("optimize", model, "-o", "fused.onnx", "--samples", "1")
    assert done.code == 0
    # "with" of the heading "nothing to fuse with".
    assert {"with", "fused", "left", "before", "after", "allowed", "absolute", "ULP"} <= set(done.out.split())


# --- optimize ---


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
    written = ["modèle.onnx", "poids é.bin", "отчёт.html", "результат.onnx", "результат.onnx.data"]
    assert files(folder) == sorted(written)
    normfuse.InferenceSession(folder / "результат.onnx", claim="all", claim_report=folder / "報告.jsonl")
    # Two normalisations with their residuals, one at the end, an activation, and the attention's Softmax.
    assert len((folder / "報告.jsonl").read_text().splitlines()) == 5


def test_optimize_reports_as_data(run: Run, model: Path, tmp_path: Path) -> None:
    data = run.document("report", "optimize", model, "-o", "out.onnx", "--report", "report.json")
    assert data == json.loads((tmp_path / "report.json").read_text())
    assert data["bytes_written"] == (tmp_path / "out.onnx").stat().st_size
    assert data["output"] == "out.onnx"


def test_optimize_tunes_and_says_what_it_measured(run: Run, model: Path, tmp_path: Path) -> None:
    arguments = ("optimize", model, "-o", "out.onnx", "--tune", "--tune-seconds", "0.3", "--samples", "1")
    data = run.document("report", *arguments, "--measure", "0.1")
    assert sum(group["sites"] for group in data["tuning"]["groups"]) >= 4
    stored = {entry.key: entry.value for entry in onnx.load(tmp_path / "out.onnx").metadata_props}
    assert stored["ai.normfuse.tuning"].startswith("version 1\nisa ")
    (tmp_path / "out.onnx").unlink()
    done = run(*arguments)
    assert done.code == 0, done.err
    assert re.search(r"group +sites +decision +cost model +gain +\+/-", done.out)
    for words in ("FusedNormalization_", "the original once more (noise)", "elsewhere the cost model decides"):
        assert words in done.out


def test_a_tuning_that_is_stopped_leaves_nothing(
    run: Run, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("normfuse.tuning.tune.take_turns", stop)
    done = run(*OPTIMIZE.split(), "--tune")
    assert (done.code, done.err.splitlines()[-1]) == (130, "normfuse: stopped.")
    assert files(tmp_path) == ["model.onnx"]


def test_what_is_required_of_the_result(run: Run, model: Path, tmp_path: Path) -> None:
    """A failed verification writes the report and no model; one that is not asked for is said to be missing."""
    done = run(*OPTIMIZE.split(), "--require-fused", "5")
    assert (done.code, done.err) == (1, "normfuse: model.onnx: 4 sites are fused, and 5 were required.\n")
    assert files(tmp_path) == ["model.onnx"]
    done = run(*OPTIMIZE.split(), "--max-error", "0", "--report", "report.json")
    assert done.code == 1
    assert done.err.startswith("normfuse: model.onnx: Output 'last_hidden_state' differs")
    assert files(tmp_path) == ["model.onnx", "report.json"]
    assert json.loads((tmp_path / "report.json").read_text())["verification"]["passed"] is False
    done = run(*OPTIMIZE.split(), "--require-fused", "all", "--no-verify")
    assert done.code == 0
    assert "not compared with the original" in done.err


def test_a_model_with_nothing_to_fuse_is_written_all_the_same(run: Run, tmp_path: Path) -> None:
    save(tmp_path / "plain.onnx", "(float[n] x) => (float[n] y) { y = Abs (x) }")
    done = run("optimize", "plain.onnx", "-o", "out.onnx")
    assert done.code == 0, done.err
    assert "0 of 0 sites fused" in done.out
    assert run("inspect", "plain.onnx").code == 0


def test_optimize_says_what_became_of_operators_that_are_no_sites(run: Run, tmp_path: Path) -> None:
    """Einsum becomes MatMul, and Sub Add: the gate lets the original pass as well."""
    graph = """(float[2, 8, 9] x, float[1, 3, 4, 4] i) => (float[2, 8, 8] y, float[2, 8, 8] z, float[1, 5, 4, 4] o) {
        y = Einsum <equation = "bij,bkj->bik"> (x, w) z = Einsum <equation = "bij,bkj->bki"> (x, w)
        c = Conv (i, v) o = Sub (c, b) }"""
    weights = {"w": (2, 8, 9), "v": (5, 3, 1, 1), "b": (5, 1, 1)}
    arrays = {name: np.random.default_rng(1).normal(size=shape) for name, shape in weights.items()}
    save(tmp_path / "model.onnx", graph, **{name: array.astype(np.float32) for name, array in arrays.items()})
    done = run(*OPTIMIZE.split(), "--report", "report.json", "--report", "report.html")
    assert done.code == 0, done.err
    assert "2 Einsum are written as MatMul" in done.out
    assert "1 Sub is written as Add" in done.out
    rules = {"EinsumAsMatMul": 2, "SubtractionAsAddition": 1}
    assert json.loads((tmp_path / "report.json").read_text())["rules"] == rules
    assert "EinsumAsMatMul" in (tmp_path / "report.html").read_text(encoding="utf-8")
    assert sum(node.op_type == "MatMul" for node in onnx.load(tmp_path / "out.onnx").graph.node) == 2
    done = run("check", "out.onnx", "--original", "model.onnx")
    assert done.code == 0, done.out + done.err
    assert run("check", "model.onnx").code == 0
    assert "written as" not in run("optimize", "out.onnx", "-o", "again.onnx").out


def test_unsupported_sites_are_left_with_their_reason(run: Run, tmp_path: Path) -> None:
    graph = "(double[n, 8] x) => (double[n, 8] y) { y = LayerNormalization (x, s, b) }"
    save(tmp_path / "double.onnx", graph, s=np.ones(8), b=np.zeros(8))
    sites = run.document("report", "optimize", "double.onnx", "-o", "out.onnx")["sites"]
    assert [site["reason"] for site in sites] == ["unsupported_type"]
    data = run.document("inspection", "inspect", "double.onnx")
    assert data["sites"] == sites
    text = run("inspect", "double.onnx").out
    assert "is not fused" in text
    assert data["session_plan"] in " ".join(text.split())
    assert sites[0]["advice"] in text


# --- verify and check ---


def test_verify_exits_with_1_for_other_results(run: Run, model: Path, tmp_path: Path) -> None:
    onnx.save(models.transformer_encoder(layers=1, hidden=32, seed=1), tmp_path / "other.onnx")
    data = run.document("verification", "verify", "model.onnx", "other.onnx", code=1)
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
    run.document("check", "check", "fused.onnx", "--original", "model.onnx")
    data = run.document("check", "check", "model.onnx", code=1)
    assert data["passed"] is False
    assert len(data["sites"]) == 4
    onnx.save(models.chain([2, 8], spelling="pow_div", opset=13), tmp_path / "a,b.onnx")
    done = run("check", "a,b.onnx", "--format", "github")
    assert done.code == 1
    (line,) = done.out.splitlines()
    assert line.startswith("::error file=a%2Cb.onnx,title=not fused::'")


# --- inspect ---


def test_inspect_as_data(run: Run, model: Path, tmp_path: Path) -> None:
    data = run.document("inspection", "inspect", "model.onnx")
    assert [site["kind"] for site in data["sites"]].count("LayerNormalization") == 3
    assert files(tmp_path) == ["model.onnx"]
    # With --extract a site, which `optimize` takes.
    name = next(site["name"] for site in data["sites"] if site["fused_into"] is not None)
    done = run("inspect", "model.onnx", "--extract", name, "-o", "site.onnx")
    assert done.code == 0, done.err
    assert "normfuse optimize site.onnx -o site.fused.onnx --inputs site.npz" in done.out
    assert files(tmp_path) == ["model.onnx", "site.npz", "site.onnx"]


def test_inspect_lists_what_stands_alone_on_request(run: Run, tmp_path: Path) -> None:
    save(tmp_path / "alone.onnx", "(float[n, 8] x) => (float[n, 8] y) { a = Neg (x) r = Relu (a) y = Neg (r) }")
    assert "is not fused" not in run("inspect", "alone.onnx").out
    assert "(Relu)" in run("inspect", "alone.onnx", "--all").out


def test_inspect_shows_the_directml_operators(run: Run, tmp_path: Path) -> None:
    """DirectML has GELU from 5_1 on, and fuses it into a normalisation."""
    given = models.chain([2, 8], activation_name="gelu", input_type="int8", output_type="int8")
    onnx.save(given, tmp_path / "chain.onnx")
    composed = "MEAN_VARIANCE_NORMALIZATION1, ELEMENT_WISE_ERF, ACTIVATION_LINEAR, ELEMENT_WISE_MULTIPLY"
    for level, gelu in (("5_1", "MEAN_VARIANCE_NORMALIZATION1 with ACTIVATION_GELU fused in"), ("5_0", composed)):
        arguments = "inspect", "chain.onnx", "--backend", "directml", "--directml-level", level
        data = run.document("lowering", *arguments)
        assert data["level"] == level
        (site,) = data["sites"]
        operators = f"ELEMENT_WISE_DEQUANTIZE_LINEAR, {gelu}, ELEMENT_WISE_QUANTIZE_LINEAR"
        assert ", ".join(site["operators"]) == operators
        assert [step["operator"] for step in site["program"]["operators"]] == [
            name.partition(" ")[0] for name in site["operators"]
        ]
        text = run(*arguments).out
        assert "(DequantizeLinear -> LayerNormalization -> Gelu -> QuantizeLinear)" in text
        assert all(f"    {name}: " in text for name in site["operators"])
        assert f"1 site runs on DirectML {level}, 0 stay on the CPU path." in text
    assert run.document("lowering", "inspect", "chain.onnx", "--backend", "directml")["level"] == "6_4"


def test_inspect_says_what_directml_does_not_take(run: Run, tmp_path: Path) -> None:
    g = models.GraphBuilder(opset=21)
    x = g.add("DequantizeLinear", g.input("x", [2, 8], ml_dtypes.int4), np.float32(0.5))
    g.output(g.add("LayerNormalization", x, np.ones(8, np.float32)), [2, 8])
    onnx.save(g.model("int4"), tmp_path / "int4.onnx")
    arguments = "inspect", "int4.onnx", "--backend", "directml", "--directml-level"
    (site,) = run.document("lowering", *arguments, "6_2")["sites"]
    assert (site["reason"], site["operators"], site["program"]) == ("directml_level", [], None)
    text = run(*arguments, "6_2").out
    assert "(DequantizeLinear -> LayerNormalization) stays on the CPU path: " in text
    assert site["advice"] in text
    assert "0 sites run on DirectML 6_2, 1 stays on the CPU path." in text
    (site,) = run.document("lowering", *arguments, "6_3")["sites"]
    assert site["operators"] == ["DEQUANTIZE", "MEAN_VARIANCE_NORMALIZATION1"]


# --- bench, doctor and demo ---


def test_bench_measures_four_ways(run: Run, model: Path, tmp_path: Path) -> None:
    sizes = ("--dim", "batch=3", "--dim", "sequence=5")
    data = run.document("benchmark", "bench", "model.onnx", "--seconds", "0.1", *sizes)
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
    for words in (
        *("rewritten \\+ normfuse", "Kernel time by operator", "products", "MatMul"),
        r"With normfuse [\d.]+% of the kernel time is in products, .* around them: \w+ [\d.]+% \(\d+ node",
        r"The chains that are fused take [\d.]+% of .* would run [\d.]+ times as fast\.",
    ):
        assert re.search(words, text), words
    assert files(tmp_path) == ["model.onnx"]


def test_bench_measures_the_session_in_memory_where_it_dequantises_weights(run: Run, tmp_path: Path) -> None:
    graph = """(float[32, 64] x) => (float[32, 64] y) <float scale = {0.01}, int8 zero = {0}>
        { w = DequantizeLinear (weights, scale, zero) p = MatMul (x, w) y = Relu (p) }"""
    save(tmp_path / "model.onnx", graph, weights=np.full((64, 64), 3, np.int8))
    data = run.document("benchmark", "bench", "model.onnx", "--seconds", "0.1")
    *_, before, last = data["timings"]
    assert (before["name"], last["name"]) == ("rewritten + normfuse", "normfuse.InferenceSession")
    assert last["error"] < 1e-6
    left = {each["name"] for each in data["operators"] if each["after_nodes"]}
    assert "MatMul" in left
    assert not left & {"DequantizeLinear", "MatMulNBits"}


def test_bench_of_a_model_that_gives_an_output_another_rank(run: Run, tmp_path: Path) -> None:
    """ONNX Runtime runs it, and binds no tensor to such an output."""
    graph = "(float[n, 1, 8] x, int64[k] axes) => (float[a, b, c] y) { s = Squeeze (x, axes) y = Relu (s) }"
    save(tmp_path / "model.onnx", graph)
    np.savez(tmp_path / "inputs.npz", x=np.ones((3, 1, 8), np.float32), axes=np.array([1]))
    run.document("benchmark", "bench", "model.onnx", "--seconds", "0.1", "--inputs", "inputs.npz")


def test_doctor(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It finds a healthy installation, and names the first problem of another one."""
    done = run("doctor", "--json")
    assert done.code == 0, done.out
    data = json.loads(done.out)
    assert data["ok"] is True
    assert [finding["name"] for finding in data["findings"]][-2:] == ["session", "custom operators"]
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
    done: Done = run("demo", "--seconds", "0.1", "-o", "kept")
    assert done.code == 0, done.err
    assert done.out.count("he results agree on") == 5
    assert "220 -> 111" in done.out
    assert len(files(tmp_path / "kept")) == 10
    rows = re.findall(r" ([0-9.]+) +([0-9.]+) +([0-9.]+)x ", done.out)
    assert len(rows) == 5
    for before, after, ratio in rows:  # each has three digits
        assert float(ratio) == pytest.approx(float(before) / float(after), rel=0.015, abs=0.006)
