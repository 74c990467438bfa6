"""SIGTERM within an elastic function: the job ends at the next commit, by all ranks together.

Queues send it some time before they kill. The signal's own meaning is put back when the function
has ended, and a script's own handler is called as well.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

logger = logging.getLogger("horovod")

EXIT_CODE = 75
"""EX_TEMPFAIL of sysexits.h: start the job again, and it goes on."""


class Terminated(SystemExit):
    """All ranks end here; ``finally`` is done, ``except Exception`` does not see it."""

    def __init__(self) -> None:
        super().__init__(EXIT_CODE)


Why = Callable[[], BaseException | None]
"""Returns what the signal has to raise at once; None: the next commit sees to it."""


def _nothing() -> None:
    """Stand for no reason to raise anything."""


class Termination:
    """Whether this process was told to end.

    Attributes:
        is_requested: It was, while an elastic function ran.
    """

    def __init__(self) -> None:
        self.is_requested = False
        self._previous: Any = None
        self._process = 0
        self._why: Why = _nothing

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """**Local.** Within this context SIGTERM is a request; nothing of that is left behind.

        Signals are handled in the main thread only: in another one nothing changes.
        """
        self.is_requested = False
        if threading.current_thread() is not threading.main_thread() or self._process:
            yield
            return
        self._previous = signal.getsignal(signal.SIGTERM)
        if self._previous is None:  # some library's own, which Python cannot put back
            logger.info("elastic: SIGTERM has a handler that is not Python's, and stays with it")
            yield
            return
        self._process = os.getpid()
        signal.signal(signal.SIGTERM, self._handle)
        try:
            yield
        finally:
            self._process = 0
            if signal.getsignal(signal.SIGTERM) == self._handle:  # else the script's newest one
                signal.signal(signal.SIGTERM, self._previous)

    @contextlib.contextmanager
    def asks(self, why: Why) -> Iterator[None]:
        """**Local.** Within this context raise what ``why()`` returns when the signal has come.

        For waits that no commit ends; what returns None changes nothing.
        """
        before, self._why = self._why, why
        try:
            self._ask()
            yield
        finally:
            self._why = before

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """**Local.** Within this context nothing is raised: what it does is done as a whole."""
        with self.asks(_nothing):
            yield
        self._ask()

    def _ask(self) -> None:
        error = self._why() if self.is_requested else None
        if error is not None:
            raise error

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._process:
            self._handle_in_child(number, frame)
            return
        self.is_requested = True
        if callable(self._previous):
            self._previous(number, frame)
        self._ask()

    def _handle_in_child(self, number: int, frame: FrameType | None) -> None:
        """A forked child, such as a pool's worker, ends as it would without us."""
        if callable(self._previous):
            self._previous(number, frame)
        elif self._previous == signal.SIG_DFL:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)


termination = Termination()
"""That of this process."""
