"""Negotiation by a star and by trees: simulated, and by a formula, to 16,384 ranks.

    python experiments/negotiation/tree.py                # prints the tables of the README
    python experiments/negotiation/tree.py --bench BENCH  # runs negotiation_bench anew before that

A node is a rank that others report to. It handles one message after the other, each at a cost of
its own: a message of a rank of its host (shared memory) or of another host (a system call). When
the last one is there it sends one message up, or, at the top, decides; the answer goes down the
same way. Nothing else is modelled: no wake-ups, no cables that are full.

Notation: N ranks on hosts of m ranks each; in a tree up to k leaders of hosts report to a leader,
and d levels of leaders are below the top. Times in microseconds, from the last rank's announcement
until the last rank has the answer:

    star   T = a + b (m - 1)                         one host
           T = a + b (m - 1) + b' (N - m + 1) + 2 L  several
    tree   T = a + b (m - 1) + d ((k + 1) b' + 2 L)

a: decide and encode; b, b': read a message, and send one, within a host and between hosts; L: the
latency of a hop between hosts. The tree's formula takes every level as full.

The shapes that the engine makes (csrc/control/tree.h) are played as they are: whom each rank
reports to comes from it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from horovod import _engine

HERE = Path(__file__).resolve().parent
STORED = HERE / "bench.json"
PROCESSES = HERE / "results.json"
LATENCY_US = 25.0
"""From one host to another: assumed, not measured."""
NEAR_HOP_US = 15.0
"""One more rank on the way within a host, there and back: assumed, as csrc/control/tree.cc does."""
HOST_RANKS = 8
FANS: dict[str, int | None] = {
    "star": None,
    "leaders": 1 << 30,
    **{f"tree of {fan}": fan for fan in (8, 16, 32, 64)},
}
"""Leaders that report to one; with ``leaders`` all of them report to rank 0."""
RANKS = (64, 256, 1024, 4096, 16384)
ON_ONE_HOST = (16, 32, 48, 64, 96, 128)
FORCED = (4, 6, 8, 12, 16)
FITTED = range(2, 17)
"""Numbers of ranks that decide the constants; the others are predicted."""


@dataclass(frozen=True, kw_only=True)
class Costs:
    """What a node pays, in microseconds.

    Attributes:
        decide: Once a step, at the top.
        near_read, near_send: A message of, and to, a rank of this host.
        far_read, far_send: The same of another host.
        latency: From one host to another.
    """

    decide: float
    near_read: float
    near_send: float
    far_read: float
    far_send: float
    latency: float

    @property
    def near(self) -> float:
        return self.near_read + self.near_send

    @property
    def far(self) -> float:
        return self.far_read + self.far_send


@dataclass(frozen=True, kw_only=True)
class Job:
    """Ranks and how they report.

    Attributes:
        hosts: Their number.
        host_ranks: Ranks on each.
        fan: Leaders that report to one leader; None: a star, every rank reports to rank 0.
    """

    hosts: int
    host_ranks: int
    fan: int | None = None

    @property
    def levels(self) -> int:
        """Leaders between a leaf and the top, at most: d."""
        if self.fan is None:
            return 0
        reached, level, levels = 1, 1, 0
        while reached < self.hosts:
            level *= self.fan
            reached += level
            levels += 1
        return levels

    def children(self, leader: int) -> range:
        """Return the leaders that report to ``leader``; 0 is the top."""
        assert self.fan is not None
        first = self.fan * leader + 1
        return range(min(first, self.hosts), min(first + self.fan, self.hosts))


def formula_us(job: Job, costs: Costs) -> float:
    """Return the time from the last rank's announcement until the last one has the answer."""
    own = costs.decide + costs.near * (job.host_ranks - 1)
    if job.fan is None:
        others = (job.hosts - 1) * job.host_ranks
        return own + ((others + 1) * costs.far + 2 * costs.latency if others else 0)
    children = min(job.fan, job.hosts - 1)
    return own + job.levels * ((children + 1) * costs.far + 2 * costs.latency)


def simulated_us(job: Job, costs: Costs, ready_us: np.ndarray | None = None) -> float:
    """Return the same by playing every message.

    Args:
        job: Its ranks.
        costs: Of a node.
        ready_us: When each rank announces, (hosts, host_ranks); None: all at 0.
    """
    if ready_us is None:
        ready_us = np.zeros((job.hosts, job.host_ranks))
    last = float(ready_us.max())
    if job.fan is None:
        return _star_us(job, costs, ready_us) - last
    up = np.zeros(job.hosts)  # when a leader has all of its part
    for leader in reversed(range(job.hosts)):
        near = [(float(ready), costs.near_read) for ready in ready_us[leader, 1:]]
        far = [
            (up[child] + costs.far_send + costs.latency, costs.far_read)
            for child in job.children(leader)
        ]
        up[leader] = _served(float(ready_us[leader, 0]), near + far)
    down = np.zeros(job.hosts)  # when a leader has the answer
    down[0] = up[0] + costs.decide
    end = 0.0
    for leader in range(job.hosts):
        clock = down[leader]
        for child in job.children(leader):
            clock += costs.far_send
            down[child] = clock + costs.latency + costs.far_read
        end = max(end, clock + (job.host_ranks - 1) * costs.near_send)
    return end - last


def _star_us(job: Job, costs: Costs, ready_us: np.ndarray) -> float:
    near = [(float(ready), costs.near_read) for ready in ready_us[0, 1:]]
    hop = costs.far_send + costs.latency
    far = [(float(ready) + hop, costs.far_read) for ready in ready_us[1:].ravel()]
    clock = _served(float(ready_us[0, 0]), near + far) + costs.decide
    clock += len(far) * costs.far_send
    answered = clock + costs.latency + costs.far_read if far else clock
    return max(answered, clock + len(near) * costs.near_send)


def played_us(parents: Sequence[int], hosts: Sequence[int], costs: Costs) -> float:
    """Return the same as ``simulated_us`` for any tree, all ranks announcing at once.

    Args:
        parents: Whom each rank reports to, a lower rank; -1 for rank 0.
        hosts: Number of each rank's host.
        costs: Of a node; who speaks for others of its host pays ``NEAR_HOP_US`` besides.
    """
    children: list[list[int]] = [[] for _ in parents]
    for rank, parent in enumerate(parents[1:], 1):
        children[parent].append(rank)
    up = [0.0] * len(parents)
    for rank in reversed(range(len(parents))):
        arrivals = []
        for child in children[rank]:
            near = hosts[child] == hosts[rank]
            sent = up[child] + (0.0 if near else costs.far_send + costs.latency)
            arrivals.append((sent, costs.near_read if near else costs.far_read))
        up[rank] = _served(0.0, arrivals)
        if rank and children[rank] and hosts[rank] == hosts[parents[rank]]:
            up[rank] += NEAR_HOP_US
    down = [0.0] * len(parents)
    down[0] = up[0] + costs.decide
    end = 0.0
    for rank in range(len(parents)):
        clock = down[rank]
        for child in children[rank]:
            near = hosts[child] == hosts[rank]
            clock += costs.near_send if near else costs.far_send
            down[child] = clock + (0.0 if near else costs.latency + costs.far_read)
        end = max(end, clock)
    return max(end, *down)


def _served(ready: float, arrivals: Sequence[tuple[float, float]]) -> float:
    """Return when a node that is ready itself has handled all (arrival, cost), one at a time."""
    clock = 0.0
    for arrival, cost in sorted(arrivals):
        clock = max(clock, arrival) + cost
    return max(clock, ready)


# ---- constants, and how they are found ----------------------------------------------------------

Points = Mapping[int, float]
PARTS = ("read", "add", "take", "encode", "send")
"""Of the coordinator's work, as negotiation_bench names them: the last but not its sum."""


def line(points: Points) -> tuple[float, float]:
    """Return (a, b) of ``a + b (ranks - 1)`` with the least squares of relative errors."""
    ranks, times = np.array(list(points), float), np.array(list(points.values()))
    matrix = np.stack([np.ones_like(ranks), ranks - 1], axis=1) / times[:, None]
    found = np.linalg.lstsq(matrix, np.ones_like(times), rcond=None)[0]
    return float(found[0]), float(found[1])


def points_of(bench: Mapping[str, Mapping[str, float]], *parts: str) -> dict[int, float]:
    """Return {ranks: the sum of ``parts``} in microseconds."""
    return {int(ranks): sum(row[part] for part in parts) for ranks, row in bench.items()}


def fitted(points: Points) -> dict[int, float]:
    return {ranks: time for ranks, time in points.items() if ranks in FITTED}


def costs_of(stored: Mapping[str, Any]) -> Costs:
    """Return the constants of what negotiation_bench has measured."""
    near, far = stored["near"], stored["far"]
    decide, near_read = line(fitted(points_of(near, "read", "add", "take", "encode")))
    return Costs(
        decide=decide,
        near_read=near_read,
        near_send=line(fitted(points_of(near, "send")))[1],
        far_read=line(fitted(points_of(far, "read", "add", "take", "encode")))[1],
        far_send=line(fitted(points_of(far, "send")))[1],
        latency=LATENCY_US,
    )


def processes() -> dict[int, float]:
    """Return {ranks: the protocol's time on rank 0} of real processes of one host (rank.py)."""
    rounds = json.loads(PROCESSES.read_text())["rounds"]
    return {
        int(ranks): statistics.median(each["protocol_ns"] for each in measured) / 1e3
        for ranks, measured in rounds.items()
    }


def costs_of_processes(costs: Costs, points: Points) -> Costs:
    """Return ``costs`` with what real processes pay: more to decide, and more for each message."""
    decide, near = line(fitted(points))
    more = (near - costs.near) / 2  # caches of other cores; half when reading, half when sending
    return replace(
        costs,
        decide=decide,
        near_read=costs.near_read + more,
        near_send=costs.near_send + more,
        far_read=costs.far_read + more,
        far_send=costs.far_send + more,
    )


def run_bench(program: Path, passes: int = 5) -> dict[str, Any]:
    """Return {"near" or "far": {ranks: {part: us}}}, the least of some passes: others disturb."""
    stored: dict[str, Any] = {}
    for name, elsewhere in (("near", "0"), ("far", "1")):
        rows: dict[str, dict[str, float]] = {}
        for _ in range(passes):
            words = [str(program.resolve()), "1", "0", elsewhere]
            out = subprocess.run(words, capture_output=True, text=True, check=True, timeout=120)
            for ranks, part, time in read_bench(out.stdout):
                row = rows.setdefault(ranks, {})
                row[part] = min(row.get(part, time), time)
        stored[name] = rows
    return stored


def read_bench(text: str) -> list[tuple[str, str, float]]:
    """Return (ranks, part, us) of what negotiation_bench prints; other ranks' parts are left out.

    The columns are the ranks and, for each part, its time and its allocations.
    """
    head, *lines = text.splitlines()
    parts = [word for word in head.split("(us")[0].split() if word not in ("ranks", "#")]
    found = []
    for row in lines:
        ranks, *values = row.split()
        found += [
            (ranks, part, float(time))
            for part, time in zip(parts, values[::2], strict=True)
            if part in PARTS
        ]
    return found


# ---- tables -------------------------------------------------------------------------------------


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(cells)} |" for cells in (head, ["---"] * len(head), *rows)]
    return "\n".join(lines)


def measured_table(name: str, points: Points, costs: Costs) -> str:
    """Return measured times of stars, the formula and the simulation beside each other."""
    rows = []
    for ranks, time in points.items():
        if name == "between hosts":  # the bench has no cable, and does not count the other end
            job, here = Job(hosts=ranks, host_ranks=1), replace(costs, latency=0.0)
            end = costs.far
        else:
            job, here, end = Job(hosts=1, host_ranks=ranks), costs, 0.0
        formula, played = formula_us(job, here) - end, simulated_us(job, here) - end
        use = "" if ranks in FITTED else f"{formula / time - 1:+.0%}"
        rows.append([str(ranks), f"{time:.1f}", f"{formula:.1f}", f"{played:.1f}", use])
    head = [f"ranks, {name}", "measured, us", "formula, us", "simulated, us", "held out"]
    return table(head, rows)


def scale_table(costs: Costs) -> str:
    """Return the star and trees, in microseconds: the formula, and in brackets the simulation."""
    head = ["ranks", "hosts", *FANS, "the engine's"]
    rows = []
    for ranks in RANKS:
        cells = [f"{ranks:,}", f"{ranks // HOST_RANKS:,}"]
        for fan in FANS.values():
            job = Job(hosts=ranks // HOST_RANKS, host_ranks=HOST_RANKS, fan=fan)
            cells.append(f"{formula_us(job, costs):,.0f} ({simulated_us(job, costs):,.0f})")
        hosts = [rank // HOST_RANKS for rank in range(ranks)]
        parents = _engine.control_parents(hosts)
        cells.append(f"({played_us(parents, hosts, costs):,.0f}), {parents.count(0)} at rank 0")
        rows.append(cells)
    return table(head, rows)


def host_table(costs: Costs) -> str:
    """Return trees within one host, simulated, in microseconds."""
    head = ["ranks of one host", "star", "the engine's", *(f"fan-out {fan}" for fan in FORCED)]
    rows = []
    for ranks in ON_ONE_HOST:
        hosts = [0] * ranks
        star = played_us([-1, *[0] * (ranks - 1)], hosts, costs)
        own = _engine.control_parents(hosts)
        cells = [str(ranks), f"{star:.0f}"]
        cells.append(f"{played_us(own, hosts, costs):.0f}, {own.count(0)} at rank 0")
        for fan in FORCED:
            cells.append(f"{played_us(_engine.control_parents(hosts, fan), hosts, costs):.0f}")
        rows.append(cells)
    return table(head, rows)


def report(stored: Mapping[str, Any]) -> str:
    """Return the tables of the README."""
    costs = costs_of(stored)
    real = processes()
    parts = [
        measured_table("of one host", points_of(stored["near"], *PARTS), costs),
        measured_table("between hosts", points_of(stored["far"], *PARTS), costs),
        measured_table("processes of one host", real, costs_of_processes(costs, real)),
    ]
    for title, each in (
        ("of one thread", costs),
        ("of processes", costs_of_processes(costs, real)),
    ):
        parts.append(
            f"Costs {title}: a = {each.decide:.1f}, b = {each.near:.2f}, b' = {each.far:.2f}, "
            f"L = {each.latency:g}; hosts of {HOST_RANKS} ranks, microseconds:"
        )
        parts.append(scale_table(each))
    parts.append(host_table(costs_of_processes(costs, real)))
    return "\n\n".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--bench", type=Path, help="negotiation_bench, to be run anew")
    arguments = parser.parse_args()
    if arguments.bench:
        STORED.write_text(json.dumps(run_bench(arguments.bench), indent=1) + "\n")
    print(report(json.loads(STORED.read_text())))


if __name__ == "__main__":
    main()
