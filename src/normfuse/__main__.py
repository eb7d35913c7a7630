"""The command ``normfuse``, also as ``python -m normfuse`` where the folder of scripts is not on the PATH."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line; Ctrl-C while it is still being loaded is no traceback either."""
    if sys.argv[1:2] == ["run"]:  # before the other commands are loaded, which takes half a second
        from normfuse.applications.running import main as run_program

        run_program(sys.argv[2:])
        return
    try:
        from normfuse.cli import main as run
    except KeyboardInterrupt:
        print("normfuse: stopped.", file=sys.stderr)
        sys.exit(130)
    run()


if __name__ == "__main__":
    main()
