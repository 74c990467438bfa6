"""Who ends a training step, in a job with several wrapped optimizers. Pure, without a clock."""

from __future__ import annotations


class StepSource:
    """Which wrapped optimizer ends the training steps: the first one of the job.

    Decided by the order of calls alone, so that it is the same on all ranks. Another optimizer
    takes over when it wraps the first one's parameters again, or when others synchronised
    ``HAND_OVER`` times since the first one last did.
    """

    HAND_OVER = 10

    def __init__(self) -> None:
        self._source: int | None = None
        self._others = 0

    @property
    def exists(self) -> bool:
        """Return whether some optimizer ends the steps."""
        return self._source is not None

    def register(self, number: int, replaced: int | None) -> None:
        """Take note of optimizer ``number``, which wraps parameters of ``replaced`` again."""
        if self._source is None or self._source == replaced:
            self._source = number

    def ends_step(self, number: int) -> bool:
        """Return whether the synchronisation of optimizer ``number`` ends a step."""
        if self._source is None or number == self._source:
            self._source, self._others = number, 0
            return True
        self._others += 1
        if self._others >= self.HAND_OVER:
            self._source, self._others = number, 0
        return False
