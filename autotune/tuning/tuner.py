"""The tuner's state machine: WARMUP -> EXPLORE -> CERTIFY -> DONE. No clock, no files, no threads.

Where a job has changed after DONE it begins again with WARMUP. Its driver, the service, feeds it
with finished steps; it answers with events, in the order in which they have to take effect:

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

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from autotune.bayes import SearchSpace
from autotune.space import Table, Value
from autotune.storage.contract import Fresh, Replay, Resume, Start
from autotune.trial import CommParams, RunState, Setting, Standing, Trial
from autotune.tuning import messages
from autotune.tuning.aftercare import Aftercare, Verdict
from autotune.tuning.budget import Account
from autotune.tuning.changes import Done, Progress
from autotune.tuning.comparing.certify import ALPHA
from autotune.tuning.events import Event, Events, Identified, Plan, Rejection, RunFinished
from autotune.tuning.exploring.explore import WORTH_HAVING
from autotune.tuning.exploring.memory import Recollection, moved
from autotune.tuning.exploring.planning import Planning
from autotune.tuning.exploring.search import Search
from autotune.tuning.inforce import InForce
from autotune.tuning.job import Job
from autotune.tuning.run import Phase, Run
from autotune.tuning.steps.identify import Identifier
from autotune.tuning.steps.normalise import Normaliser
from autotune.tuning.steps.records import ResultCheck, StepRecord, TunerSettings
from autotune.tuning.steps.scoring import is_usable, pool
from autotune.tuning.steps.warmup import Warmup, default_steps, window_steps

__all__ = ["WORTH_HAVING", "Phase", "Tuner"]

MOST_RETUNES = 3
"""Times that a job may be tuned again because it has changed."""


class Tuner:
    """One job's tuning, from its first step to its end.

    It finds out what a training step is, warms up, follows one ``Run`` after the other (a new one
    where the job has changed), and looks after what the latest one has kept. Which setting is in
    force in which epoch, and what exploring may still lose, last as long as the job.

    Attributes:
        phase: Where it is.
        seed: Seed of proposals and pair orders (a resumed run keeps its own).
    """

    def __init__(
        self,
        *,
        settings: TunerSettings,
        seed: int,
        size: int,
        fixed: Mapping[str, Value] | None = None,
        inert: Mapping[str, str] | None = None,
        hosts: int = 1,
        oversubscribed: bool = False,
        baseline: Setting | None = None,
    ) -> None:
        """Prepare a run.

        Args:
            settings: ``HOROVOD_AUTOTUNE_*``.
            seed: Makes proposals and pair orders reproducible.
            size: Ranks of the job.
            fixed: Parameters that the user set explicitly, with their values.
            inert: Parameters that cannot matter in this job, with the reason.
            hosts: Hosts they are on.
            oversubscribed: Ranks fill the cores: steps made while a plan is computed are not
                scored, and a plan proposes two settings.
            baseline: What the job starts with where the user fixes nothing; its kind says which
                table is tuned. None: the default of the runtime ``horovod``.

        Raises:
            InvalidSettingError: A fixed value is outside its parameter's domain.
        """
        self.phase = Phase.WARMUP
        self.seed = seed
        self._settings = settings
        self._job = job = Job(
            size=size,
            hosts=hosts,
            oversubscribed=oversubscribed,
            fixed=dict(fixed or {}),
            inert=dict(inert or {}),
            baseline=baseline or CommParams(),
        )
        self._default, self._space = job.default, job.space
        self._unused: dict[str, str] = {}
        self._events = Events()
        self._identifier, self._normaliser = Identifier(), Normaliser()
        self._warmup = Warmup(settings)
        table = self._default.table
        self._account = Account(
            settings.budget, change_steps=table.change_steps, change_price=table.change_price
        )
        self._in_force = InForce(self._default)
        self._planning = Planning()
        self._operations: Sequence[tuple[str, int]] = ()
        self._run: Run | None = None
        self._is_length_told = False
        self._retunes = 0
        self._compared = 0  # comparisons that earlier jobs of this log began
        self._wrong: list[Setting] = []
        self._earlier: tuple[list[Trial], Setting] | None = None
        self._kept: Trial | None = None
        self._aftercare: Aftercare | None = None

    # ---- what the driver calls ------------------------------------------------------------------

    def open(self) -> list[Event]:
        """Return what can be said before the first step: what is tuned, or that nothing is."""
        for text in messages.frozen_text(self._job.fixed, self._job.inert, self._table):
            self._events.say(text)
        if self._job.size == 1:
            self._end_at_once("nothing to tune: the job has one rank and does not communicate")
        elif self._space.size == 1:
            self._end_at_once("nothing to tune: every parameter is set explicitly or cannot matter")
        else:
            self._events.say(messages.start_text(self._settings))
        return self._events.take()

    def rule_out(self, reasons: Mapping[str, str]) -> list[Event]:
        """Do not explore these parameters; what begins later heeds it, a run that is under way not.

        Args:
            reasons: {parameter name: reason}.
        """
        fresh = {name: why for name, why in reasons.items() if name not in self._job.frozen}
        self._job = replace(self._job, inert={**self._job.inert, **fresh})
        if self._run is None:
            self._space = self._job.space
        for text in messages.frozen_text({}, fresh, self._table):
            self._events.say(text)
        return self._events.take()

    def observe(self, records: Sequence[StepRecord], *, disturbed: bool = False) -> list[Event]:
        """Take finished steps, in order.

        Args:
            records: The steps.
            disturbed: The driver itself kept the cores busy meanwhile: they are counted, not read.
        """
        for record in records:
            if record.count > 0:
                self._observe(record, disturbed=disturbed)
        self._complain()
        return self._events.take()

    def wait(self, seconds: float, *, communicates: bool = False) -> list[Event]:
        """Take note that no step has ended for ``seconds``, as ``Identifier.wait``."""
        self._identifier.wait(seconds, communicates=communicates)
        self._complain()
        return self._events.take()

    def begin(self, operations: Sequence[tuple[str, int]], start: Start) -> list[Event]:
        """Start after ``Identified``.

        Args:
            operations: (operation, payload bytes) of one training step; empty: unknown.
            start: What the trial log holds about this job.
        """
        if isinstance(start, Replay):
            self._replay(start)
            return self._events.take()
        if isinstance(start, Resume):
            self.seed, self._compared = start.seed, start.comparisons
        self._operations, self._is_length_told = operations, False
        self._space = self._space_of(operations)
        memory = self._recollection(start)
        self._run = self._new_run(memory)
        if memory is not None:
            self._warmup.shorten()
        if isinstance(start, Resume):
            self._run.search.findings.carry_over(start)
        for params in self._wrong:
            if moved(params, self._space) == params:
                self._events.add(*self._run.reject(params))
        if self._space.size == 1:
            self._end_at_once("nothing to tune: all settings behave alike in this job")
        self._explore_if_ready()
        return self._events.take()

    def work(self) -> Callable[[], Plan] | None:
        """Return something to compute and to hand to ``accept``, or None; each is returned once."""
        work = self._run.work() if self._run is not None else None
        if work is not None:
            self._planning.handed_out()
        return work

    def accept(self, plan: Plan) -> list[Event]:
        """Take what the last ``work`` computed."""
        self._say_trouble(plan.trouble)
        is_wanted = self._planning.came_back(plan)
        if is_wanted and self._run is not None and self.phase is Phase.EXPLORE:
            self._follow(self._run, self._run.accept(plan))
        return self._events.take()

    def check(self, check: ResultCheck) -> list[Event]:
        """Take the verdict on a result; a setting whose results are wrong is given up."""
        params = self._in_force.of(check.epoch)
        if not check.ok and params is not None:
            level = "warning" if check.reason else "error"
            text = messages.wrong_text(check, params, default=self._default)
            self._events.say(text, level=level)
            if params != self._default:
                self._give_up(params, check.reason or "its results were wrong")
        return self._events.take()

    def finish(self) -> list[Event]:
        """Say where the run stands when the job ends; what is proven by then is its result."""
        run = self._run
        if self.phase is Phase.DONE:
            return []
        if run is not None:
            events = run.conclude()
            if run.outcome is not None:
                self._follow(run, events)
                return self._events.take()
        standing = self.standing
        if standing is None:
            seen, more = self._identifier.observed, self._steps_to_first_sample
            is_known = self._warmup.step_us is not None
            text = messages.no_sample_text(seen, self._table, more=more, is_known=is_known)
            self._events.say(text, level="warning")
        else:
            text = messages.unfinished_text(
                standing,
                done=len(self.trials),
                most=self._settings.max_samples,
                pairs=run.pairs_compared if run is not None else 0,
                names=self._space.names,
            )
            self._events.say(text)
        self._events.add(RunFinished(state=RunState.UNFINISHED, best=self._best))
        return self._events.take()

    @property
    def trials(self) -> list[Trial]:
        """Finished trials, by trial_id."""
        return self._run.trials if self._run is not None else []

    @property
    def standing(self) -> Standing | None:
        """What is held for the best so far, by all that is known; None: there is no trial."""
        return self._run.standing if self._run is not None else None

    @property
    def _table(self) -> Table:
        return self._default.table

    @property
    def _best(self) -> Trial | None:
        standing = self.standing
        return standing.best if standing is not None else None

    @property
    def steps_to_done(self) -> int | None:
        """Training steps until tuning is over, about, at most; None: not known yet."""
        run = self._run
        if run is None or not run.trials or not run.default.steps:
            return None
        return run.search.steps_to_done(run.default.step_us)

    @property
    def _steps_to_first_sample(self) -> int | None:
        """Training steps that the first sample still needs, about; None: none was recognised."""
        if self._identifier.signature is None:
            return None
        step_us = self._warmup.step_us
        present = self._run.steps_left(step_us) if self._run is not None else None
        if present is not None:
            return present
        wanted = self._settings.warmup_samples
        own = 0 if wanted is None else default_steps(window_steps(self._settings, step_us))
        return max(1, self._warmup.steps_left + own)

    # ---- start ----------------------------------------------------------------------------------

    def _recollection(self, start: Start) -> Recollection | None:
        """Return what is remembered of a job that resembles this one; says where it comes from."""
        space = self._space
        if self._earlier is not None:
            trials, best = self._earlier
            trials = [trial for trial in trials if trial.params not in self._wrong]
            text = "this one, before it changed"
            return Recollection.of_trials(trials, best, space, text=text)
        if not isinstance(start, Fresh):
            return None
        known = (Recollection.of(memory, space) for memory in start.memory)
        found = next((memory for memory in known if memory is not None), None)
        kept = next((memory for memory in start.memory if memory.ended_with_default), None)
        if found is not None:
            self._events.say(messages.memory_text(found, names=space.names))
        elif kept is not None:
            self._events.say(messages.default_kept_text(kept))
        return found

    def _space_of(self, operations: Sequence[tuple[str, int]]) -> SearchSpace:
        """Return the settings for these training steps; says what they do not use."""
        unused = self._job.unused(operations)
        fresh = {name: why for name, why in unused.items() if name not in self._unused}
        for text in messages.frozen_text({}, fresh, self._table):
            self._events.say(text)
        self._unused = unused
        return self._job.space_of(operations)

    def _new_run(self, memory: Recollection | None) -> Run:
        seeds = np.random.SeedSequence([self.seed, self._retunes] if self._retunes else self.seed)
        for_proposals, for_pairs = seeds.spawn(2)
        rng = np.random.default_rng(for_proposals)
        return Run(
            Search(
                self._space,
                self._settings,
                rng=rng,
                proposals_per_plan=2 if self._job.oversubscribed else 1,
                recollection=memory,
            ),
            settings=self._settings,
            account=self._account,
            in_force=self._in_force,
            rng=np.random.default_rng(for_pairs),
            # It adds up to ALPHA however often the job retunes or is resumed.
            alpha=ALPHA / 2 ** (self._retunes + self._compared + 1),
            sparing=self._job.sparing(self._operations, self._space),
        )

    def _explore_if_ready(self) -> None:
        run = self._run
        is_ready = self.phase is Phase.WARMUP and self._warmup.is_over
        if run is None or not is_ready:
            return
        self.phase = Phase.EXPLORE
        windows = self._warmup.latest
        if self._settings.prior and self._operations and windows:
            reading = pool([window.reading() for window in windows])
            trend = self._job.trend(self._operations, reading)
            if trend is not None:
                run.search.findings.expect(trend)
        self._follow(run, run.start(windows))

    # ---- steps ----------------------------------------------------------------------------------

    def _observe(self, record: StepRecord, *, disturbed: bool) -> None:
        if self._identifier.add(record):
            self._learn_job()
        for step in self._identifier.completed:
            self._observe_training(step, disturbed=disturbed)

    def _learn_job(self) -> None:
        """Begin with the training step that became known, or that has taken another one's place."""
        if self.phase is Phase.DONE:
            if self._kept is None:
                return  # there is nothing to tune, whatever the steps are
            if self._kept.params != self._default:
                self._fall_to_default("the training step is another one now")
            self._retune(messages.ANOTHER_STEP)
            return
        if self._run is not None:
            self._events.add(RunFinished(state=RunState.UNFINISHED, best=self._best))
        if self.phase is Phase.WARMUP:
            self._start_over()
            return
        self._change_to(self._default)
        if self._retunes < MOST_RETUNES:
            self._retunes += 1
            self._events.say(messages.ANOTHER_STEP)
            self._start_over()
        else:
            self._run = None
            self._end_at_once("the default stays in force: the training step changes too often")

    def _start_over(self, *, retune: bool = False) -> None:
        """Read the training step from its beginning; the driver answers with ``begin``."""
        signature = self._identifier.signature
        assert signature is not None
        self._planning.drop()
        is_same_job = retune and self._kept is not None and self._kept.params != self._default
        best = self._kept.params if self._kept is not None else self._default
        self._earlier = (self.trials, best) if is_same_job else None
        self._run, self.phase = None, Phase.WARMUP
        self._account.settle()
        self._kept = self._aftercare = None
        self._normaliser = Normaliser()
        self._warmup = Warmup(self._settings, epoch=self._in_force.epoch)
        parts = self._identifier.parts
        # What the driver has not heard of yet is answered no more: the steps have changed since.
        self._events.withdraw_requests()
        self._events.add(Identified(signature=signature, parts=parts, retune=retune))

    def _complain(self) -> None:
        """Say why the job is not tuned, when it has gone on for long without a training step."""
        if self.phase is Phase.WARMUP and (seen := self._identifier.complaint()) is not None:
            why = messages.not_recognised_text(seen, self._table)
            text = f"autotune: not tuned so far: {why}"
            self._events.say(text, level="warning" if seen.steps else "info")

    def _observe_training(self, record: StepRecord, *, disturbed: bool) -> None:
        record = self._normaliser.normalised(record)
        if self.phase is Phase.DONE:
            self._account.book(record, is_default=True)  # what was kept loses nothing
            self._look_after(record)
        elif self._run is not None:
            is_default = self._in_force.of(record.epoch) == self._default
            self._account.book(record, is_default=is_default)
            if is_usable(record):
                self._take(record, self._run, disturbed=disturbed)

    def _take(self, record: StepRecord, run: Run, *, disturbed: bool) -> None:
        if self.phase is not Phase.WARMUP:
            planning = self._planning.may_have_disturbed()
            disturbed = disturbed or (self._job.oversubscribed and planning)
            self._follow(run, run.read(record, disturbed=disturbed))
            return
        if not disturbed:
            self._warmup.add(record)
        self._explore_if_ready()
        if self.phase is Phase.WARMUP and self._warmup.has_news():
            text = messages.warmup_text(self._settings, steps=self._steps_to_first_sample or 0)
            self._events.add(Progress(text=text))

    def _follow(self, run: Run, events: list[Event]) -> None:
        """Pass on what the run has to tell, and see how far it has come."""
        self._say_trouble(run.search.findings.trouble)
        self._events.add(*events)
        self.phase = run.phase
        if run.outcome is None:
            self._tell_length(run)
            return
        best, certificate = run.outcome.best, run.outcome.certificate
        self._events.add(certificate, RunFinished(state=RunState.DONE, best=best))
        disturbed = run.disturbed_steps
        reason = messages.reason_text(certificate, self._account, disturbed=disturbed)
        self._done(best, certified=certificate.certified, reason=reason)

    def _tell_length(self, run: Run) -> None:
        """Say how long it will take, once, when the default was read."""
        steps = self.steps_to_done
        if steps is None or self._is_length_told or self._settings.max_samples < 2:
            return
        self._is_length_told = True
        self._events.say(messages.length_text(run.default.step_us, steps=steps))

    def _give_up(self, params: Setting, why: str) -> None:
        """Never use a setting again, whatever is in force by now."""
        self._wrong.append(params)
        if self.phase is Phase.DONE:
            if self._kept is not None and self._kept.params == params:
                self._events.add(Rejection(trial=self._kept.rejected))
                self._fall_to_default(why)
        elif self._run is not None:
            events = self._run.reject(params)
            if self.phase is not Phase.WARMUP:
                self._follow(self._run, events)
            else:
                self._events.add(*events)

    # ---- DONE -----------------------------------------------------------------------------------

    def _replay(self, start: Replay) -> None:
        self._change_to(start.best.params)
        certified = start.certificate is not None and start.certificate.certified
        reason = "replayed from a finished run of this job"
        self._done(start.best, certified=certified, reason=reason)

    def _done(self, best: Trial, *, certified: bool, reason: str) -> None:
        self.phase = Phase.DONE
        self._kept = best
        self._aftercare = Aftercare(
            best,
            self._default,
            settings=self._settings,
            in_force=self._in_force,
            rng=np.random.default_rng([self.seed, 1 + self._retunes]),
            may_retune=self._retunes < MOST_RETUNES,
            readings=self._run.readings(best.params) if self._run is not None else (),
        )
        text = messages.result_text(best, reason=reason, names=self._space.names)
        params, epoch = best.params.as_dict(), self._in_force.epoch
        self._events.add(Done(epoch=epoch, params=params, certified=certified, text=text))

    def _end_at_once(self, reason: str) -> None:
        self.phase = Phase.DONE
        params, epoch = self._default.as_dict(), self._in_force.epoch
        text = f"autotune: {reason}"
        self._events.add(Done(epoch=epoch, params=params, certified=False, text=text))

    def _look_after(self, record: StepRecord) -> None:
        """After DONE: see whether the result still holds."""
        if self._aftercare is None or not is_usable(record):
            return
        events, verdict = self._aftercare.read(record)
        self._events.add(*events)
        if verdict is Verdict.NO_BETTER:
            self._fall_to_default("the job has changed and the default does as well or better")
        if verdict is not None:
            self._retune()

    def _fall_to_default(self, why: str) -> None:
        self._change_to(self._default)
        default = Trial(trial_id=0, params=self._default, score=0.0)
        self._done(default, certified=False, reason=f"the tuned setting was given up: {why}")

    def _retune(self, why: str = messages.RETUNE) -> None:
        """Tune again, unless that is too often; the driver answers with ``begin``."""
        if self._retunes >= MOST_RETUNES:
            self._aftercare = None
            return
        self._retunes += 1
        self._events.say(why)
        self._change_to(self._default)
        self._start_over(retune=True)

    # ---- small tools ----------------------------------------------------------------------------

    def _say_trouble(self, trouble: str | None) -> None:
        if trouble is not None and self._planning.is_new(trouble):
            self._events.say(messages.trouble_text(trouble), level="warning")

    def _change_to(self, params: Setting) -> None:
        self._events.add(self._in_force.change(params, known=params))
