"""Random faults at random moments of random jobs; each ends right or with one named error.

CHAOS_FAULTS: how many (20); CHAOS_SECONDS: begin no other one after so many seconds (300);
CHAOS_SEED: of the first (1), the others follow; CHAOS_RESULT: where to write what came of all.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import time
from collections import Counter
from pathlib import Path

import pytest

from chaos.plan import sample
from chaos.trial import Outcome, run

COUNT = int(os.environ.get("CHAOS_FAULTS", "20"))
SECONDS = float(os.environ.get("CHAOS_SECONDS", "300"))
SEED = int(os.environ.get("CHAOS_SEED", "1"))
FEWEST = min(COUNT, 20 if SECONDS >= 300 else 10 if SECONDS >= 180 else 1)
"""With fewer the tier has not shown what it is for: a slower machine needs more time."""


@pytest.mark.timeout(0)
def test_every_job_ends_right_or_with_a_named_error_and_leaves_nothing_behind() -> None:
    begun = time.monotonic()
    outcomes: list[Outcome] = []
    for plan in sample(SEED, COUNT):
        if time.monotonic() - begun > SECONDS:
            print(f"after {len(outcomes)} of {COUNT}: no time for more")
            break
        outcomes.append(run(plan))
        print(outcomes[-1].describe(), flush=True)
        if outcomes[-1].wrong:
            print(outcomes[-1].output[-4000:], flush=True)
        write(outcomes)
    lasted = [f"{each.plan.fault.name} {each.seconds:.0f} s" for each in outcomes]
    few = f"{len(outcomes)} of at least {FEWEST} faults in {SECONDS:.0f} s, at a load of"
    assert len(outcomes) >= FEWEST, f"{few} {os.getloadavg()[0]:.0f}: {', '.join(lasted)}"
    wrong = [each.describe() for each in outcomes if each.wrong]
    assert not wrong, "\n".join(wrong)


def write(outcomes: list[Outcome]) -> None:
    """Keep what came of them where CHAOS_RESULT says."""
    if "CHAOS_RESULT" not in os.environ:
        return
    words = ["git", "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(words, capture_output=True, text=True).stdout.strip()
    model = [
        line for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line
    ]
    content = {
        "commit": commit,
        "date": time.strftime("%Y-%m-%dT%H:%M+00:00", time.gmtime()),
        "processor": model[0].partition(": ")[2] if model else platform.machine(),
        "cores": os.cpu_count(),
        "first_seed": SEED,
        "faults": len(outcomes),
        "by_kind": dict(Counter(each.plan.fault.name for each in outcomes)),
        "ended": dict(Counter(each.ended.partition(" (")[0] for each in outcomes)),
        "trials_before": sum(each.rows_before for each in outcomes),
        "wrong": [each.describe() for each in outcomes if each.wrong],
        "each": [each.as_dict() for each in outcomes],
    }
    Path(os.environ["CHAOS_RESULT"]).write_text(json.dumps(content, indent=1) + "\n")
