"""What a trial of chaos is: a job, a fault and its moment, drawn from a seed."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One kind of fault.

    Attributes:
        name: Its name.
        ends: How the job may end: "right", "error", or "either".
        within_s: Time from the fault to the error on every rank that is left.
        on_hosts: Numbers of hosts of the jobs that it is put to.
        named: What the error says: "rank" (the victim), "host" (the one behind the cable), "".
        at_start: It may also come while the job starts.
        needs_mpi: Without MPI there is no such thing.
        rows: After the job's start it waits for so many finished trials of the tuner.
    """

    name: str
    ends: str
    within_s: float = 0.0
    on_hosts: tuple[int, ...] = (1, 2)
    named: str = ""
    at_start: bool = False
    needs_mpi: bool = False
    rows: int = 0


FAULTS = (
    Fault(name="kill", ends="error", within_s=10, named="rank", at_start=True, rows=2),
    Fault(name="stop and continue", ends="right", at_start=True),
    Fault(name="stop", ends="error", within_s=20, named="rank"),
    Fault(name="cable down", ends="error", within_s=30, on_hosts=(2,), named="host"),
    Fault(name="cable slow", ends="right", on_hosts=(2,)),
    Fault(name="full shared memory", ends="right", needs_mpi=True),
    Fault(name="no descriptors", ends="either", within_s=30, at_start=True),
    Fault(name="memory limit", ends="either", within_s=30, at_start=True),
    Fault(name="disk full", ends="right", rows=2),
    Fault(name="strangers", ends="right", at_start=True),
)
"""An error of a rank itself (no descriptors, no memory) may have any text."""

RANKS = {1: ((2, 0), (3, 0), (4, 0)), 2: ((1, 1), (2, 1), (1, 2), (2, 2))}
"""By number of hosts: ranks on each of the two."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One trial; the same seed gives the same plan.

    Attributes:
        seed: Of the trial.
        fault: What happens.
        ranks: Ranks on each host.
        victim: Rank that it happens to.
        at_start: While the job starts, else after that.
        delay_s: Time after the ranks' processes are there, or after all have begun.
        lasts_s: "stop and continue": time between the two.
        rate_mbit: "cable slow": speed from then on, each way.
        seconds: Time that the job wants to run; with ``rows`` after the fault.
        environ: Settings of the job, without paths.
        rows: Finished trials in the tuner's log before which nothing happens.
        has_mpi: mpirun starts the job; else tests/tiers/tcp_ranks.py does.
    """

    seed: int
    fault: Fault
    ranks: tuple[int, int]
    victim: int
    at_start: bool
    delay_s: float
    lasts_s: float
    rate_mbit: float
    seconds: float
    environ: dict[str, str] = field(default_factory=dict)
    rows: int = 0
    has_mpi: bool = True

    def describe(self) -> str:
        """Return one line about it."""
        moment = "in the start" if self.at_start else "after"
        text = f"seed {self.seed}: {self.fault.name}, rank {self.victim} of {self.ranks}"
        launcher = "" if self.has_mpi else ", without MPI"
        rows = f"{self.rows} trials and " if self.rows else ""
        return f"{text}{launcher}, {moment} {rows}{self.delay_s:.2f} s"


TUNING = {
    "HOROVOD_AUTOTUNE": "1",
    "HOROVOD_AUTOTUNE_WARMUP_SAMPLES": "1",
    "HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE": "5",
    "HOROVOD_AUTOTUNE_BUDGET": "1",
    "HOROVOD_AUTOTUNE_SEED": "1",
}


def draw(seed: int, fault: Fault) -> Plan:
    """Return the trial of ``seed`` with ``fault``."""
    chance = random.Random(f"{seed} {fault.name}")
    ranks = chance.choice(RANKS[chance.choice(fault.on_hosts)])
    environ = {}
    if chance.random() < 0.5:
        environ["HOROVOD_CACHE_CAPACITY"] = "0"
    if chance.random() < 0.5:
        environ["HOROVOD_HIERARCHICAL_ALLREDUCE"] = str(chance.randrange(2))
    if fault.name == "stop":
        environ["HOROVOD_STALL_CHECK_TIME_SECONDS"] = "3"
        environ["HOROVOD_STALL_SHUTDOWN_TIME_SECONDS"] = "5"
    if fault.rows or chance.random() < 0.3:
        environ |= TUNING
    if random.Random(f"tree {seed}").random() < 0.4:  # ranks that speak for others
        environ["HOROVOD_CONTROL_FANOUT"] = "1"
    plan = Plan(
        seed=seed,
        fault=fault,
        ranks=ranks,
        victim=chance.randrange(sum(ranks)),
        at_start=fault.at_start and chance.random() < 0.3,
        delay_s=chance.uniform(0, 3),
        lasts_s=chance.choice((0.5, 2.0, 6.0, 20.0)),
        rate_mbit=chance.choice((10.0, 50.0)),
        seconds=chance.uniform(3, 5),
        environ=environ,
    )
    has_mpi = fault.needs_mpi or chance.random() < 0.7
    return replace(plan, rows=0 if plan.at_start else fault.rows, has_mpi=has_mpi)


def sample(first_seed: int, count: int) -> list[Plan]:
    """Return ``count`` trials; every kind of fault comes once in each round."""
    plans: list[Plan] = []
    while len(plans) < count:
        order = list(FAULTS)
        random.Random(first_seed + len(plans)).shuffle(order)
        for fault in order:
            plans.append(draw(first_seed + len(plans), fault))
    return plans[:count]
