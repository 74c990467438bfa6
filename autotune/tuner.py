"""The tuner's state machine: WARMUP -> EXPLORE -> CERTIFY -> DONE. No clock, no files, no threads.

It is fed with finished steps and answers with events, in the order in which they have to take
effect:

=======================================  =======================================================
event                                    what the driver does with it
=======================================  =======================================================
``Apply``, ``Line``, ``Progress``,       sends it to the runtime
``Done``
``Sample``, ``Trial``, ``Certificate``,  hands it to the trial log
``RunFinished``
``Identified``                           finds out what training steps consist of, opens the log
                                         for that job and calls ``begin``
=======================================  =======================================================

The expensive part, choosing the next setting, is not done here: after every call the driver asks
``work()`` for something to compute (a pure function, safe in another thread) and hands it to
``accept``. It is asked for when a trial *starts*, so the next proposal is there when
the trial ends; where it is late, training goes on under the present setting. What is proposed
depends only on scores and the seed, never on when a plan arrives.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from autotune import messages
from autotune.bayes import BayesianOptimizer, SearchSpace
from autotune.budget import Account
from autotune.certify import LOOKS, Comparison, no_certificate
from autotune.events import Event, Identified, Plan, RunFinished, Task, sample
from autotune.protocol import Apply, Done, Line, Progress, Settings, StepRecord
from autotune.scoring import (
    SETTLE_STEPS,
    Reading,
    Window,
    headroom,
    is_hopeless,
    is_usable,
    pool,
)
from autotune.space import Value
from autotune.storage.contract import Replay, Resume, Start
from autotune.trial import Certificate, CommParams, RunState, SampleKind, Trial, TrialState
from autotune.warmup import Identifier, Warmup, steps_per_sample, steps_to_first_sample

WORTH_HAVING = 0.01
"""Gains below this are not worth tuning for."""
WORTH_LOOKING = 0.005
"""Exploring ends when the next trial is expected to gain less than this."""
FEWEST_TRIALS = 8
REREAD_EVERY = 5
"""Trials between two readings of the default."""
REREADS_KEPT = 4
"""Further readings of one setting tell the surrogate nothing that is worth their cost."""
DEFAULT_READINGS_USED = 3


class Phase(enum.StrEnum):
    """Where a run is."""

    WARMUP = "warmup"
    EXPLORE = "explore"
    CERTIFY = "certify"
    DONE = "done"


class Tuner:
    """One tuning run.

    Attributes:
        phase: Where the run is.
        seed: Seed of proposals and pair orders (a resumed run keeps its own).
        trials: Finished trials, by trial_id.
    """

    def __init__(
        self,
        *,
        settings: Settings,
        seed: int,
        size: int,
        fixed: Mapping[str, Value] | None = None,
        inert: Mapping[str, str] | None = None,
    ) -> None:
        """Prepare a run.

        Args:
            settings: ``HOROVOD_AUTOTUNE_*``.
            seed: Makes proposals and pair orders reproducible.
            size: Ranks of the job.
            fixed: Parameters that the user set explicitly, with their values.
            inert: Parameters that cannot matter in this job, with the reason.

        Raises:
            InvalidSettingError: A fixed value is outside its parameter's domain.
        """
        self.phase = Phase.WARMUP
        self.seed = seed
        self.trials: list[Trial] = []
        self._settings = settings
        self._size = size
        self._fixed, self._inert = dict(fixed or {}), dict(inert or {})
        self._default = CommParams().with_values(self._fixed)
        self._space = SearchSpace(self._default, frozen={*self._fixed, *self._inert})
        self._events: list[Event] = []
        self._identifier = Identifier()
        self._warmup: Warmup | None = None
        self._account = Account(settings.budget)
        self._epoch = 0
        self._in_force = {0: self._default}
        self._task: Task | None = None
        self._wanted: Callable[[], Plan] | None = None
        self._plan: Plan | None = None
        self._is_planning = False
        self._carried: Resume | None = None
        self._default_readings: list[Reading] = []
        self._since_default = 0
        self._is_resting = False
        self._rereads: Counter[CommParams] = Counter()

    # ---- what the driver calls ------------------------------------------------------------------

    def open(self) -> list[Event]:
        """Return what can be said before the first step: what is tuned, or that nothing is."""
        for text in messages.frozen_text(self._fixed, self._inert):
            self._say(text)
        if self._size == 1:
            self._end_at_once("nothing to tune: the job has one rank and does not communicate")
        elif self._space.size == 1:
            self._end_at_once("nothing to tune: every parameter is set explicitly or cannot matter")
        else:
            self._say(messages.start_text(self._settings, most=self.steps_to_done))
        return self._take_events()

    def observe(self, records: Sequence[StepRecord]) -> list[Event]:
        """Take finished steps, in order."""
        for record in records:
            if record.count > 0:
                self._observe(record)
        return self._take_events()

    def begin(self, operations: Sequence[tuple[str, int]], start: Start) -> list[Event]:
        """Start after ``Identified``.

        Args:
            operations: (operation, payload bytes) of one training step; empty: unknown.
            start: What the trial log holds about this job.
        """
        if isinstance(start, Replay):
            self._replay(start)
            return self._take_events()
        if isinstance(start, Resume):
            self._resume(start)
        self._prepare(operations)
        self._warmup = Warmup(self._settings)
        if self._space.size == 1:
            self._end_at_once("nothing to tune: all settings behave alike in this job")
        elif self._warmup.is_over:
            self._explore()
        return self._take_events()

    def work(self) -> Callable[[], Plan] | None:
        """Return something to compute and to hand to ``accept``, or None; each is returned once."""
        wanted, self._wanted = self._wanted, None
        return wanted

    def accept(self, plan: Plan) -> list[Event]:
        """Take what the last ``work`` computed."""
        if self.phase is Phase.EXPLORE:
            self._plan, self._is_planning = plan, False
            self._optimizer.adopt(plan.constants)
            if self._task is None:
                self._advance()
        return self._take_events()

    def finish(self) -> list[Event]:
        """Say where the run stands when the job ends."""
        if self.phase is Phase.DONE:
            return []
        best = self._best() if self.trials else None
        if best is None:
            needed, seen = steps_to_first_sample(self._settings), self._identifier.steps_seen
            self._say(messages.no_sample_text(needed=needed, seen=seen), level="warning")
        else:
            done, most = len(self.trials), self._settings.max_samples
            self._say(messages.unfinished_text(best, done=done, most=most, names=self._space.names))
        self._events.append(RunFinished(state=RunState.UNFINISHED, best=best))
        return self._take_events()

    @property
    def steps_to_done(self) -> int:
        """Training steps until tuning is over, about, at most, unless the budget slows it down."""
        trials = self._settings.max_samples
        windows = trials - 1 + trials // REREAD_EVERY + 2 * LOOKS[-1]
        window = steps_per_sample(self._settings) + SETTLE_STEPS
        return steps_to_first_sample(self._settings) + windows * window

    # ---- start ----------------------------------------------------------------------------------

    def _prepare(self, operations: Sequence[tuple[str, int]]) -> None:
        self._space = SearchSpace(
            self._default,
            frozen={*self._fixed, *self._inert},
            tensors=len(operations),
            payload=sum(size for _, size in operations),
        )
        for_proposals, for_pairs = np.random.SeedSequence(self.seed).spawn(2)
        self._pair_rng = np.random.default_rng(for_pairs)
        self._optimizer = BayesianOptimizer(
            self._space,
            rng=np.random.default_rng(for_proposals),
            noise_variance=self._settings.noise,
            max_trials=self._settings.max_samples,
        )

    def _replay(self, start: Replay) -> None:
        self._put_in_force(start.best.params)
        certified = start.certificate is not None and start.certificate.certified
        reason = "replayed from a finished run of this job"
        self._done(start.best, certified=certified, reason=reason)

    def _resume(self, start: Resume) -> None:
        self.seed = start.seed
        if start.trials:
            self.trials = sorted(start.trials, key=lambda trial: trial.trial_id)
            self._carried = start

    def _tell_carried(self, carried: Resume, default_score: float) -> None:
        """Tell what the earlier job found, in proportion to the default's score then and now."""
        ratio = default_score / self.trials[0].score if self.trials[0].score > 0 else 1.0
        for trial in carried.trials:
            self._tell(trial, trial.score * ratio)
        params = {trial.trial_id: trial.params for trial in carried.trials}
        for old in carried.samples:
            if old.kind is SampleKind.REREAD and old.trial_id in params:
                self._rereads[params[old.trial_id]] += 1
                self._optimizer.tell(params[old.trial_id], old.score * ratio)

    # ---- steps ----------------------------------------------------------------------------------

    def _observe(self, record: StepRecord) -> None:
        identified = self._identifier.add(record)
        if self.phase is Phase.DONE:
            return
        if identified:
            self._events.append(Identified(signature=record.signature))
        if self._warmup is None or record.signature != self._identifier.signature:
            return
        is_default = self._in_force.get(record.epoch) == self._default
        self._account.book(record, is_default=is_default)
        if is_usable(record):
            self._take(record, self._warmup)

    def _take(self, record: StepRecord, warmup: Warmup) -> None:
        if self.phase is Phase.WARMUP:
            warmup.add(record)
            if warmup.is_over:
                self._explore()
        elif self._task is not None:
            self._read(self._task, record)

    def _read(self, task: Task, record: StepRecord) -> None:
        task.window.add(record)
        is_trial = task.kind is SampleKind.SEARCH and task.trial_id > 0
        if is_trial and is_hopeless(task.window.judged, default=pool(self._default_readings)):
            self._finish_task(task, TrialState.ABANDONED)
        elif task.window.is_full:
            self._finish_task(task, TrialState.COMPLETE)

    def _finish_task(self, task: Task, state: TrialState) -> None:
        self._task = None
        reading = task.window.reading()
        if task.params == self._default and task.kind is not SampleKind.CERTIFY:
            self._take_default(reading)
        if task.kind is SampleKind.CERTIFY:
            self._events.append(sample(task, reading))
            self._finish_arm(reading)
        else:
            self._learn_from(task, reading, state)
            self._advance()

    # ---- EXPLORE --------------------------------------------------------------------------------

    def _explore(self) -> None:
        self.phase = Phase.EXPLORE
        kind = SampleKind.REREAD if self.trials else SampleKind.SEARCH
        self._run(self._default, kind=kind, trial_id=0)
        if not self.trials:
            self._request([self._default])

    def _take_default(self, reading: Reading) -> None:
        self._since_default = 0
        self._default_readings = [*self._default_readings, reading][-DEFAULT_READINGS_USED:]
        self._account.rebase(pool(self._default_readings))
        if self._carried is not None:
            self._tell_carried(self._carried, reading.score)
            self._carried = None

    def _learn_from(self, task: Task, reading: Reading, state: TrialState) -> None:
        if task.kind is SampleKind.SEARCH:
            self._events.append(sample(task, reading))
            self._finish_trial(task, reading.score, state)
        elif self._rereads[task.params] < REREADS_KEPT:
            self._rereads[task.params] += 1
            self._events.append(sample(task, reading))
            self._optimizer.tell(task.params, reading.score)

    def _finish_trial(self, task: Task, score: float, state: TrialState) -> None:
        state = state if score > 0 else TrialState.REJECTED
        trial = Trial(trial_id=task.trial_id, params=task.params, state=state, score=score)
        self.trials.append(trial)
        self._since_default += 1
        self._tell(trial, score)
        text = messages.progress_text(
            trial,
            most=self._settings.max_samples,
            incumbent=self._optimizer.incumbent(),
            default=self._default,
            names=self._space.names,
        )
        self._events += [trial, Progress(text=text)]

    def _tell(self, trial: Trial, score: float) -> None:
        if trial.state is TrialState.REJECTED:
            self._optimizer.reject(trial.params)
        else:
            self._optimizer.tell(trial.params, score)

    def _advance(self) -> None:
        """Decide what to run next; without a plan, wait for it under the present setting."""
        best = self._best()
        bound = headroom(pool(self._default_readings))
        if len(self.trials) == 1 and bound < WORTH_HAVING:
            self._finalise(best, no_certificate(messages.headroom_reason(bound), bound=bound))
        elif self._is_exhausted():
            self._certify(best)
        elif self._plan is None:
            self._await_plan(best)
        elif self._account.allowance_us < 0:
            self._rest(best)
        elif self._since_default >= REREAD_EVERY:
            self._run(self._default, kind=SampleKind.REREAD, trial_id=0)
        elif self._plan.proposal is not None:
            params, self._plan, self._is_resting = self._plan.proposal.params, None, False
            self._run(params, kind=SampleKind.SEARCH, trial_id=len(self.trials))
            self._request([params])

    def _await_plan(self, best: Trial) -> None:
        """Leave a setting that may be bad; ``accept`` goes on from here."""
        self._put_in_force(best.params)
        if not self._is_planning:
            self._request([])

    def _rest(self, best: Trial) -> None:
        """Run the incumbent for one window: that pays back what exploring has lost."""
        if not self._is_resting:
            self._events.append(
                Progress(text=messages.rest_text(best.params, names=self._space.names))
            )
        self._is_resting = True
        self._run(best.params, kind=SampleKind.REREAD, trial_id=best.trial_id)

    def _is_exhausted(self) -> bool:
        count = len(self.trials)
        if count >= self._settings.max_samples:
            return True
        if self._plan is None:
            return False
        proposal = self._plan.proposal
        return proposal is None or (count >= FEWEST_TRIALS and proposal.improvement < WORTH_LOOKING)

    def _request(self, pending: Sequence[CommParams]) -> None:
        twin = self._optimizer.snapshot()
        self._wanted = lambda: _plan(twin, pending)
        self._is_planning = True

    def _best(self) -> Trial:
        """Return the incumbent's trial."""
        if self._carried is not None:
            return max(
                self.trials, key=lambda trial: (trial.state is TrialState.COMPLETE, trial.score)
            )
        params = self._optimizer.incumbent().params
        return next((trial for trial in self.trials if trial.params == params), self.trials[0])

    # ---- CERTIFY --------------------------------------------------------------------------------

    def _certify(self, incumbent: Trial) -> None:
        self.phase = Phase.CERTIFY
        if incumbent.trial_id == 0:
            reason = f"none of {len(self.trials) - 1} other settings beat the default"
            self._finalise(incumbent, no_certificate(reason, bound=0.0))
            return
        self._say(messages.certify_text(incumbent, names=self._space.names))
        self._comparison = Comparison(self.trials[0], incumbent, rng=self._pair_rng)
        self._next_arm()

    def _next_arm(self) -> None:
        arm, pair = self._comparison.next_arm(), self._comparison.test.pairs
        self._run(arm.params, kind=SampleKind.CERTIFY, trial_id=arm.trial_id, pair=pair)

    def _finish_arm(self, reading: Reading) -> None:
        decision = self._comparison.take(reading)
        if decision is None:
            self._next_arm()
            return
        comparison = self._comparison
        certificate = comparison.test.certificate(comparison.incumbent.trial_id)
        self._finalise(comparison.incumbent if decision else comparison.default, certificate)

    # ---- DONE -----------------------------------------------------------------------------------

    def _finalise(self, best: Trial, certificate: Certificate) -> None:
        self._put_in_force(best.params)
        self._events += [certificate, RunFinished(state=RunState.DONE, best=best)]
        self._done(best, certified=certificate.certified, reason=certificate.reason)

    def _done(self, best: Trial, *, certified: bool, reason: str) -> None:
        self.phase = Phase.DONE
        text = messages.result_text(best, reason=reason, names=self._space.names)
        params = best.params.as_dict()
        self._events.append(Done(epoch=self._epoch, params=params, certified=certified, text=text))

    def _end_at_once(self, reason: str) -> None:
        self.phase = Phase.DONE
        params = self._default.as_dict()
        text = f"autotune: {reason}"
        self._events.append(Done(epoch=self._epoch, params=params, certified=False, text=text))

    # ---- small tools ----------------------------------------------------------------------------

    def _put_in_force(self, params: CommParams) -> bool:
        """Emit ``Apply`` unless ``params`` are in force; return whether that was needed."""
        if self._in_force[self._epoch] == params:
            return False
        self._epoch += 1
        self._in_force[self._epoch] = params
        best = self._best().params.as_dict() if self.trials else None
        self._events.append(Apply(epoch=self._epoch, params=params.as_dict(), incumbent=best))
        return True

    def _run(
        self, params: CommParams, *, kind: SampleKind, trial_id: int, pair: int | None = None
    ) -> None:
        changed = self._put_in_force(params)
        window = Window(
            epoch=self._epoch,
            steps=steps_per_sample(self._settings),
            settle=SETTLE_STEPS if changed else 0,
        )
        self._task = Task(kind=kind, trial_id=trial_id, params=params, window=window, pair=pair)

    def _say(self, text: str, *, level: str = "info") -> None:
        self._events.append(Line(text=text, level=level))

    def _take_events(self) -> list[Event]:
        events, self._events = self._events, []
        return events


def _plan(optimizer: BayesianOptimizer, pending: Sequence[CommParams]) -> Plan:
    optimizer.learn()
    return Plan(proposal=optimizer.ask(pending), constants=optimizer.constants)
