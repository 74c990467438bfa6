"""What planning has to import: a second of CPU time, spent before tuning begins."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Imported:
    """What is told when all is imported."""


class Imports:
    """The imports, in a thread of their own that keeps the priority that the service starts with.

    They begin when ``init`` has its answer, so they fall into the script's own start-up. At the
    priority of planning they would take half a minute where ranks fill the cores. The thread is
    there from the beginning, because a priority that was lowered does not come back.

    Attributes:
        thread: Waits, imports, ends.
    """

    def __init__(self, tell: Callable[[Imported], None]) -> None:
        """Wait for ``begin``; ``tell`` is called from the thread when all is imported."""
        self._tell = tell
        self._wanted = threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    @property
    def have_begun(self) -> bool:
        """Whether ``begin`` was called."""
        return self._wanted.is_set()

    def begin(self) -> None:
        """Import, if that was not done before."""
        self._wanted.set()

    def _run(self) -> None:
        self._wanted.wait()
        try:
            from autotune.bayes.surrogate import preload

            preload()
        finally:  # what cannot be imported is an error when it is needed
            self._tell(Imported())
