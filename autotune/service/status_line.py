"""Lines for people: those of a log, and one live line that rewrites itself on a terminal.

Scripts replace or close ``sys.stderr`` while they train: lines go on where that is possible, and
none ends the training.
"""

from __future__ import annotations

import logging
import sys
from typing import TextIO

_ERASE_LINE = "\r\x1b[2K"
_DESCRIPTOR = 2


class StandardError(logging.StreamHandler[TextIO]):
    """Writes to what ``sys.stderr`` is when this is made, also after scripts have closed that."""

    def __init__(self) -> None:
        stream = sys.stderr
        if stream is not None and stream is sys.__stderr__:
            stream = open(_DESCRIPTOR, "w", errors="backslashreplace", closefd=False)
        super().__init__(stream)

    def handleError(self, record: logging.LogRecord) -> None:
        """Drop a line that cannot be written."""


class StatusLine:
    """Writes to ``logger``; progress goes to standard error directly where that is a terminal.

    There it begins with ``tag`` in brackets.
    """

    def __init__(self, logger: logging.Logger, *, tag: str) -> None:
        self._logger = logger
        self._tag = tag
        self._open = False

    def line(self, text: str, level: str = "info") -> None:
        """Log ``text`` at ``level`` ("debug", "info", "warning", "error")."""
        self.end()
        self._logger.log(getattr(logging, level.upper(), logging.INFO), "%s", text)

    def show(self, text: str) -> None:
        """Show how far the tuning is: in place on a terminal, else as a line of the log."""
        stream = _terminal()
        if stream is None:
            self._logger.info("%s", text)
            return
        stream.write(f"{_ERASE_LINE}[{self._tag}] {text}")
        stream.flush()
        self._open = True

    def end(self) -> None:
        """Finish a live line, so that other output starts on its own."""
        stream = _terminal() if self._open else None
        if stream is not None:
            stream.write("\n")
            stream.flush()
        self._open = False


def _terminal() -> TextIO | None:
    """Return standard error where that is a terminal that can be written to."""
    stream: TextIO | None = sys.stderr
    return stream if stream is not None and not stream.closed and stream.isatty() else None
