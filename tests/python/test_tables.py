"""tools/generate_tables.py: what is wrong with a table is said by table, row and key."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ROW = {
    "formula": '"bend * x"',
    "params": '[{ name = "bend", default = 0.5, range = [0.25, 1.0] }]',
    "kernel": '"Bend"',
    "price": "{ ort = 0.1, avx512 = 0.1, avx2 = 0.1, baseline = 0.1 }",
    "lipschitz": '"abs(bend)"',
    "body": '[{ nodes = "x * bend" }]',
    "directml": '"not there"',
}


def generate(tables: Path, output: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, ROOT / "tools" / "generate_tables.py", tables, output]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture
def tables(tmp_path: Path) -> Path:
    return Path(shutil.copytree(ROOT / "ep" / "spec", tmp_path / "spec"))


def add_row(tables: Path, **changes: str | None) -> None:
    """A row of an activation, Bend, with keys changed, or left out (None)."""
    lines = [f"{key} = {value}" for key, value in (ROW | changes).items() if value is not None]
    with (tables / "activations.toml").open("a", encoding="utf-8") as file:
        file.write("\n".join(["", "[[activation]]", 'name = "Bend"', *lines, ""]))


def test_a_whole_row_is_taken(tables: Path, tmp_path: Path) -> None:
    add_row(tables)
    done = generate(tables, tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert "kBend" in (tmp_path / "out" / "activation_list.h").read_text("utf-8")
    assert "p[0] * x" in (tmp_path / "out" / "formulas.h").read_text("utf-8")


LEVELS = "'1_0', '2_0', '2_1', '3_0', '3_1', '4_0', '4_1', '5_0', '5_1', '5_2', '6_0', '6_1', '6_2', '6_3' or '6_4'"


@pytest.mark.parametrize(
    ("key", "value", "error"),
    [
        ("price", None, "no key 'price'"),
        ("price", "{ ort = 0.1, avx512 = 0.1, avx2 = 0.1 }", "price: no key 'baseline'"),
        ("price", "{ ort = -1, avx512 = 0, avx2 = 0, baseline = 0 }", "price: a price is negative or infinite"),
        ("formula", None, "no key 'formula'"),
        ("formula", '"gain * x"', "key 'formula': 'gain' is nothing that an expression may hold"),
        ("formula", '"x +"', "key 'formula': 'x +' is not an expression: invalid syntax"),
        ("params", '[{ name = "bend", default = 0.5 }]', "params: bend: no key 'range'"),
        (
            *("params", '[{ name = "bend", default = 0.5, range = [1.0, 0.0] }]'),
            "params: bend: key 'range' is [1.0, 0.0], which is not a lower and a higher number",
        ),
        (
            *("params", '[{ name = "bend", default = 0.5, range = [-1.0, 1.0], nonzero = true }]'),
            "params: bend: its range and default must leave 0 out: the formula divides by it",
        ),
        ("body", None, "no key 'body', and no node of ONNX's own domain that it could be written with"),
        ("body", '[{ nodes = "x * bent" }]', "body 1: key 'nodes': 'bent' is neither x nor a parameter"),
        (
            *("directml", None),
            'no key \'directml\'; where DirectML has no such operator it is "composed" or "not there"',
        ),
        ("directml", '"none"', "key 'directml' is 'none', which is not a table, 'composed' or 'not there'"),
        (
            *("directml", '{ op = "BEND", type = 1, level = "9_9", fused = "", fields = [] }'),
            f"directml: key 'level' is '9_9', which is not {LEVELS}",
        ),
        ("since", "0", "key 'since' is 0; the first version is 1"),
        ("kernal", '"Bend"', "unknown key 'kernal'; known here: "),
        ("kernel", "1", "key 'kernel' is 1, which is not a text"),
    ],
)
def test_a_wrong_row_of_an_activation(key: str, value: str | None, error: str, tables: Path, tmp_path: Path) -> None:
    add_row(tables, **{key: value})
    done = generate(tables, tmp_path / "out")
    assert done.returncode == 1
    assert done.stderr.startswith(f"generate_tables.py: activations.toml: Bend: {error}")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("table", "old", "new", "error"),
    [
        ("activations", 'name = "Mish"', 'name = "Tanh"', "Tanh: there are two rows of this name"),
        ("activations", 'name = "Mish"', 'title = "Mish"', "activation 25: no key 'name'"),
        ("activations", 'name = "Mish"', 'name = "mish"', "mish: its name is not an identifier"),
        ("prices", "ort = 0.46", 'ort = "much"', "layer_norm: key 'ort' is 'much', which is not a number"),
        ("prices", "nanoseconds = 270", "time = 270", "ort_normalization: no key 'nanoseconds'"),
        (
            *("operators", 'name = "epsilon"\ntype = "float"', 'name = "epsilon"\ntype = "double"'),
            "epsilon: key 'type' is 'double', which is not 'tensor', 'int', 'ints', 'float', 'flag'",
        ),
        (
            *("normalizations", 'outputs = ["Y", "inv_std_dev"]', 'outputs = ["Y", "deviation"]'),
            "SimplifiedLayerNormalization: key 'outputs' has 'deviation', which is not 'Y', 'sum'",
        ),
        (
            *("normalizations", 'on = "stddev"', 'on = "deviation"'),
            "MeanVarianceNormalization: epsilon: key 'on' is 'deviation', which is not 'variance'",
        ),
        ("options", 'kind = "flag", ', "", "compile: no key 'kind'"),
        (
            *("options", 'default = "profitable"', 'default = "cheap"'),
            "claim: key 'default' is 'cheap', which is not 'profitable' or 'all'",
        ),
        (
            *("host_operators", '"HardSigmoid", "LeakyRelu", "Relu"', '"Conv", "LeakyRelu", "Relu"'),
            "inside_conv: key 'activations' has 'Conv', which is not in activations.toml",
        ),
        ("reasons", "advice =", "hint =", "unsupported_type: no key 'advice'"),
        ("reasons", "reason = [", "reason = ", ""),
        ("prices", "", None, ""),  # no such file
    ],
)
def test_a_wrong_table(table: str, old: str, new: str | None, error: str, tables: Path, tmp_path: Path) -> None:
    path = tables / f"{table}.toml"
    text = path.read_text("utf-8")
    assert old in text
    path.unlink()
    if new is not None:
        path.write_text(text.replace(old, new, 1), encoding="utf-8")
    done = generate(tables, tmp_path / "out")
    assert done.returncode == 1
    assert done.stderr.startswith(f"generate_tables.py: {table}.toml: {error}")
