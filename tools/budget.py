"""Fail where a folder has more lines than pyproject.toml allows it: ``python tools/budget.py``.

A feature pays for its lines: what it adds is taken away elsewhere in its folder, or the change raises the number in
`[tool.budget]` and says why. A folder that is listed counts for itself, not for the folder that it lies in. Drawings
do not count. `--set` writes today's numbers.
"""

import re
import subprocess
import sys
import tomllib
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DRAWN = {".png", ".svg"}


def lines_of(folders: list[str]) -> Counter[str]:
    """Count the lines of the tracked files in each folder; "." has what is in none."""
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    counts = Counter(dict.fromkeys(folders, 0))
    for path in map(Path, tracked.split("\0")[:-1]):
        if path.suffix not in DRAWN and (ROOT / path).is_file():
            nearest = max((f for f in folders if path.is_relative_to(f)), key=lambda f: len(Path(f).parts))
            counts[nearest] += (ROOT / path).read_bytes().count(b"\n")
    return counts


def main() -> int:
    """Print each folder's lines and budget; 1 where one exceeds it."""
    project = ROOT / "pyproject.toml"
    text = project.read_text(encoding="utf-8")
    budget: dict[str, int] = tomllib.loads(text)["tool"]["budget"]
    lines = lines_of(list(budget))
    if "--set" in sys.argv:
        table = "".join(f'"{folder}" = {count}\n' for folder, count in lines.items())
        project.write_text(re.sub(r"(?<=\[tool\.budget\]\n)(\".*\n)+", table, text), encoding="utf-8")
        budget = dict(lines)
    over = [folder for folder in budget if lines[folder] > budget[folder]]
    for folder, allowed in [*budget.items(), ("all", sum(budget.values()))]:
        count = lines.total() if folder == "all" else lines[folder]
        print(f"{folder:26} {count:7,} of {allowed:7,}{'  too many' if folder in over else ''}")
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())
