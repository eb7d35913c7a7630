#!/usr/bin/env python3
"""Export every module by both exporters at every opset, and write the table in docs/pages/export.md.

``python tests/export/write_table.py [--opset 17 ...]``, in the environment of ``tests/run.py --step export``. Takes
minutes for each opset.
"""

import argparse
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from matrix import EXPORTERS, OPSETS, Outcome, Refused, case_and_expectation, run_case
from torch_modules import BUILDERS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "pages" / "export.md"
BEGIN, END = "<!-- table: tests/export/write_table.py -->", "<!-- end of table -->"


def outcome(name: str, exporter: str, opset: int) -> Outcome | None:
    """None: the exporter makes no file of this opset."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            found = run_case(name, exporter, opset, Path(folder))
        except Refused:
            return None
    print(name, exporter, opset, found.opset, found.found, f"{found.error:.0e}", flush=True)
    return found if found.opset == opset else None


def cell(name: str, exporter: str, opsets: list[int]) -> str:
    found = [made for opset in opsets if (made := outcome(name, exporter, opset)) is not None]
    if not found:
        return "-"
    text = f"{found[0].opset} to {found[-1].opset} ({max(each.error for each in found):.0e})"
    missed = [f"{each.found} at {each.opset}" for each in found if each.found != each.expected]
    return f"{text}, **{', '.join(missed)}**" if missed else text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--opset", type=int, action="append", choices=OPSETS, help="may be repeated [all]")
    opsets = parser.parse_args().opset or list(OPSETS)
    heads = ["module", "in PyTorch", *(f"`dynamo={each == 'dynamo'}`: opsets (error)" for each in EXPORTERS)]
    text = [BEGIN, "", f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for name in BUILDERS:
        _, _, counts = case_and_expectation(name)
        cells = " | ".join(cell(name, exporter, opsets) for exporter in EXPORTERS)
        text.append(f"| `{name}` | {counts.normalizations} + {counts.activations} | {cells} |")
    page = PAGE.read_text(encoding="utf-8")
    before, rest = page.split(BEGIN)
    PAGE.write_text(before + "\n".join([*text, "", END]) + rest.split(END)[1], encoding="utf-8")


if __name__ == "__main__":
    main()
