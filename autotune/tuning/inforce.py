"""Which setting is in force in which epoch, and the messages that change it."""

from __future__ import annotations

from autotune.trial import Setting
from autotune.tuning.changes import Apply


class InForce:
    """Numbers parameter changes.

    A change on trial is *limited*: the runtime takes it back by itself, as the next epoch, when a
    step waits for communication longer than ``limit_us``. That number is therefore never used for
    anything else.

    Attributes:
        epoch: Number of the latest change.
        fallback: What the runtime would go back to from there; None: the change is not limited.
    """

    def __init__(self, params: Setting) -> None:
        """Begin with epoch 0 under ``params``."""
        self.epoch = 0
        self.fallback: Setting | None = None
        self._params = {0: params}

    @property
    def params(self) -> Setting:
        """The setting of the latest change."""
        return self._params[self.epoch]

    def of(self, epoch: int) -> Setting | None:
        """Return the setting of an epoch; None for a step that spans a change."""
        return self._params.get(epoch)

    def change(
        self, params: Setting, *, known: Setting | None, limit_us: float | None = None
    ) -> Apply | None:
        """Return the message that puts ``params`` in force; None if they are, without a limit.

        Args:
            params: The setting.
            known: The best one so far: what the runtime goes on with without the tuner.
            limit_us: Longest time a step may wait for communication under it; None: any.
        """
        if self.params == params and self.fallback is None:
            return None
        self.epoch += 1 if self.fallback is None else 2
        self._params[self.epoch] = params
        self.fallback = None
        if limit_us is not None and known is not None:
            self.fallback = known
            self._params[self.epoch + 1] = known
        return Apply(
            epoch=self.epoch,
            params=params.as_dict(),
            incumbent=known.as_dict() if known is not None else None,
            limit_us=limit_us if self.fallback is not None else None,
        )

    def fall_back(self) -> Apply | None:
        """Return the message that takes a limited change back; None if there is none.

        The runtime may have done so already: then it ignores the message.
        """
        known, self.fallback = self.fallback, None
        if known is None:
            return None
        self.epoch += 1
        return Apply(epoch=self.epoch, params=known.as_dict(), incumbent=known.as_dict())
