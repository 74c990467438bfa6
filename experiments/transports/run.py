"""Two hosts, 1 or 2 ranks on each, 200 and 1,000 Mbit/s: TCP, MPI and torch's gloo take turns.

python experiments/transports/run.py [--seconds 60] [--report]

Needs root and iproute2. ``--seconds`` is for each of the two workloads of each of the four jobs.
Writes results.json (machine, and every sample), and prints the tables of the README.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))

from harness import collect, machine, machine_line, spread

from cluster.hosts import DEVICE, TwoHosts

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results.json"
RATES_MBIT = (200, 1000)
RANKS = ((1, 1), (2, 2))
WORKLOADS = ("large", "small")

Samples = dict[str, list[float]]


def measure(rate_mbit: int, ranks: tuple[int, int], seconds: float) -> dict[str, Any]:
    """Return what rank 0 of one job tells."""
    print(f"{ranks[0]} x 2 ranks at {rate_mbit} Mbit/s", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory() as folder, TwoHosts(rate_mbit=rate_mbit) as hosts:
        words = [sys.executable, HERE / "rank.py", "--seconds", str(seconds), "--folder", folder]
        job = hosts.start(ranks, words, GLOO_SOCKET_IFNAME=DEVICE)
        result: dict[str, Any] = collect(job, 4 * seconds + 900)
    return result


def median(samples: list[float]) -> float:
    return statistics.median(samples)


def rows(jobs: list[dict[str, Any]]) -> list[str]:
    """Return one row of the table per job and workload."""
    lines = []
    for job in jobs:
        for workload in WORKLOADS:
            samples: Samples = job["result"][workload]["step_ms"]
            two = "tcp, two levels" in samples
            ours = [samples["tcp"], samples["mpi"]]
            if two:
                ours += [samples["tcp, two levels"], samples["mpi, two levels"]]
            best = min(median(each) for each in (ours[0::2]))
            cells = [f"2 x {job['ranks'][0]}", f"{job['rate_mbit']:,}", workload]
            cells += [spread(each) for each in ours] + ["-"] * (4 - len(ours))
            cells += [spread(samples["gloo"])]
            cells += [f"{median(ours[0]) / median(ours[1]):.2f}"]
            cells += [f"{median(ours[2]) / median(ours[3]):.2f}" if two else "-"]
            cells += [f"{median(samples['gloo']) / best:.2f}"]
            lines.append("| " + " | ".join(cells) + " |")
    return lines


def report(stored: dict[str, Any]) -> str:
    """Return the tables of the README."""
    head = ["hosts x ranks", "Mbit/s", "gradients", "tcp, ms", "mpi, ms", "tcp, two levels, ms"]
    head += ["mpi, two levels, ms", "gloo, ms", "tcp / mpi", "two levels: tcp / mpi"]
    head += ["gloo / best tcp"]
    lines = [f"* {machine_line(stored['machine'])}", "", "| " + " | ".join(head) + " |"]
    lines.append("|" + " --- |" * len(head))
    return "\n".join([*lines, *rows(stored["jobs"])])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--report", action="store_true", help="only print what is stored")
    arguments = parser.parse_args()
    if not arguments.report:
        about = machine()
        jobs = [
            {"rate_mbit": rate, "ranks": ranks, "result": measure(rate, ranks, arguments.seconds)}
            for rate in RATES_MBIT
            for ranks in RANKS
        ]
        RESULTS.write_text(json.dumps({"machine": about, "jobs": jobs}, indent=1) + "\n")
    print(report(json.loads(RESULTS.read_text())))


if __name__ == "__main__":
    main()
