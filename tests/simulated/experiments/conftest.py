"""The experiments are scripts in folders of their own; what they share is tested from here."""

from __future__ import annotations

import sys
from pathlib import Path

EXPERIMENTS = Path(__file__).resolve().parents[3] / "experiments"
for name in ("tuner_live", "negotiation", "tuner_bench", "cost_model", "digits"):
    sys.path.insert(0, str(EXPERIMENTS / name))
