"""What comes next in EXPLORE: plans, their end, and the setting that is compared at last."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from autotune.bayes import BayesianOptimizer, Proposal, SearchSpace
from autotune.trial import Setting, Trial, TrialState
from autotune.tuning.budget import price_steps
from autotune.tuning.comparing.certify import FEWEST_PAIRS
from autotune.tuning.events import Plan
from autotune.tuning.exploring.findings import Findings
from autotune.tuning.exploring.memory import Recollection, WarmStart
from autotune.tuning.exploring.rereads import (
    CONTENDER_READINGS,
    FEWEST_TRIALS,
    WORTH_READING,
    Rereads,
)
from autotune.tuning.steps.records import TunerSettings
from autotune.tuning.steps.scoring import SETTLE_STEPS
from autotune.tuning.steps.warmup import steps_per_sample, window_steps

WORTH_LOOKING = 0.006
"""Exploring ends when the next trial is expected to gain less than this."""
NOISE_PER_TRIAL = 10.0
MOST_WORTH = 0.01
"""... or less than this part of one reading's noise, which cannot be told apart anyway, up to this.
"""
REMEMBERED_TRIALS, WORTH_LOOKING_BEYOND = 5, 0.015
"""Trials of a search that remembers an earlier job, while that holds, at most; and the gain that
another one has to promise: the default and what was best there may do."""


class Search:
    """The plan of one run: which setting is tried next, when no other one is, and which one wins.

    Attributes:
        space: The settings that may be tried.
        findings: What is known of them.
        rereads: Which trials are read once more.
        warm_start: What an earlier job has learned.
        plan: What comes next; None until it is computed.
    """

    def __init__(
        self,
        space: SearchSpace,
        settings: TunerSettings,
        *,
        rng: np.random.Generator,
        proposals_per_plan: int = 1,
        recollection: Recollection | None = None,
    ) -> None:
        """Know nothing yet but what is remembered.

        Args:
            space: The settings that may be tried.
            settings: ``HOROVOD_AUTOTUNE_*``.
            rng: Decides the initial design.
            proposals_per_plan: Settings that one plan proposes.
            recollection: What an earlier job that resembles this one has learned.
        """
        optimizer = BayesianOptimizer(
            space, rng=rng, noise_variance=settings.noise, max_trials=settings.max_samples
        )
        self.space = space
        self.warm_start = WarmStart(recollection, optimizer)
        self.findings = Findings(optimizer, self.warm_start)
        self.rereads = Rereads(self.findings, self.warm_start)
        self.plan: Plan | None = None
        self._settings = settings
        self._most = settings.max_samples
        self._per_plan = proposals_per_plan
        self._wanted: Callable[[], Plan] | None = None
        self._is_planning = False
        self._is_simplified = False
        self._first: Setting | None = None

    def steps_to_done(self, step_us: float) -> int:
        """Return the training steps until tuning is over, about, at most.

        Pauses for the budget, and readings that are taken again, are not among them.

        Args:
            step_us: Step time of the default.
        """
        trials = max(0, self._most - len(self.findings.trials))
        windows = 2 * (trials + CONTENDER_READINGS[1]) + 2 * FEWEST_PAIRS
        return windows * (window_steps(self._settings, step_us) + SETTLE_STEPS)

    @property
    def is_exhausted(self) -> bool:
        """Whether the plan says that another trial is not allowed or not worth its time."""
        if self.plan is None:
            return False
        count, proposals = len(self.findings.trials), self.plan.proposals
        if not proposals or count >= self._most:
            return True
        if self.warm_start.is_used:
            is_read = self.warm_start.first is None
            is_worth_it = proposals[0].improvement >= WORTH_LOOKING_BEYOND
            return is_read and (count >= REMEMBERED_TRIALS or not is_worth_it)
        worth = min(max(WORTH_LOOKING, self.findings.noise / NOISE_PER_TRIAL), MOST_WORTH)
        return count >= FEWEST_TRIALS and proposals[0].improvement < worth

    @property
    def needs_plan(self) -> bool:
        """Whether a plan has to be computed before the next trial."""
        return self.plan is None

    def take_proposal(self) -> Proposal:
        """Return the planned trial, which begins now."""
        assert self.plan is not None and self.plan.proposals
        first, *others = self.plan.proposals
        self.plan = replace(self.plan, proposals=tuple(others)) if others else None
        return first

    def begin_with(self, params: Setting) -> None:
        """Have ``params`` be the first setting that is tried, after what is remembered."""
        self._first = params

    def simplified(self) -> Setting | None:
        """Return the incumbent with the default's value of all that has no effect, once.

        None: it has no such parameter, or that setting was tried already.
        """
        if self._is_simplified or self.warm_start.is_used or self.findings.best.trial_id == 0:
            return None
        self._is_simplified = True
        params = self.findings.simplified(self.findings.best.params).params
        return None if self.findings.trial_of(params) is not None else params

    def choose(self) -> tuple[Trial, list[str]]:
        """Return the trial to be compared with the default, and what has no effect in it.

        Of settings that cannot be told apart it is the one nearest to the default.
        """
        best = self.findings.best
        if best.trial_id == 0:
            return best, []
        found = self.findings.simplified(best.params)
        params, names = found.params, list(found.no_effect)
        simpler = self.findings.trial_of(params)
        if simpler is None or simpler.state is TrialState.REJECTED:
            return best, []
        if simpler.trial_id > 0 and simpler is not best:
            mine, _ = self.findings.posterior(best.params)
            others, _ = self.findings.posterior(simpler.params)
            if others < mine - WORTH_READING:
                return best, []
        return (simpler, names) if simpler.trial_id > 0 else (best, [])

    def request(self) -> None:
        """Ask for a plan, unless one is on its way."""
        if self._is_planning:
            return
        twin, window, count = self.findings.snapshot(), steps_per_sample(self._settings), 1
        if len(self.findings.trials) > 1:
            count = min(self._per_plan, max(1, self._most - len(self.findings.trials)))
        first = self.warm_start.first
        if first is None and self._first not in self.findings.tried:
            first = self._first
        self._wanted = lambda: _plan(twin, window, count, first)
        self._is_planning, self.plan = True, None

    def work(self) -> Callable[[], Plan] | None:
        """Return the computation that was asked for, once."""
        wanted, self._wanted = self._wanted, None
        return wanted

    def accept(self, plan: Plan) -> None:
        """Take the result of ``work``."""
        self.plan, self._is_planning = plan, False
        self.findings.adopt(plan.constants)


def _plan(optimizer: BayesianOptimizer, window: int, count: int, first: Setting | None) -> Plan:
    optimizer.learn()

    def price(ratios: np.ndarray) -> np.ndarray:
        return price_steps(ratios, window) / window

    proposals = optimizer.ask_many((), price, count)
    if first is not None:
        others = [proposal for proposal in proposals if proposal.params != first]
        proposals = [optimizer.proposal(first), *others[: count - 1]]
    return Plan(
        proposals=tuple(proposals), constants=optimizer.constants, trouble=optimizer.trouble
    )
