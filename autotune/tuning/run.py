"""One run: EXPLORE, then CERTIFY. No clock, no files, no threads.

A ``Run`` is fed with the training steps and appends events to a list that its ``Tuner`` hands on.
It ends with an ``outcome``: the trial that stays in force, and the certificate that says why.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from autotune.bayes import Proposal
from autotune.trial import Certificate, CommParams, SampleKind, Trial, TrialState
from autotune.tuning import messages, scoring
from autotune.tuning.budget import STOP_RATIO, Account, price_steps
from autotune.tuning.certify import ALPHA, Comparison, PairedTest, no_certificate
from autotune.tuning.changes import Line, Progress
from autotune.tuning.events import Event, Plan, Task, sample
from autotune.tuning.inforce import InForce
from autotune.tuning.records import StepRecord, TunerSettings
from autotune.tuning.scoring import SETTLE_STEPS, Reading, Window, headroom, is_hopeless, step_us
from autotune.tuning.search import Search
from autotune.tuning.warmup import steps_left, steps_per_sample

WORTH_HAVING = 0.01
"""Gains below this are not worth tuning for."""
STEPS_IN_FLIGHT = 2
"""Steps that are still made under a setting after it was given up, at most."""
MOST_RESTS = 60
"""Windows in a row that wait for the budget, until exploring ends for want of it."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a run ends: ``best`` stays in force, for the reason that the certificate gives."""

    best: Trial
    certificate: Certificate


class Phase(enum.StrEnum):
    """Where a tuner is."""

    WARMUP = "warmup"
    EXPLORE = "explore"
    CERTIFY = "certify"
    DONE = "done"


class Run:
    """One search and its certificate.

    Attributes:
        search: The trials so far, and the plan for the next one.
        outcome: None until the run is over.
        disturbed_steps: Steps that were not scored because a plan was being computed.
    """

    def __init__(
        self,
        search: Search,
        *,
        settings: TunerSettings,
        account: Account,
        in_force: InForce,
        events: list[Event],
        rng: np.random.Generator,
        alpha: float = ALPHA,
    ) -> None:
        """Prepare a run.

        Args:
            search: Knows no trial yet, or those of an earlier job.
            settings: ``HOROVOD_AUTOTUNE_*``.
            account: What exploring has lost, and may lose.
            in_force: Which setting is in force.
            events: Receives what the run has to say.
            rng: Decides the order within certificate pairs.
            alpha: Error probability of the certificate.
        """
        self.search = search
        self.outcome: Outcome | None = None
        self.disturbed_steps = 0
        self._settings, self._account, self._in_force = settings, account, in_force
        self._events, self._rng, self._alpha = events, rng, alpha
        self._default, self._names = search.space.default, search.space.names
        self._task: Task | None = None
        self._on_trial: Proposal | None = None
        self._postponed: Proposal | None = None
        self._comparison: Comparison | None = None
        self._rest_allowance_us: float | None = None
        self._rests = 0
        self._earlier: list[Reading] = []

    @property
    def phase(self) -> Phase:
        """Where the run is."""
        return Phase.EXPLORE if self._comparison is None else Phase.CERTIFY

    @property
    def best(self) -> Trial | None:
        """The incumbent's trial, if there is any trial."""
        return self.search.best if self.search.trials else None

    def steps_left(self, step_us: float | None) -> int | None:
        """Return the training steps that the present window still needs, about; None: no window.

        Args:
            step_us: Time of a step; None: not known, and the fewest steps are returned.
        """
        task = self._task
        return steps_left(task.window, self._settings, step_us) if task is not None else None

    # ---- what the tuner calls -------------------------------------------------------------------

    def start(self, earlier: list[Reading]) -> None:
        """Read the default: as trial 0, or once more in a resumed run.

        Args:
            earlier: Readings of the default before the run: they count for its step time.
        """
        search = self.search
        self._earlier = earlier
        kind = SampleKind.REREAD if search.trials else SampleKind.SEARCH
        self._run(self._default, kind=kind, trial_id=0)
        if not search.trials:
            search.request([self._default])

    def read(self, record: StepRecord, *, disturbed: bool = False) -> None:
        """Take a usable training step; a disturbed one says nothing about the setting in force."""
        task = self._task
        if task is None:
            return
        is_trial = task.kind is SampleKind.SEARCH and task.trial_id > 0
        if disturbed:
            self.disturbed_steps += record.count
        else:
            task.window.add(record)
        if is_trial and self._was_taken_back(record, task):
            self._end_early(task)
        elif disturbed:
            if is_trial and self._is_too_dear(record, task):
                self._end_early(task)
        elif is_trial and self._is_lost(record, task):
            self._finish_task(task, TrialState.ABANDONED)
        elif task.window.is_full:
            self._finish_task(task, TrialState.COMPLETE)

    def work(self) -> Callable[[], Plan] | None:
        """Return something to compute and to hand to ``accept``, or None; each is returned once."""
        return self.search.work()

    def accept(self, plan: Plan) -> None:
        """Take what the last ``work`` computed."""
        self.search.accept(plan)
        if self._task is None and self.phase is Phase.EXPLORE and self.outcome is None:
            self._advance()

    def reject(self, params: CommParams) -> None:
        """Drop a setting whose results are wrong, whatever it scores."""
        task, comparison = self._task, self._comparison
        if comparison is not None and comparison.incumbent.params == params:
            self.search.reject(params)
            reason = "default kept: the results of the incumbent were wrong"
            self._finalise(self.search.trials[0], self._no_certificate(reason, bound=0.0))
        elif task is not None and task.params == params and task.kind is SampleKind.SEARCH:
            self._finish_task(task, TrialState.REJECTED)
        elif self._postponed is not None and self._postponed.params == params:
            self._postponed = None
            self._add_trial(params, scoring.read([]), TrialState.REJECTED)
        else:
            self.search.reject(params)
            if task is not None and task.params == params:
                self._advance()

    # ---- windows --------------------------------------------------------------------------------

    def _was_taken_back(self, record: StepRecord, task: Task) -> bool:
        """Return whether the runtime has taken a trial back; why, it may not have been told.

        The step that waited too long may have been disturbed, unusable, or of another kind.
        """
        return self._in_force.fallback is not None and record.epoch == task.window.epoch + 1

    def _is_too_dear(self, record: StepRecord, task: Task) -> bool:
        """Return whether a trial must not make more steps like this one, whatever the reason."""
        if record.epoch != task.window.epoch:
            return False
        if record.exposed_us > task.limit_us * record.count:
            return True
        # The steps that come before a change takes effect would overdraw the account.
        excess = step_us(record) - self.search.default.step_us
        return excess > 0 and self._account.allowance_us < STEPS_IN_FLIGHT * excess

    def _is_lost(self, record: StepRecord, task: Task) -> bool:
        """Return whether a trial is to end before its window is full."""
        if record.epoch != task.window.epoch:
            return False
        default, rival_us = self.search.default, task.rival_us
        return self._is_too_dear(record, task) or is_hopeless(
            task.window.judged, default=default, rival_us=rival_us
        )

    def _end_early(self, task: Task) -> None:
        """End a trial for another reason than its score.

        Where nothing was scored yet it is made once more, when no plan is being computed; what
        cannot be read then either is not proposed again.
        """
        if task.window.reading().steps:
            self._finish_task(task, TrialState.ABANDONED)
            return
        self._task = None
        self._take_back()
        self._postponed, self._on_trial = self._on_trial, None
        if self._postponed is None:
            self.search.reject(task.params)
        if self.search.plan is not None:
            self._advance()

    def _take_back(self) -> None:
        if (change := self._in_force.fall_back()) is not None:
            self._events.append(change)

    def _finish_task(self, task: Task, state: TrialState) -> None:
        self._task = None
        reading = task.window.reading()
        if state is not TrialState.COMPLETE:
            self._take_back()
        if self._comparison is not None:
            if task.params == self._default:
                self._account.rebase(reading)
            self._events.append(sample(task, reading))
            self._finish_arm(self._comparison, reading)
            return
        if task.params == self._default:
            self._note_default(reading)
        if task.kind is SampleKind.SEARCH:
            if reading.steps:  # wrong results may be known before the first step is
                self._events.append(sample(task, reading))
            self._add_trial(task.params, reading, state)
        elif self.search.add_reread(task.params, reading.score):
            self._events.append(sample(task, reading))
        self._advance()

    def _note_default(self, reading: Reading) -> None:
        earlier, self._earlier = self._earlier, []
        self.search.add_default(reading, earlier)
        self._account.rebase(self.search.default)

    def _run(
        self, params: CommParams, *, kind: SampleKind, trial_id: int, pair: int | None = None
    ) -> None:
        limit, rival = math.inf, math.inf
        if kind is SampleKind.SEARCH and trial_id > 0:
            default_us = self.search.default.step_us
            limit, rival = STOP_RATIO * default_us, default_us / (1 + self.search.incumbent.gain)
        changed = self._put_in_force(params, limit_us=limit if math.isfinite(limit) else None)
        window = Window(
            epoch=self._in_force.epoch,
            steps=steps_per_sample(self._settings),
            settle=SETTLE_STEPS if changed else 0,
        )
        self._task = Task(
            kind=kind,
            trial_id=trial_id,
            params=params,
            window=window,
            pair=pair,
            rival_us=rival,
            limit_us=limit,
        )

    def _put_in_force(self, params: CommParams, *, limit_us: float | None = None) -> bool:
        """Emit ``Apply`` unless ``params`` are in force; return whether that was needed."""
        best = self.best
        known = best.params if best is not None else None
        change = self._in_force.change(params, known=known, limit_us=limit_us)
        if change is not None:
            self._events.append(change)
        return change is not None

    # ---- EXPLORE --------------------------------------------------------------------------------

    def _add_trial(self, params: CommParams, reading: Reading, state: TrialState) -> None:
        search = self.search
        trial = search.add_trial(params, reading=reading, state=state)
        text = messages.progress_text(
            trial,
            most=self._settings.max_samples,
            incumbent=search.incumbent,
            best_score=search.best_score,
            default=self._default,
            names=self._names,
        )
        self._events += [trial, Progress(text=text)]

    def _advance(self) -> None:
        """Decide what to run next."""
        search = self.search
        bound = headroom(search.default)
        if len(search.trials) == 1 and bound < WORTH_HAVING:
            reason = messages.headroom_reason(bound)
            self._finalise(search.trials[0], self._no_certificate(reason, bound=bound))
        elif self._rests >= MOST_RESTS or (search.is_exhausted and self._postponed is None):
            self._read_contenders()
        elif search.plan is None:
            self._put_in_force(search.best.params)  # a late plan must not prolong a bad trial
            search.request()
        elif search.wants_default:
            self._run(self._default, kind=SampleKind.REREAD, trial_id=0)
        elif not self._can_pay(self._postponed or search.plan.proposal):
            self._rest()
        else:
            self._rest_allowance_us, self._rests = None, 0
            self._try_next(search.plan)

    def _try_next(self, plan: Plan) -> None:
        """Begin the planned trial, or once more the one that was postponed."""
        search = self.search
        if self._postponed is not None:
            params, self._postponed = self._postponed.params, None
        else:
            self._on_trial = plan.proposal
            params = search.take_proposal()
        self._run(params, kind=SampleKind.SEARCH, trial_id=len(search.trials))

    def _can_pay(self, proposal: Proposal | None) -> bool:
        """Return whether the allowance covers the worst that the planned trial may cost."""
        if proposal is None:
            return True
        ratio, window = proposal.worst_ratio, steps_per_sample(self._settings) + SETTLE_STEPS
        price = float(price_steps(np.array([ratio]), window)[0])
        return self._account.allowance_steps >= price

    def _read_contenders(self) -> None:
        """Read the settings that may be the best once more, then compare the best one."""
        trial = self.search.contender()
        if trial is None:
            self._certify()
        else:
            self._run(trial.params, kind=SampleKind.REREAD, trial_id=trial.trial_id)

    def _rest(self) -> None:
        """Run one window that pays back what exploring has lost.

        Under the incumbent; but where a window of it has paid nothing back, its lead was luck, and
        the default, which always pays, takes over until the next trial.
        """
        search = self.search
        self._rests += 1
        allowance, before = self._account.allowance_us, self._rest_allowance_us
        if before is None:
            self._rest_trial = search.best
            text = messages.rest_text(self._rest_trial.params, names=self._names)
            self._events.append(Progress(text=text))
        elif allowance <= before:
            self._rest_trial = search.trials[0]
        self._rest_allowance_us = allowance
        trial = self._rest_trial
        self._run(trial.params, kind=SampleKind.REREAD, trial_id=trial.trial_id)

    # ---- CERTIFY --------------------------------------------------------------------------------

    def _certify(self) -> None:
        search = self.search
        incumbent = search.best
        if incumbent.trial_id == 0:
            reason = f"none of {len(search.trials) - 1} other settings beat the default"
            self._finalise(incumbent, self._no_certificate(reason, bound=0.0))
            return
        self._say(messages.certify_text(incumbent, names=self._names))
        test = PairedTest(self._alpha)
        self._comparison = Comparison(search.trials[0], incumbent, rng=self._rng, test=test)
        self._next_arm(self._comparison)

    def _next_arm(self, comparison: Comparison) -> None:
        arm, pair = comparison.next_arm(), comparison.test.pairs
        self._run(arm.params, kind=SampleKind.CERTIFY, trial_id=arm.trial_id, pair=pair)

    def _finish_arm(self, comparison: Comparison, reading: Reading) -> None:
        decision = comparison.take(reading)
        if decision is None:
            self._next_arm(comparison)
            return
        certificate = comparison.test.certificate(comparison.incumbent.trial_id)
        self._finalise(comparison.incumbent if decision else comparison.default, certificate)

    def _no_certificate(self, reason: str, *, bound: float) -> Certificate:
        return no_certificate(reason, bound=bound, alpha=self._alpha)

    def _finalise(self, best: Trial, certificate: Certificate) -> None:
        self._task = None
        self._put_in_force(best.params)
        self.outcome = Outcome(best=best, certificate=certificate)

    def _say(self, text: str) -> None:
        self._events.append(Line(text=text))
