"""EXPLORE: every setting is read between two windows of the default (see ``brackets``)::

    default | setting A | default | setting B | default | ...

Plans are computed while the default is in force: that costs the budget nothing, and whatever
planning takes from the training is taken from no setting's reading.
"""

from __future__ import annotations

import math

from autotune.trial import SampleKind, Setting, Trial, TrialState
from autotune.tuning import messages
from autotune.tuning.budget import STOP_RATIO, Account
from autotune.tuning.changes import Progress
from autotune.tuning.events import Events, Rejection
from autotune.tuning.exploring.attempt import Attempt, NextTrial
from autotune.tuning.exploring.default import DefaultWindows
from autotune.tuning.exploring.search import Search
from autotune.tuning.inforce import InForce
from autotune.tuning.steps.brackets import Bracket, LogRatio
from autotune.tuning.steps.records import StepRecord, TunerSettings
from autotune.tuning.steps.scoring import SETTLE_STEPS, Reading, Window, headroom, pool

WORTH_HAVING = 0.01
"""Gains below this are not worth tuning for."""
MOST_REPAYMENTS = 60
"""Windows of the default in a row that repay the budget, until exploring ends for want of it."""
MOST_WAITING = 3
"""Windows of the default that wait for a plan before the trial before them is finished without."""
MOST_ATTEMPTS = 3
"""Readings of one trial: a change of speed in the middle of one has it taken again."""
WORTH_REPEATING = 2.0
"""A reading is taken again when it is so many times as uncertain as a typical one."""


class Explore:
    """Reads what ``search`` plans, one setting after the other, within the budget.

    It is fed with training steps, puts a setting into force between two windows of the default, and
    tells the search how much faster or slower it was. It ends when nothing more is worth reading:
    then the best setting can be compared with the default, or nothing can gain.

    Attributes:
        default: The default's windows.
        is_over: Nothing more is to be read: the best setting can be compared, or nothing can gain.
        headroom: What a setting can gain at most, where that is not worth tuning for; else None.
        disturbed_steps: Steps that were not scored because a plan was being computed.
    """

    def __init__(
        self,
        search: Search,
        *,
        settings: TunerSettings,
        account: Account,
        in_force: InForce,
        events: Events,
        sparing: Setting | None = None,
    ) -> None:
        """Prepare to explore; arguments as ``Run``, ``events`` receives what there is to tell."""
        self.default = DefaultWindows(settings)
        self.is_over = False
        self.headroom: float | None = None
        self._sparing = sparing
        self.disturbed_steps = 0
        self._search, self._findings = search, search.findings
        self._most_trials = settings.max_samples
        self._account, self._in_force, self._events = account, in_force, events
        self._attempt: Attempt | None = None
        self._next: NextTrial | None = None
        self._repayments = 0

    # ---- what the run calls ---------------------------------------------------------------------

    def start(self, earlier: list[Window]) -> None:
        """Begin with the default, which is in force; ``earlier``: its latest windows."""
        self.default.epoch = self._in_force.epoch
        for window in earlier:
            self._take_default(window)
        if self.default.readings and not self._findings.trials:
            self._add_default()
        if self._ends_for_want_of_headroom():
            return
        if self._findings.trials:  # what to try is only known beside the default
            self._search.request()
        self._read_default()

    def read(self, record: StepRecord, *, disturbed: bool = False) -> None:
        """Take a usable training step; a disturbed one says nothing about the setting in force."""
        if self.default.window is not None:
            if disturbed:
                self.disturbed_steps += record.count
            else:
                self.default.window.add(record)
            self._look_at_default(self.default.window)
        elif self._attempt is not None:
            self._read_attempt(record, self._attempt)

    def plan_came(self) -> None:
        """Go on where a window of the default waits for a plan."""
        if self.default.window is not None:
            self._look_at_default(self.default.window)

    def reject(self, params: Setting) -> None:
        """Drop a setting whose results are wrong, whatever it scores."""
        attempt = self._attempt
        rejected = self._findings.reject(params)
        if rejected is not None:
            self._events.add(Rejection(trial=rejected))
        if self._next is not None and self._next.params == params:
            self._next, self._repayments = None, 0
            self._search.request()
        if attempt is not None and attempt.params == params:
            self._attempt = None
            self._add_rejected(attempt)
            if self.default.window is None:
                self._take_back()
                self._search.request()
                self._read_default()

    # ---- the default ----------------------------------------------------------------------------

    def _read_default(self) -> None:
        """Begin a window of the default."""
        self._put_in_force(self._search.space.default)
        self.default.begin(self._in_force)

    def _look_at_default(self, window: Window) -> None:
        """See whether the default's window is full; it goes on while a plan is being computed."""
        if not window.is_full:
            return
        attempt, is_planned = self._attempt, not self._search.needs_plan
        if attempt is not None and attempt.bracket is not None:
            if is_planned or window.steps >= MOST_WAITING * self.default.steps:
                reading = attempt.bracket.closed(window.records)
                self._end_default(window)
                self._close(attempt, reading)
        elif is_planned or self._next is not None or not self._findings.trials:
            self._end_default(window)
            self._advance()

    def _end_default(self, window: Window) -> None:
        """Take a window of the default that was read in EXPLORE."""
        reading = self._take_default(window)
        self._tell_sample(reading, trial_id=0, epoch=window.epoch, kind=SampleKind.REREAD)

    def _take_default(self, window: Window) -> Reading:
        reading = self.default.add(window)
        self._account.rebase(reading.step_us)
        self._findings.noise = math.sqrt(self.default.typical_variance)
        return reading

    def _add_default(self) -> None:
        reading, epoch = self.default.reading, self._in_force.epoch
        trial = self._findings.add_default(reading.score)
        self._tell_sample(reading, trial_id=0, epoch=epoch, kind=SampleKind.SEARCH)
        self._tell_trial(trial)

    # ---- trials ---------------------------------------------------------------------------------

    def _try(self, what: NextTrial) -> None:
        """Begin a window of a setting."""
        limit_us = STOP_RATIO * self.default.reading.step_us
        self._put_in_force(what.params, limit_us=limit_us)
        self.default.window = None
        epoch, steps = self._in_force.epoch, self.default.trial_steps
        self._attempt = Attempt(what, epoch=epoch, steps=steps, limit_us=limit_us)

    def _read_attempt(self, record: StepRecord, attempt: Attempt) -> None:
        has_ended = attempt.read(
            record,
            default=self.default.reading,
            account=self._account,
            may_be_taken_back=self._in_force.fallback is not None,
        )
        if attempt.was_cut:
            self._take_back()
        if has_ended:
            self._end_attempt(attempt)

    def _end_attempt(self, attempt: Attempt) -> None:
        """Close a trial's window; the default's, which follows, closes the bracket."""
        window, records = attempt.window, attempt.records
        if not records:  # the runtime took it back before a step of it was seen
            self._give_up(attempt)
            return
        trial_id = len(self._findings.trials) if attempt.trial is None else attempt.trial.trial_id
        kind = SampleKind.REREAD if attempt.trial else SampleKind.SEARCH
        self._tell_sample(window.reading(), trial_id=trial_id, epoch=window.epoch, kind=kind)
        noise = self.default.noise
        if not attempt.was_cut:
            noise.add(window.records)
        most = self.default.trial_steps
        attempt.bracket = Bracket(self.default.before, records, noise=noise, most=most)
        self._findings.add_reading(attempt.params, attempt.bracket.half(), preliminary=True)
        if self._search.needs_plan:
            self._search.request()
        self._read_default()

    def _give_up(self, attempt: Attempt) -> None:
        """End a trial of which nothing could be read."""
        self._attempt = None
        self._take_back()
        self._add_rejected(attempt)
        self._search.request()
        self._read_default()

    def _add_rejected(self, attempt: Attempt) -> None:
        if attempt.trial is None:
            rejected = self._findings.add_trial(attempt.params, state=TrialState.REJECTED)
            self._tell_trial(rejected)

    def _close(self, attempt: Attempt, reading: LogRatio) -> None:
        """Take the reading of a whole bracket; take it again where it says too little."""
        findings, warm_start = self._findings, self._search.warm_start
        remembered = warm_start.is_used
        findings.add_reading(attempt.params, reading, preliminary=False)
        if remembered and not warm_start.is_used:
            self._events.say(messages.MEMORY_DROPPED)
        if self._is_to_be_repeated(attempt, reading):
            count = attempt.count + 1
            self._try(NextTrial(params=attempt.params, trial=attempt.trial, count=count))
            return
        self._attempt = None
        if attempt.trial is None:
            is_slower = attempt.was_cut and findings.is_slower(attempt.params)
            state = TrialState.ABANDONED if is_slower else TrialState.COMPLETE
            self._tell_trial(findings.add_trial(attempt.params, state=state))
            if self._ends_as_nothing_is_taken(attempt, reading):
                return
        if self._search.needs_plan:
            self._read_default()
        else:
            self._advance()

    def _is_to_be_repeated(self, attempt: Attempt, reading: LogRatio) -> bool:
        """Return whether a change of speed has spoilt a reading that could matter."""
        gain = self._findings.gain(attempt.params)
        if attempt.count >= MOST_ATTEMPTS or gain is None or gain.high <= 0:
            return False
        if not self._can_pay(math.exp(-reading.mean)):
            return False
        is_vague = reading.variance > WORTH_REPEATING**2 * self.default.typical_variance
        return is_vague or attempt.was_cut

    # ---- what comes next ------------------------------------------------------------------------

    def _advance(self) -> None:
        """Decide what to do after a window of the default."""
        search = self._search
        if not self._findings.trials:
            self._add_default()
        if len(self.default.readings) == 1 and self._ends_for_want_of_headroom():
            return
        if self._repayments >= MOST_REPAYMENTS:
            self._end()
        elif self._next is not None:
            self._try_or_repay(self._next)
        elif search.is_exhausted:
            self._read_contenders()
        elif search.plan is None:
            search.request()
            self._read_default()
        elif (trial := search.rereads.to_confirm()) is not None:
            self._try_again(trial)
        else:
            proposal = search.take_proposal()
            self._try_or_repay(NextTrial(params=proposal.params, ratio=proposal.worst_ratio))

    def _ends_for_want_of_headroom(self) -> bool:
        """End right after the default was read, if no setting can gain anything."""
        readings = self.default.readings
        if len(self._findings.trials) != 1 or not readings:
            return False
        bound = headroom(pool(readings))
        if bound >= WORTH_HAVING:
            return False
        if self._sparing is not None:  # what is hidden may cost something, too
            self._search.begin_with(self._sparing)
            return False
        self.headroom = bound
        self._end()
        return True

    def _ends_as_nothing_is_taken(self, attempt: Attempt, reading: LogRatio) -> bool:
        """End when communication was read to take nothing from the computation that hides it."""
        if attempt.params != self._sparing or headroom(pool(self.default.readings)) >= WORTH_HAVING:
            return False
        faster = reading.mean + math.sqrt(reading.variance)
        bound = headroom(attempt.window.reading(), faster=faster)
        if bound >= WORTH_HAVING:
            return False
        self.headroom = bound
        self._end()
        return True

    def _end(self) -> None:
        self.default.window = self._attempt = self._next = None
        self.is_over = True

    def _try_again(self, trial: Trial) -> None:
        """Read a trial once more."""
        gain = self._findings.gain(trial.params)
        ratio = 1.0 if gain is None else 1 / (1 + gain.low)
        self._try_or_repay(NextTrial(params=trial.params, trial=trial, ratio=ratio))

    def _try_or_repay(self, what: NextTrial) -> None:
        """Begin a trial; first repay the budget by windows of the default."""
        if self._can_pay(what.ratio):
            self._repayments, self._next = 0, None
            self._try(what)
            return
        if self._repayments == 0:
            self._events.add(Progress(text=messages.REPAY))
        self._repayments, self._next = self._repayments + 1, what
        self._read_default()

    def _can_pay(self, ratio: float) -> bool:
        """Return whether the budget suffices for a trial of ``ratio`` times the default's steps."""
        return self._account.covers(ratio, self.default.trial_steps + SETTLE_STEPS)

    def _read_contenders(self) -> None:
        """Read the settings that may be the best once more, then leave the choice to the run."""
        search = self._search
        if (trial := search.rereads.contender()) is not None:
            self._try_again(trial)
        elif len(self._findings.trials) < self._most_trials and (
            (simpler := search.simplified()) is not None
        ):
            self._try_or_repay(NextTrial(params=simpler))
        else:
            self._end()

    # ---- small tools ----------------------------------------------------------------------------

    def _take_back(self) -> None:
        self._events.add(self._in_force.fall_back())

    def _put_in_force(self, params: Setting, *, limit_us: float | None = None) -> None:
        """Tell the runtime, unless ``params`` are in force."""
        known = self._findings.safe
        self._events.add(self._in_force.change(params, known=known, limit_us=limit_us))

    def _tell_sample(
        self, reading: Reading, *, trial_id: int, epoch: int, kind: SampleKind
    ) -> None:
        self._events.add(reading.sample(trial_id=trial_id, epoch=epoch, kind=kind))

    def _tell_trial(self, trial: Trial) -> None:
        standing, names = self._findings.standing, self._search.space.names
        assert standing is not None
        text = messages.progress_text(trial, most=self._most_trials, standing=standing, names=names)
        self._events.add(trial, Progress(text=text))
