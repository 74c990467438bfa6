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
import math
from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np

from autotune import messages
from autotune.bayes import SearchSpace
from autotune.budget import STOP_RATIO, Account, price_steps
from autotune.certify import MOST_PAIRS, Comparison, no_certificate
from autotune.events import Event, Identified, Plan, RunFinished, Task, sample
from autotune.inforce import InForce
from autotune.prior import PhysicsPrior
from autotune.protocol import Done, Line, Progress, Settings, StepRecord
from autotune.scoring import (
    SETTLE_STEPS,
    Reading,
    Window,
    headroom,
    is_hopeless,
    is_usable,
    pool,
    step_us,
)
from autotune.search import REREAD_EVERY, Search
from autotune.space import Value
from autotune.storage.contract import Replay, Resume, Start
from autotune.trial import Certificate, CommParams, RunState, SampleKind, Trial, TrialState
from autotune.warmup import Identifier, Warmup, steps_per_sample, steps_to_first_sample

WORTH_HAVING = 0.01
"""Gains below this are not worth tuning for."""


STEPS_IN_FLIGHT = 2
"""Steps that are still made under a setting after it was given up, at most."""
MOST_RESTS = 60
"""Windows in a row that wait for the budget, until exploring ends for want of it."""


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
    """

    def __init__(
        self,
        *,
        settings: Settings,
        seed: int,
        size: int,
        fixed: Mapping[str, Value] | None = None,
        inert: Mapping[str, str] | None = None,
        hosts: int = 1,
    ) -> None:
        """Prepare a run.

        Args:
            settings: ``HOROVOD_AUTOTUNE_*``.
            seed: Makes proposals and pair orders reproducible.
            size: Ranks of the job.
            fixed: Parameters that the user set explicitly, with their values.
            inert: Parameters that cannot matter in this job, with the reason.
            hosts: Hosts they are on.

        Raises:
            InvalidSettingError: A fixed value is outside its parameter's domain.
        """
        self.phase = Phase.WARMUP
        self.seed = seed
        self._settings = settings
        self._size, self._hosts = size, hosts
        self._fixed, self._inert = dict(fixed or {}), dict(inert or {})
        self._default = CommParams().with_values(self._fixed)
        self._space = SearchSpace(self._default, frozen={*self._fixed, *self._inert})
        self._events: list[Event] = []
        self._identifier = Identifier()
        self._warmup = Warmup(settings)
        self._account = Account(settings.budget)
        self._in_force = InForce(self._default)
        self._task: Task | None = None
        self._search: Search | None = None
        self._rest_allowance_us: float | None = None
        self._rests = 0
        self._operations: Sequence[tuple[str, int]] = ()

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
        self.seed = start.seed if isinstance(start, Resume) else self.seed
        self._operations = operations
        self._search = self._new_search(operations)
        if isinstance(start, Resume):
            self._search.carry_over(start)
        if self._space.size == 1:
            self._end_at_once("nothing to tune: all settings behave alike in this job")
        elif self._warmup.is_over:
            self._explore(self._search)
        return self._take_events()

    def work(self) -> Callable[[], Plan] | None:
        """Return something to compute and to hand to ``accept``, or None; each is returned once."""
        return self._search.work() if self._search is not None else None

    def accept(self, plan: Plan) -> list[Event]:
        """Take what the last ``work`` computed."""
        if self._search is not None and self.phase is Phase.EXPLORE:
            self._search.accept(plan)
            if self._task is None:
                self._advance(self._search)
        return self._take_events()

    def finish(self) -> list[Event]:
        """Say where the run stands when the job ends."""
        if self.phase is Phase.DONE:
            return []
        best = self._best
        if best is None:
            needed, seen = steps_to_first_sample(self._settings), self._identifier.steps_seen
            self._say(messages.no_sample_text(needed=needed, seen=seen), level="warning")
        else:
            done, most = len(self.trials), self._settings.max_samples
            self._say(messages.unfinished_text(best, done=done, most=most, names=self._space.names))
        self._events.append(RunFinished(state=RunState.UNFINISHED, best=best))
        return self._take_events()

    @property
    def trials(self) -> list[Trial]:
        """Finished trials, by trial_id."""
        return self._search.trials if self._search is not None else []

    @property
    def steps_to_done(self) -> int:
        """Training steps until tuning is over, about, at most, unless the budget slows it down."""
        trials = self._settings.max_samples
        windows = trials - 1 + trials // REREAD_EVERY + 2 * MOST_PAIRS
        window = steps_per_sample(self._settings) + SETTLE_STEPS
        return steps_to_first_sample(self._settings) + windows * window

    # ---- start ----------------------------------------------------------------------------------

    def _new_search(self, operations: Sequence[tuple[str, int]]) -> Search:
        unused = without_operation(operations, {*self._fixed, *self._inert})
        for text in messages.frozen_text({}, unused):
            self._say(text)
        self._inert |= unused
        self._space = SearchSpace(
            self._default,
            frozen={*self._fixed, *self._inert},
            tensors=len(operations),
            payload=sum(size for _, size in operations),
        )
        for_proposals, for_pairs = np.random.SeedSequence(self.seed).spawn(2)
        self._pair_rng = np.random.default_rng(for_pairs)
        return Search(self._space, self._settings, rng=np.random.default_rng(for_proposals))

    def _replay(self, start: Replay) -> None:
        self._put_in_force(start.best.params)
        certified = start.certificate is not None and start.certificate.certified
        reason = "replayed from a finished run of this job"
        self._done(start.best, certified=certified, reason=reason)

    # ---- steps ----------------------------------------------------------------------------------

    def _observe(self, record: StepRecord) -> None:
        if self._identifier.add(record) and self.phase is not Phase.DONE:
            self._events.append(Identified(signature=record.signature))
        is_training = record.signature == self._identifier.signature
        if self._search is None or self.phase is Phase.DONE or not is_training:
            return
        is_default = self._in_force.of(record.epoch) == self._default
        self._account.book(record, is_default=is_default)
        if is_usable(record):
            self._take(record, self._search)

    def _take(self, record: StepRecord, search: Search) -> None:
        if self.phase is Phase.WARMUP:
            self._warmup.add(record)
            if self._warmup.is_over:
                self._explore(search)
        elif self._task is not None:
            self._read(record, self._task, search)

    def _read(self, record: StepRecord, task: Task, search: Search) -> None:
        task.window.add(record)
        is_trial = task.kind is SampleKind.SEARCH and task.trial_id > 0
        if is_trial and self._is_lost(record, task, search):
            self._finish_task(task, search, TrialState.ABANDONED)
        elif task.window.is_full:
            self._finish_task(task, search, TrialState.COMPLETE)

    def _is_lost(self, record: StepRecord, task: Task, search: Search) -> bool:
        """Return whether a trial is to end before its window is full."""
        if record.epoch != task.window.epoch:
            return False
        if record.count == 1 and record.exposed_us > task.limit_us:
            return True
        excess = step_us(record) - search.default.step_us
        if excess > 0 and self._account.allowance_us < STEPS_IN_FLIGHT * excess:
            return True  # the steps that come before a change takes effect would overdraw it
        return is_hopeless(task.window.judged, default=search.default, rival_us=task.rival_us)

    def _finish_task(self, task: Task, search: Search, state: TrialState) -> None:
        self._task = None
        reading = task.window.reading()
        if state is TrialState.ABANDONED and (change := self._in_force.fall_back()) is not None:
            self._events.append(change)
        if task.kind is SampleKind.CERTIFY:
            self._events.append(sample(task, reading))
            self._finish_arm(reading)
            return
        if task.params == self._default:
            if not search.trials:
                search.note_default(self._warmup.latest)
            search.add_default(reading)
            self._account.rebase(search.default)
        if task.kind is SampleKind.SEARCH:
            self._finish_trial(task, reading, search, state)
        elif search.add_reread(task.params, reading.score):
            self._events.append(sample(task, reading))
        self._advance(search)

    # ---- EXPLORE --------------------------------------------------------------------------------

    def _explore(self, search: Search) -> None:
        """Read the default: as trial 0, or once more in a resumed run."""
        self.phase = Phase.EXPLORE
        self._use_physics(search)
        kind = SampleKind.REREAD if search.trials else SampleKind.SEARCH
        self._run(self._default, kind=kind, trial_id=0)
        if not search.trials:
            search.request([self._default])

    def _use_physics(self, search: Search) -> None:
        readings = self._warmup.latest
        if self._settings.prior and self._operations and readings:
            prior = PhysicsPrior(
                self._operations, self._default, pool(readings), size=self._size, hosts=self._hosts
            )
            search.expect(prior)

    def _finish_trial(
        self, task: Task, reading: Reading, search: Search, state: TrialState
    ) -> None:
        trial = search.add_trial(task.params, reading=reading, state=state)
        text = messages.progress_text(
            trial,
            most=self._settings.max_samples,
            incumbent=search.incumbent,
            default=self._default,
            names=self._space.names,
        )
        self._events += [sample(task, reading), trial, Progress(text=text)]

    def _advance(self, search: Search) -> None:
        """Decide what to run next."""
        bound = headroom(search.default)
        if len(search.trials) == 1 and bound < WORTH_HAVING:
            reason = messages.headroom_reason(bound)
            self._finalise(search.trials[0], no_certificate(reason, bound=bound))
        elif search.is_exhausted or self._rests >= MOST_RESTS:
            self._read_contenders(search)
        elif search.plan is None:
            self._put_in_force(search.best.params)  # a late plan must not prolong a bad trial
            search.request()
        elif search.wants_default:
            self._run(self._default, kind=SampleKind.REREAD, trial_id=0)
        elif not self._can_pay(search.plan):
            self._rest(search)
        else:
            self._rest_allowance_us, self._rests = None, 0
            params = search.take_proposal()
            self._run(params, kind=SampleKind.SEARCH, trial_id=len(search.trials))

    def _can_pay(self, plan: Plan) -> bool:
        """Return whether the allowance covers the worst that the planned trial may cost."""
        if plan.proposal is None:
            return True
        ratio, window = plan.proposal.worst_ratio, steps_per_sample(self._settings) + SETTLE_STEPS
        price = float(price_steps(np.array([ratio]), window)[0])
        return self._account.allowance_steps >= price

    def _read_contenders(self, search: Search) -> None:
        """Read the settings that may be the best once more, then compare the best one."""
        trial = search.contender()
        if trial is None:
            self._certify(search)
        else:
            self._run(trial.params, kind=SampleKind.REREAD, trial_id=trial.trial_id)

    def _rest(self, search: Search) -> None:
        """Run one window that pays back what exploring has lost.

        Under the incumbent; but where a window of it has paid nothing back, its lead was luck, and
        the default, which always pays, takes over until the next trial.
        """
        self._rests += 1
        allowance, before = self._account.allowance_us, self._rest_allowance_us
        if before is None:
            self._rest_trial = search.best
            text = messages.rest_text(self._rest_trial.params, names=self._space.names)
            self._events.append(Progress(text=text))
        elif allowance <= before:
            self._rest_trial = search.trials[0]
        self._rest_allowance_us = allowance
        trial = self._rest_trial
        self._run(trial.params, kind=SampleKind.REREAD, trial_id=trial.trial_id)

    # ---- CERTIFY --------------------------------------------------------------------------------

    def _certify(self, search: Search) -> None:
        self.phase = Phase.CERTIFY
        incumbent = search.best
        if incumbent.trial_id == 0:
            reason = f"none of {len(search.trials) - 1} other settings beat the default"
            self._finalise(incumbent, no_certificate(reason, bound=0.0))
            return
        self._say(messages.certify_text(incumbent, names=self._space.names))
        self._comparison = Comparison(search.trials[0], incumbent, rng=self._pair_rng)
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
        self._events.append(
            Done(epoch=self._in_force.epoch, params=params, certified=certified, text=text)
        )

    def _end_at_once(self, reason: str) -> None:
        self.phase = Phase.DONE
        params = self._default.as_dict()
        text = f"autotune: {reason}"
        self._events.append(
            Done(epoch=self._in_force.epoch, params=params, certified=False, text=text)
        )

    # ---- small tools ----------------------------------------------------------------------------

    @property
    def _best(self) -> Trial | None:
        return self._search.best if self._search is not None and self._search.trials else None

    def _put_in_force(self, params: CommParams, *, limit_us: float | None = None) -> bool:
        """Emit ``Apply`` unless ``params`` are in force; return whether that was needed."""
        best = self._best
        known = best.params if best is not None else None
        change = self._in_force.change(params, known=known, limit_us=limit_us)
        if change is not None:
            self._events.append(change)
        return change is not None

    def _run(
        self, params: CommParams, *, kind: SampleKind, trial_id: int, pair: int | None = None
    ) -> None:
        search, limit, rival = self._search, math.inf, math.inf
        if search is not None and kind is SampleKind.SEARCH and trial_id > 0:
            limit = STOP_RATIO * search.default.step_us
            rival = search.default.step_us / (1 + search.incumbent.gain)
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

    def _say(self, text: str, *, level: str = "info") -> None:
        self._events.append(Line(text=text, level=level))

    def _take_events(self) -> list[Event]:
        events, self._events = self._events, []
        return events


def without_operation(
    operations: Sequence[tuple[str, int]], frozen: Collection[str]
) -> dict[str, str]:
    """Return {parameter: reason} of those not ``frozen`` whose operation no training step uses."""
    used = {operation for operation, _ in operations}
    serves = {"hierarchical_allreduce": "allreduce", "hierarchical_allgather": "allgather"}
    return {
        name: f"a training step of this job has no {operation}"
        for name, operation in serves.items()
        if name not in frozen and operation not in used
    }
