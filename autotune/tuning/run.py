"""One run: EXPLORE (see ``explore``), then CERTIFY. No clock, no files, no threads."""

from __future__ import annotations

import enum
import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from autotune.trial import Certificate, SampleKind, Setting, Standing, Trial
from autotune.tuning import messages
from autotune.tuning.budget import Account
from autotune.tuning.changes import Progress
from autotune.tuning.comparing.certify import (
    ALPHA,
    PRECISE,
    PRECISE_ENOUGH,
    PairedTest,
    no_certificate,
)
from autotune.tuning.comparing.pairs import PairedWindows
from autotune.tuning.events import Event, Events, Plan
from autotune.tuning.exploring.explore import WORTH_HAVING, Explore
from autotune.tuning.exploring.gains import log_ratio_of
from autotune.tuning.exploring.search import Search
from autotune.tuning.inforce import InForce
from autotune.tuning.steps.records import StepRecord, TunerSettings
from autotune.tuning.steps.scoring import CORRELATED, MIN_WINDOW_US, Reading, Window

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


class Run:
    """One search and its certificate.

    It is fed with the training steps after warm-up and returns what there is to tell. It explores
    first, then compares the best setting with the default in pairs of windows, and ends with an
    ``outcome``: the trial that stays in force, and the certificate that says why.

    Attributes:
        search: What is known of the settings, and which one comes next.
        outcome: None until the run is over.
    """

    def __init__(
        self,
        search: Search,
        *,
        settings: TunerSettings,
        account: Account,
        in_force: InForce,
        rng: np.random.Generator,
        alpha: float = ALPHA,
        sparing: Setting | None = None,
    ) -> None:
        """Prepare a run.

        Args:
            search: Knows no trial yet, or those of an earlier job.
            settings: ``HOROVOD_AUTOTUNE_*``.
            account: What exploring has lost, and may lose.
            in_force: Which setting is in force.
            rng: Decides the order within certificate pairs.
            alpha: Error probability of the certificate.
            sparing: Setting under which communication takes the least from the computation beside
                it; None: it is taken to take nothing while it is hidden.
        """
        self.search = search
        self.outcome: Outcome | None = None
        self._in_force, self._rng, self._alpha = in_force, rng, alpha
        self._account = account
        self._events = Events()
        self._explore = Explore(
            search,
            settings=settings,
            account=account,
            in_force=in_force,
            events=self._events,
            sparing=sparing,
        )
        self._pairs: PairedWindows | None = None
        self._is_repaying = False

    @property
    def phase(self) -> Phase:
        """Where the run is."""
        return Phase.EXPLORE if self._pairs is None else Phase.CERTIFY

    @property
    def trials(self) -> list[Trial]:
        """Finished trials, by trial_id."""
        return self.search.findings.trials

    @property
    def standing(self) -> Standing | None:
        """What is held for the best so far, if there is any trial."""
        return self.search.findings.standing

    @property
    def default(self) -> Reading:
        """What the default does now."""
        return self._explore.default.reading

    @property
    def disturbed_steps(self) -> int:
        """Steps that were not scored because a plan was being computed."""
        return self._explore.disturbed_steps

    def steps_left(self, step_us: float | None) -> int | None:
        """Return the training steps that the present window still needs, about; None: no window.

        Args:
            step_us: Time of a step; None: not known, and the fewest steps are returned.
        """
        window = self._explore.default.window
        return window.steps_left(step_us) if window is not None else None

    # ---- what the tuner calls -------------------------------------------------------------------

    def start(self, earlier: list[Window]) -> list[Event]:
        """Begin with the default, which is in force.

        Args:
            earlier: The latest windows of the default before the run.
        """
        self._explore.start(earlier)
        return self._followed()

    def read(self, record: StepRecord, *, disturbed: bool = False) -> list[Event]:
        """Take a usable training step; a disturbed one says nothing about the setting in force."""
        if self._pairs is not None:
            self._read_pairs(record, self._pairs)
        else:
            self._explore.read(record, disturbed=disturbed)
        return self._followed()

    def work(self) -> Callable[[], Plan] | None:
        """Return something to compute and to hand to ``accept``, or None; each is returned once."""
        return self.search.work()

    def accept(self, plan: Plan) -> list[Event]:
        """Take what the last ``work`` computed."""
        self.search.accept(plan)
        if self._pairs is None:
            self._explore.plan_came()
        return self._followed()

    def reject(self, params: Setting) -> list[Event]:
        """Drop a setting whose results are wrong, whatever it scores."""
        pairs = self._pairs
        self._explore.reject(params)
        if pairs is not None and pairs.incumbent.params == params:
            self._keep_default("default kept: the results of the incumbent were wrong", bound=0.0)
        return self._followed()

    def conclude(self) -> list[Event]:
        """The job ends: what the pairs have proven so far counts, however imprecise it is."""
        pairs = self._pairs
        if pairs is not None and self.outcome is None and pairs.test.is_proven:
            certificate = pairs.test.certificate(pairs.incumbent.trial_id)
            self._finalise(pairs.incumbent, certificate)
        return self._events.take()

    @property
    def pairs_compared(self) -> int:
        """Pairs of windows of the default and the best setting that were read."""
        return self._pairs.test.pairs if self._pairs is not None else 0

    def readings(self, params: Setting) -> list[Reading]:
        """Return what was read last of a setting: in pairs, or of the default on the way."""
        if self._pairs is not None:
            return self._pairs.readings.get(params, [])
        is_default = params == self.search.space.default
        return self._explore.default.readings if is_default else []

    def _followed(self) -> list[Event]:
        """Return what there is to tell, after exploring has ended, if it just has."""
        if self._explore.is_over and self._pairs is None and self.outcome is None:
            bound = self._explore.headroom
            if bound is not None:
                is_undisturbed = len(self.trials) > 1
                reason = messages.headroom_reason(bound, is_undisturbed=is_undisturbed)
                self._keep_default(reason, bound=bound)
            else:
                self._certify()
        return self._events.take()

    # ---- CERTIFY --------------------------------------------------------------------------------

    def _certify(self) -> None:
        """Compare the best setting with the default, where it promises a gain."""
        names = self.search.space.names
        incumbent, inert = self.search.choose()
        gain = self.search.findings.gain(incumbent.params)
        if incumbent.trial_id == 0:
            reason = f"none of {len(self.trials) - 1} other settings beat the default"
            self._keep_default(reason, bound=0.0)
        elif gain is not None and log_ratio_of(gain).mean < math.log1p(WORTH_HAVING):
            reason = messages.not_worth_reason(incumbent, gain, names=names)
            self._keep_default(reason, bound=max(gain.high, 0.0))
        else:
            readings = self.search.findings.readings(incumbent.params)
            text = messages.certify_text(
                incumbent, gain=gain, readings=readings, names=names, inert=inert
            )
            self._events.say(text)
            self._pairs = self._paired_with_default(incumbent)
            self._events.add(self._pairs.next_window())

    def _paired_with_default(self, incumbent: Trial) -> PairedWindows:
        default = self._explore.default
        steps = max(1, math.ceil(PAIR_SHARE * default.trial_steps))
        clip = max(
            SMALLEST_CLIP, CLIP_SIGMA * math.sqrt(2 * default.noise.local**2 * CORRELATED / steps)
        )
        is_costly = incumbent.params.table.change_price > 0
        is_known = self.search.warm_start.is_used
        precise = PRECISE_ENOUGH if is_known or is_costly else PRECISE
        return PairedWindows(
            self.trials[0],
            incumbent,
            test=PairedTest(self._alpha, clip=clip, precise=precise),
            in_force=self._in_force,
            safe=self.search.findings.safe,
            noise=default.noise,
            rng=self._rng,
            steps=steps,
            least_us=PAIR_SHARE * MIN_WINDOW_US,
        )

    def _read_pairs(self, record: StepRecord, pairs: PairedWindows) -> None:
        if self._is_repaying:
            self._go_on(pairs)
            return
        arm, epoch, number = pairs.arm, pairs.epoch, pairs.test.pairs
        reading = pairs.read(record)
        if reading is None:
            return
        if arm.trial_id == 0:
            self._account.rebase(reading.step_us)
        kind = SampleKind.CERTIFY
        self._events.add(reading.sample(trial_id=arm.trial_id, epoch=epoch, kind=kind, pair=number))
        if pairs.decision is None:
            self._go_on(pairs)
            return
        certificate = pairs.test.certificate(pairs.incumbent.trial_id)
        self._finalise(pairs.incumbent if pairs.decision else pairs.default, certificate)

    def _go_on(self, pairs: PairedWindows) -> None:
        """Begin the next window; run the default first until the budget suffices for a pair."""
        must_repay = not pairs.is_within_pair and not self._account.covers_pair
        if must_repay and not self._is_repaying:
            self._events.add(
                Progress(text=messages.REPAY),
                self._in_force.change(pairs.default.params, known=self.search.findings.safe),
            )
        self._is_repaying = must_repay
        if not must_repay:
            self._events.add(pairs.next_window())

    def _keep_default(self, reason: str, *, bound: float) -> None:
        """End the run for a reason; ``bound``: what could be gained at most."""
        certificate = no_certificate(reason, bound=bound, alpha=self._alpha)
        self._finalise(self.trials[0], certificate)

    def _finalise(self, best: Trial, certificate: Certificate) -> None:
        """End the run; the score of a certified setting is what its pairs with the default say.

        The search's readings are not pooled with them: by these it was chosen among many, so they
        flatter it.
        """
        self._events.add(self._in_force.change(best.params, known=best.params))
        if certificate.certified:
            best = replace(best, score=self.search.findings.score_of(certificate.gain))
        self.outcome = Outcome(best=best, certificate=certificate)
