"""``python -m normfuse.selftest``."""

import sys

from normfuse.selftest import main

sys.exit(main())
