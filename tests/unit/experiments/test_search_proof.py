"""The policy of ours in the search proof, which is compared with optimizers that are not here."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[3] / "experiments/search_proof"
SCRIPT = """
import sys, types
sys.modules["cocoex"] = types.ModuleType("cocoex")
sys.path.insert(0, sys.argv[1])
import policies

class Bowl:
    def read(self, x):
        return sum((a - b) ** 2 for a, b in zip(x, (0, 1, 3, 9, 1.0))) / 10 - 0.3

kept = policies.ours(Bowl(), 12, seed=1)
assert len(kept) == 12 and kept[0] == policies.DEFAULT
assert Bowl().read(kept[-1]) < Bowl().read(kept[0]), kept
"""


def test_ours_finds_something_better_than_the_default() -> None:
    subprocess.run([sys.executable, "-c", SCRIPT, str(FOLDER)], check=True, timeout=100)
