"""Measure the grids: python experiments/cost_model/measure.py [NAME ...] [--seconds 90].

Needs root and iproute2 for the jobs on two hosts. Writes grids/NAME.csv and grids/index.json.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))

import grids
from harness import collect, machine, run_ranks

from cluster.hosts import TwoHosts

RANK = Path(__file__).resolve().parent / "rank.py"
JOBS: dict[str, dict[str, Any]] = {
    "one-host-small": {"workload": "small", "ranks": (2, 0), "rate_mbit": None},
    "one-host-resnet50": {"workload": "resnet50", "ranks": (2, 0), "rate_mbit": None},
    "two-hosts-50-small": {"workload": "small", "ranks": (2, 2), "rate_mbit": 50},
    "two-hosts-200-small": {"workload": "small", "ranks": (2, 2), "rate_mbit": 200},
    "two-hosts-500-medium": {"workload": "medium", "ranks": (2, 2), "rate_mbit": 500},
    "two-hosts-200-single": {"workload": "small", "ranks": (1, 1), "rate_mbit": 200},
}


def measure(name: str, seconds: float) -> None:
    """Run one job and store its grid."""
    job = JOBS[name]
    words = [RANK, job["workload"], "--seconds", str(seconds)]
    limit = 3 * seconds + 120
    about = machine()
    print(f"{name}, {seconds:.0f} s, load {about['load_at_start']}", file=sys.stderr, flush=True)
    if job["ranks"][1] == 0:
        result = run_ranks(job["ranks"][0], words, limit)
    else:
        with TwoHosts(rate_mbit=job["rate_mbit"]) as hosts:
            result = collect(hosts.start(job["ranks"], [sys.executable, *words]), limit)
    grids.write(name, {**result, "rate_mbit": job["rate_mbit"], "machine": about})


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", default=list(JOBS), metavar="NAME")
    parser.add_argument("--seconds", type=float, default=90, help="for each job")
    arguments = parser.parse_args()
    for name in arguments.names:
        measure(name, arguments.seconds)


if __name__ == "__main__":
    main()
