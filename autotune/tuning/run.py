"""One run: EXPLORE, then CERTIFY. No clock, no files, no threads.

A ``Run`` is fed with the training steps and appends events to a list that its ``Tuner`` hands on.
It ends with an ``outcome``: the trial that stays in force, and the certificate that says why.

EXPLORE reads every setting between two windows of the default (see ``brackets``)::

    default | setting A | default | setting B | default | ...

Plans are computed while the default is in force: that costs the budget nothing, and whatever
planning takes from the training is taken from no setting's reading.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from autotune.trial import (
    Certificate,
    CommParams,
    Sample,
    SampleKind,
    Standing,
    Trial,
    TrialState,
)
from autotune.tuning import messages
from autotune.tuning.brackets import Bracket, LogRatio, Noise
from autotune.tuning.budget import STOP_RATIO, Account, price_steps
from autotune.tuning.certify import (
    ALPHA,
    PRECISE,
    PRECISE_ENOUGH,
    PairedTest,
    no_certificate,
)
from autotune.tuning.changes import Line, Progress
from autotune.tuning.events import Event, Plan
from autotune.tuning.inforce import InForce
from autotune.tuning.pairs import PairedWindows
from autotune.tuning.records import StepRecord, TunerSettings
from autotune.tuning.scoring import (
    CORRELATED,
    MIN_WINDOW_US,
    SETTLE_STEPS,
    Reading,
    Window,
    headroom,
    is_hopeless,
    pool,
    step_us,
)
from autotune.tuning.search import Search
from autotune.tuning.warmup import DEFAULT_SHARE, default_steps, steps_per_sample

WORTH_HAVING = 0.01
"""Gains below this are not worth tuning for."""
STEPS_IN_FLIGHT = 2
"""Steps that are still made under a setting after it was given up, at most."""
MOST_RESTS = 60
"""Windows in a row that wait for the budget, until exploring ends for want of it."""
MOST_WAITING = 3
"""Windows of the default that wait for a plan before the trial before them is finished without."""
MOST_ATTEMPTS = 3
"""Readings of one trial: a change of speed in the middle of one has it taken again."""
WORTH_REPEATING = 2.0
"""A reading is taken again when it is so many times as uncertain as a typical one."""
FINE, LONGEST = 0.08, 4.0
"""Windows grow, up to so many times, where a reading would be noisier than this."""
CLIP_SIGMA, SMALLEST_CLIP = 4.0, 0.15
"""A pair's log ratio counts in the certificate up to so many standard deviations, or so much."""
PAIR_SHARE = 0.5
"""Length of a window of a pair over that of a trial: short ones follow a changing speed better."""


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


@dataclass(kw_only=True)
class Attempt:
    """A setting under evaluation.

    Attributes:
        params: The setting.
        trial: Its trial, where it is read once more; None: a new one.
        window: Its window.
        limit_us: Longest time that a step of it may wait for communication.
        bracket: What its first edge says, once its window has ended.
        was_cut: Its window ended early.
        count: Which attempt this is, from 1 on.
    """

    params: CommParams
    trial: Trial | None
    window: Window
    limit_us: float
    bracket: Bracket | None = None
    was_cut: bool = False
    count: int = 1


@dataclass(kw_only=True)
class Default:
    """The default's windows in EXPLORE.

    Attributes:
        epoch: Of the latest one.
        window: The present one, or None while a trial is in force.
        before: The latest one that ended.
        readings: Of all of them.
    """

    epoch: int = -1
    window: Window | None = None
    before: list[StepRecord] = field(default_factory=list)
    readings: list[Reading] = field(default_factory=list)

    @property
    def reading(self) -> Reading:
        """The latest readings as one."""
        return pool(self.readings[-2:])


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
        self._params, self._names = search.space.default, search.space.names
        self._noise, self._default = Noise(), Default()
        self._attempt: Attempt | None = None
        self._pairs: PairedWindows | None = None
        self._inert: list[str] = []
        self._next: tuple[CommParams, Trial | None, float] | None = None
        self._rests = 0

    @property
    def phase(self) -> Phase:
        """Where the run is."""
        return Phase.EXPLORE if self._pairs is None else Phase.CERTIFY

    @property
    def standing(self) -> Standing | None:
        """What is held for the best so far, if there is any trial."""
        return self.search.standing

    @property
    def default(self) -> Reading:
        """What the default does now."""
        return self._default.reading

    def steps_left(self, step_us: float | None) -> int | None:
        """Return the training steps that the present window still needs, about; None: no window.

        Args:
            step_us: Time of a step; None: not known, and the fewest steps are returned.
        """
        window = self._default.window
        return window.steps_left(step_us) if window is not None else None

    # ---- what the tuner calls -------------------------------------------------------------------

    def start(self, earlier: list[Window]) -> None:
        """Begin with the default, which is in force.

        Args:
            earlier: The latest windows of the default before the run.
        """
        self._default.epoch = self._in_force.epoch
        for window in earlier:
            self._take_default(window)
        if self._default.readings and not self.search.trials:
            self._add_default()
        if self._ends_for_want_of_headroom():
            return
        if self.search.trials:  # what to try is only known beside the default
            self.search.request()
        self._read_default()

    def read(self, record: StepRecord, *, disturbed: bool = False) -> None:
        """Take a usable training step; a disturbed one says nothing about the setting in force."""
        if self._pairs is not None:
            self._read_pairs(record, self._pairs)
        elif self._default.window is not None:
            if disturbed:
                self.disturbed_steps += record.count
            else:
                self._default.window.add(record)
            self._look_at_default(self._default.window)
        elif self._attempt is not None:
            self._read_attempt(record, self._attempt)

    def work(self) -> Callable[[], Plan] | None:
        """Return something to compute and to hand to ``accept``, or None; each is returned once."""
        return self.search.work()

    def accept(self, plan: Plan) -> None:
        """Take what the last ``work`` computed."""
        self.search.accept(plan)
        if self.phase is Phase.EXPLORE and self._default.window is not None:
            self._look_at_default(self._default.window)

    def reject(self, params: CommParams) -> None:
        """Drop a setting whose results are wrong, whatever it scores."""
        attempt, pairs = self._attempt, self._pairs
        if pairs is not None and pairs.incumbent.params == params:
            self.search.reject(params)
            reason = "default kept: the results of the incumbent were wrong"
            self._finalise(self.search.trials[0], self._no_certificate(reason, bound=0.0))
            return
        self.search.reject(params)
        if self._next is not None and self._next[0] == params:
            self._next, self._rests = None, 0
            self.search.request()
        if attempt is not None and attempt.params == params:
            self._attempt = None
            if attempt.trial is None:
                self._report(self.search.add_trial(params, state=TrialState.REJECTED))
            if self._default.window is None:
                self._take_back()
                self.search.request()
                self._read_default()

    # ---- the default ----------------------------------------------------------------------------

    def _read_default(self) -> None:
        """Begin a window of the default."""
        self._put_in_force(self._params)
        changed = self._in_force.epoch != self._default.epoch
        self._default.epoch = self._in_force.epoch
        self._default.window = Window(
            epoch=self._in_force.epoch,
            steps=self._default_steps,
            settle=SETTLE_STEPS if changed else 0,
            least_us=DEFAULT_SHARE * MIN_WINDOW_US,
        )

    def _look_at_default(self, window: Window) -> None:
        """See whether the default's window is full; it goes on while a plan is being computed."""
        if not window.is_full:
            return
        attempt, is_planned = self._attempt, not self.search.needs_plan
        if attempt is not None and attempt.bracket is not None:
            if is_planned or window.steps >= MOST_WAITING * self._default_steps:
                reading = attempt.bracket.closed(window.records)
                self._end_default(window)
                self._close(attempt, reading)
        elif is_planned or self._next is not None or not self.search.trials:
            self._end_default(window)
            self._advance()

    def _end_default(self, window: Window) -> None:
        """Take a window of the default that was read in EXPLORE."""
        self._take_default(window)
        reading, kind = self._default.readings[-1], SampleKind.REREAD
        self._events.append(sample(reading, trial_id=0, epoch=window.epoch, kind=kind))

    def _take_default(self, window: Window) -> None:
        reading = window.reading()
        self._default.before = list(window.records)
        self._default.readings.append(reading)
        self._noise.add(window.records)
        self._account.rebase(reading.step_us)
        self.search.noise = math.sqrt(self._typical_variance)

    def _add_default(self) -> None:
        reading = self._default.reading
        trial = self.search.add_default(reading.score)
        epoch = self._in_force.epoch
        self._events.append(sample(reading, trial_id=0, epoch=epoch, kind=SampleKind.SEARCH))
        self._report(trial)

    @property
    def _window_steps(self) -> int:
        """Steps of a trial's window: more of them where readings are noisy.

        Windows longer than the time between two jumps of the speed would be cut anyway.
        """
        steps = steps_per_sample(self._settings)
        most = max(min(LONGEST * steps, self._noise.steady_records / 2), steps)
        return math.ceil(min(max(self._fine_share * steps, steps), most))

    @property
    def _default_steps(self) -> int:
        """Steps of a window of the default."""
        return default_steps(self._window_steps)

    @property
    def _fine_share(self) -> float:
        steps = steps_per_sample(self._settings)
        return self._noise.variance(steps) * (1 + 0.5 / DEFAULT_SHARE) / FINE**2

    @property
    def _typical_variance(self) -> float:
        """Variance of the reading of a whole trial."""
        count = self._window_steps
        own = self._noise.variance(count) + self._noise.variance(2 * DEFAULT_SHARE * count)
        return own + self._noise.wander + self._noise.hidden

    # ---- trials ---------------------------------------------------------------------------------

    def _try(self, params: CommParams, trial: Trial | None = None, *, count: int = 1) -> None:
        """Begin a window of a setting."""
        default_us = self.default.step_us
        limit_us = STOP_RATIO * default_us
        self._put_in_force(params, limit_us=limit_us)
        self._default.window = None
        window = Window(epoch=self._in_force.epoch, steps=self._window_steps)
        self._attempt = Attempt(
            params=params, trial=trial, window=window, limit_us=limit_us, count=count
        )

    def _read_attempt(self, record: StepRecord, attempt: Attempt) -> None:
        window = attempt.window
        window.add(record)
        taken_back = self._in_force.fallback is not None and record.epoch == window.epoch + 1
        attempt.was_cut = taken_back or self._is_lost(record, attempt)
        if attempt.was_cut:
            self._take_back()
        if attempt.was_cut or window.is_full:
            self._end_attempt(attempt)

    def _is_lost(self, record: StepRecord, attempt: Attempt) -> bool:
        """Return whether a trial is to end before its window is full.

        It is slower than the default beyond noise, or the budget does not suffice.
        """
        if record.epoch != attempt.window.epoch:
            return False
        if record.exposed_us > attempt.limit_us * record.count:
            return True
        default = self.default
        # The steps that come before a change takes effect would overdraw the account. What a step
        # does beside waiting (an evaluation, a checkpoint) does not come again in the next one.
        waited = record.exposed_us / record.count - default.exposed_us / max(1, default.steps)
        excess = min(step_us(record) - default.step_us, waited)
        if excess > 0 and self._account.allowance_us < STEPS_IN_FLIGHT * excess:
            return True
        return is_hopeless(attempt.window.judged, default=default, rival_us=default.step_us)

    def _end_attempt(self, attempt: Attempt) -> None:
        """Close a trial's window; the default's, which follows, closes the bracket."""
        window = attempt.window
        records = window.records or window.judged or window.settled
        if not records:  # the runtime took it back before a step of it was seen
            self._give_up(attempt)
            return
        trial_id = len(self.search.trials) if attempt.trial is None else attempt.trial.trial_id
        kind = SampleKind.REREAD if attempt.trial else SampleKind.SEARCH
        reading = window.reading()
        self._events.append(sample(reading, trial_id=trial_id, epoch=window.epoch, kind=kind))
        if not attempt.was_cut:
            self._noise.add(window.records)
        most = self._window_steps
        attempt.bracket = Bracket(self._default.before, records, noise=self._noise, most=most)
        self.search.add_reading(attempt.params, attempt.bracket.half(), preliminary=True)
        if self.search.needs_plan:
            self.search.request()
        self._read_default()

    def _give_up(self, attempt: Attempt) -> None:
        """End a trial of which nothing could be read."""
        self._attempt = None
        self._take_back()
        if attempt.trial is None:
            self._report(self.search.add_trial(attempt.params, state=TrialState.REJECTED))
        self.search.request()
        self._read_default()

    def _close(self, attempt: Attempt, reading: LogRatio) -> None:
        """Take the reading of a whole bracket; take it again where it says too little."""
        search = self.search
        search.add_reading(attempt.params, reading, preliminary=False)
        if search.was_misled:
            search.was_misled = False
            self._say(messages.MEMORY_DROPPED)
        if self._is_to_be_repeated(attempt, reading):
            self._try(attempt.params, attempt.trial, count=attempt.count + 1)
            return
        self._attempt = None
        if attempt.trial is None:
            is_slower = attempt.was_cut and search.is_slower(attempt.params)
            state = TrialState.ABANDONED if is_slower else TrialState.COMPLETE
            self._report(search.add_trial(attempt.params, state=state))
        if search.needs_plan:
            self._read_default()
        else:
            self._advance()

    def _is_to_be_repeated(self, attempt: Attempt, reading: LogRatio) -> bool:
        """Return whether a change of speed has spoilt a reading that could matter."""
        gain = self.search.gain(attempt.params)
        if attempt.count >= MOST_ATTEMPTS or gain is None or gain.high <= 0:
            return False
        if not self._can_pay(math.exp(-reading.mean)):
            return False
        is_vague = reading.variance > WORTH_REPEATING**2 * self._typical_variance
        return is_vague or attempt.was_cut

    def _take_back(self) -> None:
        if (change := self._in_force.fall_back()) is not None:
            self._events.append(change)

    def _put_in_force(self, params: CommParams, *, limit_us: float | None = None) -> None:
        """Emit ``Apply`` unless ``params`` are in force."""
        standing = self.standing
        is_known = standing is not None and standing.proven
        known = standing.best.params if standing is not None and is_known else self._params
        change = self._in_force.change(params, known=known, limit_us=limit_us)
        if change is not None:
            self._events.append(change)

    def _report(self, trial: Trial) -> None:
        standing = self.standing
        assert standing is not None
        text = messages.progress_text(
            trial, most=self._settings.max_samples, standing=standing, names=self._names
        )
        self._events += [trial, Progress(text=text)]

    # ---- EXPLORE --------------------------------------------------------------------------------

    def _advance(self) -> None:
        """Decide what to do after a window of the default."""
        search = self.search
        if not search.trials:
            self._add_default()
        if len(self._default.readings) == 1 and self._ends_for_want_of_headroom():
            return
        if self._rests >= MOST_RESTS:
            self._certify()
        elif self._next is not None:
            self._try_or_rest(*self._next)
        elif search.is_exhausted:
            self._read_contenders()
        elif search.plan is None:
            search.request()
            self._read_default()
        elif (trial := search.to_confirm()) is not None:
            self._try_again(trial)
        else:
            proposal = search.take_proposal()
            self._try_or_rest(proposal.params, None, proposal.worst_ratio)

    def _ends_for_want_of_headroom(self) -> bool:
        """End the run right after the default was read, if no setting can gain anything."""
        readings = self._default.readings
        if len(self.search.trials) != 1 or not readings:
            return False
        bound = headroom(pool(readings))
        if bound >= WORTH_HAVING:
            return False
        reason = messages.headroom_reason(bound)
        self._finalise(self.search.trials[0], self._no_certificate(reason, bound=bound))
        return True

    def _try_again(self, trial: Trial) -> None:
        """Read a trial once more."""
        gain = self.search.gain(trial.params)
        self._try_or_rest(trial.params, trial, 1.0 if gain is None else 1 / (1 + gain.low))

    def _try_or_rest(self, params: CommParams, trial: Trial | None, ratio: float) -> None:
        """Begin a trial; first run windows of the default until the budget suffices for it.

        Args:
            params: The setting.
            trial: Its trial, where it is read once more.
            ratio: Step time over the default's that it may turn out to have.
        """
        if self._can_pay(ratio):
            self._rests, self._next = 0, None
            self._try(params, trial)
            return
        if self._rests == 0:
            self._events.append(Progress(text=messages.REST))
        self._rests, self._next = self._rests + 1, (params, trial, ratio)
        self._read_default()

    def _can_pay(self, ratio: float) -> bool:
        """Return whether the allowance covers what a trial of so long steps may cost.

        Args:
            ratio: Its step time over the default's.
        """
        price = float(price_steps(np.array([ratio]), self._window_steps + SETTLE_STEPS)[0])
        return self._account.allowance_steps >= price

    def _read_contenders(self) -> None:
        """Read the settings that may be the best once more, then compare the best one."""
        search = self.search
        if (trial := search.contender()) is not None:
            self._try_again(trial)
        elif len(search.trials) < self._settings.max_samples and (
            (simpler := search.simplified()) is not None
        ):
            self._try_or_rest(simpler, None, 1.0)
        else:
            self._certify()

    # ---- CERTIFY --------------------------------------------------------------------------------

    def _certify(self) -> None:
        search = self.search
        incumbent, self._inert = search.choose()
        gain = search.gain(incumbent.params)
        if incumbent.trial_id > 0 and gain is not None and gain.estimate < WORTH_HAVING:
            reason = messages.not_worth_reason(incumbent, gain, names=self._names)
            high = max(gain.high, 0.0)
            self._finalise(search.trials[0], self._no_certificate(reason, bound=high))
            return
        if incumbent.trial_id == 0:
            reason = f"none of {len(search.trials) - 1} other settings beat the default"
            self._finalise(incumbent, self._no_certificate(reason, bound=0.0))
            return
        self._say(messages.certify_text(incumbent, names=self._names, inert=self._inert))
        self._default.window = None
        steps = max(1, math.ceil(PAIR_SHARE * self._window_steps))
        precise = PRECISE_ENOUGH if search.is_remembering else PRECISE
        self._pairs = PairedWindows(
            search.trials[0],
            incumbent,
            test=PairedTest(self._alpha, clip=self._clip(steps), precise=precise),
            in_force=self._in_force,
            noise=self._noise,
            rng=self._rng,
            steps=steps,
            least_us=PAIR_SHARE * MIN_WINDOW_US,
        )
        self._next_window(self._pairs)

    def _clip(self, steps: int) -> float:
        """Return the log ratio that a pair of windows of ``steps`` steps has by noise at most."""
        variance = self._noise.local**2 * CORRELATED / steps
        return max(SMALLEST_CLIP, CLIP_SIGMA * math.sqrt(2 * variance))

    def _next_window(self, pairs: PairedWindows) -> None:
        if (change := pairs.next_window()) is not None:
            self._events.append(change)

    def _read_pairs(self, record: StepRecord, pairs: PairedWindows) -> None:
        arm, epoch, number = pairs.arm, pairs.epoch, pairs.test.pairs
        reading = pairs.read(record)
        if reading is None:
            return
        if arm.trial_id == 0:
            self._account.rebase(reading.step_us)
        kind = SampleKind.CERTIFY
        of = sample(reading, trial_id=arm.trial_id, epoch=epoch, kind=kind, pair=number)
        self._events.append(of)
        if pairs.decision is None:
            self._next_window(pairs)
            return
        certificate = pairs.test.certificate(pairs.incumbent.trial_id)
        self._finalise(pairs.incumbent if pairs.decision else pairs.default, certificate)

    def _no_certificate(self, reason: str, *, bound: float) -> Certificate:
        return no_certificate(reason, bound=bound, alpha=self._alpha)

    def _finalise(self, best: Trial, certificate: Certificate) -> None:
        """End the run; the score of what stays in force is that of all its readings."""
        self._attempt, self._default.window = None, None
        self._put_in_force(best.params)
        if certificate.certified:
            best = replace(best, score=self.search.score_of(certificate.gain))
        self.outcome = Outcome(best=best, certificate=certificate)

    def _say(self, text: str) -> None:
        self._events.append(Line(text=text))


def sample(
    reading: Reading,
    *,
    trial_id: int,
    epoch: int,
    kind: SampleKind,
    pair: int | None = None,
) -> Sample:
    """Return the reading of a window as the trial log wants it."""
    return Sample(
        trial_id=trial_id,
        epoch=epoch,
        kind=kind,
        pair=pair,
        steps=reading.steps,
        duration_us=reading.duration_us,
        payload_bytes=reading.payload_bytes,
        exposed_us=reading.exposed_us,
        score=reading.score,
    )
