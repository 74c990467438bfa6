"""16 and 32 ranks of one host that exchange messages alone, and what their negotiation takes.

python experiments/many_ranks/run.py [--ranks 16 32] [--seconds 20] [--report]

``--seconds`` is for each of the two workloads of each number of ranks. Numbers of ranks above that
of the cores are left out, unless ``--oversubscribe``. Writes results.json and prints the tables of
the README.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from harness import machine, machine_line, run_ranks, spread

HERE = Path(__file__).resolve().parent
NEGOTIATION = HERE.parent / "negotiation" / "rank.py"
WORKLOADS = {"large": "102 MB", "small": "0.9 MB"}
BARE = {"plain ": "torch's memory", "bare ": "huge pages"}
"""Bare ``MPI_Allreduce``: the first words of its ways, and where its bytes lie."""

Samples = dict[str, list[float]]


def messages(ranks: int, seconds: float) -> Any:
    """Return what rank 0 of a job tells."""
    print(f"messages, {ranks} ranks", file=sys.stderr, flush=True)
    with tempfile.TemporaryDirectory() as folder:
        words = [HERE / "rank.py", "--seconds", str(seconds), "--folder", folder]
        # Gloo would look for an address of the machine's name, which may have none.
        return run_ranks(ranks, words, 3 * seconds + 240, GLOO_SOCKET_IFNAME="lo")


def negotiation(ranks: int) -> Any:
    """Return the rounds of ``negotiation/rank.py``."""
    print(f"negotiation, {ranks} ranks", file=sys.stderr, flush=True)
    return run_ranks(ranks, [NEGOTIATION], 120)


def best_bare(samples: Samples, first: str) -> str | None:
    """Return the way that begins so with the smallest median; older results lack some."""
    bare = [way for way in samples if way.startswith(first)]
    return min(bare, key=lambda way: statistics.median(samples[way]), default=None)


def piece_name(way: str) -> str:
    """Return the size of pieces of a way of bare MPI for people."""
    size = int(way.split()[-1])
    if size >= 1 << 40:
        return "all"
    return f"{size >> 20} MiB" if size >= 1 << 20 else f"{size >> 10} KiB"


def message_rows(jobs: dict[str, Any]) -> list[str]:
    """Return one row per number of ranks and workload."""
    rows = []
    for ranks, result in jobs.items():
        for workload, size in WORKLOADS.items():
            samples: Samples = result[workload]["step_ms"]
            median = {way: statistics.median(values) for way, values in samples.items()}
            bare = [best_bare(samples, first) for first in BARE]
            cells = [ranks, size, spread(samples["mpi"])]
            cells += [f"{spread(samples[way])}, {piece_name(way)}" if way else "-" for way in bare]
            cells += [spread(samples[way]) for way in ("tcp", "gloo")]
            cells += [f"{median['mpi'] / median[way]:.2f}" if way else "-" for way in bare]
            cells += [f"{median['tcp'] / median['gloo']:.2f}"]
            rows.append("| " + " | ".join(cells) + " |")
    return rows


def negotiation_rows(jobs: dict[str, Any]) -> list[str]:
    """Return one row per number of ranks, in microseconds."""
    rows = []
    for ranks, rounds in jobs.items():
        step = spread([each["step_us"] for each in rounds], 0)
        times = [
            spread([each[name] / 1e3 for each in rounds], 0) for name in ("protocol_ns", "skew_ns")
        ]
        rows.append("| " + " | ".join([ranks, step, *times]) + " |")
    return rows


def table(head: list[str], rows: list[str]) -> str:
    return "\n".join(["| " + " | ".join(head) + " |", "|" + " --- |" * len(head), *rows])


def report(stored: dict[str, Any]) -> str:
    """Return the tables of the README."""
    bare = [f"`MPI_Allreduce` in {where}" for where in BARE.values()]
    first = ["ranks", "gradients", "MPI, ms", *(f"{name}, ms, its pieces" for name in bare)]
    first += ["TCP, ms", "gloo, ms", *(f"MPI / {name}" for name in bare), "TCP / gloo"]
    second = ["ranks", "a step, us", "protocol on rank 0, us", "waiting for the last rank, us"]
    parts = [f"* {machine_line(stored['machine'])}; median (min-max)"]
    parts += [table(first, message_rows(stored["messages"]))]
    parts += [table(second, negotiation_rows(stored["negotiation"]))]
    return "\n\n".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[16, 32])
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--oversubscribe", action="store_true", help="more ranks than cores, too")
    parser.add_argument("--output", type=Path, default=HERE / "results.json")
    parser.add_argument("--report", action="store_true", help="print the stored results only")
    arguments = parser.parse_args()
    if not arguments.report:
        cores = len(os.sched_getaffinity(0))
        numbers = [n for n in arguments.ranks if n <= cores or arguments.oversubscribe]
        if len(numbers) < len(arguments.ranks):
            print(f"not run: more than {cores} ranks, one a core", file=sys.stderr)
        stored: dict[str, Any] = {"machine": machine(), "messages": {}, "negotiation": {}}
        # After every job: what was measured is kept if a later one fails.
        for part, measured in (
            ("negotiation", negotiation),
            ("messages", lambda ranks: messages(ranks, arguments.seconds)),
        ):
            for ranks in numbers:
                stored[part][str(ranks)] = measured(ranks)
                arguments.output.write_text(json.dumps(stored, indent=1) + "\n")
    print(report(json.loads(arguments.output.read_text())))


if __name__ == "__main__":
    main()
