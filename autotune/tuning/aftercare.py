"""After DONE: whether the setting that stays in force still deserves it.

The step time is compared with what tuning has read (``drift``). Where that says that the job has
changed, it is tuned again if that can help and may be; else the setting in force and the default
are compared in pairs of windows, as in a replay check.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence

import numpy as np

from autotune.trial import Setting, Trial
from autotune.tuning import messages
from autotune.tuning.comparing.drift import DriftDetector
from autotune.tuning.comparing.pairs import PairedWindows
from autotune.tuning.comparing.replay_check import ReplayTest
from autotune.tuning.events import Event, Events
from autotune.tuning.inforce import InForce
from autotune.tuning.steps.brackets import Noise
from autotune.tuning.steps.records import StepRecord, TunerSettings
from autotune.tuning.steps.scoring import Reading
from autotune.tuning.steps.warmup import steps_per_sample


class Verdict(enum.Enum):
    """What has become of a setting that was kept."""

    CHANGED = enum.auto()
    """The job has changed, and another setting may be the best one now."""
    NO_BETTER = enum.auto()
    """The job has changed, and the default does as well or better."""


class Aftercare:
    """Looks after the setting that is kept."""

    def __init__(
        self,
        kept: Trial,
        default: Setting,
        *,
        settings: TunerSettings,
        in_force: InForce,
        rng: np.random.Generator,
        may_retune: bool,
        readings: Sequence[Reading] = (),
    ) -> None:
        """Look after ``kept``, which is in force.

        Args:
            kept: What tuning has ended with.
            default: What it is compared with, where the job changes.
            settings: Length of windows.
            in_force: Which setting is in force.
            rng: Decides the order within pairs.
            may_retune: The job may be tuned again.
            readings: Of ``kept``, from tuning.
        """
        self._kept, self._default, self._settings = kept, default, settings
        self._in_force, self._rng, self._may_retune = in_force, rng, may_retune
        self._events = Events()
        self._drift = DriftDetector(readings)
        self._pairs: PairedWindows | None = None

    def read(self, record: StepRecord) -> tuple[list[Event], Verdict | None]:
        """Take a usable training step; return what there is to tell, and a verdict if there is one.

        After a verdict nothing more can be read.
        """
        verdict = None
        if self._pairs is not None:
            verdict = self._read_pairs(record, self._pairs)
        elif self._drift.add(record):
            verdict = self._drifted()
        return self._events.take(), verdict

    def _drifted(self) -> Verdict | None:
        is_default = self._kept.params == self._default
        retunes = is_default or (self._drift.links_changed and self._may_retune)
        self._events.say(messages.drift_text(is_default=is_default, retunes=retunes))
        if retunes:
            return Verdict.CHANGED
        kept = self._kept
        self._pairs = PairedWindows(
            Trial(trial_id=0, params=self._default, score=0.0),
            Trial(trial_id=max(1, kept.trial_id), params=kept.params, score=kept.score),
            test=ReplayTest(),
            in_force=self._in_force,
            safe=kept.params,
            noise=Noise(),
            rng=self._rng,
            steps=steps_per_sample(self._settings),
        )
        self._events.add(self._pairs.next_window())
        return None

    def _read_pairs(self, record: StepRecord, pairs: PairedWindows) -> Verdict | None:
        if pairs.read(record) is None:
            return None
        if pairs.decision is None:
            self._events.add(pairs.next_window())
            return None
        self._pairs = None
        if not pairs.decision:
            return Verdict.NO_BETTER
        self._events.add(self._in_force.change(self._kept.params, known=self._kept.params))
        self._drift.learn()
        return None
