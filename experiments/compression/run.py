"""Two hosts and a cable of 1 Gbit/s: what does sending float16 instead of float32 gain?

python experiments/compression/run.py [--rounds 20] [--report]

Needs root and iproute2. Writes results.json (machine, and every sample), and prints the README's
table.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))

from harness import collect, machine, machine_line, spread

from cluster.hosts import TwoHosts

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results.json"
RATE_MBIT = 1000
RANKS = ((1, 1), (2, 2))
JOBS = {
    "MPI, one level": {},
    "MPI, two levels": {"HOROVOD_HIERARCHICAL_ALLREDUCE": "1"},
    "TCP, one level": {"TRANSPORT": "tcp"},
    "TCP, two levels": {"TRANSPORT": "tcp", "HOROVOD_HIERARCHICAL_ALLREDUCE": "1"},
}


def measure(ranks: tuple[int, int], settings: dict[str, str], rounds: int) -> Any:
    """Return what rank 0 of one job tells."""
    environ = {name: text for name, text in settings.items() if name != "TRANSPORT"}
    os.environ.pop("TRANSPORT", None)
    os.environ.update({name: text for name, text in settings.items() if name == "TRANSPORT"})
    words = [sys.executable, HERE / "rank.py", "--rounds", str(rounds)]
    with TwoHosts(rate_mbit=RATE_MBIT) as hosts:
        return collect(hosts.start(ranks, words, **environ), 600)


def report(stored: dict[str, Any]) -> None:
    """Print a row per job; ratios are those of a round's steps."""
    print(machine_line(stored["machine"]))
    heads = ["hosts x ranks", "messages", "float32, ms", "float16, ms", "bfloat16, ms"]
    heads += ["float16 / float32", "bfloat16 / float32"]
    print(f"\n| {' | '.join(heads)} |\n|{' --- |' * len(heads)}")
    for job in stored["jobs"]:
        each = job["samples"]
        cells = [f"2 x {job['ranks'][0]}", job["name"], *(spread(each[way]) for way in each)]
        for way in ("float16", "bfloat16"):
            ratios = [half / full for half, full in zip(each[way], each["float32"], strict=True)]
            cells.append(f"{statistics.median(ratios):.2f}")
        print(f"| {' | '.join(cells)} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--report", action="store_true", help="print the stored table")
    options = parser.parse_args()
    if not options.report:
        about, jobs = machine(), []
        for ranks in RANKS:
            for name, settings in JOBS.items():
                if ranks == (1, 1) and "two levels" in name:
                    continue
                samples = measure(ranks, settings, options.rounds)
                jobs.append({"ranks": ranks, "name": name, "samples": samples})
        RESULTS.write_text(json.dumps({"machine": about, "jobs": jobs}) + "\n")
    report(json.loads(RESULTS.read_text()))


if __name__ == "__main__":
    main()
