"""After DONE: a link that becomes slow, and alarms where nothing has changed for good.

    python experiments/tuner_bench/after_done.py [--runs N] [--jobs N] [--output DIR]

Prints a table; with --output, writes it to DIR/after_done.md and the runs to DIR/after_done.csv.
"""

from __future__ import annotations

import argparse
import csv
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).resolve().parent))

import numpy as np
from job import CV, Job
from joblib import Parallel, delayed
from kinds import KINDS, Earlier
from memory import surface_of
from policies.ours import Driver
from summary import column, quantile
from surfaces import Surface, Truth, all_surfaces

from autotune.trial import CommParams

BEFORE = (0, 200), (400, 1200)
"""Ranges of the steps from DONE until the link becomes slow, in turns."""
AFTER = 4000
"""Steps that are watched from there on."""
SHORT, SHORTER = ", short steps", 15.0
"""Marks a job like the one of that name with steps so many times as short."""
LINKS = {
    "narrow-resnet50 1G 2x2": Earlier(surface="narrow-resnet50 1G 2x2", bandwidth=0.2),
    "narrow-resnet50 1G 2x2" + SHORT: Earlier(surface="narrow-resnet50 1G 2x2", bandwidth=0.2),
    "resnet50 10G 4x2": Earlier(surface="resnet50 10G 4x2", bandwidth=0.2),
    "gpt2 25G 8x8": Earlier(surface="gpt2 25G 8x8", bandwidth=0.2),
    "two-hosts-200-small": Earlier(surface="two-hosts-50-small"),
}
"""The job when the link is slow: 20 % of the bandwidth (25 % where both were measured)."""
QUIET_STEPS = 100_000
QUIET_KINDS = ("stationary", "wave", "two-speeds", "evaluation")
QUIET_SURFACES = (
    "one-host-small",
    "narrow-resnet50 1G 2x2",
    "narrow-resnet50 1G 2x2" + SHORT,
    "two-hosts-200-single",
)
NOTICED, FALSE_ALARMS = 200, 1.0


@dataclass(frozen=True, kw_only=True)
class Slow:
    """A run whose link became slow.

    Attributes:
        surface, seed: What was run.
        alarms: False ones before.
        noticed: Steps from the change until the tuner said that the job has changed; -1: never.
        settled: Steps from the change until the parameters were changed for the last time.
        gain: True gain of what stayed over the default, on the slow link.
        regret: Of what stayed against the oracle, on the slow link.
        untouched: Regret of the setting that was in force before.
    """

    surface: str
    seed: int
    alarms: int
    noticed: int
    settled: int
    gain: float
    regret: float
    untouched: float


@dataclass(frozen=True, kw_only=True)
class Quiet:
    """A run in which nothing changed for good: alarms in so many steps after DONE."""

    kind: str
    surface: str
    seed: int
    steps: int
    alarms: int


def slow_link(name: str, seed: int) -> Slow:
    """Tune a job to the end, make its link slow, and watch."""
    rng = np.random.default_rng([20261130, sum(map(ord, name)), seed])
    job = Job(surface=_surface(name), rng=rng, cv=CV)
    driver = Driver(job, seed)
    driver.run()
    driver.look_after(int(rng.integers(*BEFORE[seed % len(BEFORE)])))
    before, alarms, start = job.params, len(driver.drifts), job.steps
    job.surface = slow = _surface(name, is_slow=True)
    driver.look_after(AFTER)
    noticed = next((step for step in driver.drifts if step >= start), None)
    best, final = slow.oracle.step_us, slow.truth(job.params).step_us
    return Slow(
        surface=name,
        seed=seed,
        alarms=alarms,
        noticed=-1 if noticed is None else noticed - start,
        settled=max(0, driver.settled - start),
        gain=slow.default_us / final - 1,
        regret=final / best - 1,
        untouched=slow.truth(before).step_us / best - 1,
    )


_surfaces: dict[tuple[str, bool], Surface] = {}


def _surface(name: str, *, is_slow: bool = False) -> Surface:
    whole = name.removesuffix(SHORT)
    if (name, is_slow) not in _surfaces:
        surface = surface_of(LINKS[whole]) if is_slow else all_surfaces()[whole]
        _surfaces[name, is_slow] = surface if whole == name else _with_short_steps(surface)
    return _surfaces[name, is_slow]


def _with_short_steps(surface: Surface) -> Surface:
    """Return a job like a simulated one, with everything in a step ``SHORTER`` times as short."""

    def truth_of(params: CommParams) -> Truth:
        truth = surface.truth(params)
        return Truth(step_us=truth.step_us / SHORTER, exposed_us=truth.exposed_us / SHORTER)

    operations = tuple((name, round(size / SHORTER)) for name, size in surface.operations)
    return replace(
        surface, name=surface.name + SHORT, operations=operations, truth_of=truth_of, _known={}
    )


def quiet(kind: str, name: str, seed: int, steps: int) -> Quiet:
    """Tune a job to the end and count what the tuner takes for a change."""
    rng = np.random.default_rng([20261131, sum(map(ord, kind + name)), seed])
    job = Job(surface=_surface(name), rng=rng, kind=KINDS[kind], cv=CV)
    driver = Driver(job, seed)
    driver.run()
    driver.look_after(steps)
    return Quiet(kind=kind, surface=name, seed=seed, steps=steps, alarms=len(driver.drifts))


def table(links: Sequence[Slow], calm: Sequence[Quiet]) -> str:
    """Return both tables, in Markdown."""
    head = ["link falls to 20 %", "runs", "noticed after steps, median and 90 % (<= 200)", "never"]
    head += ["settled after steps, median", "regret, median and 90 %", "regret of the old setting"]
    head += ["worse than the default by > 0.5 %"]
    lines = [_line(head), _line(["---"] * len(head))]
    for name in [*dict.fromkeys(run.surface for run in links), ""]:
        mine = [asdict(run) for run in links if run.surface == name or not name]
        found = column([run for run in mine if run["noticed"] >= 0], "noticed")
        cells = [
            name or "all",
            len(mine),
            f"{quantile(found, 0.5):.0f}, {quantile(found, 0.9):.0f}",
        ]
        cells += [len(mine) - len(found), f"{quantile(column(mine, 'settled'), 0.5):.0f}"]
        regret, before = column(mine, "regret"), column(mine, "untouched")
        cells += [f"{quantile(regret, 0.5):.1%}, {quantile(regret, 0.9):.1%}"]
        cells += [f"{quantile(before, 0.5):.1%}"]
        cells += [int((column(mine, "gain") < 1 / 1.005 - 1).sum())]
        lines.append(_line(cells))
    lines += [
        "",
        _line(["nothing changes for good", "runs", "steps", "false alarms in 100,000 (<= 1)"]),
    ]
    lines.append(_line(["---"] * 4))
    for kind in [*dict.fromkeys(run.kind for run in calm), ""]:
        some = [run for run in calm if run.kind == kind or not kind]
        steps, alarms = sum(run.steps for run in some), sum(run.alarms for run in some)
        lines.append(_line([kind or "all", len(some), steps, f"{alarms / steps * 1e5:.1f}"]))
    return "\n".join(lines)


def _line(cells: Sequence[Any]) -> str:
    return f"| {' | '.join(str(cell) for cell in cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=5, help="on each slow link; fewer quiet ones")
    parser.add_argument("--steps", type=int, default=QUIET_STEPS, help="of a quiet run")
    parser.add_argument("--seed-offset", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    seeds = range(arguments.seed_offset, arguments.seed_offset + arguments.runs)
    calls = [delayed(slow_link)(name, seed) for name in LINKS for seed in seeds]
    calls += [
        delayed(quiet)(kind, name, seed, arguments.steps)
        for kind in QUIET_KINDS
        for name in QUIET_SURFACES
        for seed in seeds[: max(1, arguments.runs // 5)]
    ]
    results = Parallel(n_jobs=arguments.jobs, batch_size=1)(calls)
    links = [run for run in results if isinstance(run, Slow)]
    text = table(links, [run for run in results if isinstance(run, Quiet)])
    print(text)
    if arguments.output:
        arguments.output.mkdir(parents=True, exist_ok=True)
        (arguments.output / "after_done.md").write_text(text + "\n")
        with open(arguments.output / "after_done.csv", "w", newline="") as file:
            writer = csv.DictWriter(file, list(asdict(links[0])), lineterminator="\n")
            writer.writeheader()
            writer.writerows(asdict(run) for run in links)


if __name__ == "__main__":
    main()
