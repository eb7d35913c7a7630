"""The command ``normfuse``, also as ``python -m normfuse`` where the folder of scripts is not on the PATH."""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> None:
    """Run the command line; Ctrl-C while it is still being loaded is no traceback either."""
    try:
        from normfuse.cli import main as run
    except KeyboardInterrupt:
        print("normfuse: stopped.", file=sys.stderr)
        sys.exit(130)
    run()


if __name__ == "__main__":
    main()
