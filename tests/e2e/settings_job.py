"""The smallest job: starts the runtime, without torch, and says what holds in it.

python settings_job.py OUTPUT_FOLDER

Every rank leaves OUTPUT_FOLDER/rank-R.json.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from horovod.common import basics
from horovod.tuning import autotuning


def main(folder: Path) -> None:
    autotuning.init()
    variables = sorted(name for name in os.environ if name.startswith("HOROVOD_"))
    content = {"rank": basics.rank(), "size": basics.size(), "variables": variables}
    content |= {"params": autotuning.params()}
    (folder / f"rank-{basics.rank()}.json").write_text(json.dumps(content))
    basics.shutdown()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
