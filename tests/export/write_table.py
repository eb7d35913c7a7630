#!/usr/bin/env python3
"""Export every module by every exporter at the opsets named, and write the table in docs/export.md.

``python tests/export/write_table.py [--opset 17 ...]``, in the environment of ``tests/run.py --step export``. Takes
minutes for each opset.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from matrix import EXPORTERS, OPSETS, Refused, case_and_expectation, run_case

from normfuse.models.torch_modules import BUILDERS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "pages" / "export.md"
BEGIN, END = "<!-- table: tests/export/write_table.py -->", "<!-- end of table -->"


def cell(name: str, exporter: str, opset: int) -> str:
    with tempfile.TemporaryDirectory() as folder:
        try:
            outcome = run_case(name, exporter, opset, Path(folder))
        except Refused:
            return "-"
    if outcome.opset != opset:
        return f"stays at {outcome.opset}"
    found = f"{outcome.found.normalizations} + {outcome.found.activations}"
    return f"{found if outcome.found == outcome.expected else f'**{found}**'} ({outcome.error:.0e})"


def table(exporter: str, opsets: list[int]) -> list[str]:
    lines = [f"| module | in PyTorch | {' | '.join(f'opset {opset}' for opset in opsets)} |"]
    lines.append("|---|---|" + "---|" * len(opsets))
    for name in BUILDERS:
        _, _, counts = case_and_expectation(name)
        cells = []
        for opset in opsets:
            cells.append(cell(name, exporter, opset))
            print(name, exporter, opset, cells[-1], flush=True)
        lines.append(f"| `{name}` | {counts.normalizations} + {counts.activations} | {' | '.join(cells)} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--opset", type=int, action="append", choices=OPSETS, help="may be repeated [all]")
    opsets = parser.parse_args().opset or list(OPSETS)
    text = [BEGIN]
    for exporter in EXPORTERS:
        how = "dynamo=True" if exporter == "dynamo" else "dynamo=False"
        text += ["", f"### `torch.onnx.export(..., {how})`", "", *table(exporter, opsets)]
    page = PAGE.read_text(encoding="utf-8")
    before, rest = page.split(BEGIN)
    PAGE.write_text(before + "\n".join([*text, "", END]) + rest.split(END)[1], encoding="utf-8")


if __name__ == "__main__":
    main()
