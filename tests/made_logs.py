"""Logs as jobs leave them: events of a simulated job, written by the real logs at its own times."""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from autotune.storage import open_logs, sqlite_log
from autotune.storage.contract import RunInfo
from autotune.storage.logs import Logs
from autotune.trial import Certificate, Fingerprint, RunState, Sample, Standing, Trial
from autotune.tuning.events import Event, RunFinished
from simulated import job as simulation

BEGIN_S = 1_795_900_000.0
Entry = Sample | Trial | Certificate | RunFinished | Standing


@functools.cache
def job(surface: str, seed: int = 0, most_steps: int = 6000, samples: int = 20) -> list[Entry]:
    """Return what the tuner tells its logs about a job on a surface of the unit tests.

    Args:
        surface: Its name.
        seed: Of noise and proposals.
        most_steps: Steps after which the job ends.
        samples: Trials, at most.
    """
    tuner = simulation.new_tuner(seed, max_samples=samples)
    run = simulation.Job(surface=simulation.SURFACES[surface], seed=seed)
    entries: list[Entry] = []
    taken = 0

    def keep(events: Sequence[Event]) -> None:
        standing = None if run.done is not None else tuner.standing
        entries.extend(e for e in events if isinstance(e, Sample | Trial | Certificate))
        entries.extend(e for e in events if isinstance(e, RunFinished))
        if standing is not None and standing not in entries[-20:]:
            entries.append(standing)

    for _ in range(most_steps):
        run.drive(tuner, most_steps=run.steps + 1)
        keep(run.events[taken:])
        taken = len(run.events)
        if run.done is not None:
            return entries
    keep(tuner.finish())
    return entries


def start(path: Path, *, size: int = 2, hosts: int = 1) -> Logs:
    """Return the open logs of a job."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fingerprint = Fingerprint(
        tensors=tuple(sorted(simulation.OPERATIONS)),
        size=size,
        local_size=size // hosts,
        cross_size=hosts,
        versions={"hvd-autotune": "0.29.0", "mpi": "Open MPI 5.0.11"},
        fixed={},
    )
    logs = open_logs(str(path), None, host="node1", pid=1)
    settings = {"max_samples": 20, "budget": 0.05, "steps_per_sample": None}
    run = RunInfo(fingerprint=fingerprint, host="node1", pid=1, seed=7, settings=settings)
    with clock(BEGIN_S):
        logs.start(run)
    return logs


def tell(logs: Logs, entry: Entry) -> None:
    """Write an entry."""
    match entry:
        case Sample():
            logs.add_sample(entry)
        case Trial():
            logs.add_trial(entry)
        case Standing():
            logs.set_best(entry)
        case Certificate():
            logs.add_certificate(entry)
        case RunFinished():
            logs.finish_run(entry.state, entry.best)


def write(path: Path, entries: Sequence[Entry], *, size: int = 2, hosts: int = 1) -> str:
    """Write a log of these entries and return its path; time is that of the readings."""
    logs, now_s = start(path, size=size, hosts=hosts), BEGIN_S
    for entry in entries:
        if isinstance(entry, Sample):
            now_s += entry.duration_us / 1e6
        with clock(now_s):
            tell(logs, entry)
    with clock(now_s):
        logs.close()
    return str(path)


@contextmanager
def clock(now_s: float) -> Iterator[None]:
    """Have logs written inside carry this time, in seconds since 1970."""
    real = sqlite_log._now
    text = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now_s))
    sqlite_log._now = lambda: text
    try:
        yield
    finally:
        sqlite_log._now = real


def long_run(trials: int, samples: int) -> list[Entry]:
    """Return the entries of a run with so many trials and samples, without a certificate."""
    from autotune.trial import CommParams, Gain, SampleKind

    made: list[Entry] = []
    each = samples // trials
    cycles = [round(0.1 * 1.05**k, 6) for k in range(trials)]
    for number in range(trials):
        params = CommParams() if number == 0 else CommParams(cycle_time_ms=cycles[number])
        for k in range(each):
            own = number if k % 2 else 0
            made.append(
                Sample(
                    trial_id=own,
                    epoch=number * each + k,
                    kind=SampleKind.REREAD,
                    steps=10,
                    duration_us=500_000.0 + 1000 * (k % 17) - 100 * own,
                    payload_bytes=10_000_000,
                    exposed_us=100_000.0,
                    score=20.0 + 0.01 * own,
                )
            )
        estimate = 0.1 - 0.001 * abs(number - 80)
        gain = Gain(estimate=estimate, low=estimate - 0.05, high=estimate + 0.05)
        made.append(
            Trial(trial_id=number, params=params, score=20.0, gain=None if number == 0 else gain)
        )
    best = next(e for e in reversed(made) if isinstance(e, Trial) and e.trial_id == 80)
    made.append(RunFinished(state=RunState.UNFINISHED, best=best))
    return made
