"""``python -m normfuse``: the command, where the folder of scripts is not on the PATH."""

from normfuse.cli import main

main()
