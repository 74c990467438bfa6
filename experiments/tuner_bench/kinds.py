"""The kinds of jobs by what time does to them, and what is wanted of the tuner in each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import speed
from speed import Process

CHOSEN = (
    "one-host-small",
    "narrow-resnet50 10G 2x4",
    "narrow-resnet50 1G 2x2",
    "one-host-resnet50",
    "two-hosts-200-single",
    "two-hosts-200-small",
    "resnet50 10G 4x2",
    "two-hosts-500-medium",
    "gpt2 25G 8x8",
)
"""Surfaces of the jobs whose speed changes: 13 to 510 ms a step, gains from 0.2 to 130 %."""


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """Bounds; shares of 1.

    Attributes:
        regret_median, regret_p90: Of the final choice.
        certified_p90: Certified gain minus the true one, its size.
        claimed_p90: What the log claimed on the way minus the truth.
        coverage: Share of the nominal 90 % intervals that hold the truth.
        width: Median width of these intervals after the tenth trial.
        trials, steps: Medians, until the end.
    """

    regret_median: float = 0.01
    regret_p90: float = 0.05
    certified_p90: float = 0.03
    claimed_p90: float = 0.10
    coverage: tuple[float, float] = (0.85, 0.99)
    width: float = 0.15
    trials: float = 15
    steps: float = 600


WANTED = Wanted()


@dataclass(frozen=True, kw_only=True)
class Earlier:
    """A job that was tuned before: a surface, with other hosts or cables so many times as fast."""

    surface: str
    hosts: int | None = None
    bandwidth: float = 1.0


@dataclass(frozen=True, kw_only=True)
class Kind:
    """One kind of job.

    Attributes:
        title: For people.
        process: What the machine's speed does.
        surfaces: Words of the surfaces it runs on; empty: all.
        first_plan_s, plan_s: Seconds until the first and the other plans are there. A plan takes
            30 ms of CPU time; imports are over before the first reading counts.
        planning: Factor by which everything is slower while a plan is computed.
        oversubscribed: What the service tells the tuner: ranks fill the cores.
        evaluate_every: Steps from one evaluation to the next; 0: none.
        evaluation: Range of its length, in steps; it is within the time of the step after it.
        memory: Earlier jobs that the job remembers, by the surface it runs on; empty: none.
        wanted: Bounds.
    """

    title: str
    process: Process = speed.steady
    surfaces: Sequence[str] = CHOSEN
    first_plan_s: float = 0.5
    plan_s: float = 0.2
    planning: float = 1.0
    oversubscribed: bool = False
    evaluate_every: int = 0
    evaluation: tuple[float, float] = (20.0, 50.0)
    memory: Mapping[str, Sequence[Earlier]] = field(default_factory=dict)
    wanted: Wanted = WANTED

    def runs_on(self, surface: str) -> bool:
        """Return whether jobs of this kind run on the surface of that name."""
        if self.memory:
            return surface in self.memory
        return not self.surfaces or surface in self.surfaces


SIMILAR = {
    "narrow-resnet50 1G 2x2": (
        Earlier(surface="narrow-resnet50 1G 2x2", hosts=4),
        Earlier(surface="narrow-resnet50 1G 2x2", bandwidth=2.0),
    ),
    "resnet50 10G 4x2": (
        Earlier(surface="resnet50 10G 4x2", hosts=8),
        Earlier(surface="resnet50 10G 4x2", bandwidth=0.5),
    ),
    "vgg16 10G 2x2": (
        Earlier(surface="vgg16 10G 2x2", hosts=4),
        Earlier(surface="vgg16 10G 2x2", bandwidth=2.0),
    ),
    "gpt2 10G 4x4": (Earlier(surface="gpt2 10G 4x4", hosts=2),),
    "two-hosts-200-small": (Earlier(surface="two-hosts-50-small"),),
    "two-hosts-50-small": (Earlier(surface="two-hosts-200-small"),),
}
"""The same models on other ranks or cables."""
SINGLE = Earlier(surface="two-hosts-200-single")
MISLEADING = {
    "narrow-resnet50 10G 2x4": (SINGLE, Earlier(surface="gpt2 10G 4x4")),
    "narrow-resnet50 1G 2x2": (SINGLE, Earlier(surface="vgg16 10G 2x2")),
    "two-hosts-200-single": (Earlier(surface="narrow-resnet50 1G 2x2"),),
    "resnet50 10G 4x2": (SINGLE,),
    "gpt2 10G 4x4": (SINGLE,),
    "two-hosts-50-small": (Earlier(surface="resnet50 25G 8x8"),),
}
"""Jobs whose best setting is worse than the default here, or far from the best."""

STATIONARY = "stationary"
KINDS = {
    STATIONARY: Kind(title="the same speed all the time", surfaces=()),
    "start-up": Kind(title="twice as slow for the first 4 s", process=speed.start_up),
    "decay": Kind(title="a slow start that decays exponentially", process=speed.decay),
    "shift": Kind(title="one shift of x0.6 or x1.5 in speed", process=speed.shift),
    "wave": Kind(title="a wave of +-20 %, 3 to 60 s long", process=speed.wave),
    "two-speeds": Kind(
        title="1 and 1.8 times as slow, 1 s each on average",
        process=speed.two_speeds,
        wanted=Wanted(regret_median=0.03, regret_p90=0.08, certified_p90=0.06),
    ),
    "planning": Kind(
        title="1.9 times as slow while a plan is computed", planning=1.9, oversubscribed=True
    ),
    "evaluation": Kind(title="an evaluation of 20 to 50 steps every 100 steps", evaluate_every=100),
    "warm": Kind(
        title="remembers the same model on other ranks or cables",
        memory=SIMILAR,
        wanted=Wanted(regret_p90=0.02, trials=5, steps=150),
    ),
    "misleading": Kind(title="remembers a job with another optimum", memory=MISLEADING),
}
