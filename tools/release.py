"""What a release needs from the repository: ``python3 tools/release.py COMMAND TAG``. Needs nothing but Python.

check TAG   fails, with what to do, unless the tag is ``v`` and the version in src/normfuse/_version.py, and
            CHANGELOG.md has a section of that version with a date
notes TAG   prints that section, the text of the release
"""

import argparse
import re
import signal
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VERSION_FILE = ROOT / "src" / "normfuse" / "_version.py"
CHANGELOG = ROOT / "CHANGELOG.md"


def version() -> str:
    match = re.search(r'^__version__ = "(.+)"$', VERSION_FILE.read_text(encoding="utf-8"), re.MULTILINE)
    if match is None:
        sys.exit(f'release.py: {VERSION_FILE} has no line __version__ = "..."')
    return match[1]


def section(of_version: str) -> tuple[str, str]:
    """Date and text of a version's section of the changelog."""
    text = CHANGELOG.read_text(encoding="utf-8")
    match = re.search(rf"^## \[?{re.escape(of_version)}\]? - (\S+)\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    if match is None:
        sys.exit(f"release.py: CHANGELOG.md has no section '## [{of_version}] - YYYY-MM-DD': rename [Unreleased]")
    if not re.fullmatch(r"\d{4}-\d{2}-\d{2}", match[1]):
        sys.exit(f"release.py: CHANGELOG.md dates version {of_version} '{match[1]}': write it as YYYY-MM-DD")
    return match[1], match[2].strip()


def main() -> int:
    if hasattr(signal, "SIGPIPE"):  # so that `release.py notes TAG | head` ends quietly
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("check", "notes"))
    parser.add_argument("tag")
    arguments = parser.parse_args()
    if arguments.tag != f"v{version()}":
        sys.exit(
            f"release.py: the tag is {arguments.tag}, the version in src/normfuse/_version.py is {version()}: "
            "change that file and commit it, or name the tag after it"
        )
    date, text = section(version())
    print(f"{arguments.tag} of {date} can be released" if arguments.command == "check" else text)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
