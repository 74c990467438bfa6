"""The replay check: a short paired comparison of replayed settings in the production job itself.

The job starts under the tuned setting. Fresh windows of the default and of the tuned setting are
read in pairs, in random order, as for a certificate; where the tuned one is worse here, or looks
so after the last pair, the default takes its place for the rest of the job. Nothing is searched and
no log is written.

``ReplayCheck`` is driven like a ``Tuner``: finished steps in, events out; it never has ``work``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from autotune.space import Value
from autotune.storage.contract import Start
from autotune.trial import CommParams, Setting, Trial
from autotune.tuning import messages
from autotune.tuning.changes import Done
from autotune.tuning.comparing.certify import FEWEST_PAIRS, LARGEST, PairedTest
from autotune.tuning.comparing.pairs import PairedWindows
from autotune.tuning.events import Event, Events, Plan
from autotune.tuning.inforce import InForce
from autotune.tuning.steps.brackets import Noise
from autotune.tuning.steps.identify import Identifier
from autotune.tuning.steps.records import ResultCheck, StepRecord, TunerSettings
from autotune.tuning.steps.scoring import SETTLE_STEPS, is_usable
from autotune.tuning.steps.warmup import Warmup, steps_per_sample, window_steps

MOST_STARTS = 4
"""Times that a check begins: anew where the training step has become another one."""
MOST_PAIRS = 13
"""Pairs after which the check ends with whatever it has."""


class ReplayTest(PairedTest):
    """Keeps the tuned setting (the incumbent of the pairs) unless it is worse than the default."""

    def decision(self) -> bool | None:
        """Return True: kept; False: the default is better; None: more pairs are needed."""
        if self.pairs < FEWEST_PAIRS:
            return None
        if self._has_more_slow_steps():
            return False
        result = self.estimate()
        if result.low > 0 or result.high < 0:
            return result.low > 0
        return sum(self.log_ratios) >= 0 if self.pairs >= MOST_PAIRS else None

    def verdict(self, kept: bool) -> str:
        """Return the decision ``kept`` with its reason and the gain that it rests on."""
        found = self.estimate()
        mean, low, high = found.mean, found.low, found.high
        if self._has_more_slow_steps():
            slow = f"{self._slow_incumbent} against {self._slow_default}"
            what = f"have more slow steps here ({slow}): the default takes their place"
        elif low > 0 or high < 0:
            what = "are kept" if kept else "are worse here: the default takes their place"
        else:  # the sign of the plain mean has decided
            mean = sum(self.log_ratios) / self.pairs
            low, high = min(low, mean), max(high, mean)
            neither = "and neither is proven faster"
            if kept:
                what = f"are kept: not slower on average, {neither}"
            else:
                what = f"give way to the default: slower on average, {neither}"
        gain, worst, best = (f"{math.expm1(min(x, LARGEST)):+.1%}" for x in (mean, low, high))
        return (
            f"the replayed settings {what} (gain {gain} over the default, between {worst} and "
            f"{best}, in {self.pairs} pairs of windows)"
        )


class ReplayCheck:
    """One check, from the first step of the job to its verdict.

    Attributes:
        seed: Seed of the order within pairs.
    """

    def __init__(
        self,
        *,
        settings: TunerSettings,
        seed: int,
        tuned: Mapping[str, Value],
        fixed: Mapping[str, Value],
        baseline: Setting | None = None,
    ) -> None:
        """Prepare a check.

        Args:
            settings: Warm-up and length of windows.
            seed: Makes the order within pairs reproducible.
            tuned: The setting that the job starts with, as {parameter name: value}.
            fixed: Parameters that the user set explicitly: the default has them too.
            baseline: What the job would start with by itself; None: the runtime's default.

        Raises:
            InvalidSettingError: A value is outside its parameter's domain.
        """
        self.seed = seed
        self._settings = settings
        start = baseline or CommParams()
        default = Trial(trial_id=0, params=start.with_values(dict(fixed)), score=0.0)
        self._tuned = Trial(trial_id=1, params=type(start).from_dict(tuned), score=0.0)
        self._names = [n for n, v in default.params.as_dict().items() if v != tuned[n]]
        self._default = default
        self._in_force = InForce(self._tuned.params)
        self._rng = np.random.default_rng(seed)
        self._identifier = Identifier()
        self._events = Events()
        self._starts = 0
        self._is_done = False
        self._start_over()

    def _start_over(self) -> None:
        """Know nothing of the training step yet."""
        self._test = ReplayTest()
        self._pairs = PairedWindows(
            self._default,
            self._tuned,
            test=self._test,
            in_force=self._in_force,
            safe=self._tuned.params,
            noise=Noise(),
            rng=self._rng,
            steps=steps_per_sample(self._settings),
        )
        self._warmup = Warmup(self._settings, epoch=self._in_force.epoch)
        self._has_begun = self._is_length_told = False
        self._step_us: float | None = None

    def open(self) -> list[Event]:
        """Return what can be said before the first step."""
        if not self._names:
            self._done(self._tuned, "replay check: nothing to compare: the default is replayed")
        else:
            what = messages.params_text(self._tuned.params, self._names)
            self._say(
                f"replay check: compares {what} with the default in at most {MOST_PAIRS} pairs of "
                "windows"
            )
        return self._events.take()

    def observe(self, records: Sequence[StepRecord], *, disturbed: bool = False) -> list[Event]:
        """Take finished steps, in order; ``disturbed`` ones are counted, not read."""
        for record in records:
            if record.count > 0 and not self._is_done:
                self._observe(record, disturbed=disturbed)
        return self._events.take()

    def wait(self, seconds: float, *, communicates: bool = False) -> list[Event]:
        """Do nothing: what kept a check from a verdict is said at the end."""
        return self._events.take()

    def begin(self, operations: Sequence[tuple[str, int]], start: Start) -> list[Event]:
        """Do nothing: a check needs no log and no search space."""
        return self._events.take()

    def rule_out(self, reasons: Mapping[str, str]) -> list[Event]:
        """Do nothing: a check explores nothing."""
        return self._events.take()

    def work(self) -> Callable[[], Plan] | None:
        """Return None: there is nothing to compute."""
        return None

    def accept(self, plan: Plan) -> list[Event]:
        """Do nothing: nothing was computed."""
        return self._events.take()

    def check(self, check: ResultCheck) -> list[Event]:
        """Go back to the default where the results under the replayed setting are wrong."""
        best, params = self._default, self._in_force.of(check.epoch)
        is_over = self._is_done and self._in_force.params == best.params
        if not check.ok and not is_over and params == self._tuned.params != best.params:
            self._put_in_force(best.params)
            what = messages.wrong_text(check, self._tuned.params, default=best.params)
            self._events.say(what, level="warning" if check.reason else "error")
            why = check.reason or "the results were wrong"
            self._done(best, f"replay check: {why}: the default takes their place")
        return self._events.take()

    def finish(self) -> list[Event]:
        """Say so if the job ends before the verdict."""
        if not self._is_done:
            seen, pairs, more = self._identifier.steps_seen, self._test.pairs, self.steps_to_done
            needs = f"; needs up to about {more} more steps" if more is not None else ""
            self._say(
                f"replay check: no verdict: the job ended after {seen} steps and {pairs} of at "
                f"most {MOST_PAIRS} pairs of windows{needs}",
                level="warning",
            )
        return self._events.take()

    @property
    def steps_to_done(self) -> int | None:
        """Training steps until the verdict, about, at most; None: the step time is not known."""
        step_us = self._warmup.step_us if self._step_us is None else self._step_us
        if step_us is None:
            return None
        windows = 2 * MOST_PAIRS - self._pairs.windows
        window = window_steps(self._settings, step_us) + SETTLE_STEPS
        return self._warmup.steps_left + windows * window

    def _observe(self, record: StepRecord, *, disturbed: bool) -> None:
        if self._identifier.add(record):
            self._learn_step()
        for step in self._identifier.completed:
            if is_usable(step) and not disturbed and not self._is_done:
                self._observe_training(step)

    def _learn_step(self) -> None:
        """Begin with the training step that became known, or that has taken another one's place."""
        self._starts += 1
        if self._starts == 1:
            return
        self._put_in_force(self._tuned.params)
        if self._starts > MOST_STARTS:
            what = "no verdict: the training step changes too often; the replayed settings stay"
            self._done(self._tuned, f"replay check: {what}")
            return
        self._say("replay check: the training step is another one now: it starts over")
        self._start_over()

    def _observe_training(self, record: StepRecord) -> None:
        if self._has_begun:
            self._read(record)
        elif self._warmup.is_over:
            self._has_begun = True
            self._next_window()
        else:
            self._warmup.add(record)

    def _read(self, record: StepRecord) -> None:
        reading = self._pairs.read(record)
        if reading is None:
            return
        self._step_us = min(self._step_us or math.inf, reading.step_us)
        if self._pairs.decision is None:
            self._next_window()
        else:
            self._decide(self._pairs.decision)

    def _next_window(self) -> None:
        self._tell_length()
        self._events.add(self._pairs.next_window())

    def _decide(self, kept: bool) -> None:
        best = self._tuned if kept else self._default
        self._put_in_force(best.params)
        self._done(best, f"replay check: {self._test.verdict(kept)}")

    def _put_in_force(self, params: Setting) -> None:
        """Emit ``Apply`` unless ``params``, which stay, are in force."""
        self._events.add(self._in_force.change(params, known=params))

    def _tell_length(self) -> None:
        """Say how long it will take, once, as soon as a window was read."""
        steps = self.steps_to_done
        if not self._is_length_told and steps is not None:
            self._is_length_told = True
            self._say(f"replay check: ends within about {steps} more steps")

    def _done(self, best: Trial, text: str) -> None:
        """End the check; ``certified`` tells the runtime whether the replayed settings stay."""
        self._is_done = True
        params, certified = best.params.as_dict(), best is self._tuned
        self._events.add(
            Done(
                epoch=self._in_force.epoch,
                params=params,
                certified=certified,
                text=f"autotune: {text}",
            )
        )

    def _say(self, text: str, *, level: str = "info") -> None:
        self._events.say(f"autotune: {text}", level=level)
