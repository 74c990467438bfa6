"""``python -m autotune.service``: see ``autotune.service.process``."""

import os
import sys

from autotune.service.process import main

if __name__ == "__main__":
    status = main()
    sys.stderr.flush()
    os._exit(status)  # a thread that plans may be in native code, where the interpreter cannot end
