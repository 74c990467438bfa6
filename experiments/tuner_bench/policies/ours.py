"""Ours: the real ``autotune.tuning.tuner.Tuner``, driven as the service and the runtime drive it.

Time is simulated, and with it what the real one costs: records travel every 50 ms, a planned
setting is known some time after it was asked for, in which the job may be slower (both are of the
job's kind), and a change takes effect one step after it was sent.
"""

from __future__ import annotations

import collections
import math

import numpy as np
from claims import STANDING, TRIAL, Claim
from job import Job

from autotune.service.epochs import Change, EpochLedger
from autotune.storage.contract import Fresh
from autotune.trial import Certificate, CommParams, Gain, Sample, SampleKind, Trial, TrialState
from autotune.tuning import messages
from autotune.tuning.changes import Apply, Done, Line, Progress
from autotune.tuning.events import Event, Identified, Plan
from autotune.tuning.steps.records import StepRecord, TunerSettings
from autotune.tuning.tuner import Phase, Tuner
from policies.ending import Ending

DRAIN_US = 50_000.0
MOST_STEPS = 20_000
IDLE_STEPS = 20
"""Steps that are made at once when the tuner is done."""
TRAINING = 7


class Driver:
    """One tuning run.

    Attributes:
        trials: Those that have ended.
        drifts: Steps at which the tuner found that the job has changed since it was tuned.
        certificate: Of the latest comparison; None: there was none.
        settled: Step of the latest change of the parameters.
    """

    def __init__(self, job: Job, seed: int, *, prior: bool = True) -> None:
        self._job = job
        self._tuner = Tuner(
            settings=TunerSettings(seed=seed, prior=prior),
            seed=seed,
            size=job.surface.size,
            inert=job.surface.inert,
            hosts=job.surface.hosts,
            oversubscribed=job.kind.oversubscribed,
        )
        self._epochs = EpochLedger(job.params.as_dict())
        self._applies: collections.deque[tuple[int, Apply]] = collections.deque()
        self._plan: tuple[float, Plan] | None = None
        self._plans = 0
        self._records: list[StepRecord] = []
        self._drained_us = 0.0
        self._windows = 0
        self.trials: list[Trial] = []
        self.drifts: list[int] = []
        self.settled = 0
        self._said: CommParams | None = None
        self.certificate: Certificate | None = None
        self._done: Done | None = None

    def run(self) -> Ending:
        self._job.recommend(self._job.params)
        self._take(self._tuner.open())
        while self._done is None and self._job.steps < MOST_STEPS:
            self._step()
        while self._applies:
            self._put(self._applies.popleft()[1])
        if self._done is None:
            return Ending(
                params=self._job.params,
                trials=len(self.trials),
                windows=self._windows,
                finished=False,
            )
        params = CommParams.from_dict(self._done.params)
        self._job.recommend(params)
        certified = self.certificate is not None and self._done.certified
        gain = self.certificate.gain if certified and self.certificate else 0.0
        return Ending(
            params=params,
            trials=len(self.trials),
            windows=self._windows,
            gain=gain,
            certified=certified,
        )

    def look_after(self, steps: int) -> None:
        """Go on for so many steps, whatever the tuner does in them."""
        end = self._job.steps + steps
        while self._job.steps < end:
            is_idle = self._tuner.phase is Phase.DONE and not self._applies and not self._records
            self._step(min(end - self._job.steps, IDLE_STEPS) if is_idle else 1)

    @property
    def kept(self) -> CommParams | None:
        """The setting that the tuning ended with; None: it has not ended."""
        return None if self._done is None else CommParams.from_dict(self._done.params)

    def _step(self, count: int = 1) -> None:
        """Make a step; or some, between which nothing is expected to happen."""
        while self._applies and self._applies[0][0] <= self._job.steps:
            self._put(self._applies.popleft()[1])
        number = self._job.steps
        times = self._job.run(count)
        payload, epoch = self._job.payload_bytes, self._epochs.epoch
        self._records += [
            StepRecord(
                step=number + k,
                count=1,
                duration_us=float(times[k]),
                payload_bytes=payload,
                exposed_us=float(self._job.exposed_us[k]),
                epoch=epoch,
                signature=TRAINING,
            )
            for k in range(count)
        ]
        self._make(self._epochs.observe(self._records[-1:]))
        if self._job.now_us - self._drained_us >= DRAIN_US:
            self._drained_us = self._job.now_us
            records, self._records = self._records, []
            self._take(self._tuner.observe(records))
        if self._plan is not None and self._job.now_us >= self._plan[0]:
            plan, self._plan = self._plan[1], None
            self._take(self._tuner.accept(plan))

    def _put(self, message: Apply) -> None:
        """A message of the tuner arrives."""
        change = self._epochs.take(message)
        if change is None:
            return
        self.settled = self._job.steps
        self._make(change)
        self._job.recommend(CommParams.from_dict(self._epochs.safe))

    def _make(self, change: Change | None) -> None:
        if change is not None:
            self._job.put(CommParams.from_dict(change.params))

    def _take(self, events: list[Event]) -> None:
        for event in events:
            self._take_one(event)
        if events and self.trials:
            self._note_standing(after_trial=any(isinstance(event, Trial) for event in events))
        work = self._tuner.work()
        if work is not None:
            kind = self._job.kind
            latency = kind.plan_s if self._plans else kind.first_plan_s
            self._plans += 1
            self._job.plan_for(latency)
            self._plan = (self._job.now_us + 1e6 * latency, work())

    def _take_one(self, event: Event) -> None:
        match event:
            case Apply():
                self._applies.append((self._job.steps + 1, event))
            case Identified():
                self.trials = []
                start = Fresh(memory=() if event.retune else self._job.memory)
                self._take(self._tuner.begin(self._job.surface.operations, start))
            case Progress(text=text) | Line(text=text) if text.startswith(messages.DRIFT):
                self.drifts.append(self._job.steps)
            case Trial():
                self.trials.append(event)
                self._note_trial(event)
                if event.state is TrialState.ABANDONED:
                    surface = self._job.surface
                    excess = surface.truth(event.params).step_us - surface.default_us
                    self._job.abandoned.append((self._job.steps, max(0.0, excess)))
            case Sample(kind=SampleKind.CERTIFY):
                self._windows += 1
            case Certificate():
                self.certificate = event
            case Done():
                self._done = event

    def _note_trial(self, trial: Trial) -> None:
        """What a trial's line says: its gain, or without one what its score comes to."""
        if trial.trial_id > 0 and trial.state is not TrialState.REJECTED:
            self._note(TRIAL, trial, trial.gain, otherwise=self._ratio(trial))

    def _note_standing(self, *, after_trial: bool) -> None:
        """What is said of the best so far: after each trial, and whenever it is another one."""
        gain: Gain | None = None
        otherwise = math.nan
        if hasattr(self._tuner, "standing"):
            standing = self._tuner.standing
            best = standing.best if standing is not None else None
            gain = standing.gain if standing is not None else None
        else:
            best = self._tuner.best
            otherwise = self._ratio(best) if best is not None else math.nan
        if best is None or (best.params == self._said and not after_trial):
            return
        self._said = best.params
        if best.trial_id > 0:
            self._note(STANDING, best, gain, otherwise=otherwise)

    def _note(self, line: str, trial: Trial, gain: Gain | None, *, otherwise: float) -> None:
        surface = self._job.surface
        true = surface.default_us / surface.truth(trial.params).step_us - 1
        state = str(trial.state)
        claim = Claim.of(
            gain, line=line, trial=len(self.trials), state=state, true=true, otherwise=otherwise
        )
        self._job.claims.append(claim)

    def _ratio(self, trial: Trial) -> float:
        return trial.score / self.trials[0].score - 1


def run(job: Job, rng: np.random.Generator, *, prior: bool = True) -> Ending:
    """Tune ``job`` to the end; without the ``prior`` the tuner's cost model is off."""
    ending = Driver(job, int(rng.integers(2**31)), prior=prior).run()
    assert ending.gain is None or math.isfinite(ending.gain)
    return ending
