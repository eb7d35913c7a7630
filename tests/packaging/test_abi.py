"""ep/abi/ort_abi.h against the measured positions, and every slot that it declares called in real hosts."""

import re
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HEADER = (ROOT / "ep" / "abi" / "ort_abi.h").read_text(encoding="utf-8")
TABLES = tomllib.loads(Path(__file__).with_name("ort_abi.toml").read_text(encoding="utf-8"))
MEASURED = {
    table: {
        name: [int(slot), int(since)] for since, text in rows.items() for name, slot in map(str.split, text.split(","))
    }
    for table, rows in TABLES.items()
}
OLDEST_SUPPORTED = 24


def declared_slots(macro: str) -> dict[str, list[int]]:
    """Name -> [position, since] of one slot list of the header."""
    block = re.search(rf"#define {macro}\(X\)(.*?\n)(?!  X)", HEADER, re.DOTALL)
    assert block
    return {name: [int(slot), int(since)] for slot, since, name in re.findall(r"X\((\d+), (\d+), (\w+),", block[1])}


def declared_structs() -> dict[str, list[str]]:
    """Struct -> its named function members, in the header's order."""
    structs = re.findall(r"^struct (\w+) \{\n(.*?)^\};", HEADER, re.DOTALL | re.MULTILINE)
    members = {name: re.findall(r"\(\*(\w+)\)\(", body) for name, body in structs}
    return {name: found for name, found in members.items() if f"Ort{name}" in MEASURED}


@pytest.mark.parametrize(
    ("macro", "table"), [("NORMFUSE_ORT_API_SLOTS", "OrtApi"), ("NORMFUSE_ORT_EP_API_SLOTS", "OrtEpApi")]
)
def test_declared_slots_are_where_they_were_measured(macro: str, table: str) -> None:
    declared = declared_slots(macro)
    assert len(declared) > 1
    assert declared == {name: MEASURED[table].get(name) for name in declared}


def test_no_declared_slot_is_newer_than_the_oldest_host() -> None:
    """A newer one would have to be asked for before each use."""
    slots = declared_slots("NORMFUSE_ORT_API_SLOTS") | declared_slots("NORMFUSE_ORT_EP_API_SLOTS")
    assert [name for name, (_, since) in slots.items() if since > OLDEST_SUPPORTED] == []


def test_struct_members_are_where_they_were_measured(tmp_path: Path) -> None:
    structs = declared_structs()
    assert {"Ep", "EpFactory", "NodeComputeInfo", "CustomOp"} <= set(structs)
    checks = [
        f"static_assert(offsetof(normfuse::ort::{struct}, {member}) == 8 * {MEASURED[f'Ort{struct}'][member][0]});"
        for struct, members in structs.items()
        for member in members
    ]
    sizes = {"Ep": 208, "EpFactory": 168, "NodeComputeInfo": 32, "CustomOp": 208, "NodeFusionOptions": 8}
    checks += [f"static_assert(sizeof(normfuse::ort::{name}) == {size});" for name, size in sizes.items()]
    source = tmp_path / "layout.cc"
    source.write_text('#include "abi/ort_abi.h"\n' + "\n".join(checks) + "\n", encoding="utf-8")
    command = ["c++", "-std=c++20", "-fsyntax-only", "-I", ROOT / "ep", source]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
