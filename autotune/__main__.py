"""``python -m autotune`` is ``autotune``."""

import sys

from autotune.cli.main import main

sys.exit(main())
